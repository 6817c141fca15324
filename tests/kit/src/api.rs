//! The public API as a test calls it.

use crate::http::{Answer, Connection};
use anyhow::{Context, Result};
use base64::Engine as _;
use serde_json::{Value, json};
use std::net::SocketAddr;

/// An address and a key. Each call is a connection of its own.
#[derive(Debug, Clone)]
pub struct Api {
    address: SocketAddr,
    key: Option<String>,
}

impl Api {
    #[must_use]
    pub fn new(address: SocketAddr, key: Option<String>) -> Self {
        Self { address, key }
    }

    /// The same server with another key.
    #[must_use]
    pub fn with_key(&self, key: &str) -> Self {
        Self { address: self.address, key: Some(key.to_owned()) }
    }

    #[must_use]
    pub fn without_key(&self) -> Self {
        Self { address: self.address, key: None }
    }

    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// # Panics
    /// When nobody listens.
    #[must_use]
    #[track_caller]
    pub fn connect(&self) -> Connection {
        Connection::open(self.address).expect("connect to the server")
    }

    #[track_caller]
    pub fn get(&self, path: &str) -> Answer {
        self.call("GET", path, &[], None)
    }

    #[track_caller]
    pub fn delete(&self, path: &str) -> Answer {
        self.call("DELETE", path, &[], None)
    }

    #[track_caller]
    pub fn post(&self, path: &str, body: &Value) -> Answer {
        self.call("POST", path, &[], Some(("application/json", body.to_string().as_bytes())))
    }

    #[track_caller]
    pub fn post_with(&self, path: &str, headers: &[(&str, &str)], body: &Value) -> Answer {
        self.call("POST", path, headers, Some(("application/json", body.to_string().as_bytes())))
    }

    #[track_caller]
    pub fn put(&self, path: &str, body: &[u8]) -> Answer {
        self.call("PUT", path, &[], Some(("application/octet-stream", body)))
    }

    #[track_caller]
    pub fn put_json(&self, path: &str, body: &Value) -> Answer {
        self.call("PUT", path, &[], Some(("application/json", body.to_string().as_bytes())))
    }

    /// # Panics
    /// When there is no answer, or one that breaks the rules of framing.
    #[track_caller]
    pub fn call(&self, method: &str, path: &str, headers: &[(&str, &str)], body: Option<(&str, &[u8])>) -> Answer {
        match self.try_call(method, path, headers, body) {
            Ok(answer) => answer,
            Err(error) => panic!("{method} {path}: {error:#}"),
        }
    }

    /// # Errors
    /// When there is no answer: the server died, or cut the connection.
    pub fn try_call(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<(&str, &[u8])>,
    ) -> Result<Answer> {
        let mut connection = Connection::open(self.address)?;
        let mut head = self.head(method, path, headers);
        if let Some((kind, bytes)) = body {
            head.push_str(&format!("Content-Type: {kind}\r\nContent-Length: {}\r\n", bytes.len()));
        }
        head.push_str("\r\n");
        let mut message = head.into_bytes();
        message.extend(body.map_or(&[][..], |(_, bytes)| bytes));
        // A server that refuses early may close while we write: its answer still counts.
        let sent = connection.write(&message);
        let answer = match connection.read_answer() {
            Ok(answer) => answer,
            Err(error) => {
                return Err(match sent {
                    Ok(()) => error,
                    Err(cut) => error.context(format!("after {cut}")),
                });
            }
        };
        if path.starts_with("/v1") && answer.header("x-request-id").is_none_or(|id| !id.starts_with("req_")) {
            anyhow::bail!("an answer without a request id: {} {}", answer.status, answer.text());
        }
        Ok(answer)
    }

    /// The request line and headers, without the blank line.
    #[must_use]
    pub fn head(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> String {
        let mut head = format!("{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n", self.address);
        if let Some(key) = &self.key {
            head.push_str(&format!("Authorization: Bearer {key}\r\n"));
        }
        head.push_str("X-Runtime-Client: http/2026-10-04\r\n");
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head
    }

    /// A running sandbox.
    ///
    /// # Panics
    /// When it does not come up.
    #[track_caller]
    pub fn create(&self, fields: &Value) -> Machine {
        let made = self.post_with("/v1/sandboxes", &[("Prefer", "wait=60")], fields).ok();
        assert_eq!(made["state"], "running", "created, and not running: {made}");
        Machine { api: self.clone(), id: text(&made, "id") }
    }

    /// A small one, for what needs no size.
    #[track_caller]
    pub fn small(&self) -> Machine {
        self.create(&json!({"vcpu": 1, "memoryMiB": 512}))
    }
}

/// A sandbox, by its id.
#[derive(Debug, Clone)]
pub struct Machine {
    pub api: Api,
    pub id: String,
}

/// What a command gave.
#[derive(Debug, Clone)]
pub struct Ran {
    pub code: Option<i64>,
    pub out: String,
    pub err: String,
    pub answer: Value,
}

impl Machine {
    #[must_use]
    pub fn path(&self, rest: &str) -> String {
        format!("/v1/sandboxes/{}{rest}", self.id)
    }

    #[track_caller]
    #[must_use]
    pub fn info(&self) -> Value {
        self.api.get(&self.path("")).ok()
    }

    #[track_caller]
    #[must_use]
    pub fn state(&self) -> String {
        text(&self.info(), "state")
    }

    /// Runs a shell command as the sandbox's user.
    #[track_caller]
    pub fn sh(&self, command: &str) -> Ran {
        self.exec(&json!({"command": command}))
    }

    #[track_caller]
    pub fn root(&self, command: &str) -> Ran {
        self.exec(&json!({"command": command, "user": "root"}))
    }

    #[track_caller]
    pub fn exec(&self, body: &Value) -> Ran {
        let answer = self.api.post(&self.path(":exec"), body).ok();
        Ran { code: answer["exitCode"].as_i64(), out: text(&answer, "stdout"), err: text(&answer, "stderr"), answer }
    }

    /// Its output, once it ended well.
    #[track_caller]
    #[must_use]
    pub fn output(&self, command: &str) -> String {
        let ran = self.sh(command);
        assert_eq!(ran.code, Some(0), "{command}: {}", ran.answer);
        ran.out
    }

    #[track_caller]
    pub fn try_write(&self, path: &str, bytes: &[u8]) -> Answer {
        self.api.put(&self.path(&format!("/files/content?path={}", encode(path))), bytes)
    }

    #[track_caller]
    pub fn write(&self, path: &str, bytes: &[u8]) {
        let _ = self.try_write(path, bytes).ok();
    }

    #[track_caller]
    #[must_use]
    pub fn try_read(&self, path: &str) -> Answer {
        self.api.get(&self.path(&format!("/files/content?path={}", encode(path))))
    }

    #[track_caller]
    #[must_use]
    pub fn read(&self, path: &str) -> Vec<u8> {
        let answer = self.try_read(path);
        assert_eq!(answer.status, 200, "read {path}: {}", answer.text());
        answer.body
    }

    /// A lifecycle verb, waited for.
    #[track_caller]
    pub fn verb(&self, verb: &str) -> Value {
        self.api.post_with(&self.path(verb), &[("Prefer", "wait=60")], &json!({})).ok()
    }

    #[track_caller]
    pub fn delete(&self) {
        let gone = self.api.delete(&self.path("")).ok();
        assert_eq!(gone["status"], "deleted", "{gone}");
    }

    /// Starts a process that outlives the call, and gives its id.
    #[track_caller]
    #[must_use]
    pub fn spawn(&self, body: &Value) -> String {
        text(&self.api.post(&self.path("/processes"), body).ok(), "id")
    }
}

/// For a query string.
#[must_use]
pub fn encode(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

#[must_use]
pub fn base64(bytes: &[u8]) -> String {
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

/// A field that must be text.
#[track_caller]
#[must_use]
pub fn text(value: &Value, field: &str) -> String {
    value[field].as_str().with_context(|| format!("text in {field} of {value}")).expect("a text").to_owned()
}
