//! `runtime_sandboxes_exec`: a command, followed to its end, and ended if the call is cancelled.

use axum::http::Method;
use bytes::BytesMut;
use futures_util::StreamExt;
use runtime_api::exec::{ExecEvent, ExitEvent};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::api::{Api, Ask, Refusal, encode};
use super::args::Args;
use super::cut::Ends;
use crate::error::{ApiError, Kind};

/// A line of events is a piece of output at most, twice encoded.
const LONGEST_LINE: usize = 4 * 1024 * 1024;

const OF_THE_TOOL: &[&str] = &["id", "command", "argv", "background", "idempotencyKey"];

pub(super) async fn exec(api: &Api, args: &Args, key: &str, cancel: &CancellationToken) -> Result<Value, Refusal> {
    let mut body = Value::Object(args.without(OF_THE_TOOL));
    match (args.get("command"), args.get("argv")) {
        (Some(line @ Value::String(_)), None) => body["command"] = line.clone(),
        (Some(argv @ Value::Array(_)), None) | (None, Some(argv)) => body["argv"] = argv.clone(),
        (Some(_), _) => return Err(api.refuse(&ApiError::wrong("argv", "must not be given together with command"))),
        (None, None) => {
            let missing = ApiError::wrong("command", "is required")
                .hint("Give a line for bash, like \"ls -l\", or a list, like [\"ls\", \"-l\"].");
            return Err(api.refuse(&missing));
        }
    }
    let sandbox = format!("/v1/sandboxes/{}", encode(args.text("id").unwrap_or_default()));
    if args.flag("background") == Some(true) {
        let started = api.json(Ask::new(Method::POST, format!("{sandbox}/processes")).json(&body).key(key)).await?;
        let mut answer =
            json!({ "processId": started["id"].clone(), "state": started["state"].clone(), "process": started });
        answer["next"] = json!("Read its output with runtime_sandboxes_process, action read.");
        return Ok(answer);
    }
    body["stream"] = json!(true);
    let ask = Ask::new(Method::POST, format!("{sandbox}:exec")).json(&body).key(key);
    Run {
        api,
        sandbox,
        ended: None,
        process: None,
        replayed: false,
        lost: 0,
        stdout: Ends::default(),
        stderr: Ends::default(),
    }
    .follow(ask, cancel)
    .await
}

/// A command under way.
struct Run<'a> {
    api: &'a Api,
    /// Its sandbox's path.
    sandbox: String,
    process: Option<String>,
    replayed: bool,
    stdout: Ends,
    stderr: Ends,
    /// Bytes that were gone before they were read.
    lost: u64,
    ended: Option<ExitEvent>,
}

/// How one body of events ended.
enum Slice {
    Ended,
    GoesOn(u64),
}

impl Run<'_> {
    async fn follow(mut self, first: Ask, cancel: &CancellationToken) -> Result<Value, Refusal> {
        let mut ask = first;
        loop {
            let slice = tokio::select! {
                biased;
                () = cancel.cancelled() => return Err(self.end().await),
                slice = self.slice(ask) => slice?,
            };
            match (slice, &self.process) {
                (Slice::GoesOn(cursor), Some(process)) => {
                    ask = Ask::get(format!("{}/processes/{}/output", self.sandbox, encode(process)))
                        .query("cursor", &cursor.to_string())
                        .query("follow", "true");
                }
                _ => return self.answer(),
            }
        }
    }

    async fn slice(&mut self, ask: Ask) -> Result<Slice, Refusal> {
        let api = self.api;
        let mut pieces = api.open(ask).await?.into_body().into_data_stream();
        let broken = |why: &str| api.refuse(&ApiError::fault(Kind::GuestFailed, why, &std::io::Error::other("cut")));
        let mut held = BytesMut::new();
        while let Some(piece) = pieces.next().await {
            held.extend_from_slice(&piece.map_err(|_| broken("following a command"))?);
            while let Some(end) = held.iter().position(|byte| *byte == b'\n') {
                let line = held.split_to(end + 1);
                if line.trim_ascii().is_empty() {
                    continue;
                }
                let event = serde_json::from_slice(&line).map_err(|_| broken("reading an event of a command"))?;
                if let Some(slice) = self.take(event)? {
                    return Ok(slice);
                }
            }
            if held.len() > LONGEST_LINE {
                return Err(broken("reading an event that is too long"));
            }
        }
        Err(broken("following a command to its end"))
    }

    fn take(&mut self, event: ExecEvent) -> Result<Option<Slice>, Refusal> {
        match event {
            ExecEvent::Start { process_id, replayed } => {
                self.process = Some(process_id);
                self.replayed |= replayed;
            }
            ExecEvent::Stdout(piece) => self.stdout.push(&piece.data),
            ExecEvent::Stderr(piece) => self.stderr.push(&piece.data),
            ExecEvent::Truncated { dropped_bytes, .. } => self.lost += dropped_bytes,
            ExecEvent::Exit(exit) => {
                self.ended = Some(exit);
                return Ok(Some(Slice::Ended));
            }
            ExecEvent::Continue { process_id, cursor } => {
                self.process.get_or_insert(process_id);
                return Ok(Some(Slice::GoesOn(cursor)));
            }
            ExecEvent::Error { error, .. } => {
                let mut told = serde_json::to_value(error).unwrap_or_default();
                if let Some(process) = &self.process {
                    told["details"] = json!({ "processId": process });
                }
                return Err(Refusal(told));
            }
        }
        Ok(None)
    }

    /// Ends the command of a cancelled call: nobody waits for it.
    async fn end(&self) -> Refusal {
        let cancelled = |text: &str| {
            Refusal(json!({ "code": "cancelled", "status": 0, "message": text, "requestId": &*self.api.request_id.0 }))
        };
        let Some(process) = &self.process else {
            return cancelled("The call was cancelled before the command began; it may still run.");
        };
        let ask = Ask::new(Method::POST, format!("{}/processes/{}:signal", self.sandbox, encode(process)));
        match self.api.json(ask.json(&json!({ "signal": "SIGKILL" }))).await {
            Ok(_) => cancelled("The call was cancelled, and its command was ended."),
            Err(refusal) => refusal,
        }
    }

    fn answer(self) -> Result<Value, Refusal> {
        let Some(ended) = self.ended else {
            return Err(self.api.refuse(&ApiError::new(Kind::GuestFailed, "The command's end was not told.")));
        };
        let cut = self.stdout.is_cut() || self.stderr.is_cut();
        let mut answer = json!({
            "exitCode": ended.exit_code,
            "stdout": self.stdout.text(),
            "stderr": self.stderr.text(),
            "timedOut": ended.timed_out,
            "durationMs": ended.duration_ms,
            "processId": self.process,
        });
        if cut {
            answer["outputCut"] = json!(true);
        }
        if self.lost > 0 {
            answer["outputLostBytes"] = json!(self.lost);
        }
        if self.replayed {
            answer["replayed"] = json!(true);
        }
        if let Some(memory) = ended.out_of_memory {
            answer["outOfMemory"] = json!(memory);
        }
        Ok(answer)
    }
}
