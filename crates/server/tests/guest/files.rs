//! Files in and out.

use bytes::Bytes;
use serde_json::{Value, json};

use crate::stack::{Answer, Stack};

fn encode(text: &str) -> String {
    text.bytes()
        .map(|b| if b.is_ascii_alphanumeric() { char::from(b).to_string() } else { format!("%{b:02X}") })
        .collect()
}

async fn put(stack: &Stack, path: &str, query: &str, content: impl Into<Bytes>) -> Answer {
    stack.request("PUT", &format!("{{s}}/files/content?path={}{query}", encode(path)), &[], content.into()).await
}

async fn read(stack: &Stack, path: &str) -> Answer {
    stack.get(&format!("{{s}}/files/content?path={}", encode(path))).await
}

async fn stat(stack: &Stack, path: &str) -> Value {
    stack.get(&format!("{{s}}/files/stat?path={}", encode(path))).await.ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn content_goes_in_and_comes_out() {
    let stack = Stack::start().await;
    let path = stack.path("my file+1.txt");
    assert_eq!(put(&stack, &path, "", "hi").await.ok(), json!({"path": path, "size": 2}));
    let answer = read(&stack, &path).await;
    assert_eq!((&answer.body[..], answer.header("x-content-length")), (&b"hi"[..], "2"));
    assert_eq!(answer.header("x-content-sha256"), "8f434346648f6b96df89dda901c5176b10a6d83961dd3c1ac88b59b2dc327aa4");
    let entry = stat(&stack, &path).await;
    assert_eq!((&entry["exists"], &entry["type"], &entry["size"]), (&json!(true), &json!("file"), &json!(2)));
    assert_eq!(
        (&entry["mode"], &entry["name"], &entry["uid"]),
        (&json!("0644"), &json!("my file+1.txt"), &json!(1000))
    );
    assert!(entry["mtimeMs"].is_i64() && entry["modifiedAt"].as_str().is_some_and(|time| time.len() == 24));

    put(&stack, &path, "&mode=755", "").await.ok();
    assert_eq!(stat(&stack, &path).await["mode"], "0755");
    assert_eq!(read(&stack, &path).await.body.len(), 0);

    let most: Vec<u8> = (0..1_048_576_u32).map(|n| (n * 7 % 251) as u8).collect();
    put(&stack, &path, "", most.clone()).await.ok();
    let answer = read(&stack, &path).await;
    assert!(answer.body == most && !answer.header("x-content-sha256").is_empty());
    let over = put(&stack, &path, "", vec![0; 1_048_577]).await;
    assert_eq!(over.refusal(), (413, "file_too_large".to_owned()));

    let large: Vec<u8> = (0..5_000_001_u32).map(|n| (n * 7 % 251) as u8).collect();
    std::fs::write(stack.dir().join("large"), &large).unwrap();
    let answer = read(&stack, &stack.path("large")).await;
    assert!(answer.body == large);
    assert_eq!((answer.header("x-content-length"), answer.header("content-length")), ("5000001", "5000001"));
    // The kernel says that it is empty, and it is not.
    let answer = read(&stack, "/proc/self/status").await;
    assert!(answer.body.starts_with(b"Name:"));
    assert_eq!(answer.header("x-content-length"), answer.body.len().to_string());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_are_listed_made_moved_and_removed() {
    let stack = Stack::start().await;
    let post = async |verb: &str, body: Value| stack.post(&format!("{{s}}/files:{verb}"), body).await;
    assert_eq!(post("mkdir", json!({"path": stack.path("d/e"), "parents": true})).await.ok(), json!({}));
    assert_eq!(post("mkdir", json!({"path": stack.path("d/e"), "parents": true})).await.ok(), json!({}));
    assert_eq!(post("mkdir", json!({"path": stack.path("d")})).await.refusal(), (409, "already_exists".to_owned()));
    for name in ["top.py", "d/deep.py", ".hidden", "d/e/f.txt"] {
        put(&stack, &stack.path(name), "", "").await.ok();
    }
    let list = async |query: &str| -> Vec<String> {
        let path = encode(&stack.path(""));
        let told = stack.get(&format!("{{s}}/files/list?path={path}{query}")).await.ok();
        let root = stack.path("");
        told["data"].as_array().unwrap().iter().map(|e| e["path"].as_str().unwrap().replace(&root, "")).collect()
    };
    assert_eq!(list("").await, ["d", "top.py"]);
    assert!(list("&hidden=true").await.contains(&".hidden".to_owned()));
    assert_eq!(list("&depth=2").await, ["d", "d/deep.py", "d/e", "top.py"]);
    assert_eq!(list("&glob=*.py").await, ["top.py"]);
    assert_eq!(list("&glob=**/*.py").await, ["d/deep.py", "top.py"]);
    assert_eq!(list("&depth=3&limit=1").await.len(), 1);

    let moved = json!({"from": stack.path("top.py"), "to": stack.path("d/deep.py")});
    assert_eq!(post("rename", moved.clone()).await.refusal(), (409, "already_exists".to_owned()));
    let mut over = moved;
    over["overwrite"] = json!(true);
    assert_eq!(post("rename", over).await.ok(), json!({}));
    assert_eq!(post("chmod", json!({"path": stack.path("d/deep.py"), "mode": "600"})).await.ok(), json!({}));
    assert_eq!(stat(&stack, &stack.path("d/deep.py")).await["mode"], "0600");
    assert_eq!(post("remove", json!({"path": stack.path("top.py")})).await.ok(), json!({"removed": false}));
    assert_eq!(
        post("remove", json!({"path": stack.path("d")})).await.refusal(),
        (409, "directory_not_empty".to_owned())
    );
    assert_eq!(
        post("remove", json!({"path": stack.path("d"), "recursive": true})).await.ok(),
        json!({"removed": true})
    );
    assert_eq!(stat(&stack, &stack.path("d")).await, json!({"exists": false, "path": stack.path("d")}));

    std::os::unix::fs::symlink("/etc/hostname", stack.dir().join("link")).unwrap();
    let link = stat(&stack, &stack.path("link")).await;
    assert_eq!((&link["type"], &link["symlinkTarget"]), (&json!("symlink"), &json!("/etc/hostname")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_files_refuse_names_the_path() {
    let stack = Stack::start().await;
    put(&stack, &stack.path("f"), "", "x").await.ok();
    let here = stack.path("");
    let file = stack.path("f");
    for (path, status, code) in [
        ("/no/such", 404, "file_not_found"),
        (here.as_str(), 409, "is_a_directory"),
        ("/etc/shadow", 403, "permission_denied"),
        ("relative", 400, "invalid_request"),
        ("", 400, "invalid_request"),
        ("/a\0b", 400, "invalid_request"),
    ] {
        let answer = read(&stack, path).await;
        assert_eq!(answer.refusal(), (status, code.to_owned()), "{path:?}");
        if status != 400 {
            let message = answer.json()["error"]["message"].to_string();
            assert!(message.contains(path.trim_end_matches('/')), "{message}");
        }
    }
    let listed = stack.get(&format!("{{s}}/files/list?path={}", encode(&file))).await;
    assert_eq!(listed.refusal(), (409, "not_a_directory".to_owned()));
    assert_eq!(put(&stack, "/root/x", "", "x").await.refusal(), (403, "permission_denied".to_owned()));
    assert_eq!(put(&stack, "/no/such/x", "", "x").await.refusal(), (404, "file_not_found".to_owned()));
    assert_eq!(put(&stack, &file, "&mode=9", "x").await.refusal(), (400, "invalid_request".to_owned()));
    assert_eq!(put(&stack, &file, "&user=root", "x").await.refusal(), (400, "invalid_request".to_owned()));
    for (verb, body) in [
        ("mkdir", json!({"path": "x"})),
        ("mkdir", json!({})),
        ("remove", json!({"path": "/a\0"})),
        ("rename", json!({"from": "/a", "to": "b"})),
        ("chmod", json!({"path": "/a", "mode": 755})),
    ] {
        let answer = stack.post(&format!("{{s}}/files:{verb}"), body.clone()).await;
        assert_eq!(answer.refusal(), (400, "invalid_request".to_owned()), "{verb} {body}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_built_says_so() {
    let stack = Stack::start().await;
    for (method, path, code) in [
        ("POST", "{s}/files:link", "file_links_unavailable"),
        ("POST", "{s}/files:revoke-links", "file_links_unavailable"),
    ] {
        let answer = stack.request(method, path, &[], Bytes::from_static(b"{}")).await;
        assert_eq!(answer.refusal(), (501, code.to_owned()), "{method} {path}");
        assert!(answer.json()["error"]["hint"].is_string());
    }
}
