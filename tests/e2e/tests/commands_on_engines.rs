//! What commands and processes promise, on both engines: the parts that hang on the kernel below.

use std::time::Duration;

use runtime_test_kit::{Machine, Stack, StackOptions, eventually};
use serde_json::{Value, json};

/// Takes memory in steps and holds it.
const HOG: &str =
    "held = []\nfor n in range(64): held.append(bytearray(b'x') * (16 << 20))\nprint('held all', flush=True)\n";

fn on(engine: &str) -> Stack {
    let args = ["--engine", engine].map(str::to_owned).to_vec();
    Stack::start_with(StackOptions { args, ..StackOptions::default() })
}

/// A test for each engine.
macro_rules! on_both {
    ($($name:ident)+) => {
        mod gvisor { $(#[test] fn $name() { super::$name(&mut super::on("gvisor")); })+ }
        mod qemu { $(#[test] fn $name() { super::$name(&mut super::on("qemu")); })+ }
    };
}

on_both! {
    memory_that_ran_out_is_told_whoever_was_ended
    a_trace_tells_what_was_opened
    a_trace_goes_on_over_a_pause
    output_outlives_the_server_and_the_pause
    a_streamed_exec_is_repeated_after_its_sandbox_stopped
}

fn small(stack: &Stack) -> Machine {
    stack.api().create(&json!({"vcpu": 1, "memoryMiB": 512}))
}

fn memory_that_ran_out_is_told_whoever_was_ended(stack: &mut Stack) {
    let machine = stack.api().create(&json!({"vcpu": 1, "memoryMiB": 384}));
    machine.write("/workspace/hog.py", HOG.as_bytes());
    let exec = |command: &str| machine.exec(&json!({"command": command, "timeoutMs": 300000}));
    for (command, code, out) in [
        ("exec python3 hog.py", -9, ""),
        ("python3 hog.py; echo went on; exit 3", 3, "went on\n"),
        ("sudo -n python3 hog.py; echo went on; exit 3", 3, "went on\n"),
    ] {
        let ran = exec(command);
        assert_eq!((ran.code, ran.out.as_str()), (Some(code), out), "{command}: {}", ran.answer);
        let told = &ran.answer["outOfMemory"];
        assert_eq!((&told["code"], &told["memoryMiB"]), (&"out_of_memory".into(), &384.into()), "{}", ran.answer);
        assert_eq!(told["processesKilled"], 1, "{}", ran.answer);
    }
    // Its own and nobody else's.
    assert_eq!(exec("exit 0").answer["outOfMemory"], Value::Null);
    assert_eq!(exec("kill -9 $$").answer["outOfMemory"], Value::Null);
    let process = machine.spawn(&json!({"command": "python3 hog.py; exit 4"}));
    let mut info = Value::Null;
    eventually("the process ends", Duration::from_secs(60), || {
        info = machine.api.get(&machine.path(&format!("/processes/{process}"))).ok();
        info["state"] != "running"
    });
    assert_eq!((&info["exitCode"], &info["outOfMemory"]["processesKilled"]), (&4.into(), &1.into()), "{info}");
}

fn a_trace_tells_what_was_opened(stack: &mut Stack) {
    let machine = small(stack);
    machine.write("/workspace/in", b"x");
    let line = "cat in > out; python3 -c 'import threading as t; x = t.Thread(target=lambda: open(\"thread\", \"w\")); \
        x.start(); x.join()'; sudo -n cp in /root/kept; mv out moved; exit 5";
    for user in ["sandbox", "root"] {
        let ran = machine.exec(&json!({"command": line, "traceFiles": true, "user": user, "timeoutMs": 300000}));
        assert_eq!(ran.code, Some(5), "{}", ran.answer);
        let list = |name: &str| -> Vec<String> {
            serde_json::from_value(ran.answer["files"][name].clone()).expect("a list of paths")
        };
        let workspace = |name: &str| -> Vec<String> {
            // An interpreter may list the directory itself.
            let own = |path: &String| path.strip_prefix("/workspace/").is_some_and(|rest| !rest.is_empty());
            list(name).into_iter().filter(own).collect()
        };
        assert_eq!(ran.answer["files"]["truncated"], false);
        assert_eq!(workspace("read"), ["/workspace/in"]);
        assert_eq!(workspace("written"), ["/workspace/moved", "/workspace/out", "/workspace/thread"]);
        assert!(list("written").contains(&"/root/kept".to_owned()), "{:?}", list("written"));
        let _ = machine.root("rm -f moved thread /root/kept");
    }
    let missing = machine.exec(&json!({"argv": ["no-such-program"], "traceFiles": true}));
    assert_eq!(missing.code, Some(127), "{}", missing.answer);
}

fn a_trace_goes_on_over_a_pause(stack: &mut Stack) {
    let machine = small(stack);
    let line = "cat /etc/hostname; read x; cat /etc/passwd > copy; exit 6";
    let process = machine.spawn(&json!({"command": line, "traceFiles": true, "stdinMode": "pipe"}));
    let path = machine.path(&format!("/processes/{process}"));
    eventually("it has read", Duration::from_secs(30), || {
        machine.api.get(&path).ok()["outputBytes"].as_u64().is_some_and(|bytes| bytes > 0)
    });
    assert_eq!(machine.verb(":pause")["state"], "paused");
    assert_eq!(machine.verb(":wake")["state"], "running");
    let _ = machine.api.post(&format!("{path}:write"), &json!({"data": "\n", "offset": 0})).ok();
    eventually("the process ends", Duration::from_secs(30), || machine.api.get(&path).ok()["state"] != "running");
    assert_eq!(machine.api.get(&path).ok()["exitCode"], 6);
    let files = machine.api.get(&format!("{path}/files")).ok();
    assert_eq!(files["truncated"], false, "{files}");
    let has = |list: &str, path: &str| files[list].as_array().is_some_and(|all| all.contains(&path.into()));
    assert!(has("read", "/etc/hostname") && has("read", "/etc/passwd"), "{files}");
    assert!(has("written", "/workspace/copy"), "{files}");
}

fn output_outlives_the_server_and_the_pause(stack: &mut Stack) {
    let machine = small(stack);
    let line = "for n in 1 2 3; do read x; echo got $x; done; exit 7";
    let process = machine.spawn(&json!({"command": line, "stdinMode": "pipe"}));
    let rest = format!("/processes/{process}");
    let feed = |machine: &Machine, text: &str, offset: u64| {
        let path = machine.path(&format!("{rest}:write"));
        let taken = machine.api.post(&path, &json!({"data": text, "offset": offset})).ok();
        assert_eq!(taken["offset"], offset + text.len() as u64);
    };
    feed(&machine, "one\n", 0);
    stack.kill9();
    stack.restart();
    let machine = Machine { api: stack.api(), ..machine };
    // What was sent is not taken twice.
    let again = machine.api.post(&machine.path(&format!("{rest}:write")), &json!({"data": "one\n", "offset": 0})).ok();
    assert_eq!(again["offset"], 4);
    feed(&machine, "two\n", 4);
    assert_eq!(machine.verb(":pause")["state"], "paused");
    assert_eq!(machine.verb(":wake")["state"], "running");
    feed(&machine, "three\n", 8);
    let mut poll = Value::Null;
    eventually("it ends", Duration::from_secs(30), || {
        poll = machine.api.get(&machine.path(&format!("{rest}/output?cursor=0"))).ok();
        poll["process"]["state"] != "running"
    });
    let chunks = poll["chunks"].as_array().expect("chunks");
    let text: String = chunks.iter().filter_map(|chunk| chunk["text"].as_str()).collect();
    assert_eq!((text.as_str(), &poll["process"]["exitCode"]), ("got one\ngot two\ngot three\n", &7.into()));
}

fn lines(machine: &Machine, key: &str, body: &Value) -> Vec<Value> {
    let answer = machine.api.post_with(&machine.path(":exec"), &[("Idempotency-Key", key)], body);
    assert_eq!(answer.status, 200, "{}", answer.text());
    let text = answer.text();
    text.lines().filter(|line| !line.is_empty()).map(|line| serde_json::from_str(line).expect("an event")).collect()
}

fn a_streamed_exec_is_repeated_after_its_sandbox_stopped(stack: &mut Stack) {
    let machine = small(stack);
    let body = json!({"command": "echo twelve bytes; echo x >> /workspace/count; exit 4", "stream": true});
    let first = lines(&machine, "streamed", &body);
    assert_eq!(first.last().expect("an exit")["exitCode"], 4, "{first:?}");
    let again = lines(&machine, "streamed", &body);
    assert_eq!((&again[0]["replayed"], &again[1]["data"]), (&true.into(), &"twelve bytes\n".into()));
    let id = first[0]["processId"].clone();
    machine.verb(":stop");
    for state in ["stopped", "running"] {
        let told = lines(&machine, "streamed", &body);
        assert_eq!((&told[0]["processId"], &told[0]["replayed"]), (&id, &true.into()), "{state}: {told:?}");
        assert_eq!((&told[1]["droppedBytes"], &told[1]["resumeAt"]), (&13.into(), &13.into()), "{state}: {told:?}");
        assert_eq!(
            (&told[2]["type"], &told[2]["exitCode"], &told[2]["state"]),
            (&"exit".into(), &4.into(), &"exited".into()),
            "{state}: {told:?}"
        );
        assert_eq!(machine.state(), state);
        if state == "stopped" {
            machine.verb(":restart");
        }
    }
    assert_eq!(machine.output("cat count"), "x\n", "it ran once");
    // Of one whose end nobody was told, nobody makes one up.
    let unread = json!({"command": "sleep 4321", "stream": true});
    let head = machine.api.head("POST", &machine.path(":exec"), &[("Idempotency-Key", "unread")]);
    let text = unread.to_string();
    let mut connection = machine.api.connect();
    let request = format!("{head}Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{text}", text.len());
    connection.write(request.as_bytes()).expect("the request is sent");
    let (status, _) = connection.read_head().expect("the head");
    assert_eq!(status, 200);
    let start = connection.read_chunk().expect("a chunk").expect("the start");
    assert!(String::from_utf8_lossy(&start).contains("\"start\""));
    drop(connection);
    machine.verb(":stop");
    let told = lines(&machine, "unread", &unread);
    let end = told.last().expect("an exit");
    assert_eq!((&end["type"], &end["state"], &end["exitCode"]), (&"exit".into(), &"unknown".into(), &Value::Null));
}
