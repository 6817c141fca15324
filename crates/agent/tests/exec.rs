//! Exec: results, limits, and that nothing an exec started outlives it.

mod common;

use common::*;
use runtime_proto::guest::{Ask, Command, ErrorCode, Exec, ProcessState, Tell};

fn code(done: &runtime_proto::guest::ExecDone) -> Option<i32> {
    done.process.as_ref().unwrap().exit_code
}

#[tokio::test]
async fn results_are_what_a_shell_would_say() {
    let guest = Guest::start().await;
    for (line, expected, out, err) in [
        ("echo hi", 0, "hi\n", ""),
        ("echo no >&2; exit 3", 3, "", "no\n"),
        ("kill -9 $$", -9, "", ""),
        ("kill -15 $$", -15, "", ""),
        ("cat; id -u; echo $HOME $USER $LANG", 0, "0\n/root root C.UTF-8\n", ""),
        ("pwd", 0, "/\n", ""),
    ] {
        let done = guest.exec(shell(line)).await.unwrap();
        assert_eq!(
            (code(&done), &done.stdout[..], &done.stderr[..]),
            (Some(expected), out.as_bytes(), err.as_bytes()),
            "{line}"
        );
    }
    let missing = guest.exec(argv(&["no-such-program"])).await.unwrap();
    assert_eq!((code(&missing), &missing.stderr[..]), (Some(127), &b"no-such-program: command not found\n"[..]));
    let refused = guest.exec(argv(&["/etc/passwd"])).await.unwrap();
    assert_eq!(code(&refused), Some(126));
    let nowhere = guest.exec(Command { cwd: "/no/where".into(), ..argv(&["true"]) }).await.unwrap_err();
    assert_eq!(nowhere.code, ErrorCode::CwdNotFound as i32);
    let relative = guest.exec(Command { cwd: "here".into(), ..argv(&["true"]) }).await.unwrap_err();
    assert_eq!(relative.code, ErrorCode::Invalid as i32);
    guest.close().await;
}

#[tokio::test]
async fn the_sandbox_user_is_dropped_to_and_limited() {
    let guest = Guest::start().await;
    let line = "id -u; id -g; echo $HOME:$USER; ulimit -u; echo x > /dev/stderr; grep CapEff /proc/self/status";
    let done = guest.exec(Command { user: 0, ..shell(line) }).await.unwrap();
    let out = String::from_utf8_lossy(&done.stdout);
    assert_eq!(out, "1000\n1000\n/workspace:runtime\n1024\nCapEff:\t0000000000000000\n");
    assert_eq!(&done.stderr[..], b"x\n");
    guest.close().await;
}

#[tokio::test]
async fn input_is_given_and_long_output_keeps_its_head() {
    let guest = Guest::start().await;
    let input = vec![b'x'; 700_000];
    let done = guest.exec_with(shell("wc -c"), Some(&input)).await.unwrap();
    assert_eq!(&done.stdout[..], b"700000\n");
    let ignored = guest.exec_with(shell("exec 0<&-; echo done"), Some(&input)).await.unwrap();
    assert_eq!(&ignored.stdout[..], b"done\n");
    let long = guest.exec(shell("seq 1 1000000; seq 5 >&2")).await.unwrap();
    assert!(long.stdout_truncated && !long.stderr_truncated);
    assert_eq!(
        (long.stdout.len(), &long.stdout[..4], &long.stderr[..]),
        (65536, &b"1\n2\n"[..], &b"1\n2\n3\n4\n5\n"[..])
    );
    let both = guest.exec(shell("head -c 60000 /dev/zero; head -c 60000 /dev/zero >&2")).await.unwrap();
    assert_eq!((both.stdout.len(), both.stderr.len(), both.stdout_truncated), (60000, 60000, false));
    guest.close().await;
}

#[tokio::test]
async fn everything_an_exec_started_dies_with_it() {
    let guest = Guest::start().await;
    for (n, line) in [
        "sleep 4001.N &",
        "nohup sleep 4001.N >/dev/null 2>&1 &",
        "setsid sleep 4001.N &",
        "(setsid sh -c 'sleep 4001.N & sleep 4001.N' &) ; exit 0",
        "env -i setsid sh -c '(sleep 4001.N &)' &",
        "python3 -c 'import os\nif os.fork()==0:\n os.setsid()\n if os.fork()==0:\n  os.execvp(\"sleep\",[\"sleep\",\"4001.N\"])\n os._exit(0)\nos.wait()'",
        "trap '' TERM HUP INT; sleep 4001.N & disown; kill -STOP $!",
        "for i in $(seq 50); do setsid sleep 4001.N & done",
    ]
    .iter()
    .enumerate()
    {
        let mark = mark(4010 + n as u32);
        // Waited for are the dead, never the sleepers' hour.
        let done = guest.exec(shell(&line.replace("4001.N", &mark))).await.unwrap();
        assert_eq!(code(&done), Some(0), "{line}");
        gone(&mark).await;
    }
    guest.close().await;
}

#[tokio::test]
async fn a_timeout_kills_the_tree_and_tells_the_output_so_far() {
    let guest = Guest::start().await;
    let mark = mark(4002);
    let line = format!("echo before; setsid sleep {mark} & sleep {mark}");
    in_enough_time(async |timeout_ms| {
        let done = guest.exec(Command { timeout_ms, ..shell(&line) }).await.unwrap();
        let process = done.process.unwrap();
        assert_eq!((process.state, process.exit_code), (ProcessState::TimedOut as i32, Some(-9)));
        gone(&mark).await;
        (&done.stdout[..] == b"before\n").then_some(())
    })
    .await;
    guest.close().await;
}

#[tokio::test]
async fn two_hundred_at_once() {
    let guest = std::sync::Arc::new(Guest::start().await);
    let tasks: Vec<_> = (0..200)
        .map(|n| {
            let guest = guest.clone();
            tokio::spawn(async move {
                let done = guest.exec(shell(&format!("echo {n}; sleep 0.2; exit {}", n % 50))).await.unwrap();
                assert_eq!(code(&done), Some(n % 50));
                assert_eq!(done.stdout, format!("{n}\n"));
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    std::sync::Arc::try_unwrap(guest).ok().unwrap().close().await;
}

#[tokio::test]
async fn a_key_runs_once_however_often_it_is_sent() {
    let guest = Guest::start().await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("runs");
    let line = format!("echo run >> {}; read line; echo got $line", file.display());
    let keyed = Command { key: "k1".into(), ..shell(&line) };
    // The first sends half of its input and goes away with its host; the second sends all of it again.
    let first = guest.open(Ask::Exec(Exec { command: Some(keyed.clone()), head_limit: 100, has_stdin: true })).await;
    send_input(&first.sender(), b"hel").await;
    let listed = async {
        loop {
            let events = guest.ask(Ask::ListProcesses(Default::default())).await.unwrap();
            if events.iter().any(|event| matches!(event, Tell::Process(process) if process.stdin_offset == 3)) {
                break;
            }
        }
    };
    tokio::time::timeout(WAIT, listed).await.unwrap();
    let guest = guest.reattach().await;
    let done = guest.exec_with(keyed.clone(), Some(b"hello\n")).await.unwrap();
    assert_eq!(&done.stdout[..], b"got hello\n");
    assert!(done.process.unwrap().attached);
    let again = guest.exec_with(keyed, Some(b"hello\n")).await.unwrap();
    assert_eq!(&again.stdout[..], b"got hello\n");
    assert_eq!(std::fs::read_to_string(file).unwrap(), "run\n");
    guest.close().await;
}

#[tokio::test]
async fn a_command_that_kills_its_runner_still_ends_truly() {
    let guest = Guest::start().await;
    let mark = mark(4003);
    for (line, expected) in [("kill -9 $PPID; sleep 0.1; exit 7", Some(7)), ("kill -9 $PPID; kill -15 $$", Some(-15))] {
        let line = format!("setsid sleep {mark} & {line}");
        let done = guest.exec(shell(&line)).await.unwrap();
        assert_eq!(code(&done), expected, "{line}");
    }
    assert_eq!(guest.sh("echo alive").await, "alive\n");
    gone(&mark).await;
    guest.close().await;
}

#[tokio::test]
async fn a_line_longer_than_one_argument_runs_as_it_stands() {
    let guest = Guest::start().await;
    for length in [128 * 1024 - 1, 128 * 1024, 300_000, 1_000_000] {
        let start = "printf '%s %s\\n' $# \"$0\"; x='é"; // Two bytes, so that a cut falls within a character.
        let end = "'; echo ${#x}; exit 7";
        let line = format!("{start}{}{end}", "é".repeat((length - start.len() - end.len()) / 2));
        let done = guest.exec(shell(&line)).await.unwrap();
        let said = String::from_utf8(done.stdout.to_vec()).unwrap();
        assert!(said.starts_with("0 bash\n"), "{length}: {said:?}");
        assert_eq!(done.process.unwrap().exit_code, Some(7), "{length}");
    }
    guest.close().await;
}
