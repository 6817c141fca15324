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
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::AppState;
use crate::clock::{now_ms, seconds};
use crate::error::ApiError;
use crate::sandboxes::{Live, Step, apply};

const ROUND: Duration = Duration::from_secs(30);
/// Old idempotency records go, and activity is written down.
const HOUSEKEEPING: Duration = Duration::from_secs(30);
/// How long the answer to a repeated delete is kept.
const DELETED_MS: i64 = 7 * 24 * 60 * 60 * 1000;
/// An agent that says nothing about its activity is asked again at the next look.
const ACTIVITY_WAIT: Duration = Duration::from_secs(2);

/// Starts the reconciler; it ends with the token.
pub fn start(app: AppState, stop: CancellationToken) -> JoinHandle<()> {
    tokio::spawn(async move {
        let mut events = app.node().events();
        let mut looks = interval(app.config().reconcile_every);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut reconciler = Reconciler { app, next_round: Instant::now(), next_housekeeping: Instant::now() };
        reconciler.load().await;
        loop {
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
        }
    })
}

struct Reconciler {
    app: AppState,
    next_round: Instant,
    next_housekeeping: Instant,
}

impl Reconciler {
    /// Brings into memory what a former server left under way.
    async fn load(&mut self) {
        let app = &self.app;
        let learner = app.clone();
        app.tasks().spawn(async move {
            if let Err(error) = learner.learn_keys().await {
                report(&error);
            }
        });
        match app.store().unstopped().await {
            Ok(rows) => {
                for row in rows {
                    let live = app.sandboxes().get_or_insert(row.id, Some(row));
                    // What happened while no server looked is not known: idle time counts from now.
                    live.touch();
                }
            }
            Err(error) => report(&ApiError::internal("reading what was left under way", error)),
        }
        match app.store().removals().await {
            Ok(ids) => {
                for id in ids {
                    app.sandboxes().get_or_insert(id, None);
                }
            }
            Err(error) => report(&ApiError::internal("reading what is to be removed", error)),
        }
    }

    async fn look(&mut self) {
        let now = Instant::now();
        if now >= self.next_round {
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
                    State::Starting | State::Stopping => self.app.nudge(&live),
                    State::Running => self.limits(live, row),
                    State::Stopped | State::Pausing | State::Paused | State::Resuming => {}
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

    /// Rows against machines.
    async fn compare(&self) -> Result<(), ApiError> {
        let app = &self.app;
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
            if row.state == State::Running && !machine.is_some_and(|machine| machine.running) {
                let disk = machine.is_some_and(|machine| machine.disk);
                tracing::warn!(sandbox = %row.id, disk, "its machine is gone");
                self.ended(live, row, disk).await?;
            }
        }
        // After the machines: a row is there before its machine is.
        let known = app.store().sandbox_ids().await;
        let known: HashSet<SandboxId> =
            known.map_err(|error| ApiError::internal("listing sandboxes", error))?.into_iter().collect();
        for machine in machines.values() {
            if !known.contains(&machine.id) {
                self.orphan(machine.id).await;
            } else if machine.running {
                self.stray(machine.id).await?;
            }
        }
        Ok(())
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

    /// A machine without a row. One that was deleted has its driver; any other has nobody.
    async fn orphan(&self, id: SandboxId) {
        if self.app.sandboxes().get(id).is_some() {
            return;
        }
        tracing::warn!(sandbox = %id, "removing a machine that belongs to no sandbox");
        if let Err(error) = self.app.node().remove(id).await {
            tracing::error!(sandbox = %id, error = &error as &dyn std::error::Error, "it could not be removed");
        }
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
        if !(over || idle) || !live.begin_limit() {
            return;
        }
        let app = self.app.clone();
        self.app.tasks().spawn(async move {
            let result = if over {
                app.stop_for(&live, Reason::TimeLimit).await
            } else if is_active(&app, live.id).await {
                live.touch();
                Ok(())
            } else {
                app.stop_if_idle(&live).await
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
            if let Some(live) = app.live(id).await?
                && let Some(row) = live.peek()
                && row.state == State::Stopped
            {
                tracing::info!(sandbox = %id, "deleting it: its retention is over");
                app.delete_now(id, &row).await?;
            }
        }
        app.sandboxes().shrink();
        Ok(())
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
