//! The engine: the [`Node`] of this host, in the server's own process.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt;
use runtime_model::{SandboxId, Shape, SnapshotId};
use runtime_proto::egress::{DecisionPage, Egress, Rules};
use runtime_proto::guest::{Ask, Request, SetNetwork};
use runtime_proto::node::{
    Capture, Captured, GuestStream, HostFacts, MachineStatus, Node, NodeError, NodeEvent, Order, Usage,
};
use tokio::sync::{broadcast, mpsc, oneshot};
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use crate::actor::{Actor, Command, Handle, Live, Reply, Stop};
use crate::agent_file::{AgentFile, AgentFileError};
use crate::chores::{keep_spare_disks, watch_host_disk};
use crate::driver::gvisor::{Gvisor, GvisorOptions};
use crate::driver::microvm::{Hypervisor, Microvm, MicrovmOptions};
use crate::driver::{Adopted, Driver, DriverError};
use crate::host_state::{HostState, blocking, chain, failed, host_name, parse_host_name};
use crate::link::AskError;
use crate::no_way_out::NoWayOut;
use crate::prepare::{CGROUP_PARENT, Guest, Machinery, PreparedHost};
use crate::spares::{Actors, SpareLimits, Spares};

/// Processes (and threads) that the users of a sandbox may have.
pub const DEFAULT_USER_PROCESSES: u64 = 1024;
/// A task that ended while it was told something is followed by another; not for ever.
const TELL_ATTEMPTS: usize = 3;
/// How long an agent may take to hear of a change of its network.
const TELL_NETWORK: Duration = Duration::from_secs(2);
/// Sandboxes looked at together after a restart.
const RECOVER_AT_ONCE: usize = 16;

pub struct EngineConfig {
    pub host: PreparedHost,
    /// The agent program, put read-only into every sandbox.
    pub agent: &'static [u8],
    /// The program whose subcommand [`crate::shim::SUBCOMMAND`] is [`crate::shim::shim_main`]; normally this one.
    pub program: PathBuf,
    pub max_user_processes: u64,
    /// The size of sandbox for which to be prepared from the start, where that takes preparation.
    pub warm_shape: Shape,
    /// The way out of the sandboxes.
    pub egress: Arc<dyn Egress>,
    /// Machines that stand ready for whoever asks next.
    pub spares: SpareLimits,
}

impl EngineConfig {
    /// Without a way out until one is set, and with nothing made ready.
    pub fn new(host: PreparedHost, agent: &'static [u8]) -> std::io::Result<Self> {
        Ok(Self {
            host,
            agent,
            program: std::env::current_exe()?,
            max_user_processes: DEFAULT_USER_PROCESSES,
            warm_shape: Shape::default(),
            egress: Arc::new(NoWayOut),
            spares: SpareLimits::NONE,
        })
    }
}

#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error(transparent)]
    Agent(#[from] AgentFileError),
    #[error("the driver of the sandboxes does not start")]
    Driver(#[from] DriverError),
    #[error("cannot make the directory of starts under way")]
    Marks(#[source] std::io::Error),
    #[error("cannot look for saved memories")]
    Saves(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// Dropping it leaves the sandboxes running; the next engine on the same data directory takes them over.
pub struct Engine {
    state: Arc<HostState>,
    actors: Actors,
    tasks: TaskTracker,
    spares: Arc<Spares>,
    spare_keeper: Mutex<Option<AbortOnDropHandle<()>>>,
    _chores: Vec<AbortOnDropHandle<()>>,
}

/// What an engine found when it opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Found {
    adopted: usize,
    swept: usize,
}

impl Engine {
    /// Takes over what runs and sweeps what a crash left half made. The caller holds the data directory's lock.
    pub async fn open(config: EngineConfig) -> Result<Self, EngineError> {
        let EngineConfig { host, agent, program, max_user_processes, warm_shape, egress, spares } = config;
        let agent = AgentFile::install(&host.data_dir, agent)?;
        let parent = CGROUP_PARENT.to_owned();
        let (driver, to_warm): (Arc<dyn Driver>, _) = match host.machinery.clone() {
            Machinery::Gvisor(runsc) => {
                let gvisor = Gvisor::open(GvisorOptions {
                    runsc,
                    data_dir: host.data_dir.clone(),
                    run_dir: host.run_dir.clone(),
                    cgroups: host.cgroups.clone(),
                    cgroup_parent: parent,
                    program,
                    agent,
                })?;
                (Arc::new(gvisor), None)
            }
            Machinery::Firecracker { firecracker, guest } => {
                let hypervisor = Hypervisor::Firecracker(firecracker);
                microvms(&host, hypervisor, guest, program, agent).await?
            }
            Machinery::Qemu { qemu, guest, accel } => {
                microvms(&host, Hypervisor::Qemu { qemu, accel }, guest, program, agent).await?
            }
        };
        let state = Arc::new(HostState::new(host, driver, egress, max_user_processes).map_err(EngineError::Marks)?);
        let mut chores = vec![AbortOnDropHandle::new(tokio::spawn(watch_host_disk(state.clone())))];
        // Disks of microVMs are files, made when they are needed.
        if to_warm.is_none() {
            chores.push(AbortOnDropHandle::new(tokio::spawn(keep_spare_disks(state.clone()))));
        }
        let (actors, tasks) = (Actors::default(), TaskTracker::new());
        let spares = Spares::new(state.clone(), actors.clone(), tasks.clone(), spares, warm_shape);
        let spare_keeper = Mutex::new(None);
        let engine = Self { state, actors, tasks, spares, spare_keeper, _chores: chores };
        let found = engine.recover().await?;
        tracing::info!(adopted = found.adopted, swept = found.swept, "engine ready");
        // Not before the sweep: what it makes would look like a remainder.
        if let Some(microvms) = to_warm {
            microvms.warm(warm_shape);
        }
        let keeper = AbortOnDropHandle::new(tokio::spawn(engine.spares.clone().keep()));
        engine.spare_keeper.lock().unwrap_or_else(PoisonError::into_inner).replace(keeper);
        Ok(engine)
    }

    /// Ends the tasks and waits for them. The sandboxes go on; what stood ready for others does not.
    pub async fn close(&self) {
        // It would make more of them.
        let keeper = self.spare_keeper.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(keeper) = keeper {
            keeper.abort();
            let _ = keeper.await;
        }
        self.spares.discard().await;
        self.actors.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.tasks.close();
        self.tasks.wait().await;
    }

    async fn recover(&self) -> Result<Found, EngineError> {
        let state = self.state.clone();
        let tidied = blocking(move || state.snapshots.tidy().map_err(|e| failed("tidy", "the snapshots", e)));
        if let Err(error) = tidied.await {
            tracing::warn!(%error, "half of a snapshot stays on the disk");
        }
        let spares = self.state.marked_spares();
        let marked = self.state.marked();
        let mut ids = self.state.driver.trail().await?;
        ids.extend(&spares);
        ids.extend(&marked);
        ids.extend(self.state.saves.all().map_err(|e| EngineError::Saves(e.into()))?);
        ids.sort_unstable();
        ids.dedup();
        let each = futures_util::stream::iter(ids).map(|id| {
            let (half_made, spare) = (marked.contains(&id), spares.contains(&id));
            async move {
                // It runs, perhaps: nobody has been promised it.
                let done = if spare { self.remove_spare(id).await } else { self.recover_one(id, half_made).await };
                (id, done)
            }
        });
        let mut found = Found::default();
        let mut each = each.buffer_unordered(RECOVER_AT_ONCE);
        while let Some((id, result)) = each.next().await {
            match result {
                Ok(true) => found.adopted += 1,
                Ok(false) => found.swept += 1,
                // One sandbox that resists must not keep all others from their server.
                Err(error) => tracing::error!(sandbox = %id, %error, "a sandbox was neither taken over nor swept"),
            }
        }
        Ok(found)
    }

    async fn remove_spare(&self, id: SandboxId) -> Result<bool, NodeError> {
        self.state.sweep(id, true).await?;
        self.state.unmark_spare(id).map(|()| false)
    }

    /// True if it runs.
    async fn recover_one(&self, id: SandboxId, half_made: bool) -> Result<bool, NodeError> {
        match self.state.driver.adopt(id).await {
            // What is saved of one that runs is from a wake under way, and kept until its agent was heard.
            Ok(Some(Adopted::Booted(_))) if self.tidy(id).await => {
                self.spawn(id, Actor::looking(id, self.state.clone()));
                Ok(true)
            }
            Ok(Some(adopted)) => {
                if matches!(adopted, Adopted::Frozen(_)) {
                    self.tidy(id).await;
                }
                self.spawn(id, Actor::new(id, self.state.clone(), Some(adopted)));
                self.state.unmark(id)?;
                Ok(true)
            }
            Ok(None) => {
                self.tidy(id).await;
                self.state.sweep(id, half_made).await.map(|()| false)
            }
            // Only what is certain not to run is swept.
            Err(error) => {
                tracing::warn!(sandbox = %id, error = chain(&error), "a sandbox that may run is not taken over yet");
                self.spawn(id, Actor::looking(id, self.state.clone()));
                Ok(true)
            }
        }
    }

    /// Sweeps what a crash left half saved. True unless there is certainly no whole memory.
    async fn tidy(&self, id: SandboxId) -> bool {
        let state = self.state.clone();
        let tidied = blocking(move || {
            let tidied = state.saves.tidy(id).and_then(|()| state.saves.newest(id));
            tidied.map(|newest| newest.is_some()).map_err(|e| failed("tidy the saves of", id, e))
        });
        tidied.await.unwrap_or_else(|error| {
            tracing::warn!(sandbox = %id, %error, "what was saved of a sandbox is not tidied");
            true
        })
    }

    fn spawn(&self, id: SandboxId, (actor, handle): (Actor, Handle)) {
        self.tasks.spawn(actor.run());
        self.lock().insert(id, handle);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<SandboxId, Handle>> {
        self.actors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The sandbox's task; one is made if there is none, or if the last has ended.
    fn actor(&self, id: SandboxId) -> Handle {
        let mut actors = self.lock();
        if let Some(handle) = actors.get(&id).filter(|handle| !handle.stops.is_closed()) {
            return handle.clone();
        }
        let (actor, handle) = Actor::new(id, self.state.clone(), None);
        self.tasks.spawn(actor.run());
        actors.insert(id, handle.clone());
        handle
    }

    /// Sends to the sandbox's task. One that ended just now never saw it: the next gets it.
    async fn tell<T: Clone>(
        &self,
        id: SandboxId,
        what: T,
        queue: impl Fn(&Handle) -> mpsc::Sender<(T, Reply)>,
    ) -> Result<(), NodeError> {
        for _ in 0..TELL_ATTEMPTS {
            let (reply, answer) = oneshot::channel();
            if queue(&self.actor(id)).send((what.clone(), reply)).await.is_ok()
                && let Ok(result) = answer.await
            {
                return result;
            }
        }
        Err(NodeError::Busy("it is being removed again and again".to_owned()))
    }

    fn live(&self, id: SandboxId) -> Option<Live> {
        self.lock().get(&id).and_then(|handle| handle.live.borrow().clone())
    }
}

async fn microvms(
    host: &PreparedHost,
    program: Hypervisor,
    guest: Guest,
    shim: PathBuf,
    agent: AgentFile,
) -> Result<(Arc<dyn Driver>, Option<Microvm>), DriverError> {
    let options = MicrovmOptions {
        program,
        guest,
        pool: host.pool.clone(),
        cores: host.cores,
        host_memory_mib: host.host_memory_mib,
        data_dir: host.data_dir.clone(),
        run_dir: host.run_dir.clone(),
        cgroups: host.cgroups.clone(),
        cgroup_parent: CGROUP_PARENT.to_owned(),
        shim,
        agent,
    };
    let opened = tokio::task::spawn_blocking(|| Microvm::open(options)).await;
    let microvm = opened.map_err(|e| DriverError::new("open", "the microVM driver", e))??;
    Ok((Arc::new(microvm.clone()), Some(microvm)))
}

#[async_trait]
impl Node for Engine {
    async fn start(&self, order: Order) -> Result<(), NodeError> {
        if self.live(order.id).is_some() {
            return Ok(());
        }
        let id = order.id;
        // Before and after: what is made ready meanwhile would be in its way.
        self.state.asked.send_replace(());
        self.spares.used(id);
        let started = self.tell(id, Command::Start(order), |handle| handle.commands.clone()).await;
        self.state.asked.send_replace(());
        started
    }

    fn take_spare(&self, shape: &Shape) -> Option<SandboxId> {
        self.spares.take(shape)
    }

    fn give_back(&self, id: SandboxId) {
        self.spares.give_back(id);
    }

    async fn pause(&self, id: SandboxId) -> Result<(), NodeError> {
        if !self.state.driver.pauses() {
            return Err(NodeError::Unsupported("pause a sandbox with this build of runsc"));
        }
        self.tell(id, Command::Pause, |handle| handle.commands.clone()).await
    }

    async fn wake(&self, order: Order) -> Result<(), NodeError> {
        if self.live(order.id).is_some() {
            return Ok(());
        }
        self.tell(order.id, Command::Wake(order), |handle| handle.commands.clone()).await
    }

    async fn stop(&self, id: SandboxId) -> Result<(), NodeError> {
        self.tell(id, Stop::KeepDisk, |handle| handle.stops.clone()).await
    }

    async fn remove(&self, id: SandboxId) -> Result<(), NodeError> {
        self.spares.used(id);
        self.tell(id, Stop::Remove, |handle| handle.stops.clone()).await?;
        let mut actors = self.lock();
        if actors.get(&id).is_some_and(|handle| handle.stops.is_closed()) {
            actors.remove(&id);
        }
        Ok(())
    }

    async fn capture(&self, wanted: Capture) -> Result<Captured, NodeError> {
        if !self.state.driver.pauses() {
            return Err(NodeError::Unsupported("take a snapshot with this build of runsc"));
        }
        self.tell(wanted.id, Command::Capture(wanted), |handle| handle.commands.clone()).await?;
        let state = self.state.clone();
        blocking(move || {
            let Capture { id, snapshot, .. } = wanted;
            let memory = state.snapshots.memory_bytes(snapshot).map_err(|e| failed("measure", snapshot, e))?;
            // Of a sandbox that was deleted meanwhile nothing is known any more.
            let disk = if state.has_disk(id)? {
                state.host.pool.usage(&host_name(id)).map_err(|e| failed("measure the disk of", id, e))?
            } else {
                0
            };
            Ok(Captured { stored_bytes: memory.saturating_add(disk) })
        })
        .await
    }

    async fn drop_snapshot(&self, id: SnapshotId) -> Result<(), NodeError> {
        let state = self.state.clone();
        blocking(move || state.snapshots.remove(id).map_err(|e| failed("remove the snapshot", id, e))).await
    }

    async fn snapshots(&self) -> Result<Vec<SnapshotId>, NodeError> {
        let state = self.state.clone();
        blocking(move || state.snapshots.all().map_err(|e| failed("list", "snapshots", e))).await
    }

    async fn set_disk_limit(&self, id: SandboxId, disk_mib: u64) -> Result<(), NodeError> {
        let state = self.state.clone();
        blocking(move || {
            let name = host_name(id);
            if !state.has_disk(id)? {
                return Err(NodeError::DiskGone);
            }
            state.driver.limit_disk(&state.host.pool, &name, disk_mib).map_err(|e| failed("limit the disk of", id, e))
        })
        .await
    }

    async fn set_network(&self, id: SandboxId, rules: Rules) -> Result<(), NodeError> {
        let unknown = self.lock().get(&id).is_some_and(|handle| *handle.unknown.borrow());
        if !unknown && self.live(id).is_none() {
            return Ok(());
        }
        let way_out = rules.network.allows_anything();
        self.state.egress.arm(id, rules).await.map_err(|e| failed("arm the network rules of", id, e))?;
        // It ended meanwhile, or is on its way up again under what its start has armed, which must not be taken from
        // it. What is left armed lets nothing out of one that does not run, and its next start brings its own.
        let Some(live) = self.live(id) else { return Ok(()) };
        // The rules hold whatever the agent says; one that cannot be told now is told at its next greeting.
        let told = async {
            if let Ok(stream) = live.asker.ask(Request::new(Ask::SetNetwork(SetNetwork { way_out }))).await {
                let _ = GuestStream::new(stream).only().await;
            }
        };
        let _ = tokio::time::timeout(TELL_NETWORK, told).await;
        Ok(())
    }

    async fn decisions(&self, id: SandboxId, before: Option<u64>, limit: usize) -> Result<DecisionPage, NodeError> {
        Ok(self.state.egress.decisions(id, before, limit).await)
    }

    async fn ask(&self, id: SandboxId, request: Request) -> Result<GuestStream, NodeError> {
        let Some(live) = self.live(id) else {
            let unknown = self.lock().get(&id).is_some_and(|handle| *handle.unknown.borrow());
            return Err(if unknown {
                NodeError::Busy("whether it runs is still being found out".to_owned())
            } else {
                NodeError::NotRunning
            });
        };
        match live.asker.ask(request).await {
            Ok(stream) => Ok(GuestStream::new(stream)),
            Err(AskError::Gone) => Err(NodeError::NotRunning),
            Err(error @ AskError::Silent) => Err(NodeError::Busy(error.to_string())),
            Err(AskError::Channel(error)) => Err(NodeError::Channel(error)),
        }
    }

    async fn machines(&self) -> Result<Vec<MachineStatus>, NodeError> {
        // Before the disk: a machine that is saved at this moment is found in one of the two.
        let shown: Vec<(SandboxId, bool, bool)> = self
            .lock()
            .iter()
            .map(|(id, handle)| {
                (*id, handle.live.borrow().is_some() || *handle.unknown.borrow(), *handle.frozen.borrow())
            })
            .collect();
        let state = self.state.clone();
        let (roots, saved) = blocking(move || {
            let roots = state.host.pool.roots().map_err(|e| failed("list", "the disks", e))?;
            Ok((roots, state.saves.whole().map_err(|e| failed("list", "saved memories", e))?))
        })
        .await?;
        let none = |id| MachineStatus { id, running: false, paused: false, disk: false };
        let mut all: HashMap<SandboxId, MachineStatus> = HashMap::new();
        for id in roots.iter().filter_map(|name| parse_host_name(name)) {
            all.entry(id).or_insert_with(|| none(id)).disk = true;
        }
        for id in saved {
            all.entry(id).or_insert_with(|| none(id)).paused = true;
        }
        for id in self.spares.all() {
            all.remove(&id);
        }
        for (id, running, frozen) in shown.into_iter().filter(|(_, running, frozen)| *running || *frozen) {
            let status = all.entry(id).or_insert_with(|| none(id));
            (status.running, status.paused) = (running, frozen && !running);
        }
        Ok(all.into_values().collect())
    }

    async fn has_disk(&self, id: SandboxId) -> Result<bool, NodeError> {
        let state = self.state.clone();
        blocking(move || state.has_disk(id)).await
    }

    async fn usage(&self, id: SandboxId) -> Result<Usage, NodeError> {
        let group = self.live(id).map(|live| live.group);
        let state = self.state.clone();
        blocking(move || {
            let mut usage = Usage::default();
            if let Some(group) = group {
                usage.cpu_ns = group.cpu_usage_ns().map_err(|e| failed("measure", id, e))?;
                usage.memory_bytes = group.memory_usage().map_err(|e| failed("measure", id, e))?;
            }
            let name = host_name(id);
            if state.has_disk(id)? {
                usage.disk_bytes = state.host.pool.usage(&name).map_err(|e| failed("measure the disk of", id, e))?;
            }
            Ok(usage)
        })
        .await
    }

    async fn cpu_ns(&self, id: SandboxId) -> Result<u64, NodeError> {
        let group = self.live(id).ok_or(NodeError::NotRunning)?.group;
        blocking(move || group.cpu_usage_ns().map_err(|e| failed("measure", id, e))).await
    }

    fn events(&self) -> broadcast::Receiver<NodeEvent> {
        self.state.events.subscribe()
    }

    fn facts(&self) -> HostFacts {
        let host = &self.state.host;
        HostFacts {
            engine: self.state.driver.name(),
            emulated: self.state.driver.emulated(),
            cores: host.cores,
            memory_mib: host.host_memory_mib,
            image: host.base.digest.clone(),
            pauses: self.state.driver.pauses(),
            grows_disk: self.state.driver.grows_disk(),
        }
    }
}
