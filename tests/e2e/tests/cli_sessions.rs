//! The command line inside a sandbox: processes, copies, terminals, ports.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::Duration;

use assert_cmd::Command;
use runtime_test_kit::{Stack, program};
use serde_json::Value;

fn runtime(stack: &Stack, args: &[&str]) -> Command {
    let mut command = Command::new(program());
    command.args(["sandboxes"]).args(args);
    command.env("RUNTIME_API_URL", stack.url()).env("RUNTIME_API_KEY", stack.owner_key());
    command.env("NO_PROXY", "127.0.0.1").env("CI", "1").timeout(Duration::from_secs(300));
    command
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[track_caller]
fn code(stack: &Stack, args: &[&str], expected: i32) -> Output {
    let output = runtime(stack, args).output().expect("runtime");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(expected), "{args:?}: {}{said}", out(&output));
    output
}

#[track_caller]
fn said(stack: &Stack, args: &[&str]) -> String {
    out(&code(stack, args, 0))
}

fn sandbox(stack: &Stack) -> String {
    said(stack, &["create", "--vcpu", "1", "--memory", "512"]).trim().to_owned()
}

#[test]
fn a_process_is_started_listed_read_and_ended() {
    let stack = Stack::start();
    let id = sandbox(&stack);
    let process =
        said(&stack, &["spawn", &id, "--cwd", "/tmp", "--env", "X=y", "--", "echo $X in $PWD; exec sleep 600"]);
    let process = process.trim();
    assert_eq!(process.len(), 36, "the id alone on stdout: {process:?}");
    let ended = said(&stack, &["spawn", &id, "--json", "--", "sh", "-c", "echo over >&2; exit 3"]);
    let ended: Value = serde_json::from_str(&ended).expect("JSON");
    let ended = ended["id"].as_str().expect("an id");
    let followed = code(&stack, &["logs", &id, ended, "-f"], 0);
    assert_eq!(String::from_utf8_lossy(&followed.stderr).lines().next(), Some("over"));
    let listed = said(&stack, &["ps", &id]);
    assert!(listed.starts_with("ID") && listed.contains(process) && listed.contains("exited"), "{listed}");
    let with_terminal = said(&stack, &["spawn", &id, "--pty", "--", "stty size; exit 0"]);
    assert_eq!(said(&stack, &["logs", &id, with_terminal.trim(), "--follow"]), "40 120\r\n");

    // Without --follow it answers and says that the process goes on.
    let logs = code(&stack, &["logs", &id, process], 0);
    assert_eq!(out(&logs), "y in /tmp\n");
    assert!(String::from_utf8_lossy(&logs.stderr).contains("still running"));
    let logs: Value = serde_json::from_str(&said(&stack, &["logs", &id, ended, "--json"])).expect("JSON");
    assert_eq!((&logs["exitCode"], &logs["truncated"]), (&3.into(), &false.into()));
    said(&stack, &["kill", &id, process]);
    code(&stack, &["logs", &id, process, "-f"], 0);
    let again = code(&stack, &["kill", &id, process, "--signal", "SIGKILL"], 0);
    assert!(String::from_utf8_lossy(&again.stderr).contains("ended already"));
    code(&stack, &["logs", &id, "none"], 1);
    code(&stack, &["kill", &id, "none"], 1);
}

#[test]
fn files_and_folders_are_copied_both_ways() {
    let stack = Stack::start();
    let id = sandbox(&stack);
    let here = tempfile::tempdir().expect("a directory");
    let path = |name: &str| here.path().join(name).to_str().expect("text").to_owned();
    let there = |path: &str| format!("{id}:{path}");
    let big: Vec<u8> = (0..5_000_001_u32).map(|n| (n % 253) as u8).collect();
    std::fs::write(path("big"), &big).expect("written");
    std::fs::write(path("small"), "small").expect("written");
    std::fs::set_permissions(path("small"), std::fs::Permissions::from_mode(0o750)).expect("set");
    said(&stack, &["cp", &path("big"), &there("/workspace/new/big")]);
    said(&stack, &["cp", &path("small"), &there("/workspace/")]);
    assert_eq!(said(&stack, &["exec", &id, "--", "stat -c '%s %a' new/big small"]), "5000001 644\n5 750\n");
    said(&stack, &["cp", &there("/workspace/new/big"), &path("made/here/")]);
    assert!(std::fs::read(path("made/here/big")).expect("read") == big);
    said(&stack, &["cp", &there("/workspace/small"), &path("back")]);
    assert_eq!(std::fs::metadata(path("back")).expect("there").permissions().mode() & 0o777, 0o750);

    std::fs::create_dir_all(path("tree/d/empty")).expect("made");
    std::fs::write(path("tree/d/big"), &big).expect("written");
    std::os::unix::fs::symlink("d/big", path("tree/link")).expect("linked");
    let flat = code(&stack, &["cp", &path("tree"), &there("/workspace/tree")], 1);
    assert!(String::from_utf8_lossy(&flat.stderr).contains("-r"));
    said(&stack, &["cp", "-r", &path("tree"), &there("/workspace/tree")]);
    said(&stack, &["cp", "-r", &path("tree"), &there("/workspace/in/")]);
    said(&stack, &["exec", &id, "--", "diff -r --no-dereference tree in/tree && test -d tree/d/empty"]);
    said(&stack, &["cp", "-r", &there("/workspace/tree"), &path("down")]);
    assert!(std::fs::read(path("down/link")).expect("read") == big && Path::new(&path("down/d/empty")).is_dir());

    for wrong in [
        [path("none"), there("/workspace/x")],
        [there("/workspace/none"), path("x")],
        [path("big"), path("x")],
        [there("/a"), there("/b")],
        [path("small"), there("/root/x")],
    ] {
        code(&stack, &["cp", &wrong[0], &wrong[1]], 1);
    }
    let mut left: Vec<_> =
        std::fs::read_dir(here.path()).expect("listed").map(|e| e.expect("entry").file_name()).collect();
    left.sort();
    assert_eq!(left, ["back", "big", "down", "made", "small", "tree"], "nothing half copied is left");
}

#[test]
fn a_shell_takes_what_is_piped_and_ends_with_its_code() {
    let stack = Stack::start();
    let id = sandbox(&stack);
    let piped = runtime(&stack, &["shell", &id]).write_stdin("echo at-$((40+2))\nexit 7").output().expect("runtime");
    assert!(out(&piped).contains("at-42"), "{}", out(&piped));
    assert_eq!(piped.status.code(), Some(7));
    let cat = runtime(&stack, &["shell", &id, "--command", "wc -l"]).write_stdin("a\nb").output().expect("runtime");
    assert!(out(&cat).lines().any(|line| line.trim() == "2") && cat.status.success(), "{}", out(&cat));
    code(&stack, &["shell", &id, "--command", "exit 9"], 9);
    code(&stack, &["shell", &id, "--json"], 1);
    code(&stack, &["shell", "no-such-name"], 1);
}

/// In a terminal of its own, which it gives back as it was.
#[test]
fn a_shell_in_a_terminal_passes_every_key_on() {
    let stack = Stack::start();
    let id = sandbox(&stack);
    let line = format!(
        "stty cols 71 rows 23; {} sandboxes shell {id}; echo code=$?; stty -a | grep -o '.icanon\\|-icanon'",
        program().display()
    );
    let mut script = std::process::Command::new("script")
        .args(["-qec", &line, "/dev/null"])
        .env("RUNTIME_API_URL", stack.url())
        .env("RUNTIME_API_KEY", stack.owner_key())
        .env("NO_PROXY", "127.0.0.1")
        .env("SHELL", "/bin/sh")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("script");
    let mut keys = script.stdin.take().expect("a pipe");
    let mut screen = script.stdout.take().expect("a pipe");
    let mut seen = Vec::new();
    let mut until = |wanted: &str, seen: &mut Vec<u8>| {
        let mut buf = [0; 4096];
        while !String::from_utf8_lossy(seen).contains(wanted) {
            let got = screen.read(&mut buf).expect("the screen");
            assert!(got > 0, "{wanted:?} never came: {}", String::from_utf8_lossy(seen));
            seen.extend_from_slice(&buf[..got]);
        }
    };
    until("$", &mut seen);
    // It says so itself, and so is in the foreground when it does.
    keys.write_all(b"stty size; sh -c 'echo go-$((1+1)); exec sleep 1000'\n").expect("typed");
    until("go-2", &mut seen);
    assert!(String::from_utf8_lossy(&seen).contains("23 71"), "{}", String::from_utf8_lossy(&seen));
    // Ctrl-C is for the program over there.
    keys.write_all(b"\x03echo code-$?; exit 5\n").expect("typed");
    until("code-130", &mut seen);
    until("code=5", &mut seen);
    until("icanon", &mut seen);
    assert!(!String::from_utf8_lossy(&seen).contains("-icanon"), "the terminal is as it was");
    drop(keys);
    script.wait().expect("script ends");
}

#[test]
fn a_port_is_reached_on_this_machine() {
    let stack = Stack::start();
    let id = sandbox(&stack);
    said(&stack, &["spawn", &id, "--", "python3", "-m", "http.server", "8000", "--bind", "127.0.0.1"]);
    said(
        &stack,
        &["exec", &id, "--", "echo hello > index.html; until curl -s --noproxy '*' 127.0.0.1:8000; do sleep 0.1; done"],
    );
    let mut forward = std::process::Command::new(program())
        .args(["sandboxes", "port-forward", &id, "0:8000", "0:8001"])
        .env("RUNTIME_API_URL", stack.url())
        .env("RUNTIME_API_KEY", stack.owner_key())
        .env("NO_PROXY", "127.0.0.1")
        .stdout(Stdio::piped())
        .spawn()
        .expect("runtime");
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(forward.stdout.take().expect("a pipe")));
    let mut address = || {
        let line = lines.next().expect("a line").expect("text");
        line.split(" -> ").next().expect("an address").to_owned()
    };
    let (served, closed) = (address(), address());
    for _ in 0..3 {
        let mut socket = TcpStream::connect(&served).expect("connected");
        socket.write_all(b"GET / HTTP/1.0\r\n\r\n").expect("sent");
        let mut answer = String::new();
        socket.read_to_string(&mut answer).expect("answered");
        assert!(answer.ends_with("hello\n"), "{answer}");
    }
    let mut nothing = TcpStream::connect(&closed).expect("connected");
    let mut byte = [0];
    assert!(matches!(nothing.read(&mut byte), Ok(0) | Err(_)));
    let kill = std::process::Command::new("kill").args(["-INT", &forward.id().to_string()]).status();
    assert!(kill.expect("kill runs").success());
    assert_eq!(forward.wait().expect("it ends").code(), Some(130));
}
