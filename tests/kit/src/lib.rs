//! What tests that run the built program share.
//!
//! [`Stack`] starts the real `runtime serve` on a data directory of its own inside the machine's disk pool, and takes
//! everything away again: the server, the helpers of its sandboxes, their mounts, cgroups and subvolumes. [`Api`] speaks
//! HTTP over a bare socket, so that a test decides what goes over the wire, and checks the framing of every answer.
//! [`world`] is a small internet of our own. [`leaks`] counts what a host holds for a data directory. [`client`] drives the public Python client, unmodified.
//!
//! Everything here panics with the step and the object: a test that cannot go on has failed.

pub mod api;
pub mod client;
pub mod dice;
pub mod http;
pub mod leaks;
mod log;
mod places;
mod poll;
mod process;
mod program;
mod stack;
mod sweep;
pub mod world;

pub use api::{Api, Machine};
pub use dice::Dice;
pub use http::Answer;
pub use places::Places;
pub use poll::{eventually, until};
pub use process::{Process, alive, memory_peak_kib, processes, reset_memory_peak, send_signal};
pub use program::program;
pub use rustix::process::Signal;
pub use stack::{Stack, StackOptions};
pub use world::World;

/// A name that no other test uses.
#[must_use]
pub fn unique(prefix: &str) -> String {
    format!("{prefix}-{}", &uuid::Uuid::new_v4().simple().to_string()[..12])
}
