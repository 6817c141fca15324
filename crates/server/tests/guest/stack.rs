//! One server with one sandbox, and a client that speaks plain HTTP/1.1.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use runtime_server::{AppState, Config, http, keys};
use runtime_store::SqliteStore;
use secrecy::ExposeSecret;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::node::{LocalNode, agent_binary};

/// Longer than anything here takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) struct Stack {
    pub(crate) address: std::net::SocketAddr,
    pub(crate) key: String,
    pub(crate) sandbox: String,
    pub(crate) node: Arc<LocalNode>,
    dir: tempfile::TempDir,
    _stop: DropGuard,
}

/// An answer read whole.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: hyper::HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error} in {:?}", self.body))
    }

    pub(crate) fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{:?}", self.body);
        self.json()
    }

    /// Status and code of a refusal.
    pub(crate) fn refusal(&self) -> (u16, String) {
        let error = &self.json()["error"];
        assert_eq!(error["status"], self.status);
        assert_eq!(error["requestId"], self.header("x-request-id"));
        (self.status, error["code"].as_str().expect("a code").to_owned())
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().expect("text"))
    }

    /// The events of a stream, blank lines left out.
    pub(crate) fn events(&self) -> Vec<Value> {
        assert_eq!(self.status, 200, "{:?}", self.body);
        assert_eq!(self.header("content-type"), "application/x-ndjson");
        let text = std::str::from_utf8(&self.body).expect("UTF-8");
        text.lines().filter(|line| !line.is_empty()).map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }
}

impl Stack {
    pub(crate) async fn start() -> Self {
        Self::with(json!({})).await
    }

    pub(crate) async fn with(create: Value) -> Self {
        // First, so that no request waits for a build.
        tokio::task::spawn_blocking(agent_binary).await.expect("an agent");
        let dir = tempfile::tempdir().expect("a directory");
        // Files are reached as the sandbox user.
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(dir.path(), open).expect("an open directory");
        let store = Arc::new(SqliteStore::open(&dir.path().join(".runtime.db")).await.expect("a store"));
        let new = keys::NewKey { name: "test".to_owned(), read_only: false, account_wide: true };
        let key = keys::create(store.as_ref(), new).await.expect("a key").key.expose_secret().to_owned();
        let node = LocalNode::new();
        let app = AppState::new(store, node.clone(), Config::default()).await.expect("a state");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let stop = CancellationToken::new();
        tokio::spawn(http::serve(listener, app, stop.clone()));
        let mut stack = Self { address, key, sandbox: String::new(), node, dir, _stop: stop.drop_guard() };
        let made =
            stack.request("POST", "/v1/sandboxes", &[("prefer", "wait=60")], create.to_string().into()).await.ok();
        assert_eq!(made["state"], "running", "{made}");
        stack.sandbox = made["id"].as_str().expect("an id").to_owned();
        stack
    }

    /// A directory that the sandbox user may write.
    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.dir.path().display())
    }

    pub(crate) async fn open(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Bytes,
    ) -> Response<Incoming> {
        let path = path.replace("{s}", &format!("/v1/sandboxes/{}", self.sandbox));
        let socket = TcpStream::connect(self.address).await.expect("a connection");
        let (mut client, connection) = hyper::client::conn::http1::handshake(TokioIo::new(socket)).await.expect("HTTP");
        tokio::spawn(connection);
        let mut request = Request::builder()
            .method(Method::from_bytes(method.as_bytes()).expect("a method"))
            .uri(path)
            .header("host", "localhost")
            .header("authorization", format!("Bearer {}", self.key));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(body)).expect("a request");
        tokio::time::timeout(PATIENCE, client.send_request(request))
            .await
            .expect("an answer in time")
            .expect("an answer")
    }

    pub(crate) async fn request(&self, method: &str, path: &str, headers: &[(&str, &str)], body: Bytes) -> Answer {
        let (head, body) = self.open(method, path, headers, body).await.into_parts();
        let body = tokio::time::timeout(PATIENCE, body.collect()).await.expect("a body in time").expect("a whole body");
        Answer { status: head.status.as_u16(), headers: head.headers, body: body.to_bytes() }
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.request("GET", path, &[], Bytes::new()).await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Answer {
        self.request("POST", path, &[], body.to_string().into()).await
    }

    /// Runs as root in `/`: the agent is not in a sandbox of its own.
    pub(crate) async fn exec(&self, mut body: Value) -> Answer {
        for (name, value) in [("user", json!("root")), ("cwd", json!("/"))] {
            if body.get(name).is_none() {
                body[name] = value;
            }
        }
        self.post("{s}:exec", body).await
    }
}
