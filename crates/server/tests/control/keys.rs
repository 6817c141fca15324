//! Who sees what, and keys made and revoked beside a running server.

use std::os::unix::fs::PermissionsExt;

use runtime_server::keys::{self, NewKey};
use runtime_store::Store;
use secrecy::ExposeSecret;
use serde_json::{Value, json};

use crate::stack::{Reply, Stack, send};

async fn as_key(stack: &Stack, key: &str, method: &str, path: &str, body: Value) -> Reply {
    let auth = format!("Bearer {key}");
    send(stack.address, method, path, &[("authorization", &auth), ("prefer", "wait=60")], body.to_string().as_bytes())
        .await
}

#[tokio::test]
async fn a_key_sees_what_it_made_and_an_account_wide_one_sees_all() {
    let stack = Stack::start().await;
    let (a, b) = (stack.key(false, false).await, stack.key(false, false).await);
    let made = as_key(&stack, &a, "POST", "/v1/sandboxes", json!({"name": "n"})).await.ok();
    let path = format!("/v1/sandboxes/{}", made["id"].as_str().unwrap());
    for (method, path) in [("GET", path.clone()), ("DELETE", path.clone()), ("POST", format!("{path}:stop"))] {
        as_key(&stack, &b, method, &path, json!({})).await.refused(404, "not_found");
    }
    for body in [json!({"name": "n"}), json!({"name": "n", "getOrCreate": true})] {
        let taken = as_key(&stack, &b, "POST", "/v1/sandboxes", body).await.refused(409, "name_taken");
        assert!(taken["details"].get("sandboxId").is_none(), "{taken}");
    }
    assert_eq!(as_key(&stack, &b, "GET", "/v1/sandboxes", json!({})).await.ok()["data"], json!([]));
    for key in [&a, &stack.key] {
        assert_eq!(as_key(&stack, key, "GET", &path, json!({})).await.ok()["id"], made["id"]);
        assert_eq!(as_key(&stack, key, "GET", "/v1/sandboxes", json!({})).await.ok()["data"][0]["id"], made["id"]);
    }
    as_key(&stack, &a, "DELETE", &path, json!({})).await.ok();
    as_key(&stack, &b, "DELETE", &path, json!({})).await.refused(404, "not_found");
    stack.stop().await;
}

#[tokio::test]
async fn a_read_only_key_reads() {
    let stack = Stack::start().await;
    let id = stack.sandbox(json!({})).await["id"].as_str().unwrap().to_owned();
    let reader = stack.key(false, true).await;
    for (method, path) in [
        ("POST", "/v1/sandboxes".to_owned()),
        ("DELETE", format!("/v1/sandboxes/{id}")),
        ("POST", format!("/v1/sandboxes/{id}:stop")),
        // Changes that are not built yet, and what is inside.
        ("POST", "/v1/jobs".to_owned()),
        ("POST", format!("/v1/sandboxes/{id}:fork")),
        ("GET", format!("/v1/sandboxes/{id}/files/stat?path=/x")),
        ("GET", format!("/v1/sandboxes/{id}/processes")),
    ] {
        as_key(&stack, &reader, method, &path, json!({})).await.refused(403, "forbidden");
    }
    as_key(&stack, &reader, "GET", &format!("/v1/sandboxes/{id}"), json!({})).await.ok();
    let listed = as_key(&stack, &reader, "GET", "/v1/sandboxes", json!({})).await.ok();
    assert_eq!(listed["data"][0]["id"], json!(id), "it sees what others made");
    assert_eq!(as_key(&stack, &reader, "GET", "/v1/limits", json!({})).await.ok()["access"], "read");
    stack.stop().await;
}

#[tokio::test]
async fn a_revoke_from_another_process_holds_from_the_next_request() {
    let stack = Stack::start().await;
    let beside = keys::open(&stack.data_dir()).await.unwrap();
    let made = keys::create(&beside, NewKey { name: "ci".to_owned(), ..NewKey::default() }).await.unwrap();
    let key = made.key.expose_secret();
    assert!(key.starts_with("rtcloud_") && key.len() == "rtcloud_".len() + 36 + 1 + 43, "{key}");
    assert_eq!(as_key(&stack, key, "GET", "/v1/me", json!({})).await.ok()["credentialId"], made.row.id.to_string());
    keys::revoke(&beside, "ci").await.unwrap();
    as_key(&stack, key, "GET", "/v1/me", json!({})).await.refused(401, "unauthorized");
    assert!(matches!(keys::revoke(&beside, "ci").await, Err(keys::KeyError::Unknown(_))));
    assert!(keys::list(&beside).await.unwrap().iter().any(|row| row.revoked_at.is_some()));
    beside.close().await;
    stack.stop().await;
}

#[tokio::test]
async fn the_owners_key_is_written_once_for_its_eyes_only() {
    let stack = Stack::start().await;
    let path = stack.data_dir().join("owner.key");
    assert!(keys::ensure_owner_key(&*stack.store, &path).await.unwrap());
    assert!(!keys::ensure_owner_key(&*stack.store, &path).await.unwrap());
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let key = std::fs::read_to_string(&path).unwrap();
    assert_eq!(as_key(&stack, key.trim(), "GET", "/v1/me", json!({})).await.ok()["role"], "owner");
    // Nothing that is stored is the key.
    let stored = stack.store.credentials().await.unwrap();
    assert!(stored.iter().all(|row| !format!("{row:?}").contains(key.trim())));
    // A file from another store is replaced.
    std::fs::write(&path, "rtcloud_other").unwrap();
    assert!(keys::ensure_owner_key(&*stack.store, &path).await.unwrap());
    stack.stop().await;
}
