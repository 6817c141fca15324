//! Stop, restart, resize, pause, wake, extend, delete.

use futures_util::StreamExt;
use runtime_api::client::{ListFilter, Record};
use runtime_api::sandbox::ResizeSandbox;
use serde_json::{Value, json};

use super::create::ROOM;
use super::{Context, Outcome};
use crate::args::sandboxes::{ResizeArgs, StopArgs};
use crate::failure::{Failure, error_json};
use crate::printer::plain;

/// How many are stopped at a time.
const AT_ONCE: usize = 8;

pub(super) async fn stop(context: &Context, args: StopArgs) -> Outcome {
    let Some(word) = args.sandbox else { return stop_labelled(context, args.labels).await };
    let id = context.client.resolve(&word).await?;
    let record = context.client.stop_sandbox(&id).await?;
    tell(context, &word, &record)
}

pub(super) async fn restart(context: &Context, word: &str) -> Outcome {
    let id = context.client.resolve(word).await?;
    let record = context.client.restart_sandbox(&id, ROOM).await?;
    let record = super::create::started(&context.client, record).await?;
    tell(context, word, &record)
}

pub(super) async fn resize(context: &Context, args: ResizeArgs) -> Outcome {
    let ResizeArgs { sandbox: word, vcpu, memory, disk, restart } = args;
    let id = context.client.resolve(&word).await?;
    let wanted = ResizeSandbox { restart, vcpu, memory_mib: memory, disk_mib: disk };
    let record = context.client.resize_sandbox(&id, &wanted, ROOM).await?;
    let record = super::create::started(&context.client, record).await?;
    tell(context, &word, &record)
}

pub(super) async fn pause(context: &Context, word: &str) -> Outcome {
    let id = context.client.resolve(word).await?;
    let record = context.client.pause_sandbox(&id).await?;
    tell(context, word, &record)
}

pub(super) async fn wake(context: &Context, word: &str, seconds: Option<u64>) -> Outcome {
    let id = context.client.resolve(word).await?;
    let record = context.client.wake_sandbox(&id, seconds, ROOM).await?;
    let record = super::create::started(&context.client, record).await?;
    tell(context, word, &record)
}

pub(super) async fn extend(context: &Context, word: &str, seconds: u64) -> Outcome {
    let id = context.client.resolve(word).await?;
    let record = context.client.extend_sandbox(&id, seconds).await?;
    if context.printer.json {
        context.printer.value(&record.0)?;
    } else {
        let until =
            record.text("endsAt").map_or_else(|| "no time limit".to_owned(), |at| format!("until {}", plain(at)));
        context.printer.line(&format!("{} {until}", plain(word)))?;
    }
    Ok(0)
}

pub(super) async fn remove(context: &Context, word: &str) -> Outcome {
    let id = context.client.resolve(word).await?;
    let record = context.client.delete_sandbox(&id).await?;
    if context.printer.json {
        context.printer.value(&record.0)?;
    } else {
        context.printer.line(&format!("{} deleted", plain(word)))?;
    }
    Ok(0)
}

/// The word that was typed and what became of it.
fn tell(context: &Context, word: &str, record: &Record) -> Outcome {
    if context.printer.json {
        context.printer.value(&record.0)?;
    } else {
        context.printer.line(&format!("{} {}", plain(word), plain(record.text("state").unwrap_or("-"))))?;
    }
    Ok(0)
}

/// Every one that carries all the labels; one that fails keeps no other from stopping.
async fn stop_labelled(context: &Context, labels: Vec<(String, String)>) -> Outcome {
    // The whole list first: stopping changes what later pages hold.
    let found = context.client.list_sandboxes(&ListFilter { labels, ..ListFilter::default() }).await?;
    let outcomes: Vec<_> = futures_util::stream::iter(found)
        .map(|sandbox| async move {
            let outcome = context.client.stop_sandbox(sandbox.id()).await;
            (sandbox, outcome)
        })
        .buffered(AT_ONCE)
        .collect()
        .await;
    let mut stopped = Vec::new();
    let mut failed = Vec::new();
    for (sandbox, outcome) in outcomes {
        match outcome {
            Ok(record) => stopped.push(record),
            Err(error) => failed.push((sandbox, error)),
        }
    }
    let all_well = failed.is_empty();
    if context.printer.json {
        let failed: Vec<Value> = failed
            .iter()
            .map(|(sandbox, error)| json!({"id": sandbox.id(), "error": error_json(error)["error"]}))
            .collect();
        let stopped: Vec<Value> = stopped.into_iter().map(|record| record.0).collect();
        context.printer.value(&json!({ "stopped": stopped, "failed": failed }))?;
    } else {
        for record in &stopped {
            context.printer.line(&format!("{} {}", plain(record.id()), plain(record.text("state").unwrap_or("-"))))?;
        }
        for (sandbox, error) in &failed {
            context.printer.talk(&format!(
                "{} was not stopped [{}]: {}",
                plain(sandbox.id()),
                plain(&error.code),
                plain(&error.message)
            ));
        }
        if stopped.is_empty() && all_well {
            context.printer.hint("No sandbox carries those labels.");
        }
    }
    if all_well { Ok(0) } else { Err(Failure::Said) }
}
