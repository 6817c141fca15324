//! The gate at the end of a real channel: what a guest is told when it may not, and that nobody is asked about it.
//! What it may is shown end to end, in namespaces of their own: nothing that a test can listen on here is ever reached.

use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use runtime_egress::resolve::{Resolve, ResolveError};
use runtime_egress::{Gate, Settings};
use runtime_model::SandboxId;
use runtime_model::network::{HostName, Network};
use runtime_proto::channel::{Channel, Config, FLOW_STEP, Opened, Opener, Side, Stream};
use runtime_proto::egress::{Egress, Rules, Verdict};
use runtime_proto::guest::{Flow, Relay};
use tokio::sync::mpsc;

/// Every name is at one address; the names that were asked for are noted.
#[derive(Default)]
struct Names(Mutex<Vec<String>>);

#[async_trait]
impl Resolve for Names {
    async fn resolve(&self, name: &HostName) -> Result<Vec<IpAddr>, ResolveError> {
        self.0.lock().unwrap().push(name.to_string());
        Ok(vec![[10, 1, 2, 3].into()])
    }
}

struct World {
    gate: Gate,
    names: Arc<Names>,
    id: SandboxId,
    agent: Opener,
    host: mpsc::Receiver<Opened>,
}

fn world() -> World {
    let (a, b) = tokio::io::duplex(256 * 1024);
    let config = |side| Config { side, epoch: 1, max_open: 1024, max_streams: 64, max_flows: 32, max_incoming: 32 };
    let (_, host, host_pump) = Channel::new(config(Side::Host)).into_parts();
    let (agent, _, agent_pump) = Channel::new(config(Side::Agent)).into_parts();
    for (pump, end) in [(host_pump, a), (agent_pump, b)] {
        tokio::spawn(async move {
            let (mut reader, mut writer) = tokio::io::split(end);
            pump.run(&mut reader, &mut writer, &mut BytesMut::new()).await
        });
    }
    let names = Arc::new(Names::default());
    let gate = Gate::with_resolver(Settings::default(), names.clone());
    World { gate, names, id: SandboxId::new_v4(), agent, host }
}

impl World {
    async fn arm(&self, version: u64, network: Network) {
        self.gate.arm(self.id, Rules { version, network: Arc::new(network) }).await.unwrap();
    }

    async fn connect(&mut self) -> Stream {
        let ours = self.agent.open(Bytes::from_static(b"x")).await.unwrap();
        let Opened { stream, .. } = self.host.recv().await.unwrap();
        let flow = Flow { relay: Relay::Proxy as i32, pid: 5, program: "curl".to_owned(), process_id: "p".to_owned() };
        self.gate.serve(self.id, flow, stream);
        ours
    }

    /// What the proxy says to one request on a connection of its own.
    async fn say(&mut self, request: &str) -> String {
        let mut stream = self.connect().await;
        send(&stream, request.as_bytes()).await;
        hear(&mut stream).await
    }
}

async fn send(stream: &Stream, bytes: &[u8]) {
    for part in bytes.chunks(FLOW_STEP) {
        // A proxy that has heard enough closes before the end.
        if stream.send(Bytes::copy_from_slice(part)).await.is_err() {
            return;
        }
    }
}

/// One head with its body, or what there is until the end.
async fn hear(stream: &mut Stream) -> String {
    let mut got = Vec::new();
    let heard = tokio::time::timeout(Duration::from_secs(120), async {
        while let Ok(Some(message)) = stream.recv().await {
            got.extend(message);
            let text = String::from_utf8_lossy(&got).to_ascii_lowercase();
            let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
            if length.is_some_and(|length| body.len() >= length) {
                return;
            }
        }
    });
    heard.await.expect("an answer, or the end");
    String::from_utf8_lossy(&got).into_owned()
}

fn refused_for(answer: &str, status: &str, reason: &str) {
    let low = answer.to_ascii_lowercase();
    assert!(low.starts_with(&format!("http/1.1 {status} ")), "{answer}");
    assert!(low.contains(&format!("\r\nx-runtime-egress: {reason}\r\n")), "{answer}");
}

#[tokio::test]
async fn a_refusal_says_why_and_is_on_record() {
    let mut world = world();
    let rules = Network {
        allow: vec!["*.example.com".parse().unwrap(), "127.0.0.0/8".parse().unwrap()],
        deny: vec!["bad.example.com".parse().unwrap()],
        ..Network::open()
    };
    world.arm(4, rules).await;
    for (request, status, reason) in [
        ("CONNECT bad.example.com:443 HTTP/1.1\r\n\r\n", "403", "rule-denied"),
        ("GET http://other.example.org/ HTTP/1.1\r\nHost: a.example.com\r\n\r\n", "403", "rule-not-allowed"),
        ("CONNECT a.example.com:25 HTTP/1.1\r\n\r\n", "403", "port-forbidden"),
        ("CONNECT 127.0.0.1:80 HTTP/1.1\r\n\r\n", "403", "private-address"),
        ("CONNECT a.example.com:80 HTTP/1.1\r\n\r\n", "403", "private-address"),
        ("GET / HTTP/1.1\r\nHost: a.example.com\r\n\r\n", "400", "bad-request"),
        ("GET https://u:secret@a.example.com/secret?secret HTTP/1.1\r\n\r\n", "400", "bad-request"),
    ] {
        refused_for(&world.say(request).await, status, reason);
    }
    // Only the one that was allowed by its name was looked up.
    assert_eq!(*world.names.0.lock().unwrap(), ["a.example.com"]);
    let page = world.gate.decisions(world.id, None, 100).await;
    assert_eq!((page.total, page.decisions.len()), (7, 7));
    assert_eq!(page.decisions[0].host, "a.example.com", "and nothing of the rest");
    let first = &page.decisions[6];
    assert_eq!((first.verdict, first.host.as_str(), first.port), (Verdict::Refused, "bad.example.com", 443));
    assert_eq!((first.program.as_str(), first.process_id.as_str(), first.version), ("curl", "p", 4));
    assert_eq!(page.decisions[2].address, Some([10, 1, 2, 3].into()));
    world.gate.close().await;
}

#[tokio::test]
async fn each_request_on_a_kept_connection_is_judged_by_itself() {
    let mut world = world();
    world.arm(1, Network { deny: vec!["b.example.com".parse().unwrap()], ..Network::open() }).await;
    let mut stream = world.connect().await;
    for (host, reason) in
        [("a.example.com", "private-address"), ("b.example.com", "rule-denied"), ("localhost", "private-address")]
    {
        send(&stream, format!("GET http://{host}/ HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).await;
        refused_for(&hear(&mut stream).await, "403", reason);
    }
    world.arm(2, Network::closed()).await;
    send(&stream, b"GET http://a.example.com/ HTTP/1.1\r\nHost: x\r\n\r\n").await;
    refused_for(&hear(&mut stream).await, "403", "internet-off");
    world.gate.close().await;
}

#[tokio::test]
async fn older_rules_never_replace_newer_ones_and_without_any_all_is_refused() {
    let mut world = world();
    world.arm(5, Network::closed()).await;
    world.arm(4, Network::open()).await;
    assert_eq!(world.gate.armed(world.id).map(|rules| rules.version), Some(5));
    refused_for(&world.say("CONNECT a.example.com:80 HTTP/1.1\r\n\r\n").await, "403", "internet-off");
    world.gate.disarm(world.id).await;
    assert_eq!(world.gate.armed(world.id), None);
    refused_for(&world.say("CONNECT a.example.com:80 HTTP/1.1\r\n\r\n").await, "503", "not-ready");
    // A start after a stop begins anew, whatever its version.
    world.arm(1, Network::open()).await;
    refused_for(&world.say("CONNECT a.example.com:80 HTTP/1.1\r\n\r\n").await, "403", "private-address");
    world.gate.forget(world.id).await;
    assert_eq!(world.gate.decisions(world.id, None, 10).await.total, 0);
    world.gate.close().await;
}

#[tokio::test]
async fn what_is_no_request_ends_and_the_next_is_served() {
    let mut world = world();
    world.arm(1, Network::open()).await;
    let long = format!("GET http://a.example.com/ HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(100_000));
    let many = format!("GET http://a.example.com/ HTTP/1.1\r\n{}\r\n", "X: y\r\n".repeat(1000));
    for nonsense in [
        "\0\0\0\0\r\n\r\n",
        "CONNECT\r\n\r\n",
        "\u{16}\u{3}\u{1}\0\u{5}hello\r\n\r\n",
        "GET http://a b/ HTTP/1.1\r\n\r\n",
        &long,
        &many,
    ] {
        let answer = world.say(nonsense).await;
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
    }
    assert!(world.names.0.lock().unwrap().is_empty());
    refused_for(&world.say("CONNECT 10.0.0.1:80 HTTP/1.1\r\n\r\n").await, "403", "private-address");
    world.gate.close().await;
}
