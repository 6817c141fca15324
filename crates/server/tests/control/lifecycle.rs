//! Stop, restart, delete, limits.

use serde_json::{Value, json};

use crate::stack::{Stack, eventually};

#[tokio::test]
async fn stop_keeps_the_disk_and_restart_uses_it() {
    let stack = Stack::start().await;
    let made = stack.sandbox(json!({})).await;
    let id = &made["id"];
    let stopped = stack.post(id, "stop", json!({})).await.ok();
    assert_eq!(
        (&stopped["state"], &stopped["stopReason"], &stopped["diskKept"]),
        (&json!("stopped"), &json!("requested"), &json!(true))
    );
    assert!(stopped["endedAt"].is_string());
    assert_eq!(stack.post(id, "stop", json!({})).await.ok()["state"], "stopped");
    stack.post(id, "extend", json!({"seconds": 1})).await.ok();
    let running = stack.post(id, "restart", json!({})).await.ok();
    assert_eq!(
        (&running["state"], &running["stopReason"], &running["endedAt"]),
        (&json!("running"), &Value::Null, &Value::Null)
    );
    assert_eq!(stack.post(id, "restart", json!({})).await.ok()["state"], "running");
    let disks: Vec<_> = stack.node.starts().into_iter().map(|(_, disk)| disk).collect();
    assert_eq!(disks, [runtime_proto::node::Disk::New, runtime_proto::node::Disk::Kept]);
    stack.stop().await;
}

#[tokio::test]
async fn without_a_wait_the_answer_comes_at_once() {
    let stack = Stack::start().await;
    stack.node.hold_starts(true);
    let made = stack.call("POST", "/v1/sandboxes", json!({})).await.ok();
    assert_eq!((&made["state"], &made["status"]), (&json!("starting"), &json!("pending")));
    let id = made["id"].as_str().unwrap();
    // A stop of one that starts is a stop.
    let stopping = stack.call("POST", &format!("/v1/sandboxes/{id}:stop"), Value::Null).await.ok();
    assert_eq!(stopping["state"], "stopping");
    stack.node.hold_starts(false);
    assert_eq!(stack.wait_for(id, "stopped").await["stopReason"], "requested");
    assert!(!stack.node.running(id));
    stack.stop().await;
}

#[tokio::test]
async fn a_delete_answers_the_same_again() {
    let stack = Stack::start().await;
    let made = stack.sandbox(json!({"name": "n", "labels": {"a": "b"}})).await;
    let path = format!("/v1/sandboxes/{}", made["id"].as_str().unwrap());
    let first = stack.call("DELETE", &path, Value::Null).await.ok();
    assert_eq!(
        (&first["status"], &first["state"], &first["name"], &first["labels"]),
        (&json!("deleted"), &json!("stopping"), &json!("n"), &json!({"a": "b"}))
    );
    assert_eq!(stack.call("DELETE", &path, Value::Null).await.ok(), first);
    assert_eq!(stack.keyed("DELETE", &path, "k", json!({})).await.ok(), first);
    assert_eq!(stack.keyed("DELETE", &path, "k", json!({})).await.ok()["replayed"], json!(true));
    for verb in ["", ":stop", ":restart", ":update"] {
        let method = if verb.is_empty() { "GET" } else { "POST" };
        stack.call(method, &format!("{path}{verb}"), Value::Null).await.refused(404, "not_found");
    }
    assert_eq!(stack.get("/v1/sandboxes?includeStopped=true").await.ok()["data"], json!([]));
    eventually("its machine is gone", async || stack.node.count() == 0).await;
    stack.stop().await;
}

#[tokio::test]
async fn a_delete_of_one_that_starts_leaves_nothing() {
    let stack = Stack::start().await;
    stack.node.hold_starts(true);
    let made = stack.call("POST", "/v1/sandboxes", json!({})).await.ok();
    eventually("a start", async || !stack.node.starts().is_empty()).await;
    stack.call("DELETE", &format!("/v1/sandboxes/{}", made["id"].as_str().unwrap()), Value::Null).await.ok();
    stack.node.hold_starts(false);
    eventually("its removal is noted", async || {
        use runtime_store::Store;
        stack.store.removals().await.unwrap().is_empty()
    })
    .await;
    assert_eq!(stack.node.count(), 0);
    stack.stop().await;
}

#[tokio::test]
async fn a_time_limit_stops_with_the_disk_kept() {
    let stack = Stack::start().await;
    let made = stack.sandbox(json!({"timeoutSeconds": 60, "onTimeout": "stop"})).await;
    let id = made["id"].as_str().unwrap().to_owned();
    stack.rewrite(&id, |row| row.ends_at = Some(1)).await;
    let stack = stack.killed_and_started().await;
    let stopped = stack.wait_for(&id, "stopped").await;
    assert_eq!(
        (&stopped["stopReason"], &stopped["diskKept"], &stopped["endsAt"]),
        (&json!("time_limit"), &json!(true), &Value::Null)
    );
    stack.stop().await;
}

#[tokio::test]
async fn past_its_retention_a_stopped_one_is_deleted() {
    let stack = Stack::start().await;
    let made = stack.sandbox(json!({})).await;
    let id = made["id"].as_str().unwrap().to_owned();
    stack.post(&made["id"], "stop", json!({})).await.ok();
    let kept = stack.post(&made["id"], "retention", json!({"days": 1})).await.ok();
    assert!(kept["pausedExpiresAt"].is_string());
    stack.rewrite(&id, |row| row.ended_at = Some(1)).await;
    let stack = stack.killed_and_started().await;
    eventually("it is gone", async || stack.get(&format!("/v1/sandboxes/{id}")).await.status == 404).await;
    eventually("its disk too", async || stack.node.count() == 0).await;
    stack.stop().await;
}

#[tokio::test]
async fn a_stop_of_one_that_starts_keeps_its_disk() {
    let stack = Stack::start().await;
    stack.node.hold_starts(true);
    let made = stack.call("POST", "/v1/sandboxes", json!({"name": "n"})).await.ok();
    assert_eq!(made["state"], "starting");
    let stopping = stack.call("POST", &format!("/v1/sandboxes/{}:stop", made["id"].as_str().unwrap()), json!({})).await;
    assert_eq!(stopping.ok()["state"], "stopping");
    stack.node.hold_starts(false);
    let stopped = stack.wait_for(made["id"].as_str().unwrap(), "stopped").await;
    assert_eq!((&stopped["stopReason"], &stopped["diskKept"]), (&json!("requested"), &json!(true)), "{stopped}");
    assert!(!stack.node.running(made["id"].as_str().unwrap()));
    let again = stack.sandbox(json!({"name": "n", "getOrCreate": true})).await;
    assert_eq!((&again["id"], &again["reused"]), (&made["id"], &json!(true)));
    stack.node.hold_starts(true);
    stack.post(&made["id"], "stop", json!({})).await.ok();
    stack.call("POST", &format!("/v1/sandboxes/{}:restart", made["id"].as_str().unwrap()), json!({})).await.ok();
    stack.call("POST", &format!("/v1/sandboxes/{}:stop", made["id"].as_str().unwrap()), json!({})).await.ok();
    stack.node.hold_starts(false);
    let stopped = stack.wait_for(made["id"].as_str().unwrap(), "stopped").await;
    assert_eq!((&stopped["stopReason"], &stopped["diskKept"]), (&json!("requested"), &json!(true)), "{stopped}");
    stack.stop().await;
}
