//! The way out: what the rules let through works, and nothing else does, whatever a guest with root tries.
//!
//! Each server lives in a namespace of its own whose only wire leads to places of ours (`runtime_test_kit::world`).

use runtime_test_kit::world::{FORBIDDEN, Named, Place, SOON, World};
use runtime_test_kit::{Machine, Signal, Stack, eventually, send_signal, until};
use serde_json::{Value, json};
use std::net::IpAddr;
use std::time::Duration;

const SITE: &str = "198.51.100.10";
const OTHER: &str = "198.51.100.11";

fn machine(stack: &Stack, network: &Value) -> Machine {
    stack.api().create(&json!({"vcpu": 1, "memoryMiB": 512, "network": network}))
}

fn put(machine: &Machine, network: &Value) -> Value {
    machine.api.put_json(&machine.path("/network"), network).ok()
}

fn decisions(machine: &Machine) -> Vec<Value> {
    let page = machine.api.get(&machine.path("/network/decisions?limit=200")).ok();
    page["data"].as_array().expect("decisions").clone()
}

/// Status and body, as curl has them.
fn fetch(machine: &Machine, url: &str) -> String {
    let ran = machine.sh(&format!("curl -sS -m 20 -w '%{{http_code}}' '{url}'"));
    format!("{}{}", ran.out, ran.err)
}

/// Servers at every address that nobody may come to; they answer on the ports of the web and more.
fn forbidden_places(world: &World) -> Vec<(String, Place)> {
    FORBIDDEN
        .iter()
        .flat_map(|ip| [80, 443, 8080].map(|port| (format!("{ip}:{port}"), world.web("private", ip, port))))
        .collect()
}

fn nobody_came(places: &[(String, Place)]) {
    let came: Vec<&String> = places.iter().filter(|(_, place)| place.came() > 0).map(|(name, _)| name).collect();
    assert!(came.is_empty(), "somebody came to {came:?}");
}

#[test]
fn one_host_is_allowed_and_everything_else_is_refused() {
    let world = World::enter();
    let (site, other) = (world.web("site", SITE, 80), world.web("other", OTHER, 80));
    world.name_at("site.example.com", &[SITE]);
    world.name_at("other.example.com", &[OTHER]);
    let stack = Stack::start_with(world.options());
    let machine = machine(&stack, &json!({"internet": false, "allow": ["site.example.com"]}));
    assert_eq!(fetch(&machine, "http://site.example.com/x?y=1"), "site|GET /x?y=1 HTTP/1.1|site.example.com\n200");
    // By a tunnel, from Python, and by sudo: all know the proxy.
    assert_eq!(
        machine.output("curl -sS -p -m 20 http://site.example.com/t"),
        "site|GET /t HTTP/1.1|site.example.com\n"
    );
    let python =
        "python3 -c \"import urllib.request as u; print(u.urlopen('http://site.example.com/p').read().decode())\"";
    assert_eq!(machine.output(python).trim(), "site|GET /p HTTP/1.1|site.example.com");
    assert_eq!(
        machine.output("sudo -n curl -sS -m 20 http://site.example.com/s"),
        "site|GET /s HTTP/1.1|site.example.com\n"
    );
    let came = site.came();
    for url in
        ["http://other.example.com/", "http://198.51.100.11/", "http://198.51.100.10/", "http://x.site.example.com/"]
    {
        let ran = machine.sh(&format!("curl -sS -m 20 -i {url}"));
        assert!(ran.out.starts_with("HTTP/1.1 403"), "{url}: {}", ran.answer);
        assert!(ran.out.to_ascii_lowercase().contains("x-runtime-egress: rule-not-allowed"), "{url}: {}", ran.out);
    }
    let tunnel = machine.sh("curl -sS -m 20 https://other.example.com/");
    assert_eq!(tunnel.code, Some(56), "{}", tunnel.answer);
    assert_eq!((other.came(), site.came()), (0, came));
    // A name that is not allowed is not even looked up: a question can carry data out.
    assert_eq!((world.asked("other.example.com"), world.asked("x.site.example.com")), (0, 0));
    drop(stack);
}

#[test]
fn a_sandbox_without_rules_reaches_every_public_place_and_no_other() {
    let world = World::enter();
    let (_site, forbidden) = (world.web("site", SITE, 8080), forbidden_places(&world));
    let _six = world.web("six", "2001:db8:1::10", 80);
    world.name_at("site.example.com", &[SITE]);
    for (at, ip) in FORBIDDEN.iter().enumerate() {
        world.name_at(&format!("inside{at}.example.com"), &[ip]);
        world.name(
            &format!("alias{at}.example.com"),
            Named::Alias("target.example.net".to_owned(), vec![ip.parse().expect("an address")]),
        );
        world.name_at(&format!("both{at}.example.com"), &[SITE, ip]);
    }
    world.name_at("mapped.example.com", &["::ffff:10.77.0.10"]);
    world.name_at("loop.example.com", &["127.0.0.1"]);
    world.name_at("self.example.com", &["198.51.100.1"]);
    let stack = Stack::start_with(world.options());
    let port = stack.api().address().port();
    let machine = stack.api().small();
    assert_eq!(fetch(&machine, "http://site.example.com:8080/"), "site|GET / HTTP/1.1|site.example.com:8080\n200");
    assert_eq!(fetch(&machine, "http://[2001:db8:1::10]/"), "six|GET / HTTP/1.1|[2001:db8:1::10]\n200");
    let mut targets: Vec<String> = Vec::new();
    for (at, ip) in FORBIDDEN.iter().enumerate() {
        let literal = if ip.contains(':') { format!("[{ip}]") } else { (*ip).to_owned() };
        targets.extend([
            literal,
            format!("inside{at}.example.com"),
            format!("alias{at}.example.com"),
            format!("both{at}.example.com"),
        ]);
        if let Ok(IpAddr::V4(four)) = ip.parse() {
            let [a, b, c, d] = four.octets();
            let number = u32::from(four);
            targets.extend([
                format!("[::ffff:{ip}]"),
                format!("[::{ip}]"),
                format!("[64:ff9b::{ip}]"),
                format!("[2002:{a:02x}{b:02x}:{c:02x}{d:02x}::1]"),
                number.to_string(),
                format!("{number:#x}"),
                format!("0{number:o}"),
                format!("{a}.{}", number & 0xff_ffff),
                format!("{a:#x}.{b}.{c}.{d}"),
                format!("{ip}."),
            ]);
        }
    }
    targets.extend(
        [
            "localhost",
            "127.0.0.1",
            "[::1]",
            "127.1",
            "0",
            "0.0.0.0",
            "[::]",
            "mapped.example.com",
            "loop.example.com",
            "self.example.com",
            "198.51.100.1",
            "metadata",
            "metadata.google.internal",
            "[fe80::1%25eth0]",
            "[::ffff:127.0.0.1]",
        ]
        .map(str::to_owned),
    );
    machine.write("/workspace/try.py", TRY.as_bytes());
    let listed = targets.join("\n");
    machine.write("/workspace/targets", listed.as_bytes());
    let ran = machine.exec(&json!({"command": format!("python3 try.py 80 443 8080 {port} < targets"), "user": "root", "cwd": "/workspace", "timeoutMs": 300000}));
    assert_eq!(ran.code, Some(0), "{}", ran.answer);
    let answers: Vec<&str> = ran.out.lines().collect();
    assert_eq!(answers.len(), targets.len() * 4 * 2, "{}", ran.out);
    for answer in answers {
        // Neither reached nor half read: each has its refusal.
        assert!(answer.contains(" 403 ") || answer.contains(" 400 ") || answer.contains(" 502 dns-failed"), "{answer}");
    }
    nobody_came(&forbidden);
}

/// For each target and port: what the proxy says, asked for a tunnel and for a page. Exits badly if it hangs.
const TRY: &str = r#"
import socket, sys
def head(first):
    s = socket.create_connection(("127.0.0.1", 10800), 30)
    s.sendall(first.encode("latin-1"))
    got = b""
    while b"\r\n\r\n" not in got:
        part = s.recv(4096)
        if not part: break
        got += part
    s.close()
    lines = got.decode("latin-1").split("\r\n")
    reason = [l.split(":", 1)[1].strip() for l in lines if l.lower().startswith("x-runtime-egress:")]
    status = (lines[0].split(" ") + ["", ""])[1]
    return status + " " + (reason[0] if reason else "")
for target in sys.stdin.read().split("\n"):
    for port in sys.argv[1:]:
        print("CONNECT", target, port, head(f"CONNECT {target}:{port} HTTP/1.1\r\nHost: {target}:{port}\r\n\r\n"))
        print("GET", target, port, head(f"GET http://{target}:{port}/ HTTP/1.1\r\nHost: site.example.com\r\nConnection: close\r\n\r\n"))
"#;

#[test]
fn a_name_that_changes_its_answer_changes_nothing() {
    let world = World::enter();
    let (site, forbidden) = (world.web("site", SITE, 80), forbidden_places(&world));
    let (good, bad) = (vec![SITE.parse().expect("an address")], vec!["10.77.0.10".parse().expect("an address")]);
    world.name("rebind.example.com", Named::Turns(vec![good, bad]));
    let stack = Stack::start_with(world.options());
    let machine = machine(&stack, &json!({"internet": true, "allow": ["rebind.example.com"]}));
    let mut passed = 0;
    for _ in 0..20 {
        let said = fetch(&machine, "http://rebind.example.com/");
        if said.ends_with("200") {
            assert!(said.starts_with("site|"), "{said}");
            passed += 1;
        } else {
            assert!(said.ends_with("403"), "{said}");
        }
    }
    assert!(passed > 0 && passed < 20, "{passed} of 20");
    assert_eq!(site.came(), passed);
    nobody_came(&forbidden);
}

#[test]
fn the_host_of_a_request_is_the_one_that_was_judged() {
    let world = World::enter();
    let site = world.web("site", SITE, 80);
    world.name_at("site.example.com", &[SITE]);
    world.name_at("front.example.com", &[SITE]);
    let stack = Stack::start_with(world.options());
    let machine = machine(&stack, &json!({"internet": true, "allow": ["site.example.com"]}));
    // A spoofed header is replaced; a second request on the same connection is judged by itself.
    let said = machine.output("curl -sS -m 20 -H 'Host: front.example.com' -H 'Proxy-Authorization: Basic eA==' http://site.example.com/ --next -sS -m 20 http://front.example.com/ -o /dev/null -w '%{http_code}'");
    assert_eq!(said, "site|GET / HTTP/1.1|site.example.com\n403");
    assert!(site.heads().iter().all(|head| !head.to_ascii_lowercase().contains("proxy-")), "{:?}", site.heads());
    // Inside a tunnel too: by HTTP and by TLS.
    let heads = site.heads().len();
    let tunnel = machine.sh("curl -sS -p -m 20 -H 'Host: front.example.com' http://site.example.com/");
    assert_ne!(tunnel.code, Some(0), "{}", tunnel.answer);
    machine.write("/workspace/hello.py", HELLO.as_bytes());
    let bytes = site.bytes();
    for name in ["front.example.com", ""] {
        let ran = machine.exec(&json!({"argv": ["python3", "/workspace/hello.py", "site.example.com:80", name, "50"]}));
        assert_eq!(ran.out, "cut\n", "{name:?}: {}", ran.answer);
    }
    assert_eq!((site.heads().len(), site.bytes()), (heads, bytes), "a hello for another server came through");
    let ran = machine
        .exec(&json!({"argv": ["python3", "/workspace/hello.py", "site.example.com:80", "site.example.com", "5"]}));
    eventually("the hello for the judged name comes through", SOON, || site.bytes() > bytes);
    assert_ne!(ran.out, "cut\n");
    assert!(decisions(&machine).iter().any(|one| one["reason"] == "name-mismatch"), "{:?}", decisions(&machine));
}

/// Says a TLS hello inside a tunnel, cut into pieces of three bytes; tells whether the tunnel was cut.
const HELLO: &str = r#"
import socket, ssl, sys, time
target, name, patience = sys.argv[1:]
s = socket.create_connection(("127.0.0.1", 10800), 30)
s.sendall(f"CONNECT {target} HTTP/1.1\r\n\r\n".encode())
got = b""
while b"\r\n\r\n" not in got:
    got += s.recv(1)
context = ssl.create_default_context()
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
try:
    context.wrap_bio(incoming, outgoing, server_hostname=name or None).do_handshake()
except ssl.SSLWantReadError:
    pass
hello = outgoing.read()
try:
    for at in range(0, len(hello), 3):
        s.sendall(hello[at:at + 3])
    s.settimeout(float(patience))
    print("cut" if not s.recv(1) else "answered")
except socket.timeout:
    print("waits")
except OSError:
    print("cut")
"#;

#[test]
fn new_rules_hold_for_what_is_open_at_once() {
    let world = World::enter();
    let (echo, kept) = (world.echo(SITE, 7007), world.echo(OTHER, 7007));
    world.name_at("site.example.com", &[SITE]);
    world.name_at("kept.example.com", &[OTHER]);
    let stack = Stack::start_with(world.options());
    let machine = stack.api().small();
    machine.write("/workspace/hold.py", HOLD.as_bytes());
    let held = machine.spawn(&json!({"argv": ["python3", "/workspace/hold.py", "site.example.com:7007"]}));
    let other = machine.spawn(&json!({"argv": ["python3", "/workspace/hold.py", "kept.example.com:7007"]}));
    eventually("both talk", SOON, || echo.bytes() > 100 && kept.bytes() > 100);
    let answer = put(&machine, &json!({"internet": true, "deny": ["site.example.com"]}));
    assert_eq!((&answer["enforced"], &answer["version"]), (&json!(true), &json!(2)), "{answer}");
    // The answer came: nothing more comes through.
    let bytes = echo.bytes();
    eventually("its connection ends", SOON, || echo.left() == 1);
    assert!(echo.bytes() <= bytes + 64 * 1024, "it went on after the answer");
    until("its process heard of it", SOON, || {
        let process = machine.api.get(&machine.path(&format!("/processes/{held}"))).ok();
        (process["state"] == "exited").then_some(())
    });
    let before = kept.bytes();
    eventually("the other goes on", SOON, || kept.bytes() > before);
    let _ = put(&machine, &json!({"internet": false}));
    eventually("it ends as well", SOON, || kept.left() == 1);
    let said = fetch(&machine, "http://site.example.com/");
    assert!(!said.contains("403"), "without a way out no command is told of one: {said}");
    let told = machine.sh("curl -sS -m 20 -i -x http://127.0.0.1:10800 http://site.example.com/");
    assert!(told.out.to_ascii_lowercase().contains("x-runtime-egress: internet-off"), "{}", told.answer);
    let _ = put(&machine, &json!({"internet": true}));
    assert_eq!(machine.output("echo $http_proxy"), "http://127.0.0.1:10800\n");
    let _ = other;
}

const HOLD: &str = r#"
import socket, sys, time
s = socket.create_connection(("127.0.0.1", 10800), 30)
s.sendall(f"CONNECT {sys.argv[1]} HTTP/1.1\r\n\r\n".encode())
got = b""
while b"\r\n\r\n" not in got:
    got += s.recv(1)
assert got.startswith(b"HTTP/1.1 200"), got
while True:
    s.sendall(b"x" * 50)
    if not s.recv(4096):
        break
    time.sleep(0.01)
"#;

#[test]
fn rules_are_read_back_as_they_are_kept() {
    let world = World::enter();
    let stack = Stack::start_with(world.options());
    let machine = stack.api().small();
    let fresh = machine.api.get(&machine.path("/network")).ok();
    assert_eq!(
        fresh,
        json!({"sandboxId": machine.id, "internet": true, "allow": [], "deny": [], "connect": [], "version": 1, "enforced": true,
            "enforcedVersion": 1, "ports": [80, 443], "openPorts": true, "connectAllowed": true, "connectReason": "granted",
            "forbiddenPorts": fresh["forbiddenPorts"], "updatedAt": null})
    );
    let answer = put(
        &machine,
        &json!({"internet": false, "allow": ["A.Example.com.", "192.0.2.9/24"], "connect": ["db.example.com:5432"]}),
    );
    assert_eq!((&answer["internet"], &answer["allow"]), (&json!(true), &json!(["a.example.com", "192.0.2.0/24"])));
    assert_eq!((&answer["connect"], &answer["version"]), (&json!(["db.example.com:5432"]), &json!(2)));
    assert!(answer["updatedAt"].is_string(), "{answer}");
    // What is left out is emptied; the same again is no change.
    assert_eq!(put(&machine, &json!({"internet": true}))["connect"], json!([]));
    assert_eq!(put(&machine, &json!({"internet": true}))["version"], 3);
    let updated = machine.api.post(&machine.path(":update"), &json!({"network": {"internet": false}})).ok();
    assert_eq!(updated["id"], machine.id.as_str());
    let read = machine.api.get(&machine.path("/network")).ok();
    assert_eq!((&read["internet"], &read["enforcedVersion"]), (&json!(false), &json!(4)), "{read}");
    for wrong in [
        json!({}),
        json!({"internet": true, "allow": ["https://a.example"]}),
        json!({"internet": true, "more": 1}),
        json!({"internet": true, "connect": ["a.example"]}),
    ] {
        let _ = machine.api.put_json(&machine.path("/network"), &wrong).refused(400, "invalid_request");
    }
    assert_eq!(machine.verb(":stop")["state"], "stopped");
    assert_eq!(put(&machine, &json!({"internet": true}))["enforced"], true);
}

#[test]
fn rules_outlive_the_server_and_hold_from_its_first_moment() {
    let world = World::enter();
    let (site, other) = (world.web("site", SITE, 80), world.web("other", OTHER, 80));
    world.name_at("site.example.com", &[SITE]);
    world.name_at("other.example.com", &[OTHER]);
    let mut stack = Stack::start_with(world.options());
    let machine = machine(&stack, &json!({"internet": true, "allow": ["site.example.com"]}));
    let closed = stack.api().create(&json!({"vcpu": 1, "memoryMiB": 512, "network": {"internet": false}}));
    let knock = "while true; do curl -s -m 5 -x http://127.0.0.1:10800 http://other.example.com/ -o /dev/null; done";
    for one in [&machine, &closed] {
        let _ = one.spawn(&json!({"command": knock}));
    }
    for _ in 0..3 {
        stack.kill9();
        stack.restart();
        until("it reaches what it may again", SOON, || {
            fetch(&machine, "http://site.example.com/").ends_with("200").then_some(())
        });
    }
    assert_eq!(other.came(), 0, "a guest got out while the server came back");
    assert!(site.came() > 0);
    let read = machine.api.get(&machine.path("/network")).ok();
    assert_eq!((&read["enforced"], &read["allow"]), (&json!(true), &json!(["site.example.com"])));
    assert_eq!(machine.verb(":stop")["state"], "stopped");
    assert_eq!(machine.verb(":restart")["state"], "running");
    assert!(fetch(&machine, "http://site.example.com/").ends_with("200"));
    assert!(fetch(&machine, "http://other.example.com/").ends_with("403"));
}

#[test]
fn a_woken_sandbox_is_held_to_what_holds_now() {
    let world = World::enter();
    let (site, other) = (world.web("site", SITE, 80), world.web("other", OTHER, 80));
    world.name_at("site.example.com", &[SITE]);
    world.name_at("other.example.com", &[OTHER]);
    let stack = Stack::start_with(world.options());
    let machine = machine(&stack, &json!({"internet": true, "allow": ["site.example.com", "other.example.com"]}));
    let knock = "while true; do curl -s -m 5 http://other.example.com/ -o /dev/null; sleep 0.05; done";
    let _ = machine.spawn(&json!({"command": knock}));
    eventually("it is seen", SOON, || other.came() > 0);
    for saved in [false, true] {
        assert_eq!(machine.verb(":pause")["state"], "paused");
        if saved {
            eventually("its memory is saved and its machine gone", Duration::from_secs(60), || {
                stack.helpers().is_empty()
            });
        }
        let paused = other.came_and_left();
        let answer = put(
            &machine,
            &json!({"internet": true, "allow": ["site.example.com"], "deny": [format!("x{saved}.example.com")]}),
        );
        assert_eq!(answer["enforced"], true, "{answer}");
        assert_eq!(machine.verb(":wake")["state"], "running");
        assert!(fetch(&machine, "http://site.example.com/").ends_with("200"));
        assert_eq!(other.came(), paused, "it was let out by rules of before");
    }
    assert_eq!(machine.verb(":pause")["state"], "paused");
    let _ = put(&machine, &json!({"internet": false}));
    assert_eq!(machine.verb(":wake")["state"], "running");
    assert_eq!(machine.output("echo [$http_proxy]"), "[]\n");
    assert!(site.came() > 0);
}

#[test]
fn every_decision_is_on_record_with_its_command() {
    let world = World::enter();
    let _site = world.web("site", SITE, 80);
    world.name_at("site.example.com", &[SITE]);
    let stack = Stack::start_with(world.options());
    let machine = machine(&stack, &json!({"internet": true, "allow": ["*.example.com"], "deny": ["bad.example.com"]}));
    let process = machine.spawn(
        &json!({"command": "curl -sS http://bad.example.com/x; curl -sS http://site.example.com/y; sleep 3600"}),
    );
    // What passed is counted while it passes.
    let whole = |found: &Vec<Value>| found.len() == 2 && found[0]["receivedBytes"].as_u64().is_some_and(|n| n > 40);
    let found = until("both are on record", SOON, || Some(decisions(&machine)).filter(whole));
    let (allowed, refused) = (&found[0], &found[1]);
    assert_eq!(
        (&refused["verdict"], &refused["reason"], &refused["rule"]),
        (&json!("refused"), &json!("rule-denied"), &json!("bad.example.com"))
    );
    assert_eq!(
        (&allowed["verdict"], &allowed["reason"], &allowed["rule"]),
        (&json!("allowed"), &json!("allow"), &json!("*.example.com"))
    );
    assert_eq!(
        (&allowed["host"], &allowed["port"], &allowed["address"]),
        (&json!("site.example.com"), &json!(80), &json!(SITE))
    );
    assert_eq!(allowed["process"]["processId"], process.as_str(), "{allowed}");
    assert_eq!(allowed["process"]["program"], "curl", "{allowed}");
    let page = machine.api.get(&machine.path("/network/decisions?limit=1")).ok();
    let next = machine
        .api
        .get(
            &machine.path(&format!("/network/decisions?limit=1&cursor={}", page["nextCursor"].as_str().expect("more"))),
        )
        .ok();
    assert_eq!((&next["data"][0]["number"], &next["nextCursor"], &next["total"]), (&json!(1), &Value::Null, &json!(2)));
    let shown = stack
        .command()
        .args(["sandboxes", "network-log", &machine.id, "--refused"])
        .env("RUNTIME_API_URL", stack.url())
        .env("RUNTIME_API_KEY", stack.owner_key())
        .output()
        .expect("run the command line");
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(
        shown.contains("bad.example.com:80") && shown.contains("rule-denied") && !shown.contains("site.example.com:80"),
        "{shown}"
    );
}

#[test]
fn a_guest_that_floods_its_way_out_hurts_itself_alone() {
    let world = World::enter();
    let echo = world.echo(SITE, 7007);
    let _site = world.web("site", OTHER, 80);
    world.name_at("echo.example.com", &[SITE]);
    world.name_at("site.example.com", &[OTHER]);
    let stack = Stack::start_with(world.options());
    let (bad, good) = (stack.api().small(), stack.api().small());
    bad.write("/workspace/flood.py", FLOOD.as_bytes());
    let ran =
        bad.exec(&json!({"command": "python3 flood.py", "cwd": "/workspace", "user": "root", "timeoutMs": 300000}));
    assert_eq!((ran.code, ran.out.as_str()), (Some(0), "done\n"), "{}", ran.answer);
    assert!(fetch(&good, "http://site.example.com/").ends_with("200"));
    assert_eq!(bad.output("echo served"), "served\n");
    until("it may connect again", SOON, || fetch(&bad, "http://site.example.com/").ends_with("200").then_some(()));
    eventually("nothing of the flood stays open", Duration::from_secs(60), || echo.came() == echo.left());
}

/// Bytes that are no request, heads without end, heads that never come, and more connections than are let in.
const FLOOD: &str = r#"
import os, resource, socket
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
def talk(data, wait=True):
    s = socket.create_connection(("127.0.0.1", 10800), 30)
    s.settimeout(20)
    try:
        s.sendall(data)
        return s.recv(4096) if wait else s
    except OSError:
        return b""
for data in [os.urandom(5000), b"\0" * 5000, b"\r\n" * 3000, b"CONNECT\r\n\r\n", b"CONNECT a:b HTTP/1.1\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n",
             b"CONNECT " + b"a" * 40000 + b":80 HTTP/1.1\r\n\r\n", b"GET http://a.example/ HTTP/1.1\r\n" + b"X: y\r\n" * 9000 + b"\r\n",
             b"POST http://echo.example.com:7007/ HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n12345",
             b"POST http://echo.example.com:7007/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n"]:
    answer = talk(data)
    assert not answer.startswith(b"HTTP/1.1 200"), (data[:40], answer)
silent = [talk(b"CONNECT echo.example.com", wait=False) for _ in range(300)]
open_ones = []
for _ in range(1500):
    try:
        s = socket.create_connection(("127.0.0.1", 10800), 5)
        s.sendall(b"CONNECT echo.example.com:7007 HTTP/1.1\r\n\r\n" + b"x" * 1000)
        open_ones.append(s)
    except OSError:
        break
print("done")
"#;

#[test]
fn what_is_no_proxy_does_not_lead_out() {
    let world = World::enter();
    let forbidden = forbidden_places(&world);
    let site = world.web("site", SITE, 80);
    let stack = Stack::start_with(world.options());
    let machine = stack.api().small();
    machine.write("/workspace/direct.py", DIRECT.as_bytes());
    for user in ["sandbox", "root"] {
        let ran = machine
            .exec(&json!({"command": "python3 direct.py", "cwd": "/workspace", "user": user, "timeoutMs": 300000}));
        assert_eq!((ran.code, ran.out.as_str()), (Some(0), "end\n"), "{user}: {}", ran.answer);
    }
    assert_eq!(site.came(), 0);
    nobody_came(&forbidden);
    assert_eq!(world.asked("leak.example.com"), 0);
}

/// Sockets of every kind to the places and to the name server.
const DIRECT: &str = r#"
import socket
places = ["198.51.100.10", "198.51.100.53", "2001:db8:1::10", "10.77.0.10", "169.254.169.254", "fd00:77::10"]
query = b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x04leak\x07example\x03com\x00\x00\x01\x00\x01"
for place in places:
    family = socket.AF_INET6 if ":" in place else socket.AF_INET
    for kind, proto in ((socket.SOCK_STREAM, 0), (socket.SOCK_DGRAM, 0), (socket.SOCK_RAW, socket.IPPROTO_ICMP), (socket.SOCK_RAW, socket.IPPROTO_RAW)):
        for port in (53, 80):
            try:
                s = socket.socket(family, kind, proto)
                s.settimeout(1)
                s.connect((place, port))
                s.send(query)
                s.recv(100)
                print("reached", place, port, kind)
            except OSError:
                pass
try:
    s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    s.bind(("lo", 0))
    print("packet socket")
except (OSError, AttributeError):
    pass
try:
    print("resolved", socket.getaddrinfo("leak.example.com", 80))
except OSError:
    pass
print("end")
"#;

#[test]
fn without_its_program_nothing_leaves_and_the_next_one_is_armed_first() {
    let world = World::enter();
    let (echo, other) = (world.echo(SITE, 7007), world.web("other", OTHER, 80));
    world.name_at("site.example.com", &[SITE]);
    world.name_at("other.example.com", &[OTHER]);
    let mut stack = Stack::start_with(world.options());
    stack.expect_error("egress program");
    let machine = machine(&stack, &json!({"internet": true, "allow": ["site.example.com"]}));
    let first = stack.egress_pid().expect("an egress program");
    let status = std::fs::read_to_string(format!("/proc/{first}/status")).expect("its status");
    assert!(status.lines().any(|line| line.starts_with("Uid:\t65534\t65534\t65534\t65534")), "it has rights: {status}");
    assert!(status.lines().any(|line| line == "CapEff:\t0000000000000000"), "it has rights: {status}");
    machine.write("/workspace/hold.py", HOLD.as_bytes());
    let knock = "while true; do curl -s -m 5 http://other.example.com/ -o /dev/null; done";
    let _ = machine.spawn(&json!({"command": knock}));
    for round in 1..=3 {
        let held = machine.spawn(&json!({"argv": ["python3", "/workspace/hold.py", "site.example.com:7007"]}));
        let before = echo.bytes();
        eventually("it talks", SOON, || echo.bytes() > before + 100);
        let pid = stack.egress_pid().expect("an egress program");
        send_signal(pid, Signal::KILL);
        eventually("what was open is closed", SOON, || echo.left() == round);
        until("its process heard of it", SOON, || {
            (machine.api.get(&machine.path(&format!("/processes/{held}"))).ok()["state"] == "exited").then_some(())
        });
        eventually("there is another", SOON, || stack.egress_pid().is_some_and(|next| next != pid));
    }
    // A change is taken by the new one; what the old one was told still holds.
    let _ = put(&machine, &json!({"internet": true, "allow": ["site.example.com"], "deny": ["*.example.org"]}));
    assert_eq!(other.came(), 0, "something left while there was no program");
}
