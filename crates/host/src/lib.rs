//! The hands on the kernel and the only room that holds unsafe code.

pub mod btrfs;
pub mod cgroup;
pub mod clock;
pub mod credentials;
pub mod epoll;
pub mod fdpass;
pub mod fifo;
pub mod forward;
pub mod frugal;
pub mod guest;
pub mod lock;
pub mod loopdev;
pub mod mount;
pub mod process;
pub mod reap;
pub mod spawn;
pub mod substitute;
pub mod trace;
pub mod vsock;
