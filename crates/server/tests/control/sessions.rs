//! Sessions: what their tokens reach, from which pages, and until when.

use serde_json::{Value, json};

use crate::stack::{Reply, Stack, eventually, send};

const PAGE: &str = "https://app.example.com";

async fn create(stack: &Stack, id: &str, body: Value) -> Value {
    stack.call("POST", &format!("/v1/sandboxes/{id}/sessions"), body).await.ok()
}

async fn with_token(stack: &Stack, token: &str, method: &str, path: &str, origin: Option<&str>) -> Reply {
    let auth = format!("Bearer {token}");
    let mut headers = vec![("authorization", auth.as_str())];
    headers.extend(origin.map(|origin| ("origin", origin)));
    send(stack.address, method, path, &headers, b"").await
}

fn text(value: &Value) -> &str {
    value.as_str().expect("text")
}

#[tokio::test]
async fn a_session_is_made_listed_and_revoked() {
    let stack = Stack::start().await;
    let id = text(&stack.sandbox(json!({})).await["id"]).to_owned();
    let path = format!("/v1/sandboxes/{id}/sessions");
    let made = create(&stack, &id, json!({"origins": [PAGE, "http://localhost:3000"], "name": "tab"})).await;
    let token = text(&made["token"]).to_owned();
    assert_eq!(token.len(), "rtsess_".len() + 36 + 1 + 43, "{token}");
    assert!(token.starts_with(&format!("rtsess_{}_", text(&made["id"]))));
    assert_eq!((&made["sandboxId"], &made["name"], &made["state"]), (&json!(id), &json!("tab"), &json!("active")));
    assert_eq!(made["revokedAt"], Value::Null);
    assert_eq!(made["apiUrl"], "http://test", "where the caller found it");
    let seconds = |time: &Value| serde_json::from_value::<runtime_api::Time>(time.clone()).unwrap().0.timestamp();
    assert_eq!(seconds(&made["expiresAt"]) - seconds(&made["createdAt"]), 3600);

    let listed = stack.get(&path).await;
    assert!(!String::from_utf8_lossy(&listed.body).contains(&token), "the token is told once");
    assert_eq!(listed.ok()["data"][0]["id"], made["id"]);
    assert_eq!(listed.ok()["nextCursor"], Value::Null);
    let second = create(&stack, &id, json!({})).await;
    let ids = |listed: &Value| -> Vec<Value> {
        listed["data"].as_array().unwrap().iter().map(|one| one["id"].clone()).collect()
    };
    assert_eq!(ids(&stack.get(&path).await.ok()), [second["id"].clone(), made["id"].clone()], "newest first");

    with_token(&stack, &token, "GET", &format!("/v1/sandboxes/{id}"), None).await.ok();
    let revoke = format!("{path}/{}:revoke", text(&made["id"]));
    for _ in 0..2 {
        let revoked = stack.call("POST", &revoke, json!({})).await.ok();
        assert_eq!(revoked["state"], "revoked");
        assert!(revoked["revokedAt"].is_string());
    }
    with_token(&stack, &token, "GET", &format!("/v1/sandboxes/{id}"), None).await.refused(401, "unauthorized");
    with_token(&stack, text(&second["token"]), "GET", &format!("/v1/sandboxes/{id}"), None).await.ok();
    // Of another sandbox it is unknown, and not revoked by it.
    let other = text(&stack.sandbox(json!({})).await["id"]).to_owned();
    let elsewhere = format!("/v1/sandboxes/{other}/sessions/{}:revoke", text(&second["id"]));
    stack.call("POST", &elsewhere, json!({})).await.refused(404, "not_found");
    with_token(&stack, text(&second["token"]), "GET", &format!("/v1/sandboxes/{id}"), None).await.ok();
    stack.stop().await;
}

#[tokio::test]
async fn every_wrong_field_is_named() {
    let stack = Stack::start().await;
    let id = text(&stack.sandbox(json!({})).await["id"]).to_owned();
    let body = json!({"ttlSeconds": 59, "origins": ["https://a.example/", "*"], "name": "", "scope": "all"});
    let refused = stack.call("POST", &format!("/v1/sandboxes/{id}/sessions"), body).await;
    let told = refused.refused(400, "invalid_request").to_string();
    for name in ["ttlSeconds", "origins[0]", "origins[1]", "name", "scope"] {
        assert!(told.contains(name), "{name} in {told}");
    }
    let many: Vec<String> = (0..17).map(|n| format!("https://a{n}.example")).collect();
    let refused = stack.call("POST", &format!("/v1/sandboxes/{id}/sessions"), json!({"origins": many})).await;
    refused.refused(400, "invalid_request");
    stack.stop().await;
}

#[tokio::test]
async fn a_token_reaches_its_sandbox_and_nothing_else() {
    let stack = Stack::start().await;
    let id = text(&stack.sandbox(json!({})).await["id"]).to_owned();
    let other = text(&stack.sandbox(json!({})).await["id"]).to_owned();
    let made = create(&stack, &id, json!({})).await;
    let token = text(&made["token"]);
    let record = with_token(&stack, token, "GET", &format!("/v1/sandboxes/{id}"), None).await.ok();
    assert_eq!(record["id"], json!(id));
    for (method, path) in [
        ("GET", "/v1/sandboxes".to_owned()),
        ("GET", "/v1/me".to_owned()),
        ("GET", "/v1/limits".to_owned()),
        ("GET", format!("/v1/sandboxes/{other}")),
        ("GET", format!("/v1/sandboxes/{other}/processes")),
        ("POST", format!("/v1/sandboxes/{other}:exec")),
        ("DELETE", format!("/v1/sandboxes/{id}")),
        ("PATCH", format!("/v1/sandboxes/{id}")),
        ("POST", format!("/v1/sandboxes/{id}:stop")),
        ("POST", format!("/v1/sandboxes/{id}:pause")),
        ("POST", format!("/v1/sandboxes/{id}:fork")),
        ("GET", format!("/v1/sandboxes/{id}/sessions")),
        ("POST", format!("/v1/sandboxes/{id}/sessions")),
        ("POST", format!("/v1/sandboxes/{id}/sessions/{}:revoke", text(&made["id"]))),
        ("GET", format!("/v1/sandboxes/{id}/terminal")),
        ("GET", format!("/v1/sandboxes/{id}/tunnel")),
        ("POST", "/v1/sandboxes:stop".to_owned()),
        ("POST", "/v1/sandboxes".to_owned()),
        ("GET", format!("/v1/sandboxes/%{:x}{}", id.as_bytes()[0], &id[1..])),
    ] {
        with_token(&stack, token, method, &path, None).await.refused(403, "forbidden");
    }
    // Of a watch the wish for a webhook is refused before anything else that is wrong.
    let watches = format!("/v1/sandboxes/{id}/files/watches");
    let auth = format!("Bearer {token}");
    let start = async |body: &[u8]| send(stack.address, "POST", &watches, &[("authorization", &auth)], body).await;
    start(br#"{"webhook": true, "path": 7, "unknown": 1}"#).await.refused(403, "forbidden");
    start(br#"{"webhook": true, "path": "/workspace"}"#).await.refused(403, "forbidden");
    start(br#"{"webhook": false, "path": 7}"#).await.refused(400, "invalid_request");
    for bad in ["rtsess_", "rtsess_x", &token[..token.len() - 1], &format!("{token}A"), &token.replace("sess", "cloud")]
    {
        let path = format!("/v1/sandboxes/{id}");
        with_token(&stack, bad, "GET", &path, None).await.refused(401, "unauthorized");
    }
    let reader = stack.key(false, true).await;
    let auth = format!("Bearer {reader}");
    let path = format!("/v1/sandboxes/{id}/sessions");
    send(stack.address, "POST", &path, &[("authorization", &auth)], b"{}").await.refused(403, "forbidden");
    stack.stop().await;
}

/// A tool is a call from within, which has no path of its own to be judged by.
#[tokio::test]
async fn a_token_is_no_key_for_tools() {
    let stack = Stack::start().await;
    let id = text(&stack.sandbox(json!({})).await["id"]).to_owned();
    let made = create(&stack, &id, json!({"origins": [PAGE]})).await;
    let bearer = format!("Bearer {}", text(&made["token"]));
    let call = |tool: &str, arguments: Value| {
        let params = json!({"name": tool, "arguments": arguments});
        json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
    };
    let ask = async |path: &str, auth: &str, message: &Value| {
        let headers = [("authorization", auth), ("content-type", "application/json"), ("origin", PAGE)];
        send(stack.address, "POST", path, &headers, message.to_string().as_bytes()).await
    };
    let stop = call("runtime_sandboxes_manage", json!({"id": id, "action": "stop"}));
    for message in [
        json!({"jsonrpc": "2.0", "id": 1, "method": "ping"}),
        json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}),
        call("runtime_sandboxes_inspect", json!({"id": id})),
        stop.clone(),
    ] {
        let refused = ask("/mcp", &bearer, &message).await;
        refused.refused(403, "forbidden");
        assert_eq!(refused.header("access-control-allow-origin"), Some(PAGE), "the page may know why");
        ask("/mcp?profile=chatgpt", &bearer, &message).await.refused(403, "forbidden");
        // Another spelling is no way around: what is not `/mcp` is not the tools.
        for path in ["/mcp/", "//mcp", "/%6dcp", "/mcp:stop", "/./mcp", "/MCP"] {
            ask(path, &bearer, &message).await.refused(404, "route_not_found");
        }
    }
    for method in ["GET", "DELETE", "OPTIONS"] {
        send(stack.address, method, "/mcp", &[("authorization", &bearer)], b"").await.refused(403, "forbidden");
    }
    let record = with_token(&stack, text(&made["token"]), "GET", &format!("/v1/sandboxes/{id}"), None).await.ok();
    assert_eq!(record["state"], "running");
    // The same call with the key does it, so it was the token that was refused.
    let key = format!("Bearer {}", stack.key);
    assert_eq!(ask("/mcp", &key, &stop).await.status, 200);
    assert_eq!(stack.get(&format!("/v1/sandboxes/{id}")).await.ok()["state"], "stopped");
    stack.stop().await;
}

#[tokio::test]
async fn a_page_is_served_if_it_is_listed() {
    let stack = Stack::start().await;
    let id = text(&stack.sandbox(json!({})).await["id"]).to_owned();
    let made = create(&stack, &id, json!({"origins": [PAGE]})).await;
    let token = text(&made["token"]);
    let path = format!("/v1/sandboxes/{id}");
    let allowed = |reply: &Reply| reply.header("access-control-allow-origin").map(str::to_owned);

    let good = with_token(&stack, token, "GET", &path, Some(PAGE)).await;
    good.ok();
    assert_eq!(allowed(&good).as_deref(), Some(PAGE));
    assert!(good.header("vary").is_some_and(|vary| vary.contains("Origin")));
    let exposed = good.header("access-control-expose-headers").unwrap_or_default();
    // By the length and the digest a page knows a file that was cut.
    for name in ["X-Request-Id", "X-Content-Length", "X-Content-Sha256"] {
        assert!(exposed.contains(name), "{exposed}");
    }
    // Errors as well: of the scope, of the route, of the handler.
    for (method, path) in
        [("GET", "/v1/me".to_owned()), ("GET", format!("{path}/files/nope")), ("POST", format!("{path}:exec"))]
    {
        let refused = with_token(&stack, token, method, &path, Some(PAGE)).await;
        assert!(refused.status >= 400, "{path}");
        assert_eq!(allowed(&refused).as_deref(), Some(PAGE), "{path}");
    }
    for stranger in ["https://evil.example", "https://app.example.com:8443", "http://app.example.com", "null"] {
        let refused = with_token(&stack, token, "GET", &path, Some(stranger)).await;
        refused.refused(403, "forbidden");
        assert_eq!(allowed(&refused), None, "{stranger}");
    }
    // A session without origins serves programs only.
    let bare = create(&stack, &id, json!({})).await;
    with_token(&stack, text(&bare["token"]), "GET", &path, None).await.ok();
    with_token(&stack, text(&bare["token"]), "GET", &path, Some(PAGE)).await.refused(403, "forbidden");
    // Who asks with a key is told nothing of pages.
    let keyed = stack.send("GET", &path, &[("origin", PAGE)], b"").await;
    keyed.ok();
    assert_eq!(allowed(&keyed), None);

    // A page may read that its session is over.
    stack.call("POST", &format!("{path}/sessions/{}:revoke", text(&made["id"])), json!({})).await.ok();
    let over = with_token(&stack, token, "GET", &path, Some(PAGE)).await;
    over.refused(401, "unauthorized");
    assert_eq!(allowed(&over).as_deref(), Some(PAGE));
    stack.stop().await;
}

#[tokio::test]
async fn a_browser_may_ask_before() {
    let stack = Stack::start().await;
    let id = text(&stack.sandbox(json!({})).await["id"]).to_owned();
    let made = create(&stack, &id, json!({"origins": [PAGE]})).await;
    let path = format!("/v1/sandboxes/{id}:exec");
    let ask = async |path: &str, origin: &str| {
        let headers = [
            ("origin", origin),
            ("access-control-request-method", "POST"),
            ("access-control-request-headers", "authorization,content-type,idempotency-key"),
        ];
        send(stack.address, "OPTIONS", path, &headers, b"").await
    };
    let allowed = ask(&path, PAGE).await;
    assert_eq!((allowed.status, allowed.body.len()), (200, 0));
    assert_eq!(allowed.header("access-control-allow-origin"), Some(PAGE));
    assert!(allowed.header("access-control-allow-methods").is_some_and(|methods| methods.contains("POST")));
    assert!(allowed.header("access-control-allow-headers").is_some_and(|names| names.contains("authorization")));
    assert_eq!(allowed.header("access-control-allow-credentials"), None);

    let nobody = uuid::Uuid::new_v4();
    for (path, origin) in [(path.clone(), "https://evil.example"), (format!("/v1/sandboxes/{nobody}:exec"), PAGE)] {
        let refused = ask(&path, origin).await;
        refused.refused(403, "forbidden");
        assert_eq!(refused.header("access-control-allow-origin"), None);
    }
    ask("/v1/me", PAGE).await.refused(401, "unauthorized");
    stack.call("POST", &format!("/v1/sandboxes/{id}/sessions/{}:revoke", text(&made["id"])), json!({})).await.ok();
    ask(&path, PAGE).await.refused(403, "forbidden");
    stack.stop().await;
}

#[tokio::test]
async fn a_repeated_create_is_one_session_whose_token_is_not_told_again() {
    let stack = Stack::start().await;
    let id = text(&stack.sandbox(json!({})).await["id"]).to_owned();
    let path = format!("/v1/sandboxes/{id}/sessions");
    let first = stack.keyed("POST", &path, "one", json!({"name": "a"})).await.ok();
    assert!(first["token"].is_string());
    let again = stack.keyed("POST", &path, "one", json!({"name": "a"})).await;
    assert_eq!(again.header("idempotency-replayed"), Some("true"));
    let again = again.ok();
    assert_eq!((&again["id"], &again["token"]), (&first["id"], &Value::Null));
    let stack = stack.killed_and_started().await;
    let later = stack.keyed("POST", &path, "one", json!({"name": "a"})).await.ok();
    assert_eq!((&later["id"], &later["token"]), (&first["id"], &Value::Null));
    assert_eq!(stack.get(&path).await.ok()["data"].as_array().unwrap().len(), 1);
    with_token(&stack, text(&first["token"]), "GET", &format!("/v1/sandboxes/{id}"), None).await.ok();
    // The token is nowhere in the file.
    let token = text(&first["token"]);
    let secret = &token.as_bytes()[token.len() - 43..];
    for entry in std::fs::read_dir(stack.data_dir()).unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap_or_default();
        assert!(!bytes.windows(secret.len()).any(|window| window == secret));
    }
    stack.stop().await;
}

#[tokio::test]
async fn it_ends_with_its_time_its_key_and_its_sandbox() {
    let stack = Stack::start().await;
    let id = text(&stack.sandbox(json!({})).await["id"]).to_owned();
    let record = format!("/v1/sandboxes/{id}");
    let made = create(&stack, &id, json!({"ttlSeconds": 60})).await;
    let token = text(&made["token"]);
    with_token(&stack, token, "GET", &record, None).await.ok();
    stack.sql("update sessions set expires_at = 1 + created_at").await;
    eventually("it has expired", async || with_token(&stack, token, "GET", &record, None).await.status == 401).await;
    assert_eq!(stack.get(&format!("{record}/sessions")).await.ok()["data"][0]["state"], "expired");

    let maker = stack.key(true, false).await;
    let auth = format!("Bearer {maker}");
    let of_maker =
        send(stack.address, "POST", &format!("{record}/sessions"), &[("authorization", &auth)], b"{}").await.ok();
    with_token(&stack, text(&of_maker["token"]), "GET", &record, None).await.ok();
    let beside = runtime_server::keys::open(&stack.data_dir()).await.unwrap();
    runtime_server::keys::revoke(&beside, text(&of_maker["createdBy"])).await.unwrap();
    with_token(&stack, text(&of_maker["token"]), "GET", &record, None).await.refused(401, "unauthorized");
    beside.close().await;

    let last = create(&stack, &id, json!({})).await;
    stack.call("DELETE", &record, json!({})).await.ok();
    with_token(&stack, text(&last["token"]), "GET", &record, None).await.refused(404, "not_found");
    stack.stop().await;
}
