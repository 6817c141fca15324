//! A host for one test: a data directory of its own in this machine's pool, the real `runsc`, the real agent.

#![allow(dead_code, reason = "each test binary uses a part")]

pub mod guest;

use std::path::{Path, PathBuf};
use std::process::Command as HostCommand;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use newtype_uuid::GenericUuid;
use runtime_engine::prepare::kvm::{self, Prober};
use runtime_engine::prepare::{self, EngineChoice, Firecracker, Machinery, PreparedHost};
use runtime_engine::{Engine, EngineConfig};
use runtime_model::{SandboxId, Shape};
use runtime_proto::egress::{Egress, Rules};
use runtime_proto::guest::{Ask, Command, Exec, ExecDone, Request, Spawn, Tell, User};
use runtime_proto::handshake::wall_clock_ns;
use runtime_proto::node::{Disk, Node, NodeError, Order};

/// Longer than anything takes here, whatever else this machine does: only a hang is longer.
const PATIENCE: Duration = Duration::from_secs(120);

/// Where this machine keeps its pool; test directories in it share its base image.
const MACHINE_POOL: &str = "/var/lib/runtime/pool";

/// The engine starts its own program as `shim <directory>`. Here that is this test binary, which takes both words for
/// filters and runs this one test with them; in an ordinary run there is nothing for it to do.
#[test]
#[expect(clippy::disallowed_methods, reason = "in that role the process is the shim, and this its main")]
fn shim() {
    let mut words = std::env::args_os().skip(1);
    if words.next().is_some_and(|word| word == runtime_engine::shim::SUBCOMMAND)
        && let Some(dir) = words.next().filter(|dir| Path::new(dir).is_absolute())
    {
        let code = runtime_engine::shim::shim_main([dir]);
        std::process::exit(i32::from(code != std::process::ExitCode::SUCCESS));
    }
}

/// What `date +%s%N` says inside lies between before and after. Half a second is more than a crowded host takes from the
/// one to the other, and less than any machine stands still or boots.
pub async fn has_the_time(date: impl Future<Output = String>) {
    const SLACK: u64 = 500_000_000;
    let before = wall_clock_ns();
    let inside: u64 = date.await.parse().unwrap();
    let after = wall_clock_ns();
    assert!((before - SLACK..=after + SLACK).contains(&inside), "{inside} inside, {before} to {after} outside");
}

/// The static agent of this work tree.
#[expect(clippy::disallowed_methods, reason = "a test binary has no other edge at which to read it")]
pub fn agent() -> &'static [u8] {
    static AGENT: OnceLock<Vec<u8>> = OnceLock::new();
    AGENT.get_or_init(|| {
        let path = std::env::var_os("RUNTIME_TEST_AGENT").map_or_else(build_agent, PathBuf::from);
        std::fs::read(&path).unwrap_or_else(|error| panic!("cannot read the agent {}: {error}", path.display()))
    })
}

fn build_agent() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let exe = std::env::current_exe().unwrap();
    // Beside what this test was built into, but apart: its flags are its own.
    let target = exe.ancestors().nth(3).unwrap().join("agent-for-tests");
    let triple = "x86_64-unknown-linux-gnu";
    let status = HostCommand::new(env!("CARGO"))
        .args(["build", "--locked", "--quiet", "-p", "runtime-agent", "--profile", "agent", "--target", triple])
        .current_dir(root)
        .env("CARGO_TARGET_DIR", &target)
        .env("CARGO_BUILD_BUILD_DIR", &target)
        .env("RUSTFLAGS", "-C target-feature=+crt-static")
        .status()
        .unwrap();
    assert!(status.success(), "the agent does not build");
    target.join(triple).join("agent/runtime-agent")
}

/// Removes everything at the end, also when the test failed.
pub struct Host {
    pub prepared: PreparedHost,
    dir: tempfile::TempDir,
}

impl Host {
    pub fn new() -> Self {
        Self::with(EngineChoice::Gvisor)
    }

    pub fn with(engine: EngineChoice) -> Self {
        let dir = tempfile::Builder::new().prefix("engine-test-").tempdir_in(MACHINE_POOL).unwrap();
        let prepared = prepare::open(dir.path(), engine).expect("this machine must be prepared: runtime setup");
        Self { prepared, dir }
    }

    /// The Firecracker that `RUNTIME_FIRECRACKER` names.
    #[expect(clippy::disallowed_methods, reason = "a test binary has no other edge at which to read it")]
    pub fn firecracker() -> Self {
        let mut host = Self::with(EngineChoice::Qemu);
        let program = PathBuf::from(std::env::var_os("RUNTIME_FIRECRACKER").expect("RUNTIME_FIRECRACKER"));
        let firecracker = Firecracker::at(&program, &program.with_file_name("jailer")).unwrap();
        let Machinery::Qemu { guest, .. } = host.prepared.machinery.clone() else { panic!("not QEMU") };
        let answer = kvm::ask(host.dir.path(), &Prober::Firecracker(firecracker.clone()), &guest).unwrap();
        assert!(answer.proven, "{}", answer.words);
        host.prepared.machinery = Machinery::Firecracker { firecracker, guest };
        host
    }

    pub fn data_dir(&self) -> &Path {
        self.dir.path()
    }

    pub fn run_dir(&self) -> &Path {
        &self.prepared.run_dir
    }

    pub async fn open(&self) -> Engine {
        self.open_with(agent()).await
    }

    pub async fn open_with(&self, agent: &'static [u8]) -> Engine {
        self.open_as(|config| EngineConfig { max_user_processes: 400, ..config }, agent).await
    }

    pub async fn open_with_egress(&self, egress: Arc<dyn Egress>) -> Engine {
        self.open_as(|config| EngineConfig { max_user_processes: 400, egress, ..config }, agent()).await
    }

    async fn open_as(&self, change: impl FnOnce(EngineConfig) -> EngineConfig, agent: &'static [u8]) -> Engine {
        let mut config = EngineConfig::new(self.prepared.clone(), agent).unwrap();
        config.warm_shape = order(new_id(), Disk::New).shape;
        Engine::open(change(config)).await.unwrap()
    }

    pub fn save_dir(&self, id: SandboxId) -> PathBuf {
        self.prepared.pool.dir().join("save").join(hex(id))
    }

    /// What is saved of a sandbox, whole or not, in order of its names.
    pub fn saves(&self, id: SandboxId) -> Vec<String> {
        let entries = std::fs::read_dir(self.save_dir(id)).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    pub fn machine_file(&self, id: SandboxId) -> serde_json::Value {
        let path = self.data_dir().join("sandboxes").join(hex(id)).join("machine.json");
        serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
    }

    pub fn pid(&self, id: SandboxId, which: &str) -> u32 {
        self.machine_file(id)[which]["pid"].as_u64().unwrap().try_into().unwrap()
    }

    /// Kills a process of a machine and waits until it is dead, so that nothing of it is met by what comes next.
    pub async fn kill(&self, id: SandboxId, which: &str) {
        let pid = self.pid(id, which);
        // One of them may have gone with another.
        let Some(process) = runtime_host::process::ProcessId::of(pid) else { return };
        let _ = runtime_host::process::kill(pid);
        eventually("it is dead", async || (!process.is_alive()).then_some(())).await;
    }

    /// Waits until exactly this is left of the sandboxes of this host: a process that ends is seen for a moment more.
    pub async fn only(&self, expected: &[String]) {
        let end = Instant::now() + PATIENCE;
        loop {
            let left = self.left();
            if left == expected {
                return;
            }
            assert!(Instant::now() < end, "expected {expected:?}, but this is left: {left:#?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// What there is of any sandbox of this host, in words.
    pub fn left(&self) -> Vec<String> {
        let mut left = Vec::new();
        let marker = self.run_dir().as_os_str().to_str().unwrap();
        for (pid, words) in runtime_host::process::all() {
            let line = words.iter().map(|word| String::from_utf8_lossy(word)).collect::<Vec<_>>().join(" ");
            if line.contains(marker) && runtime_host::process::ProcessId::of(pid).is_some() {
                left.push(format!("process {pid}: {line}"));
            }
        }
        let prefix = self.run_dir().file_name().unwrap().to_str().unwrap();
        for group in self.prepared.cgroups.children(prepare::CGROUP_PARENT) {
            if group.starts_with(prefix) {
                left.push(format!("control group {group}"));
            }
        }
        for dir in [
            self.run_dir().to_owned(),
            self.run_dir().join("runsc"),
            self.data_dir().join("sandboxes"),
            self.data_dir().join("starting"),
        ] {
            for entry in std::fs::read_dir(&dir).into_iter().flatten().flatten() {
                if entry.file_name() != "runsc" {
                    left.push(format!("file {}", entry.path().display()));
                }
            }
        }
        for root in self.prepared.pool.roots().unwrap() {
            left.push(format!("disk {root}"));
        }
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        left.extend(mounts.lines().filter(|line| line.contains(marker)).map(|line| format!("mount {line}")));
        left
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let marker = self.run_dir().to_string_lossy().into_owned();
        for _ in 0..200 {
            let ours = |words: &[Vec<u8>]| words.iter().any(|word| String::from_utf8_lossy(word).contains(&marker));
            let mut pids: Vec<u32> =
                runtime_host::process::all().into_iter().filter(|(_, words)| ours(words)).map(|(pid, _)| pid).collect();
            pids.retain(|pid| runtime_host::process::ProcessId::of(*pid).is_some());
            if pids.is_empty() {
                break;
            }
            for pid in pids {
                let _ = runtime_host::process::kill(pid);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let prefix = self.run_dir().file_name().unwrap().to_string_lossy().into_owned();
        for name in self.prepared.cgroups.children(prepare::CGROUP_PARENT) {
            if name.starts_with(&prefix)
                && let Ok(Some(group)) =
                    runtime_host::cgroup::Group::open(&self.prepared.cgroups, prepare::CGROUP_PARENT, &name)
            {
                let _ = group.kill_all();
                let _ = group.remove(Duration::from_secs(5));
            }
        }
        let _ = self.prepared.pool.wipe();
        let _ = std::fs::remove_dir_all(self.run_dir());
    }
}

pub fn hex(id: SandboxId) -> String {
    id.into_untyped_uuid().simple().to_string()
}

pub fn new_id() -> SandboxId {
    SandboxId::from_untyped_uuid(uuid::Uuid::now_v7())
}

pub fn order(id: SandboxId, disk: Disk) -> Order {
    let shape = Shape { memory_mib: 512, disk_mib: 3072, ..Shape::default() };
    Order { id, shape, hostname: "box".to_owned(), disk, rules: Rules::closed() }
}

/// Starts a new sandbox.
pub async fn create(engine: &Engine) -> SandboxId {
    let id = new_id();
    engine.start(order(id, Disk::New)).await.unwrap();
    id
}

pub async fn exec_as(engine: &Engine, id: SandboxId, user: User, shell: &str) -> Result<ExecDone, NodeError> {
    exec_for(engine, id, user, 60_000, shell).await
}

pub async fn exec_for(
    engine: &Engine,
    id: SandboxId,
    user: User,
    timeout_ms: u64,
    shell: &str,
) -> Result<ExecDone, NodeError> {
    let command = Command { shell: Some(shell.to_owned()), user: user as i32, timeout_ms, ..Command::default() };
    let exec = Exec { command: Some(command), head_limit: 1 << 20, has_stdin: false };
    let mut stream = engine.ask(id, Request::new(Ask::Exec(exec))).await?;
    let (mut out, mut err) = (Vec::new(), Vec::new());
    loop {
        match stream.next().await {
            Ok(Some(Tell::Chunk(chunk))) => if chunk.stream == 0 { &mut out } else { &mut err }.extend(chunk.data),
            Ok(Some(Tell::ExecDone(mut done))) => {
                out.extend_from_slice(&done.stdout);
                err.extend_from_slice(&done.stderr);
                (done.stdout, done.stderr) = (out.into(), err.into());
                return Ok(done);
            }
            Ok(other) => panic!("the agent answered {other:?}"),
            Err(error) => return Err(NodeError::Failed(error.to_string())),
        }
    }
}

/// Starts a process that nothing waits for.
pub async fn spawn(engine: &Engine, id: SandboxId, shell: &str) {
    let command = Command { shell: Some(shell.to_owned()), ..Command::default() };
    let spawn = Spawn { command: Some(command), ..Spawn::default() };
    let mut stream = engine.ask(id, Request::new(Ask::Spawn(spawn))).await.unwrap();
    assert!(matches!(stream.next().await, Ok(Some(Tell::Process(_)))));
}

/// Standard output of a command that must succeed, without the last newline.
pub async fn sh(engine: &Engine, id: SandboxId, shell: &str) -> String {
    run(engine, id, User::Sandbox, shell).await
}

pub async fn sh_root(engine: &Engine, id: SandboxId, shell: &str) -> String {
    run(engine, id, User::Root, shell).await
}

async fn run(engine: &Engine, id: SandboxId, user: User, shell: &str) -> String {
    let done = exec_as(engine, id, user, shell).await.unwrap();
    let code = done.process.and_then(|process| process.exit_code);
    let text = String::from_utf8_lossy(&done.stdout).trim_end().to_owned();
    assert_eq!(code, Some(0), "{shell}: {text} {}", String::from_utf8_lossy(&done.stderr));
    text
}

/// Waits for a value, for as long as a busy machine may need.
pub async fn eventually<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = look().await {
            return value;
        }
        assert!(Instant::now() < end, "this did not come true: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
