//! What callers see when channels break, guests lie and clients are slow.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use runtime_proto::channel::WINDOW;
use runtime_proto::guest::{
    Ask, Command, ErrorCode, Exec, ExecDone, GuestError, Output, ProcessState as S, Spawn, Tell,
};
use serde_json::{Value, json};

use super::gateway::Guest;
use super::scripted::{Agent, Scripted, guest, process, script};
use super::stream::{Follower, SLICE};
use crate::error::Kind;

fn exec(key: &str, head_limit: u64, has_stdin: bool) -> Exec {
    Exec { command: Some(Command { key: key.to_owned(), ..Command::default() }), head_limit, has_stdin }
}

fn done(stdout: &[u8]) -> Tell {
    Tell::ExecDone(ExecDone {
        process: Some(process(S::Exited, Some(0))),
        stdout: stdout.to_vec().into(),
        ..ExecDone::default()
    })
}

async fn answer(agent: Agent, tell: Tell) {
    agent.tell(tell).await;
    agent.end().await;
}

#[tokio::test]
async fn a_command_whose_channel_breaks_is_found_by_its_key() {
    let node = Scripted::new(vec![
        script(|agent| async move {
            agent.chunk(Output::Stdout, 0, b"half").await;
            agent.cut().await;
        }),
        script(|agent| answer(agent, done(b"whole"))),
    ]);
    let ran = guest(&node).exec(exec("k", 100, false), None).await.unwrap();
    assert_eq!(ran.stdout, b"whole");
    let keys: Vec<String> = node
        .asked()
        .into_iter()
        .map(|ask| match ask {
            Ask::Exec(exec) => exec.command.unwrap().key,
            _ => panic!("asked something else"),
        })
        .collect();
    assert_eq!(keys, ["k", "k"]);
}

#[tokio::test]
async fn a_channel_that_stays_broken_is_told() {
    let node = Scripted::new(vec![script(Agent::cut)]);
    let error = guest(&node).exec(exec("k", 100, false), None).await.err().expect("no answer");
    assert_eq!(error.kind(), Kind::HostUnavailable);
    assert_eq!(node.asked().len(), 2);
}

#[tokio::test]
async fn a_guest_that_sends_more_than_the_head_is_cut() {
    let node = Scripted::new(vec![script(|agent| async move {
        for n in 0..64 {
            agent.chunk(Output::Stdout, n, &[b'x'; 40_000]).await;
        }
        answer(agent, done(b"y")).await;
    })]);
    let ran = guest(&node).exec(exec("k", 65_536, false), None).await.unwrap();
    assert_eq!((ran.stdout.len(), ran.stderr.len()), (65_536, 0));
}

#[tokio::test]
async fn a_trace_is_asked_again_and_one_that_is_lost_says_so() {
    use runtime_proto::guest::Traced;
    let told = |path: &str| Tell::Traced(Traced { read: vec![path.to_owned()], ..Traced::default() });
    let traced = runtime_proto::guest::Process { traced: true, ..process(S::Exited, Some(0)) };
    let node = Scripted::new(vec![
        script(move |agent| async move {
            agent.tell(told("/b")).await;
            agent.cut().await;
        }),
        script(move |agent| async move {
            agent.tell(told("/b")).await;
            agent.tell(told("/a")).await;
            answer(agent, Tell::Done(runtime_proto::guest::Nothing {})).await;
        }),
    ]);
    let files = guest(&node).files_of(&traced).await.expect("it is traced");
    assert_eq!((files.read, files.truncated), (vec!["/a".to_owned(), "/b".to_owned()], false));
    assert_eq!(guest(&node).files_of(&process(S::Exited, Some(0))).await, None);
    let lost = Scripted::new(vec![script(|agent| {
        agent.refuse(GuestError::new(ErrorCode::NoSuchProcess, "there is no process p"))
    })]);
    let files = guest(&lost).files_of(&traced).await.expect("it is traced");
    assert!(files.truncated && files.read.is_empty());
}

#[tokio::test]
async fn an_agent_that_cannot_trace_runs_nothing() {
    let refuse = |code| script(move |agent: Agent| agent.refuse(GuestError::new(code, "why")));
    let old = Scripted::new(vec![refuse(ErrorCode::Unsupported)]);
    let error = guest(&old).can_trace().await.expect_err("it cannot");
    assert_eq!((error.status(), error.kind()), (409, Kind::GuestUpgradeRequired));
    assert_eq!(old.asked().len(), 1);
}

#[tokio::test]
async fn a_command_that_reads_no_input_is_not_waited_for() {
    let node = Scripted::new(vec![script(|agent| answer(agent, done(b"")))]);
    let ran = guest(&node).exec(exec("k", 100, true), Some(Bytes::from(vec![1; 1 << 20]))).await.unwrap();
    assert_eq!(ran.process.id, "p");
}

#[tokio::test]
async fn input_reaches_a_command_whole() {
    let node = Scripted::new(vec![script(|mut agent| async move {
        let input = agent.input().await;
        answer(agent, done(&input[input.len() - 3..])).await;
    })]);
    let mut input = vec![1; 1 << 20];
    input.extend(b"end");
    let ran = guest(&node).exec(exec("k", 100, true), Some(input.into())).await.unwrap();
    assert_eq!(ran.stdout, b"end");
}

#[tokio::test(start_paused = true)]
async fn a_process_gets_its_input_over_a_broken_channel() {
    let (got, mut input) = tokio::sync::mpsc::channel(1);
    let node = Scripted::new(vec![
        script(|mut agent| async move {
            agent.tell(Tell::Process(process(S::Running, None))).await;
            agent.stream.recv().await.unwrap();
            agent.cut().await;
        }),
        script(|mut agent| async move {
            agent.tell(Tell::Process(process(S::Running, None))).await;
            got.send(agent.input().await).await.unwrap();
            answer(agent, Tell::Process(process(S::Exited, Some(0)))).await;
        }),
    ]);
    let spawn = Spawn { has_stdin: true, ..Spawn::default() };
    guest(&node).spawn(spawn, Some(Bytes::from(vec![7; 600_000]))).await.unwrap();
    assert_eq!(input.recv().await.map(|input| input.len()), Some(600_000));
}

/// Everything a reader is told, blank lines left out.
async fn events(follower: Follower) -> Vec<Value> {
    let lines: Vec<Bytes> = follower.into_stream().map(|lines| lines.unwrap()).collect().await;
    let text = String::from_utf8(lines.concat()).unwrap();
    assert!(text.ends_with('\n'));
    text.lines().filter(|line| !line.is_empty()).map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn follow(guest: Guest) -> Follower {
    Follower::new(guest, "p".to_owned(), "req_1".to_owned(), 0, false)
}

#[tokio::test(start_paused = true)]
async fn a_reader_goes_on_after_a_broken_channel_without_a_hole() {
    let node = Scripted::new(vec![
        script(|agent| async move {
            agent.chunk(Output::Stdout, 0, b"a\xe2\x82").await;
            agent.cut().await;
        }),
        script(|agent| async move {
            agent.chunk(Output::Stdout, 1, "€b".as_bytes()).await;
            answer(agent, Tell::Process(process(S::Exited, Some(3)))).await;
        }),
    ]);
    let told = events(follow(guest(&node))).await;
    assert_eq!(
        told,
        [
            json!({"type": "stdout", "data": "a", "offset": 0}),
            json!({"type": "stdout", "data": "€b", "offset": 1}),
            json!({"type": "exit", "exitCode": 3, "state": "exited", "timedOut": false, "durationMs": 0}),
        ]
    );
    let cursors: Vec<u64> = node
        .asked()
        .into_iter()
        .map(|ask| match ask {
            Ask::Follow(follow) => follow.cursor,
            _ => panic!("asked something else"),
        })
        .collect();
    assert_eq!(cursors, [0, 1]);
}

#[tokio::test(start_paused = true)]
async fn a_quiet_slice_has_heartbeats_and_ends_with_continue() {
    let node = Scripted::new(vec![script(|mut agent| async move {
        agent.chunk(Output::Stderr, 0, b"x\xc3").await;
        assert!(agent.stream.recv().await.is_err());
    })]);
    let began = tokio::time::Instant::now();
    let lines: Vec<Bytes> = follow(guest(&node)).slice(SLICE).into_stream().map(|lines| lines.unwrap()).collect().await;
    assert_eq!(began.elapsed().as_secs(), SLICE.as_secs());
    assert!(lines.iter().filter(|lines| &lines[..] == b"\n").count() >= 5);
    let last: Value = serde_json::from_slice(lines.last().unwrap()).unwrap();
    // The half character was not handed out, so the next reader begins with it.
    assert_eq!(last, json!({"type": "continue", "processId": "p", "cursor": 1}));
}

#[tokio::test(start_paused = true)]
async fn a_slice_ends_in_the_middle_of_busy_output_too() {
    let node = Scripted::new(vec![script(|agent| async move {
        let mut offset = 0;
        while agent.chunk(Output::Stdout, offset, b"busy").await {
            offset += 4;
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    })]);
    let told = events(follow(guest(&node)).slice(Duration::from_secs(10))).await;
    let last = told.last().unwrap();
    assert_eq!(last["type"], "continue");
    assert_eq!(last["cursor"].as_u64(), Some(4 * (told.len() as u64 - 1)));
}

#[tokio::test(start_paused = true)]
async fn an_unreachable_sandbox_is_an_error_that_may_be_followed_again() {
    let node = Scripted::new(vec![script(|agent| async move {
        agent.chunk(Output::Stdout, 0, b"abc").await;
        agent.cut().await;
    })]);
    let told = events(follow(guest(&node))).await;
    let last = told.last().unwrap();
    assert_eq!((&last["type"], &last["cursor"]), (&json!("error"), &json!(3)));
    assert_eq!((&last["error"]["status"], &last["error"]["code"]), (&json!(503), &json!("host_unavailable")));
    assert_eq!(last["error"]["requestId"], "req_1");
}

#[tokio::test]
async fn a_process_that_is_gone_ends_the_reading_for_good() {
    let node = Scripted::new(vec![script(|agent| {
        agent.refuse(GuestError::new(ErrorCode::NoSuchProcess, "there is no process p"))
    })]);
    let told = events(follow(guest(&node))).await;
    assert_eq!(told.len(), 1);
    assert_eq!((&told[0]["error"]["status"], &told[0]["error"]["code"]), (&json!(404), &json!("not_found")));
}

#[tokio::test]
async fn a_held_half_character_comes_out_at_the_exit() {
    let node = Scripted::new(vec![script(|agent| async move {
        agent.chunk(Output::Stdout, 0, b"\xf0\x9f").await;
        let mut last = process(S::Killed, Some(-9));
        last.oom_kills = 1;
        answer(agent, Tell::Process(last)).await;
    })]);
    let told = events(follow(guest(&node))).await;
    assert_eq!(told[0], json!({"type": "stdout", "data": "\u{fffd}", "offset": 0, "base64": "8J8="}));
    assert_eq!((&told[1]["exitCode"], &told[1]["state"]), (&json!(-9), &json!("killed")));
    assert_eq!(told[1]["outOfMemory"]["memoryMiB"], 4096);
}

#[tokio::test(start_paused = true)]
async fn a_slow_client_holds_the_guest_up_and_costs_no_memory() {
    let sent = Arc::new(AtomicUsize::new(0));
    let counted = sent.clone();
    let node = Scripted::new(vec![script(move |agent| async move {
        let mut offset = 0;
        while agent.chunk(Output::Stdout, offset, &[b'x'; 1000]).await {
            offset += 1000;
            counted.fetch_add(1000, Ordering::Relaxed);
        }
    })]);
    let mut lines = Box::pin(follow(guest(&node)).into_stream());
    assert!(lines.next().await.is_some());
    // Time moves only when nothing else can: after it, the guest is held up.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let held = sent.load(Ordering::Relaxed);
    assert!(held <= WINDOW + 64 * 1024, "{held} bytes were taken from the guest");
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(sent.load(Ordering::Relaxed), held);
    for _ in 0..500 {
        assert!(lines.next().await.is_some());
    }
    assert!(sent.load(Ordering::Relaxed) > held);
}

#[tokio::test(start_paused = true)]
async fn a_reader_is_sent_on_at_once_when_the_server_stops() {
    let node = Scripted::new(vec![script(|agent| async move {
        agent.chunk(Output::Stdout, 0, b"a").await;
        // It goes on for ever, and says nothing.
        std::future::pending::<()>().await;
    })]);
    let stopping = tokio_util::sync::CancellationToken::new();
    let mut told = Box::pin(follow(guest(&node)).until(stopping.clone()).into_stream());
    let first = told.next().await.unwrap().unwrap();
    assert!(first.starts_with(br#"{"type":"stdout""#), "{first:?}");
    let began = tokio::time::Instant::now();
    stopping.cancel();
    let last = told.next().await.unwrap().unwrap();
    let last: Value = serde_json::from_slice(&last).unwrap();
    assert_eq!(last, serde_json::json!({"type": "continue", "processId": "p", "cursor": 1}));
    assert!(told.next().await.is_none());
    assert_eq!(began.elapsed(), std::time::Duration::ZERO);
}
