//! What a sandbox may reach, and what was decided about its connections.

use runtime_api::client::{ClientError, Record};
use serde_json::{Value, json};

use super::{Context, Outcome};
use crate::args::sandboxes::{NetworkArgs, NetworkLogArgs};
use crate::printer::{facts, table};

/// Shows the rules; with any option, replaces them first.
pub(super) async fn network(context: &Context, args: &NetworkArgs) -> Outcome {
    let id = context.client.resolve(&args.sandbox).await?;
    let network = match rules(args) {
        Some(rules) => context.client.set_network(&id, &rules).await?,
        None => context.client.network(&id).await?,
    };
    if context.printer.json {
        context.printer.value(&network.0)?;
    } else {
        context.printer.line(&facts(&about(&network)))?;
    }
    Ok(0)
}

/// Rules say that there is a way out, unless it is closed in words.
fn rules(args: &NetworkArgs) -> Option<Value> {
    let lists = [("allow", &args.allow), ("deny", &args.deny), ("connect", &args.connect)];
    if !args.internet && !args.no_internet && lists.iter().all(|(_, places)| places.is_empty()) {
        return None;
    }
    let mut rules = json!({ "internet": !args.no_internet });
    for (name, places) in lists.into_iter().filter(|(_, places)| !places.is_empty()) {
        rules[name] = json!(places);
    }
    Some(rules)
}

fn about(network: &Record) -> Vec<(String, String)> {
    let places = |field: &str| {
        let places = network.0.get(field).and_then(Value::as_array).into_iter().flatten();
        let places: Vec<&str> = places.filter_map(Value::as_str).collect();
        if places.is_empty() { "-".to_owned() } else { places.join(", ") }
    };
    let yes = |flag: Option<bool>| flag.map_or("-", |flag| if flag { "yes" } else { "no" }).to_owned();
    [
        ("internet", yes(network.flag("internet"))),
        ("allow", places("allow")),
        ("deny", places("deny")),
        ("connect", places("connect")),
        ("in force", yes(network.flag("enforced"))),
        ("changed", network.text("updatedAt").unwrap_or("-").to_owned()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

/// The newest decisions, the newest last, as a log reads.
pub(super) async fn log(context: &Context, args: &NetworkLogArgs) -> Outcome {
    let id = context.client.resolve(&args.sandbox).await?;
    let wanted = usize::try_from(args.limit).unwrap_or(usize::MAX);
    let mut decisions = Vec::new();
    let mut cursor: Option<String> = None;
    while decisions.len() < wanted {
        let page = context.client.network_decisions(&id, cursor.as_deref()).await?;
        let next = page.text("nextCursor").map(str::to_owned);
        decisions.extend(page.data().into_iter().filter(|one| !args.refused || one.text("verdict") == Some("refused")));
        if next.is_none() {
            break;
        }
        if next == cursor {
            return Err(ClientError::local("invalid_answer", "the server gave the same page twice").into());
        }
        cursor = next;
    }
    decisions.truncate(wanted);
    if context.printer.json {
        context.printer.value(&Value::Array(decisions.into_iter().map(|record| record.0).collect()))?;
        return Ok(0);
    }
    decisions.reverse();
    if decisions.is_empty() {
        context.printer.hint("Nothing was decided yet: no command of it has asked for a connection.");
        return Ok(0);
    }
    let rows: Vec<Vec<String>> = decisions.iter().map(row).collect();
    context.printer.line(&table(&["at", "verdict", "reason", "where", "rule", "sent", "received", "who"], &rows))?;
    Ok(0)
}

fn row(decision: &Record) -> Vec<String> {
    let text = |field: &str| decision.text(field).unwrap_or("-").to_owned();
    let number = |field: &str| decision.int(field).map_or_else(|| "-".to_owned(), |number| number.to_string());
    let place = match (text("host"), decision.int("port")) {
        (host, Some(port)) if host.contains(':') => format!("[{host}]:{port}"),
        (host, Some(port)) => format!("{host}:{port}"),
        (host, None) => host,
    };
    let process = decision.0.get("process").filter(|process| process.is_object());
    let who = process.map_or_else(
        || "-".to_owned(),
        |process| {
            let program = process["program"].as_str().unwrap_or("-");
            match process["processId"].as_str() {
                Some(command) => format!("{program} in {command}"),
                None => format!("{program} ({})", process["pid"]),
            }
        },
    );
    vec![
        text("at"),
        text("verdict"),
        text("reason"),
        place,
        text("rule"),
        number("sentBytes"),
        number("receivedBytes"),
        who,
    ]
}
