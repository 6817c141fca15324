//! Ports of a sandbox under web addresses: who sees them, what wakes and what is cut, by the built program and a web
//! server in a real sandbox.

use std::net::SocketAddr;
use std::time::Duration;

use assert_cmd::Command;
use runtime_test_kit::api::text;
use runtime_test_kit::http::{Answer, Connection};
use runtime_test_kit::{Machine, Stack, StackOptions, eventually, program, until};
use serde_json::{Value, json};

const PORT: u16 = 8000;
const PAGE: (&str, &str) = ("Accept", "text/html,application/xhtml+xml");
/// Tells each request back; `/endless` never ends; what is upgraded comes back byte for byte.
const SERVER: &str = r#"
import base64, hashlib, json, socketserver, time
class Web(socketserver.StreamRequestHandler):
    def handle(self):
        line = self.rfile.readline().decode().strip()
        headers = {}
        while (one := self.rfile.readline().decode().strip()):
            name, _, value = one.partition(":")
            headers[name.lower()] = value.strip()
        if headers.get("upgrade") == "websocket":
            key = (headers["sec-websocket-key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()
            accept = base64.b64encode(hashlib.sha1(key).digest())
            self.wfile.write(b"HTTP/1.1 101 Go\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: " + accept + b"\r\n\r\n")
            while (data := self.request.recv(65536)):
                self.request.sendall(data)
        elif line.startswith("GET /endless"):
            self.wfile.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            while True:
                self.wfile.write(b"4\r\nmore\r\n")
                time.sleep(0.01)
        else:
            body = self.rfile.read(int(headers.get("content-length", "0"))).decode()
            told = json.dumps({"line": line, "headers": headers, "body": body}).encode()
            self.wfile.write(b"HTTP/1.1 200 OK\r\nX-App: yes\r\nSet-Cookie: a=1; Domain=localhost\r\nContent-Length: %d\r\n\r\n" % len(told) + told)
class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = daemon_threads = True
print("listens", flush=True)
Server(("127.0.0.1", 8000), Web).serve_forever()
"#;

/// A sandbox with the server in it.
fn web(stack: &Stack, fields: &Value) -> Machine {
    let machine = stack.api().create(fields);
    machine.write("/workspace/web.py", SERVER.as_bytes());
    let _ = machine.spawn(&json!({"command": "exec python3 web.py"}));
    let listens =
        "for n in $(seq 500); do (exec 3<>/dev/tcp/127.0.0.1/8000) 2>/dev/null && echo up && break; sleep 0.1; done";
    assert_eq!(machine.output(listens), "up\n");
    machine
}

fn small() -> Value {
    json!({"vcpu": 1, "memoryMiB": 512})
}

/// Somebody at the address of a port.
struct Visitor {
    address: SocketAddr,
    host: String,
}

impl Visitor {
    fn of(machine: &Machine) -> Self {
        Self { address: machine.api.address(), host: format!("{PORT}-{}.localhost", machine.id) }
    }

    fn open(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Connection {
        let mut connection = Connection::open(self.address).expect("connected");
        let mut head = format!("{method} {path} HTTP/1.1\r\nHost: {}\r\n", self.host);
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if !body.is_empty() {
            head.push_str(&format!("Content-Length: {}\r\n", body.len()));
        }
        connection.write(format!("{head}\r\n{body}").as_bytes()).expect("asked");
        connection
    }

    #[track_caller]
    fn get(&self, path: &str, headers: &[(&str, &str)]) -> Answer {
        self.open("GET", path, headers, "").read_answer().expect("an answer")
    }

    #[track_caller]
    fn with(&self, token: &str) -> Answer {
        self.get("/", &[("X-Runtime-Preview-Token", token)])
    }

    /// A body that goes on; its beginning has come.
    #[track_caller]
    fn endless(&self, token: &str) -> Connection {
        let mut open = self.open("GET", "/endless", &[("X-Runtime-Preview-Token", token)], "");
        assert_eq!(open.read_head().expect("a head").0, 200);
        assert!(open.read_chunk().expect("bytes").is_some());
        open
    }

    /// An open WebSocket.
    #[track_caller]
    fn socket(&self, path: &str, headers: &[(&str, &str)]) -> Connection {
        let asked = [
            ("Upgrade", "websocket"),
            ("Connection", "Upgrade"),
            ("Sec-WebSocket-Version", "13"),
            ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ];
        let mut socket = self.open("GET", path, &[&asked, headers].concat(), "");
        let (status, headers) = socket.read_head().expect("a head");
        let header = |name: &str| headers.iter().find(|(have, _)| have == name).map(|(_, value)| value.as_str());
        assert_eq!((status, header("sec-websocket-accept")), (101, Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo=")));
        socket
    }
}

/// It breaks off, and does not look as if it had come to its end.
#[track_caller]
fn is_cut(mut open: Connection) {
    open.set_patience(Duration::from_secs(120));
    let error = loop {
        match open.read_chunk() {
            Ok(Some(_)) => {}
            Ok(None) => panic!("it ended as if it were whole"),
            Err(error) => break format!("{error:#}"),
        }
    };
    assert!(!error.contains("timed out") && !error.contains("temporarily"), "{error}");
}

#[track_caller]
fn share(machine: &Machine, fields: &Value) -> Value {
    let mut body = fields.clone();
    body["port"] = PORT.into();
    machine.api.post(&machine.path("/previews"), &body).ok()
}

#[test]
fn a_private_page_is_for_who_has_its_link() {
    let stack = Stack::start();
    let machine = web(&stack, &small());
    let visitor = Visitor::of(&machine);
    visitor.get("/", &[]).refused(404, "not_found");
    let made = share(&machine, &json!({}));
    let token = text(&made, "token");
    let at = machine.api.address().port();
    assert_eq!(text(&made, "url"), format!("http://{PORT}-{}.localhost:{at}/", machine.id));
    visitor.get("/", &[]).refused(401, "unauthorized");
    visitor.with("nonsense").refused(401, "unauthorized");

    let seen = visitor.get(&format!("/a/b?x=1&runtime_preview_token={token}"), &[("Cookie", "mine=1")]).ok();
    assert_eq!((&seen["line"], &seen["headers"]["cookie"]), (&json!("GET /a/b?x=1 HTTP/1.1"), &json!("mine=1")));
    assert!(!seen.to_string().contains(&token), "the sandbox is told nothing of it: {seen}");
    let posted = visitor.open("POST", "/form", &[("X-Runtime-Preview-Token", &token)], "field=value").read_answer();
    assert_eq!(posted.expect("an answer").ok()["body"], "field=value");

    // In a browser: the link becomes a cookie, and the cookie speaks for pages of this address alone.
    let sent_on = visitor.get(&format!("/a?b=c&runtime_preview_token={token}"), &[PAGE]);
    assert_eq!((sent_on.status, sent_on.header("location")), (303, Some("/a?b=c")));
    let cookie = sent_on.header("set-cookie").and_then(|set| set.split(';').next()).expect("a cookie").to_owned();
    let shown = visitor.get("/a?b=c", &[PAGE, ("Cookie", &cookie)]);
    assert_eq!((shown.status, shown.header("x-app")), (200, Some("yes")));
    assert_eq!(shown.header("set-cookie"), Some("a=1"), "its own cookies are for its own name");
    assert!(!shown.text().contains("runtime_preview"), "{}", shown.text());
    let other = format!("http://9000-{}.localhost:{at}", machine.id);
    visitor.get("/", &[("Cookie", &cookie), ("Origin", &other)]).refused(401, "unauthorized");
    visitor.get("/", &[("Cookie", &cookie), ("Sec-Fetch-Site", "same-site")]).refused(401, "unauthorized");
    assert_eq!(visitor.get("/", &[("Cookie", &cookie), ("Sec-Fetch-Site", "same-origin")]).status, 200);
    let refused = visitor.get("/", &[PAGE]);
    assert!(
        refused.status == 401 && refused.text().contains("<h1>This preview is private.</h1>"),
        "{}",
        refused.text()
    );

    // Another sandbox's token and another port's open nothing here, nor does a key of the API.
    let neighbour = stack.api().small();
    let foreign = text(&share(&neighbour, &json!({})), "token");
    visitor.with(&foreign).refused(401, "unauthorized");
    let bearer = format!("Bearer {}", stack.owner_key());
    visitor.get("/v1/me", &[("Authorization", &bearer)]).refused(401, "unauthorized");
    Visitor::of(&neighbour).with(&foreign).refused(502, "guest_failed");

    // They outlive the server.
    let (mut stack, rotated) =
        (stack, text(&machine.api.post(&machine.path("/previews/8000:rotate"), &json!({})).ok(), "token"));
    stack.kill9();
    stack.restart();
    assert_eq!(visitor.with(&rotated).status, 200);
    visitor.with(&token).refused(401, "unauthorized");
}

#[test]
fn a_token_ends_at_its_time() {
    let stack = Stack::start();
    let machine = web(&stack, &small());
    let visitor = Visitor::of(&machine);
    let token = text(&share(&machine, &json!({"ttlSeconds": 60})), "token");
    assert_eq!(visitor.with(&token).status, 200);
    // Its time is what is tested: a minute, and at most a step of two and a half seconds more.
    let ended =
        until("the token ends", Duration::from_secs(75), || Some(visitor.with(&token)).filter(|got| got.status != 200));
    ended.refused(401, "unauthorized");
}

#[test]
fn a_visit_wakes_and_the_state_of_the_sandbox_is_told() {
    let stack = Stack::start();
    let machine = web(&stack, &small());
    let visitor = Visitor::of(&machine);
    let token = text(&share(&machine, &json!({})), "token");
    let _ = machine.verb(":pause");
    assert_eq!(visitor.with(&token).ok()["line"], "GET / HTTP/1.1", "a program waits for the wake");
    assert_eq!(machine.state(), "running");

    let _ = machine.verb(":pause");
    visitor.get("/", &[]).refused(401, "unauthorized");
    assert_eq!(machine.state(), "paused", "a stranger wakes nothing");
    let cookie = format!("runtime_preview={token}");
    let wait = visitor.get("/", &[PAGE, ("Cookie", &cookie)]);
    assert!(wait.status == 503 && wait.header("retry-after").is_some(), "{} {}", wait.status, wait.text());
    assert!(wait.text().contains("http-equiv=\"refresh\""), "{}", wait.text());
    eventually("the page comes by itself", Duration::from_secs(60), || {
        visitor.get("/", &[PAGE, ("Cookie", &cookie)]).header("x-app") == Some("yes")
    });

    let _ = machine.api.post(&machine.path(":update"), &json!({"autoWake": false})).ok();
    let _ = machine.verb(":pause");
    let asleep = visitor.with(&token);
    assert!(asleep.status == 503 && asleep.header("retry-after").is_some(), "{} {}", asleep.status, asleep.text());
    assert_eq!(machine.state(), "paused");
    let _ = machine.verb(":stop");
    visitor.with(&token).refused(404, "not_found");
    machine.delete();
    let gone = visitor.with(&token);
    gone.refused(410, "gone");
    assert_eq!(gone.header("retry-after"), None);
}

#[test]
fn a_change_cuts_what_is_open_before_it_is_answered() {
    let stack = Stack::start();
    let machine = web(&stack, &small());
    let visitor = Visitor::of(&machine);
    let mut token = text(&share(&machine, &json!({})), "token");
    for change in ["rotate", "public", "private", "delete"] {
        let open = visitor.endless(&token);
        let mut socket = visitor.socket("/ws", &[("X-Runtime-Preview-Token", &token)]);
        let frame = vec![0x5a; 70_000];
        socket.write(&frame).expect("sent");
        // Read as one chunk of a known length would be: all of it comes back.
        assert_eq!(socket.exactly(frame.len() as u64).expect("echoed"), frame);
        match change {
            "rotate" => {
                let rotated = machine.api.post(&machine.path("/previews/8000:rotate"), &json!({})).ok();
                visitor.with(&token).refused(401, "unauthorized");
                token = text(&rotated, "token");
            }
            "public" => {
                let public = share(&machine, &json!({"visibility": "public"}));
                assert_eq!((&public["token"], &public["urlWithToken"]), (&Value::Null, &Value::Null));
                assert_eq!(visitor.get("/", &[]).status, 200);
            }
            "private" => {
                token = text(&share(&machine, &json!({})), "token");
                visitor.get("/", &[]).refused(401, "unauthorized");
            }
            _ => {
                assert_eq!(machine.api.delete(&machine.path("/previews/8000")).ok()["deleted"], true);
                visitor.with(&token).refused(404, "not_found");
            }
        }
        is_cut(open);
        assert_eq!(socket.drain().unwrap_or_default(), 0, "{change}: the WebSocket is cut");
    }
}

#[test]
fn a_public_page_says_whose_it_is_and_is_framed_where_it_may_be() {
    let stack = Stack::start();
    let machine = web(&stack, &small());
    let visitor = Visitor::of(&machine);
    share(&machine, &json!({"visibility": "public", "embedOrigins": ["https://app.example"]}));
    let first = visitor.get("/a", &[PAGE]);
    assert!(first.status == 200 && first.header("x-app").is_none(), "{}", first.text());
    assert!(first.text().contains("href=\"/a?runtime_preview_seen=1\""), "{}", first.text());
    let on = visitor.get("/a?runtime_preview_seen=1", &[PAGE]);
    assert_eq!((on.status, on.header("location")), (303, Some("/a")));
    let seen = on.header("set-cookie").and_then(|set| set.split(';').next()).expect("a cookie");
    assert_eq!(visitor.get("/a", &[PAGE, ("Cookie", seen)]).header("x-app"), Some("yes"));
    let program = visitor.get("/", &[]);
    assert_eq!(program.header("x-app"), Some("yes"), "programs are not asked");
    assert!(program.header("x-runtime-report").is_some_and(|url| url.starts_with("http://")));
    let framed = |from: &'static str| {
        let headers = [PAGE, ("Sec-Fetch-Mode", "navigate"), ("Sec-Fetch-Dest", "iframe"), ("Referer", from)];
        visitor.get("/", &headers)
    };
    let inside = framed("https://app.example/page");
    assert_eq!((inside.status, inside.header("x-app")), (200, Some("yes")));
    assert_eq!(inside.header("content-security-policy"), Some("frame-ancestors 'self' https://app.example"));
    assert_eq!(framed("https://other.example/").status, 403);
}

#[test]
fn previews_have_a_domain_and_a_door_of_their_own() {
    let args = ["--preview-domain", "http://box.example:81", "--preview-listen", "127.0.0.1:0"].map(str::to_owned);
    let stack = Stack::start_with(StackOptions { args: args.into(), ..StackOptions::default() });
    let log = stack.log();
    let aside = log.lines().find_map(|line| line.strip_prefix("previews on http://")).expect("where previews are");
    let aside: SocketAddr = aside.parse().expect("an address");
    let machine = web(&stack, &small());
    let made = share(&machine, &json!({}));
    let host = format!("{PORT}-{}.box.example:81", machine.id);
    assert_eq!(text(&made, "url"), format!("http://{host}/"));
    let token = text(&made, "token");
    for address in [aside, machine.api.address()] {
        for host in [host.clone(), host.replace(":81", ""), format!("{PORT}-{}.localhost", machine.id)] {
            assert_eq!(Visitor { address, host }.with(&token).status, 200);
        }
    }
    // Behind that door there is no API, whatever is called and with whatever key.
    let bearer = format!("Bearer {}", stack.owner_key());
    for host in [aside.to_string(), "box.example:81".to_owned(), machine.api.address().to_string()] {
        for path in ["/v1/me", "/health", "/", "/mcp"] {
            let visitor = Visitor { address: aside, host: host.clone() };
            visitor.get(path, &[("Authorization", &bearer)]).refused(404, "not_found");
        }
    }
}

#[test]
fn the_command_line_shares_lists_rotates_and_takes_back() {
    let stack = Stack::start();
    let machine = web(&stack, &small());
    let visitor = Visitor::of(&machine);
    let runtime = |args: &[&str]| {
        let mut command = Command::new(program());
        command.args(["sandboxes"]).args(args).timeout(Duration::from_secs(300));
        command.env("RUNTIME_API_URL", stack.url()).env("RUNTIME_API_KEY", stack.owner_key());
        let output = command.env("NO_PROXY", "127.0.0.1").env("CI", "1").output().expect("runtime");
        let words = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), words(&output.stdout), words(&output.stderr))
    };
    let said = |args: &[&str]| match runtime(args) {
        (Some(0), out, _) => out,
        other => panic!("{args:?}: {other:?}"),
    };
    let id = machine.id.as_str();
    let path_of = |link: &str| {
        link.trim().split_once(&format!(":{}", machine.api.address().port())).expect("a link").1.to_owned()
    };
    let link = path_of(&said(&["preview", id, "8000", "--ttl", "600"]));
    assert!(link.starts_with("/?runtime_preview_token="), "{link}");
    assert_eq!(visitor.get(&link, &[]).status, 200);
    let again: Value = serde_json::from_str(&said(&["preview", "rotate", id, "8000", "--json"])).expect("JSON");
    visitor.get(&link, &[]).refused(401, "unauthorized");
    assert_eq!(visitor.with(&text(&again, "token")).status, 200);
    assert_eq!(path_of(&said(&["preview", id, "8000", "--public"])), "/");
    assert_eq!(visitor.get("/", &[]).status, 200);
    let listed = said(&["previews", id]);
    assert!(listed.starts_with("PORT") && listed.contains("8000  public"), "{listed}");
    let listed: Value = serde_json::from_str(&said(&["previews", id, "--json"])).expect("JSON");
    assert_eq!((&listed[0]["port"], &listed[0]["id"]), (&json!(8000), &again["id"]));
    assert_eq!(said(&["unshare", id, "8000"]), "8000 deleted\n");
    visitor.get("/", &[]).refused(404, "not_found");
    for (args, what) in [
        (&["unshare", id, "8000"][..], "not_found"),
        (&["preview", id, "0"], "1 to 65535"),
        (&["preview", id, "10800"], "port"),
        (&["preview", id, "8000", "9000"], "one word too many"),
        (&["preview", "rotate", id, "8000", "--public"], "nothing else"),
        (&["preview", id, "8000", "--ttl", "5"], "--ttl"),
    ] {
        let (code, _, said) = runtime(args);
        assert!(code == Some(1) && said.contains(what), "{args:?}: {code:?} {said}");
    }
}
