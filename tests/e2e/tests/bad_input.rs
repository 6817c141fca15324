//! What a stranger may send. Each is refused with the envelope or cut, the server's memory stays flat (the peak is read
//! from the kernel, not sampled), and the next caller is served.

use runtime_test_kit::api::encode;
use runtime_test_kit::http::Connection;
use runtime_test_kit::{Answer, Api, Stack, eventually, memory_peak_kib, reset_memory_peak, unique};
use serde_json::json;
use std::time::Duration;

/// What one bad request may cost the server at its peak.
const FLAT_KIB: u64 = 48 * 1024;

/// Runs an attack; then the server must have stayed small and must serve.
fn flat(stack: &Stack, what: &str, attack: impl FnOnce(&Api)) {
    let pid = stack.server_pid();
    reset_memory_peak(pid);
    let before = memory_peak_kib(pid);
    attack(&stack.api());
    let grown = memory_peak_kib(pid).saturating_sub(before);
    println!("{what}: the server's memory grew by {grown} KiB at its peak");
    assert!(grown < FLAT_KIB, "{what}: the server's memory grew by {grown} KiB");
    assert_eq!(stack.api().get("/v1/me").status, 200, "after {what}");
}

/// Sends a head and then `total` bytes, as far as the server takes them. The answer, if one came.
fn pour(api: &Api, head: &str, total: u64, chunked: bool) -> (u64, Option<Answer>) {
    let mut connection = api.connect();
    connection.write(head.as_bytes()).expect("the head is taken");
    let block = vec![b'x'; 1 << 20];
    let mut sent = 0;
    while sent < total {
        let size = block.len().min(usize::try_from(total - sent).unwrap_or(usize::MAX));
        let frame = format!("{size:x}\r\n");
        let wrote = if chunked {
            connection
                .write(frame.as_bytes())
                .and_then(|()| connection.write(&block[..size]))
                .and_then(|()| connection.write(b"\r\n"))
        } else {
            connection.write(&block[..size])
        };
        if wrote.is_err() {
            break;
        }
        sent += size as u64;
    }
    if chunked {
        let _ = connection.write(b"0\r\n\r\n");
    }
    (sent, connection.read_answer().ok())
}

/// Refused in words, or cut without any.
fn refused_or_cut(what: &str, answer: Option<Answer>) {
    let Some(answer) = answer else { return };
    assert!((400..500).contains(&answer.status), "{what}: {} {}", answer.status, answer.text());
    assert!(answer.code().is_some(), "{what}: a refusal without the envelope: {}", answer.text());
}

#[test]
fn a_body_of_one_gibibyte() {
    let stack = Stack::start();
    let machine = stack.api().small();
    const SIZE: u64 = 1 << 30;
    let targets = [
        ("PUT", machine.path("/files/content?path=/workspace/big"), "application/octet-stream"),
        ("POST", "/v1/sandboxes".to_owned(), "application/json"),
        ("POST", machine.path(":exec"), "application/json"),
        ("POST", "/v1/nope".to_owned(), "application/json"),
    ];
    for (method, path, kind) in targets {
        flat(&stack, &format!("1 GiB to {method} {path}"), |api| {
            let head = api.head(method, &path, &[("Content-Type", kind), ("Content-Length", &SIZE.to_string())]);
            let (_, answer) = pour(api, &(head + "\r\n"), SIZE, false);
            refused_or_cut(&path, answer);
        });
        flat(&stack, &format!("1 GiB in chunks to {method} {path}"), |api| {
            let head = api.head(method, &path, &[("Content-Type", kind), ("Transfer-Encoding", "chunked")]);
            let (_, answer) = pour(api, &(head + "\r\n"), SIZE, true);
            refused_or_cut(&path, answer);
        });
    }
    let stat = stack.api().get(&machine.path("/files/stat?path=/workspace/big")).ok();
    assert_eq!(stat["exists"], false, "{stat}");
}

#[test]
fn a_gibibyte_by_a_stranger_without_a_key() {
    let stack = Stack::start();
    flat(&stack, "1 GiB without a key", |api| {
        let api = api.without_key();
        let head = api.head("POST", "/v1/sandboxes", &[("Content-Length", &(1u64 << 30).to_string())]);
        let (_, answer) = pour(&api, &(head + "\r\n"), 1 << 30, false);
        if let Some(answer) = answer {
            assert!(answer.status == 401 || answer.status == 413, "{} {}", answer.status, answer.text());
        }
    });
}

#[test]
fn json_of_a_hundred_megabytes() {
    let stack = Stack::start();
    let machine = stack.api().small();
    let mut body = br#"{"command":""#.to_vec();
    body.resize(100_000_000, b'a');
    body.extend(br#""}"#);
    for path in ["/v1/sandboxes".to_owned(), machine.path(":exec"), machine.path("/processes")] {
        flat(&stack, &format!("100 MB of JSON to {path}"), |api| {
            let answer = api.try_call("POST", &path, &[], Some(("application/json", &body)));
            refused_or_cut(&path, answer.ok());
        });
    }
}

#[test]
fn what_a_json_body_must_not_be() {
    let stack = Stack::start();
    let machine = stack.api().small();
    let deep = |open: &str, close: &str| [open.repeat(100_000), close.repeat(100_000)].concat().into_bytes();
    let bodies: Vec<(&str, Vec<u8>)> = vec![
        ("invalid UTF-8", b"{\"command\":\"\xff\xfe\"}".to_vec()),
        ("a lone surrogate", br#"{"command":"\ud800"}"#.to_vec()),
        ("deep arrays", deep("[", "]")),
        ("deep objects", deep("{\"a\":", "}")),
        ("deep and open", b"[".repeat(1_000_000)),
        ("deep labels", [br#"{"labels":"#.to_vec(), deep("{\"a\":", "}"), b"}".to_vec()].concat()),
        ("cut short", br#"{"command":"tr"#.to_vec()),
        ("two values", br#"{"command":"true"}{"command":"true"}"#.to_vec()),
        ("a huge number", br#"{"command":"true","timeoutMs":1e999}"#.to_vec()),
        ("a number beyond 64 bits", br#"{"command":"true","timeoutMs":99999999999999999999}"#.to_vec()),
        ("a fraction", br#"{"command":"true","timeoutMs":1.5}"#.to_vec()),
        ("NaN", br#"{"command":"true","timeoutMs":NaN}"#.to_vec()),
        ("a mark of byte order", b"\xef\xbb\xbf{\"command\":\"true\"}".to_vec()),
        ("NUL", b"\0\0\0\0".to_vec()),
        ("NUL in a command", br#"{"command":"a\u0000b"}"#.to_vec()),
    ];
    for (what, body) in bodies {
        for path in [machine.path(":exec"), "/v1/sandboxes".to_owned(), machine.path("/files:mkdir")] {
            flat(&stack, what, |api| {
                let answer = api.call("POST", &path, &[], Some(("application/json", &body)));
                assert_eq!(answer.status, 400, "{what} to {path}: {}", answer.text());
                let _ = answer.refused(400, "invalid_request");
            });
        }
    }
    assert_eq!(machine.output("echo alive"), "alive\n");
}

#[test]
fn heads_that_are_too_much() {
    let stack = Stack::start();
    let many: String = (0..10_000).map(|n| format!("X-Header-{n}: value\r\n")).collect();
    let wide = format!("X-Wide: {}\r\n", "w".repeat(4 << 20));
    for (what, extra) in [("10,000 headers", many), ("a header of 4 MiB", wide)] {
        flat(&stack, what, |api| {
            let mut connection = api.connect();
            let head = api.head("GET", "/v1/me", &[]) + &extra + "\r\n";
            let _ = connection.write(head.as_bytes());
            if let Ok((status, _)) = connection.read_head() {
                assert!((400..500).contains(&status), "{what}: {status}");
            }
        });
    }
    flat(&stack, "a path of 1 MiB", |api| {
        let mut connection = api.connect();
        let _ = connection.write((api.head("GET", &format!("/v1/{}", "p".repeat(1 << 20)), &[]) + "\r\n").as_bytes());
        if let Ok((status, _)) = connection.read_head() {
            assert!((400..500).contains(&status), "{status}");
        }
    });
}

#[test]
fn requests_that_are_no_http() {
    let stack = Stack::start();
    let key = stack.owner_key().to_owned();
    let auth = format!("Authorization: Bearer {key}\r\n");
    let raw: Vec<(&str, Vec<u8>)> = vec![
        ("nothing", Vec::new()),
        ("noise", (0..=255u8).cycle().take(100_000).collect()),
        ("TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".repeat(10)),
        ("HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec()),
        ("HTTP/0.9", b"GET /v1/me\r\n\r\n".to_vec()),
        ("a negative length", format!("POST /v1/sandboxes HTTP/1.1\r\nHost: x\r\n{auth}Content-Length: -1\r\n\r\n").into()),
        ("a length beyond 64 bits", format!("POST /v1/sandboxes HTTP/1.1\r\nHost: x\r\n{auth}Content-Length: 99999999999999999999\r\n\r\n").into()),
        ("two lengths", format!("POST /v1/sandboxes HTTP/1.1\r\nHost: x\r\n{auth}Content-Length: 2\r\nContent-Length: 3\r\n\r\n{{}}").into()),
        ("a length and chunks", format!("POST /v1/nope HTTP/1.1\r\nHost: x\r\n{auth}Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /v1/sandboxes HTTP/1.1\r\n\r\n").into()),
        ("a chunk of no size", format!("POST /v1/sandboxes HTTP/1.1\r\nHost: x\r\n{auth}Transfer-Encoding: chunked\r\n\r\nzz\r\n").into()),
        ("a chunk beyond 64 bits", format!("POST /v1/sandboxes HTTP/1.1\r\nHost: x\r\n{auth}Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n").into()),
        ("a folded header", format!("GET /v1/me HTTP/1.1\r\nHost: x\r\n{auth}X-A: 1\r\n 2\r\n\r\n").into()),
        ("a key that is no text", b"GET /v1/me HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer \xff\xfe\r\n\r\n".to_vec()),
    ];
    for (what, bytes) in raw {
        flat(&stack, what, |api| {
            let mut connection = api.connect();
            let _ = connection.write(&bytes);
            connection.half_close();
            connection.set_patience(Duration::from_secs(60));
            if let Ok((status, _)) = connection.read_head() {
                assert!((400..500).contains(&status) || what == "two lengths", "{what}: {status}");
            }
            connection.drain().unwrap_or_else(|error| panic!("{what}: the connection hangs: {error}"));
        });
    }
    let listed = stack.api().get("/v1/sandboxes?includeStopped=true").ok();
    assert_eq!(listed["data"], json!([]), "something was made of it");
}

#[test]
fn what_is_no_request_is_refused_as_everything_is() {
    let stack = Stack::start();
    let api = stack.api();
    let long = format!("GET /v1/{} HTTP/1.1\r\nHost: x\r\n\r\n", "p".repeat(70_000));
    let wide = format!("{}X-Wide: {}\r\n\r\n", api.head("GET", "/v1/me", &[]), "w".repeat(300_000));
    let many: String = (0..200).map(|n| format!("X-Header-{n}: value\r\n")).collect();
    let many = format!("{}{many}\r\n", api.head("GET", "/v1/me", &[]));
    for (bytes, status, code) in [
        ("no request\r\n\r\n", 400, "invalid_request"),
        ("GET /v1/me HTTP/1.1\r\nno colon\r\n\r\n", 400, "invalid_request"),
        (&long, 414, "uri_too_long"),
        (&wide, 431, "headers_too_large"),
        (&many, 431, "headers_too_large"),
    ] {
        let mut connection = api.connect();
        connection.write(bytes.as_bytes()).expect("it is taken");
        let answer = connection.read_answer().expect("a whole answer");
        let error = answer.refused(status, code);
        assert_eq!(answer.header("x-request-id"), error["requestId"].as_str(), "{error}");
        assert_eq!(answer.header("connection"), Some("close"));
    }
    // After a good one on the same connection, too.
    let mut connection = api.connect();
    let good = api.head("GET", "/health", &[]).replace("Connection: close\r\n", "");
    connection.write(format!("{good}\r\n").as_bytes()).expect("it is taken");
    let _ = connection.read_answer().expect("a whole answer").ok();
    connection.write(b"no request\r\n\r\n").expect("it is taken");
    let _ = connection.read_answer().expect("a whole answer").refused(400, "invalid_request");
}

#[test]
fn paths_that_try_to_leave() {
    let stack = Stack::start();
    let api = stack.api();
    let machine = api.small();
    let marker = stack.dir().join("marker");
    std::fs::write(&marker, "of the host").expect("a file on the host");
    let host = marker.display().to_string();
    let ups = "/..".repeat(40);
    for path in [
        host.clone(),
        format!("{ups}{host}"),
        format!("/workspace{ups}{host}"),
        format!("/proc/1/root{host}"),
        format!("/proc/self/root{ups}{host}"),
        format!("/workspace/./..//..{host}"),
    ] {
        let q = encode(&path);
        for (what, answer) in [
            ("read", machine.try_read(&path)),
            ("list", api.get(&machine.path(&format!("/files/list?path={q}")))),
            (
                "rename",
                api.post(
                    &machine.path("/files:rename"),
                    &json!({"from": path, "to": "/workspace/x", "overwrite": true}),
                ),
            ),
            ("chmod", api.post(&machine.path("/files:chmod"), &json!({"path": path, "mode": "777"}))),
            ("cwd", api.post(&machine.path(":exec"), &json!({"command": "true", "cwd": path}))),
        ] {
            assert!((400..500).contains(&answer.status), "{what} {path}: {} {}", answer.status, answer.text());
        }
        let stat = api.get(&machine.path(&format!("/files/stat?path={q}")));
        assert!(stat.status >= 400 || stat.json()["exists"] == false, "stat {path}: {}", stat.text());
        let removed = api.post(&machine.path("/files:remove"), &json!({"path": path, "recursive": true}));
        assert!(removed.status >= 400 || removed.json()["removed"] == false, "remove {path}: {}", removed.text());
        let _ = machine.try_write(&path, b"owned");
        let _ = api.post(&machine.path("/files:mkdir"), &json!({"path": format!("{path}.d"), "parents": true}));
    }
    assert_eq!(std::fs::read_to_string(&marker).expect("still there"), "of the host");
    assert!(!stack.dir().join("marker.d").exists(), "a directory was made on the host");
    // Where an id stands in the path.
    for id in ["..", ".", "%2e%2e", "..%2f..%2fetc", "%00", "%ff", "*", "' or 1=1 --", "a%2Fb", "%F0%9F%98%80", ""] {
        let id = id.replace(' ', "%20");
        for (method, path) in [
            ("GET", format!("/v1/sandboxes/{id}")),
            ("DELETE", format!("/v1/sandboxes/{id}")),
            ("POST", format!("/v1/sandboxes/{id}:exec")),
            ("POST", format!("/v1/sandboxes/{id}:stop")),
            ("GET", format!("/v1/sandboxes/{id}/files/content?path=/etc/hostname")),
            ("GET", machine.path(&format!("/processes/{id}"))),
            ("GET", machine.path(&format!("/processes/{id}/output?cursor=0"))),
            ("POST", machine.path(&format!("/processes/{id}:signal"))),
        ] {
            let body = (method == "POST").then_some(("application/json", &br#"{"command":"true"}"#[..]));
            let answer = api.call(method, &path, &[], body);
            let listed = method == "GET" && id.is_empty();
            assert!(listed || (400..500).contains(&answer.status), "{method} {path}: {}", answer.text());
        }
    }
    assert_eq!(machine.state(), "running");
}

#[test]
fn names_of_every_kind() {
    let stack = Stack::start();
    let api = stack.api();
    let base = unique("n");
    for (name, allowed) in [
        (format!("{base}-😀"), Some(true)),
        (format!("{base} with spaces & = + %"), Some(true)),
        (format!("{base}-é"), Some(true)),
        (format!("{base}{}", "x".repeat(128 - base.len())), Some(true)),
        (format!("{base}/slash"), None),
        (format!("../{base}"), None),
        (format!("{base}\0nul"), Some(false)),
        (format!("{base}\nline"), Some(false)),
        (format!("{base}\u{1b}[2J"), Some(false)),
        (String::new(), Some(false)),
        ("x".repeat(129), Some(false)),
        ("x".repeat(1 << 20), Some(false)),
    ] {
        let answer = api.post("/v1/sandboxes", &json!({"name": name, "vcpu": 1, "memoryMiB": 256}));
        let shown: String = name.chars().take(40).collect();
        if answer.status == 200 {
            assert_ne!(allowed, Some(false), "{shown:?} was taken");
            assert_eq!(answer.json()["name"], name);
            let found = api.get(&format!("/v1/sandboxes?name={}", encode(&name))).ok();
            assert_eq!(found["data"][0]["id"], answer.json()["id"], "{shown:?} is not found by its name");
        } else {
            assert_ne!(allowed, Some(true), "{shown:?} was refused: {}", answer.text());
            let error = answer.refused(400, "invalid_request");
            assert_eq!(error["details"]["issues"][0]["path"], "name", "{error}");
        }
    }
}

#[test]
fn labels_and_environments_of_every_kind() {
    let stack = Stack::start();
    let api = stack.api();
    for (labels, status) in [
        (json!({"😀": "é", "a:b": "c:d", "": "x"}), None),
        (json!({"k": "v\u{0}"}), None),
        (json!({"k": "x".repeat(1 << 20)}), Some(400)),
        (json!({"x".repeat(1 << 20): "v"}), Some(400)),
        (json!({"k": null}), Some(400)),
        (json!([]), Some(400)),
    ] {
        let answer = api.post("/v1/sandboxes", &json!({"labels": labels, "vcpu": 1, "memoryMiB": 256}));
        assert!(answer.status == 200 || answer.status == 400, "{}", answer.text());
        assert!(status.is_none_or(|status| answer.status == status), "{}", answer.text());
    }
    let _ = api.post("/v1/sandboxes", &json!({"env": {"A": "x\u{0}y"}})).refused(400, "invalid_env");
    let _ = api.post("/v1/sandboxes", &json!({"env": {"A=B": "x"}})).refused(400, "invalid_env");
    let _ = api.post("/v1/sandboxes", &json!({"env": {"": "x"}})).refused(400, "invalid_env");
}

#[test]
fn slow_senders_hold_nobody_up_and_are_let_go() {
    let stack = Stack::start();
    let api = stack.api();
    flat(&stack, "300 slow senders", |api| {
        let mut slow: Vec<_> = (0..300)
            .map(|n| {
                let mut connection = api.connect();
                let head = api.head("POST", "/v1/sandboxes", &[("Content-Length", "100000")]);
                // Half of them stop in the head, half in the body.
                let part = if n % 2 == 0 { head[..40].to_owned() } else { head + "\r\n{\"name\":" };
                connection.write(part.as_bytes()).expect("a first part is taken");
                connection
            })
            .collect();
        assert_eq!(api.get("/v1/me").status, 200);
        assert!(slow.iter().any(Connection::waits), "another caller waited until the slow were let go");
        // Each is told, or cut, in its time: one that trickles is not kept for ever.
        for connection in slow.iter_mut() {
            let _ = connection.write(b"x");
            connection.set_patience(Duration::from_secs(150));
            connection.drain().expect("a slow sender is let go");
        }
    });
    eventually("the descriptors of slow senders are given back", Duration::from_secs(10), || {
        stack.snapshot().server_fds < 150
    });
    assert_eq!(api.get("/v1/me").status, 200);
}

#[test]
fn readers_who_do_not_read_cost_nothing() {
    let stack = Stack::start();
    let machine = stack.api().small();
    let before = stack.snapshot().server_fds;
    flat(&stack, "40 followers that do not read", |api| {
        let body = json!({"command": "head -c 100000000 /dev/zero | tr '\\0' a", "stream": true}).to_string();
        let length = body.len().to_string();
        let held: Vec<_> = (0..40)
            .map(|_| {
                let mut connection = api.connect();
                let head = api.head("POST", &machine.path(":exec"), &[("Content-Length", &length)]);
                connection.write((head + "\r\n" + &body).as_bytes()).expect("the request is taken");
                let (status, _) = connection.read_head().expect("the head of a stream");
                assert_eq!(status, 200);
                connection
            })
            .collect();
        assert_eq!(machine.output("echo alive"), "alive\n");
        drop(held);
    });
    eventually("what they held is given back", Duration::from_secs(30), || stack.snapshot().server_fds <= before + 8);
}
