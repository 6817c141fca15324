//! What every driver owes the engine, asked of each that this version has, in the same words.

use std::time::Instant;

use runtime_engine::prepare::EngineChoice;
use runtime_host::process::{self, ProcessId};
use runtime_model::Reason;
use runtime_proto::guest::User;
use runtime_proto::node::{Disk, Node, NodeError, NodeEvent};

mod support;
use support::{Host, create, eventually, exec_as, hex, new_id, order, sh, sh_root, spawn};

#[tokio::test]
async fn gvisor_keeps_the_contract() {
    contract(Host::with(EngineChoice::Gvisor), "sentry").await;
}

#[tokio::test]
async fn qemu_keeps_the_contract() {
    contract(Host::with(EngineChoice::Qemu), "vmm").await;
}

#[tokio::test]
#[cfg_attr(not(firecracker), ignore = "needs RUNTIME_FIRECRACKER, and a KVM that runs guests")]
async fn firecracker_keeps_the_contract() {
    contract(Host::firecracker(), "vmm").await;
}

/// `kernel` is what the record of a machine calls the process that is the machine.
async fn contract(host: Host, kernel: &str) {
    let engine = host.open().await;
    let choice = host.prepared.machinery.kind().name();
    assert_eq!(engine.facts().engine, choice);

    // A sandbox runs commands as its user and as root, by its own name.
    let id = create(&engine).await;
    engine.start(order(id, Disk::New)).await.unwrap();
    assert_eq!(sh(&engine, id, "id -u; hostname; pwd").await, "1000\nbox\n/workspace");
    assert_eq!(sh_root(&engine, id, "id -u").await, "0");
    assert_eq!(sh(&engine, id, "sudo -n id -u").await, "0");
    let big = sh(&engine, id, "head -c 700000 /dev/zero | base64 -w0 | wc -c").await;
    assert_eq!(big, "933336");
    let out = exec_as(&engine, id, User::Sandbox, "head -c 700000 /dev/zero | base64 -w0").await.unwrap();
    assert_eq!(out.stdout.len(), 933_336, "output of many frames arrives whole");
    assert_eq!(
        sh(
            &engine,
            id,
            "python3 -c 'import socket as s; a=s.socket(); a.bind((\"127.0.0.1\",0)); \
        a.listen(); b=s.create_connection(a.getsockname()); print(\"local\")'"
        )
        .await,
        "local"
    );

    // It stops with its disk, and starts on it again; what was temporary is gone.
    sh(&engine, id, "echo kept > /workspace/file; echo gone > /tmp/file").await;
    engine.stop(id).await.unwrap();
    engine.stop(id).await.unwrap();
    let refused = exec_as(&engine, id, User::Sandbox, "true").await;
    assert!(matches!(refused, Err(NodeError::NotRunning)));
    host.only(&[format!("disk {}", hex(id))]).await;
    let began = Instant::now();
    engine.start(order(id, Disk::Kept)).await.unwrap();
    println!("{choice}: restart to hello: {:?}", began.elapsed());
    assert_eq!(sh(&engine, id, "cat /workspace/file; ls /tmp").await, "kept");
    let usage = engine.usage(id).await.unwrap();
    assert!(usage.cpu_ns > 0 && usage.memory_bytes > 1 << 20, "{usage:?}");

    // It goes on while no server is there.
    spawn(&engine, id, "while :; do date +%s%N > /tmp/beat; sleep 0.1; done").await;
    let machine = host.pid(id, kernel);
    engine.close().await;
    drop(engine);
    let engine = host.open().await;
    assert_eq!(host.pid(id, kernel), machine);
    beats(&engine, id).await;

    // Its keeper may be killed.
    let keeper = host.pid(id, "shim");
    process::kill(keeper).unwrap();
    eventually("the keeper is replaced", async || {
        let now = host.pid(id, "shim");
        (now != keeper && ProcessId::of(now).is_some()).then_some(())
    })
    .await;
    beats(&engine, id).await;

    // It pauses with its memory, and goes on: at once, under another server, and from the disk.
    engine.pause(id).await.unwrap();
    engine.wake(order(id, Disk::Kept)).await.unwrap();
    beats(&engine, id).await;
    engine.pause(id).await.unwrap();
    engine.close().await;
    drop(engine);
    let engine = host.open().await;
    eventually("its memory is on the disk and nothing else is left", async || {
        (host.left() == [format!("disk {}", hex(id))] && !host.saves(id).is_empty()).then_some(())
    })
    .await;
    let began = Instant::now();
    engine.wake(order(id, Disk::Kept)).await.unwrap();
    println!("{choice}: wake from the disk: {:?}", began.elapsed());
    beats(&engine, id).await;
    let machine = host.pid(id, kernel);

    // A machine that is killed is told, and its disk is kept.
    sh(&engine, id, "echo synced > /workspace/file; sync").await;
    let mut events = engine.events();
    process::kill(machine).unwrap();
    assert_eq!(events.recv().await.unwrap(), NodeEvent::Ended { id, reason: Reason::HostStopped });
    host.only(&[format!("disk {}", hex(id))]).await;
    engine.start(order(id, Disk::Kept)).await.unwrap();
    assert_eq!(sh(&engine, id, "cat /workspace/file").await, "synced");

    // Removed, it leaves nothing, and cannot start again.
    engine.remove(id).await.unwrap();
    engine.remove(id).await.unwrap();
    host.only(&[]).await;
    assert!(matches!(engine.start(order(id, Disk::Kept)).await, Err(NodeError::DiskGone)));

    // Several at once.
    let began = Instant::now();
    let ids = futures_util::future::join_all((0..4).map(|_| create(&engine))).await;
    println!("{choice}: four at once: {:?}", began.elapsed());
    let said = futures_util::future::join_all(ids.iter().map(|id| sh(&engine, *id, "echo up"))).await;
    assert!(said.iter().all(|said| said == "up"));
    for result in futures_util::future::join_all(ids.iter().map(|id| engine.remove(*id))).await {
        result.unwrap();
    }
    host.only(&[]).await;

    // A disk that is not there is told, and leaves nothing.
    let nobody = new_id();
    assert!(matches!(engine.start(order(nobody, Disk::Kept)).await, Err(NodeError::DiskGone)));
    host.only(&[]).await;
}

async fn beats(engine: &runtime_engine::Engine, id: runtime_model::SandboxId) {
    let first = sh(engine, id, "cat /tmp/beat").await;
    eventually("the background process goes on", async || {
        let next = exec_as(engine, id, User::Sandbox, "cat /tmp/beat").await.ok()?;
        (!next.stdout.is_empty() && String::from_utf8_lossy(&next.stdout).trim() != first).then_some(())
    })
    .await;
}
