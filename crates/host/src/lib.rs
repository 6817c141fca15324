//! The hands on the kernel and the only room that holds unsafe code.
