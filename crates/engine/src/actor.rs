//! One task per sandbox that owns its machine.
//!
//! ```text
//!   Down ──start──> Running ──stop, or it ends by itself──> Down ──remove──> (the task ends)
//! ```
//!
//! Others hold a [`Handle`]: commands wait in a bounded queue and are done one after the other; stopping has a channel of
//! its own, heard first. What is published about the machine ([`Live`]) is published here and nowhere else, so that
//! asking it does not pass through this task at all. When the last handle is gone the task ends and leaves the machine
//! running: that is how a server is shut down.

use std::sync::Arc;
use std::time::Duration;

use runtime_host::cgroup::Group;
use runtime_model::{Reason, SandboxId};
use runtime_proto::guest::{Ask, Request, Shutdown};
use runtime_proto::node::{Disk, GuestStream, NodeError, NodeEvent, Order};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::task::AbortOnDropHandle;

use crate::driver::{Booted, Notice, Plan};
use crate::host_state::{HostState, chain, failed};
use crate::link::{Asker, Link, LinkError};
use crate::shortage::{self, Relief, ShortageError};

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

/// What is open to others while the machine runs.
#[derive(Clone)]
pub(crate) struct Live {
    pub(crate) asker: Asker,
    pub(crate) group: Group,
}

#[derive(Clone)]
pub(crate) struct Handle {
    pub(crate) starts: mpsc::Sender<(Order, Reply)>,
    pub(crate) stops: mpsc::Sender<(Stop, Reply)>,
    pub(crate) live: watch::Receiver<Option<Live>>,
    /// It may run, which is being found out.
    pub(crate) unknown: watch::Receiver<bool>,
}

pub(crate) struct Actor {
    id: SandboxId,
    state: Arc<HostState>,
    starts: mpsc::Receiver<(Order, Reply)>,
    stops: mpsc::Receiver<(Stop, Reply)>,
    live: watch::Sender<Option<Live>>,
    machine: Option<Running>,
    /// How long until the next look at what an earlier server left; none while that is known.
    look: Option<Duration>,
    unknown: watch::Sender<bool>,
    /// Came while something else was under way.
    stop_heard: Option<(Stop, Reply)>,
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
    LinkGaveUp(String),
    Relieved(Relief),
    CannotBeRelieved(String),
}

impl Running {
    fn new(id: SandboxId, booted: Box<dyn Booted>) -> Self {
        let (link, asker) = Link::new(id, booted.identity().clone(), booted.dialer());
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
    /// `adopted` is a machine that runs already.
    pub(crate) fn new(id: SandboxId, state: Arc<HostState>, adopted: Option<Box<dyn Booted>>) -> (Self, Handle) {
        let (starts_tx, starts) = mpsc::channel(QUEUE);
        let (stops_tx, stops) = mpsc::channel(QUEUE);
        let (live_tx, live) = watch::channel(None);
        let (unknown_tx, unknown) = watch::channel(false);
        let (machine, look, stop_heard) = (None, None, None);
        let mut actor =
            Self { id, state, starts, stops, live: live_tx, machine, look, unknown: unknown_tx, stop_heard };
        if let Some(booted) = adopted {
            actor.take_over(Running::new(id, booted));
        }
        (actor, Handle { starts: starts_tx, stops: stops_tx, live, unknown })
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
                        self.starts.close();
                    }
                    let _ = reply.send(result);
                    if over {
                        return;
                    }
                }
                // The machine's end before commands: they would be told that it runs.
                news = news(&mut self.machine) => self.hear(news).await,
                found = look(&self.state, self.id, &mut self.look) => self.found(found).await,
                start = self.starts.recv() => {
                    let Some((order, reply)) = start else { return };
                    let result = self.start(order).await;
                    let _ = reply.send(result);
                }
            }
        }
    }

    async fn found(&mut self, adopted: Option<Box<dyn Booted>>) {
        let id = self.id;
        let settled = match adopted {
            Some(booted) => {
                self.take_over(Running::new(id, booted));
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
            News::Notice(Notice::OutOfMemory) => {
                if let Some(machine) = &mut self.machine {
                    machine.relieve();
                }
            }
            News::Relieved(relief) => {
                if !relief.killed.is_empty() {
                    tracing::info!(sandbox = %id, killed = ?relief.killed, "the sandbox ran out of memory");
                }
                if let Some(machine) = &mut self.machine {
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
        let Some(Running { booted, link, relief, .. }) = self.machine.take() else { return Ok(()) };
        drop((link, relief));
        booted.end().await.map_err(|e| failed("end", self.id, e))
    }

    async fn stop(&mut self, stop: Stop) -> Result<(), NodeError> {
        if stop == Stop::KeepDisk
            && let Some(machine) = &self.machine
        {
            shut_down(&machine.asker).await;
        }
        self.end_machine().await?;
        if stop == Stop::Remove || self.look.is_some() {
            // Also what an end that failed before has left.
            self.state.driver.clean(self.id).await.map_err(|e| failed("clean up", self.id, e))?;
            self.known();
        }
        if stop == Stop::Remove {
            self.state.delete_disk(self.id).await?;
            self.state.unmark(self.id)?;
        }
        Ok(())
    }

    async fn start(&mut self, order: Order) -> Result<(), NodeError> {
        if self.machine.is_some() {
            return Ok(());
        }
        if self.look.is_some() {
            return Err(NodeError::Busy("whether it runs is still being found out".to_owned()));
        }
        let state = self.state.clone();
        let admitted = state.admit()?;
        let turn = tokio::select! {
            biased;
            turn = state.starts.acquire() => turn.map_err(|e| failed("start", self.id, e))?,
            // Stopped while it waits for its turn: nothing to undo yet.
            () = hear_stop(&mut self.stop_heard, &mut self.stops) => return Err(stopped_meanwhile()),
        };
        let result = self.bring_up(&order).await;
        drop((turn, admitted));
        if result.is_err() {
            self.undo_start(order.disk).await;
        }
        result
    }

    /// The steps of a start. Each can be repeated; [`Self::undo_start`] undoes them all, whichever failed. A stop that
    /// comes in between is a failure, and is done once the start is undone.
    async fn bring_up(&mut self, order: &Order) -> Result<(), NodeError> {
        let id = self.id;
        // What a start that failed, or a machine whose end failed, may have left.
        self.state.driver.clean(id).await.map_err(|e| failed("clean up", id, e))?;
        if order.disk == Disk::New {
            self.state.mark(id)?;
        }
        let root = self.state.disk(order).await?;
        let plan = self.state.plan(order, root);
        let booted = self.boot(plan).await?;
        let mut machine = Running::new(id, booted);
        let asker = machine.asker.clone();
        let mut up = std::pin::pin!(asker.up(HELLO_LIMIT));
        loop {
            tokio::select! {
                () = hear_stop(&mut self.stop_heard, &mut self.stops) => {
                    self.machine = Some(machine);
                    return Err(stopped_meanwhile());
                }
                up = &mut up => match up {
                    Ok(()) => break,
                    Err(error) => {
                        self.machine = Some(machine);
                        return Err(failed("greet the agent of", id, error));
                    }
                },
                news = machine.news() => match news {
                    News::Notice(Notice::OutOfMemory) => machine.relieve(),
                    News::Relieved(_) => machine.relieved().await,
                    News::Notice(Notice::Ended(end)) => {
                        self.machine = Some(machine);
                        return Err(NodeError::Failed(format!("sandbox {id} ended while it started: {}", end.cause)));
                    }
                    News::LinkGaveUp(cause) | News::CannotBeRelieved(cause) => {
                        self.machine = Some(machine);
                        return Err(NodeError::Failed(format!("sandbox {id} did not start: {cause}")));
                    }
                },
            }
        }
        self.state.unmark(id)?;
        self.take_over(machine);
        Ok(())
    }

    async fn boot(&mut self, plan: Plan) -> Result<Box<dyn Booted>, NodeError> {
        let (state, abort) = (self.state.clone(), plan.abort.clone());
        let mut boot = state.driver.boot(plan);
        loop {
            tokio::select! {
                biased;
                () = hear_stop(&mut self.stop_heard, &mut self.stops) => abort.cancel(),
                booted = &mut boot => {
                    return booted.map_err(|e| {
                        if self.stop_heard.is_some() { stopped_meanwhile() } else { failed("boot", self.id, e) }
                    });
                }
            }
        }
    }

    async fn undo_start(&mut self, disk: Disk) {
        let undo = async {
            self.end_machine().await?;
            self.state.driver.clean(self.id).await.map_err(|e| failed("clean up", self.id, e))?;
            if disk == Disk::New {
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
        self.live.send_replace(Some(Live { asker: machine.asker.clone(), group: machine.booted.group() }));
        self.machine = Some(machine);
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
async fn look(state: &HostState, id: SandboxId, pause: &mut Option<Duration>) -> Option<Box<dyn Booted>> {
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

async fn news(machine: &mut Option<Running>) -> News {
    match machine {
        Some(machine) => machine.news().await,
        None => std::future::pending().await,
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
