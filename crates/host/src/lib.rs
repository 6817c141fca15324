//! The hands on the kernel and the only room that holds unsafe code.

pub mod credentials;
pub mod fdpass;
pub mod forward;
pub mod frugal;
pub mod reap;
pub mod spawn;
