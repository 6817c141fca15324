//! Processes that outlive their request.

use serde_json::{Value, json};

use crate::stack::Stack;

async fn spawn(stack: &Stack, body: Value) -> Value {
    let mut body = body;
    (body["user"], body["cwd"]) = (json!("root"), json!("/"));
    stack.post("{s}/processes", body).await.ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_is_fed_read_and_signalled() {
    let stack = Stack::start().await;
    let made = spawn(&stack, json!({"command": "cat; sleep 3600", "stdinMode": "pipe"})).await;
    assert_eq!(
        (&made["kind"], &made["state"], &made["exitCode"]),
        (&json!("process"), &json!("running"), &json!(null))
    );
    assert_eq!((&made["command"], &made["user"]), (&json!("bash -c cat; sleep 3600"), &json!("root")));
    assert_eq!((&made["stdinOpen"], &made["stdinOffset"], &made["timeoutMs"]), (&json!(true), &json!(0), &json!(null)));
    assert_eq!(made["startedAt"].as_str().map(str::len), Some(24));
    assert!(made["pid"].as_i64().is_some_and(|pid| pid > 0));
    let at = format!("{{s}}/processes/{}", made["id"].as_str().unwrap());

    let write = stack.post(&format!("{at}:write"), json!({"data": "hello ", "offset": 0})).await.ok();
    assert_eq!(write["offset"], 6);
    // Sent again with more: what was accepted is skipped.
    let write =
        stack.post(&format!("{at}:write"), json!({"base64": "aGVsbG8gYWdhaW4=", "offset": 0, "eof": true})).await;
    assert_eq!(write.ok()["offset"], 11);
    let ahead = stack.post(&format!("{at}:write"), json!({"data": "x", "offset": 99})).await;
    assert_eq!(ahead.refusal().0, 400);

    let mut text = String::new();
    while text.len() < 11 {
        let poll = stack.get(&format!("{at}/output?cursor={}&waitMs=5000", text.len())).await.ok();
        for chunk in poll["chunks"].as_array().unwrap() {
            assert_eq!((&chunk["stream"], chunk["offset"].as_u64()), (&json!("stdout"), Some(text.len() as u64)));
            text.push_str(chunk["text"].as_str().unwrap());
        }
        assert_eq!(poll["nextCursor"].as_u64(), Some(text.len() as u64));
        assert_eq!(poll["process"]["id"], made["id"]);
    }
    assert_eq!(text, "hello again");

    let listed = stack.get("{s}/processes").await.ok();
    assert_eq!(listed["data"][0]["id"], made["id"]);
    assert_eq!(stack.post(&format!("{at}:signal"), json!({"signal": "SIGKILL"})).await.ok(), json!({}));
    let told = stack.get(&format!("{at}/output?cursor=0&follow=true")).await.events();
    let last = told.last().unwrap();
    assert_eq!((&last["state"], &last["exitCode"]), (&json!("killed"), &json!(-9)));
    assert_eq!(stack.post(&format!("{at}:signal"), json!({"signal": "SIGTERM"})).await.ok(), json!({}));
    let ended = stack.get(&at).await.ok();
    assert_eq!((&ended["state"], &ended["outputBytes"]), (&json!("killed"), &json!(11)));
    assert!(ended["endedAt"].is_string());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn binary_output_carries_its_bytes() {
    let stack = Stack::start().await;
    let made = spawn(&stack, json!({"argv": ["printf", "\\303"], "outputEncoding": "base64"})).await;
    assert_eq!(made["outputEncoding"], "base64");
    let at = format!("{{s}}/processes/{}/output", made["id"].as_str().unwrap());
    let told = stack.get(&format!("{at}?follow=true")).await.events();
    assert_eq!(told[0], json!({"type": "stdout", "data": "\u{fffd}", "offset": 0, "base64": "ww=="}));
    let poll = stack.get(&at).await.ok();
    assert_eq!(poll["chunks"][0]["base64"], "ww==");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_processes_refuse() {
    let stack = Stack::start().await;
    let made = spawn(&stack, json!({"argv": ["true"]})).await;
    let at = format!("{{s}}/processes/{}", made["id"].as_str().unwrap());
    for (path, body, status, code) in [
        ("{s}/processes".to_owned(), json!({"command": "x", "pty": {"cols": 0}}), 400, "invalid_request"),
        ("{s}/processes".to_owned(), json!({"command": "x", "stream": true}), 400, "invalid_request"),
        ("{s}/processes".to_owned(), json!({"command": "x", "stdinMode": "file"}), 400, "invalid_request"),
        (format!("{at}:signal"), json!({"signal": "SIGSTOP"}), 400, "invalid_request"),
        (format!("{at}:signal"), json!({}), 400, "invalid_request"),
        (format!("{at}:write"), json!({"base64": "", "data": "", "offset": 0}), 400, "invalid_request"),
        (format!("{at}:write"), json!({"base64": "?", "offset": 0}), 400, "invalid_request"),
        (format!("{at}:write"), json!({"data": "x"}), 400, "invalid_request"),
        (format!("{at}:resize"), json!({"cols": 80, "rows": 24}), 400, "invalid_request"),
        (format!("{at}:resize"), json!({"cols": 80}), 400, "invalid_request"),
        ("{s}/processes/nope:resize".to_owned(), json!({"cols": 80, "rows": 24}), 404, "not_found"),
        ("{s}/processes/nope:signal".to_owned(), json!({"signal": "SIGTERM"}), 404, "not_found"),
    ] {
        let answer = stack.post(&path, body.clone()).await;
        assert_eq!(answer.refusal(), (status, code.to_owned()), "{path} {body}");
    }
    for (path, status, code) in [
        ("{s}/processes/nope".to_owned(), 404, "not_found"),
        ("{s}/processes/nope/output?follow=true".to_owned(), 404, "not_found"),
        (format!("{at}/output?waitMs=8001"), 400, "invalid_request"),
        (format!("{at}/output?cursor=-1"), 400, "invalid_request"),
        (format!("{at}/output?cursor=99&follow=true&x=1"), 400, "invalid_request"),
        (format!("{at}/files"), 404, "not_found"),
    ] {
        assert_eq!(stack.get(&path).await.refusal(), (status, code.to_owned()), "{path}");
    }
}
