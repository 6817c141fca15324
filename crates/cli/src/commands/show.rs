//! Everything about one sandbox.

use runtime_api::client::Record;
use serde_json::Value;

use super::{Context, Outcome};
use crate::args::values::show_dollars;
use crate::printer::facts;

pub(super) async fn get(context: &Context, word: &str) -> Outcome {
    let id = context.client.resolve(word).await?;
    let sandbox = context.client.sandbox(&id).await?;
    if context.printer.json {
        context.printer.value(&sandbox.0)?;
    } else {
        context.printer.line(&facts(&about(&sandbox)))?;
    }
    Ok(0)
}

fn about(sandbox: &Record) -> Vec<(String, String)> {
    let text = |field: &str| sandbox.text(field).unwrap_or("-").to_owned();
    let number =
        |field: &str, unit: &str| sandbox.int(field).map_or_else(|| "-".to_owned(), |number| format!("{number}{unit}"));
    let seconds = |field: &str| match sandbox.int(field) {
        Some(0) => "none".to_owned(),
        Some(seconds) => format!("{seconds} s"),
        None => "-".to_owned(),
    };
    let flag = |field: &str| sandbox.flag(field).map_or("-", |flag| if flag { "yes" } else { "no" }).to_owned();
    let at_end = sandbox.text("onTimeout").or_else(|| sandbox.text("onLeaseEnd")).unwrap_or("-").to_owned();
    let charged = sandbox.0.get("chargedMicros").and_then(micros).map_or_else(|| "-".to_owned(), show_dollars);
    [
        ("id", text("id")),
        ("name", text("name")),
        ("state", text("state")),
        ("stop reason", text("stopReason")),
        ("labels", pairs(sandbox, "labels")),
        ("variables", names(sandbox, "envNames")),
        ("image", text("image")),
        (
            "size",
            format!("{} vCPU, {}, {} disk", number("vcpu", ""), number("memoryMiB", " MiB"), number("diskMiB", " MiB")),
        ),
        ("created", text("createdAt")),
        ("time limit", seconds("timeoutSeconds")),
        ("ends", text("endsAt")),
        ("at its end", at_end),
        ("idle pause", seconds("idlePauseSeconds")),
        ("auto wake", flag("autoWake")),
        ("persistent", flag("persistent")),
        ("disk kept", flag("diskKept")),
        ("charged", charged),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

/// Money of the API: a whole number, in places as text.
pub(super) fn micros(value: &Value) -> Option<i64> {
    value.as_i64().or_else(|| value.as_str()?.parse().ok())
}

fn pairs(sandbox: &Record, field: &str) -> String {
    let pairs: Vec<String> = sandbox
        .0
        .get(field)
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()))
        .collect();
    or_dash(pairs)
}

fn names(sandbox: &Record, field: &str) -> String {
    let names = sandbox.0.get(field).and_then(Value::as_array).into_iter().flatten();
    or_dash(names.filter_map(Value::as_str).map(str::to_owned).collect())
}

fn or_dash(words: Vec<String>) -> String {
    if words.is_empty() { "-".into() } else { words.join(", ") }
}
