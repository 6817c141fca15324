//! A command in a sandbox: its words, its output as it comes, and its end.

use std::io::{self, Write};
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use runtime_api::client::{Client, ExecEvent, ExecStream, Exit, OutputStream};
use runtime_service::signals::{Signal, Signals};
use serde_json::{Value, json};

use crate::args::sandboxes::CommandWords;
use crate::exit;
use crate::failure::Failure;
use crate::printer::{Printer, plain};
use crate::scan::UsageError;

/// What the contract takes for "no limit of one's own".
const LONGEST_MS: u64 = 86_400_000;
/// Up to this, the first 64 KiB of each stream make the result; above, the first MiB.
const SHORT_MS: u64 = 60_000;
const SHORT_KEEPS: usize = 64 * 1024;
const LONG_KEEPS: usize = 1024 * 1024;
/// What a signal to the command may cost before the program ends anyway.
const SIGNAL_PATIENCE: Duration = Duration::from_secs(5);

/// How following a command came to its end.
pub(super) enum Ended {
    /// By itself; with the exit code for it.
    Command { code: u8, result: Value },
    /// By a signal to this program, passed on to the command.
    Signal(Signal),
}

/// Refuses a command without words.
pub(super) fn words(words: &CommandWords, form: &str) -> Result<(), UsageError> {
    if words.words.is_empty() && words.verbatim.is_empty() {
        return Err(
            UsageError::new("there is no command to run").hint(format!("Write: runtime sandboxes {form} -- COMMAND"))
        );
    }
    Ok(())
}

/// The contract's exec body: one word is a shell line, several are a program and its arguments.
pub(super) fn body(words: &[String], timeout_seconds: Option<u64>, printer: Printer) -> Value {
    let mut body = match words {
        [line] => json!({ "command": line }),
        words => json!({ "argv": words }),
    };
    match timeout_seconds {
        Some(seconds) => body["timeoutMs"] = seconds.saturating_mul(1000).into(),
        // One JSON result keeps the contract's default; a stream that is watched has no reason to end.
        None if !printer.json => body["timeoutMs"] = LONGEST_MS.into(),
        None => {}
    }
    body
}

/// Runs it to its end. Output goes where it belongs as it comes, or is kept for one JSON result.
pub(super) async fn follow(
    client: &Client,
    sandbox: &str,
    body: Value,
    printer: Printer,
    signals: &mut Signals,
) -> Result<Ended, Failure> {
    let keeps = match body["timeoutMs"].as_u64() {
        Some(limit) if limit > SHORT_MS => LONG_KEEPS,
        _ => SHORT_KEEPS,
    };
    let mut output = Output { kept: printer.json.then(|| (Kept::new(keeps), Kept::new(keeps))), lost: 0 };
    let mut stream = tokio::select! {
        biased;
        signal = signals.next() => return Ok(Ended::Signal(signal)),
        stream = client.exec(sandbox, body) => stream?,
    };
    let exit = loop {
        let event = tokio::select! {
            // A person who wants to stop must not have to wait for a command that never falls silent.
            biased;
            signal = signals.next() => return interrupted(client, sandbox, &stream, signal).await,
            event = stream.next() => event?,
        };
        match event {
            Some(ExecEvent::Start { .. }) => {}
            Some(ExecEvent::Output { stream: to, data }) => {
                let write = output.take(to, data);
                tokio::select! {
                    biased;
                    signal = signals.next() => return interrupted(client, sandbox, &stream, signal).await,
                    written = write => written?,
                }
            }
            Some(ExecEvent::Lost { bytes }) => output.lost = output.lost.saturating_add(bytes),
            Some(ExecEvent::Exit(exit)) => break exit,
            None => return Err(anyhow::anyhow!("the output ended without an exit").into()),
        }
    };
    output.tell(&exit, printer);
    let code = exit::code(&exit, output.lost > 0);
    Ok(Ended::Command { code, result: output.result(&exit, stream.process_id()) })
}

async fn interrupted(client: &Client, sandbox: &str, stream: &ExecStream, signal: Signal) -> Result<Ended, Failure> {
    if let Some(process) = stream.process_id() {
        // Best effort: the program ends either way.
        let _ = tokio::time::timeout(SIGNAL_PATIENCE, client.signal(sandbox, process, "SIGTERM")).await;
    }
    Ok(Ended::Signal(signal))
}

struct Output {
    /// For one JSON result; otherwise output is passed on.
    kept: Option<(Kept, Kept)>,
    lost: u64,
}

impl Output {
    async fn take(&mut self, to: OutputStream, data: Bytes) -> Result<(), Failure> {
        match (&mut self.kept, to) {
            (Some((stdout, _)), OutputStream::Stdout) => stdout.push(&data),
            (Some((_, stderr)), OutputStream::Stderr) => stderr.push(&data),
            (None, to) => pass_on(to, data).await?,
        }
        Ok(())
    }

    fn tell(&self, exit: &Exit, printer: Printer) {
        if self.lost > 0 {
            printer.talk(&format!("{} bytes of output were lost.", self.lost));
        }
        if exit.timed_out {
            printer.hint("The command ran into its time limit and was ended.");
        }
        if let Some(out_of_memory) = &exit.out_of_memory {
            for part in ["message", "hint"] {
                if let Some(text) = out_of_memory.get(part).and_then(Value::as_str) {
                    printer.hint(&plain(text));
                }
            }
        }
    }

    fn result(&self, exit: &Exit, process: Option<&str>) -> Value {
        let Some((stdout, stderr)) = &self.kept else { return Value::Null };
        let mut result = json!({
            "exitCode": exit.exit_code,
            "stdout": stdout.text(),
            "stderr": stderr.text(),
            "timedOut": exit.timed_out,
            "stdoutTruncated": stdout.truncated || self.lost > 0,
            "stderrTruncated": stderr.truncated || self.lost > 0,
            "durationMs": exit.duration_ms,
            "processId": process,
        });
        if let Some(out_of_memory) = &exit.out_of_memory {
            result["outOfMemory"] = out_of_memory.clone();
        }
        if let Some(files) = &exit.files {
            result["files"] = files.clone();
        }
        result
    }
}

/// The beginning of a stream.
struct Kept {
    bytes: Vec<u8>,
    limit: usize,
    truncated: bool,
}

impl Kept {
    fn new(limit: usize) -> Self {
        Self { bytes: Vec::new(), limit, truncated: false }
    }

    fn push(&mut self, data: &[u8]) {
        let room = self.limit - self.bytes.len();
        self.bytes.extend_from_slice(&data[..data.len().min(room)]);
        self.truncated |= data.len() > room;
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}

/// Writes in a thread of its own: a reader that is slow must not keep a signal from being seen.
pub(super) async fn pass_on(to: OutputStream, data: Bytes) -> Result<(), Failure> {
    let write = move || -> io::Result<()> {
        match to {
            OutputStream::Stdout => {
                let mut out = io::stdout().lock();
                out.write_all(&data)?;
                out.flush()
            }
            OutputStream::Stderr => io::stderr().lock().write_all(&data),
        }
    };
    tokio::task::spawn_blocking(write).await.context("the writer failed")??;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_word_is_a_shell_line() {
        let quiet = Printer { json: true };
        let loud = Printer { json: false };
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(
            body(&["echo a && b".to_owned()], Some(5), quiet),
            json!({"command": "echo a && b", "timeoutMs": 5000})
        );
        assert_eq!(body(&words("ls -la"), None, quiet), json!({"argv": ["ls", "-la"]}));
        assert_eq!(body(&words("ls -la"), None, loud), json!({"argv": ["ls", "-la"], "timeoutMs": 86_400_000}));
    }

    #[test]
    fn only_the_beginning_is_kept() {
        let mut kept = Kept::new(4);
        kept.push(b"abc");
        assert!(!kept.truncated);
        kept.push(b"de");
        kept.push(b"f");
        assert_eq!((kept.text().as_str(), kept.truncated), ("abcd", true));
    }
}
