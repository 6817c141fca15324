//! A key sees what is its own; the account's key sees all; a revoke holds from the next request.

use runtime_test_kit::{Api, Stack, unique};
use serde_json::{Value, json};

/// `runtime keys create`, as the operator of this data directory.
fn key(stack: &Stack, options: &[&str]) -> String {
    let run = stack
        .command()
        .args(["keys", "create", "--data-dir"])
        .arg(stack.dir())
        .args(options)
        .output()
        .expect("runtime keys");
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let key = String::from_utf8(run.stdout).expect("a key").trim().to_owned();
    assert!(key.starts_with("rtcloud_") && !key.contains(char::is_whitespace), "the key alone on stdout: {key:?}");
    key
}

fn ids(api: &Api) -> Vec<String> {
    let listed = api.get("/v1/sandboxes?includeStopped=true").ok();
    listed["data"].as_array().expect("a list").iter().map(|one| one["id"].as_str().expect("an id").to_owned()).collect()
}

#[test]
fn another_key_sees_nothing_of_it() {
    let stack = Stack::start();
    let owner = stack.api();
    let (one, two) =
        (owner.with_key(&key(&stack, &["--name", "one"])), owner.with_key(&key(&stack, &["--name", "two"])));
    let name = unique("n");
    let mine = one.create(&json!({"name": name, "vcpu": 1, "memoryMiB": 256, "labels": {"k": "v"}}));
    mine.write("/workspace/f", b"x");
    let process = mine.spawn(&json!({"command": "sleep 4321"}));
    for (method, path, body) in [
        ("GET", mine.path(""), None),
        ("GET", mine.path("?waitFor=running&timeoutSeconds=1"), None),
        ("DELETE", mine.path(""), None),
        ("POST", mine.path(":stop"), Some(json!({}))),
        ("POST", mine.path(":restart"), Some(json!({}))),
        ("POST", mine.path(":update"), Some(json!({"name": "x"}))),
        ("POST", mine.path(":exec"), Some(json!({"command": "true"}))),
        ("POST", mine.path("/processes"), Some(json!({"command": "true"}))),
        ("GET", mine.path("/processes"), None),
        ("GET", mine.path(&format!("/processes/{process}")), None),
        ("GET", mine.path(&format!("/processes/{process}/output?cursor=0")), None),
        ("POST", mine.path(&format!("/processes/{process}:signal")), Some(json!({"signal": "SIGKILL"}))),
        (
            "POST",
            mine.path(&format!("/processes/{process}:write")),
            Some(json!({"data": "", "offset": 0, "eof": false})),
        ),
        ("GET", mine.path("/files/content?path=/workspace/f"), None),
        ("PUT", mine.path("/files/content?path=/workspace/f"), Some(json!("owned"))),
        ("GET", mine.path("/files/list?path=/workspace"), None),
        ("GET", mine.path("/files/stat?path=/workspace/f"), None),
        ("POST", mine.path("/files:mkdir"), Some(json!({"path": "/workspace/d", "parents": true}))),
        ("POST", mine.path("/files:remove"), Some(json!({"path": "/workspace/f", "recursive": true}))),
        (
            "POST",
            mine.path("/files:rename"),
            Some(json!({"from": "/workspace/f", "to": "/workspace/g", "overwrite": false})),
        ),
        ("POST", mine.path("/files:chmod"), Some(json!({"path": "/workspace/f", "mode": "777"}))),
    ] {
        let text = body.as_ref().map(Value::to_string);
        let answer = two.call(method, &path, &[], text.as_ref().map(|text| ("application/json", text.as_bytes())));
        let error = answer.refused(404, "not_found");
        // The same as for one that never was: nothing tells that it exists.
        assert!(!error.to_string().contains(&name), "{error}");
    }
    assert_eq!(ids(&two), Vec::<String>::new());
    assert_eq!(ids(&one), [mine.id.as_str()]);
    assert_eq!(two.get(&format!("/v1/sandboxes?name={name}")).ok()["data"], json!([]));
    assert_eq!(two.get("/v1/sandboxes?label=k:v").ok()["data"], json!([]));
    // The name is taken, and by whom is not told.
    for body in [json!({"name": name}), json!({"name": name, "getOrCreate": true})] {
        let error = two.post("/v1/sandboxes", &body).refused(409, "name_taken");
        assert!(error["details"].get("sandboxId").is_none_or(Value::is_null), "{error}");
    }
    assert_eq!(mine.read("/workspace/f"), b"x");
    assert_eq!(mine.state(), "running");
    // The account's key sees and does all.
    let all = owner.with_key(&key(&stack, &["--name", "all", "--account-wide"]));
    for seeing in [&owner, &all] {
        assert_eq!(ids(seeing), [mine.id.as_str()]);
        let same = runtime_test_kit::Machine { api: (*seeing).clone(), id: mine.id.clone() };
        assert_eq!(same.output("cat f"), "x");
        let found = seeing.post("/v1/sandboxes", &json!({"name": name, "getOrCreate": true})).ok();
        assert_eq!((found["id"].as_str(), &found["reused"]), (Some(mine.id.as_str()), &json!(true)));
        let error = seeing.post("/v1/sandboxes", &json!({"name": name})).refused(409, "name_taken");
        assert_eq!(error["details"]["sandboxId"], mine.id.as_str());
    }
    let _ = all.delete(&mine.path("")).ok();
    let _ = one.get(&mine.path("")).refused(404, "not_found");
}

#[test]
fn keys_of_different_holders_do_not_share_idempotency() {
    let stack = Stack::start();
    let owner = stack.api();
    let (one, two) =
        (owner.with_key(&key(&stack, &["--name", "one"])), owner.with_key(&key(&stack, &["--name", "two"])));
    let again = unique("key");
    let fields = json!({"vcpu": 1, "memoryMiB": 256});
    let first = one.post_with("/v1/sandboxes", &[("Idempotency-Key", &again)], &fields).ok();
    let other = two.post_with("/v1/sandboxes", &[("Idempotency-Key", &again)], &fields);
    if other.status == 200 {
        assert_ne!(other.json()["id"], first["id"], "one key was given another's sandbox");
    } else {
        // Scoped to the whole organization it is a refusal, and tells nothing of the first.
        let error = other.refused(422, "idempotency_key_reused");
        assert!(!error.to_string().contains(first["id"].as_str().expect("an id")), "{error}");
    }
}

#[test]
fn a_key_that_reads_changes_nothing() {
    let stack = Stack::start();
    let owner = stack.api();
    let machine = owner.small();
    machine.write("/workspace/f", b"x");
    let reader = owner.with_key(&key(&stack, &["--name", "reader", "--read-only"]));
    assert_eq!(reader.get("/v1/me").status, 200);
    assert_eq!(reader.get("/v1/limits").status, 200);
    assert_eq!(reader.get("/v1/sandboxes").status, 200);
    for (method, path, body) in [
        ("POST", "/v1/sandboxes".to_owned(), "{}"),
        ("DELETE", machine.path(""), ""),
        ("POST", machine.path(":stop"), "{}"),
        ("POST", machine.path(":exec"), r#"{"command":"true"}"#),
        ("POST", machine.path("/processes"), r#"{"command":"true"}"#),
        ("PUT", machine.path("/files/content?path=/workspace/f"), "owned"),
        ("POST", machine.path("/files:remove"), r#"{"path":"/workspace/f","recursive":true}"#),
    ] {
        let answer = reader.call(method, &path, &[], Some(("application/json", body.as_bytes())));
        let _ = answer.refused(403, "forbidden");
    }
    assert_eq!(machine.state(), "running");
    assert_eq!(machine.read("/workspace/f"), b"x");
}

#[test]
fn a_revoke_holds_from_the_next_request() {
    let stack = Stack::start();
    let text = key(&stack, &["--name", "short-lived"]);
    let api = stack.api().with_key(&text);
    let machine = api.create(&json!({"vcpu": 1, "memoryMiB": 256}));
    let id = api.get("/v1/me").ok()["credentialId"].as_str().expect("an id").to_owned();
    let run =
        stack.command().args(["keys", "revoke", &id, "--data-dir"]).arg(stack.dir()).output().expect("runtime keys");
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let _ = api.get("/v1/me").refused(401, "unauthorized");
    let _ = api.get(&machine.path("")).refused(401, "unauthorized");
    let _ = api.post(&machine.path(":exec"), &json!({"command": "true"})).refused(401, "unauthorized");
    // What it made is the account's, and goes on.
    assert_eq!(ids(&stack.api()), [machine.id.as_str()]);
    let listed =
        stack.command().args(["keys", "ls", "--json", "--data-dir"]).arg(stack.dir()).output().expect("runtime keys");
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    let secret = text.splitn(3, '_').nth(2).expect("its secret half");
    assert!(listed.contains("short-lived") || !listed.contains(&id), "{listed}");
    assert!(!listed.contains(secret), "a list of keys shows one");
}

#[test]
fn keys_are_hashed_at_rest_and_survive_a_restart() {
    let mut stack = Stack::start();
    let text = key(&stack, &["--name", "kept"]);
    let secret = text.splitn(3, '_').nth(2).expect("its secret half").to_owned();
    assert_eq!(stack.api().with_key(&text).get("/v1/me").status, 200);
    stack.kill9();
    stack.restart();
    assert_eq!(stack.api().with_key(&text).get("/v1/me").status, 200);
    assert_eq!(stack.api().get("/v1/me").status, 200, "the owner's key is another after a restart");
    for name in ["runtime.db", "runtime.db-wal"] {
        let raw = std::fs::read(stack.dir().join(name)).unwrap_or_default();
        let found = raw.windows(secret.len()).any(|part| part == secret.as_bytes());
        assert!(!found, "{name} holds a key in clear");
    }
}
