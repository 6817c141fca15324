//! List sandboxes.

use runtime_api::client::{ListFilter, Record};
use serde_json::Value;

use super::{Context, Outcome};
use crate::args::sandboxes::LsArgs;
use crate::printer::table;

pub(super) async fn ls(context: &Context, args: LsArgs) -> Outcome {
    let filter = ListFilter {
        states: args.states,
        labels: args.labels,
        name: None,
        // All are asked for, so that those that are left out can be counted.
        include_stopped: true,
    };
    let all = context.client.list_sandboxes(&filter).await?;
    let total = all.len();
    let shown: Vec<Record> = all.into_iter().filter(|sandbox| args.all || !ended(sandbox)).collect();
    let hidden = total - shown.len();
    if context.printer.json {
        context.printer.value(&Value::Array(shown.into_iter().map(|record| record.0).collect()))?;
        return Ok(0);
    }
    if shown.is_empty() {
        context.printer.hint("No sandboxes. Create one with: runtime sandboxes create");
    } else {
        context.printer.line(&table(&["id", "name", "state", "vcpu", "memory", "created"], &rows(&shown)))?;
    }
    if hidden > 0 {
        let plural = if hidden == 1 { "sandbox is" } else { "sandboxes are" };
        context.printer.hint(&format!("{hidden} stopped {plural} not shown; see them with --all."));
    }
    Ok(0)
}

/// Stopped with nothing left to restart.
fn ended(sandbox: &Record) -> bool {
    sandbox.text("state") == Some("stopped") && sandbox.flag("diskKept") != Some(true)
}

fn rows(sandboxes: &[Record]) -> Vec<Vec<String>> {
    let row = |sandbox: &Record| {
        let text = |field: &str| sandbox.text(field).unwrap_or("-").to_owned();
        let number = |field: &str, unit: &str| {
            sandbox.int(field).map_or_else(|| "-".to_owned(), |number| format!("{number}{unit}"))
        };
        vec![
            text("id"),
            text("name"),
            text("state"),
            number("vcpu", ""),
            number("memoryMiB", " MiB"),
            text("createdAt"),
        ]
    };
    sandboxes.iter().map(row).collect()
}
