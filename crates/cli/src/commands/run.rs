//! Run a command in a sandbox of its own.
//!
//! Whatever happens after the create was sent, the sandbox is taken away again: the command fails, the connection is cut,
//! or a person presses Ctrl-C, even while it is still starting.

use std::time::Duration;

use anyhow::Context as _;
use runtime_api::client::{Client, Record};
use runtime_service::signals::{Signal, Signals};
use serde_json::Value;

use super::command::{self, Ended};
use super::create::{self, ROOM};
use super::{Context, Outcome, input};
use crate::args::sandboxes::RunArgs;
use crate::failure::Failure;
use crate::printer::{Printer, plain};

/// What cleaning up after a signal may cost.
const CLEANUP: Duration = Duration::from_secs(30);

pub(super) async fn run(context: &Context, args: &RunArgs) -> Outcome {
    let mut body = command::body(&args.command.all(), args.timeout, context.printer);
    if let Some(cwd) = &args.cwd {
        body["cwd"] = cwd.as_str().into();
    }
    input::attach(&mut body)?;
    let mut signals = Signals::catch().context("cannot watch for Ctrl-C")?;
    let new = create::body(&args.new, None);
    let errand = Errand { client: &context.client, printer: context.printer, keep: args.keep };
    let (code, result) = errand.run(&new, body, &mut signals).await?;
    if context.printer.json && !result.is_null() {
        context.printer.value(&result)?;
    }
    Ok(code)
}

/// One command in a fresh sandbox.
pub(super) struct Errand<'a> {
    pub(super) client: &'a Client,
    pub(super) printer: Printer,
    pub(super) keep: bool,
}

impl Errand<'_> {
    /// The exit code, and the command's result when it is to be JSON.
    pub(super) async fn run(&self, new: &Value, command: Value, signals: &mut Signals) -> Result<(u8, Value), Failure> {
        // Answered before it runs, so that its id is known from the start and a signal can take it away.
        let mut creating = std::pin::pin!(self.client.create_sandbox(new, ROOM, false));
        let created = tokio::select! {
            biased;
            signal = signals.next() => {
                self.printer.hint("Waiting for the answer to the create, to delete its sandbox. Ctrl-C again does not wait.");
                return tokio::select! {
                    biased;
                    _ = signals.next() => Ok((signal.exit_code(), Value::Null)),
                    late = tokio::time::timeout(CLEANUP, creating) => match late {
                        Ok(Ok(record)) => self.after_signal(&record, signal, signals).await,
                        // It was refused, or nobody knows: there is no id to clean up by.
                        _ => Ok((signal.exit_code(), Value::Null)),
                    },
                };
            }
            created = &mut creating => created?,
        };
        let outcome = tokio::select! {
            biased;
            signal = signals.next() => Ok(Ended::Signal(signal)),
            started = create::started(self.client, created.clone()) => started.map(|_| ()).map(|()| Ended::Command { code: 0, result: Value::Null }),
        };
        let outcome = match outcome {
            Ok(Ended::Command { .. }) => {
                command::follow(self.client, created.id(), command, self.printer, signals).await
            }
            early => early,
        };
        match outcome {
            Ok(Ended::Signal(signal)) => self.after_signal(&created, signal, signals).await,
            Ok(Ended::Command { code, result }) => {
                let clean = self.clean_up(&created).await;
                Ok((if clean { code } else { 1 }, result))
            }
            Err(failure) => {
                self.clean_up(&created).await;
                Err(failure)
            }
        }
    }

    async fn after_signal(
        &self,
        created: &Record,
        signal: Signal,
        signals: &mut Signals,
    ) -> Result<(u8, Value), Failure> {
        let why = tokio::select! {
            biased;
            _ = signals.next() => Some("interrupted again"),
            clean = tokio::time::timeout(CLEANUP, self.clean_up(created)) => {
                clean.is_err().then_some("the server did not answer in time")
            }
        };
        if let Some(why) = why {
            self.printer.talk(&left_behind(created, why));
        }
        Ok((signal.exit_code(), Value::Null))
    }

    /// Whether the sandbox is gone, or stays on purpose.
    async fn clean_up(&self, created: &Record) -> bool {
        let id = created.id();
        if self.keep {
            let word = created.text("name").unwrap_or(id);
            // Not a hint: with --json nothing else tells the id.
            self.printer.talk(&format!("Kept sandbox {id}. Delete it with: runtime sandboxes rm {}", plain(word)));
            return true;
        }
        // One that was there before is not this command's to delete.
        let gone = if created.flag("reused") == Some(true) {
            self.client.stop_sandbox(id).await
        } else {
            self.client.delete_sandbox(id).await
        };
        match gone {
            Ok(_) => true,
            Err(error) if error.status == 404 => true,
            Err(error) => {
                self.printer.talk(&left_behind(created, &error.message));
                false
            }
        }
    }
}

fn left_behind(created: &Record, why: &str) -> String {
    let id = created.id();
    format!("Sandbox {id} was left behind: {}. Delete it with: runtime sandboxes rm {id}", plain(why))
}
