//! The tools: their names, what a model is told about them, and which routes of the API they are.
//!
//! Most are lines of a table: an action, its route, and which argument goes to which field. What a route refuses, and
//! how long a field may be, is the route's to say; here is only what a model must know to call it. A tool is added when
//! its product is served, and not before.

mod apart;
mod inside;
mod kind;
mod sandboxes;

use std::sync::Arc;

use axum::http::Method;
use serde_json::{Map, Value, json};

use kind::Kind;

/// A tool as it is listed and called.
pub(super) struct Tool {
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    pub(super) about: &'static str,
    pub(super) hints: Hints,
    pub(super) args: &'static [Arg],
    pub(super) work: Work,
}

/// What a host may assume before it asks its user.
#[derive(Clone, Copy)]
pub(super) struct Hints {
    pub(super) read_only: bool,
    pub(super) destructive: bool,
    pub(super) idempotent: bool,
}

const READS: Hints = Hints { read_only: true, destructive: false, idempotent: true };
const ADDS: Hints = Hints { read_only: false, destructive: false, idempotent: false };
const REPLACES: Hints = Hints { read_only: false, destructive: true, idempotent: true };
const CHANGES: Hints = Hints { read_only: false, destructive: true, idempotent: false };

/// An argument, in the order in which it is explained.
pub(super) struct Arg {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) required: bool,
    pub(super) about: &'static str,
}

/// What a call does.
pub(super) enum Work {
    /// By the argument `action`.
    Actions(&'static [(&'static str, Route)]),
    One(Route),
    List,
    Create,
    Inspect,
    Exec,
    Read,
    Write,
    ListFiles,
}

/// One call of the API.
#[derive(Clone)]
pub(super) struct Route {
    pub(super) method: Method,
    /// `{id}` and the like are filled from the arguments of their name, which are then required.
    pub(super) path: &'static str,
    /// Argument and field.
    pub(super) fields: &'static [(&'static str, &'static str)],
    /// Seconds the answer is held until the change has settled.
    pub(super) wait: u32,
    pub(super) shape: Shape,
}

/// What is made of an answer for a model to read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    AsIs,
    /// A poll of a process's output: cut where it is too long, to be read on from the cut.
    Output,
    /// A snapshot, which may have failed.
    Snapshot,
}

const fn text(name: &'static str, about: &'static str) -> Arg {
    Arg { name, kind: Kind::Text, required: false, about }
}

const fn arg(name: &'static str, kind: Kind, about: &'static str) -> Arg {
    Arg { name, kind, required: false, about }
}

const fn needed(name: &'static str, kind: Kind, about: &'static str) -> Arg {
    Arg { name, kind, required: true, about }
}

const fn get(path: &'static str, fields: &'static [(&'static str, &'static str)]) -> Route {
    Route { method: Method::GET, path, fields, wait: 0, shape: Shape::AsIs }
}

const fn post(path: &'static str, fields: &'static [(&'static str, &'static str)], wait: u32) -> Route {
    Route { method: Method::POST, path, fields, wait, shape: Shape::AsIs }
}

const fn put(path: &'static str, fields: &'static [(&'static str, &'static str)]) -> Route {
    Route { method: Method::PUT, path, fields, wait: 0, shape: Shape::AsIs }
}

const fn delete(path: &'static str) -> Route {
    Route { method: Method::DELETE, path, fields: &[], wait: 0, shape: Shape::AsIs }
}

const ID: Arg = needed("id", Kind::Text, "The sandbox's id.");
const KEY: Arg = text(
    "idempotencyKey",
    "Makes a repeat safe: the same key with the same arguments does its work once. One is made and returned if left out.",
);
const DAY_MS: u64 = 86_400_000;

/// The last words of tool names whose product this server does not serve; asked for, they are told from what never was.
const UNSERVED: &[&str] = &[
    "runtime_sandboxes_interpreter_run",
    "runtime_sandboxes_interpreter_contexts",
    "runtime_sandboxes_mounts",
    "runtime_sandboxes_mcp",
    "runtime_sandboxes_tailscale",
    "runtime_sandboxes_metrics",
    "runtime_sandboxes_desktop_act",
    "runtime_sandboxes_desktop_screenshot",
    "runtime_sandboxes_desktop_record",
    "runtime_volumes",
    "runtime_volumes_backup",
    "runtime_images",
    "runtime_images_build",
    "runtime_images_registries",
    "runtime_secrets",
    "runtime_jobs",
    "runtime_domains",
    "runtime_ports",
    "runtime_ips",
    "runtime_networks_wireguard",
    "runtime_networks_upstream_proxy",
    "runtime_networks_private",
    "runtime_networks_signed_requests",
    "runtime_events_list",
    "runtime_webhooks_manage",
    "runtime_otel_manage",
    "runtime_audit_list",
    "runtime_notices",
    "runtime_docs_read",
    "runtime_feedback",
    "runtime_support",
    "runtime_switching_record",
];

pub(super) fn tools() -> impl Iterator<Item = &'static Tool> {
    [sandboxes::TOOLS, inside::TOOLS, apart::TOOLS].into_iter().flatten()
}

pub(super) fn find(name: &str) -> Option<&'static Tool> {
    tools().find(|tool| tool.name == name)
}

/// A tool of the contract that is not here yet.
pub(super) fn is_unserved(name: &str) -> bool {
    UNSERVED.contains(&name)
}

/// What a retired name is called now: the products became plural.
pub(super) fn renamed(name: &str) -> Option<String> {
    let singular = [
        ("runtime_sandbox_", "runtime_sandboxes_"),
        ("runtime_snapshot", "runtime_snapshots"),
        ("runtime_volume", "runtime_volumes"),
        ("runtime_image", "runtime_images"),
        ("runtime_webhook_", "runtime_webhooks_"),
        ("runtime_event_", "runtime_events_"),
    ];
    let now = singular.iter().find_map(|(old, new)| {
        let rest = name.strip_prefix(old).filter(|rest| !rest.starts_with('s'))?;
        Some(format!("{new}{rest}"))
    })?;
    (find(&now).is_some() || is_unserved(&now)).then_some(now)
}

impl Tool {
    /// The JSON schema of its arguments.
    pub(super) fn schema(&self) -> Arc<Map<String, Value>> {
        let properties: Map<String, Value> =
            self.args.iter().map(|arg| (arg.name.to_owned(), arg.kind.schema(arg.about))).collect();
        let required: Vec<&str> = self.args.iter().filter(|arg| arg.required).map(|arg| arg.name).collect();
        let mut schema = Map::new();
        schema.insert("type".to_owned(), json!("object"));
        schema.insert("properties".to_owned(), Value::Object(properties));
        schema.insert("required".to_owned(), json!(required));
        schema.insert("additionalProperties".to_owned(), json!(false));
        Arc::new(schema)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_route_uses_arguments_that_its_tool_has() {
        for tool in tools() {
            let has = |name: &str| tool.args.iter().any(|arg| arg.name == name);
            let actions = match &tool.work {
                Work::Actions(actions) => actions.to_vec(),
                Work::One(route) => vec![("", route.clone())],
                _ => continue,
            };
            if matches!(tool.work, Work::Actions(_)) {
                let action = tool.args.iter().find(|arg| arg.name == "action");
                let Some(Arg { kind: Kind::OneOf(words), required: true, .. }) = action else {
                    panic!("{} has no actions", tool.name)
                };
                assert_eq!(actions.iter().map(|(action, _)| *action).collect::<Vec<_>>(), *words, "{}", tool.name);
            }
            for (action, route) in &actions {
                for (arg, _) in route.fields {
                    assert!(has(arg), "{} {action}: {arg}", tool.name);
                }
                for word in route.path.split(['{', '}']).skip(1).step_by(2) {
                    assert!(has(word), "{} {action}: {word}", tool.name);
                }
            }
            let used = |name: &str| {
                ["action", "idempotencyKey"].contains(&name)
                    || actions.iter().any(|(_, route)| {
                        route.fields.iter().any(|(arg, _)| *arg == name) || route.path.contains(&format!("{{{name}}}"))
                    })
            };
            for arg in tool.args {
                assert!(used(arg.name), "{}: {} goes nowhere", tool.name, arg.name);
            }
        }
    }

    #[test]
    fn retired_names_lead_to_their_successors() {
        assert_eq!(renamed("runtime_sandbox_exec").as_deref(), Some("runtime_sandboxes_exec"));
        assert_eq!(renamed("runtime_volume").as_deref(), Some("runtime_volumes"));
        assert_eq!(renamed("runtime_snapshot").as_deref(), Some("runtime_snapshots"));
        assert_eq!(renamed("runtime_sandboxes_exec"), None);
        assert_eq!(renamed("runtime_sandbox_nothing"), None);
        assert!(tools().all(|tool| !is_unserved(tool.name)));
    }
}
