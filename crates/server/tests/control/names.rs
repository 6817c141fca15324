//! One name, one sandbox.

use serde_json::{Value, json};

use crate::stack::Stack;

#[tokio::test]
async fn two_hundred_callers_on_a_new_name_get_one_sandbox() {
    let stack = Stack::start().await;
    let body = json!({"name": "n", "getOrCreate": true}).to_string();
    let headers = [("prefer", "wait=60")];
    let callers = (0..200).map(|_| stack.send("POST", "/v1/sandboxes", &headers, body.as_bytes()));
    let replies = futures_util::future::join_all(callers).await;
    let records: Vec<Value> = replies.iter().map(crate::stack::Reply::ok).collect();
    assert!(records.iter().all(|record| record["id"] == records[0]["id"] && record["state"] == "running"));
    assert_eq!(records.iter().filter(|record| record["reused"] != json!(true)).count(), 1);
    assert_eq!((stack.node.count(), stack.node.starts().len()), (1, 1));
    stack.stop().await;
}

#[tokio::test]
async fn a_name_is_held_until_there_is_nothing_to_start() {
    let stack = Stack::start().await;
    let first = stack.sandbox(json!({"name": "n"})).await;
    let taken = stack.call("POST", "/v1/sandboxes", json!({"name": "n"})).await.refused(409, "name_taken");
    assert_eq!((&taken["details"]["sandboxId"], &taken["details"]["field"]), (&first["id"], &json!("name")));
    stack.post(&first["id"], "stop", json!({})).await.ok();
    stack.call("POST", "/v1/sandboxes", json!({"name": "n"})).await.refused(409, "name_taken");
    let again = stack.sandbox(json!({"name": "n", "getOrCreate": true, "vcpu": 1})).await;
    assert_eq!((&again["id"], &again["reused"], &again["vcpu"]), (&first["id"], &json!(true), &json!(2)));
    stack.call("DELETE", &format!("/v1/sandboxes/{}", first["id"].as_str().unwrap()), Value::Null).await.ok();
    let other = stack.sandbox(json!({"name": "n", "getOrCreate": true})).await;
    assert!(other["id"] != first["id"] && other.get("reused").is_none());
    stack.stop().await;
}

#[tokio::test]
async fn a_start_that_fails_frees_its_name() {
    let stack = Stack::start().await;
    stack.node.refuse_next_start(runtime_proto::node::NodeError::Failed("no".to_owned()));
    let failed = stack.send("POST", "/v1/sandboxes", &[("prefer", "wait=60")], b"{\"name\":\"n\"}").await.ok();
    assert_eq!(
        (&failed["state"], &failed["stopReason"], &failed["diskKept"]),
        (&json!("stopped"), &json!("startup_failed"), &json!(false))
    );
    assert_eq!(stack.node.count(), 0);
    stack.post(&failed["id"], "restart", json!({})).await.refused(409, "disk_gone");
    stack.sandbox(json!({"name": "n"})).await;
    let listed = |query: &'static str| async { stack.get(query).await.ok()["data"].as_array().unwrap().len() };
    assert_eq!(listed("/v1/sandboxes").await, 1);
    assert_eq!(listed("/v1/sandboxes?includeStopped=true").await, 2);
    stack.stop().await;
}

#[tokio::test]
async fn lists_are_paged_and_filtered() {
    let stack = Stack::start().await;
    let mut ids = Vec::new();
    for n in 0..7 {
        let made =
            stack.sandbox(json!({"name": format!("n{n}"), "labels": {"par": (n % 2).to_string(), "k:x": "v:y"}})).await;
        ids.push(made["id"].clone());
    }
    stack.post(&ids[0], "stop", json!({})).await.ok();
    let mut seen = Vec::new();
    let mut path = "/v1/sandboxes?limit=3".to_owned();
    loop {
        let page = stack.get(&path).await.ok();
        seen.extend(page["data"].as_array().unwrap().iter().map(|record| record["id"].clone()));
        match page["nextCursor"].as_str() {
            Some(cursor) => path = format!("/v1/sandboxes?limit=3&cursor={cursor}"),
            None => break,
        }
    }
    assert_eq!(seen, ids);
    for (query, count) in [
        ("label=par:1", 3),
        ("label=par:1&label=k%3Ax%3Av%3Ay", 3),
        ("label=par:1&label=par:0", 0),
        ("state=stopped", 1),
        ("state=stopped&state=running", 7),
        ("name=n3", 1),
        ("name=n", 0),
    ] {
        let page = stack.get(&format!("/v1/sandboxes?{query}")).await.ok();
        assert_eq!(page["data"].as_array().unwrap().len(), count, "{query}");
        assert!(page["data"].as_array().unwrap().iter().all(|record| record.get("envNames").is_none()));
    }
    stack.stop().await;
}

#[tokio::test]
async fn a_held_name_is_answered_whatever_else_is_asked_for() {
    let stack = Stack::start().await;
    let first = stack.sandbox(json!({"name": "n"})).await;
    for (field, value, status, code) in [
        ("image", json!("gone"), 404, "image_not_found"),
        ("snapshot", json!("gone"), 404, "snapshot_not_found"),
        ("volumes", json!([{"volumeId": "v", "path": "/v"}]), 501, "unavailable"),
        ("secrets", json!(["a"]), 501, "secrets_unavailable"),
        ("region", json!("eu"), 400, "invalid_region"),
        ("env", json!({"1": "x"}), 400, "invalid_env"),
        ("memoryMiB", json!(65_536), 400, "invalid_request"),
    ] {
        let again = stack.call("POST", "/v1/sandboxes", json!({"name": "n", "getOrCreate": true, field: value})).await;
        let again = again.ok();
        assert_eq!((&again["id"], &again["reused"]), (&first["id"], &json!(true)), "{field}");
        let fresh = json!({"name": "other", "getOrCreate": true, field: value});
        stack.call("POST", "/v1/sandboxes", fresh).await.refused(status, code);
    }
    // What is no request at all is one for no name either.
    let wrong = json!({"name": "n", "getOrCreate": true, "bogus": 1});
    stack.call("POST", "/v1/sandboxes", wrong).await.refused(400, "invalid_request");
    stack.stop().await;
}
