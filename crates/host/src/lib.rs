//! The hands on the kernel and the only room that holds unsafe code.

pub mod btrfs;
pub mod cgroup;
pub mod fifo;
pub mod lock;
pub mod loopdev;
pub mod mount;
pub mod process;
