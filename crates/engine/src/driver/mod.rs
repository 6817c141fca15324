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
//! a booted machine can be dialled, only a plan can be booted. `Frozen` and `Saved` join with pausing; they are new
//! types beside [`Booted`], reached by new methods on it, and change nothing that is here.
//!
//! A driver leaves a trail on the host from before its first step on ([`Driver::trail`]), so that whatever a crash
//! left half made can be found and removed by [`Driver::clean`], which is always safe to repeat.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use runtime_host::cgroup::{Group, Limits};
use runtime_model::SandboxId;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;

pub mod gvisor;

/// A machine that is decided on and does not exist yet.
#[derive(Debug)]
pub struct Plan {
    pub id: SandboxId,
    pub identity: Identity,
    /// Its disk: a directory of its own that nothing else writes to.
    pub root: PathBuf,
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
    /// Ends it at once and removes all it had but the disk.
    async fn end(self: Box<Self>) -> Result<(), DriverError>;
}

#[async_trait]
pub trait Driver: Send + Sync + 'static {
    fn name(&self) -> &'static str;
    /// Starts the machine. On failure nothing of it is left.
    async fn boot(&self, plan: Plan) -> Result<Box<dyn Booted>, DriverError>;
    /// Finds a machine that an earlier server started; `None` if it does not run.
    async fn adopt(&self, id: SandboxId) -> Result<Option<Box<dyn Booted>>, DriverError>;
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
