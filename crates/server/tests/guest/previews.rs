//! Ports of a sandbox under addresses of their own: the real server and agent, and a web server that listens where the
//! agent connects to.

use std::time::Duration;

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use http_body_util::{BodyExt, Empty};
use hyper::Request;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

use crate::stack::{Answer, PATIENCE, Stack};

const PAGE: &str = "text/html,application/xhtml+xml";

/// A server that answers each request with its head, and `/endless` with bytes that never end.
async fn web() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(socket.read_u8().await?);
                }
                if head.starts_with(b"GET /endless") {
                    socket.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").await?;
                    loop {
                        socket.write_all(b"4\r\nmore\r\n").await?;
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                }
                if head.starts_with(b"GET /nonsense") {
                    return socket.write_all(b"220 mail.example ESMTP\r\n").await;
                }
                let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nX-App: yes\r\n\r\n", head.len());
                socket.write_all(answer.as_bytes()).await?;
                socket.write_all(&head).await
            });
        }
    });
    port
}

struct Shared<'a> {
    stack: &'a Stack,
    port: u16,
}

impl Shared<'_> {
    async fn make(&self, mut body: Value) -> Value {
        body["port"] = json!(self.port);
        self.stack.request("POST", "{s}/previews", &[], body.to_string().into()).await.ok()
    }

    fn host(&self) -> String {
        format!("{}-{}.localhost:{}", self.port, self.stack.sandbox, self.stack.address.port())
    }

    async fn open(&self, path: &str, headers: &[(&str, &str)]) -> hyper::Response<hyper::body::Incoming> {
        let socket = TcpStream::connect(self.stack.address).await.expect("a connection");
        let (mut client, connection) = hyper::client::conn::http1::handshake(TokioIo::new(socket)).await.expect("HTTP");
        tokio::spawn(connection);
        let mut request = Request::builder().uri(path).header("host", self.host());
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Empty::<Bytes>::new()).expect("a request");
        tokio::time::timeout(PATIENCE, client.send_request(request)).await.expect("in time").expect("an answer")
    }

    async fn get(&self, path: &str, headers: &[(&str, &str)]) -> Answer {
        let (head, body) = self.open(path, headers).await.into_parts();
        let body = tokio::time::timeout(PATIENCE, body.collect()).await.expect("in time").expect("whole").to_bytes();
        Answer { status: head.status.as_u16(), headers: head.headers, body }
    }
}

fn text(value: &Value) -> String {
    value.as_str().expect("text").to_owned()
}

#[tokio::test]
async fn a_private_port_is_opened_by_its_token() {
    let stack = Stack::start().await;
    let shared = Shared { stack: &stack, port: web().await };
    assert_eq!(shared.get("/", &[]).await.status, 404, "nothing is shared yet");
    let made = shared.make(json!({})).await;
    let token = text(&made["token"]);
    assert_eq!(text(&made["url"]), format!("http://{}-{}.localhost/", shared.port, stack.sandbox));
    assert_eq!(text(&made["urlWithToken"]), format!("{}?runtime_preview_token={token}", text(&made["url"])));
    assert_eq!((&made["visibility"], &made["disabled"]), (&json!("private"), &json!(false)));

    let refused = shared.get("/", &[]).await;
    assert_eq!(refused.refusal(), (401, "unauthorized".to_owned()));
    assert!(!refused.header("x-runtime-report").is_empty());
    for (name, value) in [("x-runtime-preview-token", "nonsense"), ("cookie", "runtime_preview=nonsense")] {
        assert_eq!(shared.get("/", &[(name, value)]).await.status, 401);
    }
    let cookie = format!("mine=1; runtime_preview={token}");
    for headers in
        [("x-runtime-preview-token", token.as_str()), ("X-Blaxel-Preview-Token", &token), ("cookie", &cookie)]
    {
        let seen = shared.get("/a/b?x=1", &[headers]).await;
        assert_eq!((seen.status, seen.header("x-app")), (200, "yes"));
        let head = String::from_utf8_lossy(&seen.body).into_owned();
        assert!(head.starts_with("GET /a/b?x=1 HTTP/1.1\r\n"), "{head}");
        assert!(!head.contains(&token), "the sandbox is not told the token: {head}");
    }
    for name in ["runtime_preview_token", "bl_preview_token"] {
        let seen = shared.get(&format!("/?a=1&{name}={token}"), &[]).await;
        assert_eq!(seen.status, 200);
        assert!(String::from_utf8_lossy(&seen.body).starts_with("GET /?a=1 HTTP/1.1"));
    }
    // A browser gets a cookie for it, and an address without it.
    let link = format!("/a?b=c&runtime_preview_token={token}");
    let sent_on = shared.get(&link, &[("accept", PAGE)]).await;
    assert_eq!((sent_on.status, sent_on.header("location")), (303, "/a?b=c"));
    let set = sent_on.header("set-cookie").to_owned();
    assert!(set.starts_with(&format!("runtime_preview={token}; Path=/; HttpOnly; Max-Age=")), "{set}");
    let shown = shared.get("/", &[("accept", PAGE)]).await;
    assert_eq!(shown.status, 401);
    assert!(String::from_utf8_lossy(&shown.body).contains("<h1>This preview is private.</h1>"));

    let listed = stack.request("GET", "{s}/previews", &[], Bytes::new()).await.ok();
    // Within a step the same token is told; a step may have ended here.
    if listed["data"][0]["tokenExpiresAt"] == made["tokenExpiresAt"] {
        assert_eq!(listed["data"][0]["token"], json!(token));
    }
    let again = shared.make(json!({})).await;
    assert_eq!(again["id"], made["id"]);
    let nowhere = Shared { stack: &stack, port: 1 };
    let nothing = nowhere.make(json!({})).await;
    let refused = nowhere.get("/", &[("x-runtime-preview-token", &text(&nothing["token"]))]).await;
    assert_eq!(refused.refusal(), (502, "guest_failed".to_owned()));
    let nonsense = shared.get("/nonsense", &[("x-runtime-preview-token", &token)]).await;
    assert_eq!(nonsense.refusal(), (502, "guest_failed".to_owned()));
}

#[tokio::test]
async fn a_change_is_in_force_when_it_is_answered() {
    let stack = Stack::start().await;
    let shared = Shared { stack: &stack, port: web().await };
    let mut token = text(&shared.make(json!({})).await["token"]);
    let route = format!("{{s}}/previews/{}", shared.port);
    for change in ["rotate", "public", "private", "delete"] {
        let header = ("x-runtime-preview-token", token.as_str());
        let mut open = shared.open("/endless", &[header]).await;
        open.body_mut().frame().await.expect("bytes").expect("bytes");
        match change {
            "rotate" => {
                let rotated = stack.request("POST", &format!("{route}:rotate"), &[], "{}".into()).await.ok();
                assert_eq!(shared.get("/", &[header]).await.status, 401, "the old token has ended");
                token = text(&rotated["token"]);
            }
            "public" => {
                let public = shared.make(json!({"visibility": "public"})).await;
                assert_eq!((&public["token"], &public["urlWithToken"]), (&Value::Null, &Value::Null));
                assert_eq!(shared.get("/", &[]).await.status, 200);
            }
            "private" => {
                shared.make(json!({"visibility": "private"})).await;
                assert_eq!(shared.get("/", &[]).await.status, 401);
            }
            _ => {
                let deleted = stack.request("DELETE", &route, &[], Bytes::new()).await.ok();
                assert_eq!(deleted["deleted"], true);
                assert_eq!(shared.get("/", &[header]).await.status, 404);
                assert_eq!(stack.request("DELETE", &route, &[], Bytes::new()).await.status, 404);
            }
        }
        let broken = tokio::time::timeout(PATIENCE, open.into_body().collect()).await.expect("it is cut");
        assert!(broken.is_err(), "{change}: it breaks off, and does not end");
    }
}

#[tokio::test]
async fn a_public_page_says_first_whose_it_is() {
    let stack = Stack::start().await;
    let shared = Shared { stack: &stack, port: web().await };
    shared.make(json!({"visibility": "public"})).await;
    let first = shared.get("/a?b=c", &[("accept", PAGE)]).await;
    let page = String::from_utf8_lossy(&first.body).into_owned();
    assert!(first.status == 200 && page.contains("href=\"/a?b=c&amp;runtime_preview_seen=1\""), "{page}");
    assert_eq!(first.header("x-app"), "");
    let on = shared.get("/a?b=c&runtime_preview_seen=1", &[("accept", PAGE)]).await;
    assert_eq!((on.status, on.header("location")), (303, "/a?b=c"));
    let cookie = on.header("set-cookie").split(';').next().expect("a cookie").to_owned();
    let seen = shared.get("/a?b=c", &[("accept", PAGE), ("cookie", &cookie)]).await;
    assert_eq!(seen.header("x-app"), "yes");
    assert!(!String::from_utf8_lossy(&seen.body).contains("runtime_preview"));
    // Programs, and what is in a frame, are not asked.
    assert_eq!(shared.get("/", &[]).await.header("x-app"), "yes");
    let framed = [("accept", PAGE), ("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "iframe")];
    assert_eq!(shared.get("/", &framed).await.header("x-app"), "yes");

    shared.make(json!({"visibility": "public", "embedOrigins": ["https://app.example"]})).await;
    assert_eq!(shared.get("/", &framed).await.status, 403);
    let mut from = framed.to_vec();
    from.push(("referer", "https://app.example/page"));
    let inside = shared.get("/", &from).await;
    assert_eq!(inside.header("content-security-policy"), "frame-ancestors 'self' https://app.example");
    let kept = shared.make(json!({"visibility": "public"})).await;
    assert_eq!(kept["embedOrigins"], json!(["https://app.example"]), "left out, it stays");
    let any = shared.make(json!({"visibility": "public", "embedOrigins": null})).await;
    assert_eq!(any["embedOrigins"], Value::Null);
}

#[tokio::test]
async fn what_is_wrong_is_named_and_changes_nothing() {
    let stack = Stack::start().await;
    let body = json!({"port": 10800, "visibility": "open", "ttlSeconds": 59, "expiresAt": "2001-01-01T00:00:00Z",
        "embedOrigins": ["https://a.example/path"], "colour": 1});
    let refused = stack.request("POST", "{s}/previews", &[], body.to_string().into()).await;
    assert_eq!(refused.refusal(), (400, "invalid_request".to_owned()));
    let told = refused.json().to_string();
    for name in ["port", "visibility", "ttlSeconds", "expiresAt", "embedOrigins[0]", "colour"] {
        assert!(told.contains(&format!("\"path\":\"{name}\"")), "{name}: {told}");
    }
    assert_eq!(stack.request("GET", "{s}/previews", &[], Bytes::new()).await.ok()["data"], json!([]));
    for path in ["{s}/previews/80", "{s}/previews/080", "{s}/previews/x"] {
        assert_eq!(stack.request("GET", path, &[], Bytes::new()).await.status, 404, "{path}");
    }
}

#[tokio::test]
async fn a_token_read_through_a_session_ends_with_it() {
    let stack = Stack::start().await;
    let shared = Shared { stack: &stack, port: web().await };
    shared.make(json!({})).await;
    let session = stack.request("POST", "{s}/sessions", &[], "{\"ttlSeconds\":120}".into()).await.ok();
    let socket = TcpStream::connect(stack.address).await.expect("a connection");
    let (mut client, connection) = hyper::client::conn::http1::handshake(TokioIo::new(socket)).await.expect("HTTP");
    tokio::spawn(connection);
    let request = Request::builder()
        .uri(format!("/v1/sandboxes/{}/previews", stack.sandbox))
        .header("host", "localhost")
        .header("authorization", format!("Bearer {}", text(&session["token"])))
        .body(Empty::<Bytes>::new())
        .expect("a request");
    let answer = client.send_request(request).await.expect("an answer").into_body().collect().await.expect("whole");
    let listed: Value = serde_json::from_slice(&answer.to_bytes()).expect("JSON");
    let token = text(&listed["data"][0]["token"]);
    let ends = |time: &Value| text(time)[..19].to_owned();
    assert!(ends(&listed["data"][0]["tokenExpiresAt"]) <= ends(&session["expiresAt"]));
    let header = ("x-runtime-preview-token", token.as_str());
    assert_eq!(shared.get("/", &[header]).await.status, 200);
    let mut open = shared.open("/endless", &[header]).await;
    open.body_mut().frame().await.expect("bytes").expect("bytes");
    let revoke = format!("{{s}}/sessions/{}:revoke", text(&session["id"]));
    stack.request("POST", &revoke, &[], "{}".into()).await.ok();
    assert_eq!(shared.get("/", &[header]).await.status, 401);
    assert!(tokio::time::timeout(PATIENCE, open.into_body().collect()).await.expect("it is cut").is_err());
}

#[tokio::test]
async fn a_web_socket_passes_and_is_cut_by_a_change() {
    let stack = Stack::start().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let shared = Shared { stack: &stack, port: listener.local_addr().expect("an address").port() };
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut socket = tokio_tungstenite::accept_async(socket).await.expect("a WebSocket");
                while let Some(Ok(message)) = socket.next().await {
                    if message.is_close() || socket.send(message).await.is_err() {
                        break;
                    }
                }
            });
        }
    });
    let token = text(&shared.make(json!({})).await["token"]);
    let mut request = format!("ws://{}/chat", shared.host()).into_client_request().expect("a request");
    request.headers_mut().insert("x-runtime-preview-token", token.parse().expect("a header"));
    let tcp = TcpStream::connect(stack.address).await.expect("a connection");
    let (mut socket, _) = tokio_tungstenite::client_async(request, tcp).await.expect("a WebSocket");
    for size in [1, 70_000] {
        let sent = Message::Binary(vec![7; size].into());
        socket.send(sent.clone()).await.expect("sent");
        assert_eq!(socket.next().await.expect("a message").expect("a message"), sent);
    }
    stack.request("POST", &format!("{{s}}/previews/{}:rotate", shared.port), &[], "{}".into()).await.ok();
    let ended = tokio::time::timeout(PATIENCE, socket.next()).await.expect("it is cut");
    assert!(!matches!(ended, Some(Ok(Message::Binary(_)))), "{ended:?}");
}
