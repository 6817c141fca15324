//! Sandboxes that are virtual machines, run by the real QEMU: by the processor where KVM runs guests, else emulated.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use newtype_uuid::GenericUuid;
use runtime_engine::AgentFile;
use runtime_engine::driver::microvm::{Hypervisor, Microvm, MicrovmOptions};
use runtime_engine::driver::{Booted, Driver, Identity, Plan, RestoreError, Saved};
use runtime_engine::prepare::{CGROUP_PARENT, EngineChoice, Machinery};
use runtime_host::cgroup::Limits;
use runtime_model::{SandboxId, Shape, SnapshotId};
use runtime_proto::guest::User;
use runtime_proto::handshake::wall_clock_ns;
use runtime_proto::node::{Capture, Disk, Node};
use tokio_util::sync::CancellationToken;

mod support;
use support::guest::Guest;
use support::{Host, agent, create, exec_as, has_the_time, hex, new_id, order, sh, sh_root};

const RANDOM: &str = "head -c 16 /dev/urandom | od -An -tx1; cat /proc/sys/kernel/random/uuid";

#[tokio::test]
async fn copies_of_one_template_share_nothing_that_tells_them_apart() {
    let host = Host::with(EngineChoice::Qemu);
    let engine = host.open().await;
    // Waits for the template that the engine makes when it opens.
    let first = create(&engine).await;
    let began = Instant::now();
    let second = create(&engine).await;
    println!("template to hello: {:?}", began.elapsed());
    for id in [first, second] {
        assert!(host.machine_file(id)["launch"]["start"]["restore"]["state"].is_string(), "it is a copy");
    }
    let drawn = [sh(&engine, first, RANDOM).await, sh(&engine, second, RANDOM).await];
    assert_ne!(drawn[0], drawn[1]);
    for (one, other) in drawn[0].lines().zip(drawn[1].lines()) {
        assert_ne!(one, other);
    }
    for id in [first, second] {
        has_the_time(sh(&engine, id, "date +%s%N")).await;
        assert_eq!(sh(&engine, id, "cat /etc/machine-id").await, hex(id));
    }
    sh(&engine, first, "echo mine > /workspace/mine; echo mine > /dev/shm/mine").await;
    assert_eq!(sh(&engine, second, "ls /workspace /dev/shm").await, "/dev/shm:\n\n/workspace:");

    // The machine itself: nobody in particular, and nothing of the host is open to it by name.
    let vmm = host.pid(first, "vmm");
    let status = std::fs::read_to_string(format!("/proc/{vmm}/status")).unwrap();
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned();
    assert!(field("Uid:").split_whitespace().all(|uid| uid.parse::<u32>().unwrap() >= 1_000_000_000));
    assert_eq!(field("CapEff:"), "0000000000000000");
    assert_eq!(field("Seccomp:"), "2");
    let other = std::fs::read_to_string(format!("/proc/{}/status", host.pid(second, "vmm"))).unwrap();
    assert!(!other.contains(&format!("Uid:\t{}", field("Uid:"))), "each has a user id of its own");

    // Both have the template's memory open, by descriptors that cannot write.
    for vmm in [vmm, host.pid(second, "vmm")] {
        let fds = std::fs::read_dir(format!("/proc/{vmm}/fd")).unwrap().flatten();
        let shared =
            fds.filter(|fd| std::fs::read_link(fd.path()).is_ok_and(|at| at.to_string_lossy().contains("/templates/")));
        let numbers: Vec<String> = shared.map(|fd| fd.file_name().into_string().unwrap()).collect();
        assert!(!numbers.is_empty(), "its memory is the template's");
        for number in numbers {
            let info = std::fs::read_to_string(format!("/proc/{vmm}/fdinfo/{number}")).unwrap();
            let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).unwrap().trim();
            assert_eq!(u32::from_str_radix(flags, 8).unwrap() & 3, 0, "for reading only: {info}");
        }
    }

    assert_eq!(sh(&engine, first, "cat /workspace/mine").await, "mine");

    engine.remove(first).await.unwrap();
    engine.remove(second).await.unwrap();
    host.only(&[]).await;
}

#[tokio::test]
async fn the_first_file_system_is_small() {
    let host = Host::with(EngineChoice::Qemu);
    let Machinery::Qemu { guest, .. } = &host.prepared.machinery else { panic!("another engine was prepared") };
    let size = guest.initramfs(agent()).unwrap().len();
    assert!(size < 7 << 19, "{size} bytes: well under four megabytes");
}

#[tokio::test]
async fn a_disk_may_be_larger_at_the_next_start_and_is_full_at_its_limit() {
    let host = Host::with(EngineChoice::Qemu);
    let engine = host.open().await;
    let id = create(&engine).await;
    let size = "df -B1M --output=size / | tail -1";
    let before: u64 = sh(&engine, id, size).await.trim().parse().unwrap();
    sh_root(&engine, id, "mkdir /opt/kept && mv /opt/kept /opt/moved && mv /usr/share/zoneinfo/Europe /opt").await;
    engine.stop(id).await.unwrap();
    let mut larger = order(id, Disk::Kept);
    larger.shape.disk_mib += 1024;
    engine.start(larger).await.unwrap();
    let after: u64 = sh(&engine, id, size).await.trim().parse().unwrap();
    assert!(after > before + 900, "{before} MiB, then {after}");
    assert_eq!(sh(&engine, id, "ls -d /opt/moved /opt/Europe/Berlin").await, "/opt/Europe/Berlin\n/opt/moved");
    sh(&engine, id, "fallocate -l 3500M /workspace/fits").await;
    assert!(sh(&engine, id, "head -c 900M /dev/zero 2>&1 > /workspace/more || true").await.contains("No space left"));
    engine.stop(id).await.unwrap();
    let smaller = engine.start(order(id, Disk::Kept)).await.unwrap_err().to_string();
    assert!(smaller.contains("only grows"), "{smaller}");
    engine.remove(id).await.unwrap();
    host.only(&[]).await;
}

#[tokio::test]
async fn a_copy_of_the_disk_alone_has_what_was_written_last_and_may_be_larger() {
    let host = Host::with(EngineChoice::Qemu);
    let engine = host.open().await;
    let (source, copy) = (create(&engine).await, new_id());
    let [running, paused] = [1, 2].map(|n| SnapshotId::from_untyped_uuid(uuid::Uuid::from_u128(n)));
    sh(&engine, source, "echo one > /workspace/kept").await;
    engine.capture(Capture { id: source, snapshot: running, memory: false }).await.unwrap();
    engine.wake(order(source, Disk::Kept)).await.unwrap();
    sh(&engine, source, "echo two > /workspace/kept").await;
    engine.pause(source).await.unwrap();
    engine.capture(Capture { id: source, snapshot: paused, memory: false }).await.unwrap();
    engine.remove(source).await.unwrap();
    for (snapshot, kept, more) in [(running, "one", 0), (paused, "two", 1024)] {
        let mut wanted = order(copy, Disk::Snapshot(snapshot));
        wanted.shape.disk_mib += more;
        engine.start(wanted).await.unwrap();
        assert_eq!(sh(&engine, copy, "cat /workspace/kept").await, kept);
        let size: u64 = sh(&engine, copy, "df -B1M --output=size / | tail -1").await.trim().parse().unwrap();
        assert_eq!(size > 3072, more > 0, "{size} MiB");
        engine.remove(copy).await.unwrap();
        engine.drop_snapshot(snapshot).await.unwrap();
    }
    host.only(&[]).await;
}

#[tokio::test]
async fn twenty_at_once_come_up_and_memory_that_runs_out_ends_a_process() {
    let host = Host::with(EngineChoice::Qemu);
    let engine = host.open().await;
    let first = create(&engine).await;
    let began = Instant::now();
    let mut ids = futures_util::future::join_all((0..19).map(|_| create(&engine))).await;
    println!("nineteen more at once: {:?}", began.elapsed());
    ids.push(first);
    let said = futures_util::future::join_all(ids.iter().map(|id| sh(&engine, *id, "echo up"))).await;
    println!("and a command in each of twenty: {:?}", began.elapsed());
    assert!(said.iter().all(|said| said == "up"));
    for id in ids {
        if id != first {
            engine.remove(id).await.unwrap();
        }
    }
    let hog = "python3 -c 'b = []\nwhile True: b.append(bytearray(b\"x\" * (8 << 20)))'";
    let done = exec_as(&engine, first, User::Sandbox, hog).await.unwrap();
    let process = done.process.unwrap();
    assert_ne!(process.exit_code, Some(0));
    assert!(process.oom_kills > 0, "{process:?}");
    assert_eq!(sh(&engine, first, "echo lives").await, "lives");
    engine.remove(first).await.unwrap();
    host.only(&[]).await;
}

/// A driver without an engine.
struct Bench {
    host: Host,
    driver: Microvm,
    shape: Shape,
}

impl Bench {
    async fn new(host: Host) -> Self {
        let prepared = host.prepared.clone();
        let (program, guest) = match prepared.machinery {
            Machinery::Qemu { qemu, guest, accel } => (Hypervisor::Qemu { qemu, accel }, guest),
            Machinery::Firecracker { firecracker, guest } => (Hypervisor::Firecracker(firecracker), guest),
            Machinery::Gvisor(_) => panic!("another engine was prepared"),
        };
        let options = MicrovmOptions {
            program,
            guest,
            host_memory_mib: prepared.host_memory_mib,
            pool: prepared.pool,
            cores: prepared.cores,
            data_dir: prepared.data_dir.clone(),
            run_dir: prepared.run_dir,
            cgroups: prepared.cgroups,
            cgroup_parent: CGROUP_PARENT.to_owned(),
            shim: std::env::current_exe().unwrap(),
            agent: AgentFile::install(&prepared.data_dir, agent()).unwrap(),
        };
        let driver = tokio::task::spawn_blocking(|| Microvm::open(options)).await.unwrap().unwrap();
        Self { host, driver, shape: Shape { vcpu: 1, memory_mib: 256, ..Shape::default() } }
    }

    fn plan(&self, id: SandboxId, hostname: &str) -> Plan {
        let pool = &self.host.prepared.pool;
        let root = pool.root(&hex(id)).unwrap().unwrap_or_else(|| {
            self.driver.make_disk(pool, &self.host.prepared.base, &hex(id), self.shape.disk_mib).unwrap()
        });
        let limits = Limits {
            memory_bytes: self.shape.memory_mib << 20,
            cpu_quota_millis: 1000,
            cpu_floor_millis: 50,
            pids: 512,
        };
        let generation = wall_clock_ns();
        let identity = Identity { hostname: hostname.to_owned(), generation, max_user_processes: 100, memory_bytes: 0 };
        Plan { id, identity, root, shape: self.shape, limits, abort: CancellationToken::new() }
    }

    async fn remove(&self, id: SandboxId, machine: Box<dyn Booted>) {
        machine.end().await.unwrap();
        self.host.prepared.pool.delete_root(&hex(id)).unwrap();
    }
}

#[tokio::test]
async fn a_machine_is_frozen_thawed_saved_and_goes_on_twice() {
    goes_on_twice(Bench::new(Host::with(EngineChoice::Qemu)).await).await;
}

#[tokio::test]
#[cfg_attr(not(firecracker), ignore = "needs RUNTIME_FIRECRACKER, and a KVM that runs guests")]
async fn a_firecracker_is_frozen_thawed_saved_and_goes_on_twice() {
    goes_on_twice(Bench::new(Host::firecracker()).await).await;
}

async fn goes_on_twice(bench: Bench) {
    let source = new_id();
    let machine = bench.driver.boot(bench.plan(source, "source")).await.unwrap();
    let guest = Guest::of(&*machine, &source.to_string()).await;
    has_the_time(guest.sh("date +%s%N")).await;
    guest.sh("echo early > /workspace/disk; echo early > /dev/shm/memory").await;
    drop(guest);

    let began = Instant::now();
    let frozen = machine.freeze().await.unwrap();
    println!("freeze: {:?}", began.elapsed());
    let group = |id: SandboxId| {
        let name = format!("{}-{}", bench.host.run_dir().file_name().unwrap().to_str().unwrap(), hex(id));
        runtime_host::cgroup::Group::open(&bench.host.prepared.cgroups, CGROUP_PARENT, &name).unwrap().unwrap()
    };
    let used = group(source).cpu_usage_ns().unwrap();
    let still = Instant::now();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let (more, passed) = (group(source).cpu_usage_ns().unwrap() - used, still.elapsed());
    println!("a frozen machine used {more} ns in {passed:?}");
    assert!(u128::from(more) < passed.as_nanos() / 5, "a frozen machine used {more} ns in {passed:?}");
    let pool = bench.host.prepared.pool.clone();
    // The save of one that stands still may not be the last: a pause is written down, and a fork wanted of it.
    let earlier: PathBuf = pool.dir().join("earlier");
    std::fs::create_dir(&earlier).unwrap();
    frozen.saver().save(&earlier, &CancellationToken::new()).await.unwrap();
    let dir: PathBuf = pool.dir().join("saved");
    std::fs::create_dir(&dir).unwrap();
    let began = Instant::now();
    frozen.saver().save(&dir, &CancellationToken::new()).await.unwrap();
    println!("save: {:?}", began.elapsed());
    std::fs::remove_dir_all(&earlier).unwrap();
    let saved = Saved { dir: dir.clone(), used: dir.clone() };
    // The disk as it was then is kept beside it.
    pool.snapshot_root(&hex(source), "kept").unwrap();
    let began = Instant::now();
    let machine = frozen.thaw().await.unwrap();
    println!("thaw: {:?}", began.elapsed());
    let guest = Guest::of(&*machine, &source.to_string()).await;
    has_the_time(guest.sh("date +%s%N")).await;
    guest.sh("echo late > /workspace/disk; echo late > /dev/shm/memory; sync").await;

    // While the source goes on.
    let mut forks = Vec::new();
    for name in ["one", "other"] {
        let id = new_id();
        let began = Instant::now();
        pool.snapshot_root("kept", &hex(id)).unwrap();
        let machine = bench.driver.restore(bench.plan(id, name), saved.clone()).await.unwrap();
        let guest = Guest::of(&*machine, &id.to_string()).await;
        println!("restore to hello: {:?}", began.elapsed());
        assert_eq!(guest.sh("cat /workspace/disk /dev/shm/memory; hostname").await, format!("early\nearly\n{name}"));
        assert_eq!(guest.sh("cat /etc/machine-id").await, hex(id));
        has_the_time(guest.sh("date +%s%N")).await;
        forks.push((id, machine, guest.sh(RANDOM).await));
    }
    assert_ne!(forks[0].2, forks[1].2, "two copies of one memory draw different randomness");
    assert_eq!(guest.sh("cat /workspace/disk /dev/shm/memory").await, "late\nlate");

    // What does not fit is refused, and what is not whole too.
    let other = new_id();
    pool.snapshot_root("kept", &hex(other)).unwrap();
    let mut plan = bench.plan(other, "other");
    plan.shape.memory_mib = 512;
    let error = bench.driver.restore(plan, saved.clone()).await.err().unwrap();
    assert!(matches!(&error, RestoreError::Unusable(why) if why.contains("256")), "{error:?}");
    // What is used up by it has another name from before the first instruction on.
    let once = Saved { dir: pool.dir().join("gen"), used: pool.dir().join("used") };
    copy_dir(&dir, &once.dir);
    let last = bench.driver.restore(bench.plan(other, "other"), once.clone()).await.unwrap();
    assert!(!once.dir.exists() && once.used.exists());
    forks.push((other, last, String::new()));
    std::fs::remove_file(dir.join("meta.json")).unwrap();
    let torn = new_id();
    pool.snapshot_root("kept", &hex(torn)).unwrap();
    let error = bench.driver.restore(bench.plan(torn, "torn"), saved).await.err().unwrap();
    assert!(matches!(error, RestoreError::Unusable(_)), "{error:?}");
    pool.delete_root(&hex(torn)).unwrap();
    pool.delete_root("kept").unwrap();

    for (id, machine, _) in forks {
        bench.remove(id, machine).await;
    }
    drop(guest);
    bench.remove(source, machine).await;
    bench.host.only(&[]).await;
}

fn copy_dir(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}
