//! The tools: their names, what a model is told about them, and which routes of the API they are.
//!
//! Most are lines of a table: an action, its route, and which argument goes to which field. What a route refuses, and
//! how long a field may be, is the route's to say; here is only what a model must know to call it. A tool is added when
//! its product is served, and not before.

use std::sync::Arc;

use axum::http::Method;
use serde_json::{Map, Value, json};

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

#[derive(Clone, Copy)]
pub(super) enum Kind {
    Text,
    /// From, to.
    Int(u64, u64),
    /// The same, where null says something else than nothing.
    IntOrNull(u64, u64),
    Bool,
    TextMap,
    Texts,
    TextOrTexts,
    Object,
    Objects,
    OneOf(&'static [&'static str]),
}

/// What a call does.
pub(super) enum Work {
    /// By the argument `action`.
    Actions(&'static [(&'static str, Route)]),
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

const ID: Arg = needed("id", Kind::Text, "The sandbox's id.");
const KEY: Arg = text(
    "idempotencyKey",
    "Makes a repeat safe: the same key with the same arguments does its work once. One is made and returned if left out.",
);
const DAY_MS: u64 = 86_400_000;

pub(super) const TOOLS: &[Tool] = &[
    Tool {
        name: "runtime_sandboxes_create",
        title: "Create a sandbox",
        about: "Create a Linux sandbox: a machine of its own with a disk, a shell, Python and Node.js, working \
                directory /workspace. Answers its record once it runs; keep its `id`. With getOrCreate and a name, the \
                sandbox that has the name is answered instead, woken if need be. An idle sandbox is paused and wakes by \
                itself at the next call.",
        hints: ADDS,
        args: &[
            text("name", "A name that is unique while the sandbox exists."),
            arg("labels", Kind::TextMap, "Labels to find it by."),
            arg("env", Kind::TextMap, "Variables of every command in it. They cannot be read back."),
            text("region", "Where it runs."),
            arg("vcpu", Kind::Int(1, 16), "Virtual CPUs; 2 if left out."),
            arg("memoryMiB", Kind::Int(128, 65_536), "Memory; 4096 if left out."),
            arg("diskMiB", Kind::Int(3072, 409_600), "Disk; 4096 if left out."),
            arg("cpu", Kind::OneOf(&["shared", "reserved"]), "Whether its CPUs are its own."),
            arg("network", Kind::Object, "What it may reach: {\"internet\": false} for nothing."),
            arg("volumes", Kind::Objects, "Volumes to attach: {volumeId, path}."),
            text("image", "The image it starts from; the base image if left out."),
            text("snapshot", "The snapshot it starts from; not together with image."),
            arg("autoWake", Kind::Bool, "Whether a call wakes it from a pause; true if left out."),
            arg(
                "idlePauseSeconds",
                Kind::Int(0, 86_400),
                "Pause it after so long without work; 0 never, 300 if left out.",
            ),
            arg("timeoutSeconds", Kind::Int(0, 86_400), "A time limit for its whole run; 0 for none."),
            arg("persistent", Kind::Bool, "No time limit and no idle pause."),
            arg("getOrCreate", Kind::Bool, "Use the sandbox of this name if there is one."),
            text("funding", "Taken and ignored."),
            arg("pausable", Kind::Bool, "Taken and ignored."),
            arg("wait", Kind::Bool, "Wait until it runs; true if left out."),
            KEY,
        ],
        work: Work::Create,
    },
    Tool {
        name: "runtime_sandboxes_list",
        title: "List sandboxes",
        about: "The sandboxes this key reaches, oldest first: running, paused, and stopped ones whose disk is kept.",
        hints: READS,
        args: &[
            arg("state", Kind::TextOrTexts, "Only in this state, or one of these: running, paused, stopped and so on."),
            text("name", "Only the one of this name."),
            arg("label", Kind::TextOrTexts, "Only with this label, or all of these, written key:value."),
            text("id", "Only this one."),
            arg("limit", Kind::Int(1, 100), "Most on a page; 20 if left out."),
            text("cursor", "The nextCursor of the page before."),
        ],
        work: Work::List,
    },
    Tool {
        name: "runtime_sandboxes_manage",
        title: "Stop, pause, wake or change a sandbox",
        about: "Change a sandbox's life. pause keeps its memory and processes, wake brings them back; stop ends its \
                processes and keeps the disk, restart starts from that disk; delete removes it for good; extend moves its \
                time limit; update changes its settings.",
        hints: CHANGES,
        args: &[
            ID,
            needed(
                "action",
                Kind::OneOf(&[
                    "stop",
                    "delete",
                    "pause",
                    "wake",
                    "extend",
                    "retention",
                    "persist",
                    "restart",
                    "update",
                ]),
                "What to do.",
            ),
            arg("seconds", Kind::Int(1, 86_400), "extend: by how much. wake: its new time limit."),
            arg(
                "days",
                Kind::IntOrNull(1, 365),
                "retention: delete it so long after it was paused or stopped; null keeps it.",
            ),
            arg("persistent", Kind::Bool, "persist: whether it goes on without time limit and idle pause."),
            arg("maxTotalCostMicros", Kind::IntOrNull(0, u64::MAX), "persist: stop it at this cost."),
            text("name", "update: its name."),
            arg("labels", Kind::TextMap, "update: all its labels."),
            arg("env", Kind::Object, "update: variables to set; null removes one."),
            arg("autoWake", Kind::Bool, "update: whether a call wakes it."),
            arg("idlePauseSeconds", Kind::Int(0, 86_400), "update: pause it after so long without work; 0 never."),
            KEY,
        ],
        work: Work::Actions(&[
            ("stop", post("/v1/sandboxes/{id}:stop", &[], 60)),
            (
                "delete",
                Route { method: Method::DELETE, path: "/v1/sandboxes/{id}", fields: &[], wait: 0, shape: Shape::AsIs },
            ),
            ("pause", post("/v1/sandboxes/{id}:pause", &[], 60)),
            ("wake", post("/v1/sandboxes/{id}:wake", &[("seconds", "timeoutSeconds")], 60)),
            ("extend", post("/v1/sandboxes/{id}:extend", &[("seconds", "seconds")], 0)),
            ("retention", post("/v1/sandboxes/{id}:retention", &[("days", "days")], 0)),
            (
                "persist",
                post(
                    "/v1/sandboxes/{id}:update",
                    &[("persistent", "persistent"), ("maxTotalCostMicros", "maxTotalCostMicros")],
                    0,
                ),
            ),
            ("restart", post("/v1/sandboxes/{id}:restart", &[], 60)),
            (
                "update",
                post(
                    "/v1/sandboxes/{id}:update",
                    &[
                        ("name", "name"),
                        ("labels", "labels"),
                        ("env", "env"),
                        ("autoWake", "autoWake"),
                        ("idlePauseSeconds", "idlePauseSeconds"),
                    ],
                    0,
                ),
            ),
        ]),
    },
    Tool {
        name: "runtime_sandboxes_inspect",
        title: "Look at a sandbox",
        about: "A sandbox's record, or one side of it. Never wakes it.",
        hints: READS,
        args: &[
            ID,
            arg(
                "what",
                Kind::OneOf(&["storage", "paused_storage", "lifetime", "recovery"]),
                "One side of it; the whole record if left out.",
            ),
        ],
        work: Work::Inspect,
    },
    Tool {
        name: "runtime_sandboxes_exec",
        title: "Run a command",
        about: "Run a command in a sandbox and answer exit code, stdout and stderr. A string is a line for bash; a list is \
                a program and its arguments. Whatever it started ends with it: for a server or a long job set \
                background, and go on with runtime_sandboxes_process. Of long output, the beginning and the end are \
                answered, with outputCut: write it to a file and read that.",
        hints: CHANGES,
        args: &[
            ID,
            arg("command", Kind::TextOrTexts, "A line for bash, or a list: a program and its arguments."),
            arg("argv", Kind::Texts, "A program and its arguments; instead of command."),
            text("cwd", "Where to run it, absolute; /workspace if left out."),
            arg("env", Kind::TextMap, "Variables for this command."),
            text("stdin", "Its input."),
            text("stdinBase64", "Its input as base64."),
            arg(
                "timeoutMs",
                Kind::Int(1, DAY_MS),
                "End it after so long; 60000 if left out, no limit with background.",
            ),
            arg("user", Kind::OneOf(&["sandbox", "root"]), "Who runs it; the sandbox's own user if left out."),
            arg("background", Kind::Bool, "Start it and answer its processId at once."),
            KEY,
        ],
        work: Work::Exec,
    },
    Tool {
        name: "runtime_sandboxes_process",
        title: "Background processes",
        about: "The processes of a sandbox: list them, get one, read its output from a cursor (nextCursor goes on), write \
                to its input, send it a signal.",
        hints: CHANGES,
        args: &[
            ID,
            needed("action", Kind::OneOf(&["list", "get", "read", "write", "signal"]), "What to do."),
            text("processId", "Which one; for all actions but list."),
            arg("cursor", Kind::Int(0, 1 << 53), "read: the first byte of output wanted; 0 if left out."),
            arg("waitMs", Kind::Int(0, 8000), "read: wait so long for output if there is none yet."),
            text("data", "write: the input."),
            arg(
                "offset",
                Kind::Int(0, 1 << 53),
                "write: input bytes written before: 0 at first, then the offset answered.",
            ),
            arg("eof", Kind::Bool, "write: close its input afterwards."),
            arg(
                "signal",
                Kind::OneOf(&["SIGTERM", "SIGKILL", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"]),
                "signal: which one.",
            ),
            KEY,
        ],
        work: Work::Actions(&[
            ("list", get("/v1/sandboxes/{id}/processes", &[])),
            ("get", get("/v1/sandboxes/{id}/processes/{processId}", &[])),
            (
                "read",
                Route {
                    method: Method::GET,
                    path: "/v1/sandboxes/{id}/processes/{processId}/output",
                    fields: &[("cursor", "cursor"), ("waitMs", "waitMs")],
                    wait: 0,
                    shape: Shape::Output,
                },
            ),
            (
                "write",
                post(
                    "/v1/sandboxes/{id}/processes/{processId}:write",
                    &[("data", "data"), ("offset", "offset"), ("eof", "eof")],
                    0,
                ),
            ),
            ("signal", post("/v1/sandboxes/{id}/processes/{processId}:signal", &[("signal", "signal")], 0)),
        ]),
    },
    Tool {
        name: "runtime_sandboxes_files_read",
        title: "Read a file",
        about: "Read a file of a sandbox, whole or a range of its lines. Text that is too long is cut at a line end, with \
                contentCut and the nextLine to read on from. What is not text is answered as base64.",
        hints: READS,
        args: &[
            ID,
            needed("path", Kind::Text, "The file, absolute or below /workspace."),
            arg("startLine", Kind::Int(1, 1 << 53), "The first line wanted, counted from 1."),
            arg("endLine", Kind::Int(1, 1 << 53), "The last line wanted."),
        ],
        work: Work::Read,
    },
    Tool {
        name: "runtime_sandboxes_files_write",
        title: "Write a file",
        about: "Write a file in a sandbox, new or over an old one, whole: it is never seen half written. Folders on the \
                way are made.",
        hints: REPLACES,
        args: &[
            ID,
            needed("path", Kind::Text, "The file, absolute or below /workspace."),
            text("content", "All of its text."),
            text("contentBase64", "All of its bytes as base64; instead of content. At most 1 MiB either way."),
            text("mode", "Its mode as octal text, like \"755\"."),
            KEY,
        ],
        work: Work::Write,
    },
    Tool {
        name: "runtime_sandboxes_files_list",
        title: "List files",
        about: "List a folder of a sandbox: path, type, size, mode and time of each entry.",
        hints: READS,
        args: &[
            ID,
            text("path", "The folder, absolute or below /workspace, which is the default."),
            arg("depth", Kind::Int(1, 1000), "Levels below it; 1 if left out, all with a glob."),
            text("glob", "Only paths like this, relative to the folder: *.py, **/*.md."),
            arg("hidden", Kind::Bool, "Names that begin with a dot too."),
            arg("limit", Kind::Int(1, 1000), "Most entries; 200 if left out."),
        ],
        work: Work::ListFiles,
    },
    Tool {
        name: "runtime_sandboxes_files_manage",
        title: "Look at, move or remove files",
        about: "stat a path (a missing one is no error), make a folder, move, remove, or change a mode.",
        hints: CHANGES,
        args: &[
            ID,
            needed("action", Kind::OneOf(&["stat", "mkdir", "move", "remove", "chmod"]), "What to do."),
            needed("path", Kind::Text, "The file or folder, absolute or below /workspace."),
            text("to", "move: its new path."),
            arg("overwrite", Kind::Bool, "move: over what is there."),
            arg("parents", Kind::Bool, "mkdir: folders on the way too, and no error where it exists."),
            arg("recursive", Kind::Bool, "remove: with all that is in it."),
            text("mode", "chmod: octal text, like \"644\"."),
            KEY,
        ],
        work: Work::Actions(&[
            ("stat", get("/v1/sandboxes/{id}/files/stat", &[("path", "path")])),
            ("mkdir", post("/v1/sandboxes/{id}/files:mkdir", &[("path", "path"), ("parents", "parents")], 0)),
            (
                "move",
                post(
                    "/v1/sandboxes/{id}/files:rename",
                    &[("path", "from"), ("to", "to"), ("overwrite", "overwrite")],
                    0,
                ),
            ),
            ("remove", post("/v1/sandboxes/{id}/files:remove", &[("path", "path"), ("recursive", "recursive")], 0)),
            ("chmod", post("/v1/sandboxes/{id}/files:chmod", &[("path", "path"), ("mode", "mode")], 0)),
        ]),
    },
    Tool {
        name: "runtime_account",
        title: "The account",
        about: "get: whose key this is. limits: what it may use, and how much of that is in use.",
        hints: READS,
        args: &[needed("action", Kind::OneOf(&["get", "limits"]), "What to answer.")],
        work: Work::Actions(&[("get", get("/v1/me", &[])), ("limits", get("/v1/limits", &[]))]),
    },
];

/// The last words of tool names whose product this server does not serve; asked for, they are told from what never was.
const UNSERVED: &[&str] = &[
    "runtime_sandboxes_files_watch",
    "runtime_sandboxes_interpreter_run",
    "runtime_sandboxes_interpreter_contexts",
    "runtime_sandboxes_network",
    "runtime_sandboxes_previews",
    "runtime_sandboxes_mounts",
    "runtime_sandboxes_mcp",
    "runtime_sandboxes_tailscale",
    "runtime_sandboxes_fork",
    "runtime_sandboxes_metrics",
    "runtime_sandboxes_desktop_act",
    "runtime_sandboxes_desktop_screenshot",
    "runtime_sandboxes_desktop_record",
    "runtime_snapshots",
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

pub(super) fn find(name: &str) -> Option<&'static Tool> {
    TOOLS.iter().find(|tool| tool.name == name)
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

impl Kind {
    fn schema(self, about: &str) -> Value {
        let mut schema = match self {
            Self::Text => json!({ "type": "string" }),
            Self::Int(from, u64::MAX) => json!({ "type": "integer", "minimum": from }),
            Self::Int(from, to) => json!({ "type": "integer", "minimum": from, "maximum": to }),
            Self::IntOrNull(from, u64::MAX) => json!({ "type": ["integer", "null"], "minimum": from }),
            Self::IntOrNull(from, to) => json!({ "type": ["integer", "null"], "minimum": from, "maximum": to }),
            Self::Bool => json!({ "type": "boolean" }),
            Self::TextMap => json!({ "type": "object", "additionalProperties": { "type": "string" } }),
            Self::Texts => json!({ "type": "array", "items": { "type": "string" } }),
            Self::TextOrTexts => json!({ "type": ["string", "array"], "items": { "type": "string" } }),
            Self::Object => json!({ "type": "object" }),
            Self::Objects => json!({ "type": "array", "items": { "type": "object" } }),
            Self::OneOf(words) => json!({ "type": "string", "enum": words }),
        };
        schema["description"] = json!(about);
        schema
    }

    /// What is wrong with a value; a null was left out before.
    pub(super) fn refuse(self, value: &Value) -> Option<String> {
        let texts = |value: &Value| value.as_array().is_some_and(|list| list.iter().all(Value::is_string));
        let integer = |from: u64, to: u64| match value.as_u64() {
            Some(number) if (from..=to).contains(&number) => None,
            _ if to == u64::MAX => Some(format!("must be a whole number, at least {from}")),
            _ => Some(format!("must be a whole number from {from} to {to}")),
        };
        let unless = |fits: bool, what: &str| (!fits).then(|| format!("must be {what}"));
        match self {
            Self::Text => unless(value.is_string(), "text"),
            Self::Int(from, to) => integer(from, to),
            Self::IntOrNull(from, to) => {
                if value.is_null() {
                    None
                } else {
                    integer(from, to)
                }
            }
            Self::Bool => unless(value.is_boolean(), "true or false"),
            Self::TextMap => unless(
                value.as_object().is_some_and(|map| map.values().all(Value::is_string)),
                "an object whose values are text",
            ),
            Self::Texts => unless(texts(value), "a list of texts"),
            Self::TextOrTexts => unless(value.is_string() || texts(value), "text or a list of texts"),
            Self::Object => unless(value.is_object(), "an object"),
            Self::Objects => {
                unless(value.as_array().is_some_and(|list| list.iter().all(Value::is_object)), "a list of objects")
            }
            Self::OneOf(words) => unless(
                value.as_str().is_some_and(|word| words.contains(&word)),
                &format!("one of {}", words.join(", ")),
            ),
        }
    }

    pub(super) fn takes_null(self) -> bool {
        matches!(self, Self::IntOrNull(..))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_route_uses_arguments_that_its_tool_has() {
        for tool in TOOLS {
            let has = |name: &str| tool.args.iter().any(|arg| arg.name == name);
            let Work::Actions(actions) = &tool.work else { continue };
            let Some(Arg { kind: Kind::OneOf(words), .. }) = tool.args.iter().find(|arg| arg.name == "action") else {
                panic!("{} has no actions", tool.name)
            };
            assert_eq!(actions.iter().map(|(action, _)| *action).collect::<Vec<_>>(), *words, "{}", tool.name);
            for (action, route) in *actions {
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
        assert_eq!(renamed("runtime_sandboxes_exec"), None);
        assert_eq!(renamed("runtime_sandbox_nothing"), None);
        assert!(TOOLS.iter().all(|tool| !is_unserved(tool.name)));
    }

    #[test]
    fn values_are_checked_by_kind() {
        for (kind, good, bad) in [
            (Kind::Text, json!("a"), json!(1)),
            (Kind::Int(1, 5), json!(5), json!(6)),
            (Kind::Int(0, 5), json!(0), json!(-1)),
            (Kind::Int(0, 5), json!(1), json!(1.5)),
            (Kind::IntOrNull(1, 5), json!(null), json!("1")),
            (Kind::TextMap, json!({"a": "b"}), json!({"a": 1})),
            (Kind::TextOrTexts, json!(["a"]), json!([1])),
            (Kind::Objects, json!([{}]), json!({})),
            (Kind::OneOf(&["a", "b"]), json!("b"), json!("c")),
        ] {
            assert_eq!(kind.refuse(&good), None, "{good}");
            assert!(kind.refuse(&bad).is_some_and(|why| why.starts_with("must be ")), "{bad}");
        }
    }
}
