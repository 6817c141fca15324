//! Every wrong field is named, at once; what is right comes back as it was meant.

use serde_json::{Value, json};
use uuid::Uuid;

use crate::node::MEMORY_MIB;
use crate::stack::Stack;

fn issues(error: &Value) -> Vec<String> {
    let issues = error["details"]["issues"].as_array().unwrap();
    let mut paths: Vec<String> = issues.iter().map(|issue| issue["path"].as_str().unwrap().to_owned()).collect();
    assert!(issues.iter().all(|issue| !issue["message"].as_str().unwrap().is_empty()));
    paths.sort();
    paths
}

#[tokio::test]
async fn all_wrong_fields_of_a_create_are_named() {
    let stack = Stack::start().await;
    let body = json!({
        "memoryMb": 1, "bogus": 2, "vcpu": "x", "memoryMiB": 1, "diskMiB": 1.5, "labels": {"a": 1, "": "x"}, "env": {"A": 1},
        "name": "", "user": "admin", "timeoutSeconds": 30, "onTimeout": "pause", "onLeaseEnd": "stop",
        "idlePauseSeconds": 86_401, "autoWake": "true", "network": {"internet": 1, "what": 2}, "cpuFloorMillis": -1,
        "maxTotalCostMicros": 0.5, "secrets": ["ok", 1], "volumes": [{"mode": "x"}], "getOrCreate": 1,
    });
    let error = stack.call("POST", "/v1/sandboxes", body).await.refused(400, "invalid_request");
    let mut paths = [
        "autoWake",
        "bogus",
        "cpuFloorMillis",
        "diskMiB",
        "env.A",
        "getOrCreate",
        "idlePauseSeconds",
        "labels",
        "labels.a",
        "maxTotalCostMicros",
        "memoryMb",
        "memoryMiB",
        "name",
        "network.internet",
        "network.what",
        "onLeaseEnd",
        "secrets[1]",
        "timeoutSeconds",
        "user",
        "vcpu",
        "volumes[0].mode",
        "volumes[0].path",
        "volumes[0].volumeId",
    ];
    paths.sort_unstable();
    assert_eq!(issues(&error), paths);
    assert_eq!(stack.node.count(), 0);
    stack.stop().await;
}

#[tokio::test]
async fn what_cannot_be_had_is_refused_with_its_own_code() {
    let stack = Stack::start().await;
    let big: String = "x".repeat(33 * 1024);
    let many: serde_json::Map<String, Value> = (0..33).map(|n| (format!("V{n}"), json!(""))).collect();
    for (body, status, code) in [
        (json!({"region": "mars"}), 400, "invalid_region"),
        (json!({"env": {"1A": "x"}}), 400, "invalid_env"),
        (json!({"env": {"A": "x\u{0}"}}), 400, "invalid_env"),
        (json!({"env": {"A": big}}), 400, "env_too_large"),
        (json!({"env": many}), 400, "env_too_large"),
        (json!({"image": "x"}), 404, "image_not_found"),
        (json!({"snapshot": "x"}), 404, "snapshot_not_found"),
        (json!({"image": "x", "snapshot": "x"}), 400, "invalid_request"),
        (json!({"volumes": [{"volumeId": "v", "path": "/v"}]}), 501, "unavailable"),
        (json!({"tailscale": {"authKeySecret": "s"}}), 501, "network_unavailable"),
        (json!({"secrets": ["a"]}), 501, "secrets_unavailable"),
        (json!({"network": {}}), 400, "invalid_request"),
        (json!({"network": {"internet": false, "allow": ["https://a.example"]}}), 400, "invalid_request"),
        (json!({"memoryMiB": MEMORY_MIB + 1}), 400, "invalid_request"),
        (json!({"getOrCreate": true}), 400, "invalid_request"),
        (json!({"name": "a\u{0}b"}), 400, "invalid_request"),
        (json!({"name": "a\nb"}), 400, "invalid_request"),
    ] {
        let error = stack.call("POST", "/v1/sandboxes", body).await.refused(status, code);
        if code == "invalid_region" {
            assert_eq!(error["details"]["available"], json!(["us-east"]));
        }
    }
    let error = stack.call("POST", "/v1/sandboxes", json!({"memoryMiB": MEMORY_MIB + 1})).await.json();
    assert!(error["error"]["message"].as_str().unwrap().contains(&MEMORY_MIB.to_string()), "{error}");
    assert_eq!(stack.node.count(), 0);
    stack.stop().await;
}

#[tokio::test]
async fn queries_are_checked_like_bodies() {
    let stack = Stack::start().await;
    let both = stack.call("POST", "/v1/sandboxes?q=1&r=2", json!({"bogus": 1})).await.refused(400, "invalid_request");
    let mut named = issues(&both);
    named.sort();
    assert_eq!(named, ["bogus", "q", "r"]);
    for (query, paths) in [
        ("limit=0&bogus=1", vec!["bogus", "limit"]),
        ("limit=101", vec!["limit"]),
        ("limit=x&limit=y", vec!["limit"]),
        ("state=running&state=nope", vec!["state[1]"]),
        ("cursor=zzz&includeStopped=yes", vec!["cursor", "includeStopped"]),
        ("name=%ff", vec!["query"]),
    ] {
        let error = stack.get(&format!("/v1/sandboxes?{query}")).await.refused(400, "invalid_request");
        assert_eq!(issues(&error), paths, "{query}");
    }
    let path = format!("/v1/sandboxes/{}?waitFor=nope&timeoutSeconds=-1", Uuid::new_v4());
    assert_eq!(issues(&stack.get(&path).await.refused(400, "invalid_request")), ["timeoutSeconds", "waitFor"]);
    stack.get("/v1/me?x=1").await.refused(400, "invalid_request");
    let key = stack.send("POST", "/v1/sandboxes", &[("idempotency-key", "-bad")], b"{}").await;
    assert_eq!(issues(&key.refused(400, "invalid_request")), ["Idempotency-Key"]);
    stack.stop().await;
}

#[tokio::test]
async fn a_record_has_every_field_of_the_contract() {
    let stack = Stack::start().await;
    let made = stack
        .sandbox(json!({"name": "n ä/🦀", "labels": {"a": "b:c"}, "env": {"B": "2", "A": "1"}, "idlePauseSeconds": 5}))
        .await;
    for (field, value) in [
        ("kind", json!("sandbox")),
        ("name", json!("n ä/🦀")),
        ("labels", json!({"a": "b:c"})),
        ("status", json!("active")),
        ("state", json!("running")),
        ("region", json!("us-east")),
        ("funding", json!("paid")),
        ("vcpu", json!(2)),
        ("memoryMiB", json!(4096)),
        ("diskMiB", json!(4096)),
        ("cpu", json!("shared")),
        ("cpuFloorMillis", json!(50)),
        ("pausable", json!(true)),
        ("timeoutSeconds", json!(0)),
        ("idlePauseSeconds", json!(60)),
        ("autoWake", json!(true)),
        ("persistent", json!(false)),
        ("user", json!("sandbox")),
        ("onLeaseEnd", json!("pause")),
        ("onTimeout", json!("pause")),
        ("endsAt", Value::Null),
        ("endedAt", Value::Null),
        ("stopReason", Value::Null),
        ("pausedAt", Value::Null),
        ("pausedExpiresAt", Value::Null),
        ("diskKept", json!(false)),
        ("image", Value::Null),
        ("snapshot", Value::Null),
        ("secrets", Value::Null),
        ("envNames", json!(["A", "B"])),
        ("chargedMicros", json!(0)),
        ("heldMicros", json!(0)),
    ] {
        assert_eq!(made.get(field), Some(&value), "{field} in {made}");
    }
    for field in ["createdAt", "readyAt", "lastActiveAt", "expiresAt"] {
        let time = made[field].as_str().unwrap();
        assert!(time.len() == 24 && time.ends_with('Z'), "{field}: {time}");
    }
    assert!(made.get("env").is_none() && made.get("replayed").is_none() && made.get("reused").is_none());
    for (body, idle) in [
        (json!({}), 300),
        (json!({"persistent": true}), 0),
        (json!({"idlePauseSeconds": 0}), 0),
        (json!({"secrets": []}), 300),
    ] {
        assert_eq!(stack.sandbox(body).await["idlePauseSeconds"], idle);
    }
    let reserved = stack
        .sandbox(json!({"cpu": "reserved", "vcpu": 3, "network": {"internet": false}, "timeoutSeconds": 60}))
        .await;
    assert_eq!(reserved["cpuFloorMillis"], 3000);
    assert!(reserved["endsAt"].is_string());
    stack.stop().await;
}

#[tokio::test]
async fn updates_change_what_they_name_and_nothing_else() {
    let stack = Stack::start().await;
    let made = stack.sandbox(json!({"name": "a", "labels": {"x": "1"}, "env": {"A": "1", "B": "2"}})).await;
    let id = &made["id"];
    let body = json!({"labels": {}, "env": {"A": null, "C": "3"}, "timeoutSeconds": 600, "onTimeout": "stop", "user": "root", "maxTotalCostMicros": 5});
    let next = stack.post(id, "update", body).await.ok();
    assert_eq!((&next["labels"], &next["envNames"], &next["name"]), (&json!({}), &json!(["B", "C"]), &json!("a")));
    assert_eq!(
        (&next["onLeaseEnd"], &next["user"], &next["maxTotalCostMicros"]),
        (&json!("stop"), &json!("root"), &json!(5))
    );
    assert!(next["endsAt"].is_string());
    let cleared =
        stack.post(id, "update", json!({"timeoutSeconds": 0, "maxTotalCostMicros": null, "name": null})).await.ok();
    assert_eq!(
        (&cleared["endsAt"], &cleared["maxTotalCostMicros"], &cleared["name"]),
        (&Value::Null, &Value::Null, &Value::Null)
    );
    // No limit: nothing to extend.
    assert_eq!(stack.post(id, "extend", json!({"seconds": 60})).await.ok()["endsAt"], Value::Null);
    for (verb, body, paths) in [
        ("update", json!({"vcpu": 1, "idlePauseSeconds": "x"}), vec!["idlePauseSeconds", "vcpu"]),
        ("extend", json!({}), vec!["seconds"]),
        ("extend", json!({"seconds": 0}), vec!["seconds"]),
        ("retention", json!({"days": 366}), vec!["days"]),
        ("retention", json!({}), vec!["days"]),
        ("stop", json!({"x": 1}), vec!["x"]),
    ] {
        assert_eq!(issues(&stack.post(id, verb, body).await.refused(400, "invalid_request")), paths);
    }
    stack.post(id, "update", json!({"env": {"0": "x"}})).await.refused(400, "invalid_env");
    stack.sandbox(json!({"name": "b"})).await;
    let taken = stack.post(id, "update", json!({"name": "b"})).await.refused(409, "name_taken");
    assert!(taken["details"]["sandboxId"].is_string(), "{taken}");
    stack.stop().await;
}
