//! A repeated request does its work once.
//!
//! A key is remembered for a day, in the scope of its caller, over all routes. While the first request runs, others with
//! its key attach to it and get its outcome. Only successes are remembered: a refusal did nothing, so it may be tried
//! again under the same key.
//!
//! The table of requests under way is in memory, since they end with the process: after a crash a resend finds the
//! effect under its record (written in the effect's own transaction), or asks the agent, which holds the same key.
//!
//! An answer that the store does not take stays in the table and is offered again; meanwhile requests with fresh keys
//! are refused before they do anything, until the store writes again (docs/decisions/0003).

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use aws_lc_rs::hmac;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use runtime_model::SandboxId;
use runtime_store::{IdempotencyRow, Replay, StoreError};
use serde::Serialize;
use tokio::sync::watch;

use crate::AppState;
use crate::call::Call;
use crate::clock::now_ms;
use crate::error::{ApiError, Kind};
use crate::http::late::{self, Outcome, Reply};

/// How long a key is remembered.
const REMEMBERED_MS: i64 = 24 * 60 * 60 * 1000;
const KEYS_AT_ONCE: u32 = 10_000;
/// The longest body that is remembered whole, if its maker can say it in short.
pub(crate) const REMEMBERED_BODY: usize = 256 * 1024;
/// Between two tries to have an answer remembered.
const OFFER_AGAIN: Duration = Duration::from_secs(1);

/// A JSON answer (200) and how it is remembered under the request's key.
#[derive(Debug, Clone)]
pub struct Answer {
    pub body: Bytes,
    pub keep: Keep,
    /// What is remembered in its place, where the whole is too long to be kept for a day.
    pub brief: Option<Bytes>,
    /// The work had been done for an earlier request with this key, of which only the agent still knew.
    pub replayed: bool,
}

/// How a success is remembered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// On the disk before the answer leaves.
    Now,
    /// With the next batch: for work whose other side (the agent) holds the result until then.
    Later,
    /// The work's own transaction held the record.
    Done,
    /// On the disk before the answer leaves; repeats are answered with the sandbox's record as it then is.
    Sandbox(SandboxId),
}

impl Answer {
    /// Remembered on the disk before it leaves.
    pub fn json(value: &impl Serialize) -> Result<Self, ApiError> {
        let body = serde_json::to_vec(value).map_err(|error| ApiError::internal("writing the answer", error))?;
        Ok(Self::ready(body.into(), Keep::Now))
    }

    /// A body that is written already.
    #[must_use]
    pub fn ready(body: Bytes, keep: Keep) -> Self {
        Self { body, keep, brief: None, replayed: false }
    }

    /// Remembers the brief body where this one is too long.
    pub fn or_brief<T: Serialize>(mut self, brief: impl FnOnce() -> T) -> Result<Self, ApiError> {
        if self.body.len() > REMEMBERED_BODY {
            self.brief = Some(Self::json(&brief())?.body);
        }
        Ok(self)
    }

    /// Says whether this repeats what an earlier request has done.
    #[must_use]
    pub fn replays(mut self, replayed: bool) -> Self {
        self.replayed = replayed;
        self
    }

    #[must_use]
    pub fn keep(mut self, keep: Keep) -> Self {
        self.keep = keep;
        self
    }
}

/// What a request finds under its key.
pub enum Claim {
    /// It is the first: do the work, then [`Ticket::finish`]. If it is dropped unfinished, the next in line does it.
    Fresh(Ticket),
    /// The work was done: this is the body of its answer, already marked as replayed.
    Done(Bytes),
}

/// The right to do the work of a request; carries no key if the request has none.
pub struct Ticket(Option<Held>);

struct Held {
    app: AppState,
    name: String,
    row: IdempotencyRow,
    flight: watch::Sender<Option<Result<Bytes, ApiError>>>,
    /// The entry stays in the table until the record is on the disk.
    lingers: bool,
}

/// Requests under way, by scope and key.
#[derive(Default)]
pub(crate) struct Flights {
    table: Mutex<HashMap<String, Flight>>,
    /// The store did not take an answer, and has written nothing since.
    forgetful: AtomicBool,
}

struct Flight {
    fingerprint: [u8; 32],
    outcome: watch::Receiver<Option<Result<Bytes, ApiError>>>,
}

enum Entered {
    First(watch::Sender<Option<Result<Bytes, ApiError>>>),
    Attached(watch::Receiver<Option<Result<Bytes, ApiError>>>),
    Mismatch,
}

impl Flights {
    fn table(&self) -> std::sync::MutexGuard<'_, HashMap<String, Flight>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, name: &str, fingerprint: &[u8; 32]) -> Entered {
        let mut table = self.table();
        match table.get(name) {
            Some(flight) if flight.fingerprint != *fingerprint => Entered::Mismatch,
            Some(flight) => Entered::Attached(flight.outcome.clone()),
            None => {
                let (sender, outcome) = watch::channel(None);
                table.insert(name.to_owned(), Flight { fingerprint: *fingerprint, outcome });
                Entered::First(sender)
            }
        }
    }

    fn leave(&self, name: &str) {
        self.table().remove(name);
    }
}

fn reused() -> ApiError {
    ApiError::new(Kind::IdempotencyKeyReused, "This idempotency key was used for a different request.")
        .hint("Use a new key for a new request; repeat a request with the same body.")
        .retryable(false)
}

/// Neither part can hold a line end.
fn flight_name(scope: &str, key: &str) -> String {
    format!("{scope}\n{key}")
}

/// Puts the mark into an object; anything else stays as it is.
fn mark_replayed(body: &[u8]) -> Bytes {
    match body {
        [b'{', b'}'] => Bytes::from_static(br#"{"replayed":true}"#),
        [b'{', rest @ ..] => [br#"{"replayed":true,"#, rest].concat().into(),
        other => Bytes::copy_from_slice(other),
    }
}

impl AppState {
    /// The record a request would be remembered by, for work that writes it in its own transaction. `None` without a key.
    #[must_use]
    pub fn key_record(&self, call: &Call, replay: Replay) -> Option<IdempotencyRow> {
        let key = call.idempotency_key.clone()?;
        Some(IdempotencyRow {
            scope: call.caller.scope(),
            key,
            fingerprint: self.fingerprint(call),
            status: 200,
            replay,
            expires_at: now_ms() + REMEMBERED_MS,
        })
    }

    /// Keyed, so that what is stored tells nothing about the values in a body.
    fn fingerprint(&self, call: &Call) -> [u8; 32] {
        let mut mac = hmac::Context::with_key(self.hash_key());
        for part in [call.method.as_str().as_bytes(), call.path.as_bytes(), call.query.as_bytes(), &call.body] {
            mac.update(&(part.len() as u64).to_be_bytes());
            mac.update(part);
        }
        let mut fingerprint = [0; 32];
        fingerprint.copy_from_slice(mac.sign().as_ref());
        fingerprint
    }

    /// Claims a request's key; waits if another request with it is at work. For streamed answers; JSON answers use
    /// [`answer_once`](Self::answer_once).
    pub async fn claim(&self, call: &Call) -> Result<Claim, ApiError> {
        let Some(row) = self.key_record(call, Replay::Body(Vec::new())) else {
            return Ok(Claim::Fresh(Ticket(None)));
        };
        let name = flight_name(&row.scope, &row.key);
        let flight = loop {
            match self.flights().enter(&name, &row.fingerprint) {
                Entered::First(flight) => break flight,
                Entered::Mismatch => return Err(reused()),
                Entered::Attached(mut outcome) => {
                    // An error: the first gave up without an outcome, and this one is in line.
                    if let Ok(outcome) = outcome.wait_for(Option::is_some).await {
                        match outcome.as_ref() {
                            Some(Ok(body)) => return Ok(Claim::Done(mark_replayed(body))),
                            Some(Err(error)) => return Err(error.clone()),
                            None => {}
                        }
                    }
                }
            }
        };
        let ticket = Ticket(Some(Held { app: self.clone(), name, row, flight, lingers: false }));
        let Some(held) = &ticket.0 else { return Ok(Claim::Fresh(ticket)) };
        self.can_remember(&held.row).await?;
        if !self.seen_keys().note(&held.name, now_ms()) {
            return Ok(Claim::Fresh(ticket));
        }
        let found = self.store().remembered(&held.row.scope, &held.row.key, now_ms()).await;
        match found.map_err(|error| ApiError::internal("looking up an idempotency key", error))? {
            None => Ok(Claim::Fresh(ticket)),
            Some(row) if row.fingerprint != held.row.fingerprint => Err(reused()),
            Some(row) => Ok(Claim::Done(self.replay(&row).await?)),
        }
    }

    /// Refuses work that would not be remembered: after a failure the store must have written again.
    async fn can_remember(&self, like: &IdempotencyRow) -> Result<(), ApiError> {
        if !self.flights().forgetful.load(Ordering::Acquire) {
            return Ok(());
        }
        // Past its time from the start: found by nobody, and swept.
        let key = format!("probe:{}", uuid::Uuid::new_v4());
        let probe = IdempotencyRow { key, replay: Replay::Body(Vec::new()), expires_at: 0, ..like.clone() };
        match self.store().remember(probe).await {
            Ok(()) => {
                self.remembers_again();
                Ok(())
            }
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "the store still takes nothing");
                Err(ApiError::new(Kind::ApiUnavailable, "The server cannot write to its database; nothing was done.")
                    .hint("Send the request again under the same key.")
                    .retry_after(OFFER_AGAIN))
            }
        }
    }

    fn remembers_again(&self) {
        if self.flights().forgetful.swap(false, Ordering::AcqRel) {
            tracing::info!("answers are remembered again");
        }
    }

    /// The work of an answer that was not remembered is done and cannot be taken back: the answer stands, and is offered
    /// to the store until it takes it or the server stops.
    fn offer_again(&self, name: String, row: IdempotencyRow, error: &StoreError) {
        tracing::error!(error = error as &dyn std::error::Error, "an answer could not be remembered");
        self.flights().forgetful.store(true, Ordering::Release);
        let app = self.clone();
        self.tasks().spawn(async move {
            while !app.tasks().is_closed() {
                tokio::time::sleep(OFFER_AGAIN).await;
                if app.store().remember(row.clone()).await.is_ok() {
                    app.remembers_again();
                    break;
                }
            }
            app.flights().leave(&name);
        });
    }

    /// Notes the keys of former processes; until then each key is looked up.
    pub(crate) async fn learn_keys(&self) -> Result<(), ApiError> {
        let mut after = (String::new(), String::new());
        loop {
            let page = self.store().remembered_keys(after, KEYS_AT_ONCE).await;
            let page = page.map_err(|error| ApiError::internal("reading remembered keys", error))?;
            for (scope, key) in &page {
                self.seen_keys().note(&flight_name(scope, key), now_ms());
            }
            match page.into_iter().next_back() {
                Some(last) => after = last,
                None => break,
            }
        }
        self.seen_keys().complete();
        Ok(())
    }

    pub(crate) async fn replay(&self, row: &IdempotencyRow) -> Result<Bytes, ApiError> {
        match &row.replay {
            Replay::Body(body) => Ok(mark_replayed(body)),
            Replay::Sandbox(id) => Ok(mark_replayed(&self.last_record(*id).await?)),
            Replay::Snapshot(id) => Ok(mark_replayed(&self.last_snapshot(*id).await?)),
            Replay::Fork(ids) => Ok(mark_replayed(&self.forked(ids).await?)),
        }
    }

    /// Runs the work of a JSON request in a task of its own (a client that hangs up stops nothing), once per key, and
    /// answers late if it must.
    pub async fn answer_once<F>(&self, call: Call, work: impl FnOnce(Self, Call) -> F + Send + 'static) -> Response
    where
        F: Future<Output = Result<Answer, ApiError>> + Send + 'static,
    {
        if let Err(error) = self.not_draining() {
            return error.into_response();
        }
        let (app, id) = (self.clone(), call.request_id.clone());
        let task = self.tasks().spawn(async move { app.once(call, work).await });
        late::answer(task, self.config().late_after, id).await
    }

    async fn once<F>(self, call: Call, work: impl FnOnce(Self, Call) -> F) -> Outcome
    where
        F: Future<Output = Result<Answer, ApiError>>,
    {
        let ticket = match self.claim(&call).await? {
            Claim::Done(body) => return Ok(Reply { body, replayed: true }),
            Claim::Fresh(ticket) => ticket,
        };
        let outcome = work(self, call).await;
        ticket.finish(&outcome).await?;
        outcome.map(|answer| match answer.replayed {
            true => Reply { body: mark_replayed(&answer.body), replayed: true },
            false => Reply { body: answer.body, replayed: false },
        })
    }
}

impl Ticket {
    /// The work is done: attached requests get the outcome, and a success is remembered as it says.
    pub async fn finish(self, outcome: &Result<Answer, ApiError>) -> Result<(), ApiError> {
        let Some(mut held) = self.0 else { return Ok(()) };
        let answer = match outcome {
            Ok(answer) => answer,
            Err(error) => {
                held.flight.send_replace(Some(Err(error.clone())));
                return Ok(());
            }
        };
        held.row.replay = match answer.keep {
            Keep::Sandbox(id) => Replay::Sandbox(id),
            Keep::Now | Keep::Later | Keep::Done => {
                Replay::Body(answer.brief.as_ref().unwrap_or(&answer.body).to_vec())
            }
        };
        match answer.keep {
            Keep::Done => {}
            Keep::Now | Keep::Sandbox(_) => {
                if let Err(error) = held.app.store().remember(held.row.clone()).await {
                    held.lingers = true;
                    held.app.offer_again(held.name.clone(), held.row.clone(), &error);
                }
            }
            Keep::Later => {
                let durable = held.app.store().remember_later(held.row.clone()).await;
                held.lingers = true;
                let (app, name, row) = (held.app.clone(), held.name.clone(), held.row.clone());
                held.app.tasks().spawn(async move {
                    match durable.await.unwrap_or(Err(StoreError::Closed)) {
                        Ok(()) => app.flights().leave(&name),
                        Err(error) => app.offer_again(name, row, &error),
                    }
                });
            }
        }
        held.flight.send_replace(Some(Ok(answer.body.clone())));
        Ok(())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if !self.lingers {
            self.app.flights().leave(&self.name);
        }
    }
}
