//! Commands in sandboxes: output, ends, cuts, signals.

use std::io::Read;
use std::process::Stdio;

use base64::Engine;
use serde_json::{Value, json};

use crate::player::{Answer, Player};
use crate::process::{end, ran, ran_with_input, start};
use crate::sandboxes::{ID, sandbox};

fn begin() -> Value {
    json!({"type": "start", "processId": "p1"})
}

fn out(offset: usize, data: &str) -> Value {
    json!({"type": "stdout", "data": data, "offset": offset})
}

fn exit(code: Value) -> Value {
    json!({"type": "exit", "exitCode": code, "state": "exited", "timedOut": false, "durationMs": 3})
}

fn exec_of(answer: impl Fn() -> Answer + Send + Sync + 'static) -> Player {
    Player::start(move |_, _| answer())
}

#[test]
fn output_goes_where_it_belongs_and_the_code_is_the_commands() {
    let player = exec_of(|| {
        let raw = base64::engine::general_purpose::STANDARD.encode([0xff, b'\n']);
        Answer::events(&[
            begin(),
            out(0, "a\n"),
            json!({"type": "stderr", "data": "b\n", "offset": 2}),
            json!({"type": "stdout", "data": "\u{fffd}\n", "base64": raw, "offset": 4}),
            json!({"type": "something new"}),
            exit(json!(3)),
        ])
    });
    let mut child =
        start(&player, &["sandboxes", "exec", ID, "--cwd", "/x", "--env", "A=1", "--", "ls", "-la"], Stdio::null());
    let mut bytes = Vec::new();
    child.stdout.take().expect("a pipe").read_to_end(&mut bytes).expect("output");
    assert!(bytes.ends_with(b"a\n\xff\n"), "{bytes:?}");
    let output = child.wait_with_output().expect("the end");
    assert_eq!((output.status.code(), output.stderr), (Some(3), b"b\n".to_vec()));
    let asked = player.asked();
    assert_eq!(asked[0].what, format!("POST /v1/sandboxes/{ID}:exec"));
    assert_eq!(asked[0].header("accept"), "application/x-ndjson");
    assert_eq!(
        asked[0].body,
        json!({"argv": ["ls", "-la"], "cwd": "/x", "env": {"A": "1"}, "timeoutMs": 86_400_000, "stream": true})
    );
}

#[test]
fn every_end_has_its_code() {
    for (event, code) in [
        (exit(json!(0)), 0),
        (exit(json!(-9)), 137),
        (exit(Value::Null), 1),
        (json!({"type": "exit", "exitCode": -9, "state": "timed_out", "timedOut": true}), 124),
    ] {
        let player = exec_of(move || Answer::events(&[begin(), event.clone()]));
        assert_eq!(ran(&player, &["sandboxes", "exec", ID, "true"]).code, code);
    }
}

#[test]
fn a_cut_output_is_taken_up_at_the_byte_that_came_last() {
    let player = Player::start(|asked, before| match before {
        0 => Answer::events(&[begin(), out(0, "one ")]).then_cut(),
        1 => {
            assert_eq!(asked.what, format!("GET /v1/sandboxes/{ID}/processes/p1/output?cursor=4&follow=true"));
            // A piece that came already, then a slice that ends on purpose.
            Answer::events(&[out(2, "e two "), json!({"type": "continue", "processId": "p1", "cursor": 8})])
        }
        2 => Answer::refusal(503, "host_unavailable"),
        3 => Answer::events(&[
            json!({"type": "error", "error": {"code": "x", "message": "y", "status": 502}, "cursor": 8}),
        ]),
        _ => Answer::events(&[out(8, "three"), exit(json!(0))]),
    });
    let ran = ran(&player, &["sandboxes", "exec", ID, "true"]);
    assert_eq!((ran.code, ran.out.as_str(), ran.err.as_str()), (0, "one two three", ""));
    assert!(player.whats()[2..].iter().all(|what| what.ends_with("cursor=8&follow=true")), "{:?}", player.whats());
}

#[test]
fn lost_output_is_said_and_is_not_a_success() {
    let player = exec_of(|| {
        Answer::events(&[
            begin(),
            out(10, "late"),
            json!({"type": "truncated", "droppedBytes": 5, "resumeAt": 19}),
            exit(json!(0)),
        ])
    });
    let ran = ran(&player, &["sandboxes", "exec", ID, "true"]);
    assert_eq!((ran.code, ran.out.as_str()), (1, "late"));
    assert_eq!(ran.err, "15 bytes of output were lost.\n");
}

#[test]
fn a_server_that_only_hangs_up_is_given_up() {
    let player = Player::start(|_, before| if before == 0 { Answer::events(&[begin()]) } else { Answer::events(&[]) });
    let gone = ran(&player, &["sandboxes", "exec", ID, "true"]);
    assert_eq!(gone.code, 1);
    assert!(gone.err.contains("Error [connection_error]"), "{}", gone.err);
    assert_eq!(player.asked().len(), 5);
    let early = exec_of(|| Answer::events(&[]));
    assert!(ran(&early, &["sandboxes", "exec", ID, "true"]).err.contains("before the command started"));
}

#[test]
fn a_fatal_word_in_the_stream_ends_it() {
    let player = exec_of(|| {
        let error = json!({"code": "not_found", "message": "gone", "status": 404, "requestId": "req_9"});
        Answer::events(&[begin(), json!({"type": "error", "error": error, "cursor": 0})])
    });
    let ran = ran(&player, &["sandboxes", "exec", ID, "true"]);
    assert_eq!((ran.code, ran.err.as_str()), (1, "Error [not_found]: gone\nRequest: req_9\n"));
}

#[test]
fn json_is_one_result() {
    let player = exec_of(|| Answer::events(&[begin(), out(0, &"x".repeat(70_000)), exit(json!(7))]));
    let ran = ran(&player, &["sandboxes", "exec", ID, "--json", "make test"]);
    assert_eq!(ran.code, 7);
    let result: Value = serde_json::from_str(&ran.out).expect("one JSON value");
    assert_eq!(result["stdout"].as_str().map(str::len), Some(65_536));
    assert_eq!((&result["stdoutTruncated"], &result["stderrTruncated"]), (&json!(true), &json!(false)));
    assert_eq!(
        (&result["exitCode"], &result["processId"], &result["durationMs"]),
        (&json!(7), &json!("p1"), &json!(3))
    );
    assert_eq!(player.asked()[0].body, json!({"command": "make test", "stream": true}));
}

#[test]
fn what_is_piped_in_is_the_input() {
    let player = exec_of(|| Answer::events(&[begin(), exit(json!(0))]));
    assert_eq!(ran_with_input(&player, &["sandboxes", "exec", ID, "cat"], b"hello\n").code, 0);
    assert_eq!(player.asked()[0].body["stdin"], "hello\n");
    for byte in [b'x', 0xff] {
        let large = vec![byte; 1024 * 1024 + 1];
        let refused = ran_with_input(&player, &["sandboxes", "exec", ID, "cat"], &large);
        assert_eq!(refused.code, 1);
        assert!(refused.err.contains("larger than 1 MiB") && refused.err.contains("cp"), "{}", refused.err);
    }
    assert_eq!(player.asked().len(), 1, "nothing was sent");
    for (before, bytes) in [vec![0xff; 1024 * 1024], vec![0; 1024 * 1024]].into_iter().enumerate() {
        let taken = ran_with_input(&player, &["sandboxes", "exec", ID, "cat"], &bytes);
        assert_eq!(taken.code, 0, "{}", taken.err);
        let sent = player.asked()[before + 1].body["stdinBase64"].as_str().expect("base64").to_owned();
        assert_eq!(base64::engine::general_purpose::STANDARD.decode(sent).expect("base64"), bytes);
    }
}

fn interrupt(child: &std::process::Child) {
    let pid = rustix::process::Pid::from_child(child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("a signal");
}

#[test]
fn an_interrupt_goes_to_the_command_first() {
    let player = Player::start(|asked, _| {
        if asked.what.ends_with(":signal") {
            Answer::json(200, &json!({}))
        } else {
            Answer::events(&[begin(), out(0, "go\n")]).then_hang()
        }
    });
    let mut child = start(&player, &["sandboxes", "exec", ID, "sleep 1000"], Stdio::null());
    // Its first output says that the program has read the start.
    let mut stdout = child.stdout.take().expect("a pipe");
    let mut seen = Vec::new();
    while !seen.ends_with(b"go\n") {
        let mut byte = [0];
        stdout.read_exact(&mut byte).expect("output");
        seen.push(byte[0]);
    }
    interrupt(&child);
    assert_eq!(child.wait().expect("the end").code(), Some(130));
    player.wait_for(&format!("POST /v1/sandboxes/{ID}/processes/p1:signal"));
    let asked = player.asked();
    assert_eq!(asked[1].what, format!("POST /v1/sandboxes/{ID}/processes/p1:signal"));
    assert_eq!(asked[1].body, json!({"signal": "SIGTERM"}));
}

fn run_player(exec: impl Fn() -> Answer + Send + Sync + 'static, reused: bool) -> Player {
    Player::start(move |asked, _| {
        let mut record = sandbox(ID, "running");
        if reused {
            record["reused"] = true.into();
        }
        if asked.what.ends_with(":exec") { exec() } else { Answer::json(200, &record) }
    })
}

#[test]
fn run_deletes_its_sandbox_whatever_happens() {
    let delete = format!("DELETE /v1/sandboxes/{ID}");
    let well = run_player(|| Answer::events(&[begin(), out(0, "hi\n"), exit(json!(4))]), false);
    let ran_well =
        ran(&well, &["sandboxes", "run", "--timeout", "9", "--cwd", "/tmp", "--memory", "512", "--", "echo", "hi"]);
    assert_eq!((ran_well.code, ran_well.out.as_str(), ran_well.err.as_str()), (4, "hi\n", ""));
    assert_eq!(
        well.whats(),
        ["POST /v1/sandboxes".to_owned(), format!("POST /v1/sandboxes/{ID}:exec"), delete.clone()]
    );
    let asked = well.asked();
    assert_eq!(asked[0].body, json!({"memoryMiB": 512}));
    assert_eq!(asked[1].body, json!({"argv": ["echo", "hi"], "cwd": "/tmp", "timeoutMs": 9000, "stream": true}));

    let refused = run_player(|| Answer::refusal(404, "cwd_not_found"), false);
    assert_eq!(ran(&refused, &["sandboxes", "run", "ls"]).code, 1);
    assert_eq!(refused.whats().last(), Some(&delete));
}

#[test]
fn run_stops_what_it_found_and_leaves_what_it_shall_keep() {
    let fine = || Answer::events(&[begin(), exit(json!(0))]);
    let found = run_player(fine, true);
    assert_eq!(ran(&found, &["sandboxes", "run", "--name", "worker", "--get-or-create", "ls"]).code, 0);
    assert_eq!(found.whats().last(), Some(&format!("POST /v1/sandboxes/{ID}:stop")));
    let kept = run_player(fine, false);
    for line in [&["sandboxes", "run", "--keep", "ls"][..], &["sandboxes", "run", "--keep", "--json", "ls"]] {
        let ran = ran(&kept, line);
        assert!(ran.err.contains(ID), "{line:?}: {}", ran.err);
        assert!(!line.contains(&"--json") || serde_json::from_str::<Value>(&ran.out).is_ok(), "{}", ran.out);
    }
    assert_eq!(kept.asked().len(), 4);
}

#[test]
fn a_run_that_cannot_clean_up_is_a_failure_that_names_the_sandbox() {
    let player = Player::start(|asked, _| {
        if asked.what.starts_with("DELETE") {
            Answer::refusal(500, "internal_error")
        } else if asked.what.ends_with(":exec") {
            Answer::events(&[begin(), exit(json!(0))])
        } else {
            Answer::json(200, &sandbox(ID, "running"))
        }
    });
    let ran = ran(&player, &["sandboxes", "run", "ls"]);
    assert_eq!(ran.code, 1);
    assert!(ran.err.contains(&format!("Sandbox {ID} was left behind")), "{}", ran.err);
}

#[test]
fn an_interrupted_run_takes_its_sandbox_away_even_while_it_starts() {
    let player = Player::start(|asked, _| {
        if asked.what.contains("waitFor") {
            Answer::bytes(200, " ").then_hang()
        } else {
            Answer::json(200, &sandbox(ID, if asked.what.starts_with("POST") { "starting" } else { "stopped" }))
        }
    });
    let child = start(&player, &["sandboxes", "run", "ls"], Stdio::null());
    player.wait_for(&format!("GET /v1/sandboxes/{ID}?waitFor=running&timeoutSeconds=60"));
    interrupt(&child);
    let ran = end(child);
    assert_eq!(ran.code, 130, "{}", ran.err);
    assert_eq!(player.whats().last(), Some(&format!("DELETE /v1/sandboxes/{ID}")));
}

#[test]
fn an_interrupt_during_the_create_waits_for_its_id() {
    // The answer is held until the interrupt has been seen.
    let (go, gate) = std::sync::mpsc::sync_channel::<()>(1);
    let gate = std::sync::Mutex::new(gate);
    let player = Player::start(move |asked, _| {
        if asked.what == "POST /v1/sandboxes" {
            tokio::task::block_in_place(|| gate.lock().expect("no panic").recv()).expect("the word");
        }
        Answer::json(200, &sandbox(ID, "starting"))
    });
    let mut child = start(&player, &["sandboxes", "run", "ls"], Stdio::null());
    player.wait_for("POST /v1/sandboxes");
    interrupt(&child);
    let mut said = std::io::BufReader::new(child.stderr.take().expect("a pipe"));
    let mut line = String::new();
    std::io::BufRead::read_line(&mut said, &mut line).expect("a line");
    assert!(line.contains("Ctrl-C again does not wait"), "{line}");
    go.send(()).expect("the player");
    assert_eq!(child.wait().expect("the end").code(), Some(130));
    assert_eq!(player.whats().last(), Some(&format!("DELETE /v1/sandboxes/{ID}")));
}
