//! Firecracker's API, as its published document has it: what is asked, as types, and the phases in which it may be asked.
//!
//! ```text
//!   Fresh ──configure──> Configured ──start──> Running ──pause──> Paused ──snapshot──> files
//!     └───────load───────────────────────────>    └────<─resume──┘
//! ```
//!
//! A field that a Firecracker does not know is refused by it, so a field that came later than the oldest one allowed here
//! is sent only to releases that have it.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::http::{Answer, Http, HttpError};

/// A request that only notes something.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// One that starts a guest, or reads its memory from a disk.
const START_LIMIT: Duration = Duration::from_secs(60);
/// Between two looks whether the API is there.
const LOOK: Duration = Duration::from_millis(1);
/// What goes into an error of what it said.
const SAID: usize = 500;

#[derive(Debug, thiserror::Error)]
pub(crate) enum ApiError {
    #[error("cannot connect to Firecracker's API")]
    Connect(#[source] io::Error),
    #[error("Firecracker did not answer {request}")]
    Http {
        request: String,
        #[source]
        source: HttpError,
    },
    #[error("Firecracker refused {request} ({status}): {why}")]
    Refused { request: String, status: u16, why: String },
    #[error("Firecracker's answer to {request} is not what its document says")]
    Answer {
        request: String,
        #[source]
        source: serde_json::Error,
    },
    #[error("a request cannot be written")]
    Request(#[source] serde_json::Error),
    #[error("Firecracker says that its machine is {0:?}, and cannot do that")]
    Phase(State),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct MachineConfiguration {
    pub(crate) vcpu_count: u32,
    pub(crate) mem_size_mib: u64,
    pub(crate) smt: bool,
    pub(crate) track_dirty_pages: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct BootSource {
    pub(crate) kernel_image_path: String,
    pub(crate) initrd_path: String,
    pub(crate) boot_args: String,
}

/// How much a guest's "flush" is worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) enum CacheType {
    /// Nothing: there is nothing to write.
    Unsafe,
    /// What was written is on the disk.
    Writeback,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Drive {
    pub(crate) drive_id: String,
    pub(crate) path_on_host: String,
    pub(crate) is_root_device: bool,
    pub(crate) is_read_only: bool,
    pub(crate) cache_type: CacheType,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Vsock {
    pub(crate) guest_cid: u32,
    pub(crate) uds_path: String,
}

/// Through it a guest gives back what it has freed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Balloon {
    pub(crate) amount_mib: u64,
    pub(crate) deflate_on_oom: bool,
    /// Not every release that is allowed here knows it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) free_page_reporting: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Machine {
    pub(crate) configuration: MachineConfiguration,
    pub(crate) boot: BootSource,
    /// In the order in which the guest meets them.
    pub(crate) drives: Vec<Drive>,
    pub(crate) balloon: Balloon,
    pub(crate) vsock: Vsock,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct SnapshotCreate {
    pub(crate) snapshot_type: SnapshotType,
    pub(crate) snapshot_path: String,
    pub(crate) mem_file_path: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) enum SnapshotType {
    Full,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct SnapshotLoad {
    pub(crate) snapshot_path: String,
    pub(crate) mem_backend: MemoryBackend,
    pub(crate) resume_vm: bool,
    /// Not every release that is allowed here knows this and the next.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) vsock_override: Option<VsockOverride>,
    /// The guest's clocks, all of them, go on as if it had run meanwhile.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) clock_realtime: bool,
}

/// Where the socket of a restored machine is, whatever it remembers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct VsockOverride {
    pub(crate) uds_path: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct MemoryBackend {
    pub(crate) backend_type: BackendType,
    pub(crate) backend_path: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) enum BackendType {
    /// Mapped privately: a page is read when it is touched, and nothing is ever written back.
    File,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(crate) enum State {
    #[serde(rename = "Not started")]
    NotStarted,
    Running,
    Paused,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct InstanceInfo {
    pub(crate) id: String,
    pub(crate) state: State,
    pub(crate) vmm_version: String,
}

#[derive(Serialize)]
struct Action {
    action_type: &'static str,
}

#[derive(Serialize)]
struct Vm {
    state: &'static str,
}

#[derive(Serialize)]
struct EntropyDevice {}

#[derive(Deserialize)]
struct Fault {
    #[serde(default)]
    fault_message: String,
}

struct Api(Http);

impl Api {
    fn info(&mut self) -> Result<InstanceInfo, ApiError> {
        let request = "GET /";
        let answer = self.0.ask("GET", "/", None, ANSWER_LIMIT);
        let answer = done(request, answer)?;
        serde_json::from_slice(&answer.body).map_err(|source| ApiError::Answer { request: request.to_owned(), source })
    }

    fn put(&mut self, path: &str, body: &impl Serialize, limit: Duration) -> Result<(), ApiError> {
        self.send("PUT", path, body, limit)
    }

    fn send(&mut self, method: &str, path: &str, body: &impl Serialize, limit: Duration) -> Result<(), ApiError> {
        let body = serde_json::to_vec(body).map_err(ApiError::Request)?;
        done(&format!("{method} {path}"), self.0.ask(method, path, Some(&body), limit)).map(drop)
    }
}

fn done(request: &str, answer: Result<Answer, HttpError>) -> Result<Answer, ApiError> {
    let answer = answer.map_err(|source| ApiError::Http { request: request.to_owned(), source })?;
    if (200..300).contains(&answer.status) {
        return Ok(answer);
    }
    let why = serde_json::from_slice(&answer.body).map(|fault: Fault| fault.fault_message);
    let why: String = why.unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ");
    let why = if why.is_empty() { "it did not say why".to_owned() } else { why.chars().take(SAID).collect() };
    Err(ApiError::Refused { request: request.to_owned(), status: answer.status, why })
}

/// A process without a machine in it.
pub(crate) struct Fresh(Api);

impl Fresh {
    /// Waits until the API is there; as long as `lives` says that it may still come.
    pub(crate) fn wait(path: &Path, patience: Duration, lives: impl Fn() -> bool) -> Result<Self, ApiError> {
        let end = Instant::now() + patience;
        loop {
            match Http::connect(path) {
                Ok(http) => return Self::of(Api(http)),
                Err(error) if Instant::now() > end || !lives() => return Err(ApiError::Connect(error)),
                Err(_) => std::thread::sleep(LOOK),
            }
        }
    }

    fn of(mut api: Api) -> Result<Self, ApiError> {
        match api.info()?.state {
            State::NotStarted => Ok(Self(api)),
            other => Err(ApiError::Phase(other)),
        }
    }

    pub(crate) fn configure(mut self, machine: &Machine) -> Result<Configured, ApiError> {
        let api = &mut self.0;
        api.put("/machine-config", &machine.configuration, ANSWER_LIMIT)?;
        api.put("/boot-source", &machine.boot, ANSWER_LIMIT)?;
        for drive in &machine.drives {
            api.put(&format!("/drives/{}", drive.drive_id), drive, ANSWER_LIMIT)?;
        }
        api.put("/entropy", &EntropyDevice {}, ANSWER_LIMIT)?;
        api.put("/balloon", &machine.balloon, ANSWER_LIMIT)?;
        api.put("/vsock", &machine.vsock, ANSWER_LIMIT)?;
        Ok(Configured(self.0))
    }

    /// Takes over a saved machine and lets it run. If it fails, Firecracker ends itself.
    pub(crate) fn load(mut self, from: &SnapshotLoad) -> Result<Running, ApiError> {
        self.0.put("/snapshot/load", from, START_LIMIT)?;
        let mut running = Running(self.0);
        if !from.resume_vm {
            running.0.send("PATCH", "/vm", &Vm { state: "Resumed" }, START_LIMIT)?;
        }
        Ok(running)
    }
}

pub(crate) struct Configured(Api);

impl Configured {
    pub(crate) fn start(mut self) -> Result<Running, ApiError> {
        self.0.put("/actions", &Action { action_type: "InstanceStart" }, START_LIMIT)?;
        Ok(Running(self.0))
    }
}

/// A machine that is there, running or not.
pub(crate) enum Present {
    Running(Running),
    Paused(Paused),
}

/// Finds out how things stand with a machine that somebody else started.
pub(crate) fn attach(path: &Path) -> Result<Present, ApiError> {
    let mut api = Api(Http::connect(path).map_err(ApiError::Connect)?);
    match api.info()?.state {
        State::Running => Ok(Present::Running(Running(api))),
        State::Paused => Ok(Present::Paused(Paused(api))),
        other @ State::NotStarted => Err(ApiError::Phase(other)),
    }
}

pub(crate) struct Running(Api);

impl Running {
    pub(crate) fn pause(mut self) -> Result<Paused, ApiError> {
        self.0.send("PATCH", "/vm", &Vm { state: "Paused" }, ANSWER_LIMIT)?;
        Ok(Paused(self.0))
    }
}

pub(crate) struct Paused(Api);

impl Paused {
    /// It goes on standing still.
    pub(crate) fn snapshot(&mut self, to: &SnapshotCreate, limit: Duration) -> Result<(), ApiError> {
        self.0.put("/snapshot/create", to, limit)
    }

    pub(crate) fn resume(mut self) -> Result<Running, ApiError> {
        self.0.send("PATCH", "/vm", &Vm { state: "Resumed" }, ANSWER_LIMIT)?;
        Ok(Running(self.0))
    }
}
