//! The host, prepared: what must be true of a machine before a sandbox can run on it.
//!
//! [`setup`] makes it true, step by step: rights, kernel, packages, the disk pool, the base image, control groups.
//! Each step looks first and changes only what is missing, so a second run changes nothing and a run after a crash
//! goes on where the last one ended. [`open`] is what a starting server calls: it mounts the pool again after a
//! reboot and otherwise only checks; its errors name the command that repairs.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use runtime_host::btrfs::BtrfsError;
use runtime_host::cgroup::{self, CgroupError};
use runtime_host::lock::LockError;
use runtime_host::loopdev::LoopError;

use kvm::Prober;

pub mod base;
pub mod engine;
pub mod firecracker;
mod growth;
pub mod guest;
pub mod kernel;
pub mod kvm;
pub mod packages;
pub mod pool;
pub mod progress;
pub mod qemu;
pub mod runsc;
mod setup;
mod spare;

pub use base::Base;
pub use engine::{EngineChoice, Kind};
pub use firecracker::Firecracker;
pub(crate) use growth::Growth;
pub use guest::Guest;
pub use pool::{NoRoom, Pool};
pub(crate) use pool::{SAVE, SNAP};
pub use progress::{Progress, Silent};
pub use qemu::{Accel, Qemu};
pub use runsc::Runsc;
pub use runtime_host::lock::{Lock, LockError as ClaimError};
pub(crate) use setup::with_causes;
pub use setup::{Outcome, SetupOptions, SetupReport, StepReport, setup};

/// The parent of all sandboxes' control groups.
pub const CGROUP_PARENT: &str = "runtime";

#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    #[error(
        "not running as root: mounting the disk pool, control groups and gVisor need it; run the command with sudo"
    )]
    NotRoot,
    #[error("Firecracker runs by KVM alone, and {words}; use --engine gvisor, qemu or auto")]
    NoKvm { words: String },
    #[error("kernel: {what}; {fix}")]
    Kernel { what: String, fix: String },
    #[error("cannot {step} {path}")]
    Io {
        step: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("this host is not prepared: {what}; run: {}", setup_command_for(data_dir, *engine))]
    NotPrepared { what: String, data_dir: PathBuf, engine: Kind },
    #[error("disk pool: {what}")]
    Pool { what: String },
    #[error("{path} belongs to user {owner}: what sandboxes write must lie below a directory of root's own")]
    NotRootsDirectory { path: PathBuf, owner: u32 },
    #[error(
        "{path} is open to others and holds files of something else; choose another directory, or run: chmod 700 {path}"
    )]
    OpenDirectory { path: PathBuf },
    #[error("another setup of this data directory is running")]
    SetupRunning(#[source] LockError),
    #[error("packages: `{command}` failed ({status}); it said last:\n{last}")]
    Command { command: String, status: String, last: String },
    #[error("packages: {what}")]
    Packages { what: String },
    #[error("package sources")]
    Sources(#[from] runtime_images::apt::AptError),
    #[error("base image")]
    Image(#[from] runtime_images::base::BuildError),
    #[error(transparent)]
    Guest(#[from] runtime_images::microvm::GuestError),
    #[error("disk pool")]
    Btrfs(#[from] BtrfsError),
    #[error("disk pool")]
    Loop(#[from] LoopError),
    #[error("control groups")]
    Cgroup(#[from] CgroupError),
}

/// Everything a driver needs of the machine.
#[derive(Debug, Clone)]
pub struct PreparedHost {
    pub data_dir: PathBuf,
    pub pool: Pool,
    pub base: Base,
    pub machinery: Machinery,
    pub cgroups: cgroup::Layout,
    /// `/run/runtime/<hash of the data directory>`: sockets and FIFOs, whose paths must be short.
    pub run_dir: PathBuf,
    pub host_memory_mib: u64,
    pub cores: u32,
}

/// The data directory, made if there is none, by its path without links. What is in it is not looked at: its lock comes
/// first.
pub fn data_dir(path: &Path) -> Result<PathBuf, PrepareError> {
    if !rustix::process::geteuid().is_root() {
        return Err(PrepareError::NotRoot);
    }
    make_private_dir(path)
}

/// What runs the sandboxes.
#[derive(Debug, Clone)]
pub enum Machinery {
    Gvisor(Runsc),
    /// By KVM, which was seen to run a guest.
    Firecracker {
        firecracker: Firecracker,
        guest: Guest,
    },
    Qemu {
        qemu: Qemu,
        guest: Guest,
        accel: Accel,
    },
}

impl Machinery {
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Self::Gvisor(_) => Kind::Gvisor,
            Self::Firecracker { .. } => Kind::Firecracker,
            Self::Qemu { .. } => Kind::Qemu,
        }
    }
}

/// At the start of a server, which holds the directory's lock: mounts the pool again after a reboot, checks, never
/// installs.
pub fn open(data_dir: &Path, engine: EngineChoice) -> Result<PreparedHost, PrepareError> {
    let data_dir = self::data_dir(data_dir)?;
    let kind = engine.resolve(&data_dir)?;
    let missing = |what: String| PrepareError::NotPrepared { what, data_dir: data_dir.clone(), engine: kind };
    let pool = Pool::open(&data_dir)?.ok_or_else(|| missing("there is no disk pool".into()))?;
    let base = Base::find(&pool)?.ok_or_else(|| missing("this version's base image has not been built".into()))?;
    let machinery = match kind {
        Kind::Gvisor => Machinery::Gvisor(Runsc::find().map_err(|e| missing(e.to_string()))?),
        Kind::Firecracker => {
            let firecracker = Firecracker::find().map_err(|e| missing(e.to_string()))?;
            let guest = Guest::find(&pool, &base)?;
            let guest = guest.ok_or_else(|| missing("there is no kernel for microVMs".into()))?;
            let answer = kvm::ask(&data_dir, &Prober::Firecracker(firecracker.clone()), &guest)?;
            if !answer.proven {
                return Err(PrepareError::NoKvm { words: answer.words });
            }
            Machinery::Firecracker { firecracker, guest }
        }
        Kind::Qemu => {
            let qemu = Qemu::find().map_err(|e| missing(e.to_string()))?;
            let guest = Guest::find(&pool, &base)?;
            let guest = guest.ok_or_else(|| missing("there is no kernel for microVMs".into()))?;
            let answer = kvm::ask(&data_dir, &Prober::Qemu(qemu.clone()), &guest)?;
            Machinery::Qemu { qemu, guest, accel: if answer.proven { Accel::Kvm } else { Accel::Tcg } }
        }
    };
    let cgroups = cgroup::detect()?;
    cgroups.prepare_parent(CGROUP_PARENT)?;
    let run_dir = run_dir(&data_dir);
    make_private_dir(&run_dir)?;
    Ok(PreparedHost {
        pool,
        base,
        machinery,
        cgroups,
        run_dir,
        host_memory_mib: kernel::memory_mib()?,
        cores: std::thread::available_parallelism().map_or(1, |n| u32::try_from(n.get()).unwrap_or(u32::MAX)),
        data_dir,
    })
}

/// Short whatever the data directory is called: a socket's path may have 107 bytes.
pub fn run_dir(data_dir: &Path) -> PathBuf {
    use std::os::unix::ffi::OsStrExt;
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, data_dir.as_os_str().as_bytes());
    let name: String = digest.as_ref().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    Path::new("/run/runtime").join(name)
}

/// Makes the directory, or closes one that is there to all but root, and answers its path without links. What sandboxes
/// write lies below it, with whatever owner and mode they choose: no user of the host may reach that.
fn make_private_dir(path: &Path) -> Result<PathBuf, PrepareError> {
    let fail = |step| move |source| PrepareError::Io { step, path: path.to_owned(), source };
    if !path.is_dir() {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(fail("make"))?;
    }
    let path = fs::canonicalize(path).map_err(fail("find"))?;
    let found = fs::metadata(&path).map_err(fail("look at"))?;
    if found.uid() != 0 {
        return Err(PrepareError::NotRootsDirectory { path, owner: found.uid() });
    }
    if found.mode() & 0o7777 != 0o700 {
        let ours = pool::NAMES.iter().any(|name| path.join(name).exists());
        if !ours && fs::read_dir(&path).map_err(fail("list"))?.next().is_some() {
            return Err(PrepareError::OpenDirectory { path });
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).map_err(fail("close to others"))?;
    }
    Ok(path)
}

pub(crate) fn setup_command(data_dir: &Path) -> String {
    if data_dir == Path::new("/var/lib/runtime") {
        "runtime setup".to_owned()
    } else {
        format!("runtime setup --data-dir {}", data_dir.display())
    }
}

/// gVisor is what `auto` prepares, so it need not be named.
fn setup_command_for(data_dir: &Path, engine: Kind) -> String {
    match engine {
        Kind::Gvisor => setup_command(data_dir),
        Kind::Firecracker | Kind::Qemu => format!("{} --engine {}", setup_command(data_dir), engine.name()),
    }
}

#[cfg(test)]
mod tests;
