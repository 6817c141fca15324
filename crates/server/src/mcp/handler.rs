//! The protocol's side of a call: who asks, what is cancelled, and how results and refusals are written.

use std::sync::Arc;

use axum::Router;
use axum::http::HeaderMap;
use axum::http::request::Parts;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, Implementation, ListToolsResult, PaginatedRequestParams,
    ProtocolVersion, ServerCapabilities, ServerConfig, Tool as Listed, ToolAnnotations,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::api::{Api, Refusal};
use super::args::Args;
use super::catalog::{self, TOOLS, Tool};
use super::running::Running;
use super::{SESSION, calls, name};
use crate::call::{RequestId, is_idempotency_key};
use crate::error::{ApiError, Kind};
use crate::{AppState, Caller};

const INSTRUCTIONS: &str = "\
Sandboxes: Linux machines of their own to run code, commands and servers in. \
Make one with runtime_sandboxes_create and keep its id; with name and getOrCreate the same one is found again. \
Run commands with runtime_sandboxes_exec, move text with runtime_sandboxes_files_read and _write; /workspace is where \
commands begin. A paused sandbox wakes by itself at the next call; a stopped one keeps its disk and is started with \
runtime_sandboxes_manage, action restart. Errors say in `hint` what to do next. A change answers an idempotencyKey: \
call again with it if you did not see the answer, and the work is not done twice. Delete what is no longer needed.";

#[derive(Clone)]
pub(super) struct Tools {
    pub(super) app: AppState,
    /// The API, without `/mcp`.
    pub(super) router: Router,
    pub(super) running: Arc<Running>,
}

/// A request's own facts, put there by the layers before.
struct Asked {
    caller: Caller,
    request_id: RequestId,
    headers: HeaderMap,
}

impl ServerHandler for Tools {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(Implementation::new("runtime", env!("CARGO_PKG_VERSION")))
            .with_instructions(INSTRUCTIONS)
    }

    async fn list_tools(
        &self,
        _page: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(TOOLS.iter().map(listed).collect()))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let asked = asked(&context)?;
        let cancel = CancellationToken::new();
        let id = serde_json::to_value(&context.id).unwrap_or_default();
        let entry = self.running.begin(name(&asked.caller, &asked.headers, &id), cancel.clone());
        // Since this version, hanging up is how a call is cancelled, unless it can be cancelled by its name.
        let modern = context
            .protocol_version()
            .is_some_and(|version| version.as_str() >= ProtocolVersion::V_2026_07_28.as_str());
        let hanging_up_cancels = modern && !asked.headers.contains_key(SESSION);
        let (tools, cancelled) = (self.clone(), cancel.clone());
        // A task of its own: work that has begun is not left half done because a connection was lost.
        let work = self.app.tasks().spawn(async move {
            let result = tools.work(&request, asked, &cancelled).await;
            drop(entry);
            result
        });
        tokio::pin!(work);
        let result = tokio::select! {
            result = &mut work => result,
            () = context.ct.cancelled(), if hanging_up_cancels => {
                cancel.cancel();
                work.await
            }
        };
        let result = result.map_err(|error| ErrorData::internal_error(format!("a tool failed: {error}"), None))?;
        Ok(result.into())
    }
}

impl Tools {
    async fn work(&self, request: &CallToolRequestParams, asked: Asked, cancel: &CancellationToken) -> CallToolResult {
        let header = asked.headers.get("idempotency-key").and_then(|value| value.to_str().ok()).map(str::to_owned);
        let api = Api { router: self.router.clone(), caller: asked.caller, request_id: asked.request_id };
        let refused = |error: &ApiError| refusal(api.refuse(error), None);
        let tool = match known(&request.name) {
            Ok(tool) => tool,
            Err(error) => return refused(&error),
        };
        let args = match Args::read(tool, request.arguments.clone()) {
            Ok(args) => args,
            Err(error) => return refused(&error),
        };
        let key = args.text("idempotencyKey").map(str::to_owned).or(header);
        let key = key.unwrap_or_else(|| uuid::Uuid::new_v4().to_string());
        if !is_idempotency_key(&key) {
            return refused(&ApiError::wrong(
                "idempotencyKey",
                "must be 1 to 128 letters, digits or _ . : - and start with a letter or digit",
            ));
        }
        let changes = calls::changes(tool, &args);
        let work = calls::call(&api, tool, &args, &key, cancel);
        // What the server's stop interrupts goes on without it, and is found again under its key.
        let outcome = tokio::select! {
            outcome = work => outcome,
            () = self.app.sandboxes().stopping().cancelled() => Err(api.refuse(
                &ApiError::new(Kind::ApiUnavailable, "The server is stopping; what was begun goes on.")
                    .hint("Call again with the same idempotencyKey when it is back."))),
        };
        let key = changes.then_some(key.as_str());
        match outcome {
            Ok(mut value) => {
                if let (Some(object), Some(key)) = (value.as_object_mut(), key) {
                    object.insert("idempotencyKey".to_owned(), json!(key));
                }
                CallToolResult::structured(value)
            }
            Err(error) => refusal(error, key),
        }
    }
}

/// A refusal as a result that a model reads: the API's error object.
fn refusal(Refusal(mut error): Refusal, key: Option<&str>) -> CallToolResult {
    if let Some(key) = key {
        error["idempotencyKey"] = json!(key);
    }
    if error["code"] == "not_found" && error.get("hint").is_none() {
        error["hint"] = json!("runtime_sandboxes_list shows the sandboxes that this key reaches.");
    }
    CallToolResult::structured_error(json!({ "error": error }))
}

fn known(name: &str) -> Result<&'static Tool, ApiError> {
    if let Some(tool) = catalog::find(name) {
        return Ok(tool);
    }
    if catalog::is_unserved(name) {
        return Err(ApiError::new(Kind::Unavailable, format!("{name}: not on this server yet."))
            .hint("tools/list names the tools it has."));
    }
    let name: String = name.chars().take(64).collect();
    let error = ApiError::new(Kind::NotFound, format!("There is no tool {name:?}."));
    Err(match catalog::renamed(&name) {
        Some(now) => error.hint(format!("It is called {now} now.")),
        None => {
            let names: Vec<&str> = TOOLS.iter().map(|tool| tool.name).collect();
            error.hint(format!("The tools are: {}.", names.join(", ")))
        }
    })
}

fn asked(context: &RequestContext<RoleServer>) -> Result<Asked, ErrorData> {
    let parts = context.extensions.get::<Parts>();
    let asked = parts.and_then(|parts| {
        Some(Asked {
            caller: parts.extensions.get::<Caller>()?.clone(),
            request_id: parts.extensions.get::<RequestId>()?.clone(),
            headers: parts.headers.clone(),
        })
    });
    asked.ok_or_else(|| ErrorData::internal_error("the caller of a tool is not known", None))
}

fn listed(tool: &Tool) -> Listed {
    let annotations = ToolAnnotations::with_title(tool.title)
        .read_only(tool.hints.read_only)
        .destructive(tool.hints.destructive)
        .idempotent(tool.hints.idempotent)
        .open_world(false);
    let mut listed = Listed::new(tool.name, tool.about, tool.schema());
    listed.title = Some(tool.title.to_owned());
    listed.annotations = Some(annotations);
    listed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_nobody_knows_is_answered_with_those_there_are() {
        let told = |name: &str| known(name).err().map(|error| error.to_json("req_x")).unwrap_or_default();
        assert_eq!(told("runtime_sandboxes_exec"), json!(null));
        assert_eq!(told("runtime_sandbox_exec")["hint"], "It is called runtime_sandboxes_exec now.");
        assert_eq!(told("runtime_jobs")["code"], "unavailable");
        let nothing = told("shell");
        assert_eq!(nothing["code"], "not_found");
        assert!(nothing["hint"].as_str().is_some_and(|hint| hint.contains("runtime_sandboxes_exec")));
    }
}
