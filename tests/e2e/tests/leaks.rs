//! Sandboxes that are gone leave nothing: no process, mount, loop device, cgroup, directory or descriptor.
//!
//! `RUNTIME_CYCLES=10000 cargo nextest run -p runtime-e2e --no-capture -E 'test(cycles)'` is the long run; the figures
//! are printed.

use runtime_test_kit::leaks::{self, Snapshot};
use runtime_test_kit::{Api, Stack, dice, eventually, until};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Connections the server keeps of its own accord.
const SPARE_FDS: usize = 6;
/// Host processes by which gVisor runs the guest's: it keeps some to use again, and how many depends on what met.
const STUBS: usize = 8;
/// What ends does so in the background; this only catches a hang.
const GONE: Duration = Duration::from_secs(120);

/// Waits until nothing of the sandboxes is left, or says what is.
fn settled(stack: &Stack, before: &Snapshot, ids: &[String], spare_helpers: usize) -> Snapshot {
    let end = Instant::now() + GONE;
    until("what is left is told", GONE + Duration::from_secs(10), || {
        let now = stack.snapshot();
        let mut left = now.grown_since(before, SPARE_FDS, spare_helpers);
        left.extend(leaks::traces(ids, stack.places()));
        if left.is_empty() {
            return Some(now);
        }
        assert!(Instant::now() < end, "after {} sandboxes there is left: {left:#?}", ids.len());
        None
    })
}

fn cycle(api: &Api, number: u64) -> String {
    let machine = api.create(&json!({"vcpu": 1, "memoryMiB": 256}));
    if number.is_multiple_of(4) {
        assert_eq!(machine.output("echo hi"), "hi\n");
        let _ = machine.spawn(&json!({"command": "sleep 4321"}));
    }
    if number % 16 == 1 {
        machine.write("/workspace/file", b"x");
        let _ = machine.verb(":stop");
    }
    machine.delete();
    machine.id
}

#[test]
fn cycles_of_create_and_delete_leave_nothing() {
    let cycles = dice::count("RUNTIME_CYCLES", 200);
    let stack = Stack::start();
    let api = stack.api();
    // What the first sandbox brings for good (a base image by digest, a kept connection) is no leak.
    let mut ids: Vec<String> = (0..8).map(|number| cycle(&api, number)).collect();
    let quiet = until("the first sandboxes are gone", GONE, || {
        leaks::traces(&ids, stack.places()).is_empty().then(|| stack.snapshot())
    });
    println!("before {cycles} cycles: {}", quiet.figures());
    let start = Instant::now();
    for round in 0..cycles.div_ceil(100) {
        let size = 100.min(cycles - round * 100);
        let made = std::thread::scope(|scope| {
            let halves: Vec<_> = (0..2)
                .map(|half| {
                    let api = &api;
                    scope.spawn(move || (0..size).filter(|n| n % 2 == half).map(|n| cycle(api, n)).collect::<Vec<_>>())
                })
                .collect();
            halves.into_iter().flat_map(|half| half.join().expect("a half")).collect::<Vec<_>>()
        });
        ids = made;
        if round % 10 == 9 {
            println!("after {}: {}", (round + 1) * 100, settled(&stack, &quiet, &ids, 0).figures());
        }
    }
    let took = start.elapsed();
    let after = settled(&stack, &quiet, &ids, 0);
    println!(
        "after {cycles} cycles in {took:?} ({:?} each): {}",
        took / u32::try_from(cycles).unwrap_or(1),
        after.figures()
    );
    let listed = api.get("/v1/sandboxes?includeStopped=true").ok();
    assert_eq!(listed["data"], json!([]));
    let grown = after.server_memory_kib.saturating_sub(quiet.server_memory_kib);
    // A megabyte for every hundred sandboxes would be a leak; the allocator's own slack is not.
    assert!(grown < 24 * 1024 + cycles, "the server's memory grew by {grown} KiB in {cycles} cycles");
}

#[test]
fn commands_and_files_leave_nothing() {
    let stack = Stack::start();
    let machine = stack.api().small();
    let work = |count: u64| {
        for n in 0..count {
            assert_eq!(machine.output("echo hi"), "hi\n");
            machine.write("/workspace/f", b"x");
            assert_eq!(machine.read("/workspace/f"), b"x");
            let _ = machine.sh("(setsid sleep 4321 &) ; exit 3");
            if n.is_multiple_of(10) {
                let timed = machine.exec(&json!({"command": "sleep 60", "timeoutMs": 50}));
                assert_eq!(timed.answer["timedOut"], true);
            }
        }
    };
    // What an exec leaves behind may be a moment in dying.
    let quiet = || eventually("nothing sleeps inside", GONE, || machine.sh("pgrep -xc sleep").out == "0\n");
    work(10);
    quiet();
    let before = stack.snapshot();
    let inside = machine.output("ls /proc/1/fd 2>/dev/null | wc -l; ps -e --no-headers | wc -l");
    work(150);
    let _ = settled(&stack, &before, &[], STUBS);
    quiet();
    let after = machine.output("ls /proc/1/fd 2>/dev/null | wc -l; ps -e --no-headers | wc -l");
    assert_eq!(inside.lines().nth(1), after.lines().nth(1), "processes are left inside: {inside} then {after}");
    println!("before: {}\nafter: {}", before.figures(), stack.snapshot().figures());
}

#[test]
fn callers_who_hang_up_leave_nothing() {
    let stack = Stack::start();
    let machine = stack.api().small();
    let quiet = stack.snapshot();
    let hang_up = |round: u32| {
        // A shell that has nothing left to do becomes its last command: one process for each.
        let line = format!("echo {round}; sleep 4321");
        let callers: Vec<_> = (0..100)
            .map(|n| {
                let mut connection = stack.api().connect();
                let body = json!({"command": line, "stream": n % 2 == 0, "timeoutMs": 5000}).to_string();
                let length = body.len().to_string();
                let head = stack.api().head("POST", &machine.path(":exec"), &[("Content-Length", &length)]);
                connection.write((head + "\r\n" + &body).as_bytes()).expect("the request is taken");
                connection
            })
            .collect();
        // Looked at without a command: only the last 16 that ended are listed.
        let of_this_round = |state: &str| {
            let answer = machine.api.get(&machine.path("/processes")).ok();
            let list = answer["data"].as_array().expect("a list").clone();
            let is = |one: &&Value| one["command"].as_str().is_some_and(|text| text.contains(&line));
            list.iter().filter(is).filter(|one| state.is_empty() || one["state"] == state).count()
        };
        // A caller who leaves before its command has begun may be one whose command never does.
        eventually("many commands have begun", GONE, || of_this_round("") >= 16);
        drop(callers);
        // The commands owe nothing to their callers; they end at their own limit.
        eventually("their commands have ended", GONE, || of_this_round("running") == 0);
        eventually("nothing of them is left inside", GONE, || machine.sh("pgrep -fc '^sleep 432[1]'").out == "0\n");
        eventually("the server holds nothing of theirs", GONE, || {
            stack.snapshot().server_fds <= quiet.server_fds + SPARE_FDS
        });
    };
    for round in 0..4 {
        hang_up(round);
    }
    let after = stack.snapshot();
    println!("before: {}\nafter: {}", quiet.figures(), after.figures());
    // A sandbox keeps the host processes that stood for its own at their peak, two for each of the hundred commands that ran
    // at once, and uses them again. One for each of the four hundred would be a leak.
    let (before, now) = (quiet.helpers.len(), after.helpers.len());
    assert!(now <= before + 300, "host processes of the sandbox: {before} before, {now} after four hundred commands");
    eventually("the server holds nothing of theirs", GONE, || {
        stack.snapshot().server_fds <= quiet.server_fds + SPARE_FDS
    });
    assert_eq!(machine.output("echo alive"), "alive\n");
    machine.delete();
    eventually("nothing of it is left", GONE, || stack.helpers().is_empty());
}

#[test]
fn a_stopped_server_leaves_its_sandboxes_and_a_deleted_sandbox_nothing() {
    let mut stack = Stack::start();
    let machine = stack.api().small();
    stack.stop();
    assert!(!stack.helpers().is_empty(), "sandboxes end with the server");
    stack.restart();
    machine.delete();
    eventually("nothing of it is left", GONE, || {
        leaks::traces(std::slice::from_ref(&machine.id), stack.places()).is_empty() && stack.helpers().is_empty()
    });
}

#[test]
fn a_create_that_cannot_be_leaves_nothing() {
    let stack = Stack::start();
    let before = stack.snapshot();
    for _ in 0..20 {
        let answer = stack.api().post("/v1/sandboxes", &json!({"image": "no-such-image"}));
        assert!(answer.status >= 400, "{}", answer.text());
        let answer = stack.api().post("/v1/sandboxes", &json!({"network": {"internet": true, "allow": ["*"]}}));
        assert_eq!(answer.status, 400, "{}", answer.text());
    }
    let _ = settled(&stack, &before, &[], STUBS);
}
