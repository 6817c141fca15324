//! The guest contract: every tool it names runs inside a sandbox as its user, and the places are where it says.

use runtime_test_kit::{Machine, Stack};
use serde_json::json;

fn machine(stack: &Stack) -> Machine {
    stack.api().create(&json!({"vcpu": 2, "memoryMiB": 2048}))
}

/// A tool and how it tells that it works.
const TOOLS: &[(&str, &str)] = &[
    ("bash", "bash --version"),
    ("tar", "tar --version"),
    ("gzip", "echo x | gzip | gunzip"),
    ("xz", "echo x | xz | unxz"),
    ("zip", "cd /tmp && echo x > z && zip -q z.zip z && unzip -p z.zip"),
    ("base64", "echo x | base64"),
    (
        "git",
        "cd $(mktemp -d) && git init -q . && git config user.email a@b && git config user.name n && echo x > f && git add f && git commit -qm m && git log --oneline",
    ),
    ("curl", "curl --version"),
    ("wget", "wget --version"),
    ("python3", "python3 --version"),
    ("python", "python --version"),
    ("pip", "pip --version"),
    ("venv", "python3 -m venv /tmp/v && /tmp/v/bin/python -c 'print(1)'"),
    ("numpy", "python3 -c 'import numpy; print(numpy.arange(3).sum())'"),
    ("pandas", "python3 -c \"import pandas; print(pandas.DataFrame({'a': [1, 2]}).a.sum())\""),
    (
        "matplotlib",
        "cd /tmp && python3 -c \"import matplotlib; matplotlib.use('Agg'); import matplotlib.pyplot as p; p.plot([1, 2]); p.savefig('x.png')\" && file x.png",
    ),
    ("node", "node -e 'console.log(1 + 1)'"),
    ("npm", "npm --version"),
    ("pnpm", "pnpm --version"),
    ("yarn", "yarn --version"),
    ("uv", "uv --version"),
    ("gcc", "cd /tmp && echo 'int main(){return 42;}' > a.c && gcc a.c -o a && { ./a; [ $? = 42 ]; } && echo built"),
    ("g++", "g++ --version"),
    ("make", "make --version"),
    ("jq", "echo '{\"a\":1}' | jq .a"),
    ("rg", "echo needle > /tmp/hay && rg needle /tmp/hay"),
    ("fd", "touch /tmp/findme && fd findme /tmp"),
    ("sqlite3", "sqlite3 :memory: 'select 1+1'"),
    ("ps", "ps -e | head -2"),
    ("pgrep", "pgrep --version"),
    ("top", "top -b -n 1 | head -1"),
    ("sshd", "test -x /usr/sbin/sshd && echo there"),
    ("certificates", "grep -c BEGIN /etc/ssl/certs/ca-certificates.crt"),
    ("flock", "flock /tmp/lock echo locked"),
    ("setsid", "setsid --wait echo own"),
    ("find -printf", "find /etc/hostname -printf '%p\\n'"),
    ("stat -c", "stat -c %U /workspace"),
    ("readlink -z", "readlink -z /proc/self/exe | tr '\\0' '\\n'"),
    ("sudo", "sudo -n whoami"),
];

#[test]
fn every_tool_of_the_contract_runs() {
    let stack = Stack::start();
    let machine = machine(&stack);
    let mut broken = Vec::new();
    for (tool, command) in TOOLS {
        let ran = machine.exec(&json!({"command": command, "timeoutMs": 60000}));
        if ran.code != Some(0) || ran.out.trim().is_empty() {
            broken.push(format!("{tool}: {}", ran.answer));
        } else {
            println!("{tool}: {}", ran.out.lines().next().unwrap_or_default());
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn the_user_and_the_places_are_as_promised() {
    let stack = Stack::start();
    let machine = machine(&stack);
    let out = machine.output("id -un; id -u; id -gn; pwd; echo $HOME; echo $USER; echo $LOGNAME; echo $LANG; stat -c %U:%G:%a /workspace; getent passwd runtime | cut -d: -f6-7; . /etc/os-release; echo $ID$VERSION_ID");
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines[..8], ["runtime", "1000", "runtime", "/workspace", "/workspace", "runtime", "runtime", "C.UTF-8"]);
    assert!(lines[8].starts_with("runtime:runtime:"), "{out}");
    assert_eq!(lines[9..], ["/workspace:/bin/bash", "debian12"]);
    let path = machine.output("echo $PATH");
    assert!(path.starts_with("/workspace/.local/bin:/usr/local/bin:/usr/bin:/bin"), "{path}");
    assert_eq!(machine.output("ls -A"), "", "a new /workspace is not empty");
    assert_eq!(machine.output("test -e /run/runtime/environment.json || echo none"), "none\n");
    // The clock is the host's.
    let host = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a clock").as_secs();
    let before = host();
    let inside: u64 = machine.output("date +%s").trim().parse().expect("a time");
    assert!((before - 2..=host() + 2).contains(&inside), "{before} before, {inside} inside, {} after", host());
    // Standard places exist and can be written.
    assert_eq!(
        machine.output("for d in /tmp /var/tmp /dev/shm /workspace; do echo x > $d/probe && cat $d/probe; done"),
        "x\nx\nx\nx\n"
    );
    assert_eq!(
        machine.output(
            "echo x > /dev/null; head -c 3 /dev/zero | wc -c; ls /dev/stdin /dev/fd/0 >/dev/null && echo devices"
        ),
        "3\ndevices\n"
    );
    assert_eq!(
        machine.output("sudo -n sh -c 'echo 127.0.0.1 mine >> /etc/hosts; getent hosts mine' | awk '{print $1}'"),
        "127.0.0.1\n"
    );
}

#[test]
fn packages_of_the_user_are_on_the_path() {
    let stack = Stack::start();
    let machine = machine(&stack);
    // No network here: a package is made on the spot.
    let setup = "mkdir -p p/mine && cd p && cat > pyproject.toml <<'E'\n[build-system]\nrequires = [\"setuptools\"]\nbuild-backend = \"setuptools.build_meta\"\n[project]\nname = \"mine\"\nversion = \"1\"\n[project.scripts]\nminecmd = \"mine:main\"\nE\necho 'def main(): print(\"my command\")' > mine/__init__.py && pip install --no-index --no-build-isolation --no-deps . 2>&1 | tail -2";
    let ran = machine.exec(&json!({"command": setup, "timeoutMs": 60000}));
    assert_eq!(ran.code, Some(0), "{}", ran.answer);
    assert_eq!(machine.output("minecmd"), "my command\n", "{}", ran.answer);
    assert_eq!(machine.output("command -v minecmd"), "/workspace/.local/bin/minecmd\n");
    assert!(machine.output("python3 -c 'import mine; print(mine.__file__)'").starts_with("/workspace/.local/"));
    assert_eq!(machine.output("grep -c break-system-packages /etc/pip.conf"), "1\n");
}

#[test]
fn sudo_serves_its_usual_forms() {
    let stack = Stack::start();
    let machine = machine(&stack);
    for (command, out) in [
        ("sudo -n id -u", "0\n"),
        ("sudo id -u", "0\n"),
        ("sudo -n -u runtime id -un", "runtime\n"),
        ("sudo -n -E sh -c 'echo $MINE'", "kept\n"),
        ("sudo -n --preserve-env=MINE sh -c 'echo $MINE'", "kept\n"),
        ("sudo -n -H sh -c 'echo $HOME'", "/root\n"),
        ("sudo -n sh -c 'echo $SUDO_UID $SUDO_GID $SUDO_USER'", "1000 1000 runtime\n"),
        ("sudo -n A=b sh -c 'echo $A'", "b\n"),
        ("sudo -n -- echo dashes", "dashes\n"),
        ("echo piped | sudo -n cat", "piped\n"),
        ("sudo -n pwd", "/workspace\n"),
        ("sudo -n sudo -n id -u", "0\n"),
        ("sudo -n true && echo yes", "yes\n"),
        ("sudo -n sh -c 'exit 5'; echo $?", "5\n"),
        ("sudo -n sh -c 'kill -9 $$'; echo $?", "137\n"),
    ] {
        let ran = machine.exec(&json!({"command": command, "env": {"MINE": "kept"}}));
        assert_eq!(ran.out, out, "{command}: {}", ran.answer);
    }
    // A service started by it lives as long as the command that started it.
    assert_eq!(machine.output("sudo -n sleep 4321 & sleep 0.2; pgrep -c -f '^sleep 432[1]'"), "1\n");
    assert_eq!(machine.sh("pgrep -c -f '^sleep 432[1]'").out, "0\n");
}
