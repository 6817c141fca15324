//! What a sandbox may use, and that it lives on when it wants more.

use runtime_model::{Reason, SandboxId, Shape};
use runtime_proto::guest::{ExecDone, User};
use runtime_proto::node::{Disk, Node, NodeEvent};

mod support;
use support::{Host, create, eventually, exec_as, exec_for, new_id, order, sh, sh_root, spawn};

async fn create_with(engine: &runtime_engine::Engine, shape: Shape) -> SandboxId {
    let mut order = order(new_id(), Disk::New);
    order.shape = shape;
    let id = order.id;
    engine.start(order).await.unwrap();
    id
}

fn small() -> Shape {
    Shape { memory_mib: 256, disk_mib: 3072, ..Shape::default() }
}

fn text(done: &ExecDone) -> String {
    format!("{} {}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr))
}

const HOG: &str = "python3 -c 'b = []\nwhile True: b.append(bytearray(b\"x\" * (8 << 20)))'";

#[tokio::test]
async fn out_of_memory_ends_the_largest_process_not_the_sandbox() {
    let host = Host::new();
    let engine = host.open().await;
    let id = create_with(&engine, small()).await;
    spawn(&engine, id, "echo $$ > /tmp/bystander; exec sleep 1000").await;
    eventually("the bystander runs", async || {
        let done = exec_as(&engine, id, User::Sandbox, "cat /tmp/bystander").await.ok()?;
        (!done.stdout.is_empty()).then_some(())
    })
    .await;
    for user in [User::Sandbox, User::Root, User::Sandbox] {
        let began = std::time::Instant::now();
        let done = exec_as(&engine, id, user, HOG).await.unwrap();
        println!("memory hog ended after {:?}", began.elapsed());
        assert_ne!(done.process.as_ref().and_then(|process| process.exit_code), Some(0));
    }
    assert_eq!(sh(&engine, id, "kill -0 $(cat /tmp/bystander) && echo lives").await, "lives");
    let limit = || {
        let group = format!("{}-{}", host.run_dir().file_name().unwrap().to_str().unwrap(), support::hex(id));
        let group = runtime_host::cgroup::Group::open(&host.prepared.cgroups, "runtime", &group).unwrap().unwrap();
        group.memory_limit().unwrap()
    };
    eventually("the limit is back", async || (limit() == 256 << 20).then_some(())).await;
}

#[tokio::test]
async fn memory_that_runs_out_while_no_server_is_there_waits_for_the_next() {
    let host = Host::new();
    let engine = host.open().await;
    let id = create_with(&engine, small()).await;
    let failures = || {
        let group = format!("{}-{}", host.run_dir().file_name().unwrap().to_str().unwrap(), support::hex(id));
        std::fs::read_to_string(format!("/sys/fs/cgroup/memory/runtime/{group}/memory.oom_control")).unwrap()
    };
    // The server must be gone before it begins: if this machine did not get so far in its time, it gets more.
    let mut engine = engine;
    for after in [1, 4, 16, 64] {
        let began = std::time::Instant::now();
        let line = format!("sleep {after}; rm -f /tmp/ended; {HOG}; echo $? > /tmp/ended");
        spawn(&engine, id, &line).await;
        engine.close().await;
        if began.elapsed().as_secs() < after {
            eventually("memory runs out", async || failures().contains("under_oom 1").then_some(())).await;
            engine = host.open().await;
            break;
        }
        assert!(after < 64, "the server does not end");
        engine = host.open().await;
    }
    eventually("the hog is ended", async || {
        let done = exec_as(&engine, id, User::Sandbox, "cat /tmp/ended").await.ok()?;
        (!done.stdout.is_empty()).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_full_memory_directory_is_an_error_for_who_writes() {
    let host = Host::new();
    let engine = host.open().await;
    let id = create_with(&engine, small()).await;
    for dir in ["/tmp", "/var/tmp", "/dev/shm"] {
        let done = exec_as(&engine, id, User::Sandbox, &format!("head -c 1G /dev/zero > {dir}/full")).await.unwrap();
        assert!(text(&done).contains("No space left"), "{dir}: {}", text(&done));
    }
    assert_eq!(sh(&engine, id, "rm /tmp/full && echo lives").await, "lives");
}

#[tokio::test]
async fn a_full_disk_is_an_error_for_who_writes() {
    let host = Host::new();
    let engine = host.open().await;
    let id = create_with(&engine, small()).await;
    engine.set_disk_limit(id, 64).await.unwrap();
    for user in [User::Sandbox, User::Root] {
        let done = exec_as(&engine, id, user, "head -c 300M /dev/urandom > /workspace/full; sync").await.unwrap();
        assert!(text(&done).contains("quota exceeded"), "{}", text(&done));
    }
    assert!(engine.usage(id).await.unwrap().disk_bytes <= 65 << 20);
    assert_eq!(sh(&engine, id, "echo lives").await, "lives");
    engine.set_disk_limit(id, 3072).await.unwrap();
    sh_root(&engine, id, "rm /workspace/full; echo again > /workspace/file; sync").await;
}

/// Forks until it is refused, says how often it was not, and leaves its children behind.
const BOMB: &str = r#"cat > /tmp/bomb.py <<EOT
import os, time
n = 0
try:
    while n < 500:
        if os.fork() == 0:
            time.sleep(1000)
        n += 1
    print(n, flush=True)
except OSError as e:
    print(n, e.strerror, flush=True)
EOT
python3 /tmp/bomb.py"#;

#[tokio::test]
async fn a_fork_bomb_is_bounded_and_the_sandbox_lives() {
    let host = Host::new();
    let engine = host.open().await;
    for user in [User::Sandbox, User::Root] {
        let id = create_with(&engine, Shape { memory_mib: 3072, ..small() }).await;
        let began = std::time::Instant::now();
        let done = exec_for(&engine, id, user, 200_000, BOMB).await.unwrap();
        println!("{user:?} bomb: {} after {:?}", text(&done), began.elapsed());
        if user == User::Sandbox {
            assert!(text(&done).contains("Resource temporarily unavailable"), "{}", text(&done));
        }
        eventually("commands run again", async || {
            let done = exec_as(&engine, id, User::Sandbox, "echo lives").await.ok()?;
            (&done.stdout[..] == b"lives\n").then_some(())
        })
        .await;
        engine.remove(id).await.unwrap();
    }
}

#[tokio::test]
async fn killing_everything_inside_leaves_the_agent() {
    let host = Host::new();
    let engine = host.open().await;
    let id = create(&engine).await;
    for user in [User::Sandbox, User::Root] {
        for all in ["kill -9 -1", "kill -TERM -1"] {
            let done = exec_for(&engine, id, user, 100_000, all).await;
            assert!(done.is_ok(), "{user:?} {all}: {done:?}");
            assert_eq!(sh(&engine, id, "echo lives").await, "lives", "{user:?} {all}");
        }
    }
}

/// On Linux the first process is safe from its own; here root can end it, which is like pulling the plug.
#[tokio::test]
async fn root_that_kills_the_agent_stops_its_sandbox_and_keeps_its_disk() {
    let host = Host::new();
    let engine = host.open().await;
    let id = create(&engine).await;
    sh(&engine, id, "echo kept > /workspace/file").await;
    let mut events = engine.events();
    let _ = exec_for(&engine, id, User::Root, 10_000, "kill -9 1").await;
    assert_eq!(events.recv().await.unwrap(), NodeEvent::Ended { id, reason: Reason::HostStopped });
    engine.start(order(id, Disk::Kept)).await.unwrap();
    assert_eq!(sh(&engine, id, "cat /workspace/file").await, "kept");
}

#[tokio::test]
async fn the_machine_is_as_large_as_was_asked_for() {
    let host = Host::new();
    let engine = host.open().await;
    let id = create_with(&engine, Shape { vcpu: 1, ..small() }).await;
    let memory: u64 = sh(&engine, id, "awk '/MemTotal/ {print $2}' /proc/meminfo").await.parse().unwrap();
    assert_eq!(memory, 256 << 10);
    let before = engine.usage(id).await.unwrap().cpu_ns;
    let began = std::time::Instant::now();
    sh(&engine, id, "timeout 1.5 sh -c 'while :; do :; done & while :; do :; done'; true").await;
    let used = engine.usage(id).await.unwrap().cpu_ns - before;
    assert!(u128::from(used) <= began.elapsed().as_nanos() * 12 / 10, "one processor was asked for: {used} ns");
}
