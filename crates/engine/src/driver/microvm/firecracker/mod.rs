//! Firecracker, by KVM and through its jailer.
//!
//! It is told everything over its API, and finds every file in its jail ([`jail`]). The guest's channel is a vsock
//! ([`dial`]). All copies of a template map its memory from one file that none of them can write to.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream as StdStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use runtime_host::fifo::{self, End};
use runtime_host::spawn::{Program, spawn};
use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};

use super::launch::{Launch, Start};
use super::saved::{MEMORY, STATE};
use super::vmm::{At, Early, Site, Spawned, Vmm, VmmError, io_error};
use crate::driver::places::paths;
use crate::driver::{Dial, DriverError};

pub(crate) mod api;
mod dial;
mod http;
mod jail;
#[cfg(test)]
mod tests;

use api::{
    BackendType, Balloon, BootSource, CacheType, Drive, Fresh, Machine, MachineConfiguration, MemoryBackend, Present,
    SnapshotCreate, SnapshotLoad, SnapshotType, VsockOverride,
};
use jail::{Jail, Root};

/// The API is there within milliseconds; a host may be busy.
const API_LIMIT: Duration = Duration::from_secs(10);
/// Its own program and buffers; some for the jailer's copy of it.
const OVERHEAD_BYTES: u64 = 96 << 20;
/// Any will do: nobody else is on this vsock.
const GUEST_CID: u32 = 3;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Firecracker {
    pub(crate) path: PathBuf,
    pub(crate) jailer: PathBuf,
    /// Which fields it knows. A record of a server that did not ask means none of the later ones.
    #[serde(default)]
    pub(crate) release: Release,
}

pub(crate) type Release = (u32, u32, u32);
/// The first release whose balloon hears from the guest what it has freed.
const REPORTS_FREE_PAGES: Release = (1, 14, 0);
/// The first that can be told where a restored machine's socket is, and that its clocks went on.
const OVERRIDES: Release = (1, 16, 0);

impl Firecracker {
    fn machine(&self, launch: &Launch) -> Machine {
        let drive = |id: &str, path: &str, base: bool| Drive {
            drive_id: id.to_owned(),
            path_on_host: path.to_owned(),
            // The guest's first file system is its initramfs.
            is_root_device: false,
            is_read_only: base,
            cache_type: if base { CacheType::Unsafe } else { CacheType::Writeback },
        };
        Machine {
            configuration: MachineConfiguration {
                vcpu_count: launch.vcpu,
                mem_size_mib: launch.memory_mib,
                smt: false,
                track_dirty_pages: false,
            },
            boot: BootSource {
                kernel_image_path: jail::KERNEL.to_owned(),
                initrd_path: jail::INITRAMFS.to_owned(),
                boot_args: kernel_words(),
            },
            drives: vec![drive("base", jail::BASE, true), drive("disk", jail::DISK, false)],
            // Never blown up: it is there for what the guest says of itself.
            balloon: Balloon {
                amount_mib: 0,
                deflate_on_oom: true,
                free_page_reporting: self.release >= REPORTS_FREE_PAGES,
            },
            vsock: api::Vsock { guest_cid: GUEST_CID, uds_path: jail::VSOCK.to_owned() },
        }
    }

    /// Waits for the API of a process that has just been started.
    fn fresh(at: &At<'_>) -> Result<Fresh, VmmError> {
        // Until the jailer has moved in, this is the host's root, where there is no such socket.
        let path = PathBuf::from(format!("/proc/{}/root{}", at.process.pid, jail::API));
        Ok(Fresh::wait(&path, API_LIMIT, || at.process.alive().unwrap_or(true))?)
    }

    fn attach(at: &At<'_>) -> Result<Present, VmmError> {
        let root = Root::of(at.process).map_err(io_error("enter", "the jail"))?;
        Ok(api::attach(&root.path(jail::API))?)
    }
}

/// The guest's command line. Firecracker's machine ends when the guest resets its keyboard controller.
fn kernel_words() -> String {
    format!(
        "console=ttyS0 panic=-1 reboot=k quiet random.trust_cpu=on 8250.nr_uarts=1 cryptomgr.notests \
         rcupdate.rcu_expedited=1 apparmor=0 runtime.vsock={}",
        dial::PORT
    )
}

impl Vmm for Firecracker {
    fn name(&self) -> &'static str {
        "firecracker"
    }

    fn emulates(&self) -> bool {
        false
    }

    fn overhead_bytes(&self) -> u64 {
        OVERHEAD_BYTES
    }

    fn runs_in_file(&self) -> bool {
        false
    }

    /// Firecracker makes its own.
    fn channel(&self, _: &Path) -> Result<Option<Early>, DriverError> {
        Ok(None)
    }

    fn spawn(&self, launch: &Launch, site: Site<'_>) -> Result<Spawned, VmmError> {
        let jail = Jail::of(site.run_dir, &self.path, site.name);
        jail.build(launch)?;
        let null = File::open("/dev/null").map_err(io_error("open", "/dev/null"))?;
        let path = site.run_dir.join(paths::COMPLAINTS);
        let said = fifo::open(&path, End::Write).map_err(io_error("open the pipe", path.display()))?;
        let argv = jail.arguments(self, site.name, launch.uid);
        let Some(program) = argv.first().cloned() else { return Err(VmmError::Gone) };
        let pid = spawn(&Program {
            paths: &[program],
            argv: &argv,
            envp: &[],
            fds: &[(null.as_fd(), 0), (said.as_fd(), 1), (said.as_fd(), 2)],
            cwd: Some(c"/"),
            // The jailer needs root to build the rest of the jail, and then gives it up.
            identity: None,
            limits: &[],
            new_session: true,
            terminal: None,
            parent_death_signal: None,
            announce: None,
            groups: site.groups,
            substitute: None,
            traced: None,
        })?;
        Ok(Spawned { pid: pid.unsigned_abs(), owed: None })
    }

    fn boot(&self, at: &At<'_>, launch: &Launch) -> Result<(), VmmError> {
        let configured = Self::fresh(at)?.configure(&self.machine(launch))?;
        configured.start()?;
        Ok(())
    }

    fn restore(&self, at: &At<'_>, launch: &Launch) -> Result<(), VmmError> {
        let later = self.release >= OVERRIDES;
        // In a copy of a template nothing measures time yet. A sandbox that was saved goes on where it stood: the time it
        // was away is none of its commands', and the agent sets the time of day.
        let template = matches!(launch.start, Start::Restore { spends: None, .. });
        let from = SnapshotLoad {
            snapshot_path: jail::STATE.to_owned(),
            mem_backend: MemoryBackend { backend_type: BackendType::File, backend_path: jail::MEMORY.to_owned() },
            resume_vm: true,
            vsock_override: later.then(|| VsockOverride { uds_path: jail::VSOCK.to_owned() }),
            clock_realtime: later && template,
        };
        Self::fresh(at)?.load(&from)?;
        Ok(())
    }

    fn is_paused(&self, at: &At<'_>) -> Result<bool, VmmError> {
        Ok(matches!(Self::attach(at)?, Present::Paused(_)))
    }

    fn pause(&self, at: &At<'_>) -> Result<(), VmmError> {
        if let Present::Running(running) = Self::attach(at)? {
            running.pause()?;
        }
        Ok(())
    }

    fn resume(&self, at: &At<'_>) -> Result<(), VmmError> {
        if let Present::Paused(paused) = Self::attach(at)? {
            paused.resume()?;
        }
        Ok(())
    }

    fn snapshot(&self, at: &At<'_>, launch: &Launch, into: &Path, limit: Duration) -> Result<(), VmmError> {
        let mut paused = match Self::attach(at)? {
            Present::Paused(paused) => paused,
            Present::Running(running) => running.pause()?,
        };
        let inside = |name: &str| format!("{}/{name}", jail::OUTBOX);
        let to = SnapshotCreate {
            snapshot_type: SnapshotType::Full,
            snapshot_path: inside(STATE),
            mem_file_path: inside(MEMORY),
        };
        let written = paused.snapshot(&to, limit).map_err(VmmError::from);
        let kept = written.and_then(|()| [STATE, MEMORY].into_iter().try_for_each(|name| keep(launch, name, into)));
        for name in [STATE, MEMORY] {
            let _ = fs::remove_file(launch.outbox.join(name));
        }
        kept
    }

    fn dial(&self, at: &At<'_>, _: Option<StdStream>) -> Result<Arc<dyn Dial>, DriverError> {
        let root =
            Root::of(at.process).map_err(|e| DriverError::new("enter the jail of process", at.process.pid, e))?;
        let path = root.path(jail::VSOCK);
        Ok(Arc::new(dial::Vsock { path, jail: Some(Arc::new(root)) }))
    }

    fn is_machine(&self, name: &str, _: &Path, words: &[Vec<u8>]) -> bool {
        let program = words.first().and_then(|word| word.rsplit(|byte| *byte == b'/').next()).unwrap_or_default();
        let known = program.starts_with(b"firecracker") || program.starts_with(b"jailer");
        let id = |word: &[u8]| word == name.as_bytes();
        known
            && (words.windows(2).any(|pair| pair[0] == b"--id" && id(&pair[1]))
                || words.iter().any(|word| word.strip_prefix(b"--id=").is_some_and(id)))
    }
}

/// A copy that shares its blocks with what the machine wrote: whatever that still holds open, it cannot change any more.
/// Every later machine may read it.
fn keep(launch: &Launch, name: &str, into: &Path) -> Result<(), VmmError> {
    let (from, to) = (launch.outbox.join(name), into.join(name));
    let source =
        rustix::fs::open(&from, OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())
            .map_err(|e| io_error("open", from.display())(e.into()))?;
    let target = File::create(&to).map_err(io_error("make", to.display()))?;
    rustix::fs::ioctl_ficlone(&target, &source).map_err(|e| io_error("keep", to.display())(e.into()))?;
    target.set_permissions(fs::Permissions::from_mode(0o444)).map_err(io_error("set the mode of", to.display()))?;
    target.sync_all().map_err(io_error("write", to.display()))
}
