//! Traced commands: what is told, that nothing else of them changes, and what a guest can do about it.

mod common;

use common::*;
use runtime_proto::guest::{
    Ask, Command, ErrorCode, GuestError, Nothing, ProcessRef, ProcessState, Spawn, Tell, Traced,
};

fn traced(line: &str) -> Command {
    Command { trace_files: true, ..shell(line) }
}

async fn files(guest: &Guest, id: &str) -> Result<Traced, GuestError> {
    let mut all = Traced::default();
    for told in guest.ask(Ask::GetTraced(ProcessRef { process_id: id.into() })).await? {
        match told {
            Tell::Traced(some) => {
                all.read.extend(some.read);
                all.written.extend(some.written);
                all.truncated |= some.truncated;
            }
            Tell::Done(_) => return Ok(all),
            other => panic!("{other:?}"),
        }
    }
    panic!("the trace ended without an end")
}

/// What a line did below a directory of its own, and its output.
async fn run(guest: &Guest, line: &str) -> (Traced, String) {
    let done = guest.exec(traced(line)).await.unwrap();
    let process = done.process.unwrap();
    assert!(process.traced);
    let out = String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr);
    (files(guest, &process.id).await.unwrap(), out)
}

#[tokio::test]
async fn what_a_command_and_all_it_starts_reads_and_writes() {
    let guest = Guest::start().await;
    assert!(matches!(guest.one(Ask::CanTrace(Nothing {})).await, Ok(Tell::Done(_))));
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().canonicalize().unwrap().display().to_string();
    std::fs::write(dir.path().join("in"), "given").unwrap();
    std::os::unix::fs::symlink(&at, dir.path().join("link")).unwrap();
    let line = format!(
        "cd {at}; cat link/in > out; ls link > /dev/null; mkdir new; mv out new/moved; ln -s in soft; \
         setsid sh -c 'echo late > grandchild' & wait; rm new/moved; : < nothing-here; exit 0"
    );
    let (files, _) = run(&guest, &line).await;
    assert!(!files.truncated);
    let of = |list: &[String]| -> Vec<String> {
        list.iter().filter_map(|path| path.strip_prefix(&at)).map(str::to_owned).collect()
    };
    // By the name it has, wherever a link came from; a directory that was listed; nothing that was not there.
    assert_eq!(of(&files.read), ["/", "/in"]);
    assert_eq!(of(&files.written), ["/grandchild", "/new/", "/new/moved", "/out", "/soft"]);
    assert!(files.read.iter().any(|path| path.ends_with("/bash")), "programs are read: {:?}", files.read);
    assert!(files.read.iter().any(|path| path.contains("/libc.so")), "{:?}", files.read);
    let all: Vec<&String> = files.read.iter().chain(&files.written).collect();
    assert!(all.iter().all(|path| path.starts_with('/') && !path.starts_with("/proc/") && !path.starts_with("/dev/")));
    assert!(files.read.is_sorted() && files.written.is_sorted());
    guest.close().await;
}

#[tokio::test]
async fn a_traced_command_is_otherwise_like_any_other() {
    let guest = Guest::start().await;
    let left = mark(4021);
    for (line, code, out) in [
        ("echo hi; exit 3", 3, "hi\n"),
        ("kill -9 $$", -9, ""),
        ("kill -TERM $$", -15, ""),
        ("trap 'echo told; exit 4' USR1; kill -USR1 $$; sleep 4025", 4, "told\n"),
        (&format!("sleep {left} & setsid sleep {left} & echo left"), 0, "left\n"),
        ("(kill -STOP $BASHPID; exit 6) & while kill -CONT $! 2>/dev/null; do sleep .05; done; wait $!", 6, ""),
        ("python3 -c 'import subprocess; print(subprocess.run([\"false\"]).returncode)'", 0, "1\n"),
        (
            "python3 -c 'import threading as t, os; x = t.Thread(target=lambda: os.execvp(\"echo\", [\"echo\", \"thread\"])); x.start(); x.join()'",
            0,
            "thread\n",
        ),
        ("id -u; cat", 0, "0\n"),
    ] {
        let done = guest.exec(traced(line)).await.unwrap();
        let process = done.process.unwrap();
        assert_eq!(
            (process.exit_code, &*String::from_utf8_lossy(&done.stdout)),
            (Some(code), out),
            "{line}: {}",
            String::from_utf8_lossy(&done.stderr)
        );
        assert!(!files(&guest, &process.id).await.unwrap().truncated, "{line}");
    }
    gone(&left).await;
    let missing = guest.exec(Command { trace_files: true, ..argv(&["no-such-program"]) }).await.unwrap();
    assert_eq!(missing.process.unwrap().exit_code, Some(127));
    let nowhere = Command { cwd: "/no/where".into(), ..traced("true") };
    assert_eq!(guest.exec(nowhere).await.unwrap_err().code, ErrorCode::CwdNotFound as i32);
    let left = mark(4022);
    let line = format!("sleep {left} & cat /etc/hostname; sleep {left}");
    in_enough_time(async |timeout_ms| {
        let process = guest.exec(Command { timeout_ms, ..traced(&line) }).await.unwrap().process.unwrap();
        assert_eq!(process.state, ProcessState::TimedOut as i32);
        gone(&left).await;
        files(&guest, &process.id).await.unwrap().read.contains(&"/etc/hostname".to_owned()).then_some(())
    })
    .await;
    guest.close().await;
}

#[tokio::test]
async fn a_process_tells_its_files_once_it_has_ended() {
    let guest = Guest::start().await;
    let untraced = guest.spawn(Spawn { command: Some(shell("true")), ..Spawn::default() }).await;
    assert_eq!(files(&guest, &untraced.id).await.unwrap_err().code, ErrorCode::NotTraced as i32);
    assert_eq!(files(&guest, "nobody").await.unwrap_err().code, ErrorCode::NoSuchProcess as i32);
    let line = "cat /etc/hostname; sleep 4023";
    let process = guest.spawn(Spawn { command: Some(traced(line)), ..Spawn::default() }).await;
    assert!(process.traced && !untraced.traced);
    assert_eq!(files(&guest, &process.id).await.unwrap_err().code, ErrorCode::StillRunning as i32);
    guest.until(&process.id, |process| process.output_bytes > 0).await;
    guest.signal(&process.id, 15).await;
    let ended = guest.until(&process.id, |process| process.state != ProcessState::Running as i32).await;
    assert_eq!(ended.exit_code, Some(-15));
    // Its end is told a moment before its trace is whole.
    let told = loop {
        match files(&guest, &process.id).await {
            Err(error) if error.code == ErrorCode::StillRunning as i32 => tokio::task::yield_now().await,
            other => break other.unwrap(),
        }
    };
    assert!(told.read.contains(&"/etc/hostname".to_owned()));
    guest.close().await;
}

#[tokio::test]
async fn a_server_that_comes_back_finds_the_trace() {
    let guest = Guest::start().await;
    let line = "read x; cat /etc/hostname; exit 2";
    let spawn = Spawn { command: Some(traced(line)), stdin_pipe: true, ..Spawn::default() };
    let process = guest.spawn(spawn).await;
    let guest = guest.reattach().await;
    guest.signal(&process.id, 1).await;
    let (_, _, ended) = guest.follow(&process.id, 0).await;
    assert_eq!(ended.exit_code, Some(-1));
    assert!(files(&guest, &process.id).await.unwrap().read.iter().any(|path| path.ends_with("/bash")));
    guest.close().await;
}

#[tokio::test]
async fn more_files_than_are_kept_are_cut_and_that_is_told() {
    let guest = Guest::start().await;
    let dir = tempfile::tempdir().unwrap();
    let long = "n".repeat(200);
    let line = format!("cd {}; for i in $(seq 8000); do : > {long}$i; done; ls -U | wc -l", dir.path().display());
    let (told, out) = run(&guest, &line).await;
    assert_eq!(out, "8000\n", "the command did all of it");
    assert!(told.truncated);
    assert!((1000..8000).contains(&told.written.len()), "{}", told.written.len());
    guest.close().await;
}

/// A runner that dies takes what it traces along; it is told so, and the next command runs.
#[tokio::test]
async fn a_guest_that_kills_the_tracer_gets_no_whole_trace() {
    let guest = Guest::start().await;
    let left = mark(4024);
    let (told, _) = run(&guest, &format!("cat /etc/hostname; kill -9 $PPID; sleep {left}")).await;
    assert!(told.truncated);
    gone(&left).await;
    assert_eq!(guest.sh("echo next").await, "next\n");
    let (told, _) = run(&guest, "cat /etc/hostname").await;
    assert!(!told.truncated && told.read.contains(&"/etc/hostname".to_owned()));
    guest.close().await;
}
