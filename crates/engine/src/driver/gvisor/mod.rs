//! gVisor: a kernel in user space, started by `runsc`, that needs root and no KVM.
//!
//! The server lays out a directory for the sandbox and starts a shim ([`crate::shim`]) with a listening socket in its
//! hand, so that the server can connect at once and simply read until the shim says how it went. From then on the shim's
//! socket is the only tie: it ends or breaks, and the machine has ended or its shim has.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use runtime_host::cgroup::Layout;
use runtime_host::fifo;
use runtime_model::SandboxId;
use serde::{Deserialize, Serialize};
use tokio::net::UnixStream;

use super::{Adopted, Booted, Driver, DriverError, Plan, RestoreError, Saved};
use crate::agent_file::AgentFile;
use crate::host_state::{chain, host_name};
use crate::shim::wire::Say;
use crate::shim::{SUBCOMMAND, Spec};

mod bundle;
mod clean;
mod frozen;
mod machine;
pub(crate) mod record;
pub(crate) mod runsc;
pub(crate) mod saved;
pub(crate) mod urpc;

use frozen::GvisorFrozen;
use machine::{GvisorMachine, Tie};
use record::Machine;
use runsc::Runsc;

/// Names in a sandbox's run directory.
pub(crate) mod paths {
    pub(crate) const TO_GUEST: &str = "in";
    pub(crate) const FROM_GUEST: &str = "out";
    /// The standard error of the guest's first process.
    pub(crate) const COMPLAINTS: &str = "err";
    pub(crate) const SOCKET: &str = "s";
    pub(crate) const SPEC: &str = "shim.json";
    pub(crate) const BUNDLE: &str = "bundle";
    pub(crate) const LOG: &str = "log";
}

/// A start that takes longer than this will not come.
const START_LIMIT: Duration = Duration::from_secs(90);
/// A shim that an earlier server left in the middle of a start, or on a host that is very busy.
const ADOPT_LIMIT: Duration = Duration::from_secs(6);

/// Where things of one sandbox lie.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Places {
    /// Sockets and pipes; gone after a reboot. Its path is short.
    pub(crate) run_dir: PathBuf,
    /// Records; in the data directory.
    pub(crate) machine_dir: PathBuf,
}

#[derive(Debug)]
pub struct GvisorOptions {
    pub runsc: crate::prepare::Runsc,
    pub data_dir: PathBuf,
    /// Short: socket paths have 107 bytes.
    pub run_dir: PathBuf,
    pub cgroups: Layout,
    pub cgroup_parent: String,
    /// The program whose [`SUBCOMMAND`] is [`crate::shim::shim_main`].
    pub program: PathBuf,
    pub agent: AgentFile,
}

#[derive(Debug, Clone)]
pub struct Gvisor {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    runsc: Runsc,
    /// Use the control socket, not the command line.
    direct: bool,
    options: GvisorOptions,
    /// Groups of this data directory begin with it: the parent is shared with others.
    cgroup_prefix: String,
    /// What a machine of ours is like, and one that is to be restored must have been.
    kind: saved::Kind,
}

impl Gvisor {
    pub fn open(options: GvisorOptions) -> Result<Self, DriverError> {
        let root = options.run_dir.join("runsc");
        make_dir(&root)?;
        make_dir(&options.data_dir.join("sandboxes"))?;
        let name = options.run_dir.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let runsc = Runsc { path: options.runsc.path.clone(), root };
        let direct = options.runsc.urpc_tested;
        if !direct {
            let version = &options.runsc.version;
            tracing::warn!(%version, "this runsc is not the tested one: its command line is used, which is slower");
        }
        let kind = saved::Kind {
            engine: "gvisor".to_owned(),
            runsc: saved::digest_of(&runsc.path).map_err(|e| DriverError::new("read", runsc.path.display(), e))?,
            flags: runsc::FLAGS.iter().map(|flag| (*flag).to_owned()).collect(),
            mounts: bundle::destinations(),
        };
        Ok(Self { inner: Arc::new(Inner { runsc, direct, options, cgroup_prefix: format!("{name}-"), kind }) })
    }
}

impl Inner {
    fn places(&self, id: SandboxId) -> Places {
        let name = host_name(id);
        Places {
            run_dir: self.options.run_dir.join(&name),
            machine_dir: self.options.data_dir.join("sandboxes").join(&name),
        }
    }

    fn cgroup(&self, id: SandboxId) -> String {
        format!("{}{}", self.cgroup_prefix, host_name(id))
    }

    /// Everything a shim finds when it starts. Returns its socket.
    fn lay_out(&self, plan: &Plan, agent: &str, restore: Option<Saved>) -> Result<OwnedFd, DriverError> {
        let places = self.places(plan.id);
        make_dir(&places.machine_dir)?;
        make_dir(&places.run_dir)?;
        let bundle_dir = places.run_dir.join(paths::BUNDLE);
        make_dir(&bundle_dir)?;
        for name in [paths::TO_GUEST, paths::FROM_GUEST, paths::COMPLAINTS] {
            let path = places.run_dir.join(name);
            fifo::make(&path).map_err(|e| DriverError::new("make the pipe", path.display(), e))?;
        }
        let cgroup = self.cgroup(plan.id);
        let bundle = bundle::Bundle::new(&bundle::Parts {
            root: &plan.root,
            hostname: &plan.identity.hostname,
            agent: &self.options.agent.sibling(agent),
            cgroups_path: format!("/{}/{cgroup}", self.options.cgroup_parent),
            limits: &plan.limits,
        });
        write_file(&bundle_dir.join("config.json"), &bundle)?;
        let spec = Spec {
            id: host_name(plan.id),
            runsc: self.runsc.clone(),
            direct: self.direct,
            cgroup_parent: self.options.cgroup_parent.clone(),
            cgroup,
            agent: agent.to_owned(),
            identity: plan.identity.clone(),
            adopt: false,
            restore,
            places,
        };
        self.listen(&spec)
    }

    /// Writes down what the next shim is to do, and makes its socket.
    fn listen(&self, spec: &Spec) -> Result<OwnedFd, DriverError> {
        write_file(&spec.places.run_dir.join(paths::SPEC), spec)?;
        let path = spec.places.run_dir.join(paths::SOCKET);
        let fail = |e| DriverError::new("make the socket", path.display(), e);
        match fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(fail(e)),
            _ => {}
        }
        std::os::unix::net::UnixListener::bind(&path).map(OwnedFd::from).map_err(fail)
    }

    /// Starts a shim on that socket and connects to it. The connection waits in the socket's queue until it is accepted.
    async fn start_shim(&self, run_dir: &Path, socket: OwnedFd) -> Result<Tie, DriverError> {
        let mut command = tokio::process::Command::new(&self.options.program);
        command.arg(SUBCOMMAND).arg(run_dir).current_dir("/");
        command.env_clear().stdin(socket).stdout(Stdio::null()).stderr(Stdio::null());
        let child =
            command.spawn().map_err(|e| DriverError::new("start the shim by", self.options.program.display(), e))?;
        let path = run_dir.join(paths::SOCKET);
        let stream = UnixStream::connect(&path)
            .await
            .map_err(|e| DriverError::new("connect to the shim at", path.display(), e))?;
        Ok(Tie::new(stream, Some(child)))
    }

    /// Puts a new shim beside a machine whose own is gone. `None` if the machine is gone too.
    async fn replace_shim(&self, id: SandboxId) -> Result<Option<Tie>, DriverError> {
        let places = self.places(id);
        let Some(machine) = self.living_machine(&places)? else { return Ok(None) };
        let spec = Spec {
            id: host_name(id),
            runsc: self.runsc.clone(),
            direct: machine.direct,
            cgroup_parent: self.options.cgroup_parent.clone(),
            cgroup: machine.cgroup,
            agent: machine.agent,
            identity: machine.identity,
            adopt: true,
            restore: None,
            places: places.clone(),
        };
        let socket = self.listen(&spec)?;
        self.start_shim(&places.run_dir, socket).await.map(Some)
    }

    /// `None` is certain: whatever may be a passing trouble of the host is an error.
    fn living_machine(&self, places: &Places) -> Result<Option<Machine>, DriverError> {
        let path = places.machine_dir.join(record::MACHINE);
        let read = record::read(&path).map_err(|e| DriverError::new("read", path.display(), e))?;
        let Some(machine): Option<Machine> = read else { return Ok(None) };
        let boot = runtime_host::process::boot_id().map_err(|e| DriverError::new("read", "the boot id", e))?;
        let sentry = runtime_host::process::ProcessId::from(machine.sentry);
        let alive = sentry.alive().map_err(|e| DriverError::new("look at process", sentry.pid, e))?;
        Ok((boot == machine.boot_id && alive).then_some(machine))
    }
}

/// A start that did not come up, of which nothing is left.
struct Failed {
    error: DriverError,
    /// The memory it was to come from is no good.
    unusable: bool,
}

impl From<DriverError> for Failed {
    fn from(error: DriverError) -> Self {
        Self { error, unusable: false }
    }
}

impl Gvisor {
    async fn bring_up(&self, plan: Plan, agent: String, restore: Option<Saved>) -> Result<Box<dyn Booted>, Failed> {
        let (id, places) = (plan.id, self.inner.places(plan.id));
        let (identity, abort) = (plan.identity.clone(), plan.abort.clone());
        let limit = if restore.is_some() { START_LIMIT + saved::LIMIT } else { START_LIMIT };
        let started = async {
            let inner = self.inner.clone();
            let socket = blocking(move || inner.lay_out(&plan, &agent, restore)).await?;
            let mut tie = self.inner.start_shim(&places.run_dir, socket).await?;
            let said = tokio::select! {
                biased;
                // What is under way is swept below, with its shim.
                () = abort.cancelled() => {
                    return Err(DriverError::new("start sandbox", id, "it is no longer wanted").into());
                }
                said = tokio::time::timeout(limit, tie.next()) => said,
            };
            match said {
                Ok(Some(Say::Running { create_ms, start_ms, .. })) => {
                    tracing::debug!(sandbox = %id, create_ms, start_ms, "sandbox process started");
                    Ok(tie)
                }
                Ok(Some(Say::Ended(end))) => {
                    Err(Failed { error: DriverError::new("start sandbox", id, end.cause), unusable: end.unusable })
                }
                Ok(_) => Err(DriverError::new("start sandbox", id, "its shim ended without a word").into()),
                Err(_) => Err(DriverError::new("start sandbox", id, "its shim did not finish in time").into()),
            }
        };
        match started.await {
            Ok(tie) => Ok(Box::new(GvisorMachine::new(self.clone(), id, identity, Some(tie), false)?)),
            Err(failed) => {
                self.clean(id).await?;
                Err(failed)
            }
        }
    }
}

/// Why a machine that was saved cannot run here.
fn misfit(ours: &saved::Kind, theirs: &saved::Kind) -> Option<String> {
    let differ = |what: &str| Some(format!("it was saved by {what} than this server has"));
    if ours.engine != theirs.engine {
        return differ("another engine");
    }
    if ours.runsc != theirs.runsc {
        return differ("another build of runsc");
    }
    if ours.flags != theirs.flags || ours.mounts != theirs.mounts {
        return differ("a server with other settings of runsc");
    }
    None
}

#[async_trait]
impl Driver for Gvisor {
    fn name(&self) -> &'static str {
        "gvisor"
    }

    async fn boot(&self, plan: Plan) -> Result<Box<dyn Booted>, DriverError> {
        let agent = self.inner.options.agent.digest().to_owned();
        self.bring_up(plan, agent, None).await.map_err(|failed| failed.error)
    }

    fn pauses(&self) -> bool {
        // The command line can do it as well; nobody has tried.
        self.inner.direct
    }

    async fn restore(&self, plan: Plan, from: Saved) -> Result<Box<dyn Booted>, RestoreError> {
        let (id, inner, dir) = (plan.id, self.inner.clone(), from.dir.clone());
        let record =
            blocking(move || saved::read_record(&dir).map_err(|e| DriverError::new("read the saved memory of", id, e)));
        let record = record.await.map_err(|error| match error.source.downcast_ref::<saved::SavedError>() {
            Some(saved::SavedError::Damaged { .. }) => RestoreError::Unusable(chain(&error)),
            _ => RestoreError::Failed(error),
        })?;
        if let Some(what) = misfit(&inner.kind, &record.kind) {
            return Err(RestoreError::Unusable(what));
        }
        if !inner.options.agent.sibling(&record.agent).is_file() {
            return Err(RestoreError::Unusable(format!("the agent {} that ran in it is gone", record.agent)));
        }
        self.bring_up(plan, record.agent, Some(from)).await.map_err(|failed| {
            if failed.unusable { RestoreError::Unusable(chain(&failed.error)) } else { failed.error.into() }
        })
    }

    async fn adopt(&self, id: SandboxId) -> Result<Option<Adopted>, DriverError> {
        let places = self.inner.places(id);
        // A machine without a shim that answers gets one in its own time: what counts is whether its kernel runs.
        let mut tie = UnixStream::connect(places.run_dir.join(paths::SOCKET)).await.ok().map(|s| Tie::new(s, None));
        let mut frozen = None;
        if let Some(held) = &mut tie {
            match tokio::time::timeout(ADOPT_LIMIT, held.next()).await {
                Ok(Some(Say::Running { frozen: still, .. })) => frozen = Some(still),
                Ok(Some(Say::Ended(_))) => return Ok(None),
                // A shim that died with its server may still take one connection.
                Ok(None) => tie = None,
                Ok(Some(_)) | Err(_) => {}
            }
        }
        let Some(machine) = self.inner.living_machine(&places)? else { return Ok(None) };
        let frozen = match frozen {
            Some(frozen) => frozen,
            None if !places.machine_dir.join(record::FROZEN).exists() => false,
            // Only a shim can tell how that went.
            None => {
                let Some(mut held) = self.inner.replace_shim(id).await? else { return Ok(None) };
                match tokio::time::timeout(ADOPT_LIMIT, held.next()).await {
                    Ok(Some(Say::Running { frozen, .. })) => {
                        tie = Some(held);
                        frozen
                    }
                    Ok(Some(Say::Ended(_))) => return Ok(None),
                    _ => return Err(DriverError::new("learn from a new shim how it is with", id, "it says nothing")),
                }
            }
        };
        let machine = GvisorMachine::new(self.clone(), id, machine.identity, tie, frozen)?;
        Ok(Some(if frozen {
            Adopted::Frozen(Box::new(GvisorFrozen(machine)))
        } else {
            Adopted::Booted(Box::new(machine))
        }))
    }

    async fn trail(&self) -> Result<Vec<SandboxId>, DriverError> {
        let inner = self.inner.clone();
        blocking(move || inner.trail()).await
    }

    async fn clean(&self, id: SandboxId) -> Result<(), DriverError> {
        let inner = self.inner.clone();
        blocking(move || inner.clean(id)).await
    }
}

fn make_dir(path: &Path) -> Result<(), DriverError> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(|e| DriverError::new("make the directory", path.display(), e))
}

fn write_file(path: &Path, value: &impl Serialize) -> Result<(), DriverError> {
    record::write(path, value).map(drop).map_err(|e| DriverError::new("write", path.display(), e))
}

/// Runs work that waits for the kernel off the async threads. It is not stopped when its caller goes away.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, DriverError> + Send + 'static,
) -> Result<T, DriverError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => Err(DriverError::new("finish", "a step on the host", error)),
    }
}
