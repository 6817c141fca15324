//! The calls of the table, by the Rust client. Where the client has a method it is used; what it does not wrap goes by
//! the client's own `get` and `post`, which is how its users reach the rest of the API too.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use runtime_api::client::{Client, ClientError, ExecEvent, ExecStream, ListFilter, OutputStream, Record, path};
use serde_json::{Map, Value, json};

use super::expect::differences;

/// The server has not got what a scenario needs.
#[derive(Debug)]
pub struct Unserved(pub String);

const ROOM: Duration = Duration::from_secs(120);
const LONGEST: usize = 64 * 1024 * 1024;
/// Above this time limit a client follows the output instead of waiting for it.
const AT_ONCE_MS: u64 = 60_000;

#[derive(Debug, Clone)]
enum Handle {
    Sandbox(String),
    Process(String, String),
    Nothing,
}

pub(super) struct Player<'a> {
    client: &'a Client,
    /// A word that is new in each run.
    run: String,
    results: BTreeMap<String, (Handle, Value)>,
    made: BTreeSet<String>,
}

type Called = Result<(Handle, Value), ClientError>;

impl<'a> Player<'a> {
    pub(super) fn new(client: &'a Client) -> Self {
        Self { client, run: runtime_test_kit::unique("s"), results: BTreeMap::new(), made: BTreeSet::new() }
    }

    pub(super) async fn play(&mut self, step: &Value, place: &str) -> Result<(), Unserved> {
        let given = self.filled(&step["with"]);
        let given = given.as_object().cloned().unwrap_or_default();
        let call = step["call"].as_str().expect("a call");
        let on = step["on"].as_str().map(|name| self.results[name].clone());
        match (self.call(call, on, given).await, step.get("fails")) {
            (Err(error), _) if step.get("needs").is_some() && error.status == 501 => {
                return Err(Unserved(step["needs"].as_str().unwrap_or_default().to_owned()));
            }
            (Err(error), None) => panic!("{place} was refused: [{}] {error}", error.code),
            (Err(error), Some(wanted)) => {
                let told = json!({"code": error.code, "status": error.status, "retryable": error.retryable(),
                    "details": error.details.clone().unwrap_or_default()});
                self.compare(&told, wanted, place);
            }
            (Ok((_, result)), Some(wanted)) => panic!("{place} was to be refused with {wanted}, and answered {result}"),
            (Ok((handle, result)), None) => {
                if let Some(wanted) = step.get("expect") {
                    self.compare(&result, wanted, place);
                }
                if let Some(name) = step["as"].as_str() {
                    self.results.insert(name.to_owned(), (handle, result));
                }
            }
        }
        Ok(())
    }

    pub(super) async fn clean(&self) {
        for id in &self.made {
            match self.client.delete_sandbox(id).await {
                Err(error) if error.status != 404 => panic!("delete {id}: {error}"),
                _ => {}
            }
        }
    }

    fn compare(&self, got: &Value, wanted: &Value, place: &str) {
        let found = differences(Some(got), &self.in_words(wanted), &|path| self.earlier(path));
        assert!(found.is_empty(), "{place}:\n{}", found.join("\n"));
    }

    fn earlier(&self, path: &str) -> Value {
        let mut keys = path.split('.');
        let name = keys.next().unwrap_or_default();
        let start = self.results.get(name).map(|(_, value)| value.clone()).unwrap_or_default();
        keys.fold(start, |value, key| value.get(key).cloned().unwrap_or_default())
    }

    /// With this run's word put in.
    fn in_words(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => json!(text.replace("${run}", &self.run)),
            Value::Array(items) => items.iter().map(|item| self.in_words(item)).collect(),
            Value::Object(fields) => fields
                .iter()
                .map(|(name, value)| (name.replace("${run}", &self.run), self.in_words(value)))
                .collect::<Map<_, _>>()
                .into(),
            other => other.clone(),
        }
    }

    /// Arguments with all that is known now.
    fn filled(&self, value: &Value) -> Value {
        match value {
            Value::Object(fields) => match (fields.get("$from"), fields.get("$repeat")) {
                (Some(path), _) => self.earlier(path.as_str().expect("a path")),
                (None, Some(repeat)) => {
                    let times = usize::try_from(repeat[1].as_u64().expect("a number")).expect("a number");
                    json!(repeat[0].as_str().expect("text").repeat(times))
                }
                (None, None) => fields
                    .iter()
                    .map(|(name, value)| (name.replace("${run}", &self.run), self.filled(value)))
                    .collect::<Map<_, _>>()
                    .into(),
            },
            Value::Array(items) => items.iter().map(|item| self.filled(item)).collect(),
            other => self.in_words(other),
        }
    }

    async fn call(&mut self, call: &str, on: Option<(Handle, Value)>, given: Map<String, Value>) -> Called {
        match on {
            None => self.on_account(call, given).await,
            Some((Handle::Sandbox(id), record)) => match call.strip_prefix("files.") {
                Some(call) => on_files(self.client, &id, call, &given).await,
                None => self.on_sandbox(call, &id, &record, given).await,
            },
            Some((Handle::Process(id, process), _)) => on_process(self.client, &id, &process, call, &given).await,
            Some((Handle::Nothing, _)) => panic!("{call} is called on what is neither sandbox nor process"),
        }
    }

    async fn on_account(&mut self, call: &str, mut given: Map<String, Value>) -> Called {
        let client = self.client;
        match call {
            "me" => nothing(client.me().await?),
            "limits.get" => nothing(client.limits().await?),
            "sandboxes.create" | "sandboxes.getOrCreate" => {
                // Of the client's own: whether the end of a block deletes it.
                let keep = given.remove("keep").unwrap_or_default();
                if call.ends_with("getOrCreate") {
                    given.insert("getOrCreate".to_owned(), json!(true));
                }
                let mut record = create(client, given).await?;
                self.made.insert(record.id().to_owned());
                if let (Some(object), true) = (record.0.as_object_mut(), keep == true) {
                    object.insert("$keep".to_owned(), keep);
                }
                sandbox(record)
            }
            "sandboxes.get" => sandbox(client.sandbox(text(&given, "id")).await?),
            "sandboxes.list" => Ok((Handle::Nothing, json!({ "data": list(client, &given).await? }))),
            "sandboxes.stopAll" | "sandboxes.deleteAll" => {
                if given.get("labels").and_then(Value::as_object).is_none_or(Map::is_empty) {
                    return Err(ClientError::local("invalid_request", "all of them is more than anybody means"));
                }
                let deletes = call.ends_with("deleteAll");
                given.insert("includeStopped".to_owned(), json!(deletes));
                let (mut done, mut failed) = (0, 0);
                for one in list(client, &given).await? {
                    let id = one["id"].as_str().unwrap_or_default();
                    let ended = if deletes { client.delete_sandbox(id).await } else { client.stop_sandbox(id).await };
                    *(if ended.is_ok() { &mut done } else { &mut failed }) += 1;
                }
                let name = if deletes { "deleted" } else { "stopped" };
                Ok((Handle::Nothing, json!({ name: done, "failed": failed })))
            }
            _ => panic!("there is no call {call}"),
        }
    }

    async fn on_sandbox(&self, call: &str, id: &str, record: &Value, given: Map<String, Value>) -> Called {
        let client = self.client;
        let number = |name: &str| given.get(name).and_then(Value::as_u64);
        match call {
            "refresh" => sandbox(client.sandbox(id).await?),
            "waitFor" => sandbox(client.wait_for_state(id, text(&given, "state"), 60).await?),
            "stop" => sandbox(client.stop_sandbox(id).await?),
            "pause" => sandbox(client.pause_sandbox(id).await?),
            "wake" => match client.wake_sandbox(id, number("timeoutSeconds"), ROOM).await {
                // Awake is what was asked for, unless the time limit was too.
                Err(error) if error.code == "not_paused" && number("timeoutSeconds").is_none() => {
                    let record = client.sandbox(id).await?;
                    if ["running", "starting"].contains(&record.text("state").unwrap_or_default()) {
                        return sandbox(record);
                    }
                    Err(error)
                }
                woken => sandbox(woken?),
            },
            "restart" => sandbox(client.restart_sandbox(id, ROOM).await?),
            "extend" => sandbox(client.extend_sandbox(id, number("seconds").expect("seconds")).await?),
            "update" => sandbox(client.update_sandbox(id, &given.into()).await?),
            "delete" => nothing(client.delete_sandbox(id).await?),
            "block" => {
                // The command line has no blocks; its `run` deletes what it made and leaves what it found.
                let found = record["reused"] == true || record["$keep"] == true;
                if found {
                    client.stop_sandbox(id).await?
                } else {
                    client.delete_sandbox(id).await?
                };
                Ok((Handle::Nothing, Value::Null))
            }
            "exec" => Ok((Handle::Nothing, exec(client, id, given).await?)),
            "execStream" => Ok((Handle::Nothing, drained(client.exec(id, command(given).into()).await?).await?)),
            "spawn" => {
                let mut body = command(given);
                if body.get("stdin").is_some_and(|stdin| stdin == "pipe") {
                    body.remove("stdin");
                    body.insert("stdinMode".to_owned(), json!("pipe"));
                }
                let started = client.post(processes(id, &[]), &body.into()).send().await?;
                process(id, started)
            }
            "process" => process(id, client.get(processes(id, &[text(&given, "id")])).send().await?),
            "processes" => nothing(client.get(processes(id, &[])).send().await?),
            _ => panic!("a sandbox has no call {call}"),
        }
    }
}

fn text<'a>(given: &'a Map<String, Value>, name: &str) -> &'a str {
    given.get(name).and_then(Value::as_str).unwrap_or_else(|| panic!("{name} is missing"))
}

fn nothing(record: Record) -> Called {
    Ok((Handle::Nothing, record.0))
}

fn sandbox(record: Record) -> Called {
    Ok((Handle::Sandbox(record.id().to_owned()), record.0))
}

fn process(sandbox: &str, record: Record) -> Called {
    Ok((Handle::Process(sandbox.to_owned(), record.id().to_owned()), record.0))
}

fn processes(sandbox: &str, rest: &[&str]) -> String {
    path(&[&["v1", "sandboxes", sandbox, "processes"], rest].concat())
}

async fn create(client: &Client, mut given: Map<String, Value>) -> Result<Record, ClientError> {
    let key = given.remove("idempotencyKey");
    let mut call = client.post("/v1/sandboxes", &given.into()).prefer_wait(60).wait_for_room(ROOM);
    if let Some(key) = key.as_ref().and_then(Value::as_str) {
        call = call.keyed(key);
    }
    let record = call.send().await?;
    let record = match record.text("state") {
        Some("running") => return Ok(record),
        _ => client.wait_for_state(record.id(), "running", 60).await?,
    };
    match record.text("state") {
        Some("running") => Ok(record),
        state => Err(ClientError::local("start_failed", format!("the sandbox is {}", state.unwrap_or("nowhere")))),
    }
}

async fn list(client: &Client, given: &Map<String, Value>) -> Result<Vec<Value>, ClientError> {
    let states = match given.get("state") {
        Some(Value::Array(states)) => states.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        Some(Value::String(state)) => vec![state.clone()],
        _ => Vec::new(),
    };
    let labels = given.get("labels").and_then(Value::as_object).into_iter().flatten();
    let filter = ListFilter {
        states,
        labels: labels.map(|(key, value)| (key.clone(), value.as_str().unwrap_or_default().to_owned())).collect(),
        name: given.get("name").and_then(Value::as_str).map(str::to_owned),
        include_stopped: given.get("includeStopped").is_some_and(|flag| flag == true),
    };
    Ok(client.list_sandboxes(&filter).await?.into_iter().map(|record| record.0).collect())
}

/// The body of a command: a list is a program, input may be bytes.
fn command(mut given: Map<String, Value>) -> Map<String, Value> {
    if let Some(Value::Array(argv)) = given.get("command").cloned() {
        given.remove("command");
        given.insert("argv".to_owned(), argv.into());
    }
    if let Some(bytes) = given.get("stdin").and_then(|stdin| stdin.get("base64")).cloned() {
        given.remove("stdin");
        given.insert("stdinBase64".to_owned(), bytes);
    }
    given
}

async fn exec(client: &Client, id: &str, given: Map<String, Value>) -> Result<Value, ClientError> {
    let mut body = command(given);
    let mut take = |name: &str| body.remove(name).unwrap_or_default();
    let (callbacks, check, key) = (take("callbacks"), take("check"), take("idempotencyKey"));
    let long = body.get("timeoutMs").and_then(Value::as_u64).is_some_and(|ms| ms > AT_ONCE_MS);
    let result = if callbacks == true || long {
        let mut result = drained(client.exec(id, body.into()).await?).await?;
        result["called"] = json!({ "stdout": result["stdout"].clone(), "stderr": result["stderr"].clone() });
        result["stdoutTruncated"] = json!(result["whole"] == false);
        result
    } else {
        let mut call = client.post(format!("{}:exec", path(&["v1", "sandboxes", id])), &body.into());
        if let Some(key) = key.as_str() {
            call = call.keyed(key);
        }
        call.send().await?.0
    };
    // What a client makes of a result that was to be good.
    match (check == true, result["timedOut"] == true, result["exitCode"] == 0) {
        (true, true, _) => Err(ClientError::local("command_timeout", "the command took too long")),
        (true, false, false) => Err(ClientError::local("command_failed", "the command failed")),
        _ => Ok(result),
    }
}

/// A stream to its end, in the table's form.
async fn drained(mut events: ExecStream) -> Result<Value, ClientError> {
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let (mut first, mut last, mut whole) = ("", "", true);
    let (mut exit_code, mut timed_out, mut process) = (Value::Null, Value::Null, Value::Null);
    while let Some(event) = events.next().await? {
        last = match event {
            ExecEvent::Start { process_id, .. } => {
                process = json!(process_id);
                "start"
            }
            ExecEvent::Output { stream: OutputStream::Stdout, data } => {
                stdout.extend_from_slice(&data);
                "stdout"
            }
            ExecEvent::Output { stream: OutputStream::Stderr, data } => {
                stderr.extend_from_slice(&data);
                "stderr"
            }
            ExecEvent::Lost { .. } => {
                whole = false;
                "truncated"
            }
            ExecEvent::Exit(exit) => {
                exit_code = json!(exit.exit_code);
                timed_out = json!(exit.timed_out);
                "exit"
            }
        };
        if first.is_empty() {
            first = last;
        }
    }
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok(json!({"first": first, "last": last, "stdout": text(&stdout), "stderr": text(&stderr), "whole": whole,
        "exitCode": exit_code, "timedOut": timed_out, "processId": process}))
}

async fn on_process(client: &Client, id: &str, process_id: &str, call: &str, given: &Map<String, Value>) -> Called {
    let cursor = given.get("cursor").and_then(Value::as_u64).unwrap_or(0);
    match call {
        "refresh" => process(id, client.get(processes(id, &[process_id])).send().await?),
        "wait" | "output" => Ok((Handle::Nothing, drained(client.follow(id, process_id, cursor)).await?)),
        "kill" => {
            client.signal(id, process_id, text(given, "signal")).await?;
            Ok((Handle::Nothing, Value::Null))
        }
        "write" => {
            let bytes = bytes(given);
            let now = client.get(processes(id, &[process_id])).send().await?;
            let body = json!({ "base64": STANDARD.encode(bytes), "offset": now.int("stdinOffset"),
                "eof": given.get("eof").is_some_and(|eof| eof == true) });
            client.post(format!("{}:write", processes(id, &[process_id])), &body).send().await?;
            Ok((Handle::Nothing, Value::Null))
        }
        _ => panic!("a process has no call {call}"),
    }
}

fn bytes(given: &Map<String, Value>) -> Vec<u8> {
    match &given["data"] {
        Value::String(text) => text.clone().into_bytes(),
        data => STANDARD.decode(data["base64"].as_str().expect("bytes")).expect("base64"),
    }
}

async fn on_files(client: &Client, id: &str, call: &str, given: &Map<String, Value>) -> Called {
    let file = given.get("path").and_then(Value::as_str).unwrap_or("/workspace");
    let files = |rest: &str| format!("{}{rest}", path(&["v1", "sandboxes", id, "files"]));
    let base64 = |bytes: Vec<u8>| json!({ "base64": STANDARD.encode(bytes) });
    let result = match call {
        "read" | "readStream" => base64(client.read_file(id, file, LONGEST).await?),
        "readText" => json!(String::from_utf8_lossy(&client.read_file(id, file, LONGEST).await?)),
        "write" => {
            let mode = given.get("mode").and_then(Value::as_str);
            client.write_file(id, file, bytes(given).into(), mode).await?;
            Value::Null
        }
        "list" | "glob" => {
            let glob = given.get("pattern").or_else(|| given.get("glob")).and_then(Value::as_str);
            let root = given.get("root").and_then(Value::as_str).unwrap_or(file);
            let depth = given.get("depth").and_then(Value::as_u64);
            let hidden = given.get("hidden").is_some_and(|flag| flag == true);
            let found = client.list_files(id, root, depth, glob, hidden).await?;
            json!({ "data": found.into_iter().map(|record| record.0).collect::<Vec<_>>() })
        }
        "stat" => client.get(files("/stat")).query("path", file).send().await?.0,
        "exists" => client.get(files("/stat")).query("path", file).send().await?.0["exists"].clone(),
        "mkdir" => {
            client.post(files(":mkdir"), &json!({ "path": file, "parents": true })).send().await?;
            Value::Null
        }
        "rename" => {
            let body = json!({ "from": text(given, "source"), "to": text(given, "target"),
                "overwrite": given.get("overwrite").is_some_and(|flag| flag == true) });
            client.post(files(":rename"), &body).send().await?;
            Value::Null
        }
        "remove" => {
            let recursive = given.get("recursive").is_some_and(|flag| flag == true);
            let body = json!({ "path": file, "recursive": recursive });
            client.post(files(":remove"), &body).send().await?.0["removed"].clone()
        }
        _ => panic!("files have no call {call}"),
    };
    Ok((Handle::Nothing, result))
}
