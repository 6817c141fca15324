//! Create a sandbox.

use std::time::Duration;

use runtime_api::client::{Client, ClientError, Record};
use serde_json::{Map, Value, json};

use super::{Context, Outcome};
use crate::args::sandboxes::{AtEnd, Cpu, CreateArgs, NewSandbox};
use crate::failure::Failure;

/// How long a create waits for somebody else's sandbox to end.
pub(super) const ROOM: Duration = Duration::from_secs(120);
const START_SECONDS: u32 = 60;

pub(super) async fn create(context: &Context, args: &CreateArgs) -> Outcome {
    let body = body(&args.new, args.timeout);
    let record = context.client.create_sandbox(&body, ROOM, !args.no_wait).await?;
    let record = if args.no_wait { record } else { started(&context.client, record).await? };
    if context.printer.json {
        context.printer.value(&record.0)?;
        return Ok(0);
    }
    context.printer.line(record.id())?;
    if record.flag("reused") == Some(true) {
        context.printer.hint("It was there already.");
    }
    let word = record.text("name").unwrap_or(record.id());
    context.printer.hint(&format!("Run a command in it: runtime sandboxes exec {word} -- uname -a"));
    Ok(0)
}

/// Its record once it runs; a sandbox that does not come up is a failure.
pub(super) async fn started(client: &Client, record: Record) -> Result<Record, Failure> {
    if record.id().is_empty() {
        return Err(ClientError::local("invalid_answer", "the server created a sandbox without an id").into());
    }
    if record.text("state") == Some("running") {
        return Ok(record);
    }
    let latest = client.wait_for_state(record.id(), "running", START_SECONDS).await?;
    if latest.text("state") == Some("running") {
        return Ok(kept_words(record, latest));
    }
    let state = latest.text("state").unwrap_or("gone");
    let reason = latest.text("stopReason").map(|reason| format!(" ({reason})")).unwrap_or_default();
    let message = format!("sandbox {} did not start: it is {state}{reason}", latest.id());
    Err(ClientError::local("start_failed", message)
        .with_hint("`runtime doctor` on the server's machine looks at everything it needs.")
        .into())
}

/// What only the answer to the create says must not get lost.
fn kept_words(created: Record, latest: Record) -> Record {
    let mut latest = latest;
    for field in ["reused", "replayed", "start"] {
        if let (Some(value), Some(object)) = (created.0.get(field), latest.0.as_object_mut()) {
            object.insert(field.into(), value.clone());
        }
    }
    latest
}

/// The contract's body: only what was asked for, so that the server's defaults stay the server's.
pub(super) fn body(new: &NewSandbox, timeout: Option<u64>) -> Value {
    let mut body = Map::new();
    let mut set = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            body.insert(name.into(), value);
        }
    };
    let map = |pairs: &[(String, String)]| {
        (!pairs.is_empty())
            .then(|| Value::Object(pairs.iter().map(|(key, value)| (key.clone(), value.as_str().into())).collect()))
    };
    let yes = |flag: bool| flag.then_some(Value::Bool(true));
    set("name", new.name.clone().map(Value::from));
    set("labels", map(&new.labels));
    set("env", map(&new.env));
    set("region", new.region.clone().map(Value::from));
    set("vcpu", new.vcpu.map(Value::from));
    set("memoryMiB", new.memory.map(Value::from));
    set("diskMiB", new.disk.map(Value::from));
    set("cpu", new.cpu.map(|cpu| if cpu == Cpu::Reserved { "reserved" } else { "shared" }.into()));
    set("cpuFloorMillis", new.cpu_floor.map(Value::from));
    set("timeoutSeconds", timeout.map(Value::from));
    set("onLeaseEnd", new.on_timeout.map(|end| end_word(end).into()));
    set("idlePauseSeconds", new.idle_pause.map(Value::from));
    set("maxCostMicros", new.max_cost.map(Value::from));
    set("maxTotalCostMicros", new.max_total_cost.map(Value::from));
    set("network", network(new));
    set("image", new.image.clone().map(Value::from));
    set("snapshot", new.snapshot.clone().map(Value::from));
    set("volumes", volumes(new));
    set("autoWake", new.no_auto_wake.then_some(Value::Bool(false)));
    set("persistent", yes(new.persistent));
    set("getOrCreate", yes(new.get_or_create));
    Value::Object(body)
}

fn end_word(end: AtEnd) -> &'static str {
    match end {
        AtEnd::Pause => "pause",
        AtEnd::Stop => "stop",
        AtEnd::Delete => "delete",
    }
}

/// Rules say that there is a way out, unless the way out is closed in words.
fn network(new: &NewSandbox) -> Option<Value> {
    let rules = [("allow", &new.allow), ("deny", &new.deny), ("connect", &new.connect)];
    if !new.no_internet && rules.iter().all(|(_, places)| places.is_empty()) {
        return None;
    }
    let mut network = json!({ "internet": !new.no_internet });
    for (name, places) in rules.into_iter().filter(|(_, places)| !places.is_empty()) {
        network[name] = json!(places);
    }
    Some(network)
}

fn volumes(new: &NewSandbox) -> Option<Value> {
    let volumes: Vec<Value> = new
        .volumes
        .iter()
        .map(|at| {
            let mode = if at.snapshot { "snapshot" } else { "rw" };
            json!({ "volumeId": at.id, "path": at.path, "mode": mode })
        })
        .collect();
    (!volumes.is_empty()).then_some(Value::Array(volumes))
}
