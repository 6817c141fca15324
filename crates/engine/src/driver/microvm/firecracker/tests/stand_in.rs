//! A process that speaks Firecracker's API as its published document has it, over real HTTP on a real socket, from inside
//! the jail that was built for it. It has no guest; in its place, whoever comes over the vsock hears himself.
//!
//! Every body is held against the document: a field that is unknown, missing or of another kind is refused, as
//! Firecracker does; so is one that came after the release it stands for.

use std::cell::RefCell;
use std::convert::Infallible;
use std::fs;
use std::rc::Rc;
use std::sync::{Arc, Mutex, mpsc};

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use runtime_host::process::ProcessId;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};

use super::super::super::launch::Launch;
use super::super::Release;
use super::super::jail::{self, Jail};

const DOCUMENT: &str = include_str!("../document.json");
/// Connections over the vsock before the guest listens.
const NOT_YET: u32 = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Fresh,
    Configured,
    Running,
    Paused,
}

struct Machine {
    document: Value,
    release: Release,
    phase: Phase,
    bodies: Vec<(String, Value)>,
    heard: Arc<Mutex<Vec<String>>>,
}

pub(super) struct StandIn {
    pub(super) process: ProcessId,
    /// Every request that was carried out.
    pub(super) heard: Arc<Mutex<Vec<String>>>,
}

impl StandIn {
    /// Builds the jail and moves in. The thread stays until the test ends, as a process does until it is killed.
    pub(super) fn start(jail: Jail, launch: Launch, release: Release) -> Self {
        let (tell, told) = mpsc::sync_channel(1);
        let heard = Arc::new(Mutex::new(Vec::new()));
        let machine = Machine {
            document: serde_json::from_str(DOCUMENT).unwrap(),
            release,
            phase: Phase::Fresh,
            bodies: Vec::new(),
            heard: heard.clone(),
        };
        std::thread::spawn(move || {
            // While there is a /proc to look into.
            let process = ProcessId::of(rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()).unwrap();
            jail.build(&launch).unwrap();
            rustix::process::chroot(&jail.root).unwrap();
            rustix::process::chdir("/").unwrap();
            tell.send(process).unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            tokio::task::LocalSet::new().block_on(&runtime, serve(machine));
        });
        Self { process: told.recv().unwrap(), heard }
    }
}

async fn serve(machine: Machine) {
    let listener = UnixListener::bind(jail::API).unwrap();
    let machine = Rc::new(RefCell::new(machine));
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let machine = machine.clone();
        tokio::task::spawn_local(async move {
            let answer = service_fn(|request| answer(machine.clone(), request));
            let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), answer).await;
        });
    }
}

async fn answer(
    machine: Rc<RefCell<Machine>>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let result = machine.borrow_mut().carry_out(&format!("{} {}", head.method, head.uri.path()), &body);
    let (status, body) = match result {
        Ok(None) => (204, Bytes::new()),
        Ok(Some(value)) => (200, value.to_string().into()),
        Err(why) => (400, json!({ "fault_message": why }).to_string().into()),
    };
    Ok(Response::builder().status(status).body(Full::new(body)).unwrap())
}

impl Machine {
    fn carry_out(&mut self, request: &str, body: &[u8]) -> Result<Option<Value>, String> {
        let unknown = || format!("Invalid request method and/or path: {request}.");
        let name = match request.strip_prefix("PUT /drives/") {
            Some(id) if !id.is_empty() => "PUT /drives/{drive_id}",
            _ => request,
        };
        let rule = self.document["requests"].get(name).ok_or_else(unknown)?.clone();
        let allowed = match rule["when"].as_str().unwrap() {
            "any" => true,
            "fresh" => self.phase == Phase::Fresh,
            "before" => matches!(self.phase, Phase::Fresh | Phase::Configured),
            "paused" => self.phase == Phase::Paused,
            "after" => matches!(self.phase, Phase::Running | Phase::Paused),
            other => panic!("the document says {other:?}"),
        };
        if !allowed {
            return Err(format!("The requested operation is not supported while the microVM is {:?}.", self.phase));
        }
        let value = match rule["body"].as_str() {
            Some(kind) => {
                let value = serde_json::from_slice(body).map_err(|e| format!("The body is no JSON: {e}."))?;
                check(&self.document, self.release, kind, &value)?;
                value
            }
            None if body.is_empty() => Value::Null,
            None => return Err("GET request cannot have a body.".to_owned()),
        };
        let answer = self.change(name, request, &value)?;
        if let (Some(kind), Some(answer)) = (rule["answer"].as_str(), &answer) {
            check(&self.document, self.release, kind, answer).unwrap();
        }
        self.heard.lock().unwrap().push(match value {
            Value::Null => request.to_owned(),
            value => format!("{request} {value}"),
        });
        Ok(answer)
    }

    fn change(&mut self, name: &str, request: &str, body: &Value) -> Result<Option<Value>, String> {
        match name {
            "GET /" => {
                let state = match self.phase {
                    Phase::Fresh | Phase::Configured => "Not started",
                    Phase::Running => "Running",
                    Phase::Paused => "Paused",
                };
                let info =
                    json!({"app_name": "Firecracker", "id": "x", "state": state, "vmm_version": version(self.release)});
                return Ok(Some(info));
            }
            "GET /version" => return Ok(Some(json!({"firecracker_version": version(self.release)}))),
            "PUT /actions" => self.start(body["action_type"].as_str().unwrap())?,
            "PATCH /vm" => self.phase = if body["state"] == "Paused" { Phase::Paused } else { Phase::Running },
            "PUT /snapshot/create" => {
                for path in ["snapshot_path", "mem_file_path"].map(|field| body[field].as_str().unwrap()) {
                    fs::write(path, path).map_err(|e| format!("Cannot create a file at {path}: {e}."))?;
                }
            }
            "PUT /snapshot/load" => self.load(body)?,
            _ => {
                self.phase = Phase::Configured;
                if let Some(path) = ["kernel_image_path", "path_on_host"].iter().find_map(|field| body[field].as_str())
                {
                    let writable = body["is_read_only"] == json!(false);
                    let opened = fs::File::options().read(true).write(writable).open(path);
                    opened.map_err(|e| format!("Cannot open {path}: {e}."))?;
                }
                self.bodies.push((request.to_owned(), body.clone()));
            }
        }
        Ok(None)
    }

    fn start(&mut self, action: &str) -> Result<(), String> {
        let body = |request: &str| self.bodies.iter().find(|(name, _)| name == request).map(|(_, body)| body.clone());
        match (action, self.phase) {
            ("InstanceStart", Phase::Fresh | Phase::Configured) => {
                body("PUT /boot-source").ok_or("Cannot start microvm without kernel configuration.")?;
                if let Some(vsock) = body("PUT /vsock") {
                    listen(vsock["uds_path"].as_str().unwrap());
                }
                self.phase = Phase::Running;
                Ok(())
            }
            ("InstanceStart", _) => Err("The microVM has already been started.".to_owned()),
            (other, _) => Err(format!("{other} is not carried out here.")),
        }
    }

    fn load(&mut self, body: &Value) -> Result<(), String> {
        if body.get("mem_file_path").is_some() == body.get("mem_backend").is_some() {
            return Err("either `mem_file_path` or `mem_backend` must be given".to_owned());
        }
        let backend = &body["mem_backend"];
        for path in [body["snapshot_path"].as_str(), backend["backend_path"].as_str()].into_iter().flatten() {
            fs::read(path).map_err(|e| format!("Load snapshot error: cannot open {path}: {e}."))?;
            if fs::File::options().write(true).open(path).is_ok() {
                return Err(format!("{path} can be written to"));
            }
        }
        // A saved machine remembers the path in its jail.
        listen(body["vsock_override"]["uds_path"].as_str().unwrap_or(jail::VSOCK));
        self.phase = if body["resume_vm"] == true { Phase::Running } else { Phase::Paused };
        Ok(())
    }
}

pub(super) fn version((major, minor, patch): Release) -> String {
    format!("{major}.{minor}.{patch}")
}

/// What the document says of a type, held against a value.
pub(super) fn check(document: &Value, release: Release, kind: &str, value: &Value) -> Result<(), String> {
    let rule = &document["types"][kind];
    let object = value.as_object().ok_or_else(|| format!("{kind} is no object"))?;
    for required in rule["required"].as_array().unwrap() {
        let name = required.as_str().unwrap();
        if !object.contains_key(name) {
            return Err(format!("missing field `{name}`"));
        }
    }
    for (name, value) in object {
        let field = rule["fields"].get(name).ok_or_else(|| format!("unknown field `{name}`"))?;
        if let Some(since) = field.get("since") {
            let number = |at: usize| since[at].as_u64().unwrap().try_into().unwrap();
            if release < (number(0), number(1), 0) {
                return Err(format!("unknown field `{name}`, expected one of an older release"));
            }
        }
        let is_of = |kind: &str| match kind {
            "string" => value.is_string(),
            "boolean" => value.is_boolean(),
            "integer" => value.is_u64(),
            "object" => value.is_object(),
            "array" => value.is_array(),
            other => panic!("the document says {other:?}"),
        };
        let fits = match field {
            Value::String(kind) => is_of(kind),
            Value::Array(words) => words.contains(value),
            Value::Object(rule) => match (&rule.get("type"), &rule.get("kind")) {
                (Some(kind), _) => {
                    check(document, release, kind.as_str().unwrap(), value)?;
                    true
                }
                (None, Some(kind)) => is_of(kind.as_str().unwrap()),
                (None, None) => value.as_u64().is_some_and(|number| {
                    number >= rule["least"].as_u64().unwrap() && number <= rule["most"].as_u64().unwrap()
                }),
            },
            other => panic!("the document says {other}"),
        };
        if !fits {
            return Err(format!("invalid value for `{name}`: {value}"));
        }
    }
    Ok(())
}

/// The host's side of a vsock whose guest listens on one port, after a while.
fn listen(path: &str) {
    let listener = UnixListener::bind(path).unwrap();
    tokio::task::spawn_local(async move {
        let mut came = 0;
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            came += 1;
            if came > NOT_YET {
                tokio::task::spawn_local(echo(stream));
            }
        }
    });
}

async fn echo(stream: UnixStream) {
    let (reader, mut writer) = stream.into_split();
    let mut reader = BufReader::new(reader);
    let mut line = String::new();
    if reader.read_line(&mut line).await.is_err() || line != format!("CONNECT {}\n", super::super::dial::PORT) {
        return;
    }
    // The guest's first words come at once.
    let _ = writer.write_all(b"OK 1073741824\nguest: ").await;
    let _ = tokio::io::copy(&mut reader, &mut writer).await;
}
