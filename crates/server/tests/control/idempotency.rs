//! The table of repeated requests.

use runtime_store::Store;
use serde_json::{Value, json};

use crate::stack::{Stack, eventually};

#[tokio::test]
async fn a_repeated_create_answers_the_sandbox_as_it_is_now() {
    let stack = Stack::start().await;
    let first = stack.keyed("POST", "/v1/sandboxes", "k1", json!({})).await.ok();
    assert!(first.get("replayed").is_none());
    stack.post(&first["id"], "stop", json!({})).await.ok();
    let again = stack.keyed("POST", "/v1/sandboxes", "k1", json!({})).await;
    assert_eq!(again.header("idempotency-replayed"), Some("true"));
    let again = again.ok();
    assert_eq!((&again["id"], &again["state"], &again["replayed"]), (&first["id"], &json!("stopped"), &json!(true)));
    // Also once it is gone.
    stack.call("DELETE", &format!("/v1/sandboxes/{}", first["id"].as_str().unwrap()), Value::Null).await.ok();
    let gone = stack.keyed("POST", "/v1/sandboxes", "k1", json!({})).await.ok();
    assert_eq!((&gone["id"], &gone["status"], &gone["replayed"]), (&first["id"], &json!("deleted"), &json!(true)));
    assert_eq!(stack.node.starts().len(), 1);
    stack.stop().await;
}

#[tokio::test]
async fn a_key_belongs_to_one_request_over_all_routes() {
    let stack = Stack::start().await;
    let made = stack.keyed("POST", "/v1/sandboxes", "k1", json!({})).await.ok();
    let path = format!("/v1/sandboxes/{}", made["id"].as_str().unwrap());
    for (method, path, body) in [
        ("POST", "/v1/sandboxes".to_owned(), json!({"vcpu": 1})),
        ("POST", "/v1/sandboxes?x=1".to_owned(), json!({})),
        ("POST", format!("{path}:stop"), json!({})),
        ("DELETE", path.clone(), json!({})),
    ] {
        stack.keyed(method, &path, "k1", body).await.refused(422, "idempotency_key_reused");
    }
    // A key of another scope is another key.
    let other = stack.key(false, false).await;
    let auth = format!("Bearer {other}");
    let headers = [("authorization", auth.as_str()), ("idempotency-key", "k1")];
    let theirs = crate::stack::send(stack.address, "POST", "/v1/sandboxes", &headers, b"{\"vcpu\":1}").await;
    assert_ne!(theirs.ok()["id"], made["id"]);
    stack.stop().await;
}

#[tokio::test]
async fn changes_that_count_are_done_once() {
    let stack = Stack::start().await;
    let made = stack.sandbox(json!({"timeoutSeconds": 600})).await;
    let path = format!("/v1/sandboxes/{}:extend", made["id"].as_str().unwrap());
    let first = stack.keyed("POST", &path, "e", json!({"seconds": 100})).await.ok();
    let second = stack.keyed("POST", &path, "e", json!({"seconds": 100})).await.ok();
    assert_ne!(first["endsAt"], made["endsAt"]);
    assert_eq!((&second["endsAt"], &second["replayed"]), (&first["endsAt"], &json!(true)));
    stack.stop().await;
}

#[tokio::test]
async fn a_refusal_is_not_remembered() {
    let stack = Stack::start().await;
    let holder = stack.sandbox(json!({"name": "n"})).await;
    stack.keyed("POST", "/v1/sandboxes", "k", json!({"name": "n"})).await.refused(409, "name_taken");
    stack.call("DELETE", &format!("/v1/sandboxes/{}", holder["id"].as_str().unwrap()), Value::Null).await.ok();
    let made = stack.keyed("POST", "/v1/sandboxes", "k", json!({"name": "n"})).await.ok();
    assert!(made.get("replayed").is_none(), "{made}");
    stack.stop().await;
}

#[tokio::test]
async fn no_room_leaves_nothing_behind_and_may_be_asked_again() {
    let stack = Stack::start().await;
    stack.node.refuse_next_start(runtime_proto::node::NodeError::NoRoom("memory".to_owned()));
    let refused = stack.keyed("POST", "/v1/sandboxes", "k", json!({"name": "n"})).await;
    refused.refused(409, "no_capacity");
    assert!(refused.header("retry-after").is_some());
    assert_eq!(stack.get("/v1/sandboxes?includeStopped=true").await.ok()["data"], json!([]));
    assert_eq!(stack.node.count(), 0);
    let made = stack.keyed("POST", "/v1/sandboxes", "k", json!({"name": "n"})).await.ok();
    assert_eq!(made["state"], "running");
    stack.stop().await;
}

#[tokio::test]
async fn requests_with_one_key_at_once_are_one_request() {
    let stack = Stack::start().await;
    stack.node.hold_starts(true);
    let twenty = (0..20).map(|_| stack.keyed("POST", "/v1/sandboxes", "k", json!({})));
    let all = futures_util::future::join_all(twenty);
    let (replies, ()) = tokio::join!(all, async {
        eventually("a start", async || !stack.node.starts().is_empty()).await;
        stack.keyed("POST", "/v1/sandboxes", "k", json!({"vcpu": 1})).await.refused(422, "idempotency_key_reused");
        stack.node.hold_starts(false);
    });
    let records: Vec<Value> = replies.iter().map(crate::stack::Reply::ok).collect();
    assert!(records.iter().all(|record| record["id"] == records[0]["id"] && record["state"] == "running"));
    assert_eq!(records.iter().filter(|record| record.get("replayed").is_none()).count(), 1);
    assert_eq!(stack.node.starts().len(), 1);
    stack.stop().await;
}

#[tokio::test]
async fn keys_are_remembered_over_a_kill() {
    let stack = Stack::start().await;
    let made = stack.sandbox(json!({"timeoutSeconds": 600})).await;
    let path = format!("/v1/sandboxes/{}:extend", made["id"].as_str().unwrap());
    let first = stack.keyed("POST", &path, "e", json!({"seconds": 100})).await.ok();
    let stack = stack.killed_and_started().await;
    // Before and after the server has read its keys.
    for _ in 0..3 {
        let again = stack.keyed("POST", &path, "e", json!({"seconds": 100})).await.ok();
        assert_eq!((&again["endsAt"], &again["replayed"]), (&first["endsAt"], &json!(true)));
    }
    stack.keyed("POST", &path, "e", json!({"seconds": 101})).await.refused(422, "idempotency_key_reused");
    stack.stop().await;
}

#[tokio::test]
async fn a_client_that_hangs_up_stops_nothing() {
    let stack = Stack::start().await;
    stack.node.hold_starts(true);
    let asked = stack.keyed("POST", "/v1/sandboxes", "k", json!({}));
    tokio::select! {
        _ = asked => panic!("it cannot be answered yet"),
        () = eventually("a start", async || !stack.node.starts().is_empty()) => {}
    }
    stack.node.hold_starts(false);
    let again = stack.keyed("POST", "/v1/sandboxes", "k", json!({})).await.ok();
    assert_eq!((&again["state"], &again["replayed"]), (&json!("running"), &json!(true)));
    assert_eq!(stack.node.starts().len(), 1);
    stack.stop().await;
}

#[tokio::test]
async fn a_store_that_does_not_write_ends_acknowledging_until_it_does() {
    let stack = Stack::start().await;
    let made = stack.sandbox(json!({"timeoutSeconds": 600})).await;
    let path = format!("/v1/sandboxes/{}:stop", made["id"].as_str().unwrap());
    stack
        .sql("create trigger full before insert on idempotency begin select raise(abort, 'the disk is full'); end")
        .await;
    // Its work is done and its answer stands, also for a repeat.
    stack.keyed("POST", &path, "first", json!({})).await.ok();
    let before = stack.store.sandbox_ids().await.unwrap().len();
    let refused = stack.keyed("POST", "/v1/sandboxes", "second", json!({})).await;
    refused.refused(503, "api_unavailable");
    assert!(refused.header("retry-after").is_some());
    assert_eq!(stack.store.sandbox_ids().await.unwrap().len(), before, "it did nothing");
    assert_eq!(stack.keyed("POST", &path, "first", json!({})).await.ok()["replayed"], json!(true));
    stack.get("/v1/sandboxes").await.ok();
    stack.sql("drop trigger full").await;
    stack.keyed("POST", "/v1/sandboxes", "second", json!({})).await.ok();
    eventually("the first is remembered after all", async || {
        let keys = stack.store.remembered_keys((String::new(), String::new()), 100).await.unwrap();
        keys.iter().any(|(_, key)| key == "first")
    })
    .await;
    stack.stop().await;
}
