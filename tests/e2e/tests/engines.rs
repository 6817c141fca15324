//! One data directory under servers with different engines: each sandbox keeps the one it was made on.

use runtime_test_kit::{Machine, Stack, StackOptions};
use serde_json::json;

/// The second server makes a template while it answers; an emulated machine's first command waits for both.
const PATIENT: &str = "wait=60";

fn on(engine: &str) -> Vec<String> {
    ["--engine", engine].map(str::to_owned).to_vec()
}

/// What a start of this sandbox is answered by a server with another engine.
#[track_caller]
fn refused(machine: &Machine, engine: &str) {
    let answer = machine.api.post_with(&machine.path(":restart"), &[("Prefer", PATIENT)], &json!({}));
    assert_eq!((answer.status, answer.code().as_deref()), (409, Some("engine_mismatch")), "{}", answer.text());
    assert!(answer.text().contains(engine), "it names {engine}: {}", answer.text());
}

#[test]
fn a_sandbox_keeps_the_engine_it_was_made_on() {
    let mut stack = Stack::start_with(StackOptions { args: on("gvisor"), ..StackOptions::default() });
    assert_eq!(stack.api().get("/health").ok()["engine"], "gvisor");
    let old = stack.api().small();
    old.write("/workspace/kept", b"by gVisor");
    old.verb(":stop");
    stack.stop();

    stack.set_args(on("qemu"));
    stack.restart();
    let health = stack.api().get("/health").ok();
    assert_eq!(health["engine"], "qemu");
    assert!(health["emulated"].is_boolean(), "{health}");
    let old = Machine { api: stack.api(), ..old };
    refused(&old, "gvisor");
    // Of the size that has a template from the start.
    let new = stack.api().create(&json!({}));
    new.write("/workspace/kept", b"by QEMU");
    let processes = new.api.get(&new.path("/processes")).ok();
    assert_eq!(processes["data"], json!([]), "what ran in the template is not its own");
    assert_eq!(new.output("uname -s; cat /workspace/kept"), "Linux\nby QEMU");
    new.verb(":stop");
    new.verb(":restart");
    assert_eq!(new.output("cat /workspace/kept"), "by QEMU");
    new.verb(":stop");
    stack.stop();

    stack.set_args(on("gvisor"));
    stack.restart();
    let (old, new) = (Machine { api: stack.api(), ..old }, Machine { api: stack.api(), ..new });
    refused(&new, "qemu");
    old.verb(":restart");
    assert_eq!(old.read("/workspace/kept"), b"by gVisor");
    old.delete();
    new.delete();
}
