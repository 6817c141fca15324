//! Network rules: kept, brought to the node before anything runs, and brought again when something went wrong.

use serde_json::{Value, json};

use crate::stack::{Reply, Stack, eventually, send};

async fn put(stack: &Stack, id: &str, rules: Value) -> Value {
    stack.call("PUT", &format!("/v1/sandboxes/{id}/network"), rules).await.ok()
}

async fn as_key(stack: &Stack, key: &str, method: &str, path: &str, body: Value) -> Reply {
    let (auth, body) = (format!("Bearer {key}"), if body.is_null() { String::new() } else { body.to_string() });
    send(stack.address, method, path, &[("authorization", &auth)], body.as_bytes()).await
}

#[tokio::test]
async fn a_start_brings_the_rules_and_a_change_is_answered_once_it_was_brought() {
    let stack = Stack::start().await;
    let made = stack.sandbox(json!({"network": {"internet": false, "allow": ["a.example"]}})).await;
    let id = made["id"].as_str().unwrap();
    let given = stack.node.rules_of(id);
    assert_eq!((given.len(), given[0].version, given[0].network.allow[0].to_string().as_str()), (1, 1, "a.example"));
    let answer = put(&stack, id, json!({"internet": true, "deny": ["*.b.example"]})).await;
    assert_eq!(
        (&answer["version"], &answer["enforcedVersion"], &answer["enforced"]),
        (&json!(2), &json!(2), &json!(true))
    );
    assert_eq!(stack.node.rules_of(id).last().map(|rules| rules.version), Some(2));
    // The same again changes nothing and asks nobody.
    assert_eq!(put(&stack, id, json!({"internet": true, "deny": ["*.B.example."]})).await["version"], 2);
    assert_eq!(stack.node.rules_of(id).len(), 2);
    // A sandbox that does not run is held by its next start.
    stack.post(&made["id"], "stop", json!({})).await.ok();
    stack.wait_for(id, "stopped").await;
    assert_eq!(put(&stack, id, json!({"internet": false})).await["enforced"], true);
    assert_eq!(stack.node.rules_of(id).len(), 2);
    stack.post(&made["id"], "restart", json!({})).await.ok();
    let last = stack.node.rules_of(id).pop().unwrap();
    assert_eq!((last.version, last.network.internet), (3, false));
    stack.stop().await;
}

#[tokio::test]
async fn rules_that_changed_during_a_start_are_brought_after_it() {
    let stack = Stack::start().await;
    stack.node.hold_starts(true);
    let made = stack.call("POST", "/v1/sandboxes", json!({})).await.ok();
    let id = made["id"].as_str().unwrap();
    eventually("a start", async || !stack.node.starts().is_empty()).await;
    put(&stack, id, json!({"internet": false})).await;
    stack.node.hold_starts(false);
    stack.wait_for(id, "running").await;
    eventually("the newer rules", async || stack.node.rules_of(id).last().is_some_and(|rules| rules.version == 2))
        .await;
    stack.stop().await;
}

#[tokio::test]
async fn the_next_server_brings_the_rules_again() {
    let stack = Stack::start().await;
    let made = stack.sandbox(json!({"network": {"internet": true, "deny": ["192.0.2.0/24"]}})).await;
    let id = made["id"].as_str().unwrap().to_owned();
    let before = stack.node.rules_of(&id).len();
    let stack = stack.killed_and_started().await;
    eventually("they are brought", async || stack.node.rules_of(&id).len() > before).await;
    let last = stack.node.rules_of(&id).pop().unwrap();
    assert_eq!(last.network.deny[0].to_string(), "192.0.2.0/24");
    let path = format!("/v1/sandboxes/{id}/network");
    eventually("they are in force", async || stack.call("GET", &path, Value::Null).await.ok()["enforced"] == true)
        .await;
    stack.stop().await;
}

#[tokio::test]
async fn who_may_not_see_a_sandbox_may_not_see_its_network() {
    let stack = Stack::start().await;
    let id = stack.sandbox(json!({})).await["id"].as_str().unwrap().to_owned();
    let (stranger, reader) = (stack.key(false, false).await, stack.key(true, true).await);
    let path = format!("/v1/sandboxes/{id}/network");
    for read in [path.clone(), format!("{path}/decisions")] {
        as_key(&stack, &stranger, "GET", &read, Value::Null).await.refused(404, "not_found");
        assert_eq!(as_key(&stack, &reader, "GET", &read, Value::Null).await.status, 200);
    }
    as_key(&stack, &stranger, "PUT", &path, json!({"internet": true})).await.refused(404, "not_found");
    as_key(&stack, &reader, "PUT", &path, json!({"internet": true})).await.refused(403, "forbidden");
    stack.call("GET", &format!("{path}/decisions?cursor=x"), Value::Null).await.refused(400, "invalid_request");
    stack.stop().await;
}
