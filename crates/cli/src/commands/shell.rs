//! A terminal in a sandbox: what is typed goes there as it is, what comes is shown as it is.

use std::io::{IsTerminal, Read};

use anyhow::Context as _;
use bytes::Bytes;
use runtime_api::client::{Frame, OutputStream, SocketSink, path, refusal};
use runtime_service::signals::Signals;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::{Context, Outcome, command};
use crate::args::sandboxes::ShellArgs;
use crate::failure::Failure;
use crate::scan::UsageError;

/// What a terminal takes for the end of input at the start of a line.
const END: u8 = 4;

pub(super) async fn shell(context: &Context, args: ShellArgs) -> Outcome {
    if context.printer.json {
        return Err(UsageError::new("a shell has no JSON form").hint("Use `runtime sandboxes exec --json`.").into());
    }
    let sandbox = context.client.resolve(&args.sandbox).await?;
    let mut query: Vec<(&str, String)> = Vec::new();
    if let Some((cols, rows)) = size() {
        query.extend([("cols", cols.to_string()), ("rows", rows.to_string())]);
    }
    if let Some(command) = args.command {
        query.push(("command", command));
    }
    // Before the terminal changes hands: a shell that cannot be had leaves it as it was.
    let mut signals = Signals::catch().context("cannot watch for Ctrl-C")?;
    let mut resized = signal(SignalKind::window_change()).context("cannot watch the terminal's size")?;
    let route = path(&["v1", "sandboxes", &sandbox, "terminal"]);
    let (_, mut sink, mut stream) = context.client.socket(&route, &query).await?;
    let raw =
        if std::io::stdin().is_terminal() { Some(Raw::enter().context("cannot set the terminal")?) } else { None };
    let mut typed = read_input(raw.is_some())?;
    let mut open = true;
    let code = loop {
        tokio::select! {
            biased;
            signal = signals.next() => break signal.exit_code(),
            frame = stream.next() => match frame? {
                Some(Frame::Bytes(bytes)) => command::pass_on(OutputStream::Stdout, bytes).await?,
                Some(Frame::Text(text)) if text["type"] == "exit" => break exit_code(text["exitCode"].as_i64()),
                Some(Frame::Text(text)) if text["type"] == "error" => return Err(refusal(&text).into()),
                // A later server may say more.
                Some(Frame::Text(_)) => {}
                None => return Err(anyhow::anyhow!("the terminal was closed without an exit").into()),
            },
            _ = resized.recv() => tell_size(&mut sink).await?,
            piece = typed.recv(), if open => match piece {
                Some(bytes) => sink.bytes(bytes).await?,
                None => open = false,
            },
        }
    };
    let _ = sink.close().await;
    Ok(code)
}

fn size() -> Option<(u16, u16)> {
    let size = tcgetwinsize(rustix::stdio::stdout()).or_else(|_| tcgetwinsize(rustix::stdio::stdin())).ok()?;
    (size.ws_col > 0 && size.ws_row > 0).then_some((size.ws_col, size.ws_row))
}

async fn tell_size(sink: &mut SocketSink) -> Result<(), Failure> {
    if let Some((cols, rows)) = size() {
        sink.text(&json!({"type": "resize", "cols": cols, "rows": rows})).await?;
    }
    Ok(())
}

/// The shell's own code; 128 and the signal for a killed one.
fn exit_code(code: Option<i64>) -> u8 {
    crate::exit::code(&runtime_api::client::Exit { exit_code: code, ..Default::default() }, false)
}

/// Reads in a thread of its own, which is left behind at the end: it holds nothing that the end of the program does not
/// free. What is piped in ends as a person would end it.
fn read_input(terminal: bool) -> Result<mpsc::Receiver<Bytes>, Failure> {
    let (send, pieces) = mpsc::channel(4);
    let pump = move || {
        let mut buffer = vec![0; 16 * 1024];
        let mut last = b'\n';
        loop {
            match std::io::stdin().read(&mut buffer) {
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Ok(0) | Err(_) => break,
                Ok(length) => {
                    last = buffer[length - 1];
                    if send.blocking_send(Bytes::copy_from_slice(&buffer[..length])).is_err() {
                        return;
                    }
                }
            }
        }
        if !terminal {
            let end: &'static [u8] = if last == b'\n' { &[END] } else { &[b'\n', END] };
            let _ = send.blocking_send(Bytes::from_static(end));
        }
    };
    std::thread::Builder::new().name("stdin".into()).spawn(pump).context("cannot start reading the input")?;
    Ok(pieces)
}

/// The terminal passes everything on untouched, until this is dropped.
struct Raw {
    before: Termios,
}

impl Raw {
    fn enter() -> rustix::io::Result<Self> {
        let before = tcgetattr(rustix::stdio::stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, &raw)?;
        Ok(Self { before })
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        let _ = tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, &self.before);
    }
}
