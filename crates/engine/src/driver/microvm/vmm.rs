//! What a microVM asks of the program that runs it; QEMU and Firecracker answer in the same words.
//!
//! ```text
//!   spawn ──boot─────> running <──resume── standing still ──snapshot──> files
//!     └─────restore───>   └──────pause───────────▲
//! ```
//!
//! The shim spawns, boots and restores, since it is the program's parent; the server pauses, resumes, saves and dials.
//! All of it waits for the program, with a limit, and belongs off the async threads.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use runtime_host::process::ProcessId;
use runtime_host::spawn::SpawnError;
use serde::{Deserialize, Serialize};

use super::firecracker::Firecracker;
use super::firecracker::api::ApiError;
use super::launch::Launch;
use super::qemu::Qemu;
use super::qemu::qmp::QmpError;
use crate::driver::{Dial, DriverError};

/// Processes that were told to die take this long at most on a host that works.
const KILL_LIMIT: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub(crate) enum VmmError {
    #[error("cannot {step} {object}")]
    Io {
        step: &'static str,
        object: String,
        #[source]
        source: io::Error,
    },
    #[error("its program was not started")]
    Spawn(#[from] SpawnError),
    #[error("it cannot be told over its monitor")]
    Qemu(#[from] QmpError),
    #[error("it cannot be told over its API")]
    Firecracker(#[from] ApiError),
    #[error("its program ended at once")]
    Gone,
}

pub(crate) fn io_error(step: &'static str, object: impl std::fmt::Display) -> impl FnOnce(io::Error) -> VmmError {
    let object = object.to_string();
    move |source| VmmError::Io { step, object, source }
}

/// Where a machine is started.
pub(crate) struct Site<'a> {
    /// Shows in the list of processes, and marks its process as this sandbox's.
    pub(crate) name: &'a str,
    pub(crate) run_dir: &'a Path,
    /// The doors of its control group.
    pub(crate) groups: &'a [OwnedFd],
    /// What [`Vmm::channel`] made.
    pub(crate) channel: OwnedFd,
}

/// A program that was started.
pub(crate) struct Spawned {
    pub(crate) pid: u32,
    /// What it waits for before it takes any memory for its guest: called once it is written down.
    pub(crate) owed: Option<Owed>,
}

pub(crate) type Owed = Box<dyn FnOnce() -> Result<(), VmmError>>;

/// A machine whose program runs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct At<'a> {
    pub(crate) run_dir: &'a Path,
    pub(crate) process: ProcessId,
}

/// The end of a channel that is there before its machine: handed to the program, and our place in its queue.
pub(crate) struct Early {
    pub(crate) handed: OwnedFd,
    pub(crate) first: UnixStream,
}

pub(crate) trait Vmm: Send + Sync {
    fn name(&self) -> &'static str;
    /// True where a guest's instructions are carried out in software.
    fn emulates(&self) -> bool;
    /// What the program needs beside the guest's memory.
    fn overhead_bytes(&self) -> u64;
    /// True where a template's memory is in a file from its start, to which it writes as it runs; else the snapshot brings
    /// the file. All copies map it from there, and none can write to it.
    fn runs_in_file(&self) -> bool;
    /// Makes the channel in advance, where it is handed to the program.
    fn channel(&self, run_dir: &Path) -> Result<Option<Early>, DriverError>;

    /// Starts the program with everything that this machine may reach, and nothing else.
    fn spawn(&self, launch: &Launch, site: Site<'_>) -> Result<Spawned, VmmError>;
    /// Returns once the guest's first instructions run.
    fn boot(&self, at: &At<'_>, launch: &Launch) -> Result<(), VmmError>;
    /// Returns once the guest goes on from where it was saved.
    fn restore(&self, at: &At<'_>, launch: &Launch) -> Result<(), VmmError>;
    /// Does it stand still, for whatever reason?
    fn is_paused(&self, at: &At<'_>) -> Result<bool, VmmError>;
    /// Stops the guest between two instructions. One that stands still already is fine.
    fn pause(&self, at: &At<'_>) -> Result<(), VmmError>;
    fn resume(&self, at: &At<'_>) -> Result<(), VmmError>;
    /// Writes a machine that stands still to `into`: the devices as [`super::saved::STATE`], and its memory with them or
    /// as [`super::saved::MEMORY`] unless that is in a file already. It goes on standing still.
    fn snapshot(&self, at: &At<'_>, launch: &Launch, into: &Path, limit: Duration) -> Result<(), VmmError>;
    /// `first` is the place in the queue of [`Self::channel`].
    fn dial(&self, at: &At<'_>, first: Option<UnixStream>) -> Result<Arc<dyn Dial>, DriverError>;
    /// Is this the command line of a machine of that sandbox?
    fn is_machine(&self, name: &str, run_dir: &Path, words: &[Vec<u8>]) -> bool;

    /// Ends it at once. True once it has.
    fn kill(&self, at: &At<'_>) -> io::Result<bool> {
        match at.process.open()? {
            Some(handle) => handle.kill().and_then(|()| handle.wait(KILL_LIMIT)),
            None => Ok(true),
        }
    }
}

/// The program that runs a machine, as a record remembers it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Program {
    Qemu(Qemu),
    Firecracker(Firecracker),
}

impl Program {
    pub(crate) fn vmm(&self) -> &dyn Vmm {
        match self {
            Self::Qemu(qemu) => qemu,
            Self::Firecracker(firecracker) => firecracker,
        }
    }
}
