//! Machines that stand ready: a create takes one, it is as if it had been made for it, and none is ever left over.

use std::collections::BTreeSet;
use std::time::Duration;

use runtime_test_kit::world::World;
use runtime_test_kit::{Machine, Signal, Stack, StackOptions, eventually, leaks, send_signal, until};
use serde_json::{Value, json};

/// Making one takes a start, after a moment in which nobody waits for one.
const MADE: Duration = Duration::from_secs(30);

fn with_spares(options: StackOptions, spares: usize) -> Stack {
    Stack::start_with(StackOptions { spares, ..options })
}

/// Ids of machines that nobody has been promised, as they are on the host.
fn marks(stack: &Stack) -> BTreeSet<String> {
    let entries = std::fs::read_dir(stack.places().data.join("spares")).expect("the marks");
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// As many as are to stand ready do: nothing is being made any more.
fn stand_ready(stack: &Stack, count: usize) -> BTreeSet<String> {
    // One that is being made bears the mark of a start besides.
    let starting = || std::fs::read_dir(stack.places().data.join("starting")).expect("the marks").count();
    until("machines stand ready", MADE, || {
        let there = marks(stack);
        (there.len() == count && starting() == 0).then_some(there)
    })
}

fn host_name(machine: &Machine) -> String {
    machine.id.replace('-', "")
}

/// Of the size that stands ready before anybody has asked.
fn usual(stack: &Stack, fields: &Value) -> Machine {
    stack.api().create(fields)
}

#[test]
fn a_create_takes_the_machine_that_stands_ready_and_another_takes_its_place() {
    let stack = with_spares(StackOptions::default(), 2);
    let ready = stand_ready(&stack, 2);
    let none = stack.api().get("/v1/sandboxes?includeStopped=true").ok();
    assert_eq!(none["data"], json!([]), "a spare is nobody's sandbox");
    let (one, two) = (usual(&stack, &json!({})), usual(&stack, &json!({"env": {"WHO": "two"}})));
    let taken: BTreeSet<String> = [&one, &two].map(host_name).into();
    assert_eq!(taken, ready, "both were there before");
    // Each is its own machine.
    for machine in [&one, &two] {
        let name = machine.output("hostname; sudo -n hostname").replace('\n', " ");
        let wanted = format!("sandbox-{}", &machine.id[..8]);
        assert_eq!(name, format!("{wanted} {wanted} "));
        let here = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
        let before = here();
        let now = machine.output("date +%s").trim().parse::<u64>().unwrap();
        assert!((before - 2..=here() + 2).contains(&now), "{before} {now} {}", here());
    }
    assert_eq!(two.output("echo $WHO"), "two\n");
    let ids = "cat /etc/machine-id 2>/dev/null; od -An -N16 -tx1 /dev/urandom";
    assert_ne!(one.output(ids), two.output(ids));
    // Others take their place, and those that were taken are not among them.
    let next = stand_ready(&stack, 2);
    assert!(next.is_disjoint(&ready), "{next:?} {ready:?}");
    // What is written in one is kept as in any other.
    one.write("/workspace/kept", b"x");
    one.verb(":stop");
    assert_eq!(one.verb(":restart")["state"], "running");
    assert_eq!(one.read("/workspace/kept"), b"x");
    let ids = [one.id.clone(), two.id.clone()];
    one.delete();
    two.delete();
    eventually("nothing is left of them", MADE, || leaks::traces(&ids, stack.places()).is_empty());
}

#[test]
fn the_size_that_is_asked_for_is_the_one_that_stands_ready() {
    let stack = with_spares(StackOptions::default(), 1);
    let usual_one = stand_ready(&stack, 1);
    let small = stack.api().small();
    assert!(!usual_one.contains(&host_name(&small)), "it is of another size");
    let mut made = vec![small];
    // Asked for again and again, it displaces the usual one.
    until("a small one stands ready and is taken", MADE, || {
        let ready = marks(&stack);
        let machine = stack.api().small();
        let taken = ready.contains(&host_name(&machine));
        made.push(machine);
        taken.then_some(())
    });
    let last = made.last().expect("the one that was taken");
    assert_eq!(last.info()["memoryMiB"], 512);
    assert_eq!(last.sh("true").code, Some(0));
}

#[test]
fn the_rules_of_a_sandbox_hold_in_a_machine_that_stood_ready() {
    let world = World::enter();
    let site = world.web("site", "198.51.100.10", 80);
    world.name_at("site.example.com", &["198.51.100.10"]);
    let stack = with_spares(world.options(), 2);
    let ready = stand_ready(&stack, 2);
    let open = usual(&stack, &json!({"network": {"internet": false, "allow": ["site.example.com"]}}));
    let closed = usual(&stack, &json!({"network": {"internet": false}}));
    assert_eq!([&open, &closed].map(host_name).into_iter().collect::<BTreeSet<_>>(), ready);
    let fetch = "curl -sS -m 20 http://site.example.com/x";
    assert_eq!(open.output(fetch), "site|GET /x HTTP/1.1|site.example.com\n");
    let came = site.came();
    assert_ne!(closed.sh(fetch).code, Some(0));
    assert_ne!(closed.sh("curl -sS -m 20 -x http://127.0.0.1:10800 http://198.51.100.10/").out, "site");
    assert_eq!(site.came(), came, "a sandbox without a way out came through");
    drop(stack);
}

#[test]
fn nothing_of_a_spare_outlives_its_server_and_a_claim_that_was_cut_short_is_made_good() {
    let mut stack = with_spares(StackOptions::default(), 2);
    for kill in [true, false] {
        let ready = stand_ready(&stack, 2);
        let kept = usual(&stack, &json!({}));
        kept.write("/workspace/kept", b"x");
        if kill {
            stack.kill9()
        } else {
            stack.stop()
        }
        stack.restart();
        let next = stand_ready(&stack, 2);
        assert!(next.is_disjoint(&ready), "{next:?} {ready:?}");
        assert_eq!(kept.state(), "running");
        assert_eq!(kept.read("/workspace/kept"), b"x");
        let gone: Vec<String> = ready.into_iter().filter(|id| *id != host_name(&kept)).collect();
        eventually("nothing is left of it", MADE, || leaks::traces(&gone, stack.places()).is_empty());
    }
    // Killed at any moment of a create, the sandbox comes up all the same.
    for step in 0..6 {
        stand_ready(&stack, 2);
        let api = stack.api();
        let asked = std::thread::spawn(move || {
            let headers = [("Prefer", "wait=60")];
            let body = json!({"name": format!("cut-{step}")}).to_string();
            api.try_call("POST", "/v1/sandboxes", &headers, Some(("application/json", body.as_bytes()))).ok()
        });
        std::thread::sleep(Duration::from_millis(2 * step));
        stack.kill9();
        let answered = asked.join().unwrap();
        stack.restart();
        let found = stack.api().get(&format!("/v1/sandboxes?name=cut-{step}")).ok();
        let found = found["data"].as_array().unwrap().clone();
        if answered.is_some_and(|answer| answer.status < 300) {
            assert_eq!(found.len(), 1, "acknowledged, and gone");
        }
        for one in found {
            let id = one["id"].as_str().unwrap().to_owned();
            let machine = Machine { api: stack.api(), id };
            eventually("it runs", MADE, || machine.state() == "running");
            assert_eq!(machine.sh("true").code, Some(0));
            machine.delete();
        }
    }
}

#[test]
fn a_spare_that_dies_is_replaced_and_never_given_out() {
    let stack = with_spares(StackOptions::default(), 1);
    let ready = stand_ready(&stack, 1);
    for helper in stack.helpers() {
        send_signal(helper.pid, Signal::KILL);
    }
    let machine = usual(&stack, &json!({}));
    assert_eq!(machine.sh("true").code, Some(0));
    let next = until("another stands ready", MADE, || {
        let next = stand_ready(&stack, 1);
        next.is_disjoint(&ready).then_some(next)
    });
    assert!(!next.contains(&host_name(&machine)));
    // Taken in the moment in which it died, its name is that of a machine that was made in its place.
    let gone: Vec<String> = ready.into_iter().filter(|id| *id != host_name(&machine)).collect();
    eventually("nothing is left of it", MADE, || leaks::traces(&gone, stack.places()).is_empty());
}

#[test]
fn a_name_that_is_taken_gives_the_machine_back() {
    let stack = with_spares(StackOptions::default(), 1);
    let first = usual(&stack, &json!({"name": "held"}));
    let ready = stand_ready(&stack, 1);
    for _ in 0..3 {
        stack.api().post("/v1/sandboxes", &json!({"name": "held"})).refused(409, "name_taken");
        let same = stack.api().post("/v1/sandboxes", &json!({"name": "held", "getOrCreate": true})).ok();
        assert_eq!(same["id"], first.id.as_str());
    }
    eventually("it is given back", MADE, || marks(&stack) == ready);
    assert!(ready.contains(&host_name(&usual(&stack, &json!({})))));
}
