//! Processes that live on: start one, list them, read what they say, end one.

use std::io::Write;

use runtime_api::client::{ExecEvent, OutputStream, Record, path};
use serde_json::{Value, json};

use super::{Context, Outcome, command};
use crate::args::sandboxes::{KillArgs, LogsArgs, SpawnArgs};
use crate::failure::Failure;
use crate::printer::{plain, table};

/// A terminal that nobody looks at.
const PTY: (u32, u32) = (120, 40);

fn processes(sandbox: &str) -> String {
    path(&["v1", "sandboxes", sandbox, "processes"])
}

fn one(sandbox: &str, process: &str) -> String {
    path(&["v1", "sandboxes", sandbox, "processes", process])
}

pub(super) async fn spawn(context: &Context, args: SpawnArgs) -> Outcome {
    let mut body = match args.command.as_slice() {
        [line] => json!({ "command": line }),
        words => json!({ "argv": words }),
    };
    if args.pty {
        body["pty"] = json!({ "cols": PTY.0, "rows": PTY.1 });
    }
    if let Some(cwd) = args.cwd {
        body["cwd"] = cwd.into();
    }
    if !args.env.is_empty() {
        body["env"] = Value::Object(args.env.into_iter().map(|(name, value)| (name, value.into())).collect());
    }
    let sandbox = context.client.resolve(&args.sandbox).await?;
    let process = context.client.post(processes(&sandbox), &body).send().await?;
    if context.printer.json {
        context.printer.value(&process.0)?;
    } else {
        context.printer.line(&plain(process.id()))?;
    }
    Ok(0)
}

pub(super) async fn ps(context: &Context, sandbox: &str) -> Outcome {
    let sandbox = context.client.resolve(sandbox).await?;
    let list = context.client.get(processes(&sandbox)).send().await?.data();
    if context.printer.json {
        context.printer.value(&Value::Array(list.into_iter().map(|process| process.0).collect()))?;
    } else if list.is_empty() {
        context.printer.hint("No processes, and none that ended lately.");
    } else {
        context.printer.line(&rows(&list))?;
    }
    Ok(0)
}

fn rows(list: &[Record]) -> String {
    let row = |process: &Record| {
        let number = |field: &str| process.int(field).map_or_else(|| "-".to_owned(), |number| number.to_string());
        let word = |field: &str| process.text(field).unwrap_or("-").to_owned();
        vec![
            process.id().to_owned(),
            word("state"),
            number("exitCode"),
            number("pid"),
            word("startedAt"),
            word("command"),
        ]
    };
    table(&["id", "state", "exit", "pid", "started", "command"], &list.iter().map(row).collect::<Vec<_>>())
}

/// What there is of its output, or with `--follow` all of it until its end.
pub(super) async fn logs(context: &Context, args: LogsArgs) -> Outcome {
    let sandbox = context.client.resolve(&args.sandbox).await?;
    let process = context.client.get(one(&sandbox, &args.process)).send().await?;
    let running = process.text("state") == Some("running");
    if context.printer.json {
        return logs_json(context, &sandbox, &args, &process).await;
    }
    if running && !args.follow {
        let end = process.int("outputBytes").and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or(0);
        let lost = print_until(context, &sandbox, &args.process, end).await?;
        context.printer.talk("The process is still running; --follow stays with it.");
        return Ok(u8::from(lost));
    }
    let mut stream = context.client.follow(&sandbox, &args.process, 0);
    let mut lost = false;
    while let Some(event) = stream.next().await? {
        match event {
            ExecEvent::Output { stream, data } => command::pass_on(stream, data).await?,
            ExecEvent::Lost { bytes } => {
                lost = true;
                tell_lost(context, bytes);
            }
            ExecEvent::Exit(ended) => {
                let code = ended.exit_code.map_or_else(|| "unknown".to_owned(), |code| code.to_string());
                context
                    .printer
                    .talk(&format!("[{}, exit code {code}]", plain(ended.state.as_deref().unwrap_or("ended"))));
            }
            ExecEvent::Start { .. } => {}
        }
    }
    Ok(u8::from(lost))
}

fn tell_lost(context: &Context, bytes: u64) {
    context.printer.talk(&format!("{bytes} bytes of output were lost: only the last part of an output is kept."));
}

/// The chunks of one poll, and where the next begins.
async fn poll(context: &Context, sandbox: &str, process: &str, cursor: u64) -> Result<(Vec<Value>, u64), Failure> {
    let route = format!("{}/output", one(sandbox, process));
    let mut polled = context.client.get(route).query("cursor", cursor.to_string()).send().await?;
    let chunks = match polled.0.get_mut("chunks").map(Value::take) {
        Some(Value::Array(chunks)) => chunks,
        _ => Vec::new(),
    };
    let next = polled.int("nextCursor").and_then(|next| u64::try_from(next).ok()).unwrap_or(cursor);
    Ok((chunks, next.max(cursor)))
}

/// True if some of it was lost.
async fn print_until(context: &Context, sandbox: &str, process: &str, end: u64) -> Result<bool, Failure> {
    let (mut cursor, mut lost) = (0, false);
    while cursor < end {
        let (chunks, next) = poll(context, sandbox, process, cursor).await?;
        for chunk in &chunks {
            let offset = chunk["offset"].as_u64().unwrap_or(cursor);
            if offset > cursor {
                lost = true;
                tell_lost(context, offset - cursor);
            }
            let data = bytes_of(chunk);
            cursor = offset + data.len() as u64;
            match chunk["stream"].as_str() {
                Some("stderr") => std::io::stderr().lock().write_all(&data)?,
                _ => command::pass_on(OutputStream::Stdout, data.into()).await?,
            }
        }
        if next == cursor && chunks.is_empty() {
            break;
        }
        cursor = next;
    }
    Ok(lost)
}

fn bytes_of(chunk: &Value) -> Vec<u8> {
    use base64::Engine as _;
    let raw = chunk["base64"].as_str().and_then(|text| base64::engine::general_purpose::STANDARD.decode(text).ok());
    raw.unwrap_or_else(|| chunk["text"].as_str().unwrap_or_default().as_bytes().to_vec())
}

async fn logs_json(context: &Context, sandbox: &str, args: &LogsArgs, process: &Record) -> Outcome {
    let mut process = process.clone();
    if args.follow && process.text("state") == Some("running") {
        let mut stream = context.client.follow(sandbox, &args.process, 0);
        while stream.next().await?.is_some() {}
        process = context.client.get(one(sandbox, &args.process)).send().await?;
    }
    let end = process.int("outputBytes").and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or(0);
    let (mut cursor, mut chunks, mut truncated) = (0, Vec::new(), false);
    while cursor < end {
        let (more, next) = poll(context, sandbox, &args.process, cursor).await?;
        truncated |= more.first().and_then(|chunk| chunk["offset"].as_u64()).is_some_and(|offset| offset > cursor);
        if next == cursor {
            break;
        }
        chunks.extend(more);
        cursor = next;
    }
    context.printer.value(&json!({
        "processId": process.id(),
        "state": process.text("state"),
        "exitCode": process.int("exitCode"),
        "truncated": truncated,
        "chunks": chunks,
    }))?;
    Ok(0)
}

pub(super) async fn kill(context: &Context, args: KillArgs) -> Outcome {
    let sandbox = context.client.resolve(&args.sandbox).await?;
    let process = context.client.get(one(&sandbox, &args.process)).send().await?;
    if process.text("state") != Some("running") {
        context.printer.talk("The process has ended already.");
    } else {
        context.client.signal(&sandbox, &args.process, &args.signal).await?;
    }
    if context.printer.json {
        context.printer.value(&context.client.get(one(&sandbox, &args.process)).send().await?.0)?;
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_for_each_process() {
        let list = [
            Record(
                json!({"id": "a", "state": "running", "exitCode": null, "pid": 7, "startedAt": "t", "command": "bash -c x\u{1b}[2J"}),
            ),
            Record(json!({"id": "b", "state": "exited", "exitCode": -9, "pid": 8, "startedAt": "t", "command": "ls"})),
        ];
        assert_eq!(
            rows(&list),
            "ID  STATE    EXIT  PID  STARTED  COMMAND\na   running  -     7    t        bash -c x\\u{1b}[2J\nb   exited   -9    8    t        ls"
        );
    }

    #[test]
    fn bytes_are_taken_from_base64_where_it_is_given() {
        assert_eq!(bytes_of(&json!({"text": "\u{fffd}", "base64": "/w=="})), [0xff]);
        assert_eq!(bytes_of(&json!({"text": "a"})), b"a");
    }
}
