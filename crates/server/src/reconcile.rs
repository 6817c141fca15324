//! Makes what is match what the rows say.
//!
//! A round looks at everything and takes no input: at the start, when the node reports an end (or reports were missed),
//! and every half minute. In between, a short look every second finds limits that are reached and drivers that gave up.
//! Rows are looked at before the machines they are compared with, and a change is made only if the row is still the one
//! that was looked at: what a driver did meanwhile always wins.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use runtime_model::{Event, Reason, SandboxId, State};
use runtime_proto::guest::{Ask, Nothing, Request, Tell};
use runtime_proto::node::{MachineStatus, NodeEvent};
use runtime_store::SandboxRow;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::AppState;
use crate::clock::{now_ms, seconds};
use crate::error::ApiError;
use crate::sandboxes::{Live, Step, apply};

const ROUND: Duration = Duration::from_secs(30);
/// How long a start holds its callers back until rows and machines were compared.
const FIRST_ROUND: Duration = Duration::from_secs(5);
/// Old idempotency records go, and activity is written down.
const HOUSEKEEPING: Duration = Duration::from_secs(30);
/// How long the answer to a repeated delete is kept.
const DELETED_MS: i64 = 7 * 24 * 60 * 60 * 1000;
/// An agent that says nothing about its activity is asked again at the next look.
const ACTIVITY_WAIT: Duration = Duration::from_secs(2);
const LEARN_AGAIN: Duration = Duration::from_secs(5);

/// Starts the reconciler, which ends with the token, and waits for its first round: what callers read from now on is what
/// is, not what was when the former server ended. Where that takes longer than [`FIRST_ROUND`], the rest comes after.
pub async fn start(app: AppState, stop: CancellationToken) -> JoinHandle<()> {
    let (looked, first) = oneshot::channel();
    let mut looked = Some(looked);
    let task = tokio::spawn(async move {
        let mut events = app.node().events();
        let mut looks = interval(app.config().reconcile_every);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        learn_keys(&app, stop.clone());
        let mut reconciler = Reconciler {
            app,
            loaded: false,
            strangers: HashSet::new(),
            next_round: Instant::now(),
            next_housekeeping: Instant::now(),
        };
        loop {
            // The first look is at once: the first tick is.
            tokio::select! {
                // First, or a burst of reports would hold up the end.
                biased;
                () = stop.cancelled() => return,
                event = events.recv() => match event {
                    // The report says where to look, not what is: an old one must not end a new machine.
                    Ok(NodeEvent::Ended { id, reason }) => {
                        tracing::warn!(sandbox = %id, reason = reason.as_str(), "a machine ended");
                        reconciler.next_round = Instant::now();
                    }
                    Err(RecvError::Lagged(_)) => reconciler.next_round = Instant::now(),
                    // No node speaks any more: the timer goes on.
                    Err(RecvError::Closed) => events = events.resubscribe(),
                },
                _ = looks.tick() => {}
            }
            reconciler.look().await;
            // Nobody may be waiting any more.
            let _ = looked.take().map(|looked| looked.send(()));
        }
    });
    // An error: the task is gone, and whoever watches it will say so.
    let _ = tokio::time::timeout(FIRST_ROUND, first).await;
    task
}

/// Reads the keys of former servers beside everything else; until it is done each key is looked up in the store.
fn learn_keys(app: &AppState, stop: CancellationToken) {
    let learner = app.clone();
    app.tasks().spawn(async move {
        while let Err(error) = learner.learn_keys().await {
            report(&error);
            if tokio::time::timeout(LEARN_AGAIN, stop.cancelled()).await.is_ok() {
                return;
            }
        }
    });
}

struct Reconciler {
    app: AppState,
    /// What a former server left under way is in memory.
    loaded: bool,
    /// Machines no row speaks of, which a log line told of already.
    strangers: HashSet<SandboxId>,
    next_round: Instant,
    next_housekeeping: Instant,
}

impl Reconciler {
    /// Brings into memory what a former server left under way. Tried again at each look until all of it is there.
    async fn load(&self) -> Result<(), ApiError> {
        let app = &self.app;
        let internal = |step: &'static str| move |error| ApiError::internal(step, error);
        for row in app.store().unstopped().await.map_err(internal("reading what was left under way"))? {
            let live = app.sandboxes().get_or_insert(row.id, Some(row));
            // What happened while no server looked is not known: idle time counts from now.
            live.touch();
        }
        for id in app.store().removals().await.map_err(internal("reading what is to be removed"))? {
            app.sandboxes().get_or_insert(id, None);
        }
        Ok(())
    }

    async fn look(&mut self) {
        if !self.loaded {
            match self.load().await {
                Ok(()) => self.loaded = true,
                Err(error) => return report(&error),
            }
        }
        let now = Instant::now();
        if now >= self.next_round {
            if let Err(error) = self.app.reconcile_snapshots().await {
                report(&error);
            }
            match self.compare().await {
                Ok(()) => self.next_round = now + ROUND,
                // The node may not be up yet.
                Err(error) => report(&error),
            }
        }
        for live in self.app.sandboxes().all() {
            match live.peek() {
                None => self.app.nudge(&live),
                Some(row) => match row.state {
                    State::Starting | State::Stopping | State::Pausing | State::Resuming => self.app.nudge(&live),
                    // Its driver gave up for the moment.
                    _ if live.wants_captures() => self.app.nudge(&live),
                    State::Running => {
                        // What a former server, or a crash half way, left to be told to the node.
                        self.app.enforce_soon(&live, &row);
                        self.limits(live, row);
                    }
                    State::Stopped | State::Paused => {}
                },
            }
        }
        if now >= self.next_housekeeping {
            self.next_housekeeping = now + HOUSEKEEPING;
            if let Err(error) = self.housekeeping().await {
                report(&error);
            }
        }
    }

    /// Rows against machines. One that resists is told of and keeps none of the others waiting.
    async fn compare(&mut self) -> Result<(), ApiError> {
        let app = self.app.clone();
        let resting = |live: &Arc<Live>| {
            let row = live.peek()?;
            live.driver_sleeps().then_some((live.clone(), row))
        };
        // Before the machines: a machine of a row that says `running` here was up before the node is asked.
        let rows: Vec<(Arc<Live>, Arc<SandboxRow>)> = app.sandboxes().all().iter().filter_map(resting).collect();
        let machines = app.node().machines().await.map_err(ApiError::from)?;
        let machines: HashMap<SandboxId, MachineStatus> =
            machines.into_iter().map(|machine| (machine.id, machine)).collect();
        for (live, row) in &rows {
            let machine = machines.get(&row.id);
            let mended = match (row.state, machine.is_some_and(|it| it.running), machine.is_some_and(|it| it.paused)) {
                (State::Running, false, true) => {
                    tracing::warn!(sandbox = %row.id, "its machine stands still: it counts as paused");
                    app.pause_for(live, |now| now.generation == row.generation, row.reason).await
                }
                (State::Running, false, false) => {
                    let disk = machine.is_some_and(|machine| machine.disk);
                    tracing::warn!(sandbox = %row.id, disk, "its machine is gone");
                    self.ended(live, row, disk).await
                }
                (State::Paused, true, _) => {
                    self.restless(live, row).await;
                    Ok(())
                }
                (State::Paused, false, false) => self.memory_lost(live, row).await,
                _ => Ok(()),
            };
            mended.unwrap_or_else(|error| report(&error));
        }
        // After the machines: a row is there before its machine is.
        let known = app.store().sandbox_ids().await;
        let known: HashSet<SandboxId> =
            known.map_err(|error| ApiError::internal("listing sandboxes", error))?.into_iter().collect();
        for machine in machines.values() {
            let mended = if !known.contains(&machine.id) {
                self.orphan(machine).await
            } else if machine.running || machine.paused {
                self.stray(machine.id).await
            } else {
                Ok(())
            };
            mended.unwrap_or_else(|error| report(&error));
        }
        self.strangers.retain(|id| machines.contains_key(id));
        Ok(())
    }

    /// Nothing is left to wake: what remains is the disk.
    async fn memory_lost(&self, live: &Live, seen: &SandboxRow) -> Result<(), ApiError> {
        let step = |row: &SandboxRow| {
            if row.generation != seen.generation || row.reason == Some(Reason::PauseFailed) {
                return Ok(Step::Stay);
            }
            tracing::error!(sandbox = %row.id, "the memory of a paused sandbox is gone; its disk is kept");
            Ok(Step::save(SandboxRow { reason: Some(Reason::PauseFailed), ..row.clone() }))
        };
        match self.app.change(live, step).await {
            Err(error) if error.kind() != crate::Kind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// A machine that runs for a sandbox that is paused: a wake that was given up on came about after all.
    async fn restless(&self, live: &Arc<Live>, seen: &SandboxRow) {
        if !live.wake_driver() {
            return;
        }
        if live.peek().is_some_and(|row| row.generation == seen.generation) {
            tracing::warn!(sandbox = %seen.id, "pausing a machine whose sandbox is paused");
            if let Err(error) = self.app.node().pause(seen.id).await {
                tracing::error!(sandbox = %seen.id, error = &error as &dyn std::error::Error, "it could not be paused");
            }
        }
        if live.driver_goes_on() {
            self.app.resume_driver(live);
        }
    }

    async fn ended(&self, live: &Live, seen: &SandboxRow, disk: bool) -> Result<(), ApiError> {
        let step = |row: &SandboxRow| {
            if row.generation != seen.generation {
                return Ok(Step::Stay);
            }
            Ok(match apply(row, Event::Ended)? {
                None => Step::Stay,
                Some(mut next) => {
                    next.reason = Some(Reason::HostStopped);
                    next.disk_kept = disk;
                    Step::save(next)
                }
            })
        };
        match self.app.change(live, step).await {
            Ok(_) => Ok(()),
            Err(error) if error.kind() == crate::Kind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// A machine without a row. Its disk goes only if a deletion of it is on record: a database that was lost, or put
    /// back from an older copy, must not take the disks of the sandboxes it does not know with it. (What a crash left
    /// half made bears the engine's mark, and the engine sweeps it.)
    async fn orphan(&mut self, machine: &MachineStatus) -> Result<(), ApiError> {
        let (app, id) = (&self.app, machine.id);
        // A deleted one in memory has its driver.
        if app.sandboxes().get(id).is_some() {
            return Ok(());
        }
        let deleted = app.store().deleted(id).await;
        let deleted =
            deleted.map_err(|error| ApiError::internal(format!("reading whether {id} was deleted"), error))?;
        if deleted.is_some() {
            tracing::warn!(sandbox = %id, "removing what is left of a deleted sandbox");
            let removed = app.node().remove(id).await;
            return removed.map_err(|error| ApiError::internal(format!("removing sandbox {id}"), error));
        }
        if self.strangers.insert(id) {
            tracing::error!(
                sandbox = %id,
                running = machine.running,
                "the database knows no such sandbox; its disk is kept. Stop the server and put back the runtime.db \
                 that knows it, or, if nobody needs it, delete its subvolume below pool/root in the data directory"
            );
        }
        // One that stands still, or is saved, costs little and may be wanted with that database.
        if machine.running {
            let stopped = app.node().stop(id).await;
            stopped.map_err(|error| ApiError::internal(format!("stopping unknown sandbox {id}"), error))?;
        }
        Ok(())
    }

    /// A machine that runs for a sandbox that is stopped.
    async fn stray(&self, id: SandboxId) -> Result<(), ApiError> {
        let Some(live) = self.app.live(id).await? else { return Ok(()) };
        let stopped = live.peek().is_some_and(|row| row.state == State::Stopped);
        // Held as its driver would be, so that a restart cannot come in between.
        if stopped && live.wake_driver() {
            let still = live.peek().is_some_and(|row| row.state == State::Stopped);
            if still {
                tracing::warn!(sandbox = %id, "ending a machine whose sandbox is stopped");
                if let Err(error) = self.app.node().stop(id).await {
                    tracing::error!(sandbox = %id, error = &error as &dyn std::error::Error, "it could not be ended");
                }
            }
            if live.driver_goes_on() {
                self.app.resume_driver(&live);
            }
        }
        Ok(())
    }

    /// Time limit and idle limit of a running sandbox. What asks its agent does so in a task of its own, so that one
    /// that does not answer holds up nobody.
    fn limits(&self, live: Arc<Live>, row: Arc<SandboxRow>) {
        let now = now_ms();
        let over = row.ends_at.is_some_and(|ends| ends <= now);
        let idle = row.idle_seconds > 0 && live.last_active() + seconds(row.idle_seconds) <= now && !live.is_busy();
        let measure = row.idle_seconds > 0 && live.cpu_is_due(Instant::now());
        if !(over || idle || measure) || !live.begin_limit() {
            return;
        }
        let app = self.app.clone();
        self.app.tasks().spawn(async move {
            let result = if over {
                app.time_is_over(&live).await
            } else if measure && uses_cpu(&app, &live).await {
                live.touch();
                Ok(())
            } else if !idle {
                Ok(())
            } else if is_active(&app, live.id).await {
                live.touch();
                Ok(())
            } else {
                app.rest(&live).await
            };
            live.end_limit();
            if let Err(error) = result {
                report(&error);
            }
        });
    }

    async fn housekeeping(&self) -> Result<(), ApiError> {
        let app = &self.app;
        let internal = |step: &'static str| move |error| ApiError::internal(step, error);
        let now = now_ms();
        let newer = |live: &Arc<Live>| {
            let row = live.peek()?;
            (Some(live.last_active()) > row.last_active_at && row.state != State::Stopped)
                .then(|| (live.id, live.last_active()))
        };
        let seen: Vec<(SandboxId, i64)> = app.sandboxes().all().iter().filter_map(newer).collect();
        if !seen.is_empty() {
            app.store().touch(seen).await.map_err(internal("noting activity"))?;
        }
        app.store().sweep(now, now - DELETED_MS).await.map_err(internal("sweeping old records"))?;
        for id in app.store().expired(now).await.map_err(internal("listing sandboxes past their retention"))? {
            self.retire(id).await.unwrap_or_else(|error| report(&error));
        }
        app.retire_snapshots(now).await?;
        app.sandboxes().shrink();
        Ok(())
    }

    async fn retire(&self, id: SandboxId) -> Result<(), ApiError> {
        if let Some(live) = self.app.live(id).await?
            && let Some(row) = live.peek()
            && matches!(row.state, State::Stopped | State::Paused)
        {
            tracing::info!(sandbox = %id, "deleting it: its retention is over");
            self.app.delete_now(id, &row).await?;
        }
        Ok(())
    }
}

/// One that cannot be measured is judged by its processes alone.
async fn uses_cpu(app: &AppState, live: &Live) -> bool {
    match app.node().cpu_ns(live.id).await {
        Ok(cpu_ns) => live.note_cpu(Instant::now(), cpu_ns),
        Err(_) => false,
    }
}

/// Whether something runs in it. Not to know counts as activity: nothing is stopped on a guess.
async fn is_active(app: &AppState, id: SandboxId) -> bool {
    let ask = async {
        let mut stream = app.node().ask(id, Request::new(Ask::GetActivity(Nothing {}))).await.ok()?;
        match stream.only().await.ok()? {
            Tell::Activity(activity) => Some(activity.live_processes > 0),
            _ => None,
        }
    };
    tokio::time::timeout(ACTIVITY_WAIT, ask).await.ok().flatten().unwrap_or(true)
}

fn report(error: &ApiError) {
    let cause = error.cause().map_or_else(|| error.to_string(), str::to_owned);
    tracing::error!(cause, "reconciling");
}
