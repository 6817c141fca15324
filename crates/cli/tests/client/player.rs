//! A server that plays answers and remembers what it was asked.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use pieces::Pieces;
use serde_json::Value;

/// One request, as it came.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    /// `GET /v1/sandboxes?name=x`.
    pub(crate) what: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Value,
}

impl Asked {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }
}

/// What to answer.
pub(crate) struct Answer {
    status: u16,
    headers: Vec<(&'static str, String)>,
    body: Vec<Piece>,
}

enum Piece {
    Bytes(Bytes),
    /// The connection dies here, once what came before is on its way.
    Cut,
    CutNow,
    /// The body stays open: nothing more comes.
    Hang,
}

impl Answer {
    pub(crate) fn json(status: u16, value: &Value) -> Self {
        Self::bytes(status, value.to_string())
    }

    pub(crate) fn refusal(status: u16, code: &str) -> Self {
        Self::json(
            status,
            &serde_json::json!({"error": {"code": code, "status": status, "message": "no", "requestId": "req_1"}}),
        )
    }

    pub(crate) fn bytes(status: u16, bytes: impl Into<Bytes>) -> Self {
        Self { status, headers: Vec::new(), body: vec![Piece::Bytes(bytes.into())] }
    }

    /// Events, one per line.
    pub(crate) fn events(events: &[Value]) -> Self {
        let lines: String = events.iter().map(|event| format!("{event}\n")).collect();
        Self::bytes(200, lines)
    }

    pub(crate) fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    pub(crate) fn then_cut(mut self) -> Self {
        self.body.push(Piece::Cut);
        self
    }

    pub(crate) fn then_hang(mut self) -> Self {
        self.body.push(Piece::Hang);
        self
    }

    fn response(self) -> Response {
        let mut response = Response::builder().status(StatusCode::from_u16(self.status).expect("a status"));
        for (name, value) in self.headers {
            response = response.header(name, value);
        }
        response.body(Body::from_stream(Pieces::new(self.body))).expect("a response")
    }
}

/// A body in pieces, without another crate for it.
mod pieces {
    use std::collections::VecDeque;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use axum::body::Bytes;
    use futures_util::Stream;

    use super::Piece;

    pub(super) struct Pieces(VecDeque<Piece>);

    impl Pieces {
        pub(super) fn new(pieces: Vec<Piece>) -> Self {
            Self(pieces.into())
        }
    }

    impl Stream for Pieces {
        type Item = Result<Bytes, std::io::Error>;

        fn poll_next(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Option<Self::Item>> {
            match self.0.pop_front() {
                Some(Piece::Bytes(bytes)) => Poll::Ready(Some(Ok(bytes))),
                Some(Piece::Cut) => {
                    // The server flushes whenever a body has nothing to say.
                    self.0.push_front(Piece::CutNow);
                    task.waker().wake_by_ref();
                    Poll::Pending
                }
                Some(Piece::CutNow) => Poll::Ready(Some(Err(std::io::ErrorKind::ConnectionReset.into()))),
                Some(Piece::Hang) => {
                    self.0.push_front(Piece::Hang);
                    Poll::Pending
                }
                None => Poll::Ready(None),
            }
        }
    }
}

type Play = dyn Fn(&Asked, usize) -> Answer + Send + Sync;

struct Stage {
    play: Box<Play>,
    asked: Mutex<Vec<Asked>>,
    news: Condvar,
}

/// The server; it ends with the test.
pub(crate) struct Player {
    address: SocketAddr,
    stage: Arc<Stage>,
    _runtime: tokio::runtime::Runtime,
}

impl Player {
    /// `play` answers a request, given how many came before it.
    pub(crate) fn start(play: impl Fn(&Asked, usize) -> Answer + Send + Sync + 'static) -> Self {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let stage = Arc::new(Stage { play: Box::new(play), asked: Mutex::default(), news: Condvar::new() });
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).expect("a port");
        let address = listener.local_addr().expect("an address");
        let router = Router::new().fallback(answer).with_state(Arc::clone(&stage));
        runtime.spawn(async move { axum::serve(listener, router).await });
        Self { address, stage, _runtime: runtime }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Everything that was asked so far, in order.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.stage.asked.lock().expect("no panic").clone()
    }

    pub(crate) fn whats(&self) -> Vec<String> {
        self.asked().into_iter().map(|asked| asked.what).collect()
    }

    /// Waits until something was asked.
    pub(crate) fn wait_for(&self, what: &str) {
        let asked = self.stage.asked.lock().expect("no panic");
        let missing = |asked: &mut Vec<Asked>| asked.iter().all(|asked| asked.what != what);
        drop(self.stage.news.wait_while(asked, missing).expect("no panic"));
    }
}

async fn answer(State(stage): State<Arc<Stage>>, request: Request) -> Result<Response, Infallible> {
    let (head, body) = request.into_parts();
    let body = axum::body::to_bytes(body, 16 * 1024 * 1024).await.expect("a body");
    let what = format!("{} {}", head.method, head.uri);
    let asked = Asked { what, headers: head.headers, body: serde_json::from_slice(&body).unwrap_or_default() };
    let before = {
        let mut all = stage.asked.lock().expect("no panic");
        all.push(asked.clone());
        all.len() - 1
    };
    stage.news.notify_all();
    Ok((stage.play)(&asked, before).response())
}
