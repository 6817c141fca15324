//! A sandbox gets what was asked for and no more, and one that asks for too much ends its own largest process.

use runtime_test_kit::{Machine, Stack, eventually};
use serde_json::{Value, json};
use std::time::Duration;

/// Takes memory in steps and holds it.
const HOG: &str = "import sys\nheld = []\nfor n in range(int(sys.argv[1])):\n  held.append(bytearray(b'x') * (16 << 20))\nprint('held all', flush=True)\n";

fn sized(stack: &Stack, fields: Value) -> Machine {
    stack.api().create(&fields)
}

#[test]
fn memory_is_what_was_asked_for() {
    let stack = Stack::start();
    let machine = sized(&stack, json!({"vcpu": 1, "memoryMiB": 512}));
    let total: u64 = machine.output("awk '/MemTotal/ {print $2}' /proc/meminfo").trim().parse().expect("KiB");
    assert!((400 * 1024..=520 * 1024).contains(&total), "MemTotal is {total} KiB of 512 MiB");
    machine.write("/workspace/hog.py", HOG.as_bytes());
    assert_eq!(machine.output("python3 hog.py 12"), "held all\n");
}

#[test]
fn a_memory_hog_ends_and_the_sandbox_lives() {
    let stack = Stack::start();
    let machine = sized(&stack, json!({"vcpu": 1, "memoryMiB": 384}));
    let neighbour = sized(&stack, json!({"vcpu": 1, "memoryMiB": 256}));
    machine.write("/workspace/hog.py", HOG.as_bytes());
    let small = machine.spawn(&json!({"command": "sleep 4321"}));
    for user in ["sandbox", "root"] {
        let ran = machine.exec(&json!({"command": "python3 hog.py 64", "user": user, "timeoutMs": 3000000}));
        assert_ne!(ran.code, Some(0), "{}", ran.answer);
        assert!(!ran.out.contains("held all"), "{}", ran.answer);
        let told = &ran.answer["outOfMemory"];
        assert_eq!(told["code"], "out_of_memory", "{}", ran.answer);
        assert_eq!(told["memoryMiB"], 384, "{told}");
        assert!(told["processesKilled"].as_u64().is_some_and(|count| count >= 1), "{told}");
        // The largest process ended, not the sandbox, and not the small one.
        assert_eq!(machine.output("echo alive"), "alive\n");
        let seen = machine.api.get(&machine.path(&format!("/processes/{small}"))).ok();
        assert_eq!(seen["state"], "running", "{seen}");
        assert_eq!(neighbour.output("echo alive"), "alive\n");
    }
    assert_eq!(machine.info()["state"], "running");
}

#[test]
fn memory_filled_through_tmp_is_memory() {
    let stack = Stack::start();
    let machine = sized(&stack, json!({"vcpu": 1, "memoryMiB": 256}));
    let ran = machine.exec(&json!({"command": "dd if=/dev/zero of=/dev/shm/fill bs=1M count=2000; dd if=/dev/zero of=/tmp/fill bs=1M count=2000", "user": "root", "timeoutMs": 3000000}));
    println!("{}", ran.err);
    let _ = machine.root("rm -f /dev/shm/fill /tmp/fill");
    assert_eq!(machine.output("echo alive"), "alive\n");
    assert_eq!(machine.state(), "running");
}

#[test]
fn the_disk_ends_where_it_was_asked_to() {
    let stack = Stack::start();
    let machine = sized(&stack, json!({"vcpu": 1, "memoryMiB": 512, "diskMiB": 3072}));
    let neighbour = sized(&stack, json!({"vcpu": 1, "memoryMiB": 256}));
    let fill = machine.exec(&json!({"command": "dd if=/dev/zero of=fill bs=1M count=8000 conv=fsync 2>&1; ls -s --block-size=M fill", "timeoutMs": 3000000}));
    let full = fill.out.contains("Disk quota exceeded") || fill.out.contains("No space left");
    assert!(full, "{}", fill.answer);
    let size: u64 =
        fill.out.lines().last().and_then(|line| line.trim().split('M').next()?.parse().ok()).expect("a size");
    assert!((500..=3072).contains(&size), "{size} MiB fit on a disk of 3072 MiB");
    // The API says so too, and the agent and the server go on.
    let answer = machine.try_write("/workspace/more", &vec![b'x'; 1 << 20]);
    assert_eq!(answer.code().as_deref(), Some("disk_full"), "{}", answer.text());
    assert_eq!(machine.output("echo alive"), "alive\n");
    neighbour.write("/workspace/more", &vec![b'x'; 1 << 20]);
    // Room that is given back is there again, after a stop as well.
    let _ = machine.verb(":stop");
    let _ = machine.verb(":restart");
    assert_eq!(machine.sh("rm fill && sync").code, Some(0));
    eventually("there is room again", Duration::from_secs(60), || {
        machine.try_write("/workspace/more", &vec![b'x'; 1 << 20]).status == 200
    });
    // Root has no way round.
    let root = machine.exec(&json!({"command": "dd if=/dev/zero of=/var/fill bs=1M count=8000 conv=fsync 2>&1", "user": "root", "timeoutMs": 3000000}));
    assert_ne!(root.code, Some(0), "{}", root.answer);
}

#[test]
fn many_small_files_count_as_well() {
    let stack = Stack::start();
    let machine = sized(&stack, json!({"vcpu": 1, "memoryMiB": 512, "diskMiB": 3072}));
    let ran = machine.exec(
        &json!({"command": "mkdir m && cd m && seq 1 20000 | xargs -n 1000 touch && ls | wc -l", "timeoutMs": 3000000}),
    );
    assert_eq!(ran.out, "20000\n", "{}", ran.answer);
    machine.delete();
}

#[test]
fn one_core_is_one_core() {
    let stack = Stack::start();
    let machine = sized(&stack, json!({"vcpu": 1, "memoryMiB": 512}));
    // Two busy threads use as much CPU as time passes on one core, and twice as much on two.
    let program = "import os, time\nend = time.time() + 3\npids = []\nfor _ in range(2):\n  p = os.fork()\n  if p == 0:\n    while time.time() < end: pass\n    os._exit(0)\n  pids.append(p)\n[os.waitpid(p, 0) for p in pids]\nt = os.times()\nprint(t.children_user + t.children_system)";
    let (began, before) = (std::time::Instant::now(), cpu_seconds(&machine));
    let ran = machine.exec(&json!({"argv": ["python3", "-c", program], "timeoutMs": 300000}));
    assert_eq!(ran.code, Some(0), "{}", ran.answer);
    if let (Some(before), Some(after)) = (before, cpu_seconds(&machine)) {
        let (used, passed) = (after - before, began.elapsed().as_secs_f64());
        assert!(used < 1.4 * passed, "{passed} s on one core used {used} s of CPU on the host");
        println!("used {used} s of CPU in {passed} s");
    } else {
        panic!("no cgroup of {} tells its use of the CPU", machine.id);
    }
}

/// What the host's cgroup of a sandbox has used, whichever the layout.
fn cpu_seconds(machine: &Machine) -> Option<f64> {
    let plain = machine.id.replace('-', "");
    let found = std::process::Command::new("find")
        .args(["/sys/fs/cgroup", "-maxdepth", "7", "-type", "d", "-name", &format!("*{plain}*")])
        .output()
        .ok()?;
    for dir in String::from_utf8_lossy(&found.stdout).lines() {
        if let Ok(text) = std::fs::read_to_string(format!("{dir}/cpuacct.usage")) {
            return Some(text.trim().parse::<f64>().ok()? / 1e9);
        }
        let stat = std::fs::read_to_string(format!("{dir}/cpu.stat")).unwrap_or_default();
        if let Some(used) = stat.lines().find_map(|line| line.strip_prefix("usage_usec ")) {
            return Some(used.trim().parse::<f64>().ok()? / 1e6);
        }
    }
    None
}

#[test]
fn processes_are_limited_and_the_rest_goes_on() {
    let stack = Stack::start();
    let machine = sized(&stack, json!({"vcpu": 2, "memoryMiB": 4096}));
    // Each child is one small program, so that it is the count that ends it and not the memory.
    let forks = "import os, time\nn = 0\ntry:\n  while n < 6000:\n    if os.fork() == 0: os.execv('/bin/sleep', ['sleep', '4321'])\n    n += 1\nexcept OSError as error: print(error.errno)\nprint(n)";
    for user in ["sandbox", "root"] {
        let body = json!({"argv": ["python3", "-c", forks], "user": user, "timeoutMs": 3000000});
        let answer = machine.api.post(&machine.path(":exec"), &body);
        assert_eq!(answer.status, 200, "{user}: {}; the sandbox: {}", answer.text(), machine.info());
        let ran = answer.json();
        let said = ran["stdout"].as_str().unwrap_or_default();
        let count: u64 = said.lines().last().and_then(|line| line.parse().ok()).unwrap_or_default();
        println!("{user}: {count} processes, {ran}");
        assert!(said.starts_with("11\n"), "{user}: no refusal of EAGAIN: {ran}");
        assert!((100..6000).contains(&count), "{user}: {count} processes");
        let next = machine.api.post(&machine.path(":exec"), &json!({"command": "echo alive"}));
        assert_eq!(next.status, 200, "{user}, after {count}: {}; the sandbox: {}", next.text(), machine.info());
    }
}

#[test]
fn sizes_that_cannot_be_are_refused() {
    let stack = Stack::start();
    let api = stack.api();
    for (field, values) in [
        ("vcpu", [0, 17, -1]),
        ("memoryMiB", [127, 65_537, 0]),
        ("diskMiB", [3071, 409_601, -5]),
        ("cpuFloorMillis", [-1, 2001, 1_000_000]),
    ] {
        for value in values {
            let error = api.post("/v1/sandboxes", &json!({field: value})).refused(400, "invalid_request");
            assert_eq!(error["details"]["issues"][0]["path"], field, "{error}");
        }
    }
    // More cores than the host has are taken and capped.
    let wide = api.create(&json!({"vcpu": 16, "memoryMiB": 512}));
    assert_eq!(wide.info()["vcpu"], 16);
    // Memory that can never fit names the host's size.
    let host = std::fs::read_to_string("/proc/meminfo").expect("meminfo");
    let host: u64 = host.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).expect("MemTotal");
    if host < 64 << 20 {
        let answer = api.post("/v1/sandboxes", &json!({"memoryMiB": 65_536}));
        assert_eq!(answer.status, 400, "{}", answer.text());
    }
}

#[test]
fn live_processes_end_at_1024() {
    let stack = Stack::start();
    let machine = sized(&stack, json!({"vcpu": 2, "memoryMiB": 4096}));
    let count = std::sync::atomic::AtomicU64::new(0);
    let refused = std::sync::atomic::AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..140 {
                    let answer = machine.api.post(&machine.path("/processes"), &json!({"argv": ["sleep", "4321"]}));
                    if answer.status == 200 {
                        count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    } else {
                        let _ = answer.refused(409, "process_limit");
                        refused.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let (count, refused) = (count.into_inner(), refused.into_inner());
    assert_eq!((count, refused), (1024, 8 * 140 - 1024));
    machine.delete();
}
