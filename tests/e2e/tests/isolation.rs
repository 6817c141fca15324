//! A guest reaches neither the host, nor another sandbox, nor a network, nor a secret; and whatever it does to itself,
//! its agent and its server go on. The guest here is root: that is what it is given.

use runtime_test_kit::{Machine, Stack, eventually, leaks, unique, until};
use serde_json::json;
use std::fs;
use std::time::Duration;

/// The agent answers, by a new command and by a file. One that is busy is asked again, as every client does.
#[track_caller]
fn lives(machine: &Machine, after: &str) {
    let body = json!({"command": "echo alive"});
    let answer = until(&format!("an answer after {after}"), Duration::from_secs(30), || {
        let answer = machine.api.post(&machine.path(":exec"), &body);
        (answer.status != 503).then_some(answer)
    });
    assert_eq!(answer.status, 200, "after {after}: {}; the sandbox: {}", answer.text(), machine.info());
    assert_eq!(answer.json()["stdout"], "alive\n", "after {after}");
    machine.write("/workspace/alive", b"yes");
    assert_eq!(machine.read("/workspace/alive"), b"yes");
    assert_eq!(machine.state(), "running");
}

#[test]
fn the_files_of_the_host_are_not_there() {
    let stack = Stack::start();
    let machine = stack.api().small();
    let marker = unique("marker-of-the-host");
    let on_host = stack.dir().join(&marker);
    fs::write(&on_host, "secret of the host").expect("a file on the host");
    let path = on_host.display().to_string();
    let ways = [
        format!("cat {path}"),
        format!("cat /proc/1/root{path}"),
        format!("cat /proc/self/root{path}"),
        format!("cat /proc/1/cwd/../../../../../..{path}"),
        format!("for p in /proc/[0-9]*; do cat $p/root{path}; for f in $p/fd/*; do cat $f/{marker} $f/../{marker} $f/../../{marker}; done; done"),
        format!("mkdir -p /mnt/x && mount --bind / /mnt/x && cat /mnt/x{path} /mnt/x/../../..{path}"),
        format!("mkdir -p /mnt/h && for d in /dev/vd* /dev/sd* /dev/loop* /dev/nvme*; do mount $d /mnt/h && cat /mnt/h{path}; done"),
        format!("chroot /proc/1/root cat {path}"),
        format!("nsenter -t 1 -m -p -- cat {path}"),
        format!("unshare -m sh -c 'mount -t tmpfs t /mnt; cat {path}'"),
        format!("ln -sf {path} /workspace/link; cat /workspace/link"),
        "cat /.gvisor.filestore* /gvisor*".to_owned(),
        format!("find / -xdev -name '{marker}' | grep . && echo 'secret of the host'"),
        "mknod /tmp/disk b 254 0 && head -c 512 /tmp/disk | grep -q . && echo 'secret of the host'".to_owned(),
        "python3 -c \"import os; fd=os.open('/', os.O_RDONLY); [os.chdir('..') for _ in range(50)]; os.chroot('.'); print(open('%s').read())\"".replace("%s", &path),
        "mkdir /tmp/j && cd /tmp/j && python3 - <<'P'\nimport os\nfd = os.open('/', os.O_RDONLY)\nos.mkdir('/tmp/j/k')\nos.chroot('/tmp/j/k')\nos.fchdir(fd)\nfor _ in range(100): os.chdir('..')\nos.chroot('.')\nprint(open('PATH').read())\nP".replace("PATH", &path),
    ];
    for way in ways {
        let ran = machine
            .exec(&json!({"command": format!("( {way} ) 2>/dev/null </dev/null"), "user": "root", "timeoutMs": 30000}));
        assert!(!ran.out.contains("secret of the host"), "{way}: {}", ran.out);
    }
    lives(&machine, "all that");
    // Nor can what it makes be seen or kept outside its own disk.
    let mine = unique("marker-of-the-guest");
    let _ = machine.root(&format!(
        "touch /{mine} /dev/{mine} /run/{mine} /tmp/{mine} /dev/shm/{mine} /proc/{mine} /sys/{mine} 2>/dev/null"
    ));
    for place in ["/", "/dev", "/run", "/tmp", "/dev/shm", "/var/lib/runtime", "/var/lib/runtime/pool"] {
        assert!(!std::path::Path::new(place).join(&mine).exists(), "{place}/{mine} is on the host");
    }
}

#[test]
fn another_sandbox_is_not_there() {
    let stack = Stack::start();
    let (a, b) = (stack.api().small(), stack.api().small());
    let secret = unique("secret-of-a");
    a.write("/workspace/secret", secret.as_bytes());
    let process = a.spawn(&json!({"argv": ["sleep", "4321"], "env": {"HIDDEN": secret}}));
    assert_eq!(
        a.root(&format!("echo {secret} > /root/s; echo {secret} > /tmp/s; echo {secret} > /dev/shm/s")).code,
        Some(0)
    );
    for way in [
        "cat /workspace/secret /tmp/s /dev/shm/s /root/s",
        "grep -rs secret-of-a /tmp /dev/shm /run /workspace /root /home /var/tmp",
        "cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline | tr '\\0' '\\n'",
        "ps auxe",
        "ipcs -a; cat /proc/sysvipc/*",
        "grep -as secret-of-a /dev/mem /dev/kmem /proc/kcore",
        "cat /.gvisor.filestore*",
    ] {
        let ran = b.exec(&json!({"command": format!("( {way} ) 2>/dev/null"), "user": "root", "timeoutMs": 30000}));
        assert!(!ran.out.contains(&secret), "{way}");
        assert!(!ran.out.contains("sleep 4321"), "{way} shows a process of another sandbox");
    }
    // A process id of one is nothing to the other.
    let _ = b.api.get(&b.path(&format!("/processes/{process}"))).refused(404, "not_found");
    let _ = b
        .api
        .post(&b.path(&format!("/processes/{process}:signal")), &json!({"signal": "SIGKILL"}))
        .refused(404, "not_found");
    // Same loopback port in both: each has its own.
    for (machine, text) in [(&a, "of a"), (&b, "of b")] {
        machine.write("/workspace/serve.py", format!("import socket\ns=socket.create_server(('127.0.0.1',7777))\nprint('up',flush=True)\nwhile True:\n c,_=s.accept(); c.sendall(b'{text}'); c.close()\n").as_bytes());
        let _ = machine.spawn(&json!({"argv": ["python3", "/workspace/serve.py"]}));
    }
    for (machine, text) in [(&a, "of a"), (&b, "of b")] {
        eventually("its own server answers", Duration::from_secs(20), || {
            machine.sh("exec 3<>/dev/tcp/127.0.0.1/7777 && cat <&3").out == text
        });
    }
    // And random numbers differ.
    let random = "head -c 16 /dev/urandom | od -An -tx1; cat /proc/sys/kernel/random/uuid; hostname";
    let (one, two) = (a.output(random), b.output(random));
    assert_ne!(one.lines().next(), two.lines().next());
    assert_ne!(one.lines().nth(1), two.lines().nth(1));
}

#[test]
fn a_base_image_is_no_way_from_one_sandbox_to_the_next() {
    let stack = Stack::start();
    let first = stack.api().small();
    let mark = unique("planted");
    let _ = first.root(&format!("echo {mark} > /etc/{mark}; echo 'echo {mark}' >> /etc/bash.bashrc; echo {mark} >> /etc/profile; echo '{mark}' > /usr/bin/{mark}; mount -o remount,rw / ; chattr -i /etc/passwd; echo '#{mark}' >> /etc/passwd"));
    let second = stack.api().small();
    let ran = second.root(&format!("ls /etc/{mark} /usr/bin/{mark}; grep -rsl {mark} /etc /usr/local /workspace"));
    assert_eq!(ran.out, "", "{}", ran.answer);
    first.delete();
    let third = stack.api().small();
    assert_eq!(third.root(&format!("grep -rsl {mark} /etc /usr/local /workspace /var /root /tmp")).out, "");
}

#[test]
fn without_internet_there_is_no_network() {
    let stack = Stack::start();
    let machine = stack.api().create(&json!({"vcpu": 1, "memoryMiB": 512, "network": {"internet": false}}));
    // A listener on the host, on every address it has.
    let listener = std::net::TcpListener::bind("0.0.0.0:0").expect("a port of the host");
    let port = listener.local_addr().expect("its address").port();
    let server_port = stack.api().address().port();
    machine.write("/workspace/try.py", PROBE.as_bytes());
    let out = machine.exec(&json!({
        "command": format!("python3 try.py {port} {server_port}; sudo -n python3 try.py {port} {server_port}"), "timeoutMs": 300000,
    }));
    assert_eq!(out.code, Some(0), "{}", out.answer);
    assert!(!out.out.contains("reached"), "{}", out.out);
    assert_eq!(out.out.matches("end of probe").count(), 2, "{}", out.answer);
    for command in [
        "curl -sS -m 5 http://169.254.169.254/latest/meta-data/",
        "curl -sS -m 5 https://example.com/",
        "getent hosts example.com",
        "git ls-remote https://example.com/x.git",
        "ssh -o ConnectTimeout=5 -o StrictHostKeyChecking=no 10.0.0.1 true",
    ] {
        let ran = machine.exec(&json!({"command": command, "timeoutMs": 300000}));
        assert_ne!(ran.code, Some(0), "{command}: {}", ran.answer);
        assert_eq!(ran.answer["timedOut"], false, "{command} hangs instead of being refused");
    }
    // Loopback is its own and works.
    assert_eq!(machine.output("python3 -c \"import socket; s=socket.create_server(('127.0.0.1',0)); c=socket.create_connection(s.getsockname()); print('loopback')\""), "loopback\n");
}

/// Tries what should be out of reach; prints `reached` and what, or nothing.
const PROBE: &str = r#"
import fcntl, os, socket, struct, sys
ports = [int(one) for one in sys.argv[1:]]
hosts = ["169.254.169.254", "10.0.0.1", "172.17.0.1", "192.168.0.1", "100.100.100.200", "1.1.1.1", "8.8.8.8", "198.51.100.1", "0.0.0.0", "127.0.0.1", "127.0.0.53"]
for name in ("/proc/net/route", "/proc/net/arp"):
    try:
        for line in open(name).read().splitlines()[1:]:
            hosts.append(socket.inet_ntoa(struct.pack("<L", int(line.split()[2], 16))))
    except (OSError, ValueError, IndexError):
        pass
for host in dict.fromkeys(hosts):
    for port in ports + [22, 53, 80, 443]:
        if host.startswith(("127.", "0.")) and port not in ports:
            continue
        s = socket.socket()
        s.settimeout(1)
        try:
            s.connect((host, port))
            s.sendall(b"GET / HTTP/1.0\r\n\r\n")
            if s.recv(1):
                print("reached", host, port)
        except OSError:
            pass
        finally:
            s.close()
for kind, proto in ((socket.SOCK_RAW, socket.IPPROTO_ICMP), (socket.SOCK_DGRAM, 0)):
    try:
        s = socket.socket(socket.AF_INET, kind, proto)
        s.settimeout(1)
        s.sendto(b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x07example\x03com\x00\x00\x01\x00\x01", ("8.8.8.8", 53))
        s.recv(100)
        print("reached 8.8.8.8 by", kind)
    except OSError:
        pass
for name in ("@/tmp/.X11-unix/X0", "/run/docker.sock", "/var/run/docker.sock", "/run/systemd/private"):
    s = socket.socket(socket.AF_UNIX)
    try:
        s.connect(name.replace("@", "\0"))
        print("reached", name)
    except OSError:
        pass
try:
    s = socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)
    s.settimeout(1)
    for cid in (0, 1, 2):
        try:
            s.connect((cid, 1024))
            print("reached vsock", cid)
        except OSError:
            pass
except (OSError, AttributeError):
    pass
print("end of probe")
"#;

#[test]
fn no_secret_of_the_server_is_inside() {
    let stack = Stack::start();
    let machine = stack.api().create(&json!({"vcpu": 1, "memoryMiB": 512, "env": {"VISIBLE": "fine"}}));
    let key = stack.owner_key();
    let secret_half = key.splitn(3, '_').nth(2).expect("the secret part of the key");
    let dir = stack.dir().display().to_string();
    let look = machine.exec(&json!({"command": "( env; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline /proc/[0-9]*/maps /proc/self/mountinfo /proc/mounts | tr '\\0' '\\n'; \
        ls -la /proc/[0-9]*/fd /proc/[0-9]*/cwd /proc/[0-9]*/exe; grep -rs rtcloud_ /run /etc /tmp /workspace /root /dev/shm /var/lib /usr/local; \
        find / -xdev -name 'owner*key' -o -xdev -name 'runtime*db*' -o -xdev -name 'machine*json'; hostname; uname -a; dmesg ) 2>/dev/null", "user": "root", "timeoutMs": 300000}));
    let all = format!("{}{}", look.out, look.err);
    assert!(all.contains("VISIBLE=fine"), "the look saw nothing: {}", look.answer);
    for word in [key, secret_half, "owner.key", "runtime.db"] {
        assert!(!all.contains(word), "{word} is seen inside");
    }
    assert!(!all.contains(&dir), "the data directory's path is seen inside");
    // The memory of the agent, as far as root inside may look.
    let grep = machine.exec(&json!({"command": format!("grep -c {secret_half} /proc/1/mem /proc/1/environ 2>/dev/null | grep -v ':0$'"), "user": "root"}));
    assert_eq!(grep.out, "");
    // Nor in the log, nor in what is stored.
    assert!(!stack.log().contains(secret_half), "the log holds the owner's key");
    for entry in fs::read_dir(stack.dir()).expect("the data directory").flatten() {
        let name = entry.file_name();
        if name != "owner.key" && entry.file_type().is_ok_and(|kind| kind.is_file()) {
            let raw = fs::read(entry.path()).expect("a file of the data directory");
            let found = raw.windows(secret_half.len()).any(|part| part == secret_half.as_bytes());
            assert!(!found, "{} holds the owner's key", entry.path().display());
        }
    }
    use std::os::unix::fs::PermissionsExt;
    let mode = fs::metadata(stack.dir().join("owner.key")).expect("the owner's key").permissions().mode();
    assert_eq!(mode & 0o077, 0, "others may read the owner's key: {mode:o}");
}

#[test]
fn environment_values_are_not_told_and_not_logged() {
    let stack = Stack::start();
    let value = unique("value-of-a-secret");
    let machine = stack.api().create(&json!({"vcpu": 1, "memoryMiB": 512, "env": {"SECRET": value}}));
    assert_eq!(machine.output("echo $SECRET"), format!("{value}\n"));
    let _ = machine.exec(&json!({"command": "true", "env": {"OTHER": value}, "stdin": value}));
    for answer in [
        machine.api.get(&machine.path("")),
        machine.api.get("/v1/sandboxes"),
        machine.api.get(&machine.path("/processes")),
        machine.api.post(&machine.path(":update"), &json!({"env": {"MORE": value}})),
    ] {
        assert!(!answer.text().contains(&value), "{}", answer.text());
    }
    assert!(!stack.log().contains(&value), "the log holds the value of a variable");
    machine.delete();
}

#[test]
fn a_guest_that_kills_everything_leaves_its_agent() {
    let stack = Stack::start();
    let machine = stack.api().small();
    for command in [
        "kill -9 -1",
        "for p in /proc/[0-9]*; do p=${p#/proc/}; [ $p = 1 ] || kill -9 $p; done",
        "kill -TERM 1; kill -HUP 1; kill -INT 1; kill -SEGV 1; kill -ABRT 1; kill -TSTP 1",
    ] {
        let _ =
            machine.api.post(&machine.path(":exec"), &json!({"command": command, "user": "root", "timeoutMs": 10000}));
        lives(&machine, &format!("root's {command}"));
        let sudo = ["sudo", "-n", "bash", "-c", command];
        let _ = machine.api.post(&machine.path(":exec"), &json!({"argv": sudo, "timeoutMs": 10000}));
        lives(&machine, &format!("sudo's {command}"));
    }
    // Its files under it, and its own state.
    let _ = machine
        .root("rm -rf /run/* /dev/shm/* /tmp/* 2>/dev/null; umount -l /proc /sys /dev /run /tmp 2>/dev/null; true");
    lives(&machine, "unmounting everything");
}

#[test]
fn no_signal_that_can_be_caught_ends_the_first_process() {
    let stack = Stack::start();
    let machine = stack.api().small();
    // SIGKILL and SIGSTOP cannot be caught, and the two that the C library keeps to itself (32, 33) end gVisor's kernel
    // when they wait: a guest that is root may end its own sandbox by them (docs/decisions/0008).
    let ran =
        machine.root("for s in $(seq 1 64); do case $s in 9|19|32|33) ;; *) kill -$s 1 || echo cannot $s;; esac; done");
    assert_eq!((ran.code, ran.out.as_str()), (Some(0), ""), "{ran:?}");
    lives(&machine, "all that");
}

#[test]
fn a_guest_that_stops_everything_is_still_served() {
    let stack = Stack::start();
    let machine = stack.api().small();
    let body = json!({"command": "kill -STOP -1", "user": "root", "timeoutMs": 5000}).to_string();
    let mut connection = machine.api.connect();
    connection.set_patience(Duration::from_secs(120));
    let head = machine.api.head("POST", &machine.path(":exec"), &[("Content-Length", &body.len().to_string())]);
    connection.write((head + "\r\n" + &body).as_bytes()).expect("the request is taken");
    let answer = connection.read_answer().expect("an answer though its command was stopped");
    println!("{}", answer.text());
    let body = json!({"command": "echo alive"}).to_string();
    let mut connection = machine.api.connect();
    connection.set_patience(Duration::from_secs(120));
    let head = machine.api.head("POST", &machine.path(":exec"), &[("Content-Length", &body.len().to_string())]);
    connection.write((head + "\r\n" + &body).as_bytes()).expect("the request is taken");
    let answer = connection.read_answer().expect("an answer after everything was stopped");
    assert_eq!(answer.ok()["stdout"], "alive\n");
}

#[test]
fn a_guest_that_kills_the_first_process_ends_its_own_sandbox_alone() {
    let stack = Stack::start();
    let (machine, other) = (stack.api().small(), stack.api().small());
    machine.write("/workspace/kept", b"x");
    // What cannot be caught: root may end its own sandbox so, or the first process stands it. Never anything else.
    let _ =
        machine.api.post(&machine.path(":exec"), &json!({"command": "kill -9 1", "user": "root", "timeoutMs": 10000}));
    lives(&other, "its neighbour killed its own first process");
    let seen = until("it runs, or is stopped with its disk", Duration::from_secs(20), || {
        let seen = machine.info();
        (seen["state"] == "stopped"
            || machine.api.post(&machine.path(":exec"), &json!({"command": "true"})).status == 200)
            .then_some(seen)
    });
    if seen["state"] == "stopped" {
        assert_eq!((&seen["stopReason"], &seen["diskKept"]), (&json!("host_stopped"), &json!(true)), "{seen}");
        assert_eq!(machine.verb(":restart")["state"], "running");
    }
    assert_eq!(machine.read("/workspace/kept"), b"x");
    lives(&machine, "all that");
}

#[test]
fn a_guest_that_destroys_its_disk_hurts_itself_alone() {
    let stack = Stack::start();
    let (machine, other) = (stack.api().small(), stack.api().small());
    let _ = machine
        .exec(&json!({"command": "rm -rf --no-preserve-root / 2>/dev/null", "user": "root", "timeoutMs": 300000}));
    lives(&other, "all that");
    // The server still knows it, and can end it.
    assert_eq!(machine.state(), "running");
    let answer = machine.api.post(&machine.path(":exec"), &json!({"command": "true"}));
    assert!(answer.status < 500 || answer.status == 502, "{} {}", answer.status, answer.text());
    machine.delete();
    let fresh = stack.api().small();
    lives(&fresh, "its neighbour's end");
}

const SHELL_BOMB: &str = ":(){ :|:& };:; sleep 3";
const FORK_BOMB: &str = "python3 -c 'import os\nwhile True:\n  try: os.fork()\n  except OSError: pass'";

/// The bomb goes with its command: the next one runs, and the neighbour never notices.
fn bomb(user: &str, memory: u64) {
    let stack = Stack::start();
    let other = stack.api().small();
    for command in [SHELL_BOMB, FORK_BOMB] {
        let machine = stack.api().create(&json!({"vcpu": 1, "memoryMiB": memory}));
        let body = json!({"command": command, "user": user, "timeoutMs": 4000});
        std::thread::scope(|scope| {
            let bomb = scope.spawn(|| machine.api.post(&machine.path(":exec"), &body));
            lives(&other, "its neighbour's fork bomb began");
            println!("{user}: {}", bomb.join().expect("the bomb").text());
        });
        lives(&other, "its neighbour's fork bomb");
        lives(&machine, &format!("{user}'s {command}"));
        machine.delete();
    }
}

#[test]
fn a_fork_bomb_of_the_user_is_held() {
    bomb("sandbox", 2048);
}

#[test]
fn a_fork_bomb_of_the_user_is_held_where_memory_is_short() {
    bomb("sandbox", 512);
}

#[test]
fn a_fork_bomb_of_root_is_held() {
    bomb("root", 2048);
}

#[test]
fn no_descriptor_left_inside() {
    let stack = Stack::start();
    let machine = stack.api().small();
    let hold = "import os, time\nfds = []\ntry:\n  while True: fds.append(os.open('/dev/null', os.O_RDONLY))\nexcept OSError: pass\nprint('held', len(fds), flush=True)\ntime.sleep(4321)";
    for _ in 0..8 {
        let _ = machine.spawn(&json!({"argv": ["python3", "-c", hold], "user": "root"}));
    }
    lives(&machine, "all descriptors are held");
}

#[test]
fn no_thread_left_inside() {
    let stack = Stack::start();
    let machine = stack.api().small();
    let threads = "import threading, time\nn = 0\ntry:\n  while n < 20000:\n    threading.Thread(target=time.sleep, args=(4321,), daemon=True).start(); n += 1\nexcept RuntimeError: pass\nprint(n)";
    let ran = machine
        .api
        .post(&machine.path(":exec"), &json!({"argv": ["python3", "-c", threads], "user": "root", "timeoutMs": 30000}));
    println!("threads: {}", ran.text());
    lives(&machine, "all threads are held");
}

#[test]
fn links_do_not_lead_the_files_api_anywhere_else() {
    let stack = Stack::start();
    let machine = stack.api().small();
    let host = stack.dir().join("marker");
    fs::write(&host, "secret of the host").expect("a file on the host");
    let path = host.display();
    let _ = machine.root(&format!(
        "ln -s {path} /workspace/a; ln -s /proc/1/root/{path} /workspace/b; ln -s ../../../../../..{path} /workspace/c; \
         ln -s /proc/self/root /workspace/root; ln -s /proc/1/fd /workspace/fds; chown -h runtime /workspace/*"
    ));
    for link in ["a", "b", "c", &format!("root{path}"), "fds/0", "fds/1", "fds/3"] {
        let answer = machine.try_read(&format!("/workspace/{link}"));
        assert!(!String::from_utf8_lossy(&answer.body).contains("secret of the host"), "{link}");
        assert!((400..500).contains(&answer.status), "{link}: {} {}", answer.status, answer.text());
        let _ = machine.try_write(&format!("/workspace/{link}"), b"owned");
    }
    assert_eq!(fs::read_to_string(&host).expect("the file on the host"), "secret of the host");
    // A link that changes under the server's feet: it is resolved where the guest is.
    let _ =
        machine.spawn(&json!({"command": "mkdir -p d; while :; do ln -sfn /etc d/x; ln -sfn /workspace/d d/x; done"}));
    for _ in 0..50 {
        let answer = machine.try_write("/workspace/d/x/passwd", b"owned");
        assert!(answer.status == 200 || (400..500).contains(&answer.status), "{} {}", answer.status, answer.text());
    }
    assert!(!machine.root("cat /etc/passwd").out.contains("owned"), "a race of links wrote as root");
    lives(&machine, "all that");
}

#[test]
fn limits_that_root_puts_on_the_agent_do_not_hold() {
    let stack = Stack::start();
    let machine = stack.api().small();
    let _ = machine.root("prlimit --pid 1 --nofile=0:0 --nproc=0:0 --fsize=0:0");
    lives(&machine, "prlimit of the first process");
}

#[test]
fn the_channel_to_the_host_cannot_be_taken_over() {
    let stack = Stack::start();
    let machine = stack.api().small();
    // Whatever is written to the agent's own ends from inside is no frame of the agent's.
    for command in [
        "for f in /proc/1/fd/*; do head -c 65536 /dev/urandom > $f; done",
        "for f in /proc/1/fd/*; do timeout 1 cat $f > /dev/null & done; wait",
        "echo 0 > /proc/1/oom_score_adj; echo 1000 > /proc/1/oom_score_adj; renice 19 1",
        "gdb -p 1 2>/dev/null; strace -f -p 1 -o /tmp/trace & sleep 1; kill -9 $!",
        "dd if=/dev/zero of=/proc/1/mem bs=4096 count=100 seek=1",
        "mount -t tmpfs t /proc; mount --bind /dev/null /proc/1/exe",
    ] {
        let body = json!({"command": format!("( {command} ) >/dev/null 2>&1 </dev/null; true"), "user": "root", "timeoutMs": 15000});
        let ran = machine.api.post(&machine.path(":exec"), &body);
        println!("{command}: {}", ran.text());
        lives(&machine, command);
    }
    machine.delete();
    eventually("nothing of it is left", Duration::from_secs(20), || {
        leaks::traces(std::slice::from_ref(&machine.id), stack.places()).is_empty()
    });
}
