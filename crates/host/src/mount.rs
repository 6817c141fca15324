//! Mounts, and what is mounted where.

use std::ffi::CString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};

/// One line of `/proc/self/mountinfo`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountEntry {
    /// The directory of the mounted file system that is visible here.
    pub root: PathBuf,
    pub mount_point: PathBuf,
    pub fs_type: String,
    pub source: String,
    pub super_options: String,
}

/// Everything mounted in this mount name space, in the order of mounting.
pub fn mounts() -> io::Result<Vec<MountEntry>> {
    Ok(fs::read_to_string("/proc/self/mountinfo")?.lines().filter_map(parse).collect())
}

/// What is mounted exactly at `path`; the newest of several stacked there.
pub fn mounted_at(path: &Path) -> io::Result<Option<MountEntry>> {
    Ok(mounts()?.into_iter().rfind(|m| m.mount_point == path))
}

/// The mount that `path` (absolute, without links) lies on.
pub fn mount_holding(path: &Path) -> io::Result<Option<MountEntry>> {
    let mut best: Option<MountEntry> = None;
    for mount in mounts()? {
        let deeper = |b: &MountEntry| mount.mount_point.components().count() >= b.mount_point.components().count();
        if path.starts_with(&mount.mount_point) && best.as_ref().is_none_or(deeper) {
            best = Some(mount);
        }
    }
    Ok(best)
}

/// Mounts a btrfs without access times (reads in a sandbox must not write), and without what a sandbox could leave on it
/// for users of the host: programs that make one root, device files.
pub fn mount_btrfs(device: &Path, target: &Path) -> io::Result<()> {
    let flags = MountFlags::NOATIME | MountFlags::NODEV | MountFlags::NOSUID;
    Ok(rustix::mount::mount(device, target, "btrfs", flags, None::<&std::ffi::CStr>)?)
}

pub fn bind(source: &Path, target: &Path) -> io::Result<()> {
    Ok(rustix::mount::mount_bind(source, target)?)
}

pub fn mount_tmpfs(target: &Path, options: &str) -> io::Result<()> {
    let options = CString::new(options).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    Ok(rustix::mount::mount("tmpfs", target, "tmpfs", flags, Some(options.as_c_str()))?)
}

/// A small file system in memory in which a jailed program is put together: it may hold programs and device nodes.
pub fn mount_jail(target: &Path, options: &str) -> io::Result<()> {
    let options = CString::new(options).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    Ok(rustix::mount::mount("tmpfs", target, "tmpfs", MountFlags::NOSUID, Some(options.as_c_str()))?)
}

/// Nobody may write through this mount, whoever he is.
pub fn make_read_only(target: &Path) -> io::Result<()> {
    let flags = MountFlags::BIND | MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    Ok(rustix::mount::mount_remount(target, flags, c"")?)
}

/// From here on what this thread (and the processes it starts) mounts is seen by nobody else, and gone when they are.
pub fn own_name_space() -> io::Result<()> {
    // SAFETY: only the mounts part; what must not be told apart from other threads are descriptors, which stay shared.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNS)? };
    let flags = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    Ok(rustix::mount::mount_change("/", flags)?)
}

/// Unmounts; what is not mounted is fine.
pub fn unmount(target: &Path) -> io::Result<()> {
    match rustix::mount::unmount(target, UnmountFlags::NOFOLLOW) {
        Ok(()) | Err(rustix::io::Errno::INVAL) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

fn parse(line: &str) -> Option<MountEntry> {
    let (left, right) = line.split_once(" - ")?;
    let mut left = left.split(' ').skip(3);
    let root = unescape(left.next()?);
    let mount_point = unescape(left.next()?);
    let mut right = right.splitn(3, ' ');
    Some(MountEntry {
        root,
        mount_point,
        fs_type: right.next()?.to_owned(),
        source: right.next()?.to_owned(),
        super_options: right.next().unwrap_or_default().to_owned(),
    })
}

/// The kernel writes space, tab, newline and backslash as three octal digits.
fn unescape(text: &str) -> PathBuf {
    use std::os::unix::ffi::OsStringExt;
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let digits =
            bytes.get(at + 1..at + 4).filter(|d| bytes[at] == b'\\' && d.iter().all(|c| (b'0'..b'8').contains(c)));
        match digits {
            Some(d) => {
                out.push(((d[0] - b'0') & 3) << 6 | (d[1] - b'0') << 3 | (d[2] - b'0'));
                at += 4;
            }
            None => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    PathBuf::from(std::ffi::OsString::from_vec(out))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_a_line_with_optional_fields_and_escapes() {
        let line =
            r"43 27 0:40 /sub /var/lib/a\040b rw,noatime shared:1 master:2 - btrfs /dev/loop0 rw,subvolid=5,subvol=/";
        let entry = parse(line).unwrap();
        assert_eq!(entry.root, Path::new("/sub"));
        assert_eq!(entry.mount_point, Path::new("/var/lib/a b"));
        assert_eq!((entry.fs_type.as_str(), entry.source.as_str()), ("btrfs", "/dev/loop0"));
        assert_eq!(parse("nonsense"), None);
        assert_eq!(parse(""), None);
    }

    #[test]
    fn finds_the_mount_that_holds_a_path() {
        let proc = mount_holding(Path::new("/proc/self/status")).unwrap().unwrap();
        assert_eq!(proc.mount_point, Path::new("/proc"));
        assert_eq!(proc.fs_type, "proc");
        assert!(mounted_at(Path::new("/proc/self")).unwrap().is_none());
    }
}
