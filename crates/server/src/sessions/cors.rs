//! What browsers must be told before they let a page read an answer (the Fetch standard, "CORS protocol"): only for the
//! pages that a session names, and nothing for anyone who asks with a key.

use axum::body::Body;
use axum::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, ORIGIN, VARY,
};
use axum::http::{HeaderMap, HeaderValue, Method, Response};
use runtime_model::SandboxId;

use crate::AppState;
use crate::clock::now_ms;
use crate::error::{ApiError, Kind};

const METHODS: &str = "GET, POST, PUT, PATCH, DELETE";
/// What our answers say in headers.
const EXPOSED: &str = "X-Request-Id, X-Content-Length, X-Content-Sha256, Retry-After, Idempotency-Replayed, \
    Runtime-Late-Answer, Content-Length, Allow";
/// Seconds for which a browser need not ask again.
const MAX_AGE: &str = "600";

/// Lets a page of this origin read the answer.
pub(crate) fn allow(headers: &mut HeaderMap, page: HeaderValue) {
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, page);
    headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(EXPOSED));
    headers.append(VARY, HeaderValue::from_static("Origin"));
}

/// The answer to a browser that asks what a page may do; it carries no token yet. `None` if that is not what is asked.
pub(crate) async fn preflight(
    app: &AppState,
    method: &Method,
    path: &str,
    headers: &HeaderMap,
) -> Option<Result<Response<Body>, ApiError>> {
    let (origin, _) = (headers.get(ORIGIN)?, headers.get(ACCESS_CONTROL_REQUEST_METHOD)?);
    if method != Method::OPTIONS {
        return None;
    }
    let rest = path.strip_prefix("/v1/sandboxes/")?;
    let id: SandboxId = rest[..rest.find(['/', ':']).unwrap_or(rest.len())].parse().ok()?;
    let now = now_ms();
    let sessions = match app.store().sessions(id, now).await {
        Ok(sessions) => sessions,
        Err(error) => return Some(Err(ApiError::internal("looking for sessions of a sandbox", error))),
    };
    let listed = |row: &runtime_store::SessionRow| {
        super::ended(row, now).is_none() && row.origins.iter().any(|one| one.as_bytes() == origin.as_bytes())
    };
    if !sessions.iter().any(listed) {
        // Of a sandbox that does not exist the same is said.
        return Some(Err(ApiError::new(Kind::Forbidden, "No session of this sandbox serves pages of this origin.")
            .hint("Name the page's origin in `origins` when the session is made.")));
    }
    // 200 with a length of nothing: some clients wait for the body of a 204.
    let mut response = Response::new(Body::empty());
    let said = response.headers_mut();
    allow(said, origin.clone());
    said.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static(METHODS));
    if let Some(wanted) = headers.get(ACCESS_CONTROL_REQUEST_HEADERS) {
        said.insert(ACCESS_CONTROL_ALLOW_HEADERS, wanted.clone());
    }
    said.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static(MAX_AGE));
    Some(Ok(response))
}
