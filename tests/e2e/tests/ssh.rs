//! SSH into a sandbox, with the OpenSSH that people have: `ssh`, `scp`, what editors do.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use runtime_test_kit::{Machine, Stack, StackOptions, eventually, program, unique};
use serde_json::json;

const WAIT: Duration = Duration::from_secs(60);
/// What an sshd gives a client to log in, with the time to start and to be told of.
const GRACE: Duration = Duration::from_secs(60 + 30);

/// A person's machine: a home with settings and keys in it.
struct Desk<'a> {
    stack: &'a Stack,
    home: tempfile::TempDir,
}

impl<'a> Desk<'a> {
    fn new(stack: &'a Stack) -> Self {
        Self { stack, home: tempfile::tempdir().expect("a home") }
    }

    /// With the settings that `ssh config` makes.
    fn installed(stack: &'a Stack) -> Self {
        let desk = Self::new(stack);
        let output = desk.runtime(&["ssh", "config", "--install"]);
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        desk
    }

    fn at(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    fn keys(&self) -> PathBuf {
        self.at(".config/runtime-cloud/ssh")
    }

    fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new(program.as_ref());
        command.env("HOME", self.home.path()).env_remove("XDG_CONFIG_HOME").env("SHELL", "/bin/sh");
        command.env("RUNTIME_API_URL", self.stack.url()).env("RUNTIME_API_KEY", self.stack.owner_key());
        command.env("NO_PROXY", "127.0.0.1").stdin(Stdio::null());
        command
    }

    fn runtime(&self, args: &[&str]) -> Output {
        self.command(program()).arg("sandboxes").args(args).output().expect("runtime")
    }

    /// One of OpenSSH's programs with this home's settings.
    fn open(&self, name: &str, args: &[&str]) -> Command {
        let mut command = self.command(name);
        command.arg("-F").arg(self.at(".ssh/config")).args(args);
        command
    }

    fn ssh(&self, args: &[&str]) -> Output {
        self.open("ssh", args).output().expect("ssh")
    }

    /// Its output, once it ended well.
    #[track_caller]
    fn said(&self, args: &[&str]) -> String {
        let output = self.ssh(args);
        assert_eq!(output.status.code(), Some(0), "{args:?}: {}", said(&output));
        String::from_utf8(output.stdout).expect("text")
    }

    #[track_caller]
    fn copied(&self, args: &[&str]) {
        let output = self.open("scp", &[&["-q"], args].concat()).output().expect("scp");
        assert_eq!(output.status.code(), Some(0), "{args:?}: {}", said(&output));
    }

    /// A pair of keys of its own, by the name of its file.
    fn pair(&self, name: &str) -> String {
        let file = self.at(name).display().to_string();
        let made = Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f", &file]).status();
        assert!(made.expect("ssh-keygen").success());
        file
    }
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// OpenSSH's own refusal, with what it says.
#[track_caller]
fn refused(output: &Output, why: &str) {
    assert_eq!(output.status.code(), Some(255), "{}", said(output));
    assert!(said(output).contains(why), "{why}: {}", said(output));
}

fn host(machine: &Machine) -> String {
    format!("{}.runtime", machine.id)
}

fn pattern(length: u32) -> Vec<u8> {
    (0..length).map(|n| (n % 251) as u8).collect()
}

/// Neither sshd nor what it was started with is left.
#[track_caller]
fn nothing_is_left(machine: &Machine) {
    eventually("every sshd and what it read are gone", WAIT, || {
        machine.root("pgrep -x sshd; ls /run/runtime/ssh").out.trim().is_empty()
    });
}

#[test]
fn commands_run_as_they_do_on_any_machine() {
    let stack = Stack::start();
    let desk = Desk::installed(&stack);
    let name = unique("Box");
    let machine = stack.api().create(&json!({
        "name": name, "vcpu": 1, "memoryMiB": 1024, "env": {"NOTE": "it's\n\"two\" lines", "LANG": "C"},
    }));
    let host = format!("{name}.runtime");

    let output = desk.ssh(&[&host, "id -un; pwd; printf '%s|' \"$NOTE\" \"$LANG\" \"$HOME\"; echo no >&2; exit 7"]);
    assert_eq!(output.status.code(), Some(7), "{}", said(&output));
    let expected = "runtime\n/workspace\nit's\n\"two\" lines|C|/workspace|";
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
    assert_eq!(String::from_utf8_lossy(&output.stderr), "no\n", "and nothing else is said");
    // The same variables as a command of the API has, but for what a login adds.
    let names =
        "env | cut -d= -f1 | grep -v -e '^SSH_' -e '^MAIL$' -e '^SHLVL$' -e '^_$' -e '^PWD$' -e '^OLDPWD$' | sort";
    assert_eq!(desk.said(&[&host, names]), machine.output(names));
    // Root by sudo, as in a command.
    assert_eq!(desk.said(&[&host, "sudo id -un"]), "root\n");

    // Input and output, of any bytes.
    let bytes = pattern(3_000_001);
    let mut cat = desk.open("ssh", &[&host, "tee f | cat"]);
    let mut cat = cat.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("ssh");
    let mut input = cat.stdin.take().expect("a pipe");
    let sent = bytes.clone();
    let writer = std::thread::spawn(move || input.write_all(&sent));
    let mut back = Vec::new();
    cat.stdout.take().expect("a pipe").read_to_end(&mut back).expect("read");
    writer.join().expect("the writer").expect("written");
    assert!(cat.wait().expect("ssh ends").success() && back == bytes, "{} bytes came back", back.len());
    assert_eq!(machine.output("stat -c %s f"), "3000001\n");

    // A terminal, and a login shell.
    let terminal = desk.said(&["-tt", "-q", &host, "tty; stat -c '%U %G' $(tty); echo $TERM"]);
    assert!(terminal.starts_with("/dev/pts/") && terminal.contains("runtime"), "{terminal:?}");
    let mut login = desk.open("ssh", &["-T", &host]);
    let mut login = login.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("ssh");
    login.stdin.take().expect("a pipe").write_all(b"shopt -q login_shell && echo \"$NOTE\"; exit 4\n").expect("typed");
    let output = login.wait_with_output().expect("ssh ends");
    assert_eq!(output.status.code(), Some(4));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "it's\n\"two\" lines\n");

    // Several at once, each with a host key of its own.
    let (desk, id) = (&desk, &format!("{}.runtime", machine.id));
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..4)
            .map(|n| {
                scope.spawn(move || (n, desk.said(&[id, &format!("sleep 1; echo {n}; ps -o comm= -C sshd | wc -l")])))
            })
            .collect();
        for one in all {
            let (n, said) = one.join().expect("a thread");
            assert_eq!(said.lines().next(), Some(n.to_string().as_str()), "{said}");
        }
    });
    // What a session leaves in the background lives on; sshd is no process of the API's.
    let pid = desk.said(&[id, "sleep 600 >/dev/null 2>&1 </dev/null & echo $!"]);
    nothing_is_left(&machine);
    assert_eq!(machine.output(&format!("ps -o comm= -p {pid}")), "sleep\n");
    let listed = machine.api.get(&machine.path("/processes")).ok().to_string();
    assert!(!listed.contains("sbin/sshd") && !listed.contains("sleep 600"), "{listed}");
}

#[test]
fn files_and_ports_go_both_ways() {
    let stack = Stack::start();
    let desk = Desk::installed(&stack);
    let machine = stack.api().create(&json!({"vcpu": 1, "memoryMiB": 1024}));
    let host = host(&machine);
    let (here, back) = (desk.at("here").display().to_string(), desk.at("back").display().to_string());
    let bytes = pattern(5_000_003);
    std::fs::write(&here, &bytes).expect("written");
    std::fs::set_permissions(&here, std::fs::Permissions::from_mode(0o750)).expect("set");
    // By SFTP, and by the older protocol.
    for (mode, name) in [("-s", "sftp"), ("-O", "rcp")] {
        desk.copied(&[mode, "-p", &here, &format!("{host}:{name}")]);
        assert_eq!(machine.output(&format!("stat -c '%U %s %a' {name}")), "runtime 5000003 750\n");
        desk.copied(&[mode, &format!("{host}:/workspace/{name}"), &back]);
        assert!(std::fs::read(&back).expect("read") == bytes, "{name} came back changed");
    }
    std::fs::create_dir_all(desk.at("tree/d")).expect("made");
    std::fs::write(desk.at("tree/d/f"), "deep").expect("written");
    desk.copied(&["-r", &desk.at("tree").display().to_string(), &format!("{host}:")]);
    assert_eq!(machine.output("cat tree/d/f"), "deep");

    let _ = machine.spawn(&json!({"command": "python3 -m http.server 8000 --bind 127.0.0.1 -d /workspace/tree/d"}));
    let _ = machine.output("until curl -s --noproxy '*' 127.0.0.1:8000/f; do sleep 0.1; done");
    let ask = b"GET /f HTTP/1.0\r\n\r\n";
    // -W: what a jump over the sandbox is made of.
    let mut through = desk.open("ssh", &["-W", "127.0.0.1:8000", &host]);
    let mut through = through.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("ssh");
    through.stdin.take().expect("a pipe").write_all(ask).expect("asked");
    let output = through.wait_with_output().expect("ssh ends");
    assert!(output.stdout.ends_with(b"\r\n\r\ndeep"), "{}", said(&output));
    // -L: a door here; -R: a port there.
    let local = desk.at("forwarded");
    let served = TcpListener::bind("127.0.0.1:0").expect("a port");
    let there = served.local_addr().expect("an address");
    let mut forward = Running(
        desk.open(
            "ssh",
            &[
                "-N",
                "-o",
                "ExitOnForwardFailure=yes",
                "-L",
                &format!("{}:127.0.0.1:8000", local.display()),
                "-R",
                &format!("9000:{there}"),
                &host,
            ],
        )
        .spawn()
        .expect("ssh"),
    );
    let mut answer = String::new();
    eventually("the port is forwarded", WAIT, || {
        let Ok(mut socket) = UnixStream::connect(&local) else { return false };
        socket.write_all(ask).and_then(|()| socket.read_to_string(&mut answer)).is_ok() && answer.ends_with("deep")
    });
    let asked = machine.spawn(&json!({"command": "exec 3<>/dev/tcp/127.0.0.1/9000; cat <&3 > /workspace/got"}));
    let (mut socket, _) = served.accept().expect("a connection");
    socket.write_all(b"from here").expect("sent");
    drop(socket);
    eventually("the process has read it", WAIT, || {
        machine.api.get(&machine.path(&format!("/processes/{asked}"))).ok()["state"] == "exited"
    });
    assert_eq!(machine.output("cat got"), "from here");
    forward.0.kill().expect("killed");
    nothing_is_left(&machine);
}

/// A program that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_command_line_logs_in_with_a_key_for_one_connection() {
    let stack = Stack::start();
    let desk = Desk::new(&stack);
    let machine = stack.api().small();
    let output = desk.runtime(&["ssh", &machine.id, "--", "echo $((6 * 7)) in $PWD; exit 5"]);
    assert_eq!((output.status.code(), said(&output).as_str()), (Some(5), "42 in /workspace\n"));
    let output = desk.runtime(&["ssh", &machine.id, "--", "printf", "%s|", "a b", "$HOME", "it's"]);
    assert_eq!((output.status.code(), said(&output).as_str()), (Some(0), "a b|$HOME|it's|"));
    // A login reads its shell's lines from what is piped in.
    let mut login = desk.command(program());
    let mut login = login.args(["sandboxes", "ssh", &host(&machine)]).stdin(Stdio::piped()).stdout(Stdio::piped());
    login = login.stderr(Stdio::piped());
    let mut login = login.spawn().expect("runtime");
    login.stdin.take().expect("a pipe").write_all(b"id -un; exit 9\n").expect("typed");
    let output = login.wait_with_output().expect("it ends");
    assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stdout).as_ref()), (Some(9), "runtime\n"));
    let left: Vec<_> = std::fs::read_dir(desk.keys()).expect("a directory").map(|one| one.expect("an entry")).collect();
    assert!(left.iter().all(|one| !one.file_name().to_string_lossy().starts_with("login-")), "{left:?}");
    assert!(!desk.keys().join("id_ed25519").exists(), "nothing was made that stays");

    // What is told without a connection.
    let none = desk.runtime(&["ssh"]);
    assert!(none.status.code() == Some(64) && said(&none).contains("ssh worker"), "{}", said(&none));
    assert_eq!(desk.runtime(&["ssh", "--json", &machine.id]).status.code(), Some(1));
    let unknown = desk.runtime(&["ssh", "nobody-has-this-name"]);
    assert!(unknown.status.code() == Some(1) && said(&unknown).contains("sandbox_not_found"), "{}", said(&unknown));
    let mut bare = desk.command(program());
    bare.env("PATH", "/nonexistent").args(["sandboxes", "ssh", &machine.id]);
    let bare = bare.output().expect("runtime");
    assert!(bare.status.code() == Some(1) && said(&bare).contains("openssh-client"), "{}", said(&bare));

    // Settings: printed, or kept; a second time changes nothing.
    let printed = desk.runtime(&["ssh", "config"]);
    assert!(said(&printed).contains("Host *.runtime\n") && said(&printed).contains("StrictHostKeyChecking yes\n"));
    let key = std::fs::read(desk.keys().join("id_ed25519.pub")).expect("a key");
    for _ in 0..2 {
        assert_eq!(desk.runtime(&["ssh", "config", "--install"]).status.code(), Some(0));
    }
    let included = std::fs::read_to_string(desk.at(".ssh/config")).expect("settings");
    assert_eq!(included.matches("Include").count(), 1, "{included}");
    assert_eq!(std::fs::read(desk.keys().join("id_ed25519.pub")).expect("a key"), key);
    for (file, mode) in [("id_ed25519", 0o600), ("config", 0o600), ("", 0o700)] {
        let mode_now = std::fs::metadata(desk.keys().join(file)).expect("there").permissions().mode() & 0o777;
        assert_eq!(mode_now, mode, "{file}");
    }
}

#[test]
fn only_this_connections_key_and_host_key_are_taken() {
    let stack = Stack::start();
    let desk = Desk::installed(&stack);
    let (one, other) = (stack.api().small(), stack.api().small());
    let (mine, foreign) = (desk.pair("mine"), desk.pair("foreign"));
    let by = |machine: &Machine, names: &str, identity: &str, known: Option<&str>| {
        let known_here = desk.at("known");
        let _ = std::fs::remove_file(&known_here);
        let proxy = format!(
            "ProxyCommand={} sandboxes ssh proxy --key {names}.pub --known-hosts {} %h",
            program().display(),
            known_here.display()
        );
        let known = known.map_or_else(|| known_here.display().to_string(), str::to_owned);
        desk.ssh(&[
            "-o",
            &proxy,
            "-o",
            &format!("UserKnownHostsFile={known}"),
            "-i",
            identity,
            "-o",
            "IdentityAgent=none",
            "-o",
            "ControlPath=none",
            &host(machine),
            "echo in",
        ])
    };
    // The settings name the lasting key as well, which was not named for this connection: one of the two is let in.
    let let_in = by(&one, &mine, &mine, None);
    assert_eq!((let_in.status.code(), said(&let_in).as_str()), (Some(0), "in\n"));
    refused(&by(&one, &mine, &foreign, None), "Permission denied (publickey)");
    // The key that just opened one connection, and a key of another sandbox's, open no other.
    assert_eq!(by(&other, &foreign, &foreign, None).status.code(), Some(0));
    refused(&by(&other, &mine, &foreign, None), "Permission denied (publickey)");
    // Nobody is trusted blindly: a host whose key the server did not tell, or told for another connection, is none.
    refused(&by(&one, &mine, &mine, Some("/dev/null")), "Host key verification failed");
    let kept = desk.at("kept");
    assert_eq!(by(&one, &mine, &mine, None).status.code(), Some(0));
    std::fs::copy(desk.at("known"), &kept).expect("copied");
    let before = by(&one, &mine, &mine, Some(kept.to_str().expect("text")));
    refused(&before, "Host key verification failed");

    // The rights of the API's key are those of the login.
    let make = |options: &[&str]| {
        let made = stack.command().args(["keys", "create", "--data-dir"]).arg(stack.dir()).args(options).output();
        String::from_utf8(made.expect("runtime keys").stdout).expect("a key").trim().to_owned()
    };
    for (key, why) in [
        (make(&["--name", "reader", "--read-only"]), "forbidden"),
        (make(&["--name", "stranger"]), "not_found"),
        ("rtcloud_none".to_owned(), "unauthorized"),
    ] {
        let output = desk.open("ssh", &[&host(&one), "true"]).env("RUNTIME_API_KEY", key).output().expect("ssh");
        refused(&output, why);
    }
    // Without an sshd the reason is told, with what to do.
    assert_eq!(one.root("mv /usr/sbin/sshd /usr/sbin/sshd.gone").code, Some(0));
    refused(&desk.ssh(&[&host(&one), "true"]), "openssh-server");
    nothing_is_left(&one);
}

#[test]
fn an_open_login_keeps_its_sandbox_awake_and_a_key_that_is_not_used_expires() {
    let stack = Stack::start();
    let desk = Desk::installed(&stack);
    let idle = json!({"vcpu": 1, "memoryMiB": 512, "idlePauseSeconds": 60});
    let (held, left) = (stack.api().create(&idle), stack.api().create(&idle));
    let unnamed = Instant::now();
    // One that names a key and does not use it, and one that is logged in and does nothing.
    let mut silent = Running(
        desk.command(program())
            .args(["sandboxes", "ssh", "proxy", &host(&held)])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("runtime"),
    );
    let mut banner = [0; 8];
    silent.0.stdout.as_mut().expect("a pipe").read_exact(&mut banner).expect("a banner");
    assert_eq!(&banner, b"SSH-2.0-");
    let mut waiting = desk.open("ssh", &[&host(&held), "read line; echo got $line"]);
    let mut waiting = waiting.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("ssh");
    eventually("the key has expired", GRACE, || silent.0.try_wait().expect("waited").is_some());
    // Time itself is under test: not sooner than it may, either.
    assert!(unnamed.elapsed() > Duration::from_secs(59), "{:?}", unnamed.elapsed());
    // The same time without a connection is a pause. Asked of the list: whoever asks for one sandbox keeps it awake.
    let paused = || stack.api().get("/v1/sandboxes?state=paused").ok().to_string();
    eventually("the other is paused", GRACE, || paused().contains(&left.id));
    // Well past the moment at which the one that is held would have been, too.
    std::thread::sleep(Duration::from_secs(90).saturating_sub(unnamed.elapsed()));
    assert!(!paused().contains(&held.id));
    waiting.stdin.take().expect("a pipe").write_all(b"late\n").expect("typed");
    let output = waiting.wait_with_output().expect("ssh ends");
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(0), &b"got late\n"[..]));
}

#[test]
fn connecting_wakes_a_paused_sandbox() {
    let stack = Stack::start();
    let desk = Desk::installed(&stack);
    let machine = stack.api().small();
    let host = host(&machine);
    let pid = desk.said(&[&host, "sleep 600 >/dev/null 2>&1 </dev/null & echo $!"]);
    let mut open = desk.open("ssh", &[&host, "echo here; cat"]);
    let mut open = open.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("ssh");
    let mut here = [0; 5];
    open.stdout.as_mut().expect("a pipe").read_exact(&mut here).expect("a line");
    assert_eq!(&here, b"here\n");
    machine.verb(":pause");
    assert_eq!(machine.state(), "paused");
    // The old connection has ended with the pause, and says so.
    refused(&open.wait_with_output().expect("ssh ends"), "paused");
    assert_eq!(machine.state(), "paused", "what was open wakes nothing");
    assert_eq!(desk.said(&[&host, &format!("ps -o comm= -p {pid}")]), "sleep\n");
    assert_eq!(machine.state(), "running");
    nothing_is_left(&machine);
    // One that is stopped is not started by it.
    machine.verb(":stop");
    refused(&desk.ssh(&[&host, "true"]), "stopped");
}

#[test]
fn a_server_that_dies_ends_its_logins_and_the_next_one_has_others() {
    let mut stack = Stack::start();
    let machine = stack.api().small();
    let host = host(&machine);
    let open = {
        let desk = Desk::installed(&stack);
        let mut open = desk.open("ssh", &[&host, "echo here; cat"]);
        let mut open = open.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("ssh");
        let mut here = [0; 5];
        open.stdout.as_mut().expect("a pipe").read_exact(&mut here).expect("a line");
        open
    };
    stack.kill9();
    refused(&open.wait_with_output().expect("ssh ends"), "connection_error");
    stack.restart();
    nothing_is_left(&machine);
    assert_eq!(Desk::installed(&stack).said(&[&host, "echo again"]), "again\n");
}

#[test]
fn a_microvm_is_reached_as_well() {
    let args = ["--engine", "qemu"].map(str::to_owned).to_vec();
    let stack = Stack::start_with(StackOptions { args, ..StackOptions::default() });
    let desk = Desk::installed(&stack);
    let machine = stack.api().create(&json!({}));
    let host = host(&machine);
    let output = desk.ssh(&["-tt", "-q", &host, "uname -s; tty; exit 3"]);
    assert_eq!(output.status.code(), Some(3), "{}", said(&output));
    assert!(said(&output).starts_with("Linux\r\n/dev/pts/"), "{}", said(&output));
    let (here, back) = (desk.at("here").display().to_string(), desk.at("back").display().to_string());
    std::fs::write(&here, pattern(300_000)).expect("written");
    desk.copied(&[&here, &format!("{host}:f")]);
    desk.copied(&[&format!("{host}:f"), &back]);
    assert!(std::fs::read(&back).expect("read") == pattern(300_000));
    nothing_is_left(&machine);
}
