//! The command line as people type it: the built binary, its output, its exit codes, and that a misspelt word is refused
//! before anything is sent.

use assert_cmd::Command;
use runtime_test_kit::{Stack, program, unique};
use serde_json::{Value, json};
use std::io::Write;
use std::process::{Output, Stdio};

/// The program with the address and key of a stack.
fn runtime(stack: &Stack, args: &[&str]) -> Command {
    let mut command = Command::new(program());
    command.args(args);
    command.env("RUNTIME_API_URL", stack.url()).env("RUNTIME_API_KEY", stack.owner_key());
    command
        .env("NO_PROXY", "127.0.0.1")
        .env("CI", "1")
        .env("NO_COLOR", "1")
        .timeout(std::time::Duration::from_secs(300));
    command
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Runs it well and gives what it said.
#[track_caller]
fn said(stack: &Stack, args: &[&str]) -> String {
    let output = runtime(stack, args).output().expect("runtime");
    assert!(output.status.success(), "{args:?}: {:?}\n{}", output.status.code(), err(&output));
    out(&output)
}

#[track_caller]
fn code(stack: &Stack, args: &[&str], expected: i32) -> Output {
    let output = runtime(stack, args).output().expect("runtime");
    assert_eq!(output.status.code(), Some(expected), "{args:?}: {}{}", out(&output), err(&output));
    output
}

/// With a pipe that speaks at once: one that says nothing for a moment is no input.
fn fed(stack: &Stack, args: &[&str], input: &[u8]) -> Output {
    let (reader, mut writer) = std::io::pipe().expect("a pipe");
    let (first, rest) = input.split_at(input.len().min(4096));
    writer.write_all(first).expect("fits");
    let mut command = std::process::Command::new(program());
    command.args(args).env("RUNTIME_API_URL", stack.url()).env("RUNTIME_API_KEY", stack.owner_key());
    command.env("NO_PROXY", "127.0.0.1").stdin(reader).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().expect("runtime");
    // Ours of the reader's end goes with it.
    drop(command);
    let _ = writer.write_all(rest);
    drop(writer);
    child.wait_with_output().expect("its end")
}

#[test]
fn the_life_of_a_sandbox() {
    let stack = Stack::start();
    let name = unique("n");
    let id = said(
        &stack,
        &["sandboxes", "create", "--name", &name, "--vcpu", "1", "--memory", "512", "--label", "a=b", "--env", "K=v"],
    );
    let id = id.trim();
    assert_eq!(id.len(), 36, "the id alone on stdout: {id:?}");
    // By its name as by its id.
    assert_eq!(said(&stack, &["sandboxes", "exec", &name, "--", "echo $K"]), "v\n");
    assert_eq!(said(&stack, &["sandboxes", "exec", id, "--", "printf", "%s|", "a b", "$K"]), "a b|$K|");
    assert_eq!(said(&stack, &["sbx", "exec", id, "--cwd", "/tmp", "--env", "X=y", "--", "pwd; echo $X"]), "/tmp\ny\n");
    let listed = said(&stack, &["sandboxes", "ls"]);
    assert!(listed.starts_with("ID") && listed.contains(id) && listed.contains(&name), "{listed}");
    assert!(said(&stack, &["sandboxes", "get", &name]).contains("running"));
    said(&stack, &["sandboxes", "exec", id, "--", "echo content > f; mkdir -p d; echo x > d/g"]);
    assert_eq!(said(&stack, &["sandboxes", "cat", &name, "/workspace/f"]), "content\n");
    let files = said(&stack, &["sandboxes", "files", id]);
    assert!(files.lines().any(|line| line.starts_with('d') && line.ends_with("/workspace/d")), "{files}");
    assert!(files.lines().any(|line| line.starts_with('-') && line.contains("/workspace/f")), "{files}");
    assert!(said(&stack, &["sandboxes", "files", id, "--glob", "**/g"]).contains("/workspace/d/g"));
    said(&stack, &["sandboxes", "update", &name, "--label", "c=d", "--unset-env", "K"]);
    assert_eq!(said(&stack, &["sandboxes", "exec", id, "--", "echo [$K]"]), "[]\n");
    said(&stack, &["sandboxes", "exec", id, "--", "echo only in memory > /tmp/m"]);
    said(&stack, &["sandboxes", "pause", &name]);
    assert!(said(&stack, &["sandboxes", "get", id]).contains("paused"));
    said(&stack, &["sandboxes", "wake", &name, "--timeout", "600"]);
    assert_eq!(said(&stack, &["sandboxes", "exec", id, "--", "cat /tmp/m"]), "only in memory\n");
    assert!(said(&stack, &["sandboxes", "extend", &name, "60"]).contains("until"));
    said(&stack, &["sandboxes", "stop", &name]);
    assert!(said(&stack, &["sandboxes", "get", id]).contains("stopped"));
    said(&stack, &["sandboxes", "restart", &name]);
    assert_eq!(said(&stack, &["sandboxes", "cat", id, "/workspace/f"]), "content\n");
    said(&stack, &["sandboxes", "rm", &name]);
    let gone = code(&stack, &["sandboxes", "get", &name], 1);
    assert!(err(&gone).contains("sandbox_not_found"), "{}", err(&gone));
    let gone = code(&stack, &["sandboxes", "get", id], 1);
    assert!(err(&gone).contains("not_found") && err(&gone).contains("req_"), "{}", err(&gone));
}

#[test]
fn snapshots_and_forks() {
    let stack = Stack::start();
    let name = unique("cli");
    said(&stack, &["sandboxes", "create", "--name", &name, "--vcpu", "1", "--memory", "512"]);
    said(&stack, &["sandboxes", "exec", &name, "--", "echo kept > /tmp/kept"]);
    let taken = said(&stack, &["sandboxes", "snapshot", &name, "--name", "ready", "--retention", "7"]);
    let taken = taken.trim();
    assert!(said(&stack, &["snapshots", "ls", "--sandbox", &name]).contains(taken));
    assert!(said(&stack, &["snapshot", "get", "ready"]).contains("memory"));
    let copy = said(&stack, &["sandboxes", "create", "--snapshot", taken]);
    assert_eq!(said(&stack, &["sandboxes", "exec", copy.trim(), "--", "cat /tmp/kept"]), "kept\n");
    let copies = said(&stack, &["sandboxes", "fork", &name, "--count", "2", "--name", &format!("{name}-copy")]);
    assert_eq!(copies.lines().count(), 2, "{copies}");
    assert_eq!(said(&stack, &["sandboxes", "exec", &format!("{name}-copy-1"), "--", "cat /tmp/kept"]), "kept\n");
    assert!(said(&stack, &["snapshots", "extend", "ready", "30"]).contains("until"));
    said(&stack, &["snapshots", "rm", "ready"]);
    assert_eq!(said(&stack, &["snapshots", "ls", "--json"]).trim(), "[]");
}

#[test]
fn exit_codes_are_those_of_the_command() {
    let stack = Stack::start();
    let id = said(&stack, &["sandboxes", "create", "--vcpu", "1", "--memory", "512"]);
    let id = id.trim();
    for (command, expected) in
        [("true", 0), ("exit 3", 3), ("exit 255", 255), ("kill -9 $$", 137), ("kill -15 $$", 143)]
    {
        code(&stack, &["sandboxes", "exec", id, "--", command], expected);
        code(&stack, &["sandboxes", "exec", id, "--json", "--", command], expected);
    }
    code(&stack, &["sandboxes", "exec", id, "--timeout", "1", "--", "sleep 60"], 124);
    code(&stack, &["sandboxes", "exec", "no-such-name", "--", "true"], 1);
    let both = code(&stack, &["sandboxes", "exec", id, "--", "echo to-out; echo to-err >&2; exit 4"], 4);
    assert_eq!((out(&both).as_str(), err(&both).contains("to-err")), ("to-out\n", true));
    assert_eq!(out(&fed(&stack, &["sandboxes", "exec", id, "--", "cat"], b"from a pipe")), "from a pipe");
    let large = fed(&stack, &["sandboxes", "exec", id, "--", "cat"], &[b'x'; 1 << 21]);
    assert!(!large.status.success() && err(&large).contains("cp"), "{}", err(&large));
    let bytes = said(&stack, &["sandboxes", "exec", id, "--", "head -c 3000000 /dev/zero | tr '\\0' a"]);
    assert_eq!(bytes.len(), 3_000_000, "a stream is not cut");
}

#[test]
fn run_is_a_sandbox_for_one_command() {
    let stack = Stack::start();
    assert_eq!(
        said(&stack, &["sandboxes", "run", "--vcpu", "1", "--memory", "512", "--", "python3 -c 'print(6*7)'"]),
        "42\n"
    );
    code(&stack, &["sandboxes", "run", "--", "exit 7"], 7);
    code(&stack, &["sandboxes", "run", "--timeout", "1", "--", "sleep 60"], 124);
    assert_eq!(stack.api().get("/v1/sandboxes?includeStopped=true").ok()["data"], json!([]), "run leaves one behind");
    let kept = code(&stack, &["sandboxes", "run", "--keep", "--", "echo kept"], 0);
    assert_eq!(out(&kept), "kept\n");
    let left = stack.api().get("/v1/sandboxes?includeStopped=true").ok();
    let id = left["data"][0]["id"].as_str().expect("the kept one");
    assert!(err(&kept).contains(id), "the id of the kept one: {}", err(&kept));
    // `run` is a word of the product, and says where it went.
    let moved = runtime(&stack, &["run", "--", "true"]).output().expect("runtime");
    assert!(!moved.status.success() && err(&moved).contains("sandboxes run"), "{}", err(&moved));
}

#[test]
fn json_is_one_value_and_nothing_else() {
    let stack = Stack::start();
    let parse = |text: String| serde_json::from_str::<Value>(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    let made = parse(said(&stack, &["sandboxes", "create", "--vcpu", "1", "--memory", "512", "--json"]));
    let id = made["id"].as_str().expect("an id");
    assert_eq!(made["state"], "running");
    assert_eq!(parse(said(&stack, &["sandboxes", "get", id, "--json"]))["id"], id);
    assert_eq!(parse(said(&stack, &["sandboxes", "ls", "--json"]))[0]["id"], id);
    let ran = parse(said(&stack, &["sandboxes", "exec", id, "--json", "--", "echo hi; echo err >&2"]));
    assert_eq!((&ran["stdout"], &ran["stderr"], &ran["exitCode"]), (&json!("hi\n"), &json!("err\n"), &json!(0)));
    assert!(parse(said(&stack, &["whoami", "--json"]))["orgId"].is_string());
    assert!(parse(said(&stack, &["limits", "--json"])).is_object());
    assert!(parse(said(&stack, &["sandboxes", "files", id, "--json", "/etc"])).is_array());
    // After the dashes it is the command's.
    assert_eq!(said(&stack, &["sandboxes", "exec", id, "--", "echo", "--json"]), "--json\n");
    let refused = code(&stack, &["sandboxes", "get", "00000000-0000-4000-8000-000000000000", "--json"], 1);
    let error: Value = serde_json::from_str(&err(&refused)).unwrap_or_else(|bad| panic!("{bad}: {}", err(&refused)));
    assert_eq!((&error["error"]["code"], &error["error"]["status"]), (&json!("not_found"), &json!(404)));
    assert!(error["error"]["requestId"].as_str().is_some_and(|id| id.starts_with("req_")), "{error}");
    assert_eq!(out(&refused), "");
}

#[test]
fn a_misspelt_word_is_refused_before_anything_is_sent() {
    // A server that fails the test when it is spoken to.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.set_nonblocking(true).expect("not to wait");
    let url = format!("http://{}", listener.local_addr().expect("its address"));
    for (args, likely) in [
        (&["sandboxes", "create", "--memry", "512"][..], "--memory"),
        (&["sandboxes", "create", "--lable", "a=b"], "--label"),
        (&["sandboxes", "exec", "x", "--cmd", "--", "true"], "--cwd"),
        (&["sandboxes", "craete"], "create"),
        (&["sandbxes", "ls"], "sandboxes"),
        (&["sandboxes", "ls", "--stat", "running"], "--state"),
        (&["sandboxes", "create", "--vcpu", "many"], "--vcpu"),
        (&["sandboxes", "create", "--vcpu"], "--vcpu"),
        (&["sandboxes", "create", "--name", "--vcpu", "1"], "--name"),
        (&["sandboxes", "get"], "get"),
        (&["whoami", "--jsn"], "--json"),
    ] {
        let output = Command::new(program())
            .args(args)
            .env("RUNTIME_API_URL", &url)
            .env("RUNTIME_API_KEY", "rtcloud_x")
            .env("NO_PROXY", "127.0.0.1")
            .timeout(std::time::Duration::from_secs(120))
            .output()
            .expect("runtime");
        assert!(!output.status.success(), "{args:?} was taken");
        assert!(err(&output).contains(likely), "{args:?} does not say {likely}: {}", err(&output));
        assert_eq!(out(&output), "", "{args:?}");
        assert!(listener.accept().is_err(), "{args:?} was sent to the server");
    }
}

#[test]
fn help_is_help_everywhere_and_sends_nothing() {
    for args in [
        &["--help"][..],
        &["-h"],
        &["help"],
        &["sandboxes", "--help"],
        &["sandboxes", "create", "--help"],
        &["serve", "--help"],
        &["setup", "--help"],
        &["doctor", "--help"],
        &["keys", "create", "--help"],
        &["sandboxes", "exec", "x", "--help"],
    ] {
        let output =
            Command::new(program()).args(args).env("RUNTIME_API_URL", "http://127.0.0.1:9").output().expect("runtime");
        assert_eq!(output.status.code(), Some(0), "{args:?}: {}", err(&output));
        assert!(out(&output).contains("Usage") || out(&output).contains("usage"), "{args:?}: {}", out(&output));
    }
    let version = Command::new(program()).arg("--version").output().expect("runtime");
    assert!(out(&version).contains(env!("CARGO_PKG_VERSION")), "{}", out(&version));
    for shell in ["bash", "zsh", "fish"] {
        let script = Command::new(program()).args(["completions", shell]).output().expect("runtime");
        assert!(script.status.success() && out(&script).contains("sandboxes"), "{shell}: {}", err(&script));
    }
}

#[test]
fn a_server_that_is_not_there_is_told_with_what_to_do() {
    let output = Command::new(program())
        .args(["sandboxes", "ls"])
        .env("RUNTIME_API_URL", "http://127.0.0.1:9")
        .env("RUNTIME_API_KEY", "rtcloud_x")
        .env("NO_PROXY", "127.0.0.1")
        .timeout(std::time::Duration::from_secs(120))
        .output()
        .expect("runtime");
    assert_eq!(output.status.code(), Some(1));
    assert!(err(&output).contains("127.0.0.1:9") && err(&output).contains("runtime serve"), "{}", err(&output));
    assert_eq!(out(&output), "");
}

#[test]
fn on_ones_own_machine_nothing_has_to_be_exported() {
    let stack = Stack::start();
    // The default data directory, as this one command sees it: the address and the key of this stack are in it.
    let kept = tempfile::tempdir().expect("a directory");
    for name in ["address", "owner.key"] {
        std::fs::copy(stack.dir().join(name), kept.path().join(name)).expect("copy what a client reads");
    }
    let script = format!(
        "mount -t tmpfs none /var/lib/runtime && cp {}/* /var/lib/runtime/ && exec {} whoami --json",
        kept.path().display(),
        program().display()
    );
    let run = std::process::Command::new("unshare")
        .args(["--mount", "sh", "-ec", &script])
        .env_remove("RUNTIME_API_URL")
        .env_remove("RUNTIME_API_KEY")
        .env("NO_PROXY", "127.0.0.1")
        .output()
        .expect("unshare");
    assert!(run.status.success(), "{}", err(&run));
    assert!(out(&run).contains("orgId"), "{}", out(&run));
}

#[test]
fn doctor_tells_line_by_line_and_by_its_exit_code() {
    let stack = Stack::start();
    let run = stack.command().args(["doctor", "--data-dir"]).arg(stack.dir()).output().expect("runtime");
    let text = out(&run);
    for word in ["runsc", "cgroup", "disk", "KVM"] {
        assert!(text.to_lowercase().contains(&word.to_lowercase()), "doctor says nothing of {word}:\n{text}");
    }
    assert_eq!(run.status.code(), Some(0), "{text}{}", err(&run));
    let json = stack.command().args(["doctor", "--json", "--data-dir"]).arg(stack.dir()).output().expect("runtime");
    let _: Value = serde_json::from_slice(&json.stdout).unwrap_or_else(|error| panic!("{error}: {}", out(&json)));
    // A directory that was never set up: a problem with its fix, and a failure.
    let bare = tempfile::tempdir_in("/var/tmp").expect("a directory");
    let poor = stack.command().args(["doctor", "--data-dir"]).arg(bare.path()).output().expect("runtime");
    assert_eq!(poor.status.code(), Some(1), "{}{}", out(&poor), err(&poor));
    assert!(out(&poor).contains("runtime setup --data-dir"), "no fix is named:\n{}", out(&poor));
}

#[test]
fn a_second_server_on_a_data_directory_names_the_first() {
    let stack = Stack::start();
    let run = stack
        .command()
        .args(["serve", "--listen", "127.0.0.1:0", "--data-dir"])
        .arg(stack.dir())
        .output()
        .expect("runtime");
    assert!(!run.status.success());
    assert!(err(&run).contains(&stack.server_pid().to_string()), "the pid of the first: {}", err(&run));
    assert_eq!(stack.api().get("/v1/me").status, 200);
    // A port that is taken is told with the port.
    let other = tempfile::tempdir_in(stack.dir().parent().expect("the pool")).expect("another directory");
    let listen = stack.api().address().to_string();
    let run =
        stack.command().args(["serve", "--listen", &listen, "--data-dir"]).arg(other.path()).output().expect("runtime");
    assert!(!run.status.success() && err(&run).contains(&listen), "{}", err(&run));
}

#[test]
fn keys_are_made_listed_and_revoked() {
    let stack = Stack::start();
    let dir = stack.dir().display().to_string();
    let keys =
        |args: &[&str]| stack.command().arg("keys").args(args).args(["--data-dir", &dir]).output().expect("runtime");
    let made = keys(&["create", "--name", "mine"]);
    let key = out(&made).trim().to_owned();
    assert!(made.status.success() && key.starts_with("rtcloud_"), "{}", err(&made));
    let api = stack.api().with_key(&key);
    let id = api.get("/v1/me").ok()["credentialId"].as_str().expect("an id").to_owned();
    let listed = out(&keys(&["ls"]));
    assert!(listed.contains("mine") && listed.contains(&id), "{listed}");
    assert!(!listed.contains(key.splitn(3, '_').nth(2).expect("its secret")), "{listed}");
    let reader = keys(&["create", "--name", "x", "--read-only"]);
    assert!(reader.status.success(), "{}", err(&reader));
    let both = keys(&["create", "--name", "x", "--read-only", "--account-wide"]);
    assert!(both.status.code() == Some(1) && out(&both).is_empty(), "{}{}", out(&both), err(&both));
    assert!(keys(&["revoke", &id]).status.success());
    assert_eq!(api.get("/v1/me").status, 401);
    let unknown = keys(&["revoke", "00000000-0000-4000-8000-000000000000"]);
    assert_eq!(unknown.status.code(), Some(1), "{}", err(&unknown));
}

#[test]
fn setup_only_looks_when_asked_to() {
    let stack = Stack::start();
    let run = stack.command().args(["setup", "--check", "--data-dir"]).arg(stack.dir()).output().expect("runtime");
    let text = out(&run) + &err(&run);
    assert!(text.contains("runsc"), "{text}");
    assert_eq!(run.status.code(), Some(0), "{text}");
}
