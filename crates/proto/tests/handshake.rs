//! A new host finds its agent again wherever the old one left the pipe.

use bytes::{Bytes, BytesMut};
use runtime_proto::channel::{Channel, ChannelError, Config, Ended, Side};
use runtime_proto::frame::{Decoded, Frame, HEADER, Kind, TRAILER, decode};
use runtime_proto::guest::{Hello, Welcome};
use runtime_proto::handshake::{await_hello, greet, wall_clock_ns, welcome};
use runtime_proto::{PROTOCOL, PROTOCOL_MIN};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

fn hello(nonce: u8) -> Hello {
    Hello {
        nonce: Bytes::from(vec![nonce; 16]),
        protocol_min: PROTOCOL_MIN,
        protocol_max: PROTOCOL,
        epoch: u32::from(nonce),
        ..Hello::default()
    }
}

fn answer(hello: &Hello) -> Welcome {
    Welcome { nonce: hello.nonce.clone(), protocol: PROTOCOL, ..Welcome::default() }
}

fn config(side: Side, epoch: u32) -> Config {
    Config { side, epoch, max_open: 1 << 20, max_streams: 16, max_flows: 8, max_incoming: 16 }
}

#[tokio::test]
async fn a_frame_torn_at_any_byte_is_dropped_and_the_next_host_is_heard() {
    let mut wire = BytesMut::new();
    Frame { kind: Kind::Open, flags: 0, epoch: 1, stream: 1, payload: Bytes::from_static(b"rm -rf half of it") }
        .encode(&mut wire);
    for cut in 0..wire.len() {
        let (host, agent) = tokio::io::duplex(8 * 1024);
        let (mut host_read, mut host_write) = tokio::io::split(host);
        let (mut agent_read, mut agent_write) = tokio::io::split(agent);
        // The old host dies in the middle of a frame; the agent is inside a channel of epoch 1.
        host_write.write_all(&wire[..cut]).await.unwrap();
        let agent = tokio::spawn(async move {
            let mut buf = BytesMut::new();
            let (_opener, mut incoming, pump) = Channel::new(config(Side::Agent, 1)).into_parts();
            assert_eq!(pump.run(&mut agent_read, &mut agent_write, &mut buf).await, Ended::NewHello);
            assert!(incoming.recv().await.is_none(), "a torn request must not be served (cut at {cut})");
            // Output the old host never read.
            agent_write.write_all(&[7; 3000]).await.unwrap();
            let hello = await_hello(&mut agent_read, &mut buf).await.unwrap();
            welcome(&mut agent_write, &answer(&hello)).await.unwrap();
            hello.epoch
        });
        let (greeting, rest) = greet(&mut host_read, &mut host_write, &hello(9)).await.unwrap();
        assert_eq!(greeting.protocol, PROTOCOL);
        assert!(rest.is_empty());
        assert_eq!(agent.await.unwrap(), 9);
    }
}

#[tokio::test]
async fn a_welcome_for_another_nonce_is_skipped() {
    let (host, agent) = tokio::io::duplex(256 * 1024);
    let (mut host_read, mut host_write) = tokio::io::split(host);
    let (_keep, mut agent_write) = tokio::io::split(agent);
    welcome(&mut agent_write, &answer(&hello(1))).await.unwrap();
    welcome(&mut agent_write, &answer(&hello(2))).await.unwrap();
    let (greeting, _) = greet(&mut host_read, &mut host_write, &hello(2)).await.unwrap();
    assert_eq!(greeting.nonce, hello(2).nonce);
}

/// How often an agent is greeted whose clock, as it answers a greeting that told `told`, says `clock(told)`.
async fn greetings(clock: impl Fn(u64) -> u64 + Send + 'static) -> usize {
    let (host, agent) = tokio::io::duplex(256 * 1024);
    let (mut host_read, mut host_write) = tokio::io::split(host);
    let (mut agent_read, mut agent_write) = tokio::io::split(agent);
    let agent = tokio::spawn(async move {
        let (mut buf, mut nonces) = (BytesMut::new(), Vec::new());
        while let Ok(hello) = await_hello(&mut agent_read, &mut buf).await {
            assert!(!nonces.contains(&hello.nonce), "an old welcome would be taken for this one's");
            nonces.push(hello.nonce.clone());
            let answer = Welcome { time: clock(hello.host_time), ..answer(&hello) };
            welcome(&mut agent_write, &answer).await.unwrap();
        }
        nonces.len()
    });
    // It waited an hour in the pipe.
    let hello = Hello { host_time: wall_clock_ns() - 3_600_000_000_000, ..hello(9) };
    let (greeting, rest) = greet(&mut host_read, &mut host_write, &hello).await.unwrap();
    assert!(greeting.nonce != hello.nonce || rest.is_empty());
    drop((host_read, host_write));
    agent.await.unwrap()
}

#[tokio::test]
async fn a_clock_that_is_late_is_told_the_time_again_but_not_for_ever() {
    assert_eq!(greetings(|told| told).await, 2, "what it was told at first is old");
    assert_eq!(greetings(|_| wall_clock_ns()).await, 1, "its clock is the host's");
    assert_eq!(greetings(|_| u64::MAX).await, 1, "it goes ahead as it likes");
    assert_eq!(greetings(|_| 0).await, 1, "an agent of old does not say");
    assert_eq!(greetings(|_| 1).await, 3, "it does not want to know");
}

#[tokio::test]
async fn empty_messages_without_end_are_not_free() {
    let (host, agent) = tokio::io::duplex(1 << 20);
    let (mut read, mut write) = tokio::io::split(host);
    let (opener, _incoming, pump) = Channel::new(config(Side::Host, 1)).into_parts();
    let pump = tokio::spawn(async move { pump.run(&mut read, &mut write, &mut BytesMut::new()).await });
    let _slow_reader = opener.open(Bytes::from_static(b"x")).await.unwrap();
    let (_read, mut agent_write) = tokio::io::split(agent);
    let mut flood = BytesMut::new();
    for _ in 0..5000 {
        Frame { kind: Kind::Message, flags: 0, epoch: 1, stream: 1, payload: Bytes::new() }.encode(&mut flood);
    }
    agent_write.write_all(&flood).await.unwrap();
    assert!(matches!(pump.await.unwrap(), Ended::Violation(_)));
}

#[tokio::test]
async fn more_than_its_credit_ends_a_lying_guest() {
    let (host, agent) = tokio::io::duplex(1 << 20);
    let (mut read, mut write) = tokio::io::split(host);
    let (opener, _incoming, pump) = Channel::new(config(Side::Host, 1)).into_parts();
    let pump = tokio::spawn(async move { pump.run(&mut read, &mut write, &mut BytesMut::new()).await });
    let mut stream = opener.open(Bytes::from_static(b"x")).await.unwrap();
    let (_read, mut agent_write) = tokio::io::split(agent);
    let mut flood = BytesMut::new();
    for _ in 0..10 {
        let payload = Bytes::from(vec![0; 60_000]);
        Frame { kind: Kind::Message, flags: 0, epoch: 1, stream: 1, payload }.encode(&mut flood);
    }
    agent_write.write_all(&flood).await.unwrap();
    assert!(matches!(pump.await.unwrap(), Ended::Violation(_)));
    let last = loop {
        match stream.recv().await {
            Ok(Some(_)) => {}
            other => break other,
        }
    };
    assert_eq!(last, Err(ChannelError::Closed));
}

#[tokio::test(start_paused = true)]
async fn a_quiesced_agent_writes_nothing_more() {
    let (mut host, agent) = tokio::io::duplex(64 * 1024);
    let (mut agent_read, mut agent_write) = tokio::io::split(agent);
    let (opener, _incoming, pump) = Channel::new(config(Side::Agent, 1)).into_parts();
    tokio::spawn(async move { pump.run(&mut agent_read, &mut agent_write, &mut BytesMut::new()).await });
    let mut wire = BytesMut::new();
    Frame { kind: Kind::Quiesce, flags: 0, epoch: 1, stream: 0, payload: Bytes::new() }.encode(&mut wire);
    host.write_all(&wire).await.unwrap();
    let mut answer = BytesMut::new();
    while answer.len() < HEADER + TRAILER {
        host.read_buf(&mut answer).await.unwrap();
    }
    assert!(matches!(decode(&mut answer), Decoded::Frame(Frame { kind: Kind::Quiesced, .. })));
    let _stream = opener.open(Bytes::from_static(b"late")).await.unwrap();
    // The paused clock moves only when every task is idle, so this is a proof of silence, not a guess.
    let more = tokio::time::timeout(std::time::Duration::from_secs(1), host.read_buf(&mut answer)).await;
    assert!(more.is_err() && answer.is_empty());
}
