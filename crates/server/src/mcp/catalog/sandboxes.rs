//! Sandboxes themselves: making, finding and changing them.

use super::kind::Kind;
use super::{ADDS, CHANGES, ID, KEY, READS, REPLACES, Tool, Work, arg, delete, get, needed, post, put, text};

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
            ("delete", delete("/v1/sandboxes/{id}")),
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
        name: "runtime_sandboxes_fork",
        title: "Fork a sandbox",
        about: "Make copies of a sandbox that go on from where it stands, with its files, memory and processes, each on its \
                own: to try several ways from one point. The sandbox itself stands still for a moment and goes on. \
                Answers `sandboxes`, one record for each copy; look at the state of each. A copy has the settings and the \
                variables of its source.",
        hints: ADDS,
        args: &[
            ID,
            arg("count", Kind::Int(1, 16), "How many copies; 1 if left out."),
            text("name", "The name of the first copy; the others are called name-1, name-2 and so on."),
            arg("labels", Kind::TextMap, "Labels of the copies; those of the sandbox if left out."),
            arg("keepSnapshot", Kind::Bool, "Keep the snapshot that the copies are made from."),
            KEY,
        ],
        work: Work::One(post(
            "/v1/sandboxes/{id}:fork",
            &[("count", "count"), ("name", "name"), ("labels", "labels"), ("keepSnapshot", "keepSnapshot")],
            60,
        )),
    },
    Tool {
        name: "runtime_sandboxes_network",
        title: "What a sandbox may reach",
        about: "get: the network rules of a sandbox. set: replace them, for open connections too; a list that is left out \
                becomes empty. Entries of allow and deny are a name, *.name for all below it, an address, or a range of \
                addresses.",
        hints: REPLACES,
        args: &[
            ID,
            needed("action", Kind::OneOf(&["get", "set"]), "What to do."),
            arg(
                "internet",
                Kind::Bool,
                "set, required: whether it reaches the internet; false with a filled allow means that list alone.",
            ),
            arg("allow", Kind::Texts, "set: if it is not empty, only these are reached."),
            arg("deny", Kind::Texts, "set: never reached, whatever else is said."),
            arg("connect", Kind::Texts, "set: host:port, reached beside allow."),
            KEY,
        ],
        work: Work::Actions(&[
            ("get", get("/v1/sandboxes/{id}/network", &[])),
            (
                "set",
                put(
                    "/v1/sandboxes/{id}/network",
                    &[("internet", "internet"), ("allow", "allow"), ("deny", "deny"), ("connect", "connect")],
                ),
            ),
        ]),
    },
    Tool {
        name: "runtime_sandboxes_previews",
        title: "Web addresses of ports, and sessions",
        about: "Shows a web server that runs in a sandbox: create gives its port an address and answers `urlWithToken`, \
                which opens in a browser (with visibility public: `url`, for everybody). Start the server first, in the \
                background. A visit wakes a paused sandbox. list shows the ports that have one, rotate ends every link of \
                before, delete the address. A session is a way into this one sandbox without a key, for a web page or \
                another program: session_create answers its `token` and the `apiUrl` to use it at, once; a repeated call \
                answers the same session with a null token: revoke that one and make another. session_list shows those \
                that live, session_revoke ends one and what it has open.",
        hints: CHANGES,
        args: &[
            ID,
            needed(
                "action",
                Kind::OneOf(&[
                    "create",
                    "list",
                    "rotate",
                    "delete",
                    "session_create",
                    "session_list",
                    "session_revoke",
                ]),
                "What to do.",
            ),
            arg("port", Kind::Int(1, 65_535), "create, rotate, delete: the port that the server listens on."),
            arg("visibility", Kind::OneOf(&["private", "public"]), "create: who may see it; private if left out."),
            arg("ttlSeconds", Kind::Int(60, 604_800), "create: how long the link lasts at least; a day if left out."),
            text("expiresAt", "create: when the link ends at the latest, like 2027-01-31T12:00:00Z."),
            arg(
                "embedOrigins",
                Kind::Texts,
                "create: sites that may show it in a frame, like https://app.example.com; an empty list: any.",
            ),
            arg(
                "sessionSeconds",
                Kind::Int(60, 86_400),
                "session_create: how long the session lives; 3600 if left out.",
            ),
            arg(
                "origins",
                Kind::Texts,
                "session_create: origins of the pages that may use it, like https://app.example.com; without any, only \
                 programs that are no page.",
            ),
            text("sessionId", "session_revoke: which one."),
            KEY,
        ],
        work: Work::Actions(&[
            (
                "create",
                post(
                    "/v1/sandboxes/{id}/previews",
                    &[
                        ("port", "port"),
                        ("visibility", "visibility"),
                        ("ttlSeconds", "ttlSeconds"),
                        ("expiresAt", "expiresAt"),
                        ("embedOrigins", "embedOrigins"),
                    ],
                    0,
                ),
            ),
            ("list", get("/v1/sandboxes/{id}/previews", &[])),
            ("rotate", post("/v1/sandboxes/{id}/previews/{port}:rotate", &[], 0)),
            ("delete", delete("/v1/sandboxes/{id}/previews/{port}")),
            (
                "session_create",
                post("/v1/sandboxes/{id}/sessions", &[("sessionSeconds", "ttlSeconds"), ("origins", "origins")], 0),
            ),
            ("session_list", get("/v1/sandboxes/{id}/sessions", &[])),
            ("session_revoke", post("/v1/sandboxes/{id}/sessions/{sessionId}:revoke", &[], 0)),
        ]),
    },
];
