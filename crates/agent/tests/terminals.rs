//! Processes with a terminal, and connections to what listens in the sandbox.

mod common;

use bytes::Bytes;
use common::*;
use runtime_proto::channel::ChannelError;
use runtime_proto::guest::{
    Ask, Command, Connect, ErrorCode, Input, ProcessState, Pty, Resize, Spawn, Tell, WriteStdin, encode,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket};

fn terminal(line: &str) -> Spawn {
    Spawn { command: Some(shell(line)), pty: Some(Pty { cols: 100, rows: 30 }), binary: true, ..Spawn::default() }
}

async fn type_in(guest: &Guest, id: &str, data: &[u8]) -> Result<u64, ErrorCode> {
    let ask = WriteStdin { process_id: id.to_owned(), append: true, ..WriteStdin::default() };
    let mut stream = guest.open(Ask::WriteStdin(ask)).await;
    let sender = stream.sender();
    send_input(&sender, data).await;
    sender.finish().await.unwrap();
    match collect(&mut stream).await.map_err(|error| error.code())?.pop() {
        Some(Tell::Written(written)) => Ok(written.offset),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_terminal_is_the_sessions_and_ends_with_it() {
    let guest = Guest::start().await;
    let process = guest.spawn(terminal("tty; stty size; echo $TERM; ps -o tty= -p $$; exit 6")).await;
    assert!(process.pty && process.stdin_open);
    let (chunks, lost, ended) = guest.follow(&process.id, 0).await;
    let seen = text(&chunks).replace("\r\n", "\n");
    let lines: Vec<&str> = seen.lines().collect();
    assert!(lines[0].starts_with("/dev/pts/"), "{seen}");
    assert_eq!(&lines[1..3], ["30 100", "xterm-256color"]);
    assert_eq!(format!("/dev/{}", lines[3].trim()), lines[0]);
    assert_eq!((lost, ended.exit_code, ended.stdin_open), (0, Some(6), false));
    // The caller's own word for it wins.
    let mut other = terminal("echo $TERM");
    other
        .command
        .as_mut()
        .unwrap()
        .env
        .push(runtime_proto::guest::EnvVar { name: "TERM".into(), value: "dumb".into() });
    let process = guest.spawn(other).await;
    assert_eq!(text(&guest.follow(&process.id, 0).await.0), "dumb\r\n");
}

#[tokio::test]
async fn it_belongs_to_the_user_and_bytes_pass_untouched() {
    let guest = Guest::start().await;
    let command = Command { user: 0, ..shell("stat -L -c '%U %a' /dev/stdin || id -u; printf 'a\\377\\302'; exit 0") };
    let process = guest.spawn(Spawn { command: Some(command), ..terminal("") }).await;
    let (chunks, ..) = guest.follow(&process.id, 0).await;
    let seen: Vec<u8> = chunks.iter().flat_map(|chunk| chunk.data.to_vec()).collect();
    let first = String::from_utf8_lossy(&seen);
    assert!(first.contains(" 620\r\n") && !first.starts_with("root"), "{first}");
    assert!(seen.ends_with(b"a\xff\xc2"), "{seen:?}");
}

#[tokio::test]
async fn what_is_typed_is_read_resized_and_signalled() {
    let guest = Guest::start().await;
    // A shell looks at its traps between commands: no read waits for long.
    let line = "trap 'stty size' WINCH; trap 'echo int' INT; stty -echo; echo ready; \
                while :; do read -t 0.05 x && echo got $x && [ $x = end ] && exit 0; done";
    let process = guest.spawn(terminal(line)).await;
    let id = process.id.as_str();
    guest.until(id, |process| process.output_bytes >= 7).await;
    assert_eq!(type_in(&guest, id, b"one\n").await, Ok(4));
    let seen = guest.until(id, |process| process.output_bytes >= 7 + 9).await.output_bytes;
    let size = Some(Pty { cols: 33, rows: 11 });
    guest.one(Ask::Resize(Resize { process_id: id.to_owned(), size })).await.unwrap();
    let seen = guest.until(id, |process| process.output_bytes >= seen + 7).await.output_bytes;
    // Ctrl-C is the terminal's to turn into a signal.
    type_in(&guest, id, &[3]).await.unwrap();
    guest.until(id, |process| process.output_bytes >= seen + 5).await;
    type_in(&guest, id, b"end\n").await.unwrap();
    let (chunks, _, ended) = guest.follow(id, 0).await;
    let seen = text(&chunks).replace("\r\n", "\n");
    for part in ["got one\n", "11 33\n", "int\n", "got end\n"] {
        assert!(seen.contains(part), "{part:?} is not in {seen:?}");
    }
    assert_eq!(ended.exit_code, Some(0));
    assert_eq!(type_in(&guest, id, b"x").await, Err(ErrorCode::Invalid));
    // Of one that has ended nothing is left to resize.
    guest.one(Ask::Resize(Resize { process_id: id.to_owned(), size })).await.unwrap();
    let plain = guest.spawn(spawn(shell("sleep 100"))).await;
    let refused = guest.one(Ask::Resize(Resize { process_id: plain.id, size })).await.unwrap_err();
    assert_eq!(refused.code(), ErrorCode::Invalid);
    guest.close().await;
}

#[tokio::test]
async fn the_end_of_input_is_typed() {
    let guest = Guest::start().await;
    for typed in ["", "line\n", "no line"] {
        let process = guest.spawn(terminal("cat > /dev/null; echo over")).await;
        let ask = WriteStdin { process_id: process.id.clone(), eof: true, ..WriteStdin::default() };
        let mut stream = guest.open(Ask::WriteStdin(ask)).await;
        send_input(&stream.sender(), typed.as_bytes()).await;
        stream.finish().await.unwrap();
        collect(&mut stream).await.unwrap();
        let (chunks, _, ended) = guest.follow(&process.id, 0).await;
        assert!(text(&chunks).ends_with("over\r\n"), "{typed:?}");
        assert_eq!(ended.exit_code, Some(0));
    }
}

/// Each of the 256, in the order that has every one follow every other.
fn every_pair() -> Vec<u8> {
    (0..=255_u8).flat_map(|one| (0..=255_u8).flat_map(move |other| [one, other])).collect()
}

#[tokio::test]
async fn a_raw_terminal_passes_every_byte_both_ways() {
    let guest = Guest::start().await;
    let dir = tempfile::tempdir().unwrap();
    let (typed, shown) = (dir.path().join("typed"), dir.path().join("shown"));
    let data = every_pair();
    std::fs::write(&shown, &data).unwrap();
    let line =
        format!("stty raw -echo; printf ready; head -c {} > {}; cat {}", data.len(), typed.display(), shown.display());
    let process = guest.spawn(terminal(&line)).await;
    guest.until(&process.id, |process| process.output_bytes >= 5).await;
    type_in(&guest, &process.id, &data).await.unwrap();
    let (chunks, lost, ended) = guest.follow(&process.id, 0).await;
    let seen: Vec<u8> = chunks.iter().flat_map(|chunk| chunk.data.to_vec()).collect();
    assert_eq!((lost, ended.exit_code), (0, Some(0)));
    assert!(std::fs::read(&typed).unwrap() == data, "what was typed");
    assert!(seen.strip_prefix(b"ready").unwrap() == data, "what was shown");
}

#[tokio::test]
async fn a_long_paste_waits_for_its_reader_and_arrives_whole() {
    let guest = Guest::start().await;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("typed");
    let data: Vec<u8> = (0..900_000_u32).map(|n| (n % 251) as u8).collect();
    let line = format!("stty raw -echo; echo ready; head -c {} > {}; echo done", data.len(), path.display());
    let process = guest.spawn(terminal(&line)).await;
    guest.until(&process.id, |process| process.output_bytes >= 6).await;
    for piece in data.chunks(300_000) {
        type_in(&guest, &process.id, piece).await.unwrap();
    }
    guest.follow(&process.id, 0).await;
    assert!(std::fs::read(&path).unwrap() == data);
}

/// The shell goes, what it left in the background keeps the terminal; nobody waits for that.
#[tokio::test]
async fn a_terminal_that_is_held_does_not_hold_the_end() {
    let guest = Guest::start().await;
    let process = guest.spawn(terminal("trap '' HUP; sleep 1000 & echo left; exit 2")).await;
    let (chunks, _, ended) = guest.follow(&process.id, 0).await;
    assert_eq!((text(&chunks).as_str(), ended.exit_code), ("left\r\n", Some(2)));
    assert_eq!(ended.state, ProcessState::Exited as i32);
    guest.signal(&process.id, 9).await;
    guest.close().await;
}

#[tokio::test]
async fn connections_carry_bytes_and_half_closes_both_ways() {
    let guest = Guest::start().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = u32::from(listener.local_addr().unwrap().port());
    let echo = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        let mut all = Vec::new();
        socket.read_to_end(&mut all).await.unwrap();
        // After the other side's end.
        socket.write_all(&all).await.unwrap();
        all.len()
    });
    let mut stream = guest.open(Ask::Connect(Connect { port })).await;
    assert!(matches!(next(&mut stream).await, Ok(Some(Tell::Done(_)))));
    let data: Vec<u8> = (0..3_000_000_u32).map(|n| (n >> 3) as u8).collect();
    let sender = stream.sender();
    let sent = data.clone();
    let sending = tokio::spawn(async move {
        send_input(&sender, &sent).await;
        sender.finish().await.unwrap();
    });
    let mut got = Vec::new();
    while let Some(told) = next(&mut stream).await.unwrap() {
        let Tell::Chunk(chunk) = told else { panic!("{told:?}") };
        got.extend_from_slice(&chunk.data);
    }
    sending.await.unwrap();
    assert_eq!(echo.await.unwrap(), data.len());
    assert!(got == data);
}

#[tokio::test]
async fn a_connection_that_cannot_be_or_is_cut_says_so() {
    let guest = Guest::start().await;
    // Held, so that nobody else comes to listen there.
    let closed = TcpSocket::new_v4().unwrap();
    closed.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let free = closed.local_addr().unwrap().port();
    for (port, code) in
        [(u32::from(free), ErrorCode::ConnectionRefused), (0, ErrorCode::Invalid), (65_536 + 80, ErrorCode::Invalid)]
    {
        assert_eq!(guest.ask(Ask::Connect(Connect { port })).await.unwrap_err().code(), code, "{port}");
    }
    // The other loopback is tried where nothing listens on the first.
    if let Ok(listener) = TcpListener::bind("[::1]:0").await {
        let port = u32::from(listener.local_addr().unwrap().port());
        let mut stream = guest.open(Ask::Connect(Connect { port })).await;
        assert!(matches!(next(&mut stream).await, Ok(Some(Tell::Done(_)))));
        // A reset there is a reset here, never an end.
        let (socket, _) = listener.accept().await.unwrap();
        stream.send(encode(&Input { data: Bytes::from_static(b"unread") })).await.unwrap();
        // A look at the bytes themselves: what was just accepted counts as readable.
        assert_eq!(socket.peek(&mut [0; 8]).await.unwrap(), 6);
        drop(socket);
        let cut = tokio::time::timeout(WAIT, stream.recv()).await.unwrap();
        assert_eq!(cut, Err(ChannelError::Reset));
    }
    // Given up by the host: the guest's side is told.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = u32::from(listener.local_addr().unwrap().port());
    let mut stream = guest.open(Ask::Connect(Connect { port })).await;
    assert!(matches!(next(&mut stream).await, Ok(Some(Tell::Done(_)))));
    let (mut socket, _) = listener.accept().await.unwrap();
    drop(stream);
    let mut buf = [0; 8];
    let read = tokio::time::timeout(WAIT, socket.read(&mut buf)).await.expect("an end in time");
    assert!(matches!(read, Ok(0) | Err(_)));
}
