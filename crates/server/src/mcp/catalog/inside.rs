//! What is in a sandbox: commands, processes and files.

use axum::http::Method;

use super::kind::Kind;
use super::{
    ADDS, CHANGES, DAY_MS, ID, KEY, READS, REPLACES, Route, Shape, Tool, Work, arg, delete, get, needed, post, text,
};

pub(super) const TOOLS: &[Tool] = &[
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
        name: "runtime_sandboxes_files_watch",
        title: "Watch files",
        about: "What happens to files while something else goes on: start answers the watch's `id` and a `cursor`, read \
                answers the changes since a cursor and `nextCursor` to go on with, list shows the watches that go on, stop \
                ends one. Notices say where not everything was told; look at the files themselves then.",
        hints: ADDS,
        args: &[
            ID,
            needed("action", Kind::OneOf(&["start", "read", "list", "stop"]), "What to do."),
            text("path", "start: the file or folder, absolute or below /workspace."),
            arg("recursive", Kind::Bool, "start: with all folders below."),
            arg("include", Kind::Texts, "start: only what matches one of these, like *.py."),
            arg("exclude", Kind::Texts, "start: nothing that matches one of these, like node_modules."),
            arg(
                "timeoutMs",
                Kind::Int(0, DAY_MS),
                "start: it ends by itself after so long; an hour if left out, 0 never.",
            ),
            text("watchId", "read, stop: which one."),
            arg("cursor", Kind::Int(0, 1 << 53), "read: where to go on; 0 is its beginning."),
            arg("waitMs", Kind::Int(0, 8000), "read: wait so long for a change if there is none yet."),
            KEY,
        ],
        work: Work::Actions(&[
            (
                "start",
                post(
                    "/v1/sandboxes/{id}/files/watches",
                    &[
                        ("path", "path"),
                        ("recursive", "recursive"),
                        ("include", "include"),
                        ("exclude", "exclude"),
                        ("timeoutMs", "timeoutMs"),
                    ],
                    0,
                ),
            ),
            (
                "read",
                get("/v1/sandboxes/{id}/files/watches/{watchId}/events", &[("cursor", "cursor"), ("waitMs", "waitMs")]),
            ),
            ("list", get("/v1/sandboxes/{id}/files/watches", &[])),
            ("stop", delete("/v1/sandboxes/{id}/files/watches/{watchId}")),
        ]),
    },
];
