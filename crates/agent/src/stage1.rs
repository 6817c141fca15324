//! The first minute of a machine with a kernel of its own: the initial file system holds this program and a few kernel
//! modules and nothing else; here it loads them, puts the sandbox's disk over the base image, moves into the result and
//! becomes the agent.
//!
//! It runs once, as the only process, and whatever fails ends the machine: the last line on the console says why.

use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::mount::MountFlags;
use rustix::system::RebootCommand;

/// What the host calls its devices. Their order on the bus says nothing.
const BASE_SERIAL: &str = "base";
const DISK_SERIAL: &str = "disk";
const PORT_NAME: &str = "agent";
const VIRTIO_DISK: &str = "vd";
/// On the kernel's command line, with a number: the host comes over a vsock, to this port. Such a machine knows its disks
/// by which of them can be written, and is ended by a restart.
const VSOCK: &str = "runtime.vsock=";
/// On the kernel's command line: say that a guest runs here, and end.
const PROBE: &str = "runtime.probe";
/// What a probe says. The host looks for it.
const PROVEN: &str = "runtime: a guest runs here";

/// Devices appear a little after the module that drives them.
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(2);

const NEW_ROOT: &str = "/root";

#[derive(Debug, thiserror::Error)]
#[error("cannot {step} {object}: {source}")]
struct StageError {
    step: &'static str,
    object: String,
    source: io::Error,
}

trait Told<T> {
    fn told(self, step: &'static str, object: impl std::fmt::Display) -> Result<T, StageError>;
}

impl<T, E: Into<io::Error>> Told<T> for Result<T, E> {
    fn told(self, step: &'static str, object: impl std::fmt::Display) -> Result<T, StageError> {
        self.map_err(|source| StageError { step, object: object.to_string(), source: source.into() })
    }
}

/// Returns only if it failed; a first process that ends takes its machine along.
pub(crate) fn main() -> ExitCode {
    let Err(error) = run();
    let _ = fs::write("/dev/console", format!("runtime: {error}\n"));
    let words = fs::read_to_string("/proc/cmdline").unwrap_or_default();
    let end = if vsock_port(&words).is_some() { RebootCommand::Restart } else { RebootCommand::PowerOff };
    let _ = rustix::system::reboot(end);
    ExitCode::FAILURE
}

fn run() -> Result<std::convert::Infallible, StageError> {
    for (kind, at) in [("proc", "/proc"), ("sysfs", "/sys"), ("devtmpfs", "/dev")] {
        mount(kind, Path::new(at), kind, MountFlags::NOSUID, "")?;
    }
    let words = fs::read_to_string("/proc/cmdline").told("read", "the kernel's command line")?;
    if words.split_ascii_whitespace().any(|word| word == PROBE) {
        fs::write("/dev/console", format!("{PROVEN}\n")).told("write to", "the console")?;
        rustix::system::reboot(RebootCommand::PowerOff).told("power off", "the probe")?;
    }
    let me = open("/init", OFlags::PATH)?;
    load_modules()?;
    let vsock = vsock_port(&words);
    let port = match vsock {
        Some(_) => None,
        None => Some(wait_for(|| port_named(PORT_NAME)).told("find", "the port to the host")?),
    };
    let (disk, base) = match vsock {
        Some(_) => (wait_for(|| disk_that_is_read_only(false)), wait_for(|| disk_that_is_read_only(true))),
        None => (wait_for(|| disk_with(DISK_SERIAL)), wait_for(|| disk_with(BASE_SERIAL))),
    };
    let (disk, base) = (disk.told("find", "the sandbox's disk")?, base.told("find", "the base image")?);
    assemble(&base, &disk)?;
    // A sandbox without it runs; what listens on localhost then does not.
    if let Err(error) = runtime_host::guest::loopback_up() {
        let _ = fs::write("/dev/console", format!("runtime: loopback does not come up: {error}\n"));
    }
    let port = match (port, vsock) {
        (Some(port), _) => open(&port, OFlags::RDWR)?,
        (None, number) => runtime_host::vsock::listen(number.unwrap_or_default()).told("listen for", "the host")?,
    };
    let console = open("/dev/console", OFlags::WRONLY)?;
    rustix::stdio::dup2_stdin(&port).told("connect", "standard input")?;
    rustix::stdio::dup2_stdout(&port).told("connect", "standard output")?;
    rustix::stdio::dup2_stderr(&console).told("connect", "standard error")?;
    drop((port, console));
    move_in()?;
    let words = |list: &[&str]| list.iter().filter_map(|word| CString::new(*word).ok()).collect::<Vec<_>>();
    let environment =
        words(&["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LANG=C.UTF-8"]);
    let error = runtime_host::guest::become_program(&me, &words(&["runtime-agent"]), &environment);
    Err::<std::convert::Infallible, _>(error).told("start", "the agent")
}

/// Loads them in the order of their names and frees their memory.
fn load_modules() -> Result<(), StageError> {
    let entries = fs::read_dir("/modules").told("list", "/modules")?;
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        let file = File::open(&path).told("open", path.display())?;
        match rustix::system::finit_module(&file, c"", 0) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(error) => Err(error).told("load", path.display())?,
        }
        let _ = fs::remove_file(&path);
    }
    Ok(())
}

/// The base image, read-only, and over it what this sandbox changes.
fn assemble(base: &Path, disk: &Path) -> Result<(), StageError> {
    for at in ["/base", "/disk"] {
        make_dir(Path::new(at), 0o755)?;
    }
    mount(&base.to_string_lossy(), Path::new("/base"), "ext4", MountFlags::RDONLY | MountFlags::NOATIME, "")?;
    let flags = MountFlags::NOATIME | MountFlags::NODEV;
    mount(&disk.to_string_lossy(), Path::new("/disk"), "ext4", flags, "discard")?;
    grow(disk)?;
    for name in ["upper", "work"] {
        make_dir(&Path::new("/disk").join(name), 0o755)?;
    }
    // What lies there is gone after a restart, as on any machine.
    for name in ["upper/tmp", "upper/run"] {
        let _ = fs::remove_dir_all(Path::new("/disk").join(name));
    }
    let options = "lowerdir=/base,upperdir=/disk/upper,workdir=/disk/work,redirect_dir=on";
    mount("overlay", Path::new(NEW_ROOT), "overlay", MountFlags::NOATIME, options)
}

/// A disk that was enlarged while the machine was off: the file system follows.
fn grow(disk: &Path) -> Result<(), StageError> {
    let name = disk.file_name().unwrap_or_default();
    let sectors = fs::read_to_string(Path::new("/sys/class/block").join(name).join("size"));
    let sectors = sectors.told("read the size of", disk.display())?.trim().parse::<u64>().unwrap_or(0);
    let held = rustix::fs::statvfs("/disk").told("measure", "the sandbox's disk")?;
    let wanted = sectors.saturating_mul(512) / held.f_frsize.max(1);
    let dir = open("/disk", OFlags::DIRECTORY)?;
    // The kernel compares with what there is; a size that is the same is no work.
    runtime_host::guest::grow_ext4(&dir, wanted).told("grow", "the sandbox's disk")
}

/// Makes the assembled tree the root of everything.
fn move_in() -> Result<(), StageError> {
    let below = |path: &str| PathBuf::from(format!("{NEW_ROOT}{path}"));
    for at in ["/proc", "/sys", "/dev"] {
        rustix::mount::mount_move(at, below(at)).told("move", at)?;
    }
    let safe = MountFlags::NOSUID | MountFlags::NODEV;
    mount("tmpfs", &below("/run"), "tmpfs", safe, "mode=0755,size=25%")?;
    for (at, mode) in [("/dev/pts", 0o755), ("/dev/shm", 0o1777)] {
        make_dir(&below(at), mode)?;
    }
    mount(
        "devpts",
        &below("/dev/pts"),
        "devpts",
        MountFlags::NOSUID | MountFlags::NOEXEC,
        "mode=0620,gid=5,ptmxmode=0666",
    )?;
    mount("tmpfs", &below("/dev/shm"), "tmpfs", safe, "mode=1777,size=50%")?;
    for (name, target) in [("fd", "fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")] {
        let _ = std::os::unix::fs::symlink(format!("/proc/self/{target}"), below("/dev").join(name));
    }
    rustix::process::chdir(NEW_ROOT).told("enter", NEW_ROOT)?;
    rustix::mount::mount_move(".", "/").told("move", NEW_ROOT)?;
    rustix::process::chroot(".").told("move into", NEW_ROOT)?;
    rustix::process::chdir("/").told("enter", "/")
}

fn mount(source: &str, at: &Path, kind: &str, flags: MountFlags, options: &str) -> Result<(), StageError> {
    let options = CString::new(options).unwrap_or_default();
    rustix::mount::mount(source, at, kind, flags, Some(options.as_c_str()))
        .told("mount", format!("{kind} at {}", at.display()))
}

fn make_dir(path: &Path, mode: u32) -> Result<(), StageError> {
    fs::DirBuilder::new().recursive(true).mode(mode).create(path).told("make", path.display())?;
    // The mask of this process must not decide.
    if fs::metadata(path).is_ok_and(|meta| meta.mode() & 0o7777 != mode) {
        let permissions = std::os::unix::fs::PermissionsExt::from_mode(mode);
        fs::set_permissions(path, permissions).told("set the mode of", path.display())?;
    }
    Ok(())
}

fn open(path: impl AsRef<Path>, flags: OFlags) -> Result<OwnedFd, StageError> {
    let path = path.as_ref();
    rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty()).told("open", path.display())
}

fn wait_for(look: impl Fn() -> Option<PathBuf>) -> io::Result<PathBuf> {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return Ok(found);
        }
        if Instant::now() > end {
            return Err(io::ErrorKind::NotFound.into());
        }
        std::thread::sleep(LOOK);
    }
}

/// The device of the block disk to which the host gave this serial.
fn disk_with(serial: &str) -> Option<PathBuf> {
    named_device("/sys/block", "serial", serial, "")
}

fn vsock_port(words: &str) -> Option<u32> {
    words.split_ascii_whitespace().find_map(|word| word.strip_prefix(VSOCK))?.parse().ok()
}

/// The block disk that may or may not be written.
fn disk_that_is_read_only(yes: bool) -> Option<PathBuf> {
    named_device("/sys/block", "ro", if yes { "1" } else { "0" }, VIRTIO_DISK)
}

fn port_named(name: &str) -> Option<PathBuf> {
    named_device("/sys/class/virtio-ports", "name", name, "")
}

/// The device whose attribute is this, and whose name begins so.
fn named_device(class: &str, attribute: &str, wanted: &str, prefix: &str) -> Option<PathBuf> {
    let found = fs::read_dir(class)
        .ok()?
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix))
        .find(|entry| fs::read_to_string(entry.path().join(attribute)).is_ok_and(|text| text.trim() == wanted))?;
    let device = Path::new("/dev").join(found.file_name());
    device.exists().then_some(device)
}

/// True where this program is the first of a machine that has nothing yet.
pub(crate) fn is_wanted(name: &str) -> bool {
    name == "init" && rustix::process::getpid().is_init()
}

/// Whether standard input is a device, as a port is, and not a pipe.
pub(crate) fn is_device(fd: impl AsFd) -> bool {
    rustix::fs::fstat(fd)
        .is_ok_and(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::CharacterDevice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_on_the_command_line_is_found_and_a_name_that_only_looks_like_it_is_not() {
        assert_eq!(vsock_port("console=ttyS0 quiet runtime.vsock=52\n"), Some(52));
        for none in ["", "quiet", "xruntime.vsock=52", "runtime.vsock=", "runtime.vsock=-1", "runtime.vsock=4294967296"]
        {
            assert_eq!(vsock_port(none), None, "{none}");
        }
    }
}
