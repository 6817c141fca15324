//! Snapshots, sandboxes made from them, and forks.

use runtime_proto::node::{Disk, NodeError};
use serde_json::{Value, json};

use crate::stack::{Stack, eventually};

async fn taken(stack: &Stack, id: &Value, fields: Value) -> Value {
    stack.post(id, "snapshot", fields).await.ok()
}

async fn state(stack: &Stack, id: &Value) -> String {
    let record = stack.get(&format!("/v1/sandboxes/{}", id.as_str().unwrap())).await.ok();
    record["state"].as_str().unwrap().to_owned()
}

async fn listed(stack: &Stack) -> usize {
    stack.get("/v1/snapshots").await.ok()["data"].as_array().unwrap().len()
}

#[tokio::test]
async fn one_that_runs_goes_on_and_one_that_rests_stays_as_it_is() {
    let stack = Stack::start().await;
    let id = &stack.sandbox(json!({"labels": {"a": "b"}})).await["id"];
    for (verb, after, modes) in [
        ("wake", "running", &["memory", "disk"][..]),
        ("pause", "paused", &["memory", "disk"]),
        ("stop", "stopped", &["disk"]),
    ] {
        if after != "running" {
            stack.post(id, verb, json!({})).await.ok();
        }
        for mode in modes {
            let snapshot = taken(&stack, id, json!({"mode": mode})).await;
            assert_eq!((&snapshot["state"], &snapshot["mode"]), (&json!("ready"), &json!(mode)), "{snapshot}");
            assert_eq!((&snapshot["labels"], &snapshot["storedBytes"]), (&json!({"a": "b"}), &json!(4096)));
            assert_eq!(state(&stack, id).await, after);
        }
    }
    stack.post(id, "snapshot", json!({})).await.refused(409, "not_running");
    assert_eq!((listed(&stack).await, stack.node.kept().len()), (5, 5));
    stack.stop().await;
}

#[tokio::test]
async fn a_copy_has_the_size_of_its_snapshot_or_one_that_it_fits() {
    let stack = Stack::start().await;
    let id = &stack.sandbox(json!({"vcpu": 1, "memoryMiB": 512, "diskMiB": 8192, "labels": {"a": "b"}})).await["id"];
    let memory = taken(&stack, id, json!({})).await;
    let disk = taken(&stack, id, json!({"mode": "disk", "labels": {}})).await;
    let copy = stack.sandbox(json!({"snapshot": memory["id"]})).await;
    assert_eq!((&copy["memoryMiB"], &copy["diskMiB"], &copy["vcpu"]), (&json!(512), &json!(8192), &json!(1)));
    assert_eq!((&copy["labels"], &copy["snapshot"], &copy["name"]), (&json!({"a": "b"}), &memory["id"], &Value::Null));
    let made = |fields: Value| stack.call("POST", "/v1/sandboxes", fields);
    made(json!({"snapshot": memory["id"], "memoryMiB": 1024})).await.refused(400, "invalid_request");
    made(json!({"snapshot": memory["id"], "memoryMiB": 512})).await.ok();
    made(json!({"snapshot": disk["id"], "diskMiB": 4096})).await.refused(400, "disk_too_small");
    let larger = made(json!({"snapshot": disk["id"], "diskMiB": 9000, "vcpu": 2})).await.ok();
    assert_eq!((&larger["diskMiB"], &larger["memoryMiB"], &larger["labels"]), (&json!(9000), &json!(512), &json!({})));
    let unknown = json!({"snapshot": uuid::Uuid::new_v4().to_string()});
    made(unknown).await.refused(404, "snapshot_not_found");
    assert!(stack.node.starts().iter().any(|(_, disk)| matches!(disk, Disk::Snapshot(_))));
    stack.stop().await;
}

#[tokio::test]
async fn one_that_cannot_be_taken_fails_and_its_source_goes_on() {
    let stack = Stack::start().await;
    let id = &stack.sandbox(json!({})).await["id"];
    stack.node.refuse_next_capture(NodeError::Failed("cannot save".to_owned()));
    let failed = taken(&stack, id, json!({})).await;
    assert_eq!((&failed["state"], failed["error"].is_string()), (&json!("failed"), true), "{failed}");
    assert_eq!(state(&stack, id).await, "running");
    let made = stack.call("POST", "/v1/sandboxes", json!({"snapshot": failed["id"]})).await;
    made.refused(409, "snapshot_failed");
    stack.node.refuse_next_capture(NodeError::Busy("for a moment".to_owned()));
    assert_eq!(taken(&stack, id, json!({})).await["state"], "ready");
    stack.stop().await;
}

#[tokio::test]
async fn a_deleted_one_is_gone_for_all_and_from_the_host() {
    let stack = Stack::start().await;
    let id = &stack.sandbox(json!({})).await["id"];
    let path = format!("/v1/snapshots/{}", taken(&stack, id, json!({"name": "n"})).await["id"].as_str().unwrap());
    let changed = stack.call("POST", &format!("{path}:update"), json!({"name": null, "labels": {"x": "y"}})).await.ok();
    assert_eq!((&changed["name"], &changed["labels"]), (&Value::Null, &json!({"x": "y"})));
    let other = json!({"ifLabels": {}, "name": "m"});
    stack.call("POST", &format!("{path}:update"), other).await.refused(409, "snapshot_metadata_changed");
    assert_eq!(
        stack.call("POST", &format!("{path}:extend"), json!({"retentionDays": 3})).await.ok()["retentionDays"],
        3
    );
    for _ in 0..2 {
        let gone = stack.call("POST", &format!("{path}:delete"), json!({})).await.ok();
        assert!(["deleting", "deleted"].contains(&gone["state"].as_str().unwrap()), "{gone}");
    }
    stack.get(&path).await.refused(404, "not_found");
    assert_eq!(listed(&stack).await, 0);
    eventually("it is gone from the host", async || stack.node.kept().is_empty()).await;
    stack.stop().await;
}

#[tokio::test]
async fn a_server_that_is_killed_while_one_is_taken_leaves_it_to_the_next() {
    let stack = Stack::start().await;
    let id = stack.sandbox(json!({})).await["id"].clone();
    stack.node.hold_captures(true);
    let begun = stack.call("POST", &format!("/v1/sandboxes/{}:snapshot", id.as_str().unwrap()), json!({})).await.ok();
    assert_eq!(begun["state"], "capturing");
    eventually("it stands still", async || state(&stack, &id).await == "pausing").await;
    stack.node.hold_captures(false);
    let stack = stack.killed_and_started().await;
    let path = format!("/v1/snapshots/{}", begun["id"].as_str().unwrap());
    eventually("it is taken", async || stack.get(&path).await.ok()["state"] == "ready").await;
    stack.wait_for(id.as_str().unwrap(), "running").await;
    stack.stop().await;
}

#[tokio::test]
async fn a_fork_makes_its_copies_once_and_leaves_no_snapshot() {
    let stack = Stack::start().await;
    let id = &stack.sandbox(json!({"env": {"A": "1"}, "idlePauseSeconds": 90})).await["id"];
    let path = format!("/v1/sandboxes/{}:fork", id.as_str().unwrap());
    let headers = [("Idempotency-Key", "fork-1"), ("Prefer", "wait=60")];
    let fork = || stack.send("POST", &path, &headers, br#"{"count":3,"name":"n"}"#);
    let made = fork().await.ok();
    let copies = made["sandboxes"].as_array().unwrap().clone();
    let names: Vec<&str> = copies.iter().map(|copy| copy["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["n", "n-1", "n-2"]);
    for copy in &copies {
        assert_eq!((&copy["state"], &copy["idlePauseSeconds"]), (&json!("running"), &json!(90)), "{copy}");
        assert_eq!(copy["envNames"], json!(["A"]));
    }
    assert_eq!(state(&stack, id).await, "running");
    let again = fork().await.ok();
    assert_eq!(again["replayed"], true);
    let ids =
        |made: &Value| made["sandboxes"].as_array().unwrap().iter().map(|one| one["id"].clone()).collect::<Vec<_>>();
    assert_eq!(ids(&again), ids(&made));
    assert_eq!(stack.node.count(), 4);
    stack.call("POST", &path, json!({"name": "n-1"})).await.refused(409, "name_taken");
    eventually("its snapshot has passed", async || stack.node.kept().is_empty()).await;
    assert_eq!(listed(&stack).await, 0);
    stack.stop().await;
}

#[tokio::test]
async fn a_fork_of_which_a_part_does_not_start_says_which_did() {
    let stack = Stack::start().await;
    let id = &stack.sandbox(json!({})).await["id"];
    stack.node.refuse_next_start(NodeError::Failed("no".to_owned()));
    let path = format!("/v1/sandboxes/{}:fork", id.as_str().unwrap());
    let headers = [("Idempotency-Key", "fork-2"), ("Prefer", "wait=60")];
    let fork = || stack.send("POST", &path, &headers, br#"{"count":2,"keepSnapshot":true}"#);
    let error = fork().await.refused(409, "fork_failed");
    let started = error["details"]["startedSandboxIds"].as_array().unwrap().clone();
    assert_eq!(started.len(), 1);
    assert_eq!(state(&stack, &started[0]).await, "running");
    assert_eq!(fork().await.refused(409, "fork_failed")["details"]["startedSandboxIds"], json!(started));
    assert_eq!(listed(&stack).await, 1, "the snapshot was to be kept");
    stack.stop().await;
}

#[tokio::test]
async fn a_fork_keeps_the_network_rules_and_a_create_brings_its_own() {
    let stack = Stack::start().await;
    let made = stack.sandbox(json!({"network": {"internet": true, "deny": ["a.example"]}})).await;
    let id = &made["id"];
    let path = |id: &Value| format!("/v1/sandboxes/{}/network", id.as_str().unwrap());
    let snapshot = &taken(&stack, id, json!({})).await["id"];
    stack.call("PUT", &path(id), json!({"internet": true, "deny": ["b.example"]})).await.ok();
    let copy = &stack.post(id, "fork", json!({})).await.ok()["sandboxes"][0]["id"];
    let shown = stack.get(&path(copy)).await.ok();
    assert_eq!((&shown["internet"], &shown["deny"]), (&json!(true), &json!(["b.example"])), "{shown}");
    assert_eq!((&shown["version"], &shown["enforced"]), (&json!(1), &json!(true)), "{shown}");
    assert_eq!(shown["updatedAt"], Value::Null, "{shown}");
    for (fields, internet) in [(json!({}), true), (json!({"network": {"internet": false}}), false)] {
        let mut fields = fields;
        fields["snapshot"] = snapshot.clone();
        let shown = stack.get(&path(&stack.sandbox(fields).await["id"])).await.ok();
        assert_eq!((&shown["internet"], &shown["deny"]), (&json!(internet), &json!([])), "{shown}");
    }
    stack.stop().await;
}
