//! What a kill leaves, the next server mends.

use runtime_model::SandboxId;
use runtime_proto::node::NodeError;
use runtime_store::Store;
use serde_json::{Value, json};

use crate::stack::{Stack, eventually};

#[tokio::test]
async fn a_kill_in_the_middle_of_a_start_ends_in_a_running_sandbox() {
    let stack = Stack::start().await;
    stack.node.hold_starts(true);
    let made = stack.keyed("POST", "/v1/sandboxes", "k", json!({"name": "n"}));
    tokio::select! {
        _ = made => panic!("it cannot be answered yet"),
        () = eventually("a start", async || !stack.node.starts().is_empty()) => {}
    }
    let stack = stack.killed_and_started().await;
    stack.node.hold_starts(false);
    // The same request finds what it made.
    let again = stack.keyed("POST", "/v1/sandboxes", "k", json!({"name": "n"})).await.ok();
    assert_eq!(again["replayed"], json!(true));
    let id = again["id"].as_str().unwrap();
    stack.wait_for(id, "running").await;
    assert_eq!(stack.node.count(), 1);
    stack.stop().await;
}

#[tokio::test]
async fn machines_that_died_read_stopped_and_start_again() {
    let stack = Stack::start().await;
    let while_serving = stack.sandbox(json!({})).await["id"].as_str().unwrap().to_owned();
    let while_down = stack.sandbox(json!({})).await["id"].as_str().unwrap().to_owned();
    stack.node.kill(&while_serving);
    let stopped = stack.wait_for(&while_serving, "stopped").await;
    assert_eq!((&stopped["stopReason"], &stopped["diskKept"]), (&json!("host_stopped"), &json!(true)));
    stack.node.kill_silently(&while_down);
    let stack = stack.killed_and_started().await;
    let stopped = stack.wait_for(&while_down, "stopped").await;
    assert_eq!((&stopped["stopReason"], &stopped["diskKept"]), (&json!("host_stopped"), &json!(true)));
    for id in [&while_serving, &while_down] {
        assert_eq!(stack.post(&json!(id), "restart", json!({})).await.ok()["state"], "running");
    }
    stack.stop().await;
}

#[tokio::test]
async fn a_database_that_knows_nothing_takes_no_disk_with_it() {
    let stack = Stack::start().await;
    let kept = stack.sandbox(json!({})).await["id"].as_str().unwrap().to_owned();
    let stopped = stack.sandbox(json!({})).await["id"].clone();
    stack.post(&stopped, "stop", json!({})).await.ok();
    let deleted = stack.sandbox(json!({})).await["id"].as_str().unwrap().to_owned();
    stack.call("DELETE", &format!("/v1/sandboxes/{deleted}"), Value::Null).await.ok();
    eventually("it is removed", async || !stack.node.has(&deleted)).await;
    let (unknown, resting) = (SandboxId::new_v4(), SandboxId::new_v4());
    stack.node.add_machine(unknown, true);
    stack.node.add_machine(resting, false);
    stack.node.add_machine(deleted.parse().unwrap(), true);
    stack.node.add_machine(stopped.as_str().unwrap().parse().unwrap(), true);
    let stack = stack.killed_and_started().await;
    eventually("the deleted one is gone", async || !stack.node.has(&deleted)).await;
    eventually("the unknown one has ended", async || !stack.node.running(&unknown.to_string())).await;
    eventually("the stray has ended", async || !stack.node.running(stopped.as_str().unwrap())).await;
    for id in [unknown.to_string(), resting.to_string(), stopped.as_str().unwrap().to_owned()] {
        assert!(stack.node.has(&id), "the disk of {id} is kept");
    }
    assert!(stack.node.running(&kept));
    stack.stop().await;
}

#[tokio::test]
async fn what_was_left_under_way_is_read_again_until_it_reads() {
    let stack = Stack::start().await;
    let died = stack.sandbox(json!({})).await["id"].as_str().unwrap().to_owned();
    let corrupt = stack.sandbox(json!({})).await["id"].as_str().unwrap().to_owned();
    stack.node.kill_silently(&died);
    stack.sql(&format!("update sandboxes set labels = 'no map' where id = '{corrupt}'")).await;
    stack.sql("alter table deleted rename to away").await;
    let stack = stack.killed_and_started().await;
    stack.sql("alter table away rename to deleted").await;
    // Not asked for through the API: only what was read at the start is looked at.
    eventually("the dead one reads stopped", async || {
        let row = stack.store.sandbox(died.parse().unwrap()).await.unwrap().unwrap();
        row.state == runtime_model::State::Stopped
    })
    .await;
    assert!(stack.node.running(&corrupt), "a row that does not read ends nothing");
    stack.stop().await;
}

#[tokio::test]
async fn a_deletion_that_was_acknowledged_is_finished() {
    let stack = Stack::start().await;
    stack.node.hold_starts(true);
    let made = stack.call("POST", "/v1/sandboxes", json!({})).await.ok();
    eventually("a start", async || !stack.node.starts().is_empty()).await;
    let id = made["id"].as_str().unwrap().to_owned();
    let answer = stack.call("DELETE", &format!("/v1/sandboxes/{id}"), Value::Null).await.ok();
    stack.node.add_machine(id.parse().unwrap(), true);
    let stack = stack.killed_and_started().await;
    stack.node.hold_starts(false);
    eventually("its machine is gone", async || stack.node.count() == 0).await;
    assert_eq!(stack.call("DELETE", &format!("/v1/sandboxes/{id}"), Value::Null).await.ok(), answer);
    stack.stop().await;
}

#[tokio::test]
async fn an_idle_sandbox_is_paused_and_a_busy_one_is_not() {
    let stack = Stack::start().await;
    let made = stack.sandbox(json!({"idlePauseSeconds": 60})).await;
    let id = made["id"].as_str().unwrap().to_owned();
    // The shortest limit is a minute; this is the same row with one nobody waits for.
    stack.rewrite(&id, |row| row.idle_seconds = 1).await;
    stack.node.set_live_processes(1);
    let stack = stack.killed_and_started().await;
    eventually("its agent was asked and it lives", async || stack.node.asked() > 0).await;
    assert!(stack.node.running(&id));
    stack.node.set_live_processes(0);
    eventually("it stands still", async || !stack.node.running(&id)).await;
    let paused = stack.wait_for(&id, "paused").await;
    assert_eq!((&paused["stopReason"], &paused["diskKept"]), (&json!("idle"), &json!(false)));
    assert!(paused["pausedAt"].is_string());
    stack.stop().await;
}

#[tokio::test]
async fn a_kill_in_the_middle_of_a_resize_ends_in_a_running_sandbox() {
    let stack = Stack::start().await;
    let made = stack.sandbox(json!({"memoryMiB": 512})).await;
    let id = made["id"].as_str().unwrap();
    // As the row is while the machine ends.
    let sql = "update sandboxes set state = 'stopping', operation = 'resize', memory_mib = 1024 where id";
    stack.sql(&format!("{sql} = '{id}'")).await;
    let stack = stack.killed_and_started().await;
    let record = stack.wait_for(id, "running").await;
    assert_eq!((&record["memoryMiB"], &record["stopReason"]), (&json!(1024), &Value::Null));
    assert_eq!(stack.node.starts().len(), 2);

    // The start that follows does not come about: it is stopped, and starts again when it is asked to.
    stack.node.refuse_next_start(NodeError::NoRoom("memory".to_owned()));
    let refused = stack.post(&json!(id), "resize", json!({"restart": true, "memoryMiB": 2048})).await;
    refused.refused(409, "no_capacity");
    let stopped = stack.wait_for(id, "stopped").await;
    assert_eq!((&stopped["memoryMiB"], &stopped["diskKept"]), (&json!(2048), &json!(true)));
    let again = stack.post(&json!(id), "resize", json!({"restart": false, "memoryMiB": 1024})).await.ok();
    assert_eq!((&again["state"], &again["memoryMiB"]), (&json!("running"), &json!(1024)));

    // Whoever stops it in between does not want it back.
    let starts = stack.node.starts().len();
    stack.node.hold_stops(true);
    let path = format!("/v1/sandboxes/{id}");
    let resized = stack.call("POST", &format!("{path}:resize"), json!({"restart": true, "vcpu": 4})).await.ok();
    assert_eq!((&resized["state"], &resized["vcpu"]), (&json!("stopping"), &json!(4)));
    assert_eq!(stack.call("POST", &format!("{path}:stop"), json!({})).await.ok()["state"], "stopping");
    stack.node.hold_stops(false);
    let stopped = stack.wait_for(id, "stopped").await;
    assert_eq!((&stopped["stopReason"], &stopped["diskKept"]), (&json!("requested"), &json!(true)));
    assert_eq!(stack.node.starts().len(), starts);
    stack.stop().await;
}
