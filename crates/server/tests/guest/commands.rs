//! `:exec`, whole and streamed.

use bytes::Bytes;
use http_body_util::BodyExt;
use serde_json::{Value, json};

use crate::stack::Stack;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_exec_answers_how_it_ended() {
    let stack = Stack::with(json!({"env": {"A": "box", "B": "box"}})).await;
    let told = stack.exec(json!({"command": "echo $A $B; echo err >&2; exit 3", "env": {"B": "own"}})).await.ok();
    assert_eq!(told["exitCode"], 3);
    assert_eq!((&told["stdout"], &told["stderr"]), (&json!("box own\n"), &json!("err\n")));
    assert_eq!((&told["timedOut"], &told["stdoutTruncated"]), (&json!(false), &json!(false)));
    assert!(told["processId"].is_string() && told["durationMs"].is_u64());
    assert_eq!((told.get("outOfMemory"), told.get("replayed")), (None, None));

    let told = stack.exec(json!({"argv": ["printf", "%s|", "a b", "$HOME"]})).await.ok();
    assert_eq!(told["stdout"], "a b|$HOME|");
    let told = stack.exec(json!({"command": "cat", "stdin": "héé\u{0}"})).await.ok();
    assert_eq!(told["stdout"], "héé\u{0}");
    let told = stack.exec(json!({"command": "od -An -tx1", "stdinBase64": "AP8="})).await.ok();
    assert_eq!(told["stdout"], " 00 ff\n");
    let told = stack.exec(json!({"command": "printf '\\377x'"})).await.ok();
    assert_eq!(told["stdout"], "\u{fffd}x");
    for (line, code) in [("kill -9 $$", -9), ("kill -15 $$", -15)] {
        assert_eq!(stack.exec(json!({"command": line})).await.ok()["exitCode"], code, "{line}");
    }
    // How far it came in its time is the machine's to say: twice the time, until it came far enough.
    for time in (0..10).map(|n| 500 << n) {
        let told = stack.exec(json!({"command": "echo part; sleep 3600", "timeoutMs": time})).await.ok();
        assert_eq!((&told["timedOut"], &told["exitCode"]), (&json!(true), &json!(-9)));
        if told["stdout"] == "part\n" {
            break;
        }
        assert_eq!((&told["stdout"], time < 200_000), (&json!(""), true));
    }
    let told = stack.exec(json!({"command": "head -c 100000 /dev/zero | tr '\\0' a"})).await.ok();
    assert_eq!(told["stdout"].as_str().map(str::len), Some(65_536));
    assert_eq!((&told["stdoutTruncated"], &told["stderrTruncated"]), (&json!(true), &json!(false)));
    let long = json!({"command": "head -c 100000 /dev/zero | tr '\\0' a", "timeoutMs": 60_001});
    assert_eq!(stack.exec(long).await.ok()["stdout"].as_str().map(str::len), Some(100_000));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_exec_refuses() {
    let stack = Stack::with(json!({"timeoutSeconds": 600})).await;
    for (body, status, code) in [
        (json!({}), 400, "invalid_request"),
        (json!({"command": "x", "argv": ["x"]}), 400, "invalid_request"),
        (json!({"command": "x", "cwd": "rel"}), 400, "invalid_request"),
        (json!({"command": "x", "nope": 1}), 400, "invalid_request"),
        (json!({"command": "x", "env": {"A-B": ""}}), 400, "invalid_env"),
        (json!({"command": "x", "cwd": "/no/where"}), 400, "cwd_not_found"),
        (json!({"command": "x", "traceFiles": "yes"}), 400, "invalid_request"),
        (json!({"command": "x", "timeoutMs": 700_000}), 409, "time_limit_too_short"),
    ] {
        let answer = stack.exec(body.clone()).await;
        assert_eq!(answer.refusal(), (status, code.to_owned()), "{body}");
        let streamed = body.as_object().map(|fields| {
            let mut fields = fields.clone();
            fields.insert("stream".to_owned(), json!(true));
            Value::Object(fields)
        });
        let answer = stack.exec(streamed.unwrap()).await;
        assert_eq!(answer.refusal(), (status, code.to_owned()), "streamed {body}");
    }
    let day = json!({"command": "true", "timeoutMs": 86_400_000, "stream": true});
    assert_eq!(stack.exec(day).await.events().last().unwrap()["exitCode"], 0);
    let other = stack.post("/v1/sandboxes/8a1f9c2e-0d1b-4c3a-9e8f-7a6b5c4d3e2f:exec", json!({"command": "x"})).await;
    assert_eq!(other.refusal(), (404, "not_found".to_owned()));
    stack.request("POST", "{s}:stop", &[("prefer", "wait=60")], Bytes::new()).await.ok();
    let answer = stack.exec(json!({"command": "true"})).await;
    assert_eq!(answer.refusal(), (409, "sandbox_stopped".to_owned()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeated_exec_runs_once() {
    let stack = Stack::start().await;
    let file = stack.path("n");
    let body = json!({"command": format!("echo x >> {file}; cat {file}"), "user": "root", "cwd": "/"}).to_string();
    let key = [("idempotency-key", "exec-1")];
    let first = stack.request("POST", "{s}:exec", &key, body.clone().into()).await;
    let again = stack.request("POST", "{s}:exec", &key, body.clone().into()).await;
    assert_eq!((&first.ok()["stdout"], &again.ok()["stdout"]), (&json!("x\n"), &json!("x\n")));
    assert_eq!(again.ok()["replayed"], true);
    assert_eq!(again.header("idempotency-replayed"), "true");
    let other = stack.request("POST", "{s}:exec", &key, json!({"command": "true"}).to_string().into()).await;
    assert_eq!(other.refusal(), (422, "idempotency_key_reused".to_owned()));

    let body = json!({"command": format!("echo y >> {file}; cat {file}"), "user": "root", "cwd": "/", "stream": true});
    let key = [("idempotency-key", "exec-2")];
    let first = stack.request("POST", "{s}:exec", &key, body.to_string().into()).await.events();
    let again = stack.request("POST", "{s}:exec", &key, body.to_string().into()).await.events();
    assert_eq!(first[0].get("replayed"), None);
    assert_eq!(again[0], json!({"type": "start", "processId": first[0]["processId"], "replayed": true}));
    assert_eq!(first[1..], again[1..]);
    assert_eq!(first[1]["data"], "x\ny\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_tells_every_byte_in_its_place() {
    let stack = Stack::start().await;
    let body = json!({"command": "printf 'a\\303'; sleep 0.2; printf '\\251\\n'; echo e >&2; sleep 0.2; printf '\\377'; exit 4", "stream": true});
    let told = stack.exec(body).await.events();
    assert_eq!(told[0]["type"], "start");
    let mut next = 0;
    let mut stdout = Vec::new();
    for event in &told[1..told.len() - 1] {
        assert_eq!(event["offset"].as_u64(), Some(next), "{told:?}");
        let bytes = match event["base64"].as_str() {
            Some(text) => base64::Engine::decode(&base64::engine::general_purpose::STANDARD, text).unwrap(),
            None => event["data"].as_str().unwrap().as_bytes().to_vec(),
        };
        next += bytes.len() as u64;
        if event["type"] == "stdout" {
            stdout.extend(bytes);
        }
    }
    assert_eq!(stdout, b"a\xc3\xa9\n\xff");
    let last = told.last().unwrap();
    assert_eq!((&last["type"], &last["exitCode"], &last["state"]), (&json!("exit"), &json!(4), &json!("exited")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_starts_at_once_and_its_process_outlives_the_client() {
    let stack = Stack::start().await;
    let flag = stack.path("flag");
    let line = format!("until [ -e {flag} ]; do sleep 0.05; done; echo over");
    let body = json!({"command": line, "stream": true, "user": "root", "cwd": "/", "timeoutMs": 86_400_000});
    let mut answer = stack.open("POST", "{s}:exec", &[], body.to_string().into()).await;
    // The process cannot have ended: this line came while it ran.
    let first = answer.body_mut().frame().await.unwrap().unwrap().into_data().unwrap();
    let start: Value = serde_json::from_slice(&first).unwrap();
    assert_eq!(start["type"], "start");
    drop(answer);
    let process = start["processId"].as_str().unwrap();
    assert_eq!(stack.get(&format!("{{s}}/processes/{process}")).await.ok()["state"], "running");
    // A second reader goes on across a broken channel.
    let path = format!("{{s}}/processes/{process}/output?cursor=0&follow=true");
    let follow = stack.get(&path);
    let meanwhile = async {
        stack.node.break_channels().await;
        std::fs::write(&flag, "").unwrap();
    };
    let (told, ()) = tokio::join!(follow, meanwhile);
    let told = told.events();
    assert_eq!(told[0], json!({"type": "stdout", "data": "over\n", "offset": 0}));
    assert_eq!(told[1]["type"], "exit");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_exec_survives_a_broken_channel_and_runs_once() {
    let stack = Stack::start().await;
    let (begun, flag) = (stack.path("begun"), stack.path("flag"));
    let line = format!("echo b >> {begun}; until [ -e {flag} ]; do sleep 0.05; done; cat {begun}");
    let exec = stack.exec(json!({"command": line}));
    let meanwhile = async {
        while !std::path::Path::new(&begun).exists() {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        stack.node.break_channels().await;
        std::fs::write(&flag, "").unwrap();
    };
    let (told, ()) = tokio::join!(exec, meanwhile);
    assert_eq!(told.ok()["stdout"], "b\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_streamed_input_and_output_arrive_whole() {
    let stack = Stack::start().await;
    let input = "0123456789abcde\n".repeat(60_000);
    let told = stack.exec(json!({"command": "cat; wc -c </dev/null", "stdin": input, "stream": true})).await.events();
    let data: String = told.iter().filter(|e| e["type"] == "stdout").map(|e| e["data"].as_str().unwrap()).collect();
    assert_eq!(data, format!("{input}0\n"));
    assert_eq!(told.last().unwrap()["exitCode"], 0);
}
