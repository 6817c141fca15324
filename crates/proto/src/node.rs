//! What the server asks of the machine a sandbox lives on. In one process the engine implements [`Node`] directly; apart,
//! a client and a service of the same trait will carry it.

use async_trait::async_trait;
use runtime_model::{Reason, SandboxId, Shape, SnapshotId};
use tokio::sync::broadcast;

use crate::channel::{ChannelError, Stream};
use crate::egress::{DecisionPage, Rules};
use crate::guest::{DecodeError, Event, GuestError, Input, Request, Tell, decode_event, encode};

/// What a start needs to know.
#[derive(Debug, Clone)]
pub struct Order {
    pub id: SandboxId,
    pub shape: Shape,
    pub hostname: String,
    pub disk: Disk,
    /// Armed before its first instruction.
    pub rules: Rules,
}

impl Order {
    /// What a sandbox calls itself.
    #[must_use]
    pub fn hostname_of(id: SandboxId) -> String {
        format!("sandbox-{}", &id.to_string()[..8])
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disk {
    /// A fresh copy of the base image. A root that is already there under this id is a half-made one and is replaced.
    New,
    /// The disk this sandbox had when it stopped.
    Kept,
    /// A copy of what was captured, with its memory if that is in it: then the machine goes on where that one stood. Half
    /// made ones are replaced as with [`Disk::New`].
    Snapshot(SnapshotId),
}

impl Disk {
    /// Nobody has been promised it before its machine is up.
    #[must_use]
    pub fn is_fresh(self) -> bool {
        matches!(self, Self::New | Self::Snapshot(_))
    }
}

/// What is to be kept of a sandbox, under which name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capture {
    pub id: SandboxId,
    pub snapshot: SnapshotId,
    /// Its memory and processes too, not the disk alone.
    pub memory: bool,
}

/// A snapshot as it lies on the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Captured {
    /// What it takes up by itself.
    pub stored_bytes: u64,
}

/// A machine as the engine sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MachineStatus {
    pub id: SandboxId,
    /// It runs; one that is frozen does not.
    pub running: bool,
    /// It is frozen, or its memory is saved: it can be woken.
    pub paused: bool,
    /// Its disk is there.
    pub disk: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeEvent {
    /// The machine ended without being asked to.
    Ended { id: SandboxId, reason: Reason },
}

/// Counters since the machine was made, for metering and idle detection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    pub cpu_ns: u64,
    pub memory_bytes: u64,
    pub disk_bytes: u64,
}

/// What a server tells about the host it drives.
#[derive(Debug, Clone)]
pub struct HostFacts {
    /// `gvisor`, `qemu`, `firecracker`.
    pub engine: &'static str,
    /// Instructions of a guest are carried out in software: slow, and said so.
    pub emulated: bool,
    pub cores: u32,
    pub memory_mib: u64,
    /// Digest of the base image.
    pub image: String,
    /// It can pause machines and wake them with their memory.
    pub pauses: bool,
    /// A disk can grow under a machine that runs.
    pub grows_disk: bool,
}

#[derive(Debug, Clone, thiserror::Error)]
pub enum NodeError {
    #[error("no machine of that id is running here")]
    NotRunning,
    #[error("the disk of that sandbox is gone")]
    DiskGone,
    /// A paused machine whose memory is lost for good; its disk is there.
    #[error("the memory of that sandbox is gone: {0}")]
    MemoryGone(String),
    #[error("there is no such snapshot on this host")]
    SnapshotGone,
    #[error("this host cannot do that: {0}")]
    Unsupported(&'static str),
    #[error("this host has no room: {0}")]
    NoRoom(String),
    /// Nothing ran; ask again.
    #[error("the sandbox is busy: {0}")]
    Busy(String),
    /// Text for the log: the step, the object and the cause.
    #[error("{0}")]
    Failed(String),
    /// Whether the request ran is not known; a request with a key may be sent again.
    #[error("the channel to the sandbox broke")]
    Channel(#[from] ChannelError),
}

#[async_trait]
pub trait Node: Send + Sync + 'static {
    /// Starts a machine and returns once its agent answered. Repeating it for a running machine answers at once. A memory
    /// that was saved is dropped.
    async fn start(&self, order: Order) -> Result<(), NodeError>;
    /// A machine of that shape that stands ready, for a new sandbox that is to have its id: its start is then a matter of
    /// milliseconds. It is kept until then, or until it is given back.
    fn take_spare(&self, _shape: &Shape) -> Option<SandboxId> {
        None
    }
    /// No sandbox was made of it after all.
    fn give_back(&self, _id: SandboxId) {}
    /// Freezes a machine with its memory and returns; the memory is written to the disk behind the answer. Repeatable.
    async fn pause(&self, id: SandboxId) -> Result<(), NodeError>;
    /// Has a paused machine go on where it stood and returns once its agent answered. Repeating it for a running machine
    /// answers at once. [`NodeError::MemoryGone`] is final; after any other error it is still paused.
    async fn wake(&self, order: Order) -> Result<(), NodeError>;
    /// Ends a machine, keeps its disk, and drops a memory that was saved. Repeatable; fine if nothing runs.
    async fn stop(&self, id: SandboxId) -> Result<(), NodeError>;
    /// Ends a machine and removes all that it had. Repeatable.
    async fn remove(&self, id: SandboxId) -> Result<(), NodeError>;
    /// Keeps what a sandbox is, as a snapshot that does not depend on it. One that runs stands still from then on and is to
    /// be woken, with the rules that it then has; one that is paused stays so; of one that is stopped there is only the
    /// disk. Repeatable: a snapshot that is there is not taken again.
    async fn capture(&self, _capture: Capture) -> Result<Captured, NodeError> {
        Err(NodeError::Unsupported("take a snapshot"))
    }
    /// Removes a snapshot; fine if there is none.
    async fn drop_snapshot(&self, _id: SnapshotId) -> Result<(), NodeError> {
        Ok(())
    }
    /// Every snapshot that is whole.
    async fn snapshots(&self) -> Result<Vec<SnapshotId>, NodeError> {
        Ok(Vec::new())
    }
    /// New limits for the next start and, where the driver can, for the running machine.
    async fn set_disk_limit(&self, id: SandboxId, disk_mib: u64) -> Result<(), NodeError>;
    /// Holds a sandbox to these rules; once it returns they hold for every connection, the open ones too. For one that
    /// does not run there is nothing to do: its start brings its rules. Older rules than those that hold are passed over.
    async fn set_network(&self, id: SandboxId, rules: Rules) -> Result<(), NodeError>;
    /// What was decided about its connections, newest first.
    async fn decisions(&self, id: SandboxId, before: Option<u64>, limit: usize) -> Result<DecisionPage, NodeError>;
    /// Asks the sandbox's agent; waits a moment for a channel that is being attached again.
    async fn ask(&self, id: SandboxId, request: Request) -> Result<GuestStream, NodeError>;
    /// Everything that is here, running or kept.
    async fn machines(&self) -> Result<Vec<MachineStatus>, NodeError>;
    /// Whether that sandbox's disk is here. Not to know is an error.
    async fn has_disk(&self, id: SandboxId) -> Result<bool, NodeError> {
        Ok(self.machines().await?.iter().any(|machine| machine.id == id && machine.disk))
    }
    async fn usage(&self, id: SandboxId) -> Result<Usage, NodeError>;
    /// Of a running machine since it started; less than before once it is another machine.
    async fn cpu_ns(&self, id: SandboxId) -> Result<u64, NodeError> {
        Ok(self.usage(id).await?.cpu_ns)
    }
    fn events(&self) -> broadcast::Receiver<NodeEvent>;
    fn facts(&self) -> HostFacts;
}

#[derive(Debug, thiserror::Error)]
pub enum AskError {
    #[error(transparent)]
    Channel(#[from] ChannelError),
    #[error("{}", .0.message)]
    Guest(GuestError),
    #[error(transparent)]
    Decode(#[from] DecodeError),
    #[error("the agent's answer ended early")]
    Short,
    #[error("the agent answered something else than was asked")]
    Unexpected,
}

/// A request under way: typed events come, input goes.
pub struct GuestStream {
    stream: Stream,
}

impl GuestStream {
    #[must_use]
    pub fn new(stream: Stream) -> Self {
        Self { stream }
    }

    /// The next event; `None` at the end. A guest's error becomes [`AskError::Guest`]. Cancel-safe.
    pub async fn next(&mut self) -> Result<Option<Tell>, AskError> {
        let Some(message) = self.stream.recv().await? else {
            return Ok(None);
        };
        match decode_event(message)? {
            Event { tell: Some(Tell::Error(error)) } => Err(AskError::Guest(error)),
            Event { tell: Some(tell) } => Ok(Some(tell)),
            // An event newer than we are.
            Event { tell: None } => Err(AskError::Unexpected),
        }
    }

    /// The one event of a request that answers once.
    pub async fn only(&mut self) -> Result<Tell, AskError> {
        self.next().await?.ok_or(AskError::Short)
    }

    /// Sends bytes in pieces of the right size.
    pub async fn input(&self, mut data: bytes::Bytes) -> Result<(), AskError> {
        while !data.is_empty() {
            let piece = data.split_to(data.len().min(crate::guest::DATA_STEP));
            self.stream.send(encode(&Input { data: piece })).await?;
        }
        Ok(())
    }

    /// The sending half, for input that goes while answers come. The stream must be kept: dropping it resets both.
    #[must_use]
    pub fn sender(&self) -> crate::channel::Sender {
        self.stream.sender()
    }

    pub async fn finish_input(&self) -> Result<(), AskError> {
        Ok(self.stream.finish().await?)
    }
}
