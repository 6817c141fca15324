//! `POST /mcp`: the API as tools for models, by the Model Context Protocol over Streamable HTTP.
//!
//! [`catalog`] says what there is, [`handler`] speaks the protocol, [`calls`] turns a call of a tool into calls of the
//! API ([`api`]). Here is the HTTP side: the body is bounded and read as JSON before the protocol's crate sees it.
//!
//! The server keeps no session: a request says all there is to know, so that a restart loses no client and no client
//! costs memory. To clients of the versions that have sessions an id is given, which only tells the requests of one
//! client from those of another when one of them is cancelled ([`running`]). Why so: docs/decisions/0016.

mod api;
mod args;
mod calls;
mod catalog;
mod command;
mod cut;
mod files;
mod handler;
mod running;

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State as Extract};
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderValue, Response, StatusCode};
use axum::response::IntoResponse;
use axum::routing::{MethodRouter, post};
use axum::{Json, Router};
use bytes::Bytes;
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use serde_json::{Value, json};

use crate::call::{MAX_JSON_WITH_INPUT, collect};
use crate::error::{ApiError, Kind};
use crate::http::pipeline::Verbatim;
use crate::{AppState, Caller};
use handler::Tools;
use running::{Name, Running};

/// Where it is served.
pub(crate) const PATH: &str = "/mcp";
const SESSION: &str = "mcp-session-id";
const BOTH: HeaderValue = HeaderValue::from_static("application/json, text/event-stream");

type Service = StreamableHttpService<Tools, NeverSessionManager>;

#[derive(Clone)]
struct Mcp {
    app: AppState,
    service: Arc<Service>,
    running: Arc<Running>,
}

/// The route, over the routes of the API.
pub(crate) fn route(app: AppState, api: Router) -> MethodRouter {
    let running = Arc::new(Running::default());
    let tools = Tools { app: app.clone(), router: api, running: running.clone() };
    // A key is asked for before anything else, so a page that reaches this server under another name gets nowhere.
    let config = StreamableHttpServerConfig::default()
        .with_legacy_session_mode(false)
        .disable_allowed_hosts()
        .with_max_request_body_bytes(MAX_JSON_WITH_INPUT);
    let service = StreamableHttpService::new(move || Ok(tools.clone()), Arc::default(), config);
    post(answer).with_state(Mcp { app, service: Arc::new(service), running })
}

async fn answer(Extract(mcp): Extract<Mcp>, request: Request) -> Result<Response<Body>, ApiError> {
    let (mut parts, body) = request.into_parts();
    let caller = parts.extensions.get::<Caller>().cloned().ok_or_else(|| {
        ApiError::internal("reading the caller", std::io::Error::other("the layer that sets it did not run"))
    })?;
    let body = collect(&parts.headers, body, &mcp.app, MAX_JSON_WITH_INPUT, Kind::TooLarge).await?;
    let message = match read(&body) {
        Ok(message) => message,
        Err(wrong) => return Ok(wrong.into_response()),
    };
    // Without a session the id alone could be any client's; there, hanging up is what cancels.
    if message["method"] == "notifications/cancelled" && parts.headers.contains_key(SESSION) {
        mcp.running.cancel(&name(&caller, &parts.headers, &message["params"]["requestId"]));
    }
    if takes_anything(&parts.headers) {
        parts.headers.insert(ACCEPT, BOTH);
    }
    if !parts.headers.contains_key(CONTENT_TYPE) {
        parts.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    }
    let response = mcp.service.handle(Request::from_parts(parts, Body::from(body))).await;
    let mut response = response.map(Body::new);
    if message["method"] == "initialize"
        && response.status().is_success()
        && let Ok(id) = HeaderValue::from_str(&uuid::Uuid::new_v4().to_string())
    {
        response.headers_mut().insert(SESSION, id);
    }
    response.extensions_mut().insert(Verbatim);
    Ok(response)
}

/// Who is meant by a request's id: each client counts from nothing, so its key and session are part of the name.
fn name(caller: &Caller, headers: &HeaderMap, id: &Value) -> Name {
    let session = headers.get(SESSION).map(|value| value.as_bytes().iter().take(128).copied().collect());
    Name { credential: caller.credential, session: session.unwrap_or_default(), request: id.to_string() }
}

/// What is no message, with the code the protocol has for it.
#[derive(Debug)]
struct Wrong {
    code: i32,
    text: String,
    id: Value,
}

/// The message, if it is one.
fn read(body: &Bytes) -> Result<Value, Wrong> {
    let wrong = |code, text: &str, id: &Value| Wrong { code, text: text.to_owned(), id: id.clone() };
    let message: Value = serde_json::from_slice(body)
        .map_err(|error| wrong(-32700, &format!("The body is not JSON: {error}."), &Value::Null))?;
    if message.is_array() {
        return Err(wrong(-32600, "Send one message in a request; batches are not taken.", &Value::Null));
    }
    let is_message = message["jsonrpc"] == "2.0" && (message["method"].is_string() || message.get("id").is_some());
    if !is_message {
        let text = "This is no JSON-RPC message: it needs \"jsonrpc\": \"2.0\" and a method.";
        return Err(wrong(-32600, text, &message["id"]));
    }
    Ok(message)
}

impl IntoResponse for Wrong {
    fn into_response(self) -> Response<Body> {
        let id = if self.id.is_string() || self.id.is_number() { self.id } else { Value::Null };
        let body = json!({ "jsonrpc": "2.0", "id": id, "error": { "code": self.code, "message": self.text } });
        let mut response = (StatusCode::BAD_REQUEST, Json(body)).into_response();
        response.extensions_mut().insert(Verbatim);
        response
    }
}

/// A client that does not say what it takes, as one types it by hand.
fn takes_anything(headers: &HeaderMap) -> bool {
    headers.get(ACCEPT).is_none_or(|value| value.to_str().is_ok_and(|value| value.contains("*/*")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_messages_are_read() {
        let read = |text: &'static str| read(&Bytes::from_static(text.as_bytes())).map_err(|wrong| wrong.code);
        assert!(read(r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#).is_ok());
        for text in
            ["", "{", "[]", "1", r#"{"method":"ping"}"#, r#"{"jsonrpc":"2.0"}"#, r#"{"jsonrpc":"2.0","method":1}"#]
        {
            assert!([-32700, -32600].contains(&read(text).expect_err(text)), "{text}");
        }
        let deep = Bytes::from("[".repeat(100_000));
        assert!(super::read(&deep).is_err());
    }
}
