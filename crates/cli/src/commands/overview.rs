//! What is said when nothing was asked.

use std::time::Duration;

use serde_json::json;

use super::Outcome;
use crate::args::VERSION;
use crate::connect::{client, target};
use crate::failure::Failure;
use crate::printer::Printer;
use crate::surroundings::Surroundings;

/// Long enough for a server that is there.
const PATIENCE: Duration = Duration::from_secs(2);

pub(super) async fn overview(around: &Surroundings, printer: Printer) -> Outcome {
    let target = target(around)?;
    let state = state(&target, printer).await?;
    if printer.json {
        printer.value(&json!({ "version": VERSION, "api": target.origin.as_str(), "connected": state.is_ok() }))?;
        return Ok(0);
    }
    let connection = match &state {
        Ok(()) => format!("Connected to {}.", target.origin.as_str()),
        Err(why) => format!("Not connected: {why}."),
    };
    let first = if state.is_ok() {
        "runtime sandboxes ls                            your sandboxes"
    } else {
        "runtime up                                      start a server on this machine"
    };
    printer.line(&format!(
        "runtime {VERSION}. {connection}\n\n  {first}\n  runtime sandboxes run -- python3 -c 'print(1)'  a command in a sandbox of its own\n  runtime help                                    everything else"
    ))?;
    Ok(0)
}

/// Whether the server knows the key, in one short look.
async fn state(target: &crate::connect::Target, printer: Printer) -> Result<Result<(), String>, Failure> {
    let api = target.origin.as_str();
    let client = client(target, printer)?;
    let seen = if client.has_key() {
        client.get("/v1/me").send_once(PATIENCE).await
    } else {
        client.get("/health").send_once(PATIENCE).await
    };
    Ok(match seen {
        Ok(_) if client.has_key() => Ok(()),
        Ok(_) => Err(format!("there is a server at {api}, but no key for it")),
        Err(error) if error.status == 401 => Err(format!("the server at {api} does not know the key")),
        Err(_) => Err(format!("no server answers at {api}")),
    })
}
