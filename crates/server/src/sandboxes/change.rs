//! Changing a row: a pure step on the newest one, written only if it still is the newest.

use std::sync::Arc;

use runtime_model::{Refusal, State, transition};
use runtime_store::{IdempotencyRow, Outcome, SandboxRow};
use serde_json::json;

use super::live::{Live, not_found};
use crate::AppState;
use crate::clock::now_ms;
use crate::error::{ApiError, Kind};

/// What a step decides.
pub(crate) enum Step {
    Save(Box<SandboxRow>),
    /// Nothing to change.
    Stay,
}

impl Step {
    pub(crate) fn save(row: SandboxRow) -> Self {
        Self::Save(Box::new(row))
    }
}

/// The row moved under every one of so many attempts: something is badly wrong.
const ATTEMPTS: usize = 64;

impl AppState {
    /// Applies a step; repeats it on a newer row if one came in between. The row that then is.
    pub(crate) async fn change(
        &self,
        live: &Live,
        step: impl Fn(&SandboxRow) -> Result<Step, ApiError>,
    ) -> Result<Arc<SandboxRow>, ApiError> {
        self.change_with_key(live, step, |_| Ok(None)).await
    }

    /// The same, with an idempotency record in the same transaction, made from the new row.
    pub(crate) async fn change_with_key(
        &self,
        live: &Live,
        step: impl Fn(&SandboxRow) -> Result<Step, ApiError>,
        key: impl Fn(&SandboxRow) -> Result<Option<IdempotencyRow>, ApiError>,
    ) -> Result<Arc<SandboxRow>, ApiError> {
        for _ in 0..ATTEMPTS {
            let current = live.row()?;
            let mut row = match step(&current)? {
                Step::Stay => return Ok(current),
                Step::Save(row) => *row,
            };
            row.generation = current.generation + 1;
            row.last_active_at = row.last_active_at.max(Some(live.last_active()));
            let key = key(&row)?;
            let saved = self.store().save_sandbox(row.clone(), key).await;
            match saved.map_err(|error| ApiError::internal(format!("saving sandbox {}", live.id), error))? {
                Outcome::Done => {
                    live.publish(row);
                    return live.row();
                }
                Outcome::NameHeld(_) => return Err(name_taken(row.name.as_deref(), None)),
                Outcome::Moved | Outcome::KeyUsed(_) => {
                    let newer = self.store().sandbox(live.id).await;
                    match newer.map_err(|error| ApiError::internal(format!("reading sandbox {}", live.id), error))? {
                        Some(row) => live.publish(row),
                        None => {
                            live.publish_gone();
                            return Err(not_found());
                        }
                    }
                }
            }
        }
        Err(ApiError::new(Kind::Busy, "The sandbox is being changed by others; nothing was done."))
    }
}

/// `holder`: the other sandbox, if the caller may know it.
pub(crate) fn name_taken(name: Option<&str>, holder: Option<&SandboxRow>) -> ApiError {
    let mut details = json!({ "field": "name" });
    if let Some(holder) = holder {
        details["sandboxId"] = json!(holder.id.to_string());
        details["state"] = json!(holder.state.as_str());
    }
    ApiError::new(Kind::NameTaken, format!("The name {} is in use.", name.unwrap_or_default()))
        .details(details)
        .hint("Choose another name, delete its holder, or ask with getOrCreate.")
}

/// Applies an event to a copy of the row; `Stay` if the table says so, the refusal in the contract's words otherwise.
pub(crate) fn apply(row: &SandboxRow, event: runtime_model::Event) -> Result<Option<SandboxRow>, ApiError> {
    match transition(row.state, event) {
        runtime_model::Step::Stay => Ok(None),
        runtime_model::Step::Refuse(refusal) => Err(refused(refusal)),
        runtime_model::Step::Go(state) => {
            let mut next = row.clone();
            enter(&mut next, state);
            Ok(Some(next))
        }
    }
}

/// What being in a state means for the times of a row.
fn enter(row: &mut SandboxRow, state: State) {
    let now = now_ms();
    let before = std::mem::replace(&mut row.state, state);
    match state {
        State::Running => {
            row.operation = None;
            row.reason = None;
            row.ready_at = row.ready_at.or(Some(now));
            row.ended_at = None;
            row.paused_at = None;
            row.disk_kept = false;
            // Whoever woke it has said until when; a pause that did not come about changes nothing.
            if !matches!(before, State::Resuming | State::Pausing) {
                row.ends_at = (row.timeout_seconds > 0).then(|| now + crate::clock::seconds(row.timeout_seconds));
            }
            row.last_active_at = Some(now);
        }
        State::Paused => {
            row.operation = None;
            // A wake that did not come about leaves it paused since then.
            row.paused_at = row.paused_at.or(Some(now));
        }
        State::Stopped => {
            row.operation = None;
            row.ends_at = None;
            row.paused_at = None;
            row.ended_at = Some(now);
        }
        State::Starting => {
            row.reason = None;
            row.ended_at = None;
            row.ends_at = None;
            row.memory_restored = None;
        }
        State::Stopping => row.ends_at = None,
        // The limit that it was paused with counts when it is woken.
        State::Pausing | State::Resuming => {}
    }
}

fn refused(refusal: Refusal) -> ApiError {
    let kind = match refusal {
        Refusal::NotRunning => Kind::NotRunning,
        Refusal::NotPaused => Kind::NotPaused,
        Refusal::Stopped => Kind::SandboxStopped,
        Refusal::NotReady => Kind::SandboxNotReady,
        Refusal::Stale => Kind::Internal,
    };
    ApiError::new(kind, format!("{refusal}."))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use runtime_model::Event;
    use runtime_store::Operation;

    use super::super::record::record;
    use super::*;
    use crate::test_rows::row;

    proptest! {
        /// Whatever happens in whatever order: a record is one that clients can read.
        #[test]
        fn every_life_gives_records_that_agree_with_themselves(
            events in proptest::collection::vec(proptest::sample::select(&Event::ALL[..]), 0..40),
            timeout in prop_oneof![Just(0_u32), 60_u32..86_400],
            retention in proptest::option::of(1_u32..365),
        ) {
            let mut current = SandboxRow { timeout_seconds: timeout, retention_days: retention, ..row() };
            for event in events {
                let before = current.state;
                match apply(&current, event) {
                    Ok(Some(next)) => current = next,
                    Ok(None) => {}
                    Err(_) => prop_assert_eq!(current.state, before),
                }
                let shown = record(&current);
                let running = current.state == State::Running;
                prop_assert_eq!(shown.ends_at.is_some(), running && timeout > 0);
                prop_assert_eq!(shown.ended_at.is_some(), current.state == State::Stopped);
                prop_assert!(!running || (shown.ready_at.is_some() && shown.stop_reason.is_none()));
                prop_assert!(shown.expires_at.is_some());
                prop_assert!(!running || current.operation.is_none());
                prop_assert_eq!(&shown.on_lease_end, &shown.on_timeout);
                prop_assert!(current.holds_name() || current.state == State::Stopped);
                let json = serde_json::to_value(&shown).unwrap();
                prop_assert!(json.as_object().unwrap().contains_key("endsAt"));
                prop_assert!(!json.to_string().contains("hunter2"));
            }
        }
    }

    #[test]
    fn an_operation_ends_with_its_state() {
        let starting = SandboxRow { operation: Some(Operation::StartNew), ..row() };
        let running = apply(&starting, Event::Booted).unwrap().unwrap();
        assert_eq!((running.state, running.operation), (State::Running, None));
        assert_eq!(apply(&running, Event::Wake).unwrap_err().kind(), Kind::NotPaused);
    }
}
