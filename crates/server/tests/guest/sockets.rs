//! Terminals and tunnels over real WebSockets, with the real agent at the other end.

use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{Error, Message};

use crate::stack::{PATIENCE, Stack};

struct Socket(WebSocketStream<TcpStream>);

impl Socket {
    async fn open(stack: &Stack, path: &str) -> Self {
        let path = path.replace("{s}", &format!("/v1/sandboxes/{}", stack.sandbox));
        let mut request = format!("ws://{}{path}", stack.address).into_client_request().expect("a request");
        request.headers_mut().insert("authorization", format!("Bearer {}", stack.key).parse().expect("a header"));
        let tcp = TcpStream::connect(stack.address).await.expect("a connection");
        let (socket, answer) = tokio_tungstenite::client_async(request, tcp).await.expect("a WebSocket");
        assert!(answer.headers().contains_key("x-request-id"));
        Self(socket)
    }

    async fn message(&mut self) -> Option<Message> {
        match tokio::time::timeout(PATIENCE, self.0.next()).await.expect("a frame in time") {
            None | Some(Err(Error::ConnectionClosed)) => None,
            Some(message) => Some(message.expect("a frame")),
        }
    }

    /// The next text; bytes before it are collected.
    async fn text(&mut self, bytes: &mut Vec<u8>) -> Value {
        loop {
            match self.message().await.expect("a frame before the close") {
                Message::Text(text) => return serde_json::from_str(&text).expect("JSON"),
                Message::Binary(data) => bytes.extend_from_slice(&data),
                other => panic!("{other:?}"),
            }
        }
    }

    async fn until(&mut self, wanted: &str) -> String {
        let mut seen = Vec::new();
        loop {
            let text = String::from_utf8_lossy(&seen).into_owned();
            if text.contains(wanted) {
                return text;
            }
            match self.message().await.unwrap_or_else(|| panic!("{wanted:?} never came: {text}")) {
                Message::Binary(data) => seen.extend_from_slice(&data),
                other => panic!("{other:?} after {text}"),
            }
        }
    }

    async fn closed(&mut self) -> u16 {
        loop {
            if let Message::Close(frame) = self.message().await.expect("a close") {
                return frame.map_or(0, |frame| frame.code.into());
            }
        }
    }

    async fn send(&mut self, data: impl Into<Bytes>) {
        self.0.send(Message::Binary(data.into())).await.expect("sent");
    }

    async fn ready(&mut self) -> String {
        let ready = self.text(&mut Vec::new()).await;
        assert_eq!(ready["type"], "ready", "{ready}");
        ready["processId"].as_str().unwrap_or_default().to_owned()
    }
}

async fn terminal(stack: &Stack, more: &str) -> Socket {
    Socket::open(stack, &format!("{{s}}/terminal?user=root&cwd=%2F&{more}")).await
}

async fn process(stack: &Stack, id: &str) -> Value {
    stack.get(&format!("{{s}}/processes/{id}")).await.ok()
}

async fn until_state(stack: &Stack, id: &str, wanted: &str) {
    let look = async {
        while process(stack, id).await["state"] != wanted {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, look).await.unwrap_or_else(|_| panic!("{id} does not become {wanted}"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_terminal_is_ready_shows_and_exits() {
    let stack = Stack::start().await;
    let mut socket =
        terminal(&stack, "cols=70&rows=21&command=stty%20size%3B%20read%20x%3B%20echo%20got%20%24x%3B%20exit%203")
            .await;
    let id = socket.ready().await;
    socket.until("21 70").await;
    let info = process(&stack, &id).await;
    assert_eq!((&info["pty"], &info["state"]), (&json!(true), &json!("running")));
    // The channel breaks; what is typed goes in once, and the output goes on.
    stack.node.break_channels().await;
    socket.send("once\n").await;
    let mut seen = Vec::new();
    let exit = socket.text(&mut seen).await;
    assert_eq!(exit, json!({"type": "exit", "exitCode": 3}));
    assert_eq!(String::from_utf8_lossy(&seen).matches("got once\r\n").count(), 1, "{seen:?}");
    assert_eq!(socket.closed().await, 1000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_sockets_show_one_process_and_its_opener_hangs_it_up_last() {
    let stack = Stack::start().await;
    let mut first = terminal(&stack, "").await;
    let id = first.ready().await;
    let mut second = Socket::open(&stack, &format!("{{s}}/terminal?processId={id}&cols=44&rows=11")).await;
    second.ready().await;
    first.send("echo at-$((40+2)); stty size\n").await;
    for socket in [&mut first, &mut second] {
        let seen = socket.until("at-42").await;
        assert!(seen.contains("11 44") || socket.until("11 44").await.contains("11 44"));
    }
    first.0.send(Message::Text(r#"{"type":"resize","cols":99,"rows":9}"#.into())).await.expect("sent");
    // One socket's typing may come before another's resize.
    second.send("while [ \"$(stty size)\" != '9 99' ]; do :; done; echo wide-$((1+1))\n").await;
    second.until("wide-2").await;
    // Another shows it still.
    first.0.close(None).await.expect("closed");
    second.send("echo still-$((1+1))\n").await;
    second.until("still-2").await;
    drop(second);
    let mut last = terminal(&stack, "").await;
    let other = last.ready().await;
    // Cut without a word.
    drop(last);
    until_state(&stack, &other, "exited").await;
    assert_eq!(process(&stack, &id).await["state"], "running", "it was shown by another when its opener left");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_come_as_frames_and_the_thirteenth_is_one() {
    let stack = Stack::start().await;
    let plain = stack.post("{s}/processes", json!({"command": "sleep 100", "user": "root", "cwd": "/"})).await.ok();
    let plain = plain["id"].as_str().expect("an id").to_owned();
    for (path, code) in [
        (format!("{{s}}/terminal?processId={plain}"), "invalid_request"),
        ("{s}/terminal?processId=none".to_owned(), "not_found"),
        ("{s}/terminal?cols=0".to_owned(), "invalid_request"),
        ("{s}/terminal?bogus=1".to_owned(), "invalid_request"),
        ("{s}/terminal?user=root&cwd=%2Fnone".to_owned(), "cwd_not_found"),
        ("{s}/tunnel?x=1".to_owned(), "invalid_request"),
        ("/v1/sandboxes/00000000-0000-7000-8000-000000000000/terminal".to_owned(), "not_found"),
    ] {
        let mut socket = Socket::open(&stack, &path).await;
        let refused = socket.text(&mut Vec::new()).await;
        assert_eq!((&refused["type"], &refused["error"]["code"]), (&json!("error"), &json!(code)), "{path}: {refused}");
        assert!(refused["error"]["requestId"].as_str().is_some_and(|id| id.starts_with("req_")));
        socket.closed().await;
    }
    for what in ["terminal", "tunnel"] {
        let answer = stack.get(&format!("{{s}}/{what}")).await;
        assert_eq!(answer.refusal(), (400, "invalid_request".to_owned()));
    }
    let mut open = Vec::new();
    for _ in 0..12 {
        let mut socket = terminal(&stack, "command=cat").await;
        socket.ready().await;
        open.push(socket);
    }
    let refused = terminal(&stack, "command=cat").await.text(&mut Vec::new()).await;
    assert_eq!(refused["error"]["code"], "rate_limited");
    open.pop();
    let again = async {
        while terminal(&stack, "command=true").await.text(&mut Vec::new()).await["type"] != "ready" {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, again).await.expect("a place is given back");
}

fn frame(kind: u8, number: u32, payload: &[u8]) -> Bytes {
    let mut frame = BytesMut::new();
    frame.put_u8(kind);
    frame.put_u32(number);
    frame.put_slice(payload);
    frame.freeze()
}

struct Tunnel {
    socket: Socket,
    credit: u64,
}

impl Tunnel {
    async fn open(stack: &Stack) -> Self {
        let mut socket = Socket::open(stack, "{s}/tunnel").await;
        socket.ready().await;
        Self { socket, credit: 0 }
    }

    /// The next frame that is not credit.
    async fn hear(&mut self) -> (u8, u32, Vec<u8>) {
        loop {
            let Some(Message::Binary(data)) = self.socket.message().await else { panic!("the tunnel closed") };
            let number = u32::from_be_bytes(data[1..5].try_into().expect("four"));
            if data[0] != b'a' {
                return (data[0], number, data[5..].to_vec());
            }
            let credit = u64::from_be_bytes(data[5..].try_into().expect("eight"));
            assert!(number == 0 && credit > self.credit);
            self.credit = credit;
        }
    }
}

/// Sends back what comes, then `bye`, after the other side's end.
async fn echo() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut reader, mut writer) = socket.split();
                let _ = tokio::io::copy(&mut reader, &mut writer).await;
                let _ = writer.write_all(b"bye").await;
            });
        }
    });
    port
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tunnel_carries_connections_byte_for_byte() {
    let stack = Stack::start().await;
    let port = echo().await;
    let mut tunnel = Tunnel::open(&stack).await;
    let target = format!("tcp {port}");
    let mut sent = 0;
    for number in 1..=20 {
        tunnel.socket.send(frame(b'o', number, target.as_bytes())).await;
        tunnel.socket.send(frame(b'd', number, &vec![number as u8; 40_000])).await;
        tunnel.socket.send(frame(b'e', number, b"")).await;
        sent += 40_000;
    }
    let mut got: Vec<Vec<u8>> = vec![Vec::new(); 21];
    let (mut opened, mut ended, mut done) = (0, 0, 0);
    while done < 20 {
        let (kind, number, data) = tunnel.hear().await;
        match kind {
            b'o' => opened += 1,
            b'd' => got[number as usize].extend_from_slice(&data),
            b'e' => ended += 1,
            b'c' => {
                assert_eq!(data, b"done");
                done += 1;
            }
            other => panic!("{other}"),
        }
    }
    assert_eq!((opened, ended), (20, 20));
    for (number, got) in got.iter().enumerate().skip(1) {
        let expected = [vec![number as u8; 40_000], b"bye".to_vec()].concat();
        assert!(*got == expected, "{number}: {} bytes", got.len());
    }
    // Held, so that nobody else comes to listen there.
    let closed = TcpSocket::new_v4().expect("a socket");
    closed.bind("127.0.0.1:0".parse().expect("an address")).expect("a port");
    let free = closed.local_addr().expect("an address").port();
    for (number, (target, reason)) in [
        (format!("tcp {free}"), "closed"),
        ("tcp 10800".to_owned(), "reserved"),
        ("tcp 10802".to_owned(), "reserved"),
        ("tcp 10853".to_owned(), "reserved"),
        ("ssh ssh-ed25519 AAAA".to_owned(), "the key does not read"),
        ("tcp 0".to_owned(), "the target is no port"),
        ("tcp 65536".to_owned(), "the target is no port"),
        ("tcp +80".to_owned(), "the target is no port"),
        ("udp 53".to_owned(), "the target is no port"),
        (String::new(), "the target is no port"),
    ]
    .into_iter()
    .enumerate()
    {
        let number = 100 + number as u32;
        tunnel.socket.send(frame(b'o', number, target.as_bytes())).await;
        assert_eq!(tunnel.hear().await, (b'c', number, reason.as_bytes().to_vec()), "{target}");
    }
    // This machine is the sandbox here, and has no sshd, or one that lets nobody in without a key.
    let key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIN8dr0h+sogPFq6er3aSxXHbZ1vg/zAIKPsnjNCZ6Jhh";
    tunnel.socket.send(frame(b'o', 150, format!("ssh {key} host-key").as_bytes())).await;
    if std::path::Path::new("/usr/sbin/sshd").exists() {
        assert_eq!(tunnel.hear().await, (b'o', 150, Vec::new()));
        assert!(matches!(tunnel.hear().await, (b'k', 150, key) if key.starts_with(b"ssh-ed25519 AAAA")));
        tunnel.socket.send(frame(b'c', 150, b"")).await;
    } else {
        assert_eq!(tunnel.hear().await, (b'c', 150, b"no-sshd".to_vec()));
    }
    // All credit comes back, also that of data nobody takes.
    tunnel.socket.send(frame(b'd', 999, &[0; 1000])).await;
    tunnel.socket.send(frame(b'o', 200, target.as_bytes())).await;
    assert_eq!(tunnel.hear().await.0, b'o');
    while tunnel.credit < sent + 1000 {
        tunnel.socket.send(frame(b'd', 200, b"x")).await;
        sent += 1;
        tunnel.hear().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_breaks_the_tunnels_rules_ends_it() {
    let stack = Stack::start().await;
    for junk in [Bytes::new(), Bytes::from_static(b"o"), frame(b'o', 0, b"tcp 80")] {
        let mut tunnel = Tunnel::open(&stack).await;
        tunnel.socket.send(junk.clone()).await;
        assert_eq!(tunnel.socket.text(&mut Vec::new()).await["type"], "error", "{junk:?}");
        assert_eq!(tunnel.socket.closed().await, 1002);
    }
    // One that accepts and never reads: what is sent past the credit cuts the tunnel, and the connection behind it.
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let mut tunnel = Tunnel::open(&stack).await;
    tunnel.socket.send(frame(b'o', 1, format!("tcp {port}").as_bytes())).await;
    assert_eq!(tunnel.hear().await.0, b'o');
    let (mut held, _) = listener.accept().await.expect("a connection");
    let flood = async { while tunnel.socket.0.send(Message::Binary(frame(b'd', 1, &[7; 65_536]))).await.is_ok() {} };
    tokio::time::timeout(PATIENCE, flood).await.expect("the tunnel is cut");
    let mut sink = Vec::new();
    let _ = tokio::time::timeout(PATIENCE, held.read_to_end(&mut sink)).await.expect("the connection is let go");
    // An abort lets the connection go, too.
    let mut tunnel = Tunnel::open(&stack).await;
    tunnel.socket.send(frame(b'o', 1, format!("tcp {port}").as_bytes())).await;
    assert_eq!(tunnel.hear().await.0, b'o');
    let (mut held, _) = listener.accept().await.expect("a connection");
    tunnel.socket.send(frame(b'c', 1, b"")).await;
    let _ = tokio::time::timeout(PATIENCE, held.read_to_end(&mut sink)).await.expect("the connection is let go");
    let port = echo().await;
    tunnel.socket.send(frame(b'o', 2, format!("tcp {port}").as_bytes())).await;
    assert_eq!(tunnel.hear().await.0, b'o');
}
