//! Make, list and revoke sessions of a sandbox.

use runtime_api::client::Record;
use serde_json::{Map, Value};

use super::{Context, Outcome};
use crate::args::sessions::{CreateArgs, SessionVerb};
use crate::printer::{plain, table};

pub(super) async fn session(context: &Context, verb: SessionVerb) -> Outcome {
    match verb {
        SessionVerb::Create(args) => create(context, args).await,
        SessionVerb::Ls(args) => ls(context, &args.sandbox).await,
        SessionVerb::Revoke(args) => revoke(context, &args.sandbox, &args.session).await,
    }
}

async fn create(context: &Context, args: CreateArgs) -> Outcome {
    let id = context.client.resolve(&args.sandbox).await?;
    let mut body = Map::new();
    if !args.origins.is_empty() {
        body.insert("origins".into(), args.origins.into());
    }
    if let Some(seconds) = args.ttl {
        body.insert("ttlSeconds".into(), seconds.into());
    }
    if let Some(name) = args.name {
        body.insert("name".into(), name.into());
    }
    let session = context.client.create_session(&id, &Value::Object(body)).await?;
    if context.printer.json {
        context.printer.value(&session.0)?;
        return Ok(0);
    }
    context.printer.line(&plain(session.text("token").unwrap_or("-")))?;
    let (until, at) = (session.text("expiresAt").unwrap_or("-"), session.text("apiUrl").unwrap_or("-"));
    context.printer.hint(&format!("Session {} until {}, at {}", plain(session.id()), plain(until), plain(at)));
    Ok(0)
}

async fn ls(context: &Context, sandbox: &str) -> Outcome {
    let id = context.client.resolve(sandbox).await?;
    let found = context.client.sessions(&id).await?;
    if context.printer.json {
        context.printer.value(&Value::Array(found.into_iter().map(|record| record.0).collect()))?;
    } else if found.is_empty() {
        context.printer.hint("No sessions. Make one with: runtime sandboxes session create SANDBOX --origin ORIGIN");
    } else {
        let rows: Vec<Vec<String>> = found.iter().map(row).collect();
        context.printer.line(&table(&["id", "name", "state", "created", "expires", "origins"], &rows))?;
    }
    Ok(0)
}

fn row(session: &Record) -> Vec<String> {
    let mut row: Vec<String> = ["id", "name", "state", "createdAt", "expiresAt"]
        .map(|field| session.text(field).unwrap_or("-").to_owned())
        .into();
    let origins = session.0.get("origins").and_then(Value::as_array).into_iter().flatten();
    let origins: Vec<&str> = origins.filter_map(Value::as_str).collect();
    row.push(if origins.is_empty() { "-".to_owned() } else { origins.join(" ") });
    row
}

async fn revoke(context: &Context, sandbox: &str, session: &str) -> Outcome {
    let id = context.client.resolve(sandbox).await?;
    let revoked = context.client.revoke_session(&id, session).await?;
    if context.printer.json {
        context.printer.value(&revoked.0)?;
    } else {
        context.printer.line(&format!("{} {}", plain(session), plain(revoked.text("state").unwrap_or("-"))))?;
    }
    Ok(0)
}
