//! What is kept apart from sandboxes.

use axum::http::Method;

use super::kind::Kind;
use super::{CHANGES, KEY, READS, Route, Shape, Tool, Work, arg, delete, get, needed, post, text};

pub(super) const TOOLS: &[Tool] = &[
    Tool {
        name: "runtime_snapshots",
        title: "Snapshots",
        about: "A snapshot keeps what a sandbox is, apart from it: its disk, or its disk with memory and processes. create \
                takes one of a sandbox, which goes on as it was; sandboxes are made from it by runtime_sandboxes_create, \
                argument snapshot, as often as wanted. list, get, update its name or labels, delete.",
        hints: CHANGES,
        args: &[
            needed("action", Kind::OneOf(&["create", "list", "get", "update", "delete"]), "What to do."),
            text("sandboxId", "create: of which sandbox, required. list: only of this one."),
            text("id", "The snapshot's id; for get, update and delete."),
            arg(
                "mode",
                Kind::OneOf(&["memory", "disk"]),
                "create: memory keeps memory and processes too, and is the default; disk keeps the disk alone.",
            ),
            text("name", "create, update: its name. list: only those of this name."),
            arg("retentionDays", Kind::Int(1, 365), "create: delete it after so many days; after a year if left out."),
            arg("labels", Kind::TextMap, "create, update: all its labels; at create those of the sandbox if left out."),
            arg("ifLabels", Kind::TextMap, "update: change nothing unless these are its labels."),
            arg(
                "state",
                Kind::OneOf(&["capturing", "ready", "failed", "deleting", "deleted"]),
                "list: only in this state.",
            ),
            arg("limit", Kind::Int(1, 100), "list: most on a page; 50 if left out."),
            text("cursor", "list: the nextCursor of the page before."),
            KEY,
        ],
        work: Work::Actions(&[
            (
                "create",
                Route {
                    method: Method::POST,
                    path: "/v1/sandboxes/{sandboxId}:snapshot",
                    fields: &[
                        ("mode", "mode"),
                        ("name", "name"),
                        ("retentionDays", "retentionDays"),
                        ("labels", "labels"),
                    ],
                    wait: 60,
                    shape: Shape::Snapshot,
                },
            ),
            (
                "list",
                get(
                    "/v1/snapshots",
                    &[
                        ("sandboxId", "sandboxId"),
                        ("name", "name"),
                        ("state", "state"),
                        ("limit", "limit"),
                        ("cursor", "cursor"),
                    ],
                ),
            ),
            ("get", get("/v1/snapshots/{id}", &[])),
            (
                "update",
                post(
                    "/v1/snapshots/{id}:update",
                    &[("name", "name"), ("labels", "labels"), ("ifLabels", "ifLabels")],
                    0,
                ),
            ),
            ("delete", delete("/v1/snapshots/{id}")),
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
