//! What was acknowledged is there after `kill -9` of the server at any moment, and after a reboot of the host.
//!
//! The random rounds print their seed; `RUNTIME_SEED=n` plays one again, `RUNTIME_KILLS=n` makes it longer.

use runtime_e2e::ledger::{Ledger, Worker};
use runtime_test_kit::{Dice, Machine, Stack, dice, eventually, leaks, unique, until};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// After a start everything settles; this only catches a hang.
const SETTLED: Duration = Duration::from_secs(120);

fn records(stack: &Stack) -> Vec<Value> {
    let listed = stack.api().get("/v1/sandboxes?includeStopped=true&limit=100").ok();
    listed["data"].as_array().expect("a list").clone()
}

fn settle(stack: &Stack) -> Vec<Value> {
    let start = Instant::now();
    let settled = until("every sandbox runs or is stopped", SETTLED, || {
        let all = records(stack);
        all.iter().all(|one| one["state"] == "running" || one["state"] == "stopped").then_some(all)
    });
    println!("settled {} sandboxes in {:?}", settled.len(), start.elapsed());
    settled
}

/// No process of a sandbox that the server does not say runs.
fn no_orphans(stack: &Stack) {
    eventually("no process of a sandbox that is not running", SETTLED, || {
        let running: Vec<String> = records(stack)
            .iter()
            .filter(|one| one["state"] == "running")
            .map(|one| one["id"].as_str().unwrap_or_default().to_owned())
            .collect();
        let words: Vec<String> = running.iter().flat_map(|id| [id.clone(), id.replace('-', "")]).collect();
        let named = |command: &str| words.iter().any(|word| command.contains(word.as_str()));
        // A helper's children carry no id; they hang on one that does.
        let helpers = stack.helpers();
        let orphan = helpers
            .iter()
            .filter(|one| !helpers.iter().any(|parent| parent.pid == one.parent))
            .find(|one| !named(&one.command));
        orphan.is_none()
    });
}

#[test]
fn kills_at_random_moments_lose_nothing_acknowledged() {
    let mut dice = Dice::from_environment();
    let rounds = dice::count("RUNTIME_KILLS", 8);
    let mut stack = Stack::start();
    let mut ledger = Ledger::default();
    for round in 0..rounds {
        let stop = AtomicBool::new(false);
        let workers: Vec<Worker> =
            (0..4).map(|_| Worker::new(stack.api(), dice.split(), ledger.hand_out(&mut dice))).collect();
        let after = Duration::from_millis(50 + dice.below(1500));
        println!("round {round}: the server is killed after {after:?}");
        let done = std::thread::scope(|scope| {
            let running: Vec<_> = workers.into_iter().map(|worker| scope.spawn(|| worker.work(&stop))).collect();
            // Time itself is under test here: the moment of the kill.
            std::thread::sleep(after);
            stack.kill9();
            stop.store(true, Ordering::Relaxed);
            running.into_iter().map(|one| one.join().expect("a worker")).collect::<Vec<_>>()
        });
        done.into_iter().for_each(|facts| ledger.take_back(facts));
        stack.restart();
        settle(&stack);
        no_orphans(&stack);
        ledger.verify(&stack.api());
        let mut left = Vec::new();
        let end = Instant::now() + SETTLED;
        while Instant::now() < end {
            left = leaks::traces(&ledger.gone(), stack.places());
            if left.is_empty() {
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        assert!(left.is_empty(), "of sandboxes whose end was acknowledged there is still: {left:#?}");
    }
    println!("{}", ledger.figures());
}

#[test]
fn a_create_that_the_crash_cut_short_is_whole_or_says_so() {
    let mut dice = Dice::from_environment();
    let mut stack = Stack::start();
    for round in 0..6 {
        let after = Duration::from_millis(dice.below(400));
        let key = unique("key");
        let fields = json!({"name": unique("cut"), "vcpu": 1, "memoryMiB": 256});
        let api = stack.api();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let head = [("Idempotency-Key", key.as_str()), ("Prefer", "wait=60")];
                let _ = api.try_call(
                    "POST",
                    "/v1/sandboxes",
                    &head,
                    Some(("application/json", fields.to_string().as_bytes())),
                );
            });
            std::thread::sleep(after);
            stack.kill9();
        });
        stack.restart();
        for one in settle(&stack) {
            let whole = one["state"] == "running" || one["stopReason"] == "startup_failed";
            assert!(whole, "round {round}, killed after {after:?}: {one}");
        }
        // The caller asks again: one sandbox of that name, the same, whatever had become of the first attempt.
        let made =
            stack.api().post_with("/v1/sandboxes", &[("Idempotency-Key", &key), ("Prefer", "wait=60")], &fields).ok();
        let named: Vec<Value> = records(&stack).into_iter().filter(|one| one["name"] == fields["name"]).collect();
        assert_eq!(named.len(), 1, "round {round}: {named:?}");
        assert_eq!(named[0]["id"], made["id"]);
        let gone = stack.api().delete(&format!("/v1/sandboxes/{}", made["id"].as_str().expect("an id"))).ok();
        assert_eq!(gone["status"], "deleted");
    }
    no_orphans(&stack);
}

#[test]
fn a_resent_exec_attaches_to_the_one_that_runs() {
    let mut stack = Stack::start();
    let machine = stack.api().small();
    let key = unique("key");
    let body =
        json!({"command": "echo in >> started; until [ -e go ]; do sleep 0.05; done; echo ran >> runs; echo out"});
    let send = |api: runtime_test_kit::Api| {
        let head = [("Idempotency-Key", key.as_str())];
        api.try_call("POST", &machine.path(":exec"), &head, Some(("application/json", body.to_string().as_bytes())))
    };
    std::thread::scope(|scope| {
        let api = stack.api();
        let first = scope.spawn(|| send(api));
        eventually("it has started", Duration::from_secs(20), || {
            machine.api.get(&machine.path("/files/stat?path=/workspace/started")).json()["exists"] == true
        });
        stack.kill9();
        assert!(first.join().expect("the first caller").is_err(), "an answer from a server that was killed");
    });
    stack.restart();
    settle(&stack);
    let answer = std::thread::scope(|scope| {
        let api = stack.api();
        let again = scope.spawn(|| send(api));
        machine.write("/workspace/go", b"");
        again.join().expect("the second caller").expect("an answer")
    });
    assert_eq!(answer.ok()["stdout"], "out\n");
    assert_eq!(machine.read("/workspace/runs"), b"ran\n");
    assert_eq!(machine.read("/workspace/started"), b"in\n");
}

#[test]
fn an_acknowledged_file_survives_server_and_helpers() {
    let mut stack = Stack::start();
    let machine = stack.api().small();
    let data: Vec<u8> = (0..1_000_000u32).map(|n| (n % 251) as u8).collect();
    machine.write("/workspace/acknowledged", &data);
    // At once: nothing has had time to be written out by itself.
    stack.kill9();
    stack.kill_helpers();
    stack.restart();
    settle(&stack);
    assert_eq!(machine.info()["stopReason"], "host_stopped");
    assert_eq!(machine.verb(":restart")["state"], "running");
    assert!(machine.read("/workspace/acknowledged") == data, "the file is not what was acknowledged");
}

#[test]
fn after_a_reboot_sandboxes_are_stopped_and_start_again() {
    let mut stack = Stack::start();
    let api = stack.api();
    let machines: Vec<_> = (0..3)
        .map(|n| api.create(&json!({"name": format!("m{n}"), "vcpu": 1, "memoryMiB": 256, "env": {"A": "1"}})))
        .collect();
    for (n, machine) in machines.iter().enumerate() {
        machine.write("/workspace/kept", format!("content {n}").as_bytes());
        assert_eq!(machine.root(&format!("echo system {n} > /etc/kept && sync")).code, Some(0));
    }
    let stopped = api.small();
    let _ = stopped.verb(":stop");
    stack.kill9();
    stack.kill_helpers();
    stack.restart();
    settle(&stack);
    for machine in &machines {
        let info = machine.info();
        assert_eq!(
            (info["state"].as_str(), info["stopReason"].as_str()),
            (Some("stopped"), Some("host_stopped")),
            "{info}"
        );
        assert_eq!(info["diskKept"], true, "{info}");
    }
    assert_eq!(stopped.info()["stopReason"], "requested");
    for (n, machine) in machines.iter().enumerate() {
        assert_eq!(machine.verb(":restart")["state"], "running");
        assert_eq!(machine.read("/workspace/kept"), format!("content {n}").as_bytes());
        assert_eq!(machine.output("cat /etc/kept; echo $A"), format!("system {n}\n1\n"));
    }
    no_orphans(&stack);
}

#[test]
fn helpers_that_die_under_a_living_server_stop_their_sandbox() {
    let mut stack = Stack::start();
    let machine = stack.api().small();
    let bystander_keeps = stack.api().small();
    machine.write("/workspace/kept", b"x");
    bystander_keeps.write("/workspace/kept", b"y");
    stack.kill_helpers();
    for one in [&machine, &bystander_keeps] {
        let seen = one.api.get(&one.path("?waitFor=stopped&timeoutSeconds=100")).ok();
        assert_eq!(
            (seen["state"].as_str(), seen["stopReason"].as_str()),
            (Some("stopped"), Some("host_stopped")),
            "{seen}"
        );
        assert_eq!(seen["diskKept"], true);
    }
    assert_eq!(machine.verb(":restart")["state"], "running");
    assert_eq!(machine.read("/workspace/kept"), b"x");
    no_orphans(&stack);
}

#[test]
fn a_running_sandbox_outlives_the_server_with_its_processes() {
    let mut stack = Stack::start();
    let machine = stack.api().small();
    let process = machine.spawn(&json!({"command": "n=0; while :; do n=$((n+1)); echo $n > counter; sleep 0.1; done"}));
    let boot = machine.output("cat /proc/sys/kernel/random/boot_id; cut -d' ' -f1 /proc/uptime");
    for end in [Stack::kill9, Stack::stop] {
        end(&mut stack);
        assert!(!stack.helpers().is_empty(), "the sandbox went with the server");
        stack.restart();
        let settled = settle(&stack);
        assert_eq!(settled[0]["state"], "running", "{settled:?}");
        let seen = machine.api.get(&machine.path(&format!("/processes/{process}"))).ok();
        assert_eq!(seen["state"], "running");
        let before = machine.read("/workspace/counter");
        eventually("the process goes on", Duration::from_secs(10), || machine.read("/workspace/counter") != before);
    }
    let again = machine.output("cat /proc/sys/kernel/random/boot_id; cut -d' ' -f1 /proc/uptime");
    assert_eq!(boot.lines().next(), again.lines().next(), "it was started anew");
    machine.delete();
}

#[test]
fn the_server_can_be_killed_while_it_starts() {
    let mut stack = Stack::start();
    let machines: Vec<_> = (0..4).map(|_| stack.api().create(&json!({"vcpu": 1, "memoryMiB": 256}))).collect();
    let mut dice = Dice::from_environment();
    for machine in &machines {
        machine.write("/workspace/kept", b"x");
    }
    for _ in 0..5 {
        stack.kill9();
        stack.start_and_kill(Duration::from_millis(dice.below(300)));
        stack.restart();
    }
    settle(&stack);
    for machine in &machines {
        assert_eq!(machine.state(), "running");
        assert_eq!(machine.read("/workspace/kept"), b"x");
    }
}

/// Something that is in memory alone, and changes.
const MARK: &str = "/tmp/mark";

fn rests(machine: &Machine) -> Value {
    until("it runs or is paused", SETTLED, || {
        let info = machine.info();
        (info["state"] == "running" || info["state"] == "paused").then_some(info)
    })
}

/// Pauses and wakes until `stop`; whatever fails, fails. How often it was woken.
fn doze(machine: &Machine, stop: &AtomicBool) -> usize {
    let mut woken = 0;
    while !stop.load(Ordering::Relaxed) {
        for verb in [":pause", ":wake"] {
            let done = machine.api.try_call("POST", &machine.path(verb), &[("Prefer", "wait=60")], None);
            woken += usize::from(verb == ":wake" && done.is_ok());
        }
    }
    woken
}

#[test]
fn memory_survives_kills_of_the_server_at_any_moment_of_a_pause_and_a_wake() {
    let mut dice = Dice::from_environment();
    let mut stack = Stack::start();
    let machine = stack.api().small();
    let process = machine.api.post(&machine.path("/processes"), &json!({"command": "sleep 100000"})).ok();
    for round in 0..dice::count("RUNTIME_KILLS", 8) {
        let mark = format!("{round} {}", dice.below(1 << 30));
        machine.write(MARK, mark.as_bytes());
        let after = Duration::from_millis(dice.below(900));
        let stop = AtomicBool::new(false);
        let woken = std::thread::scope(|scope| {
            let dozing = scope.spawn(|| doze(&machine, &stop));
            // Time itself is under test here: the moment of the kill.
            std::thread::sleep(after);
            stack.kill9();
            stop.store(true, Ordering::Relaxed);
            dozing.join().expect("the one that pauses and wakes")
        });
        stack.restart();
        let info = rests(&machine);
        println!("round {round}: killed after {after:?} and {woken} wakes; it is {}", info["state"]);
        assert_eq!(machine.read(MARK), mark.as_bytes(), "round {round}");
        assert_ne!(machine.info()["memoryRestored"], false, "round {round}");
    }
    let still = machine.api.get(&machine.path(&format!("/processes/{}", process["id"].as_str().expect("an id")))).ok();
    assert_eq!(still["state"], "running");
    no_orphans(&stack);
}

#[test]
fn a_saved_memory_survives_kills_of_everything_at_any_moment_of_a_wake() {
    let mut dice = Dice::from_environment();
    let mut stack = Stack::start();
    let machine = stack.api().small();
    let hex = machine.id.replace('-', "");
    let (saves, record) = (stack.dir().join("pool/save").join(&hex), stack.dir().join("sandboxes").join(&hex));
    for round in 0..dice::count("RUNTIME_KILLS", 8) {
        let mark = format!("{round} {}", dice.below(1 << 30));
        machine.write(MARK, mark.as_bytes());
        machine.write("/workspace/acknowledged", mark.as_bytes());
        let _ = machine.verb(":pause");
        eventually("its memory is on the disk and nowhere else", Duration::from_secs(60), || {
            let mut names = std::fs::read_dir(&saves).into_iter().flatten().flatten();
            names.any(|one| one.file_name().to_string_lossy().starts_with("gen-")) && !record.exists()
        });
        let after = Duration::from_millis(dice.below(400));
        let answered = std::thread::scope(|scope| {
            let waking = scope
                .spawn(|| machine.api.try_call("POST", &machine.path(":wake"), &[("Prefer", "wait=60")], None).is_ok());
            std::thread::sleep(after);
            stack.kill9();
            stack.kill_helpers();
            waking.join().expect("the one that wakes it")
        });
        // Once it was heard it may have been used: then its memory is lost with its machine. The disk is not.
        let heard = !std::fs::read_dir(&saves).into_iter().flatten().flatten().any(|one| {
            let name = one.file_name().to_string_lossy().into_owned();
            name.starts_with("gen-") || name.starts_with("used-")
        });
        stack.restart();
        let info = until("it has settled", SETTLED, || {
            let info = machine.info();
            ["running", "paused", "stopped"].iter().any(|state| info["state"] == *state).then_some(info)
        });
        println!(
            "round {round}: killed after {after:?}, answered: {answered}, heard: {heard}; it is {}",
            info["state"]
        );
        if heard {
            let verb = if info["state"] == "stopped" { ":restart" } else { ":wake" };
            assert_eq!(machine.verb(verb)["state"], "running");
        } else {
            assert_eq!(machine.read(MARK), mark.as_bytes(), "round {round}");
            assert_ne!(machine.info()["memoryRestored"], false, "round {round}");
        }
        assert_eq!(machine.read("/workspace/acknowledged"), mark.as_bytes(), "round {round}");
    }
    no_orphans(&stack);
}
