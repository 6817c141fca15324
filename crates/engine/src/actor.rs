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

use crate::driver::{Booted, Notice};
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
}

pub(crate) struct Actor {
    id: SandboxId,
    state: Arc<HostState>,
    starts: mpsc::Receiver<(Order, Reply)>,
    stops: mpsc::Receiver<(Stop, Reply)>,
    live: watch::Sender<Option<Live>>,
    machine: Option<Running>,
}

struct Running {
    booted: Box<dyn Booted>,
    asker: Asker,
    link: AbortOnDropHandle<LinkError>,
    relief: Option<AbortOnDropHandle<Result<Relief, ShortageError>>>,
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
        Self { booted, asker, link, relief: None }
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

    fn relieve(&mut self) {
        if self.relief.is_none() {
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
        let mut actor = Self { id, state, starts, stops, live: live_tx, machine: None };
        if let Some(booted) = adopted {
            actor.take_over(Running::new(id, booted));
        }
        (actor, Handle { starts: starts_tx, stops: stops_tx, live })
    }

    pub(crate) async fn run(mut self) {
        loop {
            tokio::select! {
                biased;
                // Whoever wants it gone does not wait for anything else.
                stop = self.stops.recv() => {
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
                start = self.starts.recv() => {
                    let Some((order, reply)) = start else { return };
                    let result = self.start(order).await;
                    let _ = reply.send(result);
                }
            }
        }
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
                tracing::info!(sandbox = %id, killed = ?relief.killed, "the sandbox ran out of memory");
                if let Some(machine) = &mut self.machine {
                    machine.booted.memory_relieved().await;
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
        if stop == Stop::Remove {
            // Also what an end that failed before has left.
            self.state.driver.clean(self.id).await.map_err(|e| failed("clean up", self.id, e))?;
            self.state.delete_disk(self.id).await?;
            self.state.unmark(self.id)?;
        }
        Ok(())
    }

    async fn start(&mut self, order: Order) -> Result<(), NodeError> {
        if self.machine.is_some() {
            return Ok(());
        }
        let state = self.state.clone();
        let admitted = state.admit()?;
        let turn = tokio::select! {
            biased;
            turn = state.starts.acquire() => turn.map_err(|e| failed("start", self.id, e))?,
            // Stopped while it waits for its turn: nothing to undo yet.
            stop = self.stops.recv() => {
                if let Some((stop, reply)) = stop {
                    let _ = reply.send(self.stop(stop).await);
                }
                return Err(NodeError::Busy("it was stopped before it started".to_owned()));
            }
        };
        let result = self.bring_up(&order).await;
        drop((turn, admitted));
        if result.is_err() {
            self.undo_start(order.disk).await;
        }
        result
    }

    /// The steps of a start. Each can be repeated; [`Self::undo_start`] undoes them all, whichever failed.
    async fn bring_up(&mut self, order: &Order) -> Result<(), NodeError> {
        let id = self.id;
        // What a start that failed, or a machine whose end failed, may have left.
        self.state.driver.clean(id).await.map_err(|e| failed("clean up", id, e))?;
        if order.disk == Disk::New {
            self.state.mark(id)?;
        }
        let root = self.state.disk(order).await?;
        let plan = self.state.plan(order, root);
        let booted = self.state.driver.boot(plan).await.map_err(|e| failed("boot", id, e))?;
        let mut machine = Running::new(id, booted);
        let asker = machine.asker.clone();
        let mut up = std::pin::pin!(asker.up(HELLO_LIMIT));
        loop {
            tokio::select! {
                up = &mut up => match up {
                    Ok(()) => break,
                    Err(error) => {
                        self.machine = Some(machine);
                        return Err(failed("greet the agent of", id, error));
                    }
                },
                news = machine.news() => match news {
                    News::Notice(Notice::OutOfMemory) => machine.relieve(),
                    News::Relieved(_) => machine.booted.memory_relieved().await,
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
