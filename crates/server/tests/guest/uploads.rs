//! Large files, by the routes a client uses.

use bytes::Bytes;
use serde_json::{Value, json};

use crate::stack::{Answer, Stack};

const CHUNK: usize = 1024 * 1024;

fn digest(data: &[u8]) -> String {
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, data);
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn content(length: usize) -> Bytes {
    (0..length).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

async fn start(stack: &Stack, path: &str, data: &[u8], key: &str) -> Value {
    let body = json!({"path": path, "size": data.len(), "sha256": digest(data), "mode": "0600"});
    stack.request("POST", "{s}/uploads", &[("idempotency-key", key)], body.to_string().into()).await.ok()
}

async fn put(stack: &Stack, id: &str, offset: usize, data: Bytes) -> Answer {
    stack.request("PUT", &format!("{{s}}/uploads/{id}?offset={offset}"), &[("idempotency-key", "c")], data).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_file_comes_in_chunks_through_a_broken_channel() {
    let stack = Stack::start().await;
    let (path, data) = (stack.path("big"), content(3 * CHUNK + 77));
    let started = start(&stack, &path, &data, "k1").await;
    let id = started["uploadId"].as_str().unwrap().to_owned();
    assert_eq!((&started["chunkBytes"], &started["mode"]), (&json!(CHUNK), &json!("0600")));
    let chunk = |n: usize| data.slice(n * CHUNK..data.len().min((n + 1) * CHUNK));
    assert_eq!(put(&stack, &id, 3 * CHUNK, chunk(3)).await.ok()["received"], 77);
    stack.node.break_channels().await;
    let (first, second) = tokio::join!(put(&stack, &id, 0, chunk(0)), put(&stack, &id, CHUNK, chunk(1)));
    first.ok();
    second.ok();
    let commit = format!("{{s}}/uploads/{id}:commit");
    assert_eq!(stack.post(&commit, json!({})).await.refusal(), (409, "upload_incomplete".to_owned()));
    put(&stack, &id, 2 * CHUNK, chunk(2)).await.ok();
    let again = start(&stack, &path, &data, "k1").await;
    assert_eq!((&again["uploadId"], &again["replayed"]), (&json!(id), &json!(true)));
    let done = stack.post(&commit, json!({})).await.ok();
    assert_eq!((&done["size"], &done["path"]), (&json!(data.len()), &json!(path)));
    assert_eq!(std::fs::read(&path).unwrap(), data);
    assert_eq!(stack.post(&commit, json!({})).await.ok(), done);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn uploads_that_cannot_be_are_refused() {
    let stack = Stack::start().await;
    let path = stack.path("f");
    let good = json!({"path": path, "size": 10, "sha256": digest(b"x")});
    let with = |name: &str, value: Value| {
        let mut body = good.clone();
        body[name] = value;
        body
    };
    for body in [
        json!({}),
        with("path", json!("relative")),
        with("size", json!(-1)),
        with("size", json!(1_u64 << 60)),
        with("sha256", json!("abc")),
        with("mode", json!("999")),
        with("more", json!(1)),
    ] {
        assert_eq!(
            stack.post("{s}/uploads", body.clone()).await.refusal(),
            (400, "invalid_request".to_owned()),
            "{body}"
        );
    }
    let large = stack.post("{s}/uploads", with("size", json!(5_u64 << 30))).await;
    assert_eq!(large.refusal(), (409, "disk_full".to_owned()));
    let denied = stack.post("{s}/uploads", with("path", json!("/root/x"))).await;
    assert_eq!(denied.refusal(), (403, "permission_denied".to_owned()));
    for (method, route) in
        [("PUT", "{s}/uploads/none?offset=0"), ("POST", "{s}/uploads/none:commit"), ("POST", "{s}/uploads/none:abort")]
    {
        let answer = stack.request(method, route, &[], Bytes::from_static(b"{}")).await;
        assert_eq!(answer.refusal(), (404, "not_found".to_owned()), "{route}");
    }
    let id = stack.post("{s}/uploads", good).await.ok()["uploadId"].as_str().unwrap().to_owned();
    assert_eq!(put(&stack, &id, 0, content(CHUNK + 1)).await.refusal(), (413, "file_too_large".to_owned()));
    for (offset, length) in [(1, 9), (0, 11), (CHUNK, 10)] {
        let refused = put(&stack, &id, offset, content(length)).await.refusal();
        assert_eq!(refused, (400, "invalid_request".to_owned()), "{offset} {length}");
    }
    put(&stack, &id, 0, content(10)).await.ok();
    let commit = stack.post(&format!("{{s}}/uploads/{id}:commit"), json!({})).await;
    assert_eq!(commit.refusal(), (409, "digest_mismatch".to_owned()));
    stack.post(&format!("{{s}}/uploads/{id}:abort"), json!({})).await.ok();
    assert!(
        std::fs::read_dir(stack.dir()).unwrap().all(|entry| !entry
            .unwrap()
            .file_name()
            .to_string_lossy()
            .contains("upload"))
    );
}
