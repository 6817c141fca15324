//! What every request passes: its id, its key, its guards, the router; and on the way back the envelope, the id again
//! and the rest of its body.

use std::net::IpAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::header::{ALLOW, AUTHORIZATION, CONNECTION, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, Request, Response, StatusCode, Uri};
use axum::response::IntoResponse;
use futures_util::FutureExt;
use hyper::body::Incoming;
use tower::ServiceExt;

use super::body::{Returning, Unread};
use super::path;
use crate::call::{PublicPath, RequestId};
use crate::error::{ApiError, Kind};
use crate::guards::{self, AddressPlace, Gate, Turn};
use crate::{AppState, auth, routes, sessions};

const REQUEST_ID: &str = "x-request-id";

/// On an answer that is no refusal of ours whatever its status: it speaks another protocol.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Verbatim;

pub(crate) struct Pipeline {
    app: AppState,
    router: Router,
    gate: Option<Gate>,
}

impl Pipeline {
    pub(crate) fn new(app: AppState) -> Self {
        let router = routes::router(app.clone());
        let gate = app.config().guards.clone().map(Gate::new);
        Self { app, router, gate }
    }

    pub(super) fn head_timeout(&self) -> Duration {
        self.app.config().head_timeout
    }

    /// Waits for a connection's turn among those of its address.
    pub(super) async fn address_place(&self, address: IpAddr) -> Option<Arc<AddressPlace>> {
        match &self.gate {
            None => None,
            Some(gate) => Some(gate.address_place(address).await),
        }
    }

    pub(super) async fn respond(
        &self,
        request: Request<Incoming>,
        place: Option<&Arc<AddressPlace>>,
    ) -> Response<Body> {
        let id = RequestId::fresh();
        let unread = Unread::default();
        let (parts, body) = request.into_parts();
        let method = parts.method.clone();
        let public = PublicPath(Arc::from(parts.uri.path()));
        let request = Request::from_parts(parts, Body::new(Returning::new(body, unread.clone())));
        // A panic is a fault of ours like another: logged, answered, and the server goes on.
        let mut page = None;
        let routed =
            AssertUnwindSafe(self.route(request, id.clone(), public.clone(), place, &mut page)).catch_unwind().await;
        let mut response = routed.unwrap_or_else(|_| {
            ApiError::internal("answering a request", std::io::Error::other("a handler panicked")).into_response()
        });
        let allow = response.headers_mut().remove(ALLOW);
        let whole = unread.drain().await;
        if let Some(error) = refusal(&mut response) {
            log(&error, &id, method.as_str(), &public.0);
            response = render(&error, &id);
        }
        if let Some(page) = page {
            sessions::allow(response.headers_mut(), page);
        }
        if let Some(allow) = allow {
            response.headers_mut().insert(ALLOW, allow);
        }
        if !whole {
            // What the client still sends cannot be told from a next request.
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        if let Ok(value) = HeaderValue::from_str(&id.0) {
            response.headers_mut().insert(REQUEST_ID, value);
        }
        response
    }

    async fn route(
        &self,
        mut request: Request<Body>,
        id: RequestId,
        public: PublicPath,
        place: Option<&Arc<AddressPlace>>,
        page: &mut Option<HeaderValue>,
    ) -> Response<Body> {
        let mut turn: Option<Turn> = None;
        let mut access = None;
        if routes::needs_key(&public.0) {
            let (method, headers) = (request.method(), request.headers());
            if let Some(answer) = sessions::preflight(&self.app, method, &public.0, headers).await {
                return answer.unwrap_or_else(IntoResponse::into_response);
            }
            let said = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
            let caller = match auth::session_token(said) {
                None => auth::authenticate(&self.app, said).await,
                Some(token) => {
                    let admitted = sessions::admit(&self.app, token, method, &public.0, headers).await;
                    *page = admitted.0;
                    admitted.1
                }
            };
            let caller = match caller {
                Ok(caller) => caller,
                Err(error) => return error.into_response(),
            };
            access.clone_from(&caller.session);
            if let Some(place) = place {
                place.has_key();
            }
            if let Some(gate) = &self.gate {
                match gate.turn(&caller, self.app.sandboxes().count()).await {
                    Ok(given) => turn = Some(given),
                    Err(error) => return error.into_response(),
                }
            }
            request.extensions_mut().insert(caller);
        }
        if let Err(error) = rewrite(&mut request) {
            return error.into_response();
        }
        request.extensions_mut().insert(id);
        request.extensions_mut().insert(public);
        let response = match self.router.clone().oneshot(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        };
        let response = match access {
            None => response,
            Some(access) => sessions::until_cut(&self.app, &access, response).await,
        };
        match turn {
            None => response,
            // A streamed answer is in flight until its body ends.
            Some(turn) => response.map(|body| Body::new(guards::Holding::new(body, turn))),
        }
    }
}

fn rewrite(request: &mut Request<Body>) -> Result<(), ApiError> {
    let route = path::to_route(request.uri().path());
    if route == request.uri().path() {
        return Ok(());
    }
    let text = match request.uri().query() {
        Some(query) => format!("{route}?{query}"),
        None => route.into_owned(),
    };
    let uri: Uri = text.parse().map_err(|_| ApiError::wrong("path", "is not valid"))?;
    *request.uri_mut() = uri;
    Ok(())
}

/// A refusal by a handler, or one by the framework, put in our words.
pub(crate) fn refusal(response: &mut Response<Body>) -> Option<ApiError> {
    if let Some(error) = response.extensions_mut().remove::<ApiError>() {
        return Some(error);
    }
    if response.extensions().get::<Verbatim>().is_some() {
        return None;
    }
    match response.status() {
        StatusCode::NOT_FOUND => Some(ApiError::new(Kind::RouteNotFound, "There is no such path.")),
        StatusCode::METHOD_NOT_ALLOWED => {
            Some(ApiError::new(Kind::MethodNotAllowed, "This path does not take this method."))
        }
        status if status.is_client_error() => Some(ApiError::wrong("path", "is not valid")),
        status if status.is_server_error() => Some(ApiError::internal(
            "answering a request",
            std::io::Error::other(format!("the framework said {status}")),
        )),
        _ => None,
    }
}

pub(crate) fn log(error: &ApiError, id: &RequestId, method: &str, path: &str) {
    let Some(cause) = error.cause() else { return };
    // A path is short enough for a line, however long it came.
    let path: String = path.chars().take(256).collect();
    if error.status() == 500 {
        tracing::error!(request = %id.0, method, path, code = error.kind().code(), cause, "a request failed");
    } else {
        tracing::warn!(request = %id.0, method, path, code = error.kind().code(), cause, "a request failed");
    }
}

pub(crate) fn render(error: &ApiError, id: &RequestId) -> Response<Body> {
    let mut response = Response::new(Body::from(error.envelope(&id.0).to_string()));
    *response.status_mut() = StatusCode::from_u16(error.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if error.kind() == Kind::Unauthorized {
        response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"runtime\""));
    }
    if let Some(wait) = error.wait() {
        // Whole seconds in the header, never 0; `retryAfterMs` in the body is exact.
        let seconds = wait.as_millis().div_ceil(1000).max(1);
        if let Ok(value) = HeaderValue::from_str(&seconds.to_string()) {
            response.headers_mut().insert(RETRY_AFTER, value);
        }
    }
    response
}
