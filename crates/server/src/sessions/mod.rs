//! Sessions: a browser's way into one sandbox.
//!
//! A session's token stands for the key that made it, narrowed by [`scope`] to one sandbox and by [`cors`] to the pages
//! that the maker named. What it opened ends with it ([`cut`]).

mod cors;
mod cut;
mod manage;
mod scope;

use std::sync::Arc;

use axum::http::header::ORIGIN;
use axum::http::{HeaderMap, HeaderValue, Method};
use runtime_model::{SandboxId, SessionId};
use runtime_store::{FoundSession, SessionRow};
use utoipa_axum::router::OpenApiRouter;

pub(crate) use cors::{allow, preflight};
pub(crate) use cut::{Cuts, until_cut};

use crate::auth::hash;
use crate::clock::now_ms;
use crate::error::{ApiError, Kind};
use crate::{AppState, Caller};

/// Before a session's id and secret, as `rtcloud_` is before a key's.
pub(crate) const PREFIX: &str = "rtsess_";

/// What a caller with a session's token may reach.
#[derive(Debug)]
pub struct Access {
    pub session: SessionId,
    pub sandbox: SandboxId,
    /// Milliseconds since the Unix epoch.
    pub expires_at: i64,
}

pub(crate) fn router() -> OpenApiRouter<AppState> {
    manage::router()
}

fn ended(row: &SessionRow, now: i64) -> Option<&'static str> {
    if row.revoked_at.is_some() {
        return Some("revoked");
    }
    (row.expires_at <= now).then_some("expired")
}

/// The page a request comes from, if its session serves it, and the caller or the refusal. A page that is served may
/// read the refusal too.
pub(crate) async fn admit(
    app: &AppState,
    token: &str,
    method: &Method,
    path: &str,
    headers: &HeaderMap,
) -> (Option<HeaderValue>, Result<Caller, ApiError>) {
    let found = match app.store().session_by_hash(hash(token)).await {
        Ok(found) => found,
        Err(error) => return (None, Err(ApiError::internal("looking up a session", error))),
    };
    let over = |message: &str| {
        ApiError::new(Kind::Unauthorized, message).hint("Have the server that made this session make another.")
    };
    let Some(FoundSession { session: row, principal, orphan }) = found else {
        return (None, Err(over("This session is not known here.")));
    };
    let from = headers.get(ORIGIN);
    let page = from.filter(|from| row.origins.iter().any(|origin| origin.as_bytes() == from.as_bytes())).cloned();
    let caller = if ended(&row, now_ms()).is_some() || orphan {
        Err(over("This session has ended."))
    } else if from.is_some() && page.is_none() {
        Err(ApiError::new(Kind::Forbidden, "This session does not serve pages of this origin.")
            .hint("Name the page's origin in `origins` when the session is made."))
    } else {
        scope::check(row.sandbox, method, path).map(|()| Caller {
            credential: row.credential,
            principal,
            org: app.org(),
            read_only: false,
            account_wide: false,
            session: Some(Arc::new(Access { session: row.id, sandbox: row.sandbox, expires_at: row.expires_at })),
        })
    };
    (page, caller)
}
