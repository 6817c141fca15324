//! What goes over the wire, byte by byte, and the tour of bad input.

use std::time::Duration;

use runtime_server::Config;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use uuid::Uuid;

use crate::stack::{Reply, Stack, read_reply, send};

#[tokio::test]
async fn refusals_have_one_shape_and_the_request_id() {
    let stack = Stack::start().await;
    let missing = Uuid::new_v4();
    for (method, path, status, code) in [
        ("GET", format!("/v1/sandboxes/{missing}"), 404, "not_found"),
        ("GET", "/v1/sandboxes/NOT-AN-ID".to_owned(), 404, "not_found"),
        ("GET", "/v1/nope".to_owned(), 404, "route_not_found"),
        ("GET", "/nope".to_owned(), 404, "route_not_found"),
        ("POST", format!("/v1/sandboxes/{missing}:nope"), 404, "route_not_found"),
        ("POST", format!("/v1/sandboxes/{missing}/~stop"), 404, "route_not_found"),
        ("DELETE", "/v1/sandboxes".to_owned(), 405, "method_not_allowed"),
        ("GET", format!("/v1/sandboxes/{missing}:stop"), 405, "method_not_allowed"),
        ("GET", "/v1/sandboxes/%ff".to_owned(), 400, "invalid_request"),
        ("GET", "/v1/images".to_owned(), 501, "unavailable"),
        ("GET", format!("/v1/images/{missing}"), 404, "image_not_found"),
        ("POST", "/v1/images:delete".to_owned(), 501, "unavailable"),
        ("PUT", "/v1/egress-secrets/a/rules".to_owned(), 501, "secrets_unavailable"),
        ("GET", "/v1/resources/1".to_owned(), 410, "upgrade_required"),
        ("POST", format!("/v1/sandboxes/{missing}:pause"), 404, "not_found"),
    ] {
        stack.call(method, &path, Value::Null).await.refused(status, code);
    }
    let ok = stack.get("/v1/me").await;
    assert!(ok.ok()["orgId"].is_string());
    let id = ok.header("x-request-id").unwrap();
    assert!(id.starts_with("req_") && id.len() == 23, "{id}");
    stack.stop().await;
}

#[tokio::test]
async fn the_key_comes_before_everything_else() {
    let stack = Stack::start().await;
    for path in ["/v1/me", "/v1/nope", "/v1/sandboxes/x:stop", "/v1/images", "/v1/resources"] {
        for headers in [&[][..], &[("authorization", "Bearer nope")], &[("authorization", "Basic x")]] {
            let reply = send(stack.address, "PUT", path, headers, b"{}").await;
            reply.refused(401, "unauthorized");
        }
    }
    let unknown = format!("Bearer rtcloud_{}_{}", Uuid::new_v4(), "a".repeat(43));
    send(stack.address, "GET", "/v1/me", &[("authorization", &unknown)], b"").await.refused(401, "unauthorized");
    for path in ["/health", "/v1/openapi.json"] {
        assert_eq!(
            send(stack.address, "GET", path, &[], b"").await.ok().as_object().map(|o| o.is_empty()),
            Some(false)
        );
    }
    let health = send(stack.address, "GET", "/health", &[], b"").await.ok();
    assert_eq!(health, json!({"status": "ok", "engine": "memory", "emulated": true}));
    stack.stop().await;
}

#[tokio::test]
async fn what_is_not_built_says_so_for_a_sandbox_that_exists() {
    let stack = Stack::start().await;
    let id = stack.sandbox(json!({})).await["id"].as_str().unwrap().to_owned();
    for (method, tail, code) in [
        ("POST", ":switch-image", "switch_image_unavailable"),
        ("POST", "/interpreter:run", "unavailable"),
        ("POST", "/files:link", "file_links_unavailable"),
        ("GET", "/metrics?range=1h", "unavailable"),
    ] {
        let error = stack.call(method, &format!("/v1/sandboxes/{id}{tail}"), Value::Null).await.refused(501, code);
        assert!(error["hint"].is_string(), "{error}");
    }
    stack.call("POST", &format!("/v1/sandboxes/{id}:wake"), json!({})).await.refused(409, "not_paused");
    // Of a sandbox that is not there nothing is said, whatever is asked.
    let none = uuid::Uuid::new_v4();
    for tail in [":pause", "/network", "/processes/p/files", ":switch-image"] {
        let method = if tail.contains(':') { "POST" } else { "GET" };
        stack.call(method, &format!("/v1/sandboxes/{none}{tail}"), Value::Null).await.refused(404, "not_found");
    }
    let put = stack.call("PUT", "/v1/me", Value::Null).await;
    assert_eq!(put.header("allow"), Some("GET,HEAD"));
    put.refused(405, "method_not_allowed");
    stack.stop().await;
}

#[tokio::test]
async fn a_connection_is_kept_and_answers_come_in_order() {
    let stack = Stack::start().await;
    let mut socket = TcpStream::connect(stack.address).await.unwrap();
    let one = format!("GET /v1/me HTTP/1.1\r\nhost: t\r\nauthorization: Bearer {}\r\n\r\n", stack.key);
    let bad = "POST /v1/sandboxes HTTP/1.1\r\nhost: t\r\ncontent-length: 10\r\n\r\n0123456789";
    for _ in 0..3 {
        // A refusal before the body was read leaves the connection in step.
        socket.write_all(bad.as_bytes()).await.unwrap();
        read_reply(&mut socket).await.unwrap().refused(401, "unauthorized");
        socket.write_all(one.as_bytes()).await.unwrap();
        assert_eq!(read_reply(&mut socket).await.unwrap().status, 200);
    }
    stack.stop().await;
}

#[tokio::test]
async fn early_refusals_wait_for_two_mebibytes_of_body() {
    let stack = Stack::start().await;
    let body = vec![b'x'; 2 * 1024 * 1024 - 1];
    send(stack.address, "POST", "/v1/sandboxes", &[], &body).await.refused(401, "unauthorized");
    stack.send("POST", "/v1/nope", &[], &body).await.refused(404, "route_not_found");
    stack.stop().await;
}

#[tokio::test]
async fn bodies_that_are_too_long_are_refused_or_cut() {
    let stack = Stack::start().await;
    for announced in [u64::from(u32::MAX), 1 << 30, u64::MAX / 2] {
        let mut socket = TcpStream::connect(stack.address).await.unwrap();
        let head = format!(
            "POST /v1/sandboxes HTTP/1.1\r\nhost: t\r\nauthorization: Bearer {}\r\ncontent-length: {announced}\r\n\r\n",
            stack.key
        );
        socket.write_all(head.as_bytes()).await.unwrap();
        // Until the server has seen enough.
        let piece = vec![b' '; 64 * 1024];
        let mut sent = 0;
        while sent < 3 * 1024 * 1024 && socket.write_all(&piece).await.is_ok() {
            sent += piece.len();
        }
        if let Some(reply) = read_reply(&mut socket).await {
            assert_eq!(reply.header("connection"), Some("close"));
            reply.refused(413, "request_too_large");
        }
    }
    // The same without a length.
    let mut socket = TcpStream::connect(stack.address).await.unwrap();
    let head = format!(
        "POST /v1/sandboxes HTTP/1.1\r\nhost: t\r\nauthorization: Bearer {}\r\ntransfer-encoding: chunked\r\n\r\n",
        stack.key
    );
    socket.write_all(head.as_bytes()).await.unwrap();
    let piece = [b"100000\r\n", &vec![b' '; 0x10_0000][..], b"\r\n"].concat();
    for _ in 0..5 {
        if socket.write_all(&piece).await.is_err() {
            break;
        }
    }
    if let Some(reply) = read_reply(&mut socket).await {
        reply.refused(413, "request_too_large");
    }
    stack.stop().await;
}

#[tokio::test]
async fn bodies_that_are_not_json_objects_are_named() {
    let stack = Stack::start().await;
    let deep = [vec![b'['; 100_000], vec![b']'; 100_000]].concat();
    for body in [&b"\xff\xfe"[..], b"{\"name\":\"\xff\"}", b"[]", b"1", b"{", b"{\"a\":1,}", &deep] {
        let error = stack.send("POST", "/v1/sandboxes", &[], body).await.refused(400, "invalid_request");
        assert_eq!(error["details"]["issues"][0]["path"], "body", "{error}");
    }
    assert_eq!(stack.node.count(), 0);
    stack.stop().await;
}

#[tokio::test]
async fn heads_that_are_too_much_are_refused_or_cut() {
    let stack = Stack::start().await;
    let many: String = (0..10_000).map(|n| format!("x-{n}: 1\r\n")).collect();
    let long = format!("x-long: {}\r\n", "a".repeat(1024 * 1024));
    let long_path = format!("GET /{} HTTP/1.1\r\nhost: t\r\n\r\n", "a".repeat(200_000));
    for request in [
        format!("GET /health HTTP/1.1\r\nhost: t\r\n{many}\r\n"),
        format!("GET /health HTTP/1.1\r\nhost: t\r\n{long}\r\n"),
        long_path,
        "GET /health HTTP/1.1\r\nhost: t\r\nx: a\0b\r\n\r\n".to_owned(),
        "\0\0\0\0\r\n\r\n".to_owned(),
        "GET /health HTTP/1.1\r\nhost: t\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n".to_owned(),
    ] {
        let mut socket = TcpStream::connect(stack.address).await.unwrap();
        // The server may cut before all is sent.
        let _ = socket.write_all(request.as_bytes()).await;
        if let Some(Reply { status, .. }) = read_reply(&mut socket).await {
            assert!((400..500).contains(&status), "{status}");
        }
    }
    assert_eq!(stack.get("/v1/me").await.status, 200);
    stack.stop().await;
}

#[tokio::test]
async fn a_body_that_trickles_is_not_read_for_ever() {
    // No silence is ever long; only the whole is.
    let config = Config { body_whole: Duration::from_millis(300), ..Config::default() };
    let stack = Stack::with(config).await;
    let (mut answer, mut body) = TcpStream::connect(stack.address).await.unwrap().into_split();
    let head = format!(
        "POST /v1/sandboxes HTTP/1.1\r\nhost: t\r\nauthorization: Bearer {}\r\ncontent-length: 10000\r\n\r\n{{",
        stack.key
    );
    body.write_all(head.as_bytes()).await.unwrap();
    let trickle = async {
        while body.write_all(b" ").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        // Cut; whether with a word the other side knows.
        std::future::pending::<()>().await;
    };
    let mut first = [0; 12];
    tokio::select! {
        read = tokio::io::AsyncReadExt::read_exact(&mut answer, &mut first) => drop(read.unwrap()),
        () = trickle => {}
        () = tokio::time::sleep(Duration::from_secs(60)) => panic!("still read"),
    }
    assert_eq!(&first, b"HTTP/1.1 408");
    stack.stop().await;
}

#[tokio::test]
async fn a_stop_does_not_wait_for_those_who_wait() {
    // Nobody lives to see it waited out.
    let stack = Stack::with(Config { grace: Duration::from_secs(100_000), ..Config::default() }).await;
    stack.node.hold_starts(true);
    let id = stack.call("POST", "/v1/sandboxes", json!({})).await.ok()["id"].as_str().unwrap().to_owned();
    let path = format!("/v1/sandboxes/{id}?waitFor=running&timeoutSeconds=3600");
    let (record, ()) = tokio::join!(stack.get(&path), async {
        // Its wait holds the record; one more request has been answered behind it.
        stack.get("/v1/me").await.ok();
        stack.shut();
    });
    assert_eq!(record.ok()["state"], "starting");
    stack.node.hold_starts(false);
    stack.stop().await;
}

#[tokio::test]
async fn a_client_that_never_ends_its_request_is_cut() {
    let quick = Duration::from_millis(200);
    let stack = Stack::with(Config { head_timeout: quick, ..Config::default() }).await;
    let mut slow_head = TcpStream::connect(stack.address).await.unwrap();
    slow_head.write_all(b"GET /health HTTP/1.1\r\nhost:").await.unwrap();
    assert!(read_reply(&mut slow_head).await.is_none_or(|reply| reply.status == 408));
    stack.stop().await;
    let stack = Stack::with(Config { body_timeout: quick, ..Config::default() }).await;
    let mut slow_body = TcpStream::connect(stack.address).await.unwrap();
    let head = format!(
        "POST /v1/sandboxes HTTP/1.1\r\nhost: t\r\nauthorization: Bearer {}\r\ncontent-length: 10\r\n\r\n{{",
        stack.key
    );
    slow_body.write_all(head.as_bytes()).await.unwrap();
    read_reply(&mut slow_body).await.unwrap().refused(408, "request_timeout");
    stack.stop().await;
}

#[tokio::test]
async fn an_answer_that_takes_too_long_comes_late() {
    let stack = Stack::with(Config { late_after: Duration::from_millis(50), ..Config::default() }).await;
    stack.node.hold_starts(true);
    let ask = async |what: &str| {
        let mut waiting = TcpStream::connect(stack.address).await.unwrap();
        let head = format!("{what} HTTP/1.1\r\nhost: t\r\nauthorization: Bearer {}\r\n", stack.key);
        let rest = "prefer: wait=60\r\ncontent-length: 2\r\n\r\n{}";
        waiting.write_all(format!("{head}{rest}").as_bytes()).await.unwrap();
        // Its head is here while nothing is known yet: it is late.
        waiting.readable().await.unwrap();
        waiting
    };
    let mut waiting = ask("POST /v1/sandboxes").await;
    stack.node.hold_starts(false);
    let late = read_reply(&mut waiting).await.unwrap();
    assert_eq!(late.header("runtime-late-answer"), Some("true"));
    assert!(late.header("x-request-id").is_some());
    let record = late.ok();
    assert_eq!(record["state"], "running");
    // A refusal that comes late is the only thing in its body.
    let id = record["id"].as_str().unwrap();
    let mut waiting = ask(&format!("GET /v1/sandboxes/{id}?waitFor=paused&timeoutSeconds=60")).await;
    stack.call("DELETE", &format!("/v1/sandboxes/{id}"), Value::Null).await.ok();
    let gone = read_reply(&mut waiting).await.unwrap();
    assert_eq!((gone.status, gone.header("runtime-late-answer")), (200, Some("true")));
    assert_eq!(gone.json()["error"]["status"], 404);
    stack.stop().await;
}

#[tokio::test]
async fn over_the_limit_of_a_key_is_told_when_to_come_back() {
    let guards = runtime_server::Guards {
        key_burst: std::num::NonZeroU32::MIN,
        key_rate: std::num::NonZeroU32::MIN,
        turn_wait: Duration::from_millis(1),
        ..Default::default()
    };
    let stack = Stack::with(Config { guards: Some(guards), ..Config::default() }).await;
    // Two within a second: how many requests that takes is the machine's to say.
    let refused = loop {
        let reply = stack.get("/v1/me").await;
        if reply.status != 200 {
            break reply;
        }
    };
    refused.refused(429, "rate_limited");
    assert_eq!(refused.header("retry-after"), Some("1"));
    stack.stop().await;
}
