//! Snapshots and forks across `kill -9` of the server, and of all helpers, at any moment: what is listed as ready is whole, the
//! source goes on, and nothing is left of what is not listed.
//!
//! The rounds print their seed; `RUNTIME_SEED=n` plays one again, `RUNTIME_KILLS=n` makes it longer.

use std::collections::BTreeSet;
use std::time::Duration;

use runtime_test_kit::{Api, Dice, Machine, Stack, dice, eventually, unique, until};
use serde_json::{Value, json};

const SETTLED: Duration = Duration::from_secs(20);
/// In memory alone.
const MARK: &str = "/tmp/mark";

fn list(api: &Api, path: &str) -> Vec<Value> {
    api.get(path).ok()["data"].as_array().expect("a list").clone()
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

fn machine(api: &Api, record: &Value) -> Machine {
    Machine { api: api.clone(), id: text(record, "id").to_owned() }
}

fn settled(api: &Api) -> Vec<Value> {
    until("nothing is under way", SETTLED, || {
        // In this order: a snapshot that is whole has its source on its way back.
        let snapshots = list(api, "/v1/snapshots?limit=100");
        let boxes = list(api, "/v1/sandboxes?includeStopped=true&limit=100");
        let rests = |one: &Value| ["running", "paused", "stopped"].contains(&text(one, "state"));
        let taken = |one: &Value| ["ready", "failed"].contains(&text(one, "state"));
        (boxes.iter().all(rests) && snapshots.iter().all(taken)).then_some(boxes)
    })
}

/// What lies in the pool is what is listed, and nothing else.
fn nothing_else_is_there(stack: &Stack) {
    let api = stack.api();
    eventually("the pool holds what is listed", Duration::from_secs(60), || {
        let names = |dir: &str| -> BTreeSet<String> {
            let entries = std::fs::read_dir(stack.dir().join("pool").join(dir)).expect("the pool");
            let names = entries.map(|one| one.expect("an entry").file_name().to_string_lossy().into_owned());
            names.filter(|name| !name.starts_with('.') && !name.starts_with("spare")).collect()
        };
        let ready = list(&api, "/v1/snapshots?state=ready&limit=100");
        let snapshots: BTreeSet<String> = ready.iter().map(|one| text(one, "id").replace('-', "")).collect();
        let boxes = list(&api, "/v1/sandboxes?limit=100");
        let disks: BTreeSet<String> = boxes.iter().map(|one| text(one, "id").replace('-', "")).collect();
        names("snap") == snapshots && names("root").is_subset(&disks) && names("save").is_subset(&disks)
    });
}

#[test]
fn a_snapshot_that_a_kill_cuts_short_is_whole_or_not_there_and_its_source_goes_on() {
    let mut dice = Dice::from_environment();
    let mut stack = Stack::start();
    let source = stack.api().small();
    let process = source.spawn(&json!({"command": "sleep 100000"}));
    for round in 0..dice::count("RUNTIME_KILLS", 8) {
        let mark = format!("{round} {}", dice.below(1 << 30));
        source.write(MARK, mark.as_bytes());
        source.write("/workspace/mark", mark.as_bytes());
        let mode = if dice.below(2) == 0 { "memory" } else { "disk" };
        let (after, key) = (Duration::from_millis(dice.below(500)), unique("key"));
        let body = json!({ "mode": mode }).to_string();
        let ask = |api: Api| {
            let head = [("Idempotency-Key", key.as_str()), ("Prefer", "wait=60")];
            api.try_call("POST", &source.path(":snapshot"), &head, Some(("application/json", body.as_bytes())))
        };
        std::thread::scope(|scope| {
            let api = stack.api();
            let asking = scope.spawn(|| ask(api));
            // Time itself is under test here: the moment of the kill.
            std::thread::sleep(after);
            stack.kill9();
            let _ = asking.join().expect("the one that asks");
        });
        stack.restart();
        let api = stack.api();
        settled(&api);
        assert_eq!(source.state(), "running", "round {round}, {mode}, killed after {after:?}");
        assert_eq!(source.read(MARK), mark.as_bytes(), "round {round}");
        // Asked again it is the same one, or, if nothing had been committed, the first.
        let taken = ask(stack.api()).expect("an answer").ok();
        println!("round {round}: {mode}, killed after {after:?}: {}", text(&taken, "state"));
        assert_eq!(text(&taken, "state"), "ready", "round {round}: {taken}");
        assert_eq!(list(&api, "/v1/snapshots").len(), 1, "round {round}");
        let copy = api.create(&json!({ "snapshot": taken["id"] }));
        assert_eq!(copy.read("/workspace/mark"), mark.as_bytes(), "round {round}");
        if mode == "memory" {
            assert_eq!(copy.read(MARK), mark.as_bytes(), "round {round}");
            let there = copy.api.get(&copy.path(&format!("/processes/{process}"))).ok();
            assert_eq!(there["state"], "running", "round {round}");
        }
        copy.delete();
        let gone = api.post(&format!("/v1/snapshots/{}:delete", text(&taken, "id")), &json!({})).ok();
        assert!(["deleting", "deleted"].contains(&text(&gone, "state")), "{gone}");
        nothing_else_is_there(&stack);
    }
    let there = source.api.get(&source.path(&format!("/processes/{process}"))).ok();
    assert_eq!(there["state"], "running");
}

#[test]
fn a_fork_that_a_kill_cuts_short_is_made_once_or_leaves_nothing() {
    let mut dice = Dice::from_environment();
    let mut stack = Stack::start();
    let source = stack.api().small();
    for round in 0..dice::count("RUNTIME_KILLS", 8) {
        let mark = format!("{round} {}", dice.below(1 << 30));
        source.write(MARK, mark.as_bytes());
        let (after, key) = (Duration::from_millis(dice.below(1500)), unique("key"));
        let everything = dice.below(3) == 0;
        let ask = |api: Api| {
            let head = [("Idempotency-Key", key.as_str()), ("Prefer", "wait=60")];
            api.try_call("POST", &source.path(":fork"), &head, Some(("application/json", br#"{"count":3}"#)))
        };
        std::thread::scope(|scope| {
            let api = stack.api();
            let asking = scope.spawn(|| ask(api));
            std::thread::sleep(after);
            stack.kill9();
            if everything {
                stack.kill_helpers();
            }
            let _ = asking.join().expect("the one that asks");
        });
        stack.restart();
        let api = stack.api();
        settled(&api);
        if everything {
            // Its machine was killed as well: what is left of it is the disk.
            if source.state() == "stopped" {
                assert_eq!(source.verb(":restart")["state"], "running");
            }
            source.write(MARK, mark.as_bytes());
        }
        assert_eq!(source.state(), "running", "round {round}, killed after {after:?}");
        let answer = ask(stack.api()).expect("an answer");
        println!("round {round}: killed after {after:?}, everything: {everything}: {}", answer.status);
        let all = settled(&api);
        let copies: Vec<&Value> = all.iter().filter(|one| text(one, "id") != source.id).collect();
        assert_eq!(copies.len(), 3, "round {round}: {copies:#?}");
        if !everything {
            assert_eq!(answer.ok()["sandboxes"].as_array().map(Vec::len), Some(3), "round {round}");
            for copy in &copies {
                assert_eq!(machine(&api, copy).read(MARK), mark.as_bytes(), "round {round}");
            }
        }
        for copy in copies {
            machine(&api, copy).delete();
        }
        eventually("the snapshot of the fork has passed", Duration::from_secs(60), || {
            std::fs::read_dir(stack.dir().join("pool/snap")).expect("the pool").next().is_none()
        });
        nothing_else_is_there(&stack);
    }
}

#[test]
fn what_a_crash_left_of_a_snapshot_is_swept_and_a_whole_one_stays() {
    let mut stack = Stack::start();
    let source = stack.api().small();
    let taken = source.api.post_with(&source.path(":snapshot"), &[("Prefer", "wait=60")], &json!({})).ok();
    assert_eq!(taken["state"], "ready");
    stack.kill9();
    let snap = stack.dir().join("pool/snap");
    for prefix in ["new-", "gone-"] {
        let half = snap.join(format!("{prefix}{}", "0".repeat(32)));
        std::fs::create_dir_all(half.join("memory")).expect("half a snapshot");
        std::fs::write(half.join("memory/pages.img"), b"half").expect("half a memory");
    }
    stack.restart();
    settled(&stack.api());
    nothing_else_is_there(&stack);
    let copy = stack.api().create(&json!({ "snapshot": taken["id"] }));
    assert_eq!(copy.state(), "running");
}
