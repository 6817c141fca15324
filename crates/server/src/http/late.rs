//! An answer that takes longer than clients wait for headers: `200` at once, blanks while the work goes on, and then the
//! answer, or the error as the only top-level key.

use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;
use tokio::task::JoinHandle;

use crate::call::RequestId;
use crate::error::ApiError;

const LATE: HeaderName = HeaderName::from_static("runtime-late-answer");
const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");
const HEARTBEAT: Duration = Duration::from_secs(10);

/// A JSON body that is ready to go.
#[derive(Debug, Clone)]
pub(crate) struct Reply {
    pub(crate) body: Bytes,
    pub(crate) replayed: bool,
}

pub(crate) type Outcome = Result<Reply, ApiError>;

/// The task's outcome, in time or late.
pub(crate) async fn answer(mut work: JoinHandle<Outcome>, late_after: Duration, id: RequestId) -> Response {
    match tokio::time::timeout(late_after, &mut work).await {
        Ok(joined) => in_time(joined.unwrap_or_else(lost)),
        Err(_) => late(work, id),
    }
}

fn lost(error: tokio::task::JoinError) -> Outcome {
    Err(ApiError::internal("running a request", error))
}

/// Says that an answer repeats what an earlier request has done.
pub(crate) fn mark_replayed(headers: &mut HeaderMap) {
    headers.insert(REPLAYED, HeaderValue::from_static("true"));
}

fn in_time(outcome: Outcome) -> Response {
    match outcome {
        Ok(reply) => {
            let mut response = Response::new(Body::from(reply.body));
            response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
            if reply.replayed {
                mark_replayed(response.headers_mut());
            }
            response
        }
        Err(error) => error.into_response(),
    }
}

fn late(work: JoinHandle<Outcome>, id: RequestId) -> Response {
    let body = stream::unfold(Some(work), move |work| {
        let id = id.clone();
        async move {
            let mut work = work?;
            let piece = match tokio::time::timeout(HEARTBEAT, &mut work).await {
                Err(_) => return Some((Ok::<_, std::convert::Infallible>(Bytes::from_static(b"\n")), Some(work))),
                Ok(joined) => match joined.unwrap_or_else(lost) {
                    Ok(reply) => reply.body,
                    Err(error) => {
                        if let Some(cause) = error.cause() {
                            tracing::error!(request = %id.0, code = error.kind().code(), cause, "a late answer failed");
                        }
                        Bytes::from(error.envelope(&id.0).to_string())
                    }
                },
            };
            Some((Ok(piece), None))
        }
    });
    let mut response = Response::new(Body::from_stream(body));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response.headers_mut().insert(LATE, HeaderValue::from_static("true"));
    response
}
