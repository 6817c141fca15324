//! The command line watches files.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use runtime_test_kit::{Signal, Stack, program, send_signal};
use serde_json::Value;

fn runtime(stack: &Stack, args: &[&str]) -> Command {
    let mut command = Command::new(program());
    command.arg("sandboxes").args(args);
    command.env("RUNTIME_API_URL", stack.url()).env("RUNTIME_API_KEY", stack.owner_key());
    command.env("NO_PROXY", "127.0.0.1").env("CI", "1").env("NO_COLOR", "1");
    command
}

#[track_caller]
fn said(stack: &Stack, args: &[&str]) -> String {
    let output = runtime(stack, args).output().expect("runtime");
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn a_line_for_each_change_until_ctrl_c() {
    let stack = Stack::start();
    let id = said(&stack, &["create", "--vcpu", "1", "--memory", "512"]);
    let id = id.trim();
    said(&stack, &["exec", id, "--", "mkdir d"]);
    let wanted = ["watch", id, "/workspace", "--recursive", "--exclude", "*.txt", "--events", "create,rename"];
    for json in [false, true] {
        let mut command = runtime(&stack, &wanted);
        if json {
            command.arg("--json");
        }
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("runtime");
        let mut talk = BufReader::new(child.stderr.take().expect("its talk")).lines();
        let begun = talk.next().expect("a line").expect("text");
        assert!(begun.contains("/workspace"), "{begun}");
        said(&stack, &["exec", id, "--", ": > d/a; : > d/b.txt; mv d/a d/c; rm d/c; mkdir d/e; rmdir d/e"]);
        let told = BufReader::new(child.stdout.take().expect("its output")).lines().take(3);
        let told: Vec<String> = told.map(|line| line.expect("text")).collect();
        if json {
            let told: Vec<Value> = told.iter().map(|line| serde_json::from_str(line).expect("JSON")).collect();
            assert_eq!(told[1]["oldPath"], "/workspace/d/a", "{told:?}");
            assert_eq!((&told[2]["type"], &told[2]["isDir"]), (&"create".into(), &true.into()), "{told:?}");
        } else {
            let expected =
                ["create /workspace/d/a", "rename /workspace/d/a -> /workspace/d/c", "create /workspace/d/e/"];
            assert_eq!(told, expected);
        }
        send_signal(i32::try_from(child.id()).expect("a pid"), Signal::INT);
        assert_eq!(child.wait().expect("its end").code(), Some(0));
        // It took its watch with it.
        let listed = stack.api().get(&format!("/v1/sandboxes/{id}/files/watches")).ok();
        assert_eq!(listed["data"], serde_json::json!([]));
    }
    let refused = runtime(&stack, &["watch", id, "/none"]).output().expect("runtime");
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("/none"), "{refused:?}");
}
