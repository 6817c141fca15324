//! gVisor: a kernel in user space, started by `runsc`, that needs root and no KVM.
//!
//! The server lays out a directory for the sandbox and starts a shim ([`crate::shim`]) with a listening socket in its
//! hand, so that the server can connect at once and simply read until the shim says how it went. From then on the shim's
//! socket is the only tie: it ends or breaks, and the machine has ended or its shim has.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use runtime_host::cgroup::{Group, Layout};
use runtime_host::fifo::{self, End as PipeEnd};
use runtime_model::SandboxId;
use tokio::net::UnixStream;
use tokio::net::unix::pipe;
use tokio_util::sync::CancellationToken;

use super::machine::{Keeper, Machine as Held, Parts, Tie};
use super::places::{Places, blocking, make_dir, paths, write_file};
use super::record::{self, Machine};
use super::{Adopted, Booted, Dial, Driver, DriverError, Identity, Plan, Reader, RestoreError, Save, Saved, Writer};
use crate::agent_file::AgentFile;
use crate::host_state::{chain, host_name};
use crate::prepare::{Base, Pool};
use crate::shim::wire::Say;
use crate::shim::{Kind, Spec};

mod bundle;
mod clean;
pub(crate) mod runsc;
pub(crate) mod saved;
pub(crate) mod urpc;

use runsc::Runsc;

/// A start that takes longer than this will not come.
const START_LIMIT: Duration = Duration::from_secs(90);
/// A shim that an earlier server left in the middle of a start, or on a host that is very busy.
const ADOPT_LIMIT: Duration = Duration::from_secs(6);

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
        Places::new(&self.options.run_dir, &self.options.data_dir, id)
    }

    fn cgroup(&self, id: SandboxId) -> String {
        format!("{}{}", self.cgroup_prefix, host_name(id))
    }

    /// Everything a shim finds when it starts. Returns its socket.
    fn lay_out(&self, plan: &Plan, agent: &str, restore: Option<Saved>) -> Result<OwnedFd, DriverError> {
        let places = self.places(plan.id);
        places.make()?;
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
            kind: Kind::Gvisor { runsc: self.runsc.clone(), direct: self.direct },
            cgroup_parent: self.options.cgroup_parent.clone(),
            cgroup,
            agent: agent.to_owned(),
            identity: plan.identity.clone(),
            adopt: false,
            restore,
            places,
        };
        spec.places.listen_for_shim(&spec)
    }

    /// Puts a new shim beside a machine whose own is gone. `None` if the machine is gone too.
    async fn replace_shim(&self, id: SandboxId) -> Result<Option<Tie>, DriverError> {
        let places = self.places(id);
        let Some(machine) = self.living_machine(&places)? else { return Ok(None) };
        let spec = Spec {
            id: host_name(id),
            kind: Kind::Gvisor { runsc: self.runsc.clone(), direct: machine.direct },
            cgroup_parent: self.options.cgroup_parent.clone(),
            cgroup: machine.cgroup,
            agent: machine.agent,
            identity: machine.identity,
            adopt: true,
            restore: None,
            places: places.clone(),
        };
        let socket = places.listen_for_shim(&spec)?;
        places.start_shim(&self.options.program, socket, Stdio::null()).await.map(Some)
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

impl Gvisor {
    fn parts(&self, id: SandboxId, identity: Identity, tie: Option<Tie>) -> Result<Parts, DriverError> {
        let options = &self.inner.options;
        let name = self.inner.cgroup(id);
        let group = Group::open(&options.cgroups, &options.cgroup_parent, &name)
            .map_err(|e| DriverError::new("open the control group", &name, e))?
            .ok_or_else(|| DriverError::new("open the control group", &name, "there is none"))?;
        let dialer = Arc::new(Pipes(self.inner.places(id)));
        Ok(Parts { keeper: Arc::new(self.clone()), id, identity, group, dialer, tie })
    }
}

#[async_trait]
impl Keeper for Gvisor {
    async fn replace_shim(&self, id: SandboxId) -> Result<Option<Tie>, DriverError> {
        self.inner.replace_shim(id).await
    }

    fn saver(&self, id: SandboxId, identity: &Identity) -> Arc<dyn Save> {
        Arc::new(Saver { inner: self.inner.clone(), id, identity: identity.clone() })
    }

    async fn clean(&self, id: SandboxId) -> Result<(), DriverError> {
        Driver::clean(self, id).await
    }
}

struct Saver {
    inner: Arc<Inner>,
    id: SandboxId,
    identity: Identity,
}

#[async_trait]
impl Save for Saver {
    async fn save(&self, into: &Path, given_up: &CancellationToken) -> Result<(), DriverError> {
        let (inner, id, identity, into) = (self.inner.clone(), self.id, self.identity.clone(), into.to_owned());
        let given_up = given_up.clone();
        blocking(move || {
            let fail = |e: Box<dyn std::error::Error + Send + Sync>| DriverError::new("save the memory of", id, e);
            let machine = inner.living_machine(&inner.places(id))?.ok_or_else(|| fail("it has ended".into()))?;
            let state = inner.runsc.state(&host_name(id)).map_err(|e| fail(e.into()))?;
            let given_up = || given_up.is_cancelled();
            saved::write(&state.control, &into, inner.kind.clone(), machine.agent, identity, &given_up)
                .map_err(|e| fail(e.into()))
        })
        .await
    }
}

struct Pipes(Places);

impl Dial for Pipes {
    /// Both ends are opened for both directions: the shim keeps the pipes, so neither end of file nor a broken pipe
    /// would say anything about the guest.
    fn dial(&self) -> Result<(Reader, Writer), DriverError> {
        let open = |name: &str| {
            let path = self.0.run_dir.join(name);
            let pipe =
                fifo::open(&path, PipeEnd::Both).map_err(|e| DriverError::new("open the pipe", path.display(), e))?;
            fifo::widen(&pipe);
            Ok::<_, DriverError>((pipe, path))
        };
        let (pipe, path) = open(paths::FROM_GUEST)?;
        let reader =
            pipe::Receiver::from_owned_fd(pipe).map_err(|e| DriverError::new("read from", path.display(), e))?;
        let (pipe, path) = open(paths::TO_GUEST)?;
        let writer = pipe::Sender::from_owned_fd(pipe).map_err(|e| DriverError::new("write to", path.display(), e))?;
        Ok((Box::new(reader), Box::new(writer)))
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
            let mut tie = places.start_shim(&self.inner.options.program, socket, Stdio::null()).await?;
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
            Ok(tie) => Ok(Held::booted(self.parts(id, identity, Some(tie))?)),
            Err(failed) => {
                Driver::clean(self, id).await?;
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

    fn make_disk(&self, pool: &Pool, base: &Base, name: &str, disk_mib: u64) -> Result<PathBuf, DriverError> {
        pool.create_root(name, base, disk_mib).map_err(|e| DriverError::new("clone the disk", name, e))
    }

    fn limit_disk(&self, pool: &Pool, name: &str, disk_mib: u64) -> Result<(), DriverError> {
        pool.set_limit(name, disk_mib).map_err(|e| DriverError::new("limit the disk", name, e))
    }

    async fn boot(&self, plan: Plan) -> Result<Box<dyn Booted>, DriverError> {
        let agent = self.inner.options.agent.digest().to_owned();
        self.bring_up(plan, agent, None).await.map_err(|failed| failed.error)
    }

    fn grows_disk(&self) -> bool {
        true
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
        let parts = self.parts(id, machine.identity, tie)?;
        Ok(Some(if frozen { Adopted::Frozen(Held::frozen(parts)) } else { Adopted::Booted(Held::booted(parts)) }))
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
