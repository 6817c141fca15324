//! From a tool's call to calls of the API.

use axum::http::Method;
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use super::api::{Api, Ask, Refusal, encode};
use super::args::{Args, workspace};
use super::catalog::{Route, Shape, Tool, Work};
use super::{command, cut, files};
use crate::error::{ApiError, Kind};

/// How long a change may hold its answer until it has settled.
const SETTLE: u32 = 60;
const LISTED: u64 = 20;
const FILES_LISTED: u64 = 200;

/// Whether a call changes something, and so has a key.
pub(super) fn changes(tool: &Tool, args: &Args) -> bool {
    match &tool.work {
        Work::Actions(actions) => chosen(actions, args).is_some_and(|(_, route)| route.method != Method::GET),
        Work::Create | Work::Exec | Work::Write => true,
        Work::List | Work::Inspect | Work::Read | Work::ListFiles => false,
    }
}

pub(super) async fn call(
    api: &Api,
    tool: &Tool,
    args: &Args,
    key: &str,
    cancel: &CancellationToken,
) -> Result<Value, Refusal> {
    match &tool.work {
        Work::Actions(actions) => match chosen(actions, args) {
            Some((action, route)) => act(api, action, route, args, key).await,
            None => Err(api.refuse(&ApiError::wrong("action", "is required"))),
        },
        Work::List => list(api, args).await,
        Work::Create => create(api, args, key).await,
        Work::Inspect => inspect(api, args).await,
        Work::Exec => command::exec(api, args, key, cancel).await,
        Work::Read => files::read(api, args).await,
        Work::Write => files::write(api, args, key).await,
        Work::ListFiles => list_files(api, args).await,
    }
}

fn chosen<'a>(actions: &'a [(&'static str, Route)], args: &Args) -> Option<&'a (&'static str, Route)> {
    let wanted = args.text("action")?;
    actions.iter().find(|(action, _)| *action == wanted)
}

/// An action that is one route.
async fn act(api: &Api, action: &str, route: &Route, args: &Args, key: &str) -> Result<Value, Refusal> {
    args.fit_action(action, route).map_err(|error| api.refuse(&error))?;
    let mut ask = Ask::new(route.method.clone(), filled(route.path, args)).wait(route.wait);
    let mut body = Map::new();
    for (arg, field) in route.fields {
        let Some(value) = args.get(arg) else { continue };
        let value = match (value, *arg) {
            (Value::String(path), "path" | "to") => json!(workspace(path)),
            _ => value.clone(),
        };
        if route.method == Method::GET {
            ask = query(ask, field, &value);
        } else {
            body.insert((*field).to_owned(), value);
        }
    }
    if route.method != Method::GET {
        ask = ask.key(key);
        if route.method != Method::DELETE {
            ask = ask.json(&Value::Object(body));
        }
    }
    let answer = api.json(ask).await.map_err(|refusal| in_arguments(refusal, route.fields))?;
    Ok(match route.shape {
        Shape::AsIs => cut::list(answer),
        Shape::Output => cut::output(&answer),
    })
}

/// A path with its `{names}` filled from the arguments.
fn filled(path: &str, args: &Args) -> String {
    let mut out = String::new();
    for (position, part) in path.split(['{', '}']).enumerate() {
        if position % 2 == 0 {
            out.push_str(part);
        } else {
            out.push_str(&encode(args.text(part).unwrap_or_default()));
        }
    }
    out
}

fn query(ask: Ask, field: &str, value: &Value) -> Ask {
    match value {
        Value::Array(items) => items.iter().fold(ask, |ask, item| query(ask, field, item)),
        Value::String(text) => ask.query(field, text),
        other => ask.query(field, &other.to_string()),
    }
}

/// A refusal in the words of the arguments that were given, where the fields have others.
fn in_arguments(Refusal(mut error): Refusal, fields: &[(&str, &str)]) -> Refusal {
    let issues = error.pointer_mut("/details/issues").and_then(Value::as_array_mut);
    let mut told = Vec::new();
    let mut renamed = false;
    for issue in issues.into_iter().flatten() {
        let path = issue["path"].as_str().unwrap_or_default().to_owned();
        if let Some((arg, _)) = fields.iter().find(|(arg, field)| *field == path && arg != field) {
            issue["path"] = json!(arg);
            renamed = true;
        }
        let word = |name: &str| issue[name].as_str().unwrap_or_default().to_owned();
        told.push(format!("{} {}", word("path"), word("message")));
    }
    if renamed {
        error["message"] = json!(format!("The request is not valid: {}.", told.join("; ")));
    }
    Refusal(error)
}

fn sandbox(args: &Args) -> String {
    format!("/v1/sandboxes/{}", encode(args.text("id").unwrap_or_default()))
}

async fn list(api: &Api, args: &Args) -> Result<Value, Refusal> {
    if args.has("id") {
        let one = api.json(Ask::get(sandbox(args))).await?;
        return Ok(json!({ "data": [one], "nextCursor": null }));
    }
    let mut ask = Ask::get("/v1/sandboxes");
    for name in ["state", "name", "label", "cursor"] {
        if let Some(value) = args.get(name) {
            ask = query(ask, name, value);
        }
    }
    ask = ask.query("limit", &args.number("limit").unwrap_or(LISTED).to_string());
    api.json(ask).await
}

async fn create(api: &Api, args: &Args, key: &str) -> Result<Value, Refusal> {
    let body = Value::Object(args.without(&["wait", "idempotencyKey"]));
    let wait = args.flag("wait") != Some(false);
    let ask = Ask::new(Method::POST, "/v1/sandboxes").json(&body).key(key);
    let record = api.json(if wait { ask.wait(SETTLE) } else { ask }).await?;
    if !wait || record["state"] == "running" {
        return Ok(record);
    }
    let id = record["id"].as_str().unwrap_or_default();
    let ask = Ask::get(format!("/v1/sandboxes/{}", encode(id)));
    let now = api.json(ask.query("waitFor", "running").query("timeoutSeconds", &SETTLE.to_string())).await?;
    if now["state"] == "running" {
        return Ok(now);
    }
    let why = now["stopReason"].as_str().map_or_else(String::new, |reason| format!(" ({reason})"));
    let state = now["state"].as_str().unwrap_or("unknown").to_owned();
    let error = ApiError::new(Kind::SandboxNotReady, format!("The sandbox did not start: it is {state}{why}."))
        .details(json!({ "sandboxId": id, "state": state }))
        .hint("Look at it with runtime_sandboxes_inspect, or start it with runtime_sandboxes_manage, action restart.");
    let mut refusal = api.refuse(&error);
    // The name that clients give it.
    refusal.0["code"] = json!("start_failed");
    Err(refusal)
}

async fn inspect(api: &Api, args: &Args) -> Result<Value, Refusal> {
    let record = api.json(Ask::get(sandbox(args))).await?;
    let fields: &[&str] = match args.text("what") {
        Some("lifetime") => &[
            "state",
            "stopReason",
            "createdAt",
            "readyAt",
            "lastActiveAt",
            "endsAt",
            "endedAt",
            "expiresAt",
            "timeoutSeconds",
            "idlePauseSeconds",
            "onTimeout",
            "autoWake",
            "persistent",
        ],
        Some("storage") => &["state", "diskMiB", "diskKept", "image", "snapshot"],
        Some("paused_storage") => &["state", "diskMiB", "memoryMiB", "pausedAt", "pausedExpiresAt"],
        Some("recovery") => &["state", "stopReason", "diskKept", "memoryRestored", "autoWake", "endedAt", "pausedAt"],
        _ => return Ok(record),
    };
    let mut side = Map::new();
    for name in ["id", "name"].iter().chain(fields) {
        if let Some(value) = record.get(name) {
            side.insert((*name).to_owned(), value.clone());
        }
    }
    Ok(Value::Object(side))
}

async fn list_files(api: &Api, args: &Args) -> Result<Value, Refusal> {
    let mut ask = Ask::get(format!("{}/files/list", sandbox(args))).query("path", &args.path());
    for name in ["depth", "glob", "hidden"] {
        if let Some(value) = args.get(name) {
            ask = query(ask, name, value);
        }
    }
    // One more than wanted tells whether there are more.
    let limit = args.number("limit").unwrap_or(FILES_LISTED);
    let mut answer = api.json(ask.query("limit", &(limit + 1).to_string())).await?;
    let more = answer["data"].as_array().is_some_and(|data| data.len() as u64 > limit);
    if more && let Some(data) = answer["data"].as_array_mut() {
        data.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
    }
    let mut answer = cut::list(answer);
    if more {
        answer["outputCut"] = json!(true);
        answer["hint"] = json!("There are more: raise limit, or narrow the path, the depth or the glob.");
    }
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn issues_name_the_arguments_that_were_given() {
        let error = json!({"code": "invalid_request", "message": "The request is not valid: timeoutSeconds must be 1.",
            "details": {"issues": [{"path": "timeoutSeconds", "message": "must be 1"}, {"path": "x", "message": "is odd"}]}});
        let Refusal(told) = in_arguments(Refusal(error), &[("seconds", "timeoutSeconds")]);
        assert_eq!(told["message"], "The request is not valid: seconds must be 1; x is odd.");
        assert_eq!(told["details"]["issues"][0]["path"], "seconds");
    }
}
