//! Watches over HTTP.

use bytes::Bytes;
use serde_json::{Value, json};

use crate::stack::{PATIENCE, Stack};

async fn start(stack: &Stack, body: Value) -> Value {
    stack.post("{s}/files/watches", body).await.ok()
}

/// All events and notices from a cursor on, until one is as wanted; and where to go on.
async fn until(stack: &Stack, id: &str, mut cursor: u64, wanted: impl Fn(&Value) -> bool) -> (Vec<Value>, u64) {
    let (mut seen, end) = (Vec::new(), std::time::Instant::now() + PATIENCE);
    loop {
        let poll = stack.get(&format!("{{s}}/files/watches/{id}/events?cursor={cursor}&waitMs=8000")).await.ok();
        cursor = poll["nextCursor"].as_u64().expect("a cursor");
        for what in ["events", "notices"] {
            seen.extend(poll[what].as_array().expect("a list").iter().cloned());
        }
        if seen.iter().any(&wanted) {
            return (seen, cursor);
        }
        assert!(poll["ended"] != true && std::time::Instant::now() < end, "it never came: {seen:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_are_polled_followed_and_end() {
    let stack = Stack::start().await;
    let root = std::path::PathBuf::from(stack.path("watched"));
    std::fs::create_dir(&root).expect("a directory");
    let watch = start(&stack, json!({"path": root, "recursive": true, "id": "mine", "batchMs": 10})).await;
    assert_eq!((&watch["id"], &watch["state"], &watch["cursor"]), (&json!("mine"), &json!("running"), &json!(0)));
    assert!(watch["startedAt"].as_u64().is_some() && watch["processId"].is_string());
    std::fs::write(root.join("a"), "1").expect("a file");
    std::fs::rename(root.join("a"), root.join("b")).expect("renamed");
    let (seen, cursor) = until(&stack, "mine", 0, |event| event["type"] == "rename").await;
    let path = |name: &str| json!(root.join(name));
    assert_eq!((&seen[0]["type"], &seen[0]["path"], &seen[0]["isDir"]), (&json!("create"), &path("a"), &json!(false)));
    let renamed = seen.last().expect("a rename");
    assert_eq!((&renamed["path"], &renamed["oldPath"]), (&path("b"), &path("a")));
    // The same again from the same cursor, and nothing from the last.
    assert_eq!(until(&stack, "mine", 0, |event| event["type"] == "rename").await.0, seen);
    let none = stack.get(&format!("{{s}}/files/watches/mine/events?cursor={cursor}")).await.ok();
    assert_eq!((&none["events"], &none["nextCursor"], &none["ended"]), (&json!([]), &json!(cursor), &json!(false)));
    assert_eq!(stack.get("{s}/files/watches").await.ok()["data"].as_array().map(Vec::len), Some(1));
    let stopped = stack.request("DELETE", "{s}/files/watches/mine", &[], Bytes::new()).await.ok();
    assert_eq!(stopped["stopped"], true);
    let lines = stack.get("{s}/files/watches/mine/events?follow=true").await.events();
    assert!(lines.iter().all(|line| line["cursor"].is_u64()), "{lines:?}");
    assert_eq!((&lines[0]["k"], &lines[0]["events"][0]["type"]), (&json!("events"), &json!("create")));
    let last = lines.last().expect("an end");
    assert_eq!((&last["k"], &last["reason"]), (&json!("end"), &json!("stopped")));
    let (seen, _) = until(&stack, "mine", cursor, |notice| notice["k"] == "end").await;
    assert_eq!(seen.last().expect("an end")["reason"], "stopped");
    assert_eq!(stack.get("{s}/files/watches").await.ok()["data"], json!([]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_watches_refuse() {
    let stack = Stack::start().await;
    let root = std::path::PathBuf::from(stack.path("watched"));
    std::fs::create_dir(&root).expect("a directory");
    for (body, status, code) in [
        (json!({}), 400, "invalid_request"),
        (json!({"path": "relative"}), 400, "invalid_request"),
        (json!({"path": root, "events": ["nothing"]}), 400, "invalid_request"),
        (json!({"path": root, "id": "Not This"}), 400, "invalid_request"),
        (json!({"path": root, "include": ["["]}), 400, "invalid_request"),
        (json!({"path": root, "timeoutMs": 86_400_001_u64}), 400, "invalid_request"),
        (json!({"path": root, "webhook": true}), 501, "unavailable"),
        (json!({"path": root.join("none")}), 404, "file_not_found"),
    ] {
        let answer = stack.post("{s}/files/watches", body.clone()).await;
        assert_eq!(answer.refusal(), (status, code.to_owned()), "{body}");
    }
    for number in 0..4 {
        start(&stack, json!({"path": root, "id": format!("w-{number}")})).await;
    }
    for (id, code) in [("w-0", "already_exists"), ("w-5", "watch_limit")] {
        let answer = stack.post("{s}/files/watches", json!({"path": root, "id": id})).await;
        assert_eq!(answer.refusal(), (409, code.to_owned()));
    }
    for (path, status, code) in [
        ("none/events", 404, "not_found"),
        ("none/events?follow=true", 404, "not_found"),
        ("w-0/events?cursor=7", 400, "invalid_request"),
        ("w-0/events?cursor=7&follow=true", 400, "invalid_request"),
        ("w-0/events?waitMs=8001", 400, "invalid_request"),
    ] {
        let answer = stack.get(&format!("{{s}}/files/watches/{path}")).await;
        assert_eq!(answer.refusal(), (status, code.to_owned()), "{path}");
    }
}
