//! Pausing with memory and waking, on the real `runsc`.

use std::time::{Duration, Instant};

use runtime_engine::Engine;
use runtime_host::process;
use runtime_model::SandboxId;
use runtime_proto::guest::User;
use runtime_proto::node::{Disk, MachineStatus, Node, NodeError, NodeEvent};

mod support;
use support::{Host, create, eventually, exec_as, hex, order, sh, spawn};

async fn status(engine: &Engine, id: SandboxId) -> MachineStatus {
    engine.machines().await.unwrap().into_iter().find(|machine| machine.id == id).unwrap()
}

/// Waits until nothing of it is left on the host but what is on the disk.
async fn saved(host: &Host, id: SandboxId) {
    let disk = format!("disk {}", hex(id));
    eventually("its memory is on the disk and nothing else is left", async || {
        (host.left() == std::slice::from_ref(&disk) && !host.saves(id).is_empty()).then_some(())
    })
    .await;
    let saves = host.saves(id);
    assert!(matches!(&saves[..], [disk, whole] if disk.starts_with("disk-") && whole.starts_with("gen-")), "{saves:?}");
}

async fn used_up(host: &Host, id: SandboxId) {
    eventually("what was saved is gone", async || host.saves(id).is_empty().then_some(())).await;
}

async fn wake(engine: &Engine, id: SandboxId) {
    engine.wake(order(id, Disk::Kept)).await.unwrap();
}

/// A process with a counter, a server on the loopback, a half-written file and a timer.
const BUSY: &str = r#"python3 -c '
import socketserver, threading, time
count = 0
half = open("/workspace/half", "w"); half.write("first half, "); half.flush()
class Answer(socketserver.StreamRequestHandler):
    def handle(self):
        word = self.rfile.readline().strip()
        if word == b"finish":
            half.write("second half"); half.close()
        self.wfile.write(b"%d\n" % count)
socketserver.ThreadingTCPServer.allow_reuse_address = True
server = socketserver.ThreadingTCPServer(("127.0.0.1", 4000), Answer)
threading.Thread(target=server.serve_forever, daemon=True).start()
while True:
    time.sleep(0.01); count += 1
'"#;

fn ask(word: &str) -> String {
    format!(
        "python3 -c 'import socket; s = socket.create_connection((\"127.0.0.1\", 4000), 5); \
         s.sendall(b\"{word}\\n\"); print(s.recv(99).decode().strip())'"
    )
}

async fn count(engine: &Engine, id: SandboxId, word: &str) -> u64 {
    sh(engine, id, &ask(word)).await.parse().unwrap()
}

async fn occupy(engine: &Engine, id: SandboxId) {
    spawn(engine, id, BUSY).await;
    eventually("its server answers", async || {
        let done = exec_as(engine, id, User::Sandbox, &ask("hello")).await.ok()?;
        (done.process?.exit_code == Some(0)).then_some(())
    })
    .await;
}

#[tokio::test]
async fn everything_in_memory_is_there_after_a_pause_that_was_saved() {
    let host = Host::new();
    let engine = host.open().await;
    let id = create(&engine).await;
    occupy(&engine, id).await;
    let before = count(&engine, id, "hello").await;
    let began = Instant::now();
    engine.pause(id).await.unwrap();
    println!("paused in {:?}", began.elapsed());
    assert_eq!(status(&engine, id).await, MachineStatus { id, running: false, paused: true, disk: true });
    assert!(matches!(exec_as(&engine, id, User::Sandbox, "true").await, Err(NodeError::NotRunning)));
    engine.pause(id).await.unwrap();
    saved(&host, id).await;
    println!("saved after {:?}", began.elapsed());
    engine.pause(id).await.unwrap();

    let began = Instant::now();
    wake(&engine, id).await;
    println!("woken in {:?}", began.elapsed());
    assert_eq!(sh(&engine, id, "echo first").await, "first");
    println!("first command after {:?}", began.elapsed());
    used_up(&host, id).await;
    assert!(count(&engine, id, "finish").await >= before);
    assert_eq!(sh(&engine, id, "cat /workspace/half").await, "first half, second half");
    support::has_the_time(sh(&engine, id, "date +%s%N")).await;
    wake(&engine, id).await;
    engine.remove(id).await.unwrap();
    host.only(&[]).await;
}

#[tokio::test]
async fn a_wake_that_comes_before_the_save_is_done_finds_the_same_machine() {
    let host = Host::new();
    let engine = host.open().await;
    let id = create(&engine).await;
    occupy(&engine, id).await;
    let sentry = host.pid(id, "sentry");
    for _ in 0..10 {
        let before = count(&engine, id, "hello").await;
        engine.pause(id).await.unwrap();
        wake(&engine, id).await;
        assert!(count(&engine, id, "hello").await >= before);
    }
    if host.pid(id, "sentry") != sentry {
        println!("a save was faster than a wake");
    }
    engine.stop(id).await.unwrap();
    host.only(&[format!("disk {}", hex(id))]).await;
    assert!(host.saves(id).is_empty());
}

#[tokio::test]
async fn a_paused_machine_outlives_its_server_frozen_or_saved() {
    let host = Host::new();
    let mut engine = host.open().await;
    let id = create(&engine).await;
    occupy(&engine, id).await;
    for round in 0..4 {
        let before = count(&engine, id, "hello").await;
        engine.pause(id).await.unwrap();
        if round % 2 == 0 {
            saved(&host, id).await;
        }
        engine.close().await;
        drop(engine);
        engine = host.open().await;
        assert!(status(&engine, id).await.paused);
        wake(&engine, id).await;
        assert!(count(&engine, id, "hello").await >= before);
    }
    engine.remove(id).await.unwrap();
    host.only(&[]).await;
}

#[tokio::test]
async fn a_save_that_is_refused_leaves_it_frozen_and_it_can_be_woken() {
    let host = Host::new();
    let engine = host.open().await;
    let id = create(&engine).await;
    // gVisor cannot write down a file on the disk that is open and deleted.
    let shell = "exec 7<>/workspace/gone; rm /workspace/gone; echo kept >&7; while :; do sleep 0.1; done";
    spawn(&engine, id, shell).await;
    eventually("the file is gone", async || {
        let shell = "ls -l /proc/*/fd 2>/dev/null | grep -c 'gone (deleted)'";
        let done = exec_as(&engine, id, User::Root, shell).await.ok()?;
        (String::from_utf8_lossy(&done.stdout).trim() != "0").then_some(())
    })
    .await;
    let sentry = host.pid(id, "sentry");
    engine.pause(id).await.unwrap();
    eventually("the save was given up", async || host.saves(id).is_empty().then_some(())).await;
    assert!(status(&engine, id).await.paused);
    wake(&engine, id).await;
    assert_eq!(host.pid(id, "sentry"), sentry);
    assert_eq!(sh(&engine, id, "pgrep -fc 'while :'").await, "1");
    engine.pause(id).await.unwrap();
    engine.stop(id).await.unwrap();
    host.only(&[format!("disk {}", hex(id))]).await;
}

#[tokio::test]
async fn a_damaged_memory_is_refused_and_its_disk_is_there() {
    let host = Host::new();
    let engine = host.open().await;
    for (file, damage) in [("pages.img", false), ("checkpoint.img", true), ("saved.json", true)] {
        let id = create(&engine).await;
        sh(&engine, id, "echo kept > /workspace/file").await;
        engine.pause(id).await.unwrap();
        saved(&host, id).await;
        let path = host.save_dir(id).join(&host.saves(id)[1]).join(file);
        let mut bytes = std::fs::read(&path).unwrap();
        if damage {
            bytes.truncate(bytes.len() / 2);
        } else {
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
        }
        std::fs::write(&path, bytes).unwrap();
        let error = engine.wake(order(id, Disk::Kept)).await.unwrap_err();
        assert!(matches!(&error, NodeError::MemoryGone(why) if why.contains(file)), "{error}");
        assert!(!status(&engine, id).await.paused);
        engine.start(order(id, Disk::Kept)).await.unwrap();
        assert_eq!(sh(&engine, id, "cat /workspace/file").await, "kept");
        engine.remove(id).await.unwrap();
    }
    host.only(&[]).await;
}

#[tokio::test]
async fn a_frozen_machine_that_is_killed_is_reported() {
    let host = Host::new();
    let engine = host.open().await;
    let id = create(&engine).await;
    spawn(&engine, id, "exec 7<>/workspace/gone; rm /workspace/gone; exec sleep 1000").await;
    eventually("the file is gone", async || {
        exec_as(&engine, id, User::Sandbox, "test ! -e /workspace/gone && pgrep sleep")
            .await
            .ok()?
            .process
            .and_then(|process| (process.exit_code == Some(0)).then_some(()))
    })
    .await;
    engine.pause(id).await.unwrap();
    let mut events = engine.events();
    process::kill(host.pid(id, "sentry")).unwrap();
    assert!(matches!(events.recv().await.unwrap(), NodeEvent::Ended { id: ended, .. } if ended == id));
    assert!(!status(&engine, id).await.paused);
    assert!(matches!(engine.wake(order(id, Disk::Kept)).await, Err(NodeError::MemoryGone(_))));
    host.only(&[format!("disk {}", hex(id))]).await;
}

#[tokio::test]
async fn a_keeper_that_is_killed_while_its_machine_stands_still_is_replaced() {
    let host = Host::new();
    let engine = host.open().await;
    let id = create(&engine).await;
    occupy(&engine, id).await;
    spawn(&engine, id, "exec 7<>/workspace/gone; rm /workspace/gone; exec sleep 1000").await;
    eventually("the file is gone", async || {
        let done = exec_as(&engine, id, User::Sandbox, "test ! -e /workspace/gone && pgrep sleep").await.ok()?;
        (done.process?.exit_code == Some(0)).then_some(())
    })
    .await;
    let before = count(&engine, id, "hello").await;
    let keeper = host.pid(id, "shim");
    engine.pause(id).await.unwrap();
    process::kill(keeper).unwrap();
    eventually("another takes its place", async || (host.pid(id, "shim") != keeper).then_some(())).await;
    wake(&engine, id).await;
    assert!(count(&engine, id, "hello").await >= before);
}

#[tokio::test]
async fn a_changing_memory_is_the_same_after_every_one_of_many_pauses() {
    let host = Host::new();
    let engine = host.open().await;
    let id = create(&engine).await;
    let keep = r#"python3 -c '
import hashlib, os, socket
block = bytearray(os.urandom(32 << 20))
listener = socket.create_server(("127.0.0.1", 4000))
while True:
    peer, _ = listener.accept()
    word = peer.recv(99).strip()
    if word == b"change":
        for page in range(0, len(block), 64 * 1024):
            block[page:page + 32] = os.urandom(32)
    peer.sendall(hashlib.sha256(block).hexdigest().encode()); peer.close()
'"#;
    spawn(&engine, id, keep).await;
    eventually("it answers", async || {
        let done = exec_as(&engine, id, User::Sandbox, &ask("hello")).await.ok()?;
        (done.process?.exit_code == Some(0)).then_some(())
    })
    .await;
    let (mut hot, mut cold) = (Duration::ZERO, Duration::ZERO);
    for round in 0..30 {
        let before = sh(&engine, id, &ask("change")).await;
        engine.pause(id).await.unwrap();
        if round % 2 == 0 {
            saved(&host, id).await;
        }
        let began = Instant::now();
        wake(&engine, id).await;
        *(if round % 2 == 0 { &mut cold } else { &mut hot }) += began.elapsed();
        assert_eq!(sh(&engine, id, &ask("hello")).await, before, "round {round}");
        used_up(&host, id).await;
    }
    println!("woken from the disk in {:?}, at once after the pause in {:?}", cold / 15, hot / 15);
    engine.remove(id).await.unwrap();
    host.only(&[]).await;
}

/// It is between two words to gVisor that a shim may be killed. Its note is all that the next one has.
#[tokio::test]
async fn a_keeper_that_died_between_its_note_and_the_deed_is_followed_by_one_that_finds_out() {
    let host = Host::new();
    let mut engine = host.open().await;
    let id = create(&engine).await;
    occupy(&engine, id).await;
    spawn(&engine, id, "exec 7<>/workspace/gone; rm /workspace/gone; exec sleep 1000").await;
    eventually("the file is gone", async || {
        let done = exec_as(&engine, id, User::Sandbox, "test ! -e /workspace/gone && pgrep sleep").await.ok()?;
        (done.process?.exit_code == Some(0)).then_some(())
    })
    .await;
    for (stands_still, note, paused) in [
        (true, "freezing\n", true),
        (true, "thawing\n", true),
        (false, "freezing\n", true),
        (false, "thawing\n", false),
    ] {
        let before = count(&engine, id, "hello").await;
        if stands_still {
            engine.pause(id).await.unwrap();
        }
        engine.close().await;
        drop(engine);
        host.kill(id, "shim").await;
        std::fs::write(host.data_dir().join("sandboxes").join(hex(id)).join("frozen"), note).unwrap();
        engine = host.open().await;
        assert_eq!(status(&engine, id).await.paused, paused, "{stands_still} {note}");
        wake(&engine, id).await;
        assert!(count(&engine, id, "hello").await >= before);
    }
    engine.remove(id).await.unwrap();
    host.only(&[]).await;
}

/// All that is known of a machine that was lost between the moment it might run and the moment it was heard.
#[tokio::test]
async fn a_wake_that_was_cut_short_is_begun_again_with_the_disk_as_it_was() {
    let host = Host::new();
    let engine = host.open().await;
    let id = create(&engine).await;
    occupy(&engine, id).await;
    sh(&engine, id, "echo before > /workspace/file").await;
    let before = count(&engine, id, "hello").await;
    engine.pause(id).await.unwrap();
    saved(&host, id).await;
    let whole = host.saves(id)[1].clone();
    let used = whole.replace("gen-", "used-");
    std::fs::rename(host.save_dir(id).join(&whole), host.save_dir(id).join(used)).unwrap();
    let root = host.prepared.pool.root(&hex(id)).unwrap().unwrap();
    std::fs::write(root.join("workspace/file"), "written by a life that nobody heard of").unwrap();
    std::fs::remove_file(root.join("workspace/half")).unwrap();
    engine.close().await;
    drop(engine);

    let engine = host.open().await;
    assert!(status(&engine, id).await.paused);
    wake(&engine, id).await;
    assert!(count(&engine, id, "finish").await >= before);
    assert_eq!(sh(&engine, id, "cat /workspace/file /workspace/half").await, "before\nfirst half, second half");
    used_up(&host, id).await;
    engine.set_disk_limit(id, 4096).await.unwrap();
    engine.remove(id).await.unwrap();
    host.only(&[]).await;
}

#[tokio::test]
async fn a_wake_whose_machine_is_killed_loses_nothing() {
    let host = Host::new();
    let engine = std::sync::Arc::new(host.open().await);
    let id = create(&engine).await;
    occupy(&engine, id).await;
    for round in 0..6 {
        let before = count(&engine, id, "hello").await;
        engine.pause(id).await.unwrap();
        saved(&host, id).await;
        let waking = tokio::spawn({
            let engine = engine.clone();
            async move { engine.wake(order(id, Disk::Kept)).await }
        });
        // The first of the two attempts loses its kernel, at another moment each time.
        let record = host.data_dir().join("sandboxes").join(hex(id)).join("machine.json");
        while !waking.is_finished() && !record.exists() {
            tokio::task::yield_now().await;
        }
        tokio::time::sleep(Duration::from_millis(2 * round)).await;
        process::kill(host.pid(id, "sentry")).unwrap();
        waking.await.unwrap().unwrap();
        if exec_as(&engine, id, User::Sandbox, "true").await.is_err() {
            println!("round {round}: it was heard before it was killed, and is lost by nature");
            eventually("its end is noticed", async || (!status(&engine, id).await.running).then_some(())).await;
            engine.start(order(id, Disk::Kept)).await.unwrap();
            occupy(&engine, id).await;
            continue;
        }
        assert!(count(&engine, id, "hello").await >= before);
    }
    engine.remove(id).await.unwrap();
    host.only(&[]).await;
}

#[tokio::test]
async fn a_wake_in_the_middle_of_a_save_finds_the_same_machine() {
    let host = Host::new();
    let engine = host.open().await;
    let id = create(&engine).await;
    spawn(
        &engine,
        id,
        "exec python3 -c 'import os, time; held = os.urandom(200 << 20); open(\"/tmp/up\", \"w\"); time.sleep(1000)'",
    )
    .await;
    eventually("it holds its memory", async || {
        let done = exec_as(&engine, id, User::Sandbox, "test -e /tmp/up").await.ok()?;
        (done.process?.exit_code == Some(0)).then_some(())
    })
    .await;
    // A save may be done before a slow test has seen it and asked: then another.
    loop {
        let sentry = host.pid(id, "sentry");
        engine.pause(id).await.unwrap();
        eventually("its memory is being written", async || {
            let saves = host.saves(id);
            let whole = saves.iter().any(|name| name.starts_with("gen-"));
            let begun = saves.iter().find(|name| name.starts_with("new-")).is_some_and(|new| {
                let pages = std::fs::metadata(host.save_dir(id).join(new).join("pages.img"));
                pages.is_ok_and(|pages| pages.len() > 0)
            });
            (begun || whole).then_some(())
        })
        .await;
        let began = Instant::now();
        wake(&engine, id).await;
        println!("woken in {:?}", began.elapsed());
        used_up(&host, id).await;
        assert_eq!(sh(&engine, id, "pgrep -c python3").await, "1");
        if host.pid(id, "sentry") == sentry {
            break;
        }
    }
    engine.remove(id).await.unwrap();
    host.only(&[]).await;
}
