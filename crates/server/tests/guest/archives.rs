//! Folders as tar, by the routes a client uses.

use bytes::Bytes;
use http_body_util::BodyExt;
use serde_json::json;

use crate::stack::Stack;

fn block(text: &[(usize, &[u8])]) -> [u8; 512] {
    let mut block = [0; 512];
    for (at, bytes) in text {
        block[*at..*at + bytes.len()].copy_from_slice(bytes);
    }
    block
}

/// A tar of one file, written out.
fn tar(name: &str, data: &[u8]) -> Vec<u8> {
    let size = format!("{:011o}", data.len());
    let fields: [(usize, &[u8]); 5] =
        [(0, name.as_bytes()), (100, b"0000644"), (124, size.as_bytes()), (148, b"        "), (156, b"0")];
    let sum: u32 = block(&fields).iter().map(|byte| u32::from(*byte)).sum();
    let sum = format!("{sum:06o}\0 ");
    let mut out = block(&[&fields[..3], &[(148, sum.as_bytes()), (156, b"0")]].concat()).to_vec();
    out.extend_from_slice(data);
    out.resize(out.len().next_multiple_of(512) + 1024, 0);
    out
}

fn route(stack: &Stack, name: &str, more: &str) -> String {
    let path: String = stack.path(name).bytes().map(|byte| format!("%{byte:02X}")).collect();
    format!("{{s}}/files/archive?path={path}{more}")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn folders_go_in_and_come_out() {
    let stack = Stack::start().await;
    let archive = tar("d/f", b"content");
    let put = async |name: &str, data: Vec<u8>, more: &str| {
        stack.request("PUT", &route(&stack, name, more), &[], data.into()).await
    };
    assert_eq!(put("t", archive.clone(), "").await.ok(), json!({}));
    assert_eq!(std::fs::read(stack.path("t/d/f")).unwrap(), b"content");
    let out = stack.get(&route(&stack, "t", "&exclude=none&exclude=also%2Fnone")).await;
    assert_eq!(out.header("content-type"), "application/x-tar");
    assert!(out.body.starts_with(b"./\0") && out.body.ends_with(&[0; 1024]));
    let zipped = stack.get(&route(&stack, "t", "&gzip=true&user=root")).await;
    assert!(zipped.body.starts_with(&[0x1f, 0x8b]));
    assert_eq!(put("u", zipped.body.to_vec(), "&user=sandbox").await.ok(), json!({}));
    assert_eq!(std::fs::read(stack.path("u/d/f")).unwrap(), b"content");

    for wrong in [tar("../out", b"x"), tar("/abs", b"x"), archive[..600].to_vec(), Vec::new(), vec![7; 1024]] {
        assert_eq!(put("w", wrong, "").await.refusal(), (400, "invalid_archive".to_owned()));
    }
    assert_eq!(put("w", vec![0; (1 << 20) + 1], "").await.refusal(), (413, "file_too_large".to_owned()));
    assert_eq!(put("t", archive, "&user=nobody").await.refusal(), (400, "invalid_request".to_owned()));
    for more in ["&exclude=..", "&exclude=%2Fa", "&exclude=", "&gzip=maybe", "&bogus=1"] {
        let refused = stack.get(&route(&stack, "t", more)).await.refusal();
        assert_eq!(refused, (400, "invalid_request".to_owned()), "{more}");
    }
    assert_eq!(stack.get(&route(&stack, "none", "")).await.refusal(), (404, "file_not_found".to_owned()));
    assert_eq!(stack.get(&route(&stack, "t/d/f", "")).await.refusal(), (409, "not_a_directory".to_owned()));
}

/// The agent fails in the middle: the body is cut, so that no client takes it for whole.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tree_that_cannot_be_read_whole_is_a_cut_body() {
    let stack = Stack::start().await;
    std::fs::create_dir_all(stack.path("t/d")).unwrap();
    std::fs::write(stack.path("t/d/large"), vec![7; 4 << 20]).unwrap();
    for name in ["t/a", "t/d/z", "t/z"] {
        std::fs::write(stack.path(name), "secret").unwrap();
        std::fs::set_permissions(stack.path(name), std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    }
    for more in ["", "&gzip=true"] {
        let response = stack.open("GET", &route(&stack, "t", more), &[], Bytes::new()).await;
        let status = response.status();
        let body = response.into_body().collect().await;
        assert!(status == 403 || body.is_err(), "{status}: {:?} bytes", body.map(|body| body.to_bytes().len()));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_folder_comes_in_parts_through_a_broken_channel() {
    let stack = Stack::start().await;
    let content: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 255) as u8).collect();
    let archive = tar("f", &content);
    let start = json!({"path": stack.path("t"), "gzip": false, "user": "sandbox"});
    let started = stack.post("{s}/files/archive/uploads", start).await.ok();
    let step = started["chunkBytes"].as_u64().unwrap() as usize;
    let upload = format!("{{s}}/files/archive/uploads/{}", started["uploadId"].as_str().unwrap());
    for offset in (0..archive.len()).step_by(step) {
        let part = Bytes::copy_from_slice(&archive[offset..archive.len().min(offset + step)]);
        for _ in 0..2 {
            stack.request("PUT", &format!("{upload}?offset={offset}"), &[], part.clone()).await.ok();
        }
        stack.node.break_channels().await;
    }
    let gap =
        stack.request("PUT", &format!("{upload}?offset={}", archive.len() + 1), &[], Bytes::from_static(b"x")).await;
    assert_eq!(gap.refusal(), (400, "invalid_request".to_owned()));
    stack.post(&format!("{upload}:commit"), json!({})).await.ok();
    stack.post(&format!("{upload}:commit"), json!({})).await.ok();
    assert!(std::fs::read(stack.path("t/f")).unwrap() == content);
    let id = started["uploadId"].as_str().unwrap();
    let other = stack.post(&format!("{{s}}/uploads/{id}:commit"), json!({})).await;
    assert_eq!(other.refusal(), (404, "not_found".to_owned()));
}
