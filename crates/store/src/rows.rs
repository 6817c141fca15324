//! What the tables hold, typed.

use std::collections::BTreeMap;
use std::fmt;

use runtime_model::network::Network;
use runtime_model::{CredentialId, PrincipalId, Reason, SandboxId, SessionId, Shape, SnapshotId, State};

/// Times are milliseconds since the Unix epoch.
#[derive(Debug, Clone)]
pub struct CredentialRow {
    pub id: CredentialId,
    pub principal: PrincipalId,
    pub name: String,
    pub hash: [u8; 32],
    /// The first characters of the key, to tell keys apart in a list.
    pub prefix: String,
    pub read_only: bool,
    pub account_wide: bool,
    pub created_at: i64,
    pub revoked_at: Option<i64>,
}

/// A browser's way into one sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionRow {
    pub id: SessionId,
    pub sandbox: SandboxId,
    /// The key that made it: revoked, it ends the session.
    pub credential: CredentialId,
    pub name: Option<String>,
    /// Exact origins whose pages may use it.
    pub origins: Vec<String>,
    pub hash: [u8; 32],
    pub created_at: i64,
    pub expires_at: i64,
    pub revoked_at: Option<i64>,
}

/// A session under its token's hash, ended or not.
#[derive(Debug, Clone)]
pub struct FoundSession {
    pub session: SessionRow,
    /// For whom the key that made it acts.
    pub principal: PrincipalId,
    /// That key was revoked.
    pub orphan: bool,
}

/// A port of a sandbox under an address of its own.
#[derive(Clone, PartialEq, Eq)]
pub struct PreviewRow {
    pub sandbox: SandboxId,
    pub port: u16,
    pub id: uuid::Uuid,
    pub public: bool,
    /// Sites that may show it in a frame; `None`: any.
    pub embed_origins: Option<Vec<String>>,
    /// The key of its tokens.
    pub secret: [u8; 32],
    pub created_at: i64,
}

impl fmt::Debug for PreviewRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sandbox, port, id, public, embed_origins, secret: _, created_at: _ } = self;
        write!(f, "preview {id} of port {port} of {sandbox} (public: {public}, embed: {embed_origins:?})")
    }
}

/// Variables of a sandbox. Values are secrets: never printed, never answered.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Env(pub BTreeMap<String, String>);

impl fmt::Debug for Env {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UserKind {
    Sandbox,
    Root,
}

impl UserKind {
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Sandbox => "sandbox",
            Self::Root => "root",
        }
    }

    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Sandbox, Self::Root].into_iter().find(|user| user.as_str() == text)
    }
}

/// What the time limit does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnLimit {
    Pause,
    Stop,
    Delete,
}

impl OnLimit {
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pause => "pause",
            Self::Stop => "stop",
            Self::Delete => "delete",
        }
    }

    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Pause, Self::Stop, Self::Delete].into_iter().find(|value| value.as_str() == text)
    }
}

/// The operation a row is in the middle of: what a driver continues after a crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// The first start, with a fresh disk.
    StartNew,
    /// The first start, as a copy of a snapshot.
    StartCopy,
    /// A start with the disk kept.
    StartKept,
    Stop,
    Pause,
    Wake,
    /// It stands still for a snapshot and goes on after it.
    Capture,
    /// A stop that a start with another size follows.
    Resize,
}

impl Operation {
    const ALL: [Self; 8] = [
        Self::StartNew,
        Self::StartCopy,
        Self::StartKept,
        Self::Stop,
        Self::Pause,
        Self::Wake,
        Self::Capture,
        Self::Resize,
    ];

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::StartNew => "start_new",
            Self::StartCopy => "start_copy",
            Self::StartKept => "start_kept",
            Self::Stop => "stop",
            Self::Pause => "pause",
            Self::Wake => "wake",
            Self::Capture => "capture",
            Self::Resize => "resize",
        }
    }

    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|value| value.as_str() == text)
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct SandboxRow {
    pub id: SandboxId,
    /// The key that made it.
    pub credential: CredentialId,
    pub name: Option<String>,
    pub labels: BTreeMap<String, String>,
    pub env: Env,
    pub user: UserKind,
    pub region: String,
    pub shape: Shape,
    pub cpu_reserved: bool,
    /// Seconds; 0 = none.
    pub timeout_seconds: u32,
    pub on_limit: OnLimit,
    /// Seconds; 0 = never.
    pub idle_seconds: u32,
    pub auto_wake: bool,
    pub persistent: bool,
    pub max_total_cost_micros: Option<i64>,
    pub image: Option<String>,
    pub snapshot: Option<String>,
    /// Egress secrets it may use; `None` = all.
    pub secrets: Option<Vec<String>>,
    /// What it may reach.
    pub network: Network,
    /// Raised by one at every change of `network`.
    pub network_version: u64,
    /// `None` = never changed.
    pub network_updated_at: Option<i64>,
    /// Which driver runs it: a sandbox keeps its engine.
    pub engine: String,
    pub state: State,
    pub reason: Option<Reason>,
    pub operation: Option<Operation>,
    /// Raised by one at every change.
    pub generation: i64,
    pub created_at: i64,
    pub ready_at: Option<i64>,
    pub last_active_at: Option<i64>,
    pub ends_at: Option<i64>,
    pub ended_at: Option<i64>,
    pub paused_at: Option<i64>,
    /// Days a stopped or paused one is kept; `None` = for good.
    pub retention_days: Option<u32>,
    pub disk_kept: bool,
    pub memory_restored: Option<bool>,
    pub charged_micros: i64,
    pub held_micros: i64,
}

impl SandboxRow {
    /// A name is held while something lives or can start again.
    #[must_use]
    pub fn holds_name(&self) -> bool {
        self.state != State::Stopped || self.disk_kept
    }
}

/// What a repeated call is answered with.
#[derive(Clone, PartialEq, Eq)]
pub enum Replay {
    /// The same body again.
    Body(Vec<u8>),
    /// The current record of this sandbox.
    Sandbox(SandboxId),
    /// The current record of this snapshot.
    Snapshot(SnapshotId),
    /// What became of these, which a fork has made.
    Fork(Vec<SandboxId>),
}

#[derive(Clone, PartialEq, Eq)]
pub struct IdempotencyRow {
    pub scope: String,
    pub key: String,
    /// Keyed hash over the whole request.
    pub fingerprint: [u8; 32],
    pub status: u16,
    pub replay: Replay,
    pub expires_at: i64,
}

impl fmt::Debug for IdempotencyRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyRow")
            .field("scope", &self.scope)
            .field("status", &self.status)
            .finish_non_exhaustive()
    }
}

/// What is left of a deleted sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeletedRow {
    pub id: SandboxId,
    pub credential: CredentialId,
    /// The answer to the delete, given again to a repeated one.
    pub answer: String,
    pub deleted_at: i64,
}

#[derive(Debug, Clone, Default)]
pub struct ListFilter {
    /// Only what this key made.
    pub credential: Option<CredentialId>,
    /// Any of these; empty = all.
    pub states: Vec<State>,
    pub name: Option<String>,
    /// `key:value` texts, all of which must match.
    pub labels: Vec<String>,
    /// Stopped ones without a disk too.
    pub include_gone: bool,
    /// Created after this (time, id).
    pub after: Option<(i64, SandboxId)>,
    pub limit: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SnapshotState {
    Capturing,
    Ready,
    Failed,
    /// Gone for everybody; what it has on its host is still to be removed.
    Deleting,
    Deleted,
}

impl SnapshotState {
    pub const ALL: [Self; 5] = [Self::Capturing, Self::Ready, Self::Failed, Self::Deleting, Self::Deleted];

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Capturing => "capturing",
            Self::Ready => "ready",
            Self::Failed => "failed",
            Self::Deleting => "deleting",
            Self::Deleted => "deleted",
        }
    }

    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == text)
    }

    #[must_use]
    pub fn is_gone(self) -> bool {
        matches!(self, Self::Deleting | Self::Deleted)
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct SnapshotRow {
    pub id: SnapshotId,
    /// Raised by one at every change.
    pub generation: i64,
    /// The key that made it.
    pub credential: CredentialId,
    pub source: SandboxId,
    /// With memory and processes, not the disk alone.
    pub memory: bool,
    /// Made for a fork alone: not shown, and removed after it.
    pub passing: bool,
    pub name: Option<String>,
    pub labels: BTreeMap<String, String>,
    /// That of its source.
    pub shape: Shape,
    pub cpu_reserved: bool,
    pub engine: String,
    pub state: SnapshotState,
    /// Why it failed, as its owner may read it.
    pub error: Option<String>,
    pub retention_days: Option<u32>,
    pub stored_bytes: Option<i64>,
    pub created_at: i64,
    pub ready_at: Option<i64>,
    pub expires_at: i64,
    pub deleted_at: Option<i64>,
}

/// Of those that are shown and not gone.
#[derive(Debug, Clone, Default)]
pub struct SnapshotFilter {
    /// Only what this key made.
    pub credential: Option<CredentialId>,
    pub source: Option<SandboxId>,
    pub name: Option<String>,
    pub state: Option<SnapshotState>,
    /// Created after this (time, id).
    pub after: Option<(i64, SnapshotId)>,
    pub limit: u32,
}
