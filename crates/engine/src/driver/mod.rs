//! What the engine asks of a way to run a machine, with the machine's phases as types.
//!
//! ```text
//!   Plan ──boot──> Booted ──end──> (nothing left but its disk)
//!                   ▲  │
//!             thaw  │  │ freeze
//!                   │  ▼
//!                  Frozen ──save──> Saved ──restore──> Booted   (fork: restore of a copy)
//! ```
//!
//! A step consumes its phase and returns the next, so that what may not be asked in a phase does not exist there: only
//! a booted machine can be dialled, only a plan can be booted, only a frozen one saved. A saved machine is a directory
//! and nothing else ([`Save`]).
//!
//! A driver leaves a trail on the host from before its first step on ([`Driver::trail`]), so that whatever a crash
//! left half made can be found and removed by [`Driver::clean`], which is always safe to repeat.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use runtime_host::cgroup::{Group, Limits};
use runtime_model::{SandboxId, Shape};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;

use crate::prepare::{Base, Pool};

pub mod gvisor;
pub(crate) mod machine;
pub mod microvm;
pub(crate) mod places;
pub(crate) mod record;
pub(crate) mod sweep;

/// A machine that is decided on and does not exist yet.
#[derive(Debug)]
pub struct Plan {
    pub id: SandboxId,
    pub identity: Identity,
    /// Its disk: a directory of its own that nothing else writes to.
    pub root: PathBuf,
    pub shape: Shape,
    pub limits: Limits,
    /// Cancelled when it is no longer wanted: the boot then fails soon.
    pub abort: CancellationToken,
}

/// What a machine is told at every hello and held to; kept by the driver so that the next server knows it too.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    pub hostname: String,
    /// Higher than that of every machine this sandbox had before.
    pub generation: u64,
    pub max_user_processes: u64,
    pub memory_bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// The machine is at its memory limit and stands still until something gives.
    OutOfMemory,
    Ended(End),
}

/// How a machine ended, in words for the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct End {
    pub cause: String,
}

pub type Reader = Box<dyn AsyncRead + Send + Unpin>;
pub type Writer = Box<dyn AsyncWrite + Send + Unpin>;

/// Opens the byte stream to the machine's agent. It can be dialled again whenever it broke; the ends of one dialling
/// must be gone before the next.
pub trait Dial: Send + Sync + 'static {
    fn dial(&self) -> Result<(Reader, Writer), DriverError>;
}

/// A machine whose agent runs, or is about to.
#[async_trait]
pub trait Booted: Send + 'static {
    fn identity(&self) -> &Identity;
    fn dialer(&self) -> Arc<dyn Dial>;
    fn group(&self) -> Group;
    /// The next thing that happens to it. Cancel-safe. After `Ended` it is not called again.
    async fn notice(&mut self) -> Notice;
    /// Memory was made: the next shortage is a new one.
    async fn memory_relieved(&mut self);
    /// Stops everything in it where it stands. Nobody may be dialled in.
    async fn freeze(self: Box<Self>) -> Result<Box<dyn Frozen>, StillBooted>;
    /// Ends it at once and removes all it had but the disk.
    async fn end(self: Box<Self>) -> Result<(), DriverError>;
}

/// A machine that stands still with all it has in memory.
#[async_trait]
pub trait Frozen: Send + 'static {
    fn identity(&self) -> &Identity;
    fn group(&self) -> Group;
    /// As of a booted one.
    async fn notice(&mut self) -> Notice;
    fn saver(&self) -> Arc<dyn Save>;
    /// Lets it go on. A save that is under way is waited for.
    async fn thaw(self: Box<Self>) -> Result<Box<dyn Booted>, StillFrozen>;
    async fn end(self: Box<Self>) -> Result<(), DriverError>;
}

/// Writes down a frozen machine, which stays frozen however that goes.
#[async_trait]
pub trait Save: Send + Sync + 'static {
    /// `into` is a new, empty directory. What is in it is durable on return. Once the machine itself has nothing more to do
    /// with it, it ends early if it has been given up on.
    async fn save(&self, into: &Path, given_up: &CancellationToken) -> Result<(), DriverError>;
}

/// Where a machine is restored from. It goes with the disk as it was then, and with no other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    pub dir: PathBuf,
    /// What the directory is called from before the machine's first instruction on, which may change the disk.
    pub used: PathBuf,
}

/// A freeze that did not work, and the machine as it was.
pub struct StillBooted {
    pub machine: Box<dyn Booted>,
    pub error: DriverError,
}

impl std::fmt::Debug for StillBooted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.error.fmt(f)
    }
}

/// The same of a thaw.
pub struct StillFrozen {
    pub machine: Box<dyn Frozen>,
    pub error: DriverError,
}

impl std::fmt::Debug for StillFrozen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.error.fmt(f)
    }
}

/// A machine of an earlier server.
pub enum Adopted {
    Booted(Box<dyn Booted>),
    Frozen(Box<dyn Frozen>),
}

#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// This memory will never run here.
    #[error("{0}")]
    Unusable(String),
    /// It did not work this time; the memory is as it was.
    #[error(transparent)]
    Failed(#[from] DriverError),
}

#[async_trait]
pub trait Driver: Send + Sync + 'static {
    fn name(&self) -> &'static str;
    /// True where a guest's instructions are carried out in software.
    fn emulated(&self) -> bool {
        false
    }
    /// Makes the disk of a new sandbox, by this name in the pool; it is empty, or like the base image.
    fn make_disk(&self, pool: &Pool, base: &Base, name: &str, disk_mib: u64) -> Result<PathBuf, DriverError>;
    /// Sets how much a disk may hold, which a machine sees at its next start at the latest.
    fn limit_disk(&self, pool: &Pool, name: &str, disk_mib: u64) -> Result<(), DriverError>;
    /// Starts the machine. On failure nothing of it is left.
    async fn boot(&self, plan: Plan) -> Result<Box<dyn Booted>, DriverError>;
    /// Finds a machine that an earlier server started; `None` if it does not run.
    async fn adopt(&self, id: SandboxId) -> Result<Option<Adopted>, DriverError>;
    /// A machine that runs sees at once what its disk may hold.
    fn grows_disk(&self) -> bool {
        false
    }
    /// It can freeze, save and restore.
    fn pauses(&self) -> bool;
    /// What was written in a machine may be in its memory only, until its agent is asked to bring it to the disk.
    fn holds_writes(&self) -> bool {
        false
    }
    /// Starts the machine where a saved one stood. On failure nothing of it is left but what it was saved in.
    async fn restore(&self, plan: Plan, from: Saved) -> Result<Box<dyn Booted>, RestoreError>;
    /// Every sandbox that this driver has left anything of on this host, disks aside.
    async fn trail(&self) -> Result<Vec<SandboxId>, DriverError>;
    /// Removes everything of that sandbox but its disk, running or half made.
    async fn clean(&self, id: SandboxId) -> Result<(), DriverError>;
}

/// A step that did not work: which, on what, and why.
#[derive(Debug, thiserror::Error)]
#[error("cannot {step} {object}")]
pub struct DriverError {
    pub step: &'static str,
    pub object: String,
    #[source]
    pub source: Box<dyn std::error::Error + Send + Sync>,
}

impl DriverError {
    pub(crate) fn new(
        step: &'static str,
        object: impl std::fmt::Display,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self { step, object: object.to_string(), source: source.into() }
    }
}
