//! Pausing, waking, and what happens when a limit is reached.
//!
//! A pause is answered when the machine stands still; its node writes the memory down behind that. A wake has the machine
//! go on where it stood. Both are committed first and done by the driver.

use std::sync::Arc;

use axum::extract::{Path, State as Extract};
use axum::response::Response;
use runtime_api::error::ErrorBody;
use runtime_api::sandbox::{Sandbox, WakeSandbox};
use runtime_model::{Event, Reason, State};
use runtime_proto::node::NodeError;
use runtime_store::{OnLimit, Operation, SandboxRow};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::change::{Step, apply};
use super::fields as rules;
use super::live::{Live, not_found};
use super::record::live_record;
use crate::AppState;
use crate::call::Call;
use crate::clock::{now_ms, seconds};
use crate::error::ApiError;
use crate::idempotency::Answer;

pub(super) fn router() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(pause)).routes(routes!(wake))
}

/// Who wakes it, which decides when its time limit ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wake {
    /// Asked for, with a limit or its own.
    Asked { seconds: Option<u32> },
    /// By a call into it or by its name: at least what it was paused with.
    Call,
}

impl Wake {
    fn ends_at(self, row: &SandboxRow, now: i64) -> Option<i64> {
        let own = (row.timeout_seconds > 0).then(|| now + seconds(row.timeout_seconds));
        match self {
            Self::Asked { seconds: Some(given) } => Some(now + seconds(given)),
            Self::Asked { seconds: None } => own,
            Self::Call => own.map(|own| row.ends_at.map_or(own, |ends| ends.max(own))),
        }
    }
}

/// Have it stand still with its memory. Answered as soon as it does.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/~pause", tag = "sandboxes", params(("id" = String, Path)), responses(
    (status = 200, body = Sandbox), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
async fn pause(Extract(app): Extract<AppState>, Path(id): Path<String>, call: Call) -> Response {
    app.answer_once(call, |app, call| async move {
        call.fields()?.finish()?;
        let live = app.reach(&call.caller, &id).await?;
        live.touch();
        if !app.node().facts().pauses {
            return Err(NodeError::Unsupported("pause").into());
        }
        let wait = call.wait.unwrap_or_default();
        if matches!(live.row()?.state, State::Starting | State::Resuming) {
            // Over in a moment; who said how long to wait does not want a refusal.
            live.settled(wait).await;
        }
        app.pause_for(&live, |_| true, None).await?;
        let row = live.settled(wait).await.ok_or_else(not_found)?;
        match live.start_error() {
            Some(error) if row.state == State::Running => Err(error.into()),
            _ => Answer::json(&live_record(&live, &row)),
        }
    })
    .await
}

/// Have a paused sandbox go on where it stood. One with a time limit gets it anew.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/~wake", tag = "sandboxes", params(("id" = String, Path)),
    request_body = WakeSandbox, responses(
    (status = 200, body = Sandbox), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
async fn wake(Extract(app): Extract<AppState>, Path(id): Path<String>, call: Call) -> Response {
    app.answer_once(call, |app, call| async move {
        let mut fields = call.fields()?;
        let given = fields.opt("timeoutSeconds", rules::timeout_seconds);
        fields.finish()?;
        let live = app.reach(&call.caller, &id).await?;
        live.touch();
        app.wake_up(&live, Wake::Asked { seconds: given.filter(|given| *given > 0) }).await?;
        let row = live.settled(call.wait.unwrap_or_default()).await.ok_or_else(not_found)?;
        woken(&live, &row)?;
        Answer::json(&live_record(&live, &row))
    })
    .await
}

/// A wake that failed, told as such to the one who waited for it.
pub(super) fn woken(live: &Live, row: &SandboxRow) -> Result<(), ApiError> {
    match live.start_error() {
        Some(error) if row.state == State::Paused => Err(error.into()),
        _ => Ok(()),
    }
}

impl AppState {
    /// Commits the pause, if `still` holds of the newest row, and has the driver do it.
    pub(crate) async fn pause_for(
        &self,
        live: &Arc<Live>,
        still: impl Fn(&SandboxRow) -> bool,
        reason: Option<Reason>,
    ) -> Result<(), ApiError> {
        let row = self
            .change(live, |row| {
                if !still(row) {
                    return Ok(Step::Stay);
                }
                let mut next = match apply(row, Event::Pause)? {
                    Some(next) => next,
                    // It stands still for a snapshot, and is to stay so.
                    None if row.operation == Some(Operation::Capture) => row.clone(),
                    None => return Ok(Step::Stay),
                };
                next.operation = Some(Operation::Pause);
                next.reason = reason;
                live.note_start_error(None);
                Ok(Step::save(next))
            })
            .await?;
        if row.state == State::Pausing {
            self.nudge(live);
        }
        Ok(())
    }

    /// Commits the wake and has the driver do it. Refuses one that is not paused.
    pub(crate) async fn wake_up(&self, live: &Arc<Live>, wake: Wake) -> Result<(), ApiError> {
        let engine = self.node().facts().engine;
        let row = self
            .change(live, |row| {
                let Some(mut next) = apply(row, Event::Wake)? else { return Ok(Step::Stay) };
                if row.engine != engine {
                    return Err(super::create::other_engine(row, engine));
                }
                next.operation = Some(Operation::Wake);
                next.ends_at = wake.ends_at(row, now_ms());
                if let Wake::Asked { seconds: Some(given) } = wake
                    && row.timeout_seconds == 0
                {
                    // It has a limit from now on, which can be extended.
                    next.timeout_seconds = given;
                }
                // Known to be gone: it starts from its disk.
                next.memory_restored = (row.reason == Some(Reason::PauseFailed)).then_some(false);
                live.note_start_error(None);
                Ok(Step::save(next))
            })
            .await?;
        if row.state == State::Resuming {
            self.nudge(live);
        }
        Ok(())
    }

    /// Nobody used it for as long as it said, unless somebody does by now.
    pub(crate) async fn rest(&self, live: &Arc<Live>) -> Result<(), ApiError> {
        let idle = |row: &SandboxRow| {
            let since = now_ms() - seconds(row.idle_seconds);
            row.state == State::Running && row.idle_seconds > 0 && !live.is_busy() && live.last_active() <= since
        };
        if !self.node().facts().pauses {
            return if idle(&*live.row()?) { self.stop_for(live, Reason::Idle).await } else { Ok(()) };
        }
        self.pause_for(live, idle, Some(Reason::Idle)).await
    }

    /// Its time is over, unless that was moved.
    pub(crate) async fn time_is_over(&self, live: &Arc<Live>) -> Result<(), ApiError> {
        let over = |row: &SandboxRow| row.state == State::Running && row.ends_at.is_some_and(|ends| ends <= now_ms());
        let row = live.row()?;
        if !over(&row) {
            return Ok(());
        }
        match row.on_limit {
            OnLimit::Pause if self.node().facts().pauses => self.pause_for(live, over, None).await,
            OnLimit::Pause | OnLimit::Stop => self.stop_for(live, Reason::TimeLimit).await,
            OnLimit::Delete => self.delete_now(live.id, &row).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_rows::row;

    #[test]
    fn a_wake_restarts_the_time_limit_and_a_call_never_shortens_it() {
        let limited = |ends_at| SandboxRow { timeout_seconds: 60, ends_at, ..row() };
        let own = Wake::Asked { seconds: None };
        assert_eq!(own.ends_at(&limited(Some(500_000)), 1_000), Some(61_000));
        assert_eq!(Wake::Asked { seconds: Some(100) }.ends_at(&limited(None), 1_000), Some(101_000));
        assert_eq!(Wake::Call.ends_at(&limited(Some(500_000)), 1_000), Some(500_000));
        assert_eq!(Wake::Call.ends_at(&limited(Some(500)), 1_000), Some(61_000));
        for wake in [own, Wake::Call] {
            assert_eq!(wake.ends_at(&row(), 1_000), None);
        }
        assert_eq!(Wake::Asked { seconds: Some(100) }.ends_at(&row(), 1_000), Some(101_000));
    }
}
