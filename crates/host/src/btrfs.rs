//! btrfs subvolumes, snapshots and simple quotas, by ioctl.
//!
//! Every sandbox's disk is a subvolume. Making one, limiting it, reading its use and deleting it lie on the path of
//! a create or a delete, so none of them starts a process. Functions take directories as descriptors and single
//! names below them: a name with a slash is refused, so nothing here can be led out of the directory it was given.
//!
//! Quotas are *simple* quotas (Linux 6.7): an extent belongs to the subvolume that wrote it, so that a clone costs
//! nothing and starts at zero. The full kind walks back references at every clone and takes minutes of CPU.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::PathBuf;

mod raw;

const FIRST_FREE_OBJECTID: u64 = 256;
const SUPER_MAGIC: i64 = 0x9123_683E;
/// How many subvolumes one tree may hold before a delete gives up: a guest cannot make any, so more is a defect.
const MAX_NESTED: usize = 10_000;

#[derive(Debug, thiserror::Error)]
#[error("btrfs: cannot {step} {object}")]
pub struct BtrfsError {
    pub step: &'static str,
    pub object: String,
    #[source]
    pub source: io::Error,
}

impl BtrfsError {
    fn new(step: &'static str, object: impl Into<String>, source: io::Error) -> Self {
        Self { step, object: object.into(), source }
    }

    /// The kernel's error number, where there was one.
    pub fn errno(&self) -> Option<i32> {
        self.source.raw_os_error()
    }
}

/// What accounting a file system does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuotaMode {
    Off,
    Simple,
    Full,
}

/// The file system's identity, as sysfs spells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FsId(String);

impl FsId {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn qgroups(&self) -> PathBuf {
        PathBuf::from("/sys/fs/btrfs").join(&self.0).join("qgroups")
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deleted {
    Yes,
    WasAbsent,
}

/// Is this directory on a btrfs?
pub fn is_btrfs(dir: impl AsFd) -> io::Result<bool> {
    Ok(rustix::fs::fstatfs(dir)?.f_type as i64 == SUPER_MAGIC)
}

/// Is this descriptor the root of a subvolume?
pub fn is_subvolume(dir: impl AsFd) -> io::Result<bool> {
    let stat = rustix::fs::fstat(&dir)?;
    Ok(stat.st_ino == FIRST_FREE_OBJECTID && is_btrfs(dir)?)
}

/// The file system that holds `dir`.
pub fn fs_id(dir: impl AsFd) -> Result<FsId, BtrfsError> {
    let mut args = raw::FsInfo::zeroed();
    raw::fs_info(dir.as_fd(), &mut args).map_err(|e| BtrfsError::new("identify", "the file system", e))?;
    let hex: Vec<String> = args.fsid.iter().map(|b| format!("{b:02x}")).collect();
    let hex = hex.concat();
    Ok(FsId(format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])))
}

/// The number of the subvolume that holds `dir`.
pub fn subvolume_id(dir: impl AsFd) -> Result<u64, BtrfsError> {
    let mut args = raw::InoLookup::zeroed();
    args.objectid = FIRST_FREE_OBJECTID;
    raw::ino_lookup(dir.as_fd(), &mut args).map_err(|e| BtrfsError::new("number", "the subvolume", e))?;
    Ok(args.treeid)
}

pub fn create_subvolume(dir: impl AsFd, name: &str) -> Result<(), BtrfsError> {
    let args = named(name).map_err(|e| BtrfsError::new("create subvolume", name, e))?;
    raw::subvol_create(dir.as_fd(), &args).map_err(|e| BtrfsError::new("create subvolume", name, e))
}

/// Clones `source` as `dir/name`. With `limit`, the clone is born with that quota: there is no moment at which it
/// exists without one.
pub fn snapshot(
    source: impl AsFd,
    dir: impl AsFd,
    name: &str,
    read_only: bool,
    limit: Option<u64>,
) -> Result<(), BtrfsError> {
    let fail = |e| BtrfsError::new("snapshot to", name, e);
    let mut args = named(name).map_err(fail)?;
    args.fd = i64::from(source.as_fd().as_raw_fd());
    if read_only {
        args.flags |= raw::SUBVOL_RDONLY;
    }
    let inherit = limit.map(raw::QgroupInherit::limited_to);
    raw::snap_create(dir.as_fd(), &mut args, inherit.as_ref()).map_err(fail)
}

/// Deletes `dir/name` and every subvolume below it. The name is gone at once; the kernel frees the space behind it.
pub fn delete_subvolume(dir: impl AsFd, name: &str) -> Result<Deleted, BtrfsError> {
    let fail = |e| BtrfsError::new("delete subvolume", name, e);
    let args = named(name).map_err(fail)?;
    let top = match open_dir(dir.as_fd(), name) {
        Ok(fd) => fd,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Deleted::WasAbsent),
        Err(e) => return Err(fail(e)),
    };
    let id = subvolume_id(&top)?;
    for child in nested(dir.as_fd(), id)? {
        raw::snap_destroy(dir.as_fd(), &raw::VolArgs::by_id(child))
            .map_err(|e| BtrfsError::new("delete subvolume", format!("{child} inside {name}"), e))?;
    }
    drop(top);
    match raw::snap_destroy(dir.as_fd(), &args) {
        Ok(()) => Ok(Deleted::Yes),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Deleted::WasAbsent),
        Err(e) => Err(fail(e)),
    }
}

pub fn set_read_only(subvolume: impl AsFd, read_only: bool) -> Result<(), BtrfsError> {
    let fail = |e| BtrfsError::new("change the read-only flag of", "the subvolume", e);
    let flags = raw::get_flags(subvolume.as_fd()).map_err(fail)?;
    let wanted = if read_only { flags | raw::SUBVOL_RDONLY } else { flags & !raw::SUBVOL_RDONLY };
    if wanted == flags {
        return Ok(());
    }
    raw::set_flags(subvolume.as_fd(), wanted).map_err(fail)
}

pub fn is_read_only(subvolume: impl AsFd) -> Result<bool, BtrfsError> {
    let flags =
        raw::get_flags(subvolume.as_fd()).map_err(|e| BtrfsError::new("read the flags of", "the subvolume", e))?;
    Ok(flags & raw::SUBVOL_RDONLY != 0)
}

pub fn quota_mode(fs: &FsId) -> QuotaMode {
    // The directory is absent while quotas are off.
    match fs::read_to_string(fs.qgroups().join("mode")) {
        Ok(mode) if mode.trim() == "squota" => QuotaMode::Simple,
        Ok(mode) if mode.trim() == "qgroup" => QuotaMode::Full,
        _ if fs.qgroups().join("enabled").exists() => QuotaMode::Full,
        _ => QuotaMode::Off,
    }
}

pub fn enable_simple_quota(dir: impl AsFd) -> Result<(), BtrfsError> {
    raw::quota_ctl(dir.as_fd(), raw::QUOTA_ENABLE_SIMPLE)
        .map_err(|e| BtrfsError::new("enable simple quotas on", "the file system (Linux 6.7 or later is needed)", e))
}

/// Limits the subvolume's own bytes, data and metadata, root inside or not. The change itself is charged to the subvolume
/// that `dir` is in: never the limited one, which may be full.
pub fn set_limit(dir: impl AsFd, subvolume: u64, bytes: u64) -> Result<(), BtrfsError> {
    raw::qgroup_limit(dir.as_fd(), subvolume, bytes)
        .map_err(|e| BtrfsError::new("limit subvolume", subvolume.to_string(), e))
}

/// Bytes the subvolume owns, from the kernel's live counter.
pub fn usage(fs: &FsId, subvolume: u64) -> Result<u64, BtrfsError> {
    read_number(fs, subvolume, "referenced")
}

/// The limit in force.
pub fn limit(fs: &FsId, subvolume: u64) -> Result<u64, BtrfsError> {
    read_number(fs, subvolume, "max_referenced")
}

/// Bytes that only this subvolume holds.
pub fn own_usage(fs: &FsId, subvolume: u64) -> Result<u64, BtrfsError> {
    read_number(fs, subvolume, "exclusive")
}

/// The limit on those, if there is one.
pub fn own_limit(fs: &FsId, subvolume: u64) -> Result<Option<u64>, BtrfsError> {
    if read_number(fs, subvolume, "limit_flags")? & raw::QGROUP_LIMIT_MAX_EXCL == 0 {
        return Ok(None);
    }
    read_number(fs, subvolume, "max_exclusive").map(Some)
}

/// Sets or lifts the limit on what only this subvolume holds; the one of [`set_limit`] stays. `dir` as there.
pub fn set_own_limit(dir: impl AsFd, subvolume: u64, bytes: Option<u64>) -> Result<(), BtrfsError> {
    raw::qgroup_limit_own(dir.as_fd(), subvolume, bytes)
        .map_err(|e| BtrfsError::new("limit the own bytes of subvolume", subvolume.to_string(), e))
}

/// Forgets the quota records of subvolumes that no longer exist; newer kernels do so by themselves. One that still
/// owns shared extents stays, and is not an error.
pub fn forget_stale_quotas(dir: impl AsFd, fs: &FsId) -> Result<usize, BtrfsError> {
    let entries = fs::read_dir(fs.qgroups()).map_err(|e| BtrfsError::new("list quotas of", fs.as_str(), e))?;
    let mut forgotten = 0;
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(id) = name.to_str().and_then(|n| n.strip_prefix("0_")).and_then(|n| n.parse::<u64>().ok()) else {
            continue;
        };
        let linked = raw::is_linked(dir.as_fd(), id).map_err(|e| BtrfsError::new("look for", id.to_string(), e))?;
        if id >= FIRST_FREE_OBJECTID && !linked && raw::qgroup_remove(dir.as_fd(), id).is_ok() {
            forgotten += 1;
        }
    }
    Ok(forgotten)
}

/// The numbers of every subvolume below `id`, deepest first.
fn nested(dir: BorrowedFd<'_>, id: u64) -> Result<Vec<u64>, BtrfsError> {
    let mut found = Vec::new();
    let mut next = 0;
    let mut current = id;
    loop {
        let children = raw::child_subvolumes(dir, current)
            .map_err(|e| BtrfsError::new("list subvolumes inside", current.to_string(), e))?;
        found.extend(children);
        if found.len() > MAX_NESTED {
            let too_many =
                io::Error::new(io::ErrorKind::QuotaExceeded, "more subvolumes inside than one delete handles");
            return Err(BtrfsError::new("delete subvolume", id.to_string(), too_many));
        }
        let Some(&following) = found.get(next) else { break };
        current = following;
        next += 1;
    }
    found.reverse();
    Ok(found)
}

fn read_number(fs: &FsId, subvolume: u64, what: &'static str) -> Result<u64, BtrfsError> {
    let path = fs.qgroups().join(format!("0_{subvolume}")).join(what);
    let fail = |e| BtrfsError::new("read", path.display().to_string(), e);
    let text = fs::read_to_string(&path).map_err(fail)?;
    if text.trim() == "none" {
        return Ok(u64::MAX);
    }
    text.trim().parse().map_err(|_| fail(io::Error::from(io::ErrorKind::InvalidData)))
}

fn named(name: &str) -> io::Result<raw::VolArgs> {
    if name.is_empty() || name == "." || name == ".." || name.contains(['/', '\0']) || name.len() > 255 {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a single file name"));
    }
    Ok(raw::VolArgs::by_name(name.as_bytes()))
}

fn open_dir(dir: BorrowedFd<'_>, name: &str) -> io::Result<std::os::fd::OwnedFd> {
    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(dir, name, flags, Mode::empty())?)
}

/// Makes everything written to the file system so far durable.
pub fn sync(dir: impl AsFd) -> Result<(), BtrfsError> {
    raw::sync(dir.as_fd()).map_err(|e| BtrfsError::new("sync", "the file system", e))
}
