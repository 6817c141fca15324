//! QEMU's `microvm` machine: by KVM where a guest was seen to run under it, else emulated.
//!
//! It runs without any privilege, as a user of its own, and is handed every file it needs as an open descriptor. The
//! guest's channel is a virtio port, on the host a unix socket that is there before its machine, so that a restored guest
//! never sees it unconnected.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream as StdStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use runtime_host::fifo::{self, End};
use runtime_host::spawn::{Identity, Limit, Program, RLIMIT_NOFILE, spawn};
use runtime_host::substitute::{Asked, Substitute, substitute};
use serde::{Deserialize, Serialize};
use tokio::net::UnixStream;

use super::launch::{Launch, Memory, Start};
use super::saved::STATE;
use super::vmm::{At, Early, Owed, Site, Spawned, Vmm, VmmError, io_error};
use crate::driver::places::{listen, paths};
use crate::driver::{Dial, DriverError, Reader, Writer};
use crate::prepare::Accel;

pub(crate) mod qmp;
mod words;

use qmp::Qmp;
use words::fds;

const RESTORE_LIMIT: Duration = Duration::from_secs(60);
/// From its start until it opens its memory.
const MEMORY_LIMIT: Duration = Duration::from_secs(30);
const OPEN_FILES: u64 = 1024;
/// Translated code, buffers, its own program.
const OVERHEAD_BYTES: u64 = 256 << 20;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Qemu {
    pub(crate) path: PathBuf,
    pub(crate) accel: Accel,
    pub(crate) tsc_khz: u64,
}

/// A template's memory. QEMU opens it for writing even to map it privately, which nobody lets it: in place of what it
/// asks for it gets a descriptor that reads, and so maps the very file that all other copies map.
struct Shared {
    memory: OwnedFd,
    substitute: Substitute,
    asked: Asked,
}

impl Shared {
    fn of(memory: OwnedFd) -> Result<Self, VmmError> {
        let (substitute, asked) = substitute(fds::SHARED).map_err(io_error("prepare", "the memory"))?;
        Ok(Self { memory, substitute, asked })
    }

    fn give(self) -> Result<(), VmmError> {
        // The child has its own end; with ours open its death would go unseen.
        drop(self.substitute);
        let given = self.asked.give(&words::memory_path(fds::SHARED), self.memory.as_fd(), MEMORY_LIMIT);
        given.map_err(io_error("hand over", "the memory"))
    }
}

fn monitor(at: &At<'_>) -> Result<Qmp, VmmError> {
    Ok(Qmp::connect(&at.run_dir.join(paths::MONITOR))?)
}

impl Vmm for Qemu {
    fn name(&self) -> &'static str {
        "qemu"
    }

    fn emulates(&self) -> bool {
        self.accel == Accel::Tcg
    }

    fn overhead_bytes(&self) -> u64 {
        OVERHEAD_BYTES
    }

    fn runs_in_file(&self) -> bool {
        true
    }

    fn channel(&self, run_dir: &Path) -> Result<Option<Early>, DriverError> {
        let path = run_dir.join(paths::CHANNEL);
        let handed = listen(&path)?;
        let first =
            StdStream::connect(&path).map_err(|e| DriverError::new("connect to the channel at", path.display(), e))?;
        Ok(Some(Early { handed, first }))
    }

    fn spawn(&self, launch: &Launch, site: Site<'_>) -> Result<Spawned, VmmError> {
        let path = site.run_dir.join(paths::MONITOR);
        let _ = std::fs::remove_file(&path);
        let monitor = UnixListener::bind(&path).map_err(io_error("make the socket", path.display()))?;
        let open = |path: &Path, write: bool| {
            let file = File::options().read(true).write(write).open(path).map_err(io_error("open", path.display()))?;
            Ok::<_, VmmError>(OwnedFd::from(file))
        };
        let null = open(Path::new("/dev/null"), false)?;
        let path = site.run_dir.join(paths::COMPLAINTS);
        let said = fifo::open(&path, End::Write).map_err(io_error("open the pipe", path.display()))?;
        let mut files = vec![
            (monitor.into(), fds::MONITOR),
            (site.channel, fds::CHANNEL),
            (open(&launch.base, false)?, fds::BASE),
            (open(&launch.disk, true)?, fds::DISK),
            (open(&launch.disk, false)?, fds::DISK_READ),
        ];
        let mut shared = None;
        match &launch.memory {
            Memory::Own => {}
            Memory::Written(path) => files.push((open(path, false)?, fds::MEMORY)),
            Memory::Template(path) => shared = Some(Shared::of(open(path, false)?)?),
        }
        match &launch.start {
            Start::Cold { kernel, initramfs } => {
                files.push((open(kernel, false)?, fds::KERNEL));
                files.push((open(initramfs, false)?, fds::INITRAMFS));
            }
            Start::Restore { state, .. } => files.push((open(state, false)?, fds::STATE)),
        }
        let mut given = vec![(null.as_fd(), 0), (said.as_fd(), 1), (said.as_fd(), 2)];
        given.extend(files.iter().map(|(file, number)| (file.as_fd(), *number)));
        let argv = self.arguments(launch, site.run_dir);
        let Some(program) = argv.first().cloned() else { return Err(VmmError::Gone) };
        // Where KVM is used, its device belongs to a group.
        let groups = match self.accel {
            Accel::Kvm => std::fs::metadata("/dev/kvm").map(|meta| meta.gid()).into_iter().collect(),
            Accel::Tcg => Vec::new(),
        };
        let identity = Identity { uid: launch.uid, gid: launch.uid, groups };
        let pid = spawn(&Program {
            paths: &[program],
            argv: &argv,
            envp: &[],
            fds: &given,
            cwd: Some(c"/"),
            identity: Some(&identity),
            limits: &[Limit { resource: RLIMIT_NOFILE, soft: OPEN_FILES, hard: OPEN_FILES }],
            new_session: true,
            terminal: None,
            parent_death_signal: None,
            announce: None,
            groups: site.groups,
            substitute: shared.as_ref().map(|shared| &shared.substitute),
            traced: None,
        })?;
        let owed = shared.map(|shared| Box::new(move || shared.give()) as Owed);
        Ok(Spawned { pid: pid.unsigned_abs(), owed })
    }

    /// It boots as soon as it is there.
    fn boot(&self, _: &At<'_>, _: &Launch) -> Result<(), VmmError> {
        Ok(())
    }

    fn restore(&self, at: &At<'_>, launch: &Launch) -> Result<(), VmmError> {
        let apart = !matches!(launch.memory, Memory::Own);
        Ok(monitor(at)?.restore(fds::STATE, apart, RESTORE_LIMIT)?)
    }

    fn is_paused(&self, at: &At<'_>) -> Result<bool, VmmError> {
        Ok(!monitor(at)?.is_running()?)
    }

    fn pause(&self, at: &At<'_>) -> Result<(), VmmError> {
        Ok(monitor(at)?.freeze()?)
    }

    fn resume(&self, at: &At<'_>) -> Result<(), VmmError> {
        Ok(monitor(at)?.resume()?)
    }

    fn snapshot(&self, at: &At<'_>, launch: &Launch, into: &Path, limit: Duration) -> Result<(), VmmError> {
        let path = into.join(STATE);
        let state = File::create(&path).map_err(io_error("make", path.display()))?;
        let apart = matches!(launch.memory, Memory::Written(_));
        monitor(at)?.save(&state, apart, limit)?;
        state.sync_all().map_err(io_error("write", path.display()))
    }

    fn dial(&self, at: &At<'_>, first: Option<StdStream>) -> Result<Arc<dyn Dial>, DriverError> {
        Ok(Arc::new(Port { path: at.run_dir.join(paths::CHANNEL), first: Mutex::new(first) }))
    }

    fn is_machine(&self, _: &str, run_dir: &Path, words: &[Vec<u8>]) -> bool {
        let name = [b"guest=", run_dir.as_os_str().as_bytes()].concat();
        words.windows(2).any(|pair| pair[0] == b"-name" && pair[1] == name)
    }
}

/// The socket that is the guest's port.
struct Port {
    path: PathBuf,
    /// A connection made before the machine was there.
    first: Mutex<Option<StdStream>>,
}

impl Dial for Port {
    fn dial(&self) -> Result<(Reader, Writer), DriverError> {
        let fail = |e| DriverError::new("connect to the channel at", self.path.display(), e);
        let first = self.first.lock().unwrap_or_else(PoisonError::into_inner).take();
        let stream = match first {
            Some(stream) => stream,
            None => StdStream::connect(&self.path).map_err(fail)?,
        };
        stream.set_nonblocking(true).map_err(fail)?;
        let (reader, writer) = UnixStream::from_std(stream).map_err(fail)?.into_split();
        Ok((Box::new(reader), Box::new(writer)))
    }
}
