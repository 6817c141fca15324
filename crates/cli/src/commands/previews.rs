//! Give ports of a sandbox web addresses, list them, and take them away.

use runtime_api::client::Record;
use serde_json::{Value, json};

use super::{Context, Outcome};
use crate::args::previews::{PreviewArgs, UnshareArgs, Wanted};
use crate::printer::{plain, table};

pub(super) async fn preview(context: &Context, args: &PreviewArgs) -> Outcome {
    let preview = match args.wanted()? {
        Wanted::Share { sandbox, port } => {
            let id = context.client.resolve(sandbox).await?;
            let visibility = if args.public { "public" } else { "private" };
            let mut body = json!({ "port": port, "visibility": visibility });
            if let Some(seconds) = args.ttl {
                body["ttlSeconds"] = seconds.into();
            }
            context.client.create_preview(&id, &body).await?
        }
        Wanted::Rotate { sandbox, port } => {
            let id = context.client.resolve(sandbox).await?;
            context.client.rotate_preview(&id, port).await?
        }
    };
    if context.printer.json {
        context.printer.value(&preview.0)?;
        return Ok(0);
    }
    let opens = preview.text("urlWithToken").or_else(|| preview.text("url")).unwrap_or("-");
    context.printer.line(&plain(opens))?;
    if let Some(until) = preview.text("tokenExpiresAt") {
        context.printer.hint(&format!("Whoever has this link sees it until {}.", plain(until)));
    }
    if let Some(hint) = preview.text("hint") {
        context.printer.hint(&plain(hint));
    }
    Ok(0)
}

pub(super) async fn ls(context: &Context, sandbox: &str) -> Outcome {
    let id = context.client.resolve(sandbox).await?;
    let found = context.client.previews(&id).await?;
    if context.printer.json {
        context.printer.value(&Value::Array(found.into_iter().map(|record| record.0).collect()))?;
    } else if found.is_empty() {
        context.printer.hint("No port has an address. Give one with: runtime sandboxes preview SANDBOX PORT");
    } else {
        let rows: Vec<Vec<String>> = found.iter().map(row).collect();
        context.printer.line(&table(&["port", "visibility", "url", "created"], &rows))?;
    }
    Ok(0)
}

fn row(preview: &Record) -> Vec<String> {
    let mut row = vec![preview.int("port").map_or_else(|| "-".to_owned(), |port| port.to_string())];
    row.extend(["visibility", "url", "createdAt"].map(|field| preview.text(field).unwrap_or("-").to_owned()));
    row
}

pub(super) async fn unshare(context: &Context, args: &UnshareArgs) -> Outcome {
    let id = context.client.resolve(&args.sandbox).await?;
    let gone = context.client.delete_preview(&id, args.port).await?;
    if context.printer.json {
        context.printer.value(&gone.0)?;
    } else {
        context.printer.line(&format!("{} deleted", args.port))?;
    }
    Ok(0)
}
