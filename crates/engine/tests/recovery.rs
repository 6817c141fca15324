//! What is killed, and what the next server makes of it.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use newtype_uuid::GenericUuid;
use runtime_host::process::{self, ProcessId};
use runtime_model::{Reason, SandboxId};
use runtime_proto::guest::User;
use runtime_proto::node::{Disk, Node, NodeError, NodeEvent};

mod support;
use support::{Host, create, eventually, exec_as, hex, new_id, order, sh, spawn};

/// Leaves a process behind that counts, and a file.
async fn occupy(engine: &runtime_engine::Engine, id: SandboxId) {
    sh(engine, id, "echo kept > /workspace/file").await;
    spawn(engine, id, "while :; do date +%s%N > /tmp/beat; sleep 0.05; done").await;
    eventually("the background process runs", async || {
        let done = exec_as(engine, id, User::Sandbox, "cat /tmp/beat").await.ok()?;
        (!done.stdout.is_empty()).then_some(())
    })
    .await;
}

async fn beats(engine: &runtime_engine::Engine, id: SandboxId) {
    let first = sh(engine, id, "cat /tmp/beat").await;
    eventually("the background process goes on", async || {
        let next = exec_as(engine, id, User::Sandbox, "cat /tmp/beat").await.ok()?;
        (!next.stdout.is_empty() && next.stdout != first).then_some(())
    })
    .await;
}

#[tokio::test]
async fn sandboxes_go_on_while_no_server_is_there() {
    let host = Host::new();
    let engine = host.open().await;
    let id = create(&engine).await;
    occupy(&engine, id).await;
    let sentry = host.pid(id, "sentry");
    engine.close().await;
    assert!(ProcessId::of(sentry).is_some());

    let engine = host.open().await;
    assert_eq!(host.pid(id, "sentry"), sentry);
    beats(&engine, id).await;
    engine.start(order(id, Disk::Kept)).await.unwrap();
    engine.remove(id).await.unwrap();
    host.only(&[]).await;
}

#[tokio::test]
async fn a_kernel_that_is_killed_is_reported_and_its_disk_is_kept() {
    let host = Host::new();
    let engine = host.open().await;
    for which in ["sentry", "gofer"] {
        let id = create(&engine).await;
        occupy(&engine, id).await;
        let mut events = engine.events();
        process::kill(host.pid(id, which)).unwrap();
        assert_eq!(events.recv().await.unwrap(), NodeEvent::Ended { id, reason: Reason::HostStopped });
        host.only(&[format!("disk {}", hex(id))]).await;
        assert!(matches!(exec_as(&engine, id, User::Sandbox, "true").await, Err(NodeError::NotRunning)));
        engine.start(order(id, Disk::Kept)).await.unwrap();
        assert_eq!(sh(&engine, id, "cat /workspace/file").await, "kept");
        engine.remove(id).await.unwrap();
    }
    host.only(&[]).await;
}

#[tokio::test]
async fn a_keeper_that_is_killed_is_replaced_and_nobody_inside_notices() {
    let host = Host::new();
    let engine = host.open().await;
    let id = create(&engine).await;
    occupy(&engine, id).await;
    let keeper = host.pid(id, "shim");
    process::kill(keeper).unwrap();
    eventually("another takes its place", async || (host.pid(id, "shim") != keeper).then_some(())).await;
    beats(&engine, id).await;
    // The new one is no parent of the kernel, and must notice its end all the same.
    let mut events = engine.events();
    process::kill(host.pid(id, "sentry")).unwrap();
    assert_eq!(events.recv().await.unwrap(), NodeEvent::Ended { id, reason: Reason::HostStopped });
    host.only(&[format!("disk {}", hex(id))]).await;
}

#[tokio::test]
async fn a_keeper_that_died_with_the_server_is_replaced_by_the_next() {
    let host = Host::new();
    let engine = host.open().await;
    let id = create(&engine).await;
    occupy(&engine, id).await;
    engine.close().await;
    host.kill(id, "shim").await;
    let engine = host.open().await;
    beats(&engine, id).await;
    engine.stop(id).await.unwrap();
    host.only(&[format!("disk {}", hex(id))]).await;
}

/// A host so busy that a keeper does not answer in time, or short of descriptors, kills no sandbox that runs.
#[tokio::test]
async fn what_may_run_is_never_swept() {
    let host = Host::new();
    let engine = host.open().await;
    let (silent, unreadable) = (create(&engine).await, create(&engine).await);
    let sentries = [host.pid(silent, "sentry"), host.pid(unreadable, "sentry")];
    let keeper = host.pid(silent, "shim").to_string();
    engine.close().await;
    assert!(Command::new("kill").args(["-STOP", &keeper]).status().unwrap().success());
    // A record that cannot be read now.
    let record = host.data_dir().join("sandboxes").join(hex(unreadable)).join("machine.json");
    std::fs::rename(&record, record.with_extension("aside")).unwrap();
    std::fs::create_dir(&record).unwrap();

    let engine = host.open().await;
    assert_eq!(sh(&engine, silent, "echo up").await, "up");
    assert!(Command::new("kill").args(["-CONT", &keeper]).status().unwrap().success());
    let machines = engine.machines().await.unwrap();
    assert!(machines.len() == 2 && machines.iter().all(|machine| machine.running), "{machines:?}");
    assert!(matches!(exec_as(&engine, unreadable, User::Sandbox, "true").await, Err(NodeError::Busy(_))));
    assert!(matches!(engine.start(order(unreadable, Disk::Kept)).await, Err(NodeError::Busy(_))));
    std::fs::remove_dir(&record).unwrap();
    std::fs::rename(record.with_extension("aside"), &record).unwrap();
    eventually("it is taken over", async || exec_as(&engine, unreadable, User::Sandbox, "true").await.ok()).await;
    assert_eq!([host.pid(silent, "sentry"), host.pid(unreadable, "sentry")], sentries);
    for id in [silent, unreadable] {
        engine.remove(id).await.unwrap();
    }
    host.only(&[]).await;
}

/// A new keeper that cannot do its work is followed by another; the sandbox goes on.
#[tokio::test]
async fn a_keeper_that_cannot_be_replaced_is_tried_again() {
    let host = Host::new();
    let engine = host.open().await;
    let id = create(&engine).await;
    occupy(&engine, id).await;
    let keeper = host.pid(id, "shim");
    // The new one finds no pipe to hold.
    let pipe = host.run_dir().join(hex(id)).join("err");
    std::fs::rename(&pipe, pipe.with_extension("aside")).unwrap();
    process::kill(keeper).unwrap();
    let log = host.run_dir().join(hex(id)).join("log");
    eventually("one fails", async || {
        std::fs::read_to_string(&log).is_ok_and(|text| text.contains("open the pipe")).then_some(())
    })
    .await;
    beats(&engine, id).await;
    std::fs::rename(pipe.with_extension("aside"), &pipe).unwrap();
    eventually("another takes its place", async || (host.pid(id, "shim") != keeper).then_some(())).await;
    beats(&engine, id).await;
    engine.remove(id).await.unwrap();
    host.only(&[]).await;
}

#[tokio::test]
async fn after_everything_was_killed_nothing_runs_and_every_disk_is_there() {
    let host = Host::new();
    let engine = host.open().await;
    let ids = [create(&engine).await, create(&engine).await];
    for id in ids {
        occupy(&engine, id).await;
    }
    engine.close().await;
    for id in ids {
        for which in ["shim", "sentry", "gofer"] {
            host.kill(id, which).await;
        }
    }
    let engine = host.open().await;
    let mut machines: Vec<_> = engine.machines().await.unwrap().iter().map(|m| (m.id, m.running, m.disk)).collect();
    machines.sort();
    assert_eq!(machines, ids.map(|id| (id, false, true)));
    host.only(&ids.map(|id| format!("disk {}", hex(id)))).await;
    for id in ids {
        engine.start(order(id, Disk::Kept)).await.unwrap();
        assert_eq!(sh(&engine, id, "cat /workspace/file").await, "kept");
    }
}

#[tokio::test]
async fn a_record_from_before_a_reboot_is_not_believed() {
    let host = Host::new();
    let engine = host.open().await;
    let id = create(&engine).await;
    engine.close().await;
    let path = host.data_dir().join("sandboxes").join(hex(id)).join("machine.json");
    let mut record = host.machine_file(id);
    host.kill(id, "shim").await;
    record["boot_id"] = "00000000-0000-0000-0000-000000000000".into();
    std::fs::write(path, record.to_string()).unwrap();
    let engine = host.open().await;
    assert!(!engine.machines().await.unwrap()[0].running);
    host.only(&[format!("disk {}", hex(id))]).await;
}

#[tokio::test]
async fn garbage_in_place_of_records_is_swept() {
    let host = Host::new();
    let engine = host.open().await;
    let id = create(&engine).await;
    engine.close().await;
    let dir = host.data_dir().join("sandboxes").join(hex(id));
    std::fs::write(dir.join("machine.json"), b"{\"sentry\":").unwrap();
    process::kill(
        host.left()
            .iter()
            .find_map(|line| {
                let rest = line.strip_prefix("process ")?;
                rest.contains(" shim ").then(|| rest.split(':').next().unwrap().parse().unwrap())
            })
            .unwrap(),
    )
    .unwrap();
    let lost = new_id();
    std::fs::create_dir_all(host.run_dir().join(hex(lost))).unwrap();
    let engine = host.open().await;
    host.only(&[format!("disk {}", hex(id))]).await;
    engine.start(order(id, Disk::Kept)).await.unwrap();
}

/// Run as a process of its own by the test below, and killed.
#[tokio::test]
async fn victim() {
    let Some(dir) = std::env::args().find_map(|word| word.strip_prefix("victim-of-").map(str::to_owned)) else {
        return;
    };
    let prepared =
        runtime_engine::prepare::open(std::path::Path::new(&dir), runtime_engine::prepare::EngineChoice::Gvisor)
            .unwrap();
    let engine = runtime_engine::Engine::open(runtime_engine::EngineConfig::new(prepared, support::agent()).unwrap())
        .await
        .unwrap();
    loop {
        let created = futures_util::future::join(create(&engine), create(&engine)).await;
        for id in [created.0, created.1] {
            println!("\nacknowledged {id}");
        }
    }
}

#[tokio::test]
async fn a_server_killed_in_the_middle_of_its_work_loses_nothing_it_acknowledged() {
    let host = Host::new();
    let mut known: Vec<SandboxId> = Vec::new();
    for round in 0..4_u64 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--nocapture", "victim", &format!("victim-of-{}", host.data_dir().display())])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut acknowledged = |line: String| {
            let id = line.strip_prefix("acknowledged ")?.parse().ok()?;
            known.push(SandboxId::from_untyped_uuid(id));
            Some(())
        };
        while lines.next().unwrap().ok().and_then(&mut acknowledged).is_none() {}
        // Somewhere in the next creates.
        std::thread::sleep(Duration::from_millis(90 * round));
        child.kill().unwrap();
        child.wait().unwrap();
        lines.map_while(Result::ok).for_each(|line| {
            acknowledged(line);
        });
    }
    let began = Instant::now();
    let engine = host.open().await;
    println!("recovered {} in {:?}", known.len(), began.elapsed());
    let machines = engine.machines().await.unwrap();
    for id in &known {
        assert!(machines.iter().any(|machine| machine.id == *id && machine.running), "{id} is lost");
        assert_eq!(sh(&engine, *id, "echo up").await, "up");
    }
    // Those that were on their way either run or are gone.
    assert!(machines.iter().all(|machine| machine.running), "{machines:?}");
    for machine in machines {
        engine.remove(machine.id).await.unwrap();
    }
    host.only(&[]).await;
}
