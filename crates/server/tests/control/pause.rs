//! Pause, wake, and the calls that wake.

use runtime_proto::node::NodeError;
use serde_json::{Value, json};

use crate::stack::{Stack, eventually};

/// A call into the sandbox; the node's agent here answers none of them, but only if it runs.
async fn call_into(stack: &Stack, id: &Value) -> crate::stack::Reply {
    stack.call("GET", &format!("/v1/sandboxes/{}/processes", id.as_str().unwrap()), Value::Null).await
}

#[tokio::test]
async fn a_pause_and_a_wake_are_answered_when_they_are_done() {
    let stack = Stack::start().await;
    let id = &stack.sandbox(json!({})).await["id"];
    let paused = stack.post(id, "pause", json!({})).await.ok();
    assert_eq!(
        (&paused["state"], &paused["status"], &paused["stopReason"], &paused["endedAt"]),
        (&json!("paused"), &json!("paused"), &Value::Null, &Value::Null)
    );
    assert!(paused["pausedAt"].is_string());
    assert_eq!(stack.post(id, "pause", json!({})).await.ok()["state"], "paused");
    stack.post(id, "restart", json!({})).await.refused(409, "not_running");
    stack.post(id, "extend", json!({"seconds": 5})).await.ok();
    let running = stack.post(id, "wake", json!({})).await.ok();
    assert_eq!(
        (&running["state"], &running["pausedAt"], &running["memoryRestored"]),
        (&json!("running"), &Value::Null, &json!(true))
    );
    stack.post(id, "wake", json!({})).await.refused(409, "not_paused");
    stack.post(id, "stop", json!({})).await.ok();
    stack.post(id, "pause", json!({})).await.refused(409, "not_running");
    stack.post(id, "wake", json!({})).await.refused(409, "not_paused");
    stack.stop().await;
}

#[tokio::test]
async fn a_call_wakes_unless_that_is_switched_off() {
    let stack = Stack::start().await;
    let id = &stack.sandbox(json!({})).await["id"];
    stack.post(id, "pause", json!({})).await.ok();
    stack.get(&format!("/v1/sandboxes/{}", id.as_str().unwrap())).await.ok();
    assert!(!stack.node.running(id.as_str().unwrap()));
    call_into(&stack, id).await;
    assert!(stack.node.running(id.as_str().unwrap()));
    stack.post(id, "update", json!({"autoWake": false})).await.ok();
    stack.post(id, "pause", json!({})).await.ok();
    call_into(&stack, id).await.refused(409, "sandbox_paused");
    assert!(!stack.node.running(id.as_str().unwrap()));
    stack.stop().await;
}

#[tokio::test]
async fn a_name_wakes_its_holder() {
    let stack = Stack::start().await;
    let made = stack.sandbox(json!({"name": "n"})).await;
    stack.post(&made["id"], "pause", json!({})).await.ok();
    let found = stack.sandbox(json!({"name": "n", "getOrCreate": true})).await;
    assert_eq!((&found["id"], &found["state"], &found["reused"]), (&made["id"], &json!("running"), &json!(true)));
    stack.stop().await;
}

#[tokio::test]
async fn a_wake_that_fails_leaves_it_paused_and_says_so() {
    let stack = Stack::start().await;
    let id = &stack.sandbox(json!({})).await["id"];
    let paused = stack.post(id, "pause", json!({})).await.ok();
    stack.node.refuse_next_wake(NodeError::NoRoom("it is full".to_owned()));
    stack.post(id, "wake", json!({})).await.refused(409, "no_capacity");
    let still = stack.get(&format!("/v1/sandboxes/{}", id.as_str().unwrap())).await.ok();
    assert_eq!((&still["state"], &still["pausedAt"]), (&json!("paused"), &paused["pausedAt"]));
    assert_eq!(stack.post(id, "wake", json!({})).await.ok()["memoryRestored"], json!(true));
    stack.stop().await;
}

#[tokio::test]
async fn one_whose_memory_is_gone_says_so_and_starts_from_its_disk() {
    let stack = Stack::start().await;
    let made = stack.sandbox(json!({})).await;
    let id = made["id"].as_str().unwrap().to_owned();
    stack.post(&made["id"], "pause", json!({})).await.ok();
    stack.node.kill(&id);
    eventually("the record says it", async || {
        let record = stack.get(&format!("/v1/sandboxes/{id}")).await.ok();
        assert_eq!(record["state"], "paused");
        record["stopReason"] == "pause_failed"
    })
    .await;
    let running = stack.post(&made["id"], "wake", json!({})).await.ok();
    assert_eq!((&running["state"], &running["memoryRestored"]), (&json!("running"), &json!(false)));
    let last = stack.node.starts().pop().unwrap().1;
    assert_eq!(last, runtime_proto::node::Disk::Kept);
    // The same where it is the wake that finds out.
    stack.post(&made["id"], "pause", json!({})).await.ok();
    stack.node.refuse_next_wake(NodeError::MemoryGone("it is damaged".to_owned()));
    let running = stack.post(&made["id"], "wake", json!({})).await.ok();
    assert_eq!((&running["state"], &running["memoryRestored"]), (&json!("running"), &json!(false)));
    stack.stop().await;
}

#[tokio::test]
async fn what_was_paused_stays_paused_over_a_restart_and_what_was_under_way_is_finished() {
    let stack = Stack::start().await;
    let ids = [stack.sandbox(json!({})).await["id"].clone(), stack.sandbox(json!({})).await["id"].clone()];
    for id in &ids {
        stack.post(id, "pause", json!({})).await.ok();
    }
    let waking = ids[1].as_str().unwrap().to_owned();
    stack
        .rewrite(&waking, |row| {
            row.state = runtime_model::State::Resuming;
            row.operation = Some(runtime_store::Operation::Wake);
        })
        .await;
    let stack = stack.killed_and_started().await;
    stack.wait_for(&waking, "running").await;
    assert!(stack.node.running(&waking));
    let still = stack.get(&format!("/v1/sandboxes/{}", ids[0].as_str().unwrap())).await.ok();
    assert_eq!(still["state"], "paused");
    stack.stop().await;
}

#[tokio::test]
async fn a_time_limit_does_what_it_was_told_to_do() {
    let stack = Stack::start().await;
    let (mut paused, mut deleted) = (String::new(), String::new());
    for (what, id) in [("pause", &mut paused), ("delete", &mut deleted)] {
        let made = stack.sandbox(json!({"timeoutSeconds": 60, "onTimeout": what})).await;
        made["id"].as_str().unwrap().clone_into(id);
        stack.rewrite(id, |row| row.ends_at = Some(1)).await;
    }
    let stack = stack.killed_and_started().await;
    let record = stack.wait_for(&paused, "paused").await;
    assert_eq!((&record["stopReason"], &record["endsAt"]), (&Value::Null, &Value::Null));
    eventually("the other is gone", async || stack.get(&format!("/v1/sandboxes/{deleted}")).await.status == 404).await;
    let running = stack.post(&json!(paused), "wake", json!({"timeoutSeconds": 3600})).await.ok();
    assert!(running["endsAt"].as_str() > Some(record["pausedAt"].as_str().unwrap()));
    stack.stop().await;
}
