//! microVMs without a server: the driver beside QEMU started by hand with the same kernel, files and guest, and a long
//! run of boots and restores. On a host with KVM the same command fills the same table.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use newtype_uuid::GenericUuid;
use runtime_engine::AgentFile;
use runtime_engine::driver::microvm::{Hypervisor, Microvm, MicrovmOptions};
use runtime_engine::driver::{Booted, Driver, Frozen, Identity, Plan, Saved};
use runtime_engine::prepare::{self, CGROUP_PARENT, EngineChoice, Machinery, PreparedHost, SetupOptions};
use runtime_host::cgroup::Limits;
use runtime_model::{SandboxId, Shape};

use crate::stats::{Report, Samples};

#[path = "../../../crates/engine/tests/support/guest.rs"]
#[allow(dead_code, reason = "the tests of the engine use more of it")]
mod guest;
mod hand;

use guest::Guest;
use hand::ByHand;

/// The disk that goes with what was saved.
const KEPT: &str = "kept";
const PYTHON: &str = "python3 -c pass";
/// Until what a guest has freed is given back.
const GIVEN_BACK: Duration = Duration::from_secs(20);
/// One machine, from nothing or from a save to its agent's answer: whatever takes longer hangs.
const HANG: Duration = Duration::from_secs(60);

#[derive(Debug, Args)]
pub struct Options {
    /// A data directory of its own, in this machine's pool: set up if it is not, and gone when it is done.
    #[arg(long, default_value = "/var/lib/runtime/pool/bench-microvm")]
    data_dir: PathBuf,
    /// Leave the data directory as it is, for the next time.
    #[arg(long)]
    keep: bool,
    /// The agent's program, static.
    #[arg(long)]
    agent: PathBuf,
    /// qemu, or firecracker.
    #[arg(long, default_value = "qemu")]
    engine: String,
    #[arg(long, default_value_t = 10)]
    samples: usize,
    #[arg(long, default_value_t = 512)]
    memory_mib: u64,
    /// Instead of measuring: so many boots, and so many restores, of which none may fail or hang.
    #[arg(long, default_value_t = 0)]
    boots: usize,
    #[arg(long, default_value_t = 0)]
    restores: usize,
    /// Of these, so many at a time.
    #[arg(long, default_value_t = 2)]
    at_once: usize,
}

pub fn run(options: &Options) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let result = runtime.block_on(async {
        let engine: EngineChoice = options.engine.parse()?;
        let wanted = SetupOptions { data_dir: options.data_dir.clone(), engine, check_only: false };
        prepare::setup(wanted, &prepare::Silent).await?;
        let rig = Arc::new(Rig::open(options)?);
        if options.boots + options.restores > 0 { rig.soak(options).await } else { measure(&rig, options).await }
    });
    if options.keep { result } else { result.and(clean(&options.data_dir)) }
}

fn clean(data_dir: &std::path::Path) -> Result<()> {
    if let Some(pool) = prepare::Pool::open(data_dir)? {
        pool.wipe()?;
    }
    Ok(std::fs::remove_dir_all(data_dir)?)
}

struct Rig {
    host: PreparedHost,
    driver: Microvm,
    shape: Shape,
    hypervisor: Hypervisor,
    guest: prepare::Guest,
    agent: PathBuf,
}

/// A machine whose agent has answered.
struct Up {
    id: SandboxId,
    machine: Box<dyn Booted>,
    guest: Guest,
}

impl Up {
    async fn greet(id: SandboxId, machine: Box<dyn Booted>) -> Result<Self> {
        let (reader, writer) = machine.dialer().dial()?;
        let identity = machine.identity().clone();
        let guest = Guest::over(reader, writer, &identity, &Rig::name(id)).await;
        Ok(Self { id, machine, guest })
    }
}

impl Rig {
    fn open(options: &Options) -> Result<Self> {
        let engine: EngineChoice = options.engine.parse()?;
        let host = prepare::open(&options.data_dir, engine)?;
        let (hypervisor, guest) = match host.machinery.clone() {
            Machinery::Qemu { qemu, guest, accel } => (Hypervisor::Qemu { qemu, accel }, guest),
            Machinery::Firecracker { firecracker, guest } => (Hypervisor::Firecracker(firecracker), guest),
            Machinery::Gvisor(_) => bail!("gVisor has no machines: --engine qemu or firecracker"),
        };
        let agent = std::fs::read(&options.agent).with_context(|| format!("read {}", options.agent.display()))?;
        let agent = AgentFile::install(&host.data_dir, Box::leak(agent.into_boxed_slice()))?;
        let driver = Microvm::open(MicrovmOptions {
            program: hypervisor.clone(),
            guest: guest.clone(),
            pool: host.pool.clone(),
            cores: host.cores,
            host_memory_mib: host.host_memory_mib,
            data_dir: host.data_dir.clone(),
            run_dir: host.run_dir.clone(),
            cgroups: host.cgroups.clone(),
            cgroup_parent: CGROUP_PARENT.to_owned(),
            shim: std::env::current_exe()?,
            agent,
        })?;
        let shape = Shape { vcpu: 1, memory_mib: options.memory_mib, disk_mib: 2048, ..Shape::default() };
        Ok(Self { host, driver, shape, hypervisor, guest, agent: options.agent.clone() })
    }

    fn name(id: SandboxId) -> String {
        id.into_untyped_uuid().simple().to_string()
    }

    fn plan(&self, id: SandboxId) -> Result<Plan> {
        let name = Self::name(id);
        let root = match self.host.pool.root(&name)? {
            Some(root) => root,
            None => self.driver.make_disk(&self.host.pool, &self.host.base, &name, self.shape.disk_mib)?,
        };
        let limits = Limits {
            memory_bytes: self.shape.memory_mib << 20,
            cpu_quota_millis: 1000,
            // Under contention as much as a process that is in no group: what is by hand is in none.
            cpu_floor_millis: 1000,
            pids: 512,
        };
        let generation = u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos())?;
        let identity = Identity { hostname: "bench".to_owned(), generation, max_user_processes: 100, memory_bytes: 0 };
        Ok(Plan { id, identity, root, shape: self.shape, limits, abort: Default::default() })
    }

    /// On a disk that was used before it boots; on a new one it is a copy of a template.
    async fn up(&self, id: SandboxId) -> Result<Up> {
        let machine = self.driver.boot(self.plan(id)?).await?;
        Up::greet(id, machine).await
    }

    /// With a copy of the disk that was kept with it.
    async fn restored(&self, dir: &std::path::Path) -> Result<Up> {
        let id = SandboxId::new_v4();
        self.host.pool.snapshot_root(KEPT, &Self::name(id))?;
        let saved = Saved { dir: dir.to_owned(), used: dir.to_owned() };
        let machine = self.driver.restore(self.plan(id)?, saved).await?;
        Up::greet(id, machine).await
    }

    async fn end(&self, up: Up) -> Result<()> {
        drop(up.guest);
        up.machine.end().await?;
        self.host.pool.delete_root(&Self::name(up.id))?;
        Ok(())
    }

    /// A machine with a disk that was used, ended; starting it again boots it.
    async fn used(&self) -> Result<SandboxId> {
        let up = self.up(SandboxId::new_v4()).await?;
        up.guest.sh("sync").await;
        let id = up.id;
        drop(up.guest);
        up.machine.end().await?;
        Ok(id)
    }

    async fn frozen(&self, up: Up) -> Result<(SandboxId, Box<dyn Frozen>)> {
        drop(up.guest);
        match up.machine.freeze().await {
            Ok(frozen) => Ok((up.id, frozen)),
            Err(not) => bail!("not frozen: {not:?}"),
        }
    }

    /// Boots and restores until the counts are full, checks each one's agent, and tells what went wrong.
    async fn soak(self: &Arc<Self>, options: &Options) -> Result<()> {
        // The first two make the template, and show that it works.
        for _ in 0..2 {
            let up = self.up(SandboxId::new_v4()).await?;
            self.end(up).await?;
        }
        let workers = options.at_once.max(1);
        for (what, count) in [(Life::Booted, options.boots), (Life::Copied, options.restores)] {
            let began = Instant::now();
            let each = (0..workers).map(|worker| {
                let (rig, share) = (self.clone(), (count + worker) / workers);
                tokio::spawn(async move { rig.lives(what, share).await })
            });
            let (mut samples, mut failures) = (Samples::default(), Vec::new());
            for done in futures_util::future::join_all(each).await {
                for life in done? {
                    match life {
                        Ok(took) => samples.push(took),
                        Err(error) => failures.push(format!("{error:#}")),
                    }
                }
            }
            let [median, late, last] = [50, 99, 100].map(|percent| samples.percentile(percent));
            let (took, failed) = (began.elapsed(), failures.len());
            println!("{count} {what:?} in {took:?}, {failed} failed: median {median:?}, p99 {late:?}, last {last:?}");
            ensure!(failures.is_empty(), "{failures:#?}");
        }
        Ok(())
    }

    /// One after the other; a boot is one of a disk that was used.
    async fn lives(&self, what: Life, count: usize) -> Vec<Result<Duration>> {
        let mut lives = Vec::new();
        let disk = match what {
            Life::Booted => self.used().await.map(Some),
            Life::Copied => Ok(None),
        };
        let disk = match disk {
            Ok(disk) => disk,
            Err(error) => return vec![Err(error)],
        };
        for _ in 0..count {
            let one = async {
                let began = Instant::now();
                let up = self.up(disk.unwrap_or_else(SandboxId::new_v4)).await?;
                ensure!(up.guest.sh("echo $((6 * 7))").await == "42", "a wrong answer");
                let took = began.elapsed();
                match disk {
                    Some(_) => {
                        drop(up.guest);
                        up.machine.end().await?;
                    }
                    None => self.end(up).await?,
                }
                Ok(took)
            };
            lives.push(match tokio::time::timeout(HANG, one).await {
                Ok(life) => life,
                Err(_) => Err(anyhow::anyhow!("hangs")),
            });
        }
        if let Some(id) = disk {
            lives.extend(self.host.pool.delete_root(&Self::name(id)).err().map(|error| Err(error.into())));
        }
        lives
    }
}

#[derive(Debug, Clone, Copy)]
enum Life {
    Booted,
    Copied,
}

async fn measure(rig: &Arc<Rig>, options: &Options) -> Result<()> {
    let mut report = Report::new();
    let hand = ByHand::prepare(rig).await?;
    let count = options.samples.max(1);

    eprintln!("measuring boots ...");
    let (mut product, mut raw) = (Samples::default(), Samples::default());
    let id = rig.used().await?;
    for _ in 0..count {
        let began = Instant::now();
        let up = rig.up(id).await?;
        product.push(began.elapsed());
        drop(up.guest);
        up.machine.end().await?;
        let began = Instant::now();
        let machine = hand.boot().await?;
        raw.push(began.elapsed());
        drop(machine);
    }
    rig.host.pool.delete_root(&Rig::name(id))?;
    report.case("boot -> agent", vec![("driver, with its shim", product), ("QEMU by hand", raw)]);

    eprintln!("measuring copies of a template ...");
    for (name, command) in [("copy -> first true", "true"), ("copy -> first python", PYTHON)] {
        let (mut product, mut raw) = (Samples::default(), Samples::default());
        for _ in 0..count {
            let began = Instant::now();
            let up = rig.up(SandboxId::new_v4()).await?;
            up.guest.sh(command).await;
            product.push(began.elapsed());
            rig.end(up).await?;
            let began = Instant::now();
            let machine = hand.restore().await?;
            machine.sh(command).await?;
            raw.push(began.elapsed());
        }
        report.case(name, vec![("driver, with its shim", product), ("QEMU by hand", raw)]);
    }

    eprintln!("measuring freeze, save, restore ...");
    let mut up = rig.up(SandboxId::new_v4()).await?;
    let mut machine = hand.restore().await?;
    up.guest.sh(PYTHON).await;
    machine.sh(PYTHON).await?;
    let saved = rig.host.pool.dir().join("saved");
    let [mut freeze, mut save, mut thaw] = [(); 3].map(|()| [Samples::default(), Samples::default()]);
    for _ in 0..count {
        let began = Instant::now();
        let (id, frozen) = rig.frozen(up).await?;
        freeze[0].push(began.elapsed());
        let _ = std::fs::remove_dir_all(&saved);
        std::fs::create_dir(&saved)?;
        rig.host.pool.delete_root(KEPT)?;
        let began = Instant::now();
        frozen.saver().save(&saved, &Default::default()).await?;
        rig.host.pool.snapshot_root(&Rig::name(id), KEPT)?;
        save[0].push(began.elapsed());
        let began = Instant::now();
        let thawed = match frozen.thaw().await {
            Ok(thawed) => thawed,
            Err(still) => bail!("not thawed: {still:?}"),
        };
        up = Up::greet(id, thawed).await?;
        thaw[0].push(began.elapsed());

        let began = Instant::now();
        machine.freeze()?;
        freeze[1].push(began.elapsed());
        let began = Instant::now();
        machine.save(&hand)?;
        save[1].push(began.elapsed());
        let began = Instant::now();
        machine.thaw().await?;
        thaw[1].push(began.elapsed());
    }
    rig.end(up).await?;
    drop(machine);
    let named = |[product, raw]: [Samples; 2]| vec![("driver, with its shim", product), ("QEMU by hand", raw)];
    report.case("freeze", named(freeze));
    report.case("save, whole and durable", named(save));
    report.case("thaw -> agent", named(thaw));
    for forks in [1, 8] {
        let mut wall = [Samples::default(), Samples::default()];
        for _ in 0..(count / forks).max(3) {
            let began = Instant::now();
            let ups = (0..forks).map(|_| rig.restored(&saved));
            let ups = futures_util::future::try_join_all(ups).await?;
            wall[0].push(began.elapsed());
            for up in ups {
                rig.end(up).await?;
            }
            let began = Instant::now();
            let machines = futures_util::future::try_join_all((0..forks).map(|_| hand.fork())).await?;
            wall[1].push(began.elapsed());
            drop(machines);
        }
        report.case(&format!("restore, fork of {forks} -> agents"), named(wall));
    }

    eprintln!("measuring ten at once ...");
    let mut wall = [Samples::default(), Samples::default()];
    let [mut private, mut private_raw] = [Vec::new(), Vec::new()];
    for _ in 0..3 {
        let began = Instant::now();
        let ups = futures_util::future::try_join_all((0..10).map(|_| rig.up(SandboxId::new_v4()))).await?;
        wall[0].push(began.elapsed());
        private = ups.iter().map(|up| hand::private_kib(vmm_of(rig, up.id)?)).collect::<Result<Vec<_>>>()?;
        for up in ups {
            rig.end(up).await?;
        }
        let began = Instant::now();
        let machines = futures_util::future::try_join_all((0..10).map(|_| hand.restore())).await?;
        wall[1].push(began.elapsed());
        private_raw = machines.iter().map(|machine| hand::private_kib(machine.pid())).collect::<Result<Vec<_>>>()?;
    }
    report.case("10 copies at once, wall", named(wall));

    eprintln!("measuring memory that is given back ...");
    let up = rig.up(SandboxId::new_v4()).await?;
    let pid = vmm_of(rig, up.id)?;
    let before = hand::private_kib(pid)?;
    up.guest.sh("python3 -c 'b = bytearray(b\"x\" * (200 << 20))'").await;
    let used = hand::private_kib(pid)?;
    let end = Instant::now() + GIVEN_BACK;
    let mut after = used;
    while Instant::now() < end && after > before + (used - before) / 4 {
        tokio::time::sleep(Duration::from_millis(200)).await;
        after = after.min(hand::private_kib(pid)?);
    }
    let took = GIVEN_BACK.saturating_sub(end.saturating_duration_since(Instant::now()));
    rig.end(up).await?;
    let mean = |kib: &[u64]| kib.iter().sum::<u64>() / kib.len().max(1) as u64 / 1024;
    print!("{report}");
    println!("private memory of each of ten idle copies: {} MiB; by hand {} MiB", mean(&private), mean(&private_raw));
    let [before, used, after] = [before, used, after].map(|kib| kib / 1024);
    println!(
        "of one that used 200 MiB and freed them: {before} MiB before, {used} MiB then, {after} MiB {took:.1?} later"
    );
    Ok(())
}

fn vmm_of(rig: &Rig, id: SandboxId) -> Result<u32> {
    let path = rig.host.data_dir.join("sandboxes").join(Rig::name(id)).join("machine.json");
    let record: serde_json::Value = serde_json::from_slice(&std::fs::read(path)?)?;
    Ok(u32::try_from(record["vmm"]["pid"].as_u64().context("a record without a machine")?)?)
}
