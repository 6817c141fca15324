//! Processes that live on: output from cursors, back-pressure, input offsets, signals, and hosts that come and go.

mod common;

use common::*;
use runtime_proto::guest::{
    Ask, Command, ErrorCode, Follow, Output, ProcessState, RETAINED_OUTPUT, Spawn, Tell, WriteStdin, Written,
};

fn follow(id: &str, cursor: u64) -> Ask {
    Ask::Follow(Follow { process_id: id.into(), cursor, ..Follow::default() })
}

fn poll(id: &str, cursor: u64, wait_ms: u64) -> Ask {
    Ask::Follow(Follow { process_id: id.into(), cursor, wait_ms, once: true })
}

#[tokio::test]
async fn output_has_one_line_of_offsets_and_ends_with_the_process() {
    let guest = Guest::start().await;
    let line = "echo one; echo two >&2; read x; echo three; exit 4";
    let process = guest.spawn(Spawn { stdin_pipe: true, ..spawn(shell(line)) }).await;
    assert_eq!((process.state, process.exit_code), (ProcessState::Running as i32, None));
    write(&guest, &process.id, 0, b"go\n", false).await.unwrap();
    let (chunks, lost, end) = guest.follow(&process.id, 0).await;
    let mut next = 0;
    for chunk in &chunks {
        assert_eq!(chunk.offset, next);
        next += chunk.data.len() as u64;
    }
    assert_eq!((lost, next, end.output_bytes), (0, 14, 14));
    assert_eq!((end.state, end.exit_code), (ProcessState::Exited as i32, Some(4)));
    let errors: String =
        text(&chunks.iter().filter(|c| c.stream == Output::Stderr as i32).cloned().collect::<Vec<_>>());
    assert_eq!(errors, "two\n");
    let (again, _, _) = guest.follow(&process.id, 5).await;
    assert_eq!(again.iter().map(|chunk| chunk.data.len()).sum::<usize>(), 9);
    assert_eq!(guest.get("nobody").await.unwrap_err().code, ErrorCode::NoSuchProcess as i32);
    guest.close().await;
}

#[tokio::test]
async fn half_characters_lose_nothing() {
    let guest = Guest::start().await;
    let line = "for i in 1 2 3; do printf '\\xe2\\x82'; sleep 0.02; printf '\\xac'; done; printf '\\xe2'";
    let process = guest.spawn(spawn(shell(line))).await;
    let (chunks, _, _) = guest.follow(&process.id, 0).await;
    let all: Vec<u8> = chunks.iter().flat_map(|chunk| chunk.data.to_vec()).collect();
    assert_eq!(all, "€€€".bytes().chain([0xe2]).collect::<Vec<u8>>());
    guest.close().await;
}

#[tokio::test]
async fn a_slow_reader_slows_the_process_and_nothing_is_lost() {
    let guest = Guest::start().await;
    let total: u64 = 24 * 1024 * 1024;
    let wanted = Spawn { stdin_pipe: true, ..spawn(shell(&format!("read x; head -c {total} /dev/zero"))) };
    let process = guest.spawn(wanted).await;
    let mut stream = guest.open(follow(&process.id, 0)).await;
    let go = write(&guest, &process.id, 0, b"go\n", false).await;
    assert_eq!(go, Ok(3));
    // Taken is what fits on the way; the process cannot be further than that and the kept mebibyte.
    let bound = (RETAINED_OUTPUT + 2 * 65536 + 2 * runtime_proto::channel::WINDOW) as u64;
    let first = guest.until(&process.id, |process| process.output_bytes > RETAINED_OUTPUT as u64 / 2).await;
    assert!(first.output_bytes <= bound && first.exit_code.is_none(), "{first:?}");
    let mut got = 0;
    while let Some(event) = next(&mut stream).await.unwrap() {
        match event {
            Tell::Chunk(chunk) => {
                assert_eq!(chunk.offset, got);
                got += chunk.data.len() as u64;
                let now = if got % (4 * 1024 * 1024) < 48 * 1024 {
                    guest.get(&process.id).await.unwrap().output_bytes
                } else {
                    0
                };
                assert!(now <= got + bound);
            }
            Tell::Process(end) => assert_eq!(end.output_bytes, total),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(got, total);
    guest.close().await;
}

#[tokio::test]
async fn without_a_reader_the_oldest_is_dropped_and_told() {
    let guest = Guest::start().await;
    let process = guest.spawn(spawn(shell("head -c 3000000 /dev/zero; echo end"))).await;
    let end =
        guest.until(&process.id, |process| process.exit_code.is_some() && process.output_bytes == 3_000_004).await;
    assert_eq!(end.first_offset, 3_000_004 - RETAINED_OUTPUT as u64);
    let (chunks, lost, _) = guest.follow(&process.id, 100).await;
    assert_eq!(lost, end.first_offset - 100);
    assert_eq!(chunks.first().unwrap().offset, end.first_offset);
    assert!(chunks.last().unwrap().data.ends_with(b"end\n"));
    guest.close().await;
}

async fn write(guest: &Guest, id: &str, offset: u64, data: &[u8], eof: bool) -> Result<u64, i32> {
    let mut stream =
        guest.open(Ask::WriteStdin(WriteStdin { process_id: id.into(), offset, eof, append: false })).await;
    send_input(&stream.sender(), data).await;
    stream.finish().await.unwrap();
    match collect(&mut stream).await {
        Ok(events) => match events[..] {
            [Tell::Written(Written { offset })] => Ok(offset),
            ref other => panic!("{other:?}"),
        },
        Err(error) => Err(error.code),
    }
}

#[tokio::test]
async fn writes_sent_again_are_taken_once() {
    let guest = Guest::start().await;
    let process = guest.spawn(Spawn { stdin_pipe: true, ..spawn(argv(&["cat"])) }).await;
    assert!(process.stdin_open);
    let id = &process.id;
    assert_eq!(write(&guest, id, 0, b"hello ", false).await, Ok(6));
    assert_eq!(write(&guest, id, 0, b"hello wor", false).await, Ok(9));
    assert_eq!(write(&guest, id, 20, b"x", false).await, Err(ErrorCode::Invalid as i32));
    assert_eq!(write(&guest, id, 9, b"ld", true).await, Ok(11));
    assert_eq!(write(&guest, id, 9, b"ld", true).await, Ok(11));
    let (chunks, _, end) = guest.follow(id, 0).await;
    assert_eq!(
        (text(&chunks).as_str(), end.exit_code, end.stdin_open, end.stdin_offset),
        ("hello world", Some(0), false, 11)
    );
    guest.close().await;
}

#[tokio::test]
async fn a_poll_waits_for_the_first_byte_only() {
    let guest = Guest::start().await;
    let process = guest.spawn(Spawn { stdin_pipe: true, ..spawn(argv(&["cat"])) }).await;
    let id = &process.id;
    let (none, _, _) = parts(guest.ask(poll(id, 0, 0)).await.unwrap());
    assert!(none.is_empty());
    let mut waiting = guest.open(poll(id, 0, WAIT.as_millis() as u64)).await;
    write(&guest, id, 0, b"x", false).await.unwrap();
    let (chunks, _, now) = parts(collect(&mut waiting).await.unwrap());
    assert_eq!((text(&chunks).as_str(), now.exit_code), ("x", None));
    assert_eq!(guest.ask(poll(id, 99, 0)).await.unwrap_err().code, ErrorCode::Invalid as i32);
    guest.signal(id, 15).await;
    let end = guest.until(id, |process| process.exit_code.is_some()).await;
    assert_eq!((end.state, end.exit_code), (ProcessState::Exited as i32, Some(-15)));
    guest.close().await;
}

#[tokio::test]
async fn signals_reach_the_whole_tree_and_leftovers() {
    let guest = Guest::start().await;
    let mark = mark(4101);
    let line = format!("setsid sleep {mark} & (sleep {mark} & sleep {mark}); wait");
    let process = guest.spawn(spawn(shell(&line))).await;
    while processes_with(&format!("sleep\0{mark}")).len() < 3 {
        tokio::task::yield_now().await;
    }
    guest.signal(&process.id, 9).await;
    let end = guest.until(&process.id, |process| process.exit_code.is_some()).await;
    assert_eq!((end.state, end.exit_code), (ProcessState::Killed as i32, Some(-9)));
    // Killed is not yet collected: the leader's end is told first.
    gone(&mark).await;

    // A leader that ends leaves what it started; the process has ended, and what it left can still be ended.
    let process = guest.spawn(spawn(shell(&format!("sleep {mark} & echo started")))).await;
    let (chunks, _, end) = guest.follow(&process.id, 0).await;
    assert_eq!((text(&chunks).as_str(), end.exit_code, end.leftovers), ("started\n", Some(0), 1));
    guest.signal(&process.id, 15).await;
    guest.until(&process.id, |process| process.leftovers == 0).await;
    assert_eq!(processes_with(&mark), Vec::<i32>::new());
    guest.close().await;
}

#[tokio::test]
async fn a_timeout_ends_a_spawned_tree() {
    let guest = Guest::start().await;
    let process = guest.spawn(spawn(Command { timeout_ms: 200, ..shell("sleep 4102 & sleep 4102") })).await;
    let (_, _, end) = guest.follow(&process.id, 0).await;
    assert_eq!((end.state, end.exit_code, end.leftovers), (ProcessState::TimedOut as i32, Some(-9), 0));
    guest.close().await;
}

#[tokio::test]
async fn hosts_come_and_go_in_a_flood_and_every_byte_is_had_once() {
    let mut guest = Guest::start().await;
    let total = 40_000_000_u64;
    let line = format!("seq -w 1 10000000 | head -c {total}; cat | wc -c >&2");
    let process = guest.spawn(Spawn { stdin_pipe: true, ..spawn(shell(&line)) }).await;
    let id = process.id.clone();
    let expected = tokio::task::spawn_blocking(move || {
        let line = format!("seq -w 1 10000000 | head -c {total}");
        std::process::Command::new("bash").args(["-c", &line]).output().unwrap().stdout
    });
    let mut got: Vec<u8> = Vec::new();
    let mut written = 0_u64;
    let input = vec![b'i'; 100_000];
    for round in 0..12 {
        let mut stream = guest.open(follow(&id, got.len() as u64)).await;
        // Input on its way in the other direction when the host goes.
        let offset = written;
        let ask = WriteStdin { process_id: id.clone(), offset, eof: false, append: false };
        let feed = guest.open(Ask::WriteStdin(ask)).await;
        send_input(&feed.sender(), &input).await;
        if round % 2 == 0 {
            feed.finish().await.unwrap();
        }
        let until = got.len() + 2_500_000;
        while got.len() < until {
            match next(&mut stream).await.unwrap() {
                Some(Tell::Chunk(chunk)) => {
                    assert_eq!(chunk.offset, got.len() as u64);
                    got.extend_from_slice(&chunk.data);
                }
                other => panic!("{other:?}"),
            }
        }
        guest = guest.reattach().await;
        // Some of it was taken or none: sending from the same offset is right either way.
        written = written.max(guest.get(&id).await.unwrap().stdin_offset);
    }
    written = write(&guest, &id, written, b"", true).await.unwrap();
    let (chunks, lost, end) = guest.follow(&id, got.len() as u64).await;
    assert_eq!((lost, end.exit_code), (0, Some(0)));
    for chunk in chunks.iter().filter(|chunk| chunk.stream == Output::Stdout as i32) {
        got.extend_from_slice(&chunk.data);
    }
    let errors: Vec<_> = chunks.iter().filter(|chunk| chunk.stream == Output::Stderr as i32).cloned().collect();
    assert_eq!(text(&errors).trim(), written.to_string());
    assert!(got == expected.await.unwrap(), "the bytes differ");
    guest.close().await;
}

#[tokio::test]
async fn ended_processes_are_kept_for_a_while() {
    let guest = Guest::start().await;
    for n in 0..40 {
        guest.sh(&format!("echo {n}")).await;
    }
    let listed = guest.ask(Ask::ListProcesses(Default::default())).await.unwrap();
    assert_eq!(listed.len(), 16);
    let Some(Tell::Process(last)) = listed.last() else { panic!("{listed:?}") };
    assert_eq!(last.command, "bash -c echo 39");
    guest.close().await;
}

#[tokio::test]
async fn a_first_reader_has_time_to_come() {
    let guest = Guest::start().await;
    let process = guest.spawn(spawn(shell("head -c 3000000 /dev/zero; echo end"))).await;
    // It waits on its full pipe until somebody reads.
    let full = guest.until(&process.id, |process| process.output_bytes > RETAINED_OUTPUT as u64 - 65_536).await;
    assert!(full.exit_code.is_none() && full.first_offset == 0, "{full:?}");
    let (chunks, lost, end) = guest.follow(&process.id, 0).await;
    assert_eq!((lost, end.exit_code), (0, Some(0)));
    assert_eq!(chunks.iter().map(|chunk| chunk.data.len()).sum::<usize>(), 3_000_004);
    guest.close().await;
}

/// Runners wait for their commands and for the agent: neither hides the other.
#[tokio::test]
async fn commands_end_with_an_agent_that_was_killed() {
    let mut guest = Guest::start().await;
    let marks = [mark(86_401), mark(86_402), mark(86_403)];
    let leader = guest.spawn(spawn(shell(&format!("sleep {} & exec sleep {}", marks[0], marks[1])))).await;
    let left = guest.spawn(spawn(shell(&format!("sleep {} &", marks[2])))).await;
    guest.until(&left.id, |process| process.state == ProcessState::Exited as i32).await;
    let started = async {
        while marks.iter().any(|mark| processes_with(mark).is_empty()) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(WAIT, started).await.expect("all three run");
    assert!(alive(leader.pid));
    guest.child.kill().await.unwrap();
    for mark in &marks {
        gone(mark).await;
    }
}
