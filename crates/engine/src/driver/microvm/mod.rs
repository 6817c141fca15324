//! microVMs: each sandbox a virtual machine with a kernel of its own, run by Firecracker or by QEMU's `microvm` machine
//! ([`vmm`]), without any privilege.
//!
//! ```text
//!   no disk yet, template there ──clone disk, restore──> running      (tens of milliseconds)
//!   else                        ──boot kernel──────────> running      (seconds where it is emulated)
//! ```
//!
//! A machine's disk is one sparse file with an ext4 in it, which the guest lays over the read-only base image. As with
//! every driver, a shim holds the machine and outlives the server.

use std::collections::HashSet;
use std::fs;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use newtype_uuid::GenericUuid;
use runtime_host::cgroup::{Group, Layout, Limits};
use runtime_host::fifo;
use runtime_model::{SandboxId, Shape};
use tokio::net::UnixStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::machine::{Keeper, Machine, Parts, Tie};
use super::places::{Places, blocking, make_dir, paths};
use super::record;
use super::{Adopted, Booted, Dial, Driver, DriverError, Identity, Plan, RestoreError, Save, Saved};
use crate::agent_file::AgentFile;
use crate::host_state::host_name;
use crate::prepare::{Accel, Base, Firecracker, Guest, Pool, Qemu};
use crate::shim::wire::Say;
use crate::shim::{Kind, Spec};

mod build;
mod clean;
mod disk;
mod firecracker;
pub(crate) mod launch;
mod qemu;
mod saved;
mod template;
pub(crate) mod vmm;

use disk::{clone_disk, in_place, make_disk_file};
use launch::{Launch, Memory, Start, VmMachine};
use template::{Key, Template, Templates};
use vmm::{At, Early, Program};

/// A start that takes longer than this will not come.
const START_LIMIT: Duration = Duration::from_secs(90);
/// A shim that an earlier server left in the middle of a start.
const ADOPT_LIMIT: Duration = Duration::from_secs(10);
/// The first of the user ids that machines run as; no system gives these to anybody.
const FIRST_UID: u32 = 1_000_000_000;
const UIDS: u32 = 1 << 29;
/// A sandbox's disk in its directory in the pool.
const DISK: &str = "disk.ext4";
const CPUS: &str = "/proc/cpuinfo";
/// Beside it, what the machine writes of itself.
const OUTBOX: &str = "out";
/// The quota on that directory, as a multiple of the disk: only a far guard, since the file system inside is what
/// limits, and the host must never be the one to refuse a block that the guest believes to have.
const QUOTA: u64 = 4;

/// What runs the machines.
#[derive(Debug, Clone)]
pub enum Hypervisor {
    Qemu {
        qemu: Qemu,
        accel: Accel,
    },
    /// Only by KVM.
    Firecracker(Firecracker),
}

#[derive(Debug)]
pub struct MicrovmOptions {
    pub program: Hypervisor,
    pub guest: Guest,
    pub pool: Pool,
    pub cores: u32,
    pub host_memory_mib: u64,
    pub data_dir: PathBuf,
    /// Short: socket paths have 107 bytes.
    pub run_dir: PathBuf,
    pub cgroups: Layout,
    pub cgroup_parent: String,
    /// The program whose [`crate::shim::SUBCOMMAND`] is [`crate::shim::shim_main`].
    pub shim: PathBuf,
    pub agent: AgentFile,
}

#[derive(Clone)]
pub struct Microvm {
    inner: Arc<Inner>,
    /// Makes the template that nearly every sandbox is a copy of; ends with the last handle.
    _warming: Arc<Mutex<Option<AbortOnDropHandle<()>>>>,
}

struct Inner {
    options: MicrovmOptions,
    cgroup_prefix: String,
    program: Program,
    initramfs: PathBuf,
    key: Key,
    templates: Templates,
    /// Machines that become templates: not sandboxes, though they look like some on the host.
    building: Mutex<HashSet<SandboxId>>,
}

impl Microvm {
    /// Waits a little to measure the processor, so it belongs off the async threads.
    pub fn open(options: MicrovmOptions) -> Result<Self, DriverError> {
        make_dir(&options.data_dir.join("sandboxes"))?;
        let name = options.run_dir.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let tsc_khz = runtime_host::clock::tsc_khz();
        let (program, version, accel) = match options.program.clone() {
            Hypervisor::Qemu { qemu, accel } => {
                (Program::Qemu(qemu::Qemu { path: qemu.path, accel, tsc_khz }), qemu.version, accel)
            }
            Hypervisor::Firecracker(found) => {
                let release = found.release();
                let program = firecracker::Firecracker { path: found.path, jailer: found.jailer, release };
                (Program::Firecracker(program), found.version, Accel::Kvm)
            }
        };
        let key = Key {
            version: format!("{} {version}", program.vmm().name()),
            accel: accel.name(),
            cpu: match accel {
                Accel::Kvm => template::cpu(
                    &fs::read_to_string(CPUS).map_err(|e| DriverError::new("read the processors in", CPUS, e))?,
                ),
                // An emulated one is QEMU's.
                Accel::Tcg => String::new(),
            },
            tsc_10mhz: (tsc_khz + 5_000) / 10_000,
            kernel: options.guest.meta.digest.clone(),
            base: options.guest.meta.base.clone(),
            agent: options.agent.digest().to_owned(),
            ..Key::new()
        };
        let inner = Inner {
            initramfs: install_initramfs(&options)?,
            templates: Templates::open(options.pool.dir().join("templates"), &key)?,
            cgroup_prefix: format!("{name}-"),
            building: Mutex::default(),
            program,
            key,
            options,
        };
        Ok(Self { inner: Arc::new(inner), _warming: Arc::default() })
    }

    /// Begins to make the template of this size.
    pub fn warm(&self, shape: Shape) {
        let inner = self.inner.clone();
        let work = tokio::spawn(async move { drop(inner.template(&shape, true).await) });
        *self._warming.lock().unwrap_or_else(PoisonError::into_inner) = Some(AbortOnDropHandle::new(work));
    }
}

/// The first file system with this agent, by its digest like the agent itself.
fn install_initramfs(options: &MicrovmOptions) -> Result<PathBuf, DriverError> {
    let name = format!("{}-{}.initramfs", options.agent.digest(), options.guest.meta.digest);
    let path = options.data_dir.join("agent").join(name);
    if path.exists() {
        return Ok(path);
    }
    let fail = |e| DriverError::new("write", path.display(), e);
    let agent = fs::read(options.agent.path()).map_err(|e| DriverError::new("read the agent", path.display(), e))?;
    let content = options
        .guest
        .initramfs(&agent)
        .map_err(|e| DriverError::new("make the first file system", path.display(), e))?;
    let new = path.with_extension("new");
    fs::write(&new, content).map_err(fail)?;
    // Every machine reads it, as a user of its own.
    fs::set_permissions(&new, std::os::unix::fs::PermissionsExt::from_mode(0o444)).map_err(fail)?;
    fs::File::open(&new).and_then(|file| file.sync_all()).map_err(fail)?;
    fs::rename(&new, &path).map_err(fail)?;
    Ok(path)
}

impl Inner {
    fn places(&self, id: SandboxId) -> Places {
        Places::new(&self.options.run_dir, &self.options.data_dir, id)
    }

    fn cgroup(&self, id: SandboxId) -> String {
        format!("{}{}", self.cgroup_prefix, host_name(id))
    }

    fn quota_mib(&self, disk_mib: u64) -> u64 {
        // What is saved of a machine lies there for a moment too.
        disk_mib.saturating_mul(QUOTA).saturating_add(self.options.host_memory_mib)
    }

    fn vcpu(&self, shape: &Shape) -> u32 {
        shape.vcpu.min(self.options.cores).max(1)
    }

    fn launch(&self, id: SandboxId, shape: &Shape, limits: Limits, disk: PathBuf) -> Launch {
        // The random end of the id: two machines with one user id would still be apart, only less so.
        let random = id.into_untyped_uuid().as_u128() as u32;
        let memory_bytes = limits.memory_bytes.saturating_add(self.program.vmm().overhead_bytes());
        Launch {
            program: self.program.clone(),
            outbox: disk.with_file_name(OUTBOX),
            memory_mib: shape.memory_mib,
            vcpu: self.vcpu(shape),
            uid: FIRST_UID + random % UIDS,
            bounds: Limits { memory_bytes, ..limits }.into(),
            base: self.options.guest.base_disk(),
            disk,
            memory: Memory::Own,
            start: Start::Cold { kernel: self.options.guest.kernel(), initramfs: self.initramfs.clone() },
            template: false,
        }
    }

    /// The template of this size, made if it is worth it.
    async fn template(self: &Arc<Self>, shape: &Shape, wanted: bool) -> Option<(Key, Arc<Template>)> {
        let key = self.key.sized(shape, self.vcpu(shape));
        let template = self.templates.get(&key, wanted, async || self.build(&key, shape).await).await?;
        Some((key, template))
    }

    fn spec(&self, id: SandboxId, identity: &Identity, launch: Launch, adopt: bool) -> Spec {
        Spec {
            id: host_name(id),
            kind: Kind::Microvm(Box::new(launch)),
            places: self.places(id),
            cgroup_parent: self.options.cgroup_parent.clone(),
            cgroup: self.cgroup(id),
            agent: self.options.agent.digest().to_owned(),
            identity: identity.clone(),
            adopt,
            // The launch says it.
            restore: None,
        }
    }

    /// Starts a shim with this machine, and returns once the machine runs. What a failure leaves is the caller's to
    /// clean.
    async fn start(
        &self,
        id: SandboxId,
        identity: &Identity,
        launch: Launch,
        abort: &CancellationToken,
    ) -> Result<(Tie, Arc<dyn Dial>), DriverError> {
        let spec = self.spec(id, identity, launch, false);
        let (places, program) = (spec.places.clone(), self.program.clone());
        let (socket, early) = blocking(move || lay_out(&spec, &program)).await?;
        let (handed, first) = match early {
            Some(Early { handed, first }) => (handed.into(), Some(first)),
            None => (Stdio::null(), None),
        };
        let mut tie = places.start_shim(&self.options.shim, socket, handed).await?;
        let said = tokio::select! {
            biased;
            // What is under way is swept by the caller, with its shim.
            () = abort.cancelled() => return Err(unwanted(id)),
            said = tokio::time::timeout(START_LIMIT, tie.next()) => said,
        };
        match said {
            Ok(Some(Say::Running { create_ms, start_ms, .. })) => {
                tracing::debug!(sandbox = %id, create_ms, start_ms, "virtual machine started");
                let machine = self.living_machine(&places)?;
                let machine = machine.ok_or_else(|| DriverError::new("start sandbox", id, "it ended at once"))?;
                Ok((tie, self.dialer(&places, &machine, first)?))
            }
            Ok(Some(Say::Ended(end))) => Err(DriverError::new("start sandbox", id, end.cause)),
            Ok(_) => Err(DriverError::new("start sandbox", id, "its shim ended without a word")),
            Err(_) => Err(DriverError::new("start sandbox", id, "its shim did not finish in time")),
        }
    }

    fn dialer(
        &self,
        places: &Places,
        machine: &VmMachine,
        first: Option<std::os::unix::net::UnixStream>,
    ) -> Result<Arc<dyn Dial>, DriverError> {
        let at = At { run_dir: &places.run_dir, process: machine.vmm.into() };
        machine.launch.program.vmm().dial(&at, first)
    }

    /// `None` is certain: whatever may be a passing trouble of the host is an error.
    fn living_machine(&self, places: &Places) -> Result<Option<VmMachine>, DriverError> {
        let path = places.machine_dir.join(record::MACHINE);
        let read = record::read(&path).map_err(|e| DriverError::new("read", path.display(), e))?;
        let Some(machine): Option<VmMachine> = read else { return Ok(None) };
        let boot = runtime_host::process::boot_id().map_err(|e| DriverError::new("read", "the boot id", e))?;
        let vmm = runtime_host::process::ProcessId::from(machine.vmm);
        let alive = vmm.alive().map_err(|e| DriverError::new("look at process", vmm.pid, e))?;
        Ok((boot == machine.boot_id && alive).then_some(machine))
    }
}

/// Everything a shim finds when it starts: its own socket, and the guest's channel as far as it is made in advance.
fn lay_out(spec: &Spec, program: &Program) -> Result<(OwnedFd, Option<Early>), DriverError> {
    let places = &spec.places;
    places.make()?;
    let path = places.run_dir.join(paths::COMPLAINTS);
    fifo::make(&path).map_err(|e| DriverError::new("make the pipe", path.display(), e))?;
    let early = program.vmm().channel(&places.run_dir)?;
    let socket = places.listen_for_shim(spec)?;
    Ok((socket, early))
}

impl Microvm {
    fn parts(
        &self,
        id: SandboxId,
        identity: Identity,
        tie: Option<Tie>,
        dialer: Arc<dyn Dial>,
    ) -> Result<Parts, DriverError> {
        let options = &self.inner.options;
        let name = self.inner.cgroup(id);
        let group = Group::open(&options.cgroups, &options.cgroup_parent, &name)
            .map_err(|e| DriverError::new("open the control group", &name, e))?
            .ok_or_else(|| DriverError::new("open the control group", &name, "there is none"))?;
        Ok(Parts { keeper: Arc::new(self.clone()), id, identity, group, dialer, tie })
    }

    async fn boot_machine(&self, plan: Plan) -> Result<Parts, DriverError> {
        let Plan { id, mut identity, root, shape, limits, abort } = plan;
        let disk = root.join(DISK);
        let mut launch = self.inner.launch(id, &shape, limits, disk.clone());
        identity.memory_bytes = Limits::from(launch.bounds).memory_bytes;
        // A kept disk is no template's any more: its machine boots.
        let template = if disk.exists() {
            None
        } else {
            tokio::select! {
                biased;
                // One that is being made is made nevertheless, if anybody else waits for it.
                () = abort.cancelled() => return Err(unwanted(id)),
                template = self.inner.template(&shape, false) => template,
            }
        };
        if let Some((key, template)) = template {
            blocking({
                let (template, disk) = (template.clone(), disk.clone());
                move || clone_disk(&template.disk(), &disk)
            })
            .await?;
            let cold = launch.clone();
            launch.memory = Memory::Template(template.memory());
            launch.start = Start::Restore { state: template.state(), spends: None };
            let started = self.inner.start(id, &identity, launch, &abort).await;
            match started {
                Ok((tie, channel)) => return self.parts(id, identity, Some(tie), channel),
                Err(error) if abort.is_cancelled() => return Err(error),
                Err(error) => {
                    let error = crate::host_state::chain(&error);
                    tracing::warn!(sandbox = %id, error, "a template does not work and is dropped; the machine boots");
                    self.inner.templates.discard(&key);
                    Driver::clean(self, id).await?;
                    let gone = disk.clone();
                    blocking(move || fs::remove_file(&gone).map_err(|e| DriverError::new("remove", gone.display(), e)))
                        .await?;
                    launch = cold;
                }
            }
        }
        let fresh = disk.clone();
        blocking(move || if fresh.exists() { Ok(()) } else { make_disk_file(&fresh, shape.disk_mib) }).await?;
        let (tie, channel) = self.inner.start(id, &identity, launch, &abort).await?;
        self.parts(id, identity, Some(tie), channel)
    }
}

fn unwanted(id: SandboxId) -> DriverError {
    DriverError::new("start sandbox", id, "it is no longer wanted")
}

#[async_trait]
impl Driver for Microvm {
    fn name(&self) -> &'static str {
        self.inner.program.vmm().name()
    }

    fn emulated(&self) -> bool {
        self.inner.program.vmm().emulates()
    }

    fn make_disk(&self, pool: &Pool, _: &Base, name: &str, disk_mib: u64) -> Result<PathBuf, DriverError> {
        pool.create_empty_root(name, self.inner.quota_mib(disk_mib))
            .map_err(|e| DriverError::new("make the disk", name, e))
    }

    /// The file grows now, the file system in it at the next start.
    fn limit_disk(&self, pool: &Pool, name: &str, disk_mib: u64) -> Result<(), DriverError> {
        let root = pool.root(name).map_err(|e| DriverError::new("limit the disk", name, e))?;
        let root = root.ok_or_else(|| DriverError::new("limit the disk", name, "there is none"))?;
        let path = root.join(DISK);
        let fail = |e| DriverError::new("limit the disk", path.display(), e);
        let file = fs::File::options().write(true).open(&path).map_err(fail)?;
        let (held, wanted) = (file.metadata().map_err(fail)?.len(), disk_mib << 20);
        if wanted < held {
            let why = format!("it has {} MiB, and the disk of a microVM only grows", held >> 20);
            return Err(DriverError::new("limit the disk", name, why));
        }
        pool.set_limit(name, self.inner.quota_mib(disk_mib))
            .map_err(|e| DriverError::new("limit the disk", name, e))?;
        file.set_len(wanted).map_err(fail)
    }

    async fn boot(&self, plan: Plan) -> Result<Box<dyn Booted>, DriverError> {
        let id = plan.id;
        match self.boot_machine(plan).await {
            Ok(parts) => Ok(Machine::booted(parts)),
            Err(error) => {
                Driver::clean(self, id).await?;
                Err(error)
            }
        }
    }

    fn pauses(&self) -> bool {
        true
    }

    /// The guest's kernel has a page cache, which no disk on the host sees.
    fn holds_writes(&self) -> bool {
        true
    }

    async fn restore(&self, plan: Plan, from: Saved) -> Result<Box<dyn Booted>, RestoreError> {
        self.restored(plan, from).await
    }

    async fn adopt(&self, id: SandboxId) -> Result<Option<Adopted>, DriverError> {
        let places = self.inner.places(id);
        // A machine without a shim that answers gets one in its own time: what counts is whether its QEMU runs.
        let mut tie = UnixStream::connect(places.run_dir.join(paths::SOCKET)).await.ok().map(|s| Tie::new(s, None));
        let mut stands_still = None;
        if let Some(held) = &mut tie {
            match tokio::time::timeout(ADOPT_LIMIT, held.next()).await {
                Ok(Some(Say::Ended(_))) => return Ok(None),
                Ok(Some(Say::Running { frozen, .. })) => stands_still = Some(frozen),
                // A shim that died with its server may still take one connection.
                Ok(None) => tie = None,
                Ok(Some(_)) | Err(_) => {}
            }
        }
        let machine = self.inner.living_machine(&places)?;
        let Some(machine) = machine.filter(|machine| !machine.launch.template) else { return Ok(None) };
        let stands_still = match stands_still {
            Some(known) => known,
            None => self.inner.tell(id, "look at", |launch, at| launch.program.vmm().is_paused(at)).await?,
        };
        let dialer = self.inner.dialer(&places, &machine, None)?;
        let parts = self.parts(id, machine.identity, tie, dialer)?;
        Ok(Some(if stands_still {
            Adopted::Frozen(Machine::frozen(parts))
        } else {
            Adopted::Booted(Machine::booted(parts))
        }))
    }

    async fn trail(&self) -> Result<Vec<SandboxId>, DriverError> {
        let inner = self.inner.clone();
        blocking(move || inner.trail()).await
    }

    async fn clean(&self, id: SandboxId) -> Result<(), DriverError> {
        let inner = self.inner.clone();
        blocking(move || inner.clean(id)).await
    }
}

#[async_trait]
impl Keeper for Microvm {
    async fn replace_shim(&self, id: SandboxId) -> Result<Option<Tie>, DriverError> {
        let places = self.inner.places(id);
        let Some(machine) = self.inner.living_machine(&places)? else { return Ok(None) };
        let spec = self.inner.spec(id, &machine.identity, machine.launch, true);
        let socket = places.listen_for_shim(&spec)?;
        places.start_shim(&self.inner.options.shim, socket, Stdio::null()).await.map(Some)
    }

    fn saver(&self, id: SandboxId, _: &Identity) -> Arc<dyn Save> {
        self.saver_of(id)
    }

    async fn clean(&self, id: SandboxId) -> Result<(), DriverError> {
        Driver::clean(self, id).await
    }
}
