//! A server on a port of its own with a store in a directory of its own, and a client that knows only bytes.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use runtime_server::keys::{self, NewKey};
use runtime_server::{AppState, Config, reconcile, serve};
use runtime_store::{Outcome, SandboxRow, SqliteStore, Store};
use secrecy::ExposeSecret;
use serde_json::Value;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::node::MemoryNode;

/// Longer than any answer takes on a slow machine; a test that waits this long has failed.
const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) struct Stack {
    pub(crate) node: Arc<MemoryNode>,
    pub(crate) store: Arc<SqliteStore>,
    pub(crate) address: SocketAddr,
    pub(crate) key: String,
    pub(crate) dir: Arc<TempDir>,
    stop: CancellationToken,
    tasks: Vec<JoinHandle<()>>,
}

pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Reply {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(have, _)| have == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error} in {:?}", String::from_utf8_lossy(&self.body)))
    }

    pub(crate) fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{}", String::from_utf8_lossy(&self.body));
        self.json()
    }

    /// Checks the envelope; the code.
    pub(crate) fn code(&self) -> String {
        let body = self.json();
        assert_eq!(body.as_object().unwrap().len(), 1, "{body}");
        let error = &body["error"];
        assert_eq!(error["status"], self.status, "{body}");
        assert_eq!(error["requestId"], self.header("x-request-id").unwrap(), "{body}");
        error["code"].as_str().unwrap().to_owned()
    }

    pub(crate) fn refused(&self, status: u16, code: &str) -> Value {
        assert_eq!((self.status, self.code().as_str()), (status, code), "{}", self.json());
        self.json()["error"].clone()
    }
}

impl Stack {
    pub(crate) async fn start() -> Self {
        Self::with(Config::default()).await
    }

    pub(crate) async fn with(config: Config) -> Self {
        Self::again(config, MemoryNode::new(), Arc::new(tempfile::tempdir().unwrap()), None).await
    }

    async fn again(config: Config, node: Arc<MemoryNode>, dir: Arc<TempDir>, key: Option<String>) -> Self {
        let store = Arc::new(SqliteStore::open(&dir.path().join(keys::DATABASE)).await.unwrap());
        let key = match key {
            Some(key) => key,
            None => make_key(&*store, true, false).await,
        };
        let config = Config { reconcile_every: Duration::from_millis(20), ..config };
        let app = AppState::new(store.clone(), node.clone(), config).await.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let tasks =
            vec![reconcile::start(app.clone(), stop.clone()).await, tokio::spawn(serve(listener, app, stop.clone()))];
        Self { node, store, address, key, dir, stop, tasks }
    }

    /// Ends this server as a kill would, and starts another on the same store and node.
    pub(crate) async fn killed_and_started(self) -> Self {
        for task in &self.tasks {
            task.abort();
        }
        Self::again(Config::default(), self.node, self.dir, Some(self.key)).await
    }

    /// Tells it to stop, and waits for nothing.
    pub(crate) fn shut(&self) {
        self.stop.cancel();
    }

    pub(crate) async fn stop(self) {
        self.stop.cancel();
        for task in self.tasks {
            tokio::time::timeout(PATIENCE, task).await.unwrap().unwrap();
        }
        self.store.close().await;
    }

    pub(crate) fn data_dir(&self) -> PathBuf {
        self.dir.path().to_owned()
    }

    /// Changes a stored row behind the server's back, for its successor: what a limit waits for, without waiting.
    pub(crate) async fn rewrite(&self, id: &str, change: impl Fn(&mut SandboxRow)) {
        loop {
            let mut row = self.store.sandbox(id.parse().unwrap()).await.unwrap().unwrap();
            change(&mut row);
            row.generation += 1;
            // Unless the server, which is still there, was quicker.
            if matches!(self.store.save_sandbox(row, None).await.unwrap(), Outcome::Done) {
                return;
            }
        }
    }

    /// Works on the database as a fault, or a person with a tool, would.
    pub(crate) async fn sql(&self, statement: &str) {
        let options = SqliteConnectOptions::new().filename(self.dir.path().join(keys::DATABASE));
        let mut connection = options.connect().await.unwrap();
        sqlx::raw_sql(sqlx::AssertSqlSafe(statement.to_owned())).execute(&mut connection).await.unwrap();
        connection.close().await.unwrap();
    }

    pub(crate) async fn key(&self, account_wide: bool, read_only: bool) -> String {
        make_key(&*self.store, account_wide, read_only).await
    }

    pub(crate) async fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Reply {
        let key = format!("Bearer {}", self.key);
        let mut all = vec![("authorization", key.as_str())];
        all.extend_from_slice(headers);
        send(self.address, method, path, &all, body).await
    }

    pub(crate) async fn call(&self, method: &str, path: &str, body: Value) -> Reply {
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        self.send(method, path, &[], &body).await
    }

    pub(crate) async fn get(&self, path: &str) -> Reply {
        self.call("GET", path, Value::Null).await
    }

    pub(crate) async fn keyed(&self, method: &str, path: &str, key: &str, body: Value) -> Reply {
        self.send(method, path, &[("idempotency-key", key), ("prefer", "wait=60")], body.to_string().as_bytes()).await
    }

    /// A running sandbox.
    pub(crate) async fn sandbox(&self, body: Value) -> Value {
        let made = self.send("POST", "/v1/sandboxes", &[("prefer", "wait=60")], body.to_string().as_bytes()).await.ok();
        assert_eq!(made["state"], "running", "{made}");
        made
    }

    /// The record once it is in a state.
    pub(crate) async fn wait_for(&self, id: &str, state: &str) -> Value {
        let record = self.get(&format!("/v1/sandboxes/{id}?waitFor={state}&timeoutSeconds=60")).await.ok();
        assert_eq!(record["state"], state, "{record}");
        record
    }

    pub(crate) async fn post(&self, id: &Value, verb: &str, body: Value) -> Reply {
        let path = format!("/v1/sandboxes/{}:{verb}", id.as_str().unwrap());
        self.send("POST", &path, &[("prefer", "wait=60")], body.to_string().as_bytes()).await
    }
}

async fn make_key(store: &dyn Store, account_wide: bool, read_only: bool) -> String {
    let new = NewKey { name: "test".to_owned(), read_only, account_wide };
    keys::create(store, new).await.unwrap().key.expose_secret().to_owned()
}

/// Waits until something is so.
pub(crate) async fn eventually(what: &str, is: impl AsyncFn() -> bool) {
    let waited = tokio::time::timeout(PATIENCE, async {
        while !is().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    assert!(waited.await.is_ok(), "never happened: {what}");
}

pub(crate) async fn send(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Reply {
    let mut head = format!("{method} {path} HTTP/1.1\r\nhost: test\r\ncontent-length: {}\r\n", body.len());
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    let mut socket = TcpStream::connect(address).await.unwrap();
    socket.write_all(head.as_bytes()).await.unwrap();
    socket.write_all(body).await.unwrap();
    read_reply(&mut socket).await.expect("an answer")
}

/// One answer, read strictly by its framing; `None` if the connection was cut.
pub(crate) async fn read_reply(socket: &mut TcpStream) -> Option<Reply> {
    tokio::time::timeout(PATIENCE, read(socket)).await.expect("an answer in time")
}

async fn read(socket: &mut TcpStream) -> Option<Reply> {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(at) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break at;
        }
        more(socket, &mut bytes).await?;
    };
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
    let mut rest = bytes.split_off(end + 4);
    let mut lines = head.split("\r\n");
    let status = lines.next()?.split(' ').nth(1)?.parse().unwrap();
    let headers: Vec<(String, String)> = lines
        .map(|line| line.split_once(':').unwrap())
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let find = |name: &str| headers.iter().find(|(have, _)| have == name).map(|(_, value)| value.as_str());
    assert!(find("content-encoding").is_none());
    let body = match (find("content-length"), find("transfer-encoding")) {
        (Some(length), None) => {
            let length: usize = length.parse().unwrap();
            while rest.len() < length {
                more(socket, &mut rest).await?;
            }
            rest.truncate(length);
            rest
        }
        (None, Some("chunked")) => chunks(socket, rest).await?,
        other => panic!("not framed: {other:?}"),
    };
    Some(Reply { status, headers, body })
}

async fn chunks(socket: &mut TcpStream, mut rest: Vec<u8>) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let line = loop {
            if let Some(at) = rest.windows(2).position(|window| window == b"\r\n") {
                break at;
            }
            more(socket, &mut rest).await?;
        };
        let size = usize::from_str_radix(std::str::from_utf8(&rest[..line]).unwrap(), 16).unwrap();
        while rest.len() < line + 2 + size + 2 {
            more(socket, &mut rest).await?;
        }
        body.extend_from_slice(&rest[line + 2..line + 2 + size]);
        rest.drain(..line + 2 + size + 2);
        if size == 0 {
            return Some(body);
        }
    }
}

async fn more(socket: &mut TcpStream, into: &mut Vec<u8>) -> Option<()> {
    match socket.read_buf(into).await {
        Ok(0) | Err(_) => None,
        Ok(_) => Some(()),
    }
}
