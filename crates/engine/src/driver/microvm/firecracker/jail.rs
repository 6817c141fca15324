//! The jail of one machine: a directory with the few files that it needs and nothing else, put together in a mount name
//! space of the shim's own. Nobody else sees these mounts, and they are gone with the last process in it.
//!
//!     RUN/jail/<program>/<name>/root/      the root of the machine's process
//!         api.sock  v                      made by Firecracker: its API, the guest's vsock
//!         kernel initramfs base disk       or, where it is restored, base disk state memory
//!         out/                             where it writes what is saved of it
//!
//! The jailer takes it from there: device nodes, a root of its own, the user id of this machine, and then Firecracker in
//! its place, with the same process id, in the control group that the shim put it in. Firecracker puts its own seccomp
//! filters on itself.

use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};

use runtime_host::mount;
use runtime_host::process::ProcessId;
use rustix::fs::{Mode, OFlags};

use super::super::launch::{Launch, Memory, Start};
use super::super::vmm::{VmmError, io_error};
use super::Firecracker;

/// As the jailed program sees them.
pub(super) const API: &str = "/api.sock";
pub(super) const VSOCK: &str = "/v";
pub(super) const KERNEL: &str = "/kernel";
pub(super) const INITRAMFS: &str = "/initramfs";
pub(super) const BASE: &str = "/base";
pub(super) const DISK: &str = "/disk";
pub(super) const MEMORY: &str = "/memory";
pub(super) const STATE: &str = "/state";
pub(super) const OUTBOX: &str = "/out";

const DIR: &str = "jail";
/// The jailer's copy of Firecracker, sockets, and nothing else.
const OPTIONS: &str = "mode=0755,size=64m";
const OPEN_FILES: u32 = 1024;

pub(super) struct Jail {
    base: PathBuf,
    pub(super) root: PathBuf,
}

impl Jail {
    pub(super) fn of(run_dir: &Path, program: &Path, name: &str) -> Self {
        let base = run_dir.join(DIR);
        let root = base.join(program.file_name().unwrap_or_default()).join(name).join("root");
        Self { base, root }
    }

    /// Puts it together. From here on this process and its children see mounts that nobody else does.
    pub(super) fn build(&self, launch: &Launch) -> Result<(), VmmError> {
        let make = |path: &Path| fs::create_dir_all(path).map_err(io_error("make", path.display()));
        make(&self.base)?;
        // Of an earlier life.
        let _ = fs::remove_dir_all(&launch.outbox);
        make(&launch.outbox)?;
        for (path, mode) in [(&launch.outbox, 0o700), (&launch.disk, 0o600)] {
            chown(path, Some(launch.uid), Some(launch.uid)).map_err(io_error("hand over", path.display()))?;
            let mode = fs::Permissions::from_mode(mode);
            fs::set_permissions(path, mode).map_err(io_error("set the mode of", path.display()))?;
        }
        mount::own_name_space().map_err(io_error("make a name space for", "the mounts"))?;
        mount::mount_jail(&self.base, OPTIONS).map_err(io_error("mount", self.base.display()))?;
        make(&self.root)?;
        self.give(&launch.base, BASE, false)?;
        self.give(&launch.disk, DISK, true)?;
        match &launch.start {
            Start::Cold { kernel, initramfs } => {
                self.give(kernel, KERNEL, false)?;
                self.give(initramfs, INITRAMFS, false)?;
            }
            Start::Restore { state, .. } => self.give(state, STATE, false)?,
        }
        if let Memory::Template(memory) | Memory::Written(memory) = &launch.memory {
            self.give(memory, MEMORY, false)?;
        }
        let outbox = self.inside(OUTBOX);
        make(&outbox)?;
        mount::bind(&launch.outbox, &outbox).map_err(io_error("put into the jail", launch.outbox.display()))
    }

    fn inside(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    fn give(&self, file: &Path, name: &str, writable: bool) -> Result<(), VmmError> {
        let at = self.inside(name);
        File::create_new(&at).map_err(io_error("make", at.display()))?;
        mount::bind(file, &at).map_err(io_error("put into the jail", file.display()))?;
        if writable { Ok(()) } else { mount::make_read_only(&at).map_err(io_error("protect", at.display())) }
    }

    /// The jailer's words, with Firecracker's behind the two dashes.
    pub(super) fn arguments(&self, program: &Firecracker, name: &str, uid: u32) -> Vec<CString> {
        let uid = uid.to_string();
        let limit = format!("no-file={OPEN_FILES}");
        let words: [&[u8]; 16] = [
            program.jailer.as_os_str().as_bytes(),
            b"--id",
            name.as_bytes(),
            b"--exec-file",
            program.path.as_os_str().as_bytes(),
            b"--uid",
            uid.as_bytes(),
            b"--gid",
            uid.as_bytes(),
            b"--chroot-base-dir",
            self.base.as_os_str().as_bytes(),
            b"--resource-limit",
            limit.as_bytes(),
            b"--",
            b"--api-sock",
            API.as_bytes(),
        ];
        // No word of ours holds a NUL; a path with one cannot exist.
        words.into_iter().filter_map(|word| CString::new(word).ok()).collect()
    }
}

/// The root of a jailed process, held open: its paths are short, and mean this process even if its number is used again.
pub(super) struct Root(OwnedFd);

impl Root {
    pub(super) fn of(process: ProcessId) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(format!("/proc/{}/root", process.pid), flags, Mode::empty())?;
        // Compared after the open, when the number cannot change its meaning any more.
        if process.alive()? { Ok(Self(root)) } else { Err(io::ErrorKind::NotFound.into()) }
    }

    /// A path of the jail as seen from here.
    pub(super) fn path(&self, inside: &str) -> PathBuf {
        use std::os::fd::AsRawFd;
        PathBuf::from(format!("/proc/self/fd/{}{inside}", self.0.as_raw_fd()))
    }
}
