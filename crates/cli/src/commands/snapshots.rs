//! Take, list, show, extend and delete snapshots; fork.

use runtime_api::client::Record;
use serde_json::{Map, Value, json};

use super::{Context, Outcome};
use crate::args::sandboxes::{ForkArgs, Mode, SnapshotArgs};
use crate::args::snapshots::LsArgs;
use crate::failure::Failure;
use crate::printer::{facts, plain, table};

pub(super) async fn take(context: &Context, args: SnapshotArgs) -> Outcome {
    let id = context.client.resolve(&args.sandbox).await?;
    let mut body = Map::new();
    body.insert("mode".into(), if args.mode == Mode::Disk { "disk" } else { "memory" }.into());
    name_and_labels(&mut body, args.name, args.labels);
    if let Some(days) = args.retention {
        body.insert("retentionDays".into(), days.into());
    }
    let snapshot = context.client.take_snapshot(&id, &Value::Object(body)).await?;
    if context.printer.json {
        context.printer.value(&snapshot.0)?;
    } else {
        context.printer.line(&plain(snapshot.id()))?;
    }
    if snapshot.text("state") == Some("ready") {
        return Ok(0);
    }
    let why = snapshot.text("error").unwrap_or("It is still being taken.");
    context.printer.talk(&format!("the snapshot is {}: {}", plain(snapshot.text("state").unwrap_or("-")), plain(why)));
    Err(Failure::Said)
}

pub(super) async fn fork(context: &Context, args: ForkArgs) -> Outcome {
    let id = context.client.resolve(&args.sandbox).await?;
    let mut body = Map::new();
    body.insert("count".into(), args.count.into());
    name_and_labels(&mut body, args.name, args.labels);
    if args.keep_snapshot {
        body.insert("keepSnapshot".into(), true.into());
    }
    let forked = context.client.fork_sandbox(&id, &Value::Object(body)).await?;
    if context.printer.json {
        context.printer.value(&forked.0)?;
        return Ok(0);
    }
    for copy in forked.0.get("sandboxes").and_then(Value::as_array).into_iter().flatten() {
        context.printer.line(&plain(copy.get("id").and_then(Value::as_str).unwrap_or("-")))?;
    }
    Ok(0)
}

fn name_and_labels(body: &mut Map<String, Value>, name: Option<String>, labels: Vec<(String, String)>) {
    if let Some(name) = name {
        body.insert("name".into(), name.into());
    }
    if !labels.is_empty() {
        let labels: Map<String, Value> = labels.into_iter().map(|(key, value)| (key, value.into())).collect();
        body.insert("labels".into(), labels.into());
    }
}

pub(super) async fn ls(context: &Context, args: LsArgs) -> Outcome {
    let source = match &args.of {
        Some(word) => Some(context.client.resolve(word).await?),
        None => None,
    };
    let found = context.client.list_snapshots(source.as_deref(), args.name.as_deref()).await?;
    if context.printer.json {
        context.printer.value(&Value::Array(found.into_iter().map(|record| record.0).collect()))?;
    } else if found.is_empty() {
        context.printer.hint("No snapshots. Take one with: runtime sandboxes snapshot SANDBOX");
    } else {
        let rows: Vec<Vec<String>> = found.iter().map(row).collect();
        context.printer.line(&table(&["id", "name", "mode", "state", "sandbox", "created", "expires"], &rows))?;
    }
    Ok(0)
}

fn row(snapshot: &Record) -> Vec<String> {
    ["id", "name", "mode", "state", "sourceSandboxId", "createdAt", "expiresAt"]
        .map(|field| snapshot.text(field).unwrap_or("-").to_owned())
        .into()
}

pub(super) async fn get(context: &Context, word: &str) -> Outcome {
    let id = context.client.resolve_snapshot(word).await?;
    let snapshot = context.client.snapshot(&id).await?;
    if context.printer.json {
        context.printer.value(&snapshot.0)?;
    } else {
        context.printer.line(&facts(&about(&snapshot)))?;
    }
    Ok(0)
}

fn about(snapshot: &Record) -> Vec<(String, String)> {
    let stored = snapshot.int("storedBytes").map_or_else(|| "-".to_owned(), |bytes| format!("{} MiB", bytes >> 20));
    let shown = [
        ("id", "id"),
        ("name", "name"),
        ("mode", "mode"),
        ("state", "state"),
        ("error", "error"),
        ("sandbox", "sourceSandboxId"),
        ("created", "createdAt"),
        ("expires", "expiresAt"),
    ];
    let mut facts: Vec<(String, String)> =
        shown.map(|(name, field)| (name.to_owned(), snapshot.text(field).unwrap_or("-").to_owned())).into();
    facts.push(("stored".to_owned(), stored));
    facts
}

pub(super) async fn extend(context: &Context, word: &str, days: u64) -> Outcome {
    let id = context.client.resolve_snapshot(word).await?;
    let snapshot = context.client.extend_snapshot(&id, &json!({ "retentionDays": days })).await?;
    let until = plain(snapshot.text("expiresAt").unwrap_or("-"));
    if context.printer.json {
        context.printer.value(&snapshot.0)?;
    } else {
        context.printer.line(&format!("{} until {until}", plain(word)))?;
    }
    Ok(0)
}

pub(super) async fn remove(context: &Context, word: &str) -> Outcome {
    let id = context.client.resolve_snapshot(word).await?;
    let snapshot = context.client.delete_snapshot(&id).await?;
    if context.printer.json {
        context.printer.value(&snapshot.0)?;
    } else {
        context.printer.line(&format!("{} deleted", plain(word)))?;
    }
    Ok(0)
}
