//! The life of a sandbox on a host that works: start, use, stop, start again, remove.

use std::time::{Duration, Instant};

use runtime_proto::node::{Disk, Node, NodeError};

mod support;
use support::{Host, create, exec_as, new_id, order, sh, sh_root};

#[tokio::test]
async fn a_disk_outlives_its_machine_and_goes_with_its_sandbox() {
    let host = Host::new();
    let engine = host.open().await;
    let began = Instant::now();
    let id = create(&engine).await;
    println!("create to hello: {:?}", began.elapsed());
    engine.start(order(id, Disk::New)).await.unwrap();
    assert_eq!(sh(&engine, id, "id -u; hostname").await, "1000\nbox");
    sh(&engine, id, "echo kept > /workspace/file; echo gone > /tmp/file").await;
    let began = Instant::now();
    engine.stop(id).await.unwrap();
    println!("stop: {:?}", began.elapsed());
    engine.stop(id).await.unwrap();
    assert!(matches!(
        exec_as(&engine, id, runtime_proto::guest::User::Sandbox, "true").await,
        Err(NodeError::NotRunning)
    ));
    let machines = engine.machines().await.unwrap();
    assert_eq!(machines.iter().map(|m| (m.id, m.running, m.disk)).collect::<Vec<_>>(), [(id, false, true)]);
    host.only(&[format!("disk {}", support::hex(id))]).await;

    engine.start(order(id, Disk::Kept)).await.unwrap();
    assert_eq!(sh(&engine, id, "cat /workspace/file; ls /tmp").await, "kept");
    let usage = engine.usage(id).await.unwrap();
    assert!(usage.cpu_ns > 0 && usage.memory_bytes > 1 << 20 && usage.disk_bytes > 0, "{usage:?}");
    let began = Instant::now();
    engine.remove(id).await.unwrap();
    println!("remove: {:?}", began.elapsed());
    engine.remove(id).await.unwrap();
    host.only(&[]).await;
    assert!(matches!(engine.start(order(id, Disk::Kept)).await, Err(NodeError::DiskGone)));
}

#[tokio::test]
async fn thirty_at_once_all_come_up() {
    let host = Host::new();
    let engine = host.open().await;
    let began = Instant::now();
    let ids = futures_util::future::join_all((0..30).map(|_| create(&engine))).await;
    println!("30 creates at once: {:?}", began.elapsed());
    let names = futures_util::future::join_all(ids.iter().map(|id| sh(&engine, *id, "echo up"))).await;
    assert!(names.iter().all(|name| name == "up"));
    for result in futures_util::future::join_all(ids.iter().map(|id| engine.remove(*id))).await {
        result.unwrap();
    }
    host.only(&[]).await;
}

#[tokio::test]
async fn a_start_that_cannot_work_leaves_nothing() {
    let host = Host::new();
    let engine = host.open_with(b"not a program").await;
    let id = new_id();
    let error = engine.start(order(id, Disk::New)).await.unwrap_err().to_string();
    assert!(error.contains("cannot boot") && error.contains("exec"), "{error}");
    host.only(&[]).await;
    engine.close().await;
    let engine = host.open().await;
    engine.start(order(id, Disk::New)).await.unwrap();
    assert_eq!(sh_root(&engine, id, "id -u").await, "0");
}

/// Its agent never answers, and nobody waits for that who wants it gone.
#[tokio::test]
async fn a_stop_ends_a_start_that_is_under_way() {
    let host = Host::new();
    let engine = host.open_with(b"#!/bin/sh\nexec sleep 1000\n").await;
    for remove in [false, true] {
        let id = new_id();
        let record = host.data_dir().join("sandboxes").join(support::hex(id)).join("machine.json");
        let began = Instant::now();
        let (started, ()) = futures_util::future::join(engine.start(order(id, Disk::New)), async {
            support::eventually("it is on its way", async || record.exists().then_some(())).await;
            if remove { engine.remove(id).await.unwrap() } else { engine.stop(id).await.unwrap() }
        })
        .await;
        assert!(matches!(started, Err(NodeError::Busy(_))), "{started:?}");
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
        assert!(!engine.has_disk(id).await.unwrap(), "what was half made is no disk that was kept");
        host.only(&[]).await;
    }
}

#[tokio::test]
async fn cycles_leak_nothing() {
    let host = Host::new();
    let engine = host.open().await;
    let fds = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let warm = create(&engine).await;
    engine.remove(warm).await.unwrap();
    let before = fds();
    let began = Instant::now();
    for _ in 0..25 {
        let pair = futures_util::future::join(create(&engine), create(&engine)).await;
        for id in [pair.0, pair.1] {
            engine.remove(id).await.unwrap();
        }
    }
    println!("50 cycles: {:?}", began.elapsed());
    host.only(&[]).await;
    support::eventually("descriptors are closed", async || (fds() <= before + 2).then_some(())).await;
    let me = std::process::id().to_string();
    let children = || {
        let all = std::fs::read_to_string(format!("/proc/self/task/{me}/children")).unwrap_or_default();
        all.split_whitespace().count()
    };
    support::eventually("shims are reaped", async || (children() == 0).then_some(())).await;
}

#[tokio::test]
async fn a_command_costs_the_host_little() {
    let host = Host::new();
    let engine = host.open().await;
    let id = create(&engine).await;
    let mut times: Vec<Duration> = Vec::new();
    for _ in 0..100 {
        let began = Instant::now();
        sh(&engine, id, "true").await;
        times.push(began.elapsed());
    }
    times.sort();
    println!("exec bash -c true: p50 {:?} min {:?}", times[50], times[0]);
    // Measured at 20 ms; a wait for a timer or a second round trip through a poll loop is ten times that.
    assert!(times[0] < Duration::from_millis(200), "{times:?}");
}
