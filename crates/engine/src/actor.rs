//! One task per sandbox that owns its machine.
//!
//! ```text
//!   Down ──start──> Running ──stop, or it ends by itself──> Down ──remove──> (the task ends)
//!    │ ▲             ▲   │
//!    │ └──saved──┐  wake pause
//!    │           │   │   ▼
//!    └────wake───┼──>└─ Frozen ──stop, or it ends by itself──> Down
//!                └───────┘
//! ```
//!
//! A machine whose memory is saved is `Down`: its memory is a directory that a wake finds.
//!
//! Others hold a [`Handle`]: commands wait in a bounded queue and are done one after the other; stopping has a channel of
//! its own, heard first. What is published about the machine ([`Live`]) is published here and nowhere else, so that
//! asking it does not pass through this task at all. When the last handle is gone the task ends and leaves the machine
//! running: that is how a server is shut down.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use runtime_host::cgroup::Group;
use runtime_model::{Reason, SandboxId};
use runtime_proto::guest::{Ask, Request, Shutdown};
use runtime_proto::node::{Capture, Disk, GuestStream, NodeError, NodeEvent, Order};
use tokio::sync::{SemaphorePermit, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::driver::{Adopted, Booted, Frozen, Identity, Notice};
use crate::host_state::{HostState, chain, failed};
use crate::link::{Asker, Link, LinkError};
use crate::pause::{Change, Standing};
use crate::shortage::{self, Relief, ShortageError};

mod capture;
mod wake;

/// A boot takes a tenth of a second; on a host that starts many at once, some.
const HELLO_LIMIT: Duration = Duration::from_secs(30);
/// What processes get between being asked to end and being killed when their sandbox is stopped.
const GRACE: Duration = Duration::from_secs(1);
/// Over the grace, for the agent's answer.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(3);
const QUEUE: usize = 32;
/// Between looks at a sandbox of an earlier server of which it is not known whether it runs, at first and at most.
const FIRST_LOOK: Duration = Duration::from_millis(200);
const SELDOMEST_LOOK: Duration = Duration::from_secs(30);

pub(crate) type Reply = oneshot::Sender<Result<(), NodeError>>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    KeepDisk,
    Remove,
}

#[derive(Debug, Clone)]
pub(crate) enum Command {
    Start(Order),
    Pause,
    Wake(Order),
    Capture(Capture),
}

/// What is open to others while the machine runs.
#[derive(Clone)]
pub(crate) struct Live {
    pub(crate) asker: Asker,
    pub(crate) group: Group,
}

#[derive(Clone)]
pub(crate) struct Handle {
    pub(crate) commands: mpsc::Sender<(Command, Reply)>,
    pub(crate) stops: mpsc::Sender<(Stop, Reply)>,
    pub(crate) live: watch::Receiver<Option<Live>>,
    /// It may run, which is being found out.
    pub(crate) unknown: watch::Receiver<bool>,
    pub(crate) frozen: watch::Receiver<bool>,
}

pub(crate) struct Actor {
    id: SandboxId,
    state: Arc<HostState>,
    commands: mpsc::Receiver<(Command, Reply)>,
    stops: mpsc::Receiver<(Stop, Reply)>,
    live: watch::Sender<Option<Live>>,
    frozen: watch::Sender<bool>,
    machine: Held,
    /// How long until the next look at what an earlier server left; none while that is known.
    look: Option<Duration>,
    unknown: watch::Sender<bool>,
    /// Came while something else was under way.
    stop_heard: Option<(Stop, Reply)>,
    /// What was saved of it is used up and is to be removed.
    litter: bool,
}

enum Held {
    Down,
    Running(Running),
    Frozen(Standing),
}

struct Running {
    booted: Box<dyn Booted>,
    asker: Asker,
    link: AbortOnDropHandle<LinkError>,
    relief: Option<AbortOnDropHandle<Result<Relief, ShortageError>>>,
    /// Memory ran out again while it was being relieved.
    short_again: bool,
}

/// What a running machine did.
enum News {
    Notice(Notice),
    /// Of one that stands still: see [`Change::Written`].
    Written(u64),
    LinkGaveUp(String),
    Relieved(Relief),
    CannotBeRelieved(String),
}

impl Running {
    fn new(id: SandboxId, booted: Box<dyn Booted>, state: &HostState) -> Self {
        let generation = booted.identity().generation;
        Self::as_generation(id, booted, generation, state)
    }

    /// A generation that the agent has not seen makes it look at who and when it is.
    fn as_generation(id: SandboxId, booted: Box<dyn Booted>, generation: u64, state: &HostState) -> Self {
        let identity = Identity { generation, ..booted.identity().clone() };
        let (link, asker) = Link::new(id, identity, booted.dialer(), state.egress.clone());
        let link = AbortOnDropHandle::new(tokio::spawn(link.run()));
        Self { booted, asker, link, relief: None, short_again: false }
    }

    /// Cancel-safe: what a branch has taken is returned at once.
    async fn news(&mut self) -> News {
        tokio::select! {
            biased;
            // An end makes everything else old news.
            notice = self.booted.notice() => News::Notice(notice),
            done = finished(&mut self.relief) => {
                self.relief = None;
                match done {
                    Ok(relief) => News::Relieved(relief),
                    Err(text) => News::CannotBeRelieved(text),
                }
            }
            gave_up = &mut self.link => News::LinkGaveUp(match gave_up {
                Ok(error) => chain(&error),
                Err(error) => error.to_string(),
            }),
        }
    }

    async fn relieved(&mut self) {
        self.booted.memory_relieved().await;
        if std::mem::take(&mut self.short_again) {
            self.relieve();
        }
    }

    fn relieve(&mut self) {
        if self.relief.is_some() {
            self.short_again = true;
        } else {
            let limit = self.booted.identity().memory_bytes;
            let (group, asker) = (self.booted.group(), self.asker.clone());
            let work = async move { shortage::relieve(&group, limit, &asker).await };
            self.relief = Some(AbortOnDropHandle::new(tokio::spawn(work)));
        }
    }
}

async fn finished(relief: &mut Option<AbortOnDropHandle<Result<Relief, ShortageError>>>) -> Result<Relief, String> {
    match relief {
        None => std::future::pending().await,
        Some(work) => match work.await {
            Ok(Ok(relief)) => Ok(relief),
            Ok(Err(error)) => Err(chain(&error)),
            Err(error) => Err(error.to_string()),
        },
    }
}

impl Actor {
    /// `adopted` is a machine that is there already.
    pub(crate) fn new(id: SandboxId, state: Arc<HostState>, adopted: Option<Adopted>) -> (Self, Handle) {
        let (commands_tx, commands) = mpsc::channel(QUEUE);
        let (stops_tx, stops) = mpsc::channel(QUEUE);
        let (live_tx, live) = watch::channel(None);
        let (frozen_tx, frozen) = watch::channel(false);
        let (unknown_tx, unknown) = watch::channel(false);
        let mut actor = Self {
            id,
            state,
            commands,
            stops,
            live: live_tx,
            frozen: frozen_tx,
            machine: Held::Down,
            look: None,
            unknown: unknown_tx,
            stop_heard: None,
            litter: false,
        };
        match adopted {
            Some(Adopted::Booted(booted)) => {
                let machine = Running::new(id, booted, &actor.state);
                actor.take_over(machine);
            }
            Some(Adopted::Frozen(machine)) => actor.stand(machine),
            None => {}
        }
        (actor, Handle { commands: commands_tx, stops: stops_tx, live, frozen, unknown })
    }

    /// Of a sandbox that may run: nothing of it is touched until that is known.
    pub(crate) fn looking(id: SandboxId, state: Arc<HostState>) -> (Self, Handle) {
        let (mut actor, handle) = Self::new(id, state, None);
        actor.look = Some(FIRST_LOOK);
        actor.unknown.send_replace(true);
        (actor, handle)
    }

    pub(crate) async fn run(mut self) {
        loop {
            tokio::select! {
                biased;
                // Whoever wants it gone does not wait for anything else.
                stop = next_stop(&mut self.stop_heard, &mut self.stops) => {
                    let Some((stop, reply)) = stop else { return };
                    let result = self.stop(stop).await;
                    let over = stop == Stop::Remove && result.is_ok();
                    if over {
                        // Before the answer: who asks after it must not find this task.
                        self.stops.close();
                        self.commands.close();
                    }
                    let _ = reply.send(result);
                    if over {
                        return;
                    }
                }
                // The machine's end before commands: they would be told that it runs.
                news = news(&mut self.machine) => self.hear(news).await,
                found = look(&self.state, self.id, &mut self.look) => self.found(found).await,
                command = self.commands.recv() => {
                    let Some((command, reply)) = command else { return };
                    let result = match command {
                        Command::Start(order) => self.start(order).await,
                        Command::Pause => self.pause().await,
                        Command::Wake(order) => self.wake(order).await,
                        Command::Capture(wanted) => self.capture(wanted).await,
                    };
                    let _ = reply.send(result);
                }
                // Nobody waits for it.
                () = std::future::ready(()), if self.litter => self.clear().await,
            }
        }
    }

    async fn found(&mut self, adopted: Option<Adopted>) {
        let id = self.id;
        let saved = match self.newest().await {
            Ok(newest) => newest.is_some(),
            Err(error) => {
                tracing::warn!(sandbox = %id, %error, "a sandbox is not taken over yet");
                return self.look = Some(SELDOMEST_LOOK);
            }
        };
        let settled = match adopted {
            Some(Adopted::Booted(booted)) => self.meet(booted, saved).await,
            Some(Adopted::Frozen(machine)) => {
                self.stand(machine);
                self.state.unmark(id)
            }
            None => self.state.sweep(id, self.state.is_marked(id)).await,
        };
        self.known();
        if let Err(error) = settled {
            tracing::error!(sandbox = %id, %error, "a sandbox was neither taken over nor swept");
        }
    }

    fn known(&mut self) {
        self.look = None;
        self.unknown.send_replace(false);
    }

    async fn hear(&mut self, news: News) {
        let id = self.id;
        match news {
            News::Notice(Notice::OutOfMemory) => match &mut self.machine {
                Held::Running(machine) => machine.relieve(),
                // It stands still anyway; there is room above its limit while it is saved.
                Held::Frozen(_) | Held::Down => {}
            },
            News::Written(number) => self.saved(number).await,
            News::Relieved(relief) => {
                if !relief.killed.is_empty() {
                    tracing::info!(sandbox = %id, killed = ?relief.killed, "the sandbox ran out of memory");
                }
                if let Held::Running(machine) = &mut self.machine {
                    machine.relieved().await;
                }
            }
            News::Notice(Notice::Ended(end)) => self.ended(end.cause).await,
            News::LinkGaveUp(cause) | News::CannotBeRelieved(cause) => self.ended(cause).await,
        }
    }

    /// The machine ended, or must, without anybody having asked.
    async fn ended(&mut self, cause: String) {
        tracing::warn!(sandbox = %self.id, cause, "the sandbox ended by itself; its disk is kept");
        if let Err(error) = self.end_machine().await {
            tracing::error!(sandbox = %self.id, %error, "what is left of the sandbox could not be removed");
        }
        // Nobody may be listening; the reconciler looks for itself.
        let _ = self.state.events.send(NodeEvent::Ended { id: self.id, reason: Reason::HostStopped });
    }

    async fn end_machine(&mut self) -> Result<(), NodeError> {
        self.live.send_replace(None);
        self.frozen.send_replace(false);
        self.state.egress.disarm(self.id).await;
        let ended = match std::mem::replace(&mut self.machine, Held::Down) {
            Held::Down => return Ok(()),
            Held::Running(Running { booted, link, relief, .. }) => {
                drop((link, relief));
                booted.end().await
            }
            Held::Frozen(Standing { machine, .. }) => machine.end().await,
        };
        ended.map_err(|e| failed("end", self.id, e))
    }

    async fn stop(&mut self, stop: Stop) -> Result<(), NodeError> {
        if stop == Stop::KeepDisk
            && let Held::Running(machine) = &self.machine
        {
            shut_down(&machine.asker).await;
        }
        self.end_machine().await?;
        self.drop_saved().await?;
        if stop == Stop::Remove || self.look.is_some() {
            // Also what an end that failed before has left.
            self.state.driver.clean(self.id).await.map_err(|e| failed("clean up", self.id, e))?;
            self.known();
        }
        if stop == Stop::Remove {
            self.state.delete_disk(self.id).await?;
            self.state.unmark(self.id)?;
            self.state.egress.forget(self.id).await;
        }
        Ok(())
    }

    async fn start(&mut self, order: Order) -> Result<(), NodeError> {
        if matches!(self.machine, Held::Running(_)) {
            return Ok(());
        }
        self.certain()?;
        let state = self.state.clone();
        let admitted = state.admit()?;
        let turn = self.turn(&state).await?;
        let result = self.bring_up(&order).await;
        drop((turn, admitted));
        if result.is_err() {
            self.undo_start(order.disk).await;
        }
        result
    }

    async fn turn<'a>(&mut self, state: &'a HostState) -> Result<SemaphorePermit<'a>, NodeError> {
        tokio::select! {
            biased;
            turn = state.starts.acquire() => turn.map_err(|e| failed("start", self.id, e)),
            // Stopped while it waits for its turn: nothing to undo yet.
            () = hear_stop(&mut self.stop_heard, &mut self.stops) => Err(stopped_meanwhile()),
        }
    }

    /// The steps of a start. Each can be repeated; [`Self::undo_start`] undoes them all, whichever failed. A stop that
    /// comes in between is a failure, and is done once the start is undone.
    async fn bring_up(&mut self, order: &Order) -> Result<(), NodeError> {
        let id = self.id;
        let root = self.lay_out(order).await?;
        if let Disk::Snapshot(snapshot) = order.disk
            && let Some(newest) = self.take_memory(snapshot).await?
        {
            self.come_back(order, root, newest).await?;
            return self.settle().await;
        }
        let plan = self.state.plan(order, root);
        let abort = plan.abort.clone();
        let state = self.state.clone();
        // Before its first instruction, so that none runs under other rules or under none.
        self.arm(order).await?;
        let boot = state.driver.boot(plan);
        let booted = self.unless_stopped(abort, boot).await.map_err(|error| match error {
            None => stopped_meanwhile(),
            Some(error) => failed("boot", id, error),
        })?;
        self.greet(Running::new(id, booted, &state)).await?;
        self.show();
        self.state.unmark(id)
    }

    async fn lay_out(&mut self, order: &Order) -> Result<PathBuf, NodeError> {
        let id = self.id;
        self.end_machine().await?;
        // What a start that failed, or a machine whose end failed, may have left.
        self.state.driver.clean(id).await.map_err(|e| failed("clean up", id, e))?;
        self.drop_saved().await?;
        if order.disk.is_fresh() {
            self.state.mark(id)?;
        }
        self.state.disk(order).await
    }

    async fn arm(&mut self, order: &Order) -> Result<(), NodeError> {
        let armed = self.state.egress.arm(self.id, order.rules.clone()).await;
        armed.map_err(|e| failed("arm the network rules of", self.id, e))
    }

    /// Waits for work of the driver's. Stopped meanwhile, it is called off, and its error is `None`.
    async fn unless_stopped<T, E>(
        &mut self,
        abort: CancellationToken,
        mut work: impl Future<Output = Result<T, E>> + Unpin,
    ) -> Result<T, Option<E>> {
        loop {
            tokio::select! {
                biased;
                () = hear_stop(&mut self.stop_heard, &mut self.stops) => abort.cancel(),
                done = &mut work => {
                    return done.map_err(|error| self.stop_heard.is_none().then_some(error));
                }
            }
        }
    }

    /// Waits for the agent's answer. The machine is held in any case, and not shown yet.
    async fn greet(&mut self, mut machine: Running) -> Result<(), NodeError> {
        let id = self.id;
        let asker = machine.asker.clone();
        let mut up = std::pin::pin!(asker.up(HELLO_LIMIT));
        let failure = loop {
            tokio::select! {
                () = hear_stop(&mut self.stop_heard, &mut self.stops) => {
                    break stopped_meanwhile();
                }
                up = &mut up => match up {
                    Ok(()) => {
                        self.machine = Held::Running(machine);
                        return Ok(());
                    }
                    Err(error) => break failed("greet the agent of", id, error),
                },
                news = machine.news() => match news {
                    News::Notice(Notice::OutOfMemory) => machine.relieve(),
                    News::Relieved(_) => machine.relieved().await,
                    News::Written(_) => {}
                    News::Notice(Notice::Ended(end)) => {
                        break NodeError::Failed(format!("sandbox {id} ended while it started: {}", end.cause));
                    }
                    News::LinkGaveUp(cause) | News::CannotBeRelieved(cause) => {
                        break NodeError::Failed(format!("sandbox {id} did not start: {cause}"));
                    }
                },
            }
        };
        self.machine = Held::Running(machine);
        Err(failure)
    }

    fn certain(&self) -> Result<(), NodeError> {
        match self.look {
            Some(_) => Err(NodeError::Busy("whether it runs is still being found out".to_owned())),
            None => Ok(()),
        }
    }

    async fn undo_start(&mut self, disk: Disk) {
        let undo = async {
            self.end_machine().await?;
            self.state.driver.clean(self.id).await.map_err(|e| failed("clean up", self.id, e))?;
            if disk.is_fresh() {
                self.drop_saved().await?;
                self.state.delete_disk(self.id).await?;
                self.state.unmark(self.id)?;
            }
            Ok::<_, NodeError>(())
        };
        if let Err(error) = undo.await {
            tracing::error!(sandbox = %self.id, %error, "a start that failed left something behind");
        }
    }

    fn take_over(&mut self, machine: Running) {
        self.machine = Held::Running(machine);
        self.show();
    }

    fn show(&mut self) {
        if let Held::Running(machine) = &self.machine {
            self.live.send_replace(Some(Live { asker: machine.asker.clone(), group: machine.booted.group() }));
        }
    }

    fn stand(&mut self, machine: Box<dyn Frozen>) {
        self.frozen.send_replace(true);
        self.machine = Held::Frozen(Standing::new(self.id, self.state.clone(), machine));
    }
}

async fn next_stop(
    heard: &mut Option<(Stop, Reply)>,
    stops: &mut mpsc::Receiver<(Stop, Reply)>,
) -> Option<(Stop, Reply)> {
    match heard.take() {
        Some(stop) => Some(stop),
        None => stops.recv().await,
    }
}

/// Returns once there is a new stop, and keeps it. With one kept, or nobody left to send one, it waits for ever.
async fn hear_stop(heard: &mut Option<(Stop, Reply)>, stops: &mut mpsc::Receiver<(Stop, Reply)>) {
    if heard.is_none() {
        *heard = stops.recv().await;
        if heard.is_some() {
            return;
        }
    }
    std::future::pending().await
}

fn stopped_meanwhile() -> NodeError {
    NodeError::Busy("it was stopped while it started".to_owned())
}

/// Looks for a machine of an earlier server until it is certain whether there is one. Cancel-safe.
async fn look(state: &HostState, id: SandboxId, pause: &mut Option<Duration>) -> Option<Adopted> {
    loop {
        let Some(wait) = *pause else { return std::future::pending().await };
        tokio::time::sleep(wait).await;
        *pause = Some((wait * 2).min(SELDOMEST_LOOK));
        match state.driver.adopt(id).await {
            Ok(adopted) => return adopted,
            Err(error) => {
                tracing::warn!(sandbox = %id, error = chain(&error), "a sandbox that may run is not taken over yet");
            }
        }
    }
}

async fn news(machine: &mut Held) -> News {
    match machine {
        Held::Running(machine) => machine.news().await,
        Held::Frozen(standing) => match standing.change().await {
            Change::Notice(notice) => News::Notice(notice),
            Change::Written(number) => News::Written(number),
        },
        Held::Down => std::future::pending().await,
    }
}

/// Lets processes end by themselves and disks be synced. A guest that will not is ended anyway.
async fn shut_down(asker: &Asker) {
    let grace_ms = u64::try_from(GRACE.as_millis()).unwrap_or(0);
    let asked = async {
        if let Ok(stream) = asker.ask(Request::new(Ask::Shutdown(Shutdown { grace_ms }))).await {
            let _ = GuestStream::new(stream).only().await;
        }
    };
    let _ = tokio::time::timeout(SHUTDOWN_LIMIT, asked).await;
}
