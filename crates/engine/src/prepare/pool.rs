//! The disk pool: one btrfs in the data directory on which every sandbox's disk is a subvolume.
//!
//!     DIR/pool.img          a sparse file with the file system in it, loop-mounted at
//!     DIR/pool/base/<digest>   base images, read-only
//!     DIR/pool/root/<id>       the disks of sandboxes
//!     DIR/pool/snap/<id>       snapshots: disks and memories
//!     DIR/pool/save/<id>       memories and disks of paused sandboxes
//!
//! A data directory that already lies on a btrfs with simple quotas uses that one, without a file. (Any other
//! btrfs is left alone: turning quotas on changes a whole file system that is not ours.)
//!
//! The file is as large as the host's disk and takes up what is in it. It may therefore promise more than there
//! is: [`Pool::room`] is asked before anything grows, so that a full host never reads as a broken disk inside.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use runtime_host::btrfs::{self, BtrfsError, FsId, QuotaMode};
use runtime_host::loopdev::{self, LoopDevice};
use runtime_host::mount;
use rustix::fs::RenameFlags;

use super::spare::{self, Taken};
use super::{Base, PrepareError};

const IMAGE: &str = "pool.img";
const MOUNT: &str = "pool";
/// By which a data directory is known for one.
pub(super) const NAMES: [&str; 3] = [IMAGE, MOUNT, "setup.lock"];
const BASE: &str = "base";
const ROOT: &str = "root";
pub(crate) const SNAP: &str = "snap";
pub(crate) const SAVE: &str = "save";
const MIB: u64 = 1 << 20;

/// Growth stops when the host has less than this left: the smaller share of the two decides nothing, both hold.
const MIN_FREE_PERCENT: u64 = 10;
const MIN_FREE_BYTES: u64 = 5 << 30;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the disk below {path} has {} MiB free, and {} MiB must stay free", free_bytes / MIB, needed_bytes / MIB)]
pub struct NoRoom {
    pub path: PathBuf,
    pub free_bytes: u64,
    pub needed_bytes: u64,
}

#[derive(Debug, Clone)]
pub struct Pool {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    dir: PathBuf,
    fs: FsId,
    base: OwnedFd,
    root: OwnedFd,
    /// The root of the whole file system, where the data directory is only a part of it.
    shared: Option<PathBuf>,
    /// The disks that fill up when the pool does.
    disks: Vec<PathBuf>,
}

/// What there is of a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Found {
    /// The data directory lies on a btrfs that can be used as it is; its root is mounted here.
    Shared(PathBuf),
    Mounted,
    /// The image is there, not mounted: the machine was restarted.
    Image,
    Nothing,
}

impl Found {
    pub(super) fn look(data_dir: &Path) -> Result<Self, PrepareError> {
        let at = data_dir.join(MOUNT);
        let fail = |source| PrepareError::Io { step: "look for the mount of", path: at.clone(), source };
        if let Some(mounted) = mount::mounted_at(&at).map_err(fail)? {
            return if mounted.fs_type == "btrfs" {
                Ok(Self::Mounted)
            } else {
                let what = format!("{} has a {} mounted on it, not the pool", at.display(), mounted.fs_type);
                Err(PrepareError::Pool { what })
            };
        }
        if data_dir.join(IMAGE).is_file() {
            return Ok(Self::Image);
        }
        let holding = mount::mount_holding(data_dir).map_err(fail)?;
        if let Some(holding) = holding.filter(|m| m.fs_type == "btrfs") {
            // Before the first setup the directory itself need not exist.
            let there = data_dir.ancestors().find(|path| path.is_dir()).unwrap_or(data_dir);
            let dir = File::open(there).map_err(fail)?;
            if btrfs::quota_mode(&btrfs::fs_id(&dir)?) == QuotaMode::Simple {
                return Ok(Self::Shared(holding.mount_point));
            }
        }
        Ok(Self::Nothing)
    }
}

impl Pool {
    /// Opens what there is, mounting an image that is not mounted. `None` if there is no pool yet.
    pub fn open(data_dir: &Path) -> Result<Option<Self>, PrepareError> {
        match Found::look(data_dir)? {
            Found::Nothing => Ok(None),
            Found::Shared(root) => Self::open_dir(data_dir, Some(root)).map(Some),
            Found::Mounted => Self::open_dir(data_dir, None).map(Some),
            Found::Image => {
                mount_image(data_dir)?;
                let pool = Self::open_dir(data_dir, None)?;
                pool.discard_spares()?;
                Ok(Some(pool))
            }
        }
    }

    /// Opens the pool, and makes its file first if there is none.
    pub(super) fn create(data_dir: &Path) -> Result<Self, PrepareError> {
        if Found::look(data_dir)? == Found::Nothing {
            make_image(data_dir)?;
        }
        Self::open(data_dir)?.ok_or_else(|| PrepareError::Pool { what: "it vanished while it was set up".into() })
    }

    fn open_dir(data_dir: &Path, shared: Option<PathBuf>) -> Result<Self, PrepareError> {
        let dir = data_dir.join(MOUNT);
        if shared.is_some() {
            make_dir(&dir)?;
        }
        let top = open_fd(&dir)?;
        let fs = btrfs::fs_id(&top)?;
        match btrfs::quota_mode(&fs) {
            QuotaMode::Simple => {}
            QuotaMode::Off => btrfs::enable_simple_quota(&top)?,
            QuotaMode::Full => {
                let what = format!(
                    "{0} has full quotas, which make every clone slow; run: btrfs quota disable {0}, then runtime setup",
                    dir.display()
                );
                return Err(PrepareError::Pool { what });
            }
        }
        let mut fds = Vec::new();
        make_dir(&dir.join(SNAP))?;
        for name in [BASE, ROOT] {
            make_dir(&dir.join(name))?;
            fds.push(open_fd(&dir.join(name))?);
        }
        let (Some(root), Some(base)) = (fds.pop(), fds.pop()) else {
            return Err(PrepareError::Pool { what: "its directories could not be opened".into() });
        };
        let disks = disks_below(&dir)?;
        Ok(Self { inner: Arc::new(Inner { dir, fs, base, root, shared, disks }) })
    }

    pub fn dir(&self) -> &Path {
        &self.inner.dir
    }

    /// The pool whose file system this one is a part of, if it is.
    pub fn shared_root(&self) -> Option<&Path> {
        self.inner.shared.as_deref()
    }

    pub(super) fn fs(&self) -> &FsId {
        &self.inner.fs
    }

    pub(super) fn disks(&self) -> &[PathBuf] {
        &self.inner.disks
    }

    pub(super) fn base_fd(&self) -> &OwnedFd {
        &self.inner.base
    }

    pub(super) fn base_dir(&self) -> PathBuf {
        self.inner.dir.join(BASE)
    }

    /// A new disk for sandbox `id`: a clone of the base, never without its limit. One that exists already gets the
    /// limit and stays as it is, so the step may be repeated.
    pub fn create_root(&self, id: &str, base: &Base, disk_mib: u64) -> Result<PathBuf, BtrfsError> {
        check_id(id)?;
        let limit = disk_mib.saturating_mul(MIB);
        match self.take_spare(base, id, limit)? {
            Taken::Yes => {}
            Taken::NoneReady => return self.clone_into_root(open_source(&base.path)?, id, limit),
            Taken::Exists => self.limit_root(id, limit)?,
        }
        Ok(self.inner.dir.join(ROOT).join(id))
    }

    /// The same without the base: an empty directory of its own, for a disk that is a file.
    pub fn create_empty_root(&self, id: &str, limit_mib: u64) -> Result<PathBuf, BtrfsError> {
        check_id(id)?;
        match btrfs::create_subvolume(&self.inner.root, id) {
            Ok(()) => {}
            Err(e) if e.errno() == Some(rustix::io::Errno::EXIST.raw_os_error()) => {}
            Err(e) => return Err(e),
        }
        self.limit_root(id, limit_mib.saturating_mul(MIB))?;
        Ok(self.inner.dir.join(ROOT).join(id))
    }

    /// The path of a sandbox's disk, if it has one. A disk that cannot be opened just now is an error, not absence.
    pub fn root(&self, id: &str) -> Result<Option<PathBuf>, BtrfsError> {
        match self.open_root(id) {
            Ok(_) => Ok(Some(self.inner.dir.join(ROOT).join(id))),
            Err(e) if e.source.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Deletes a sandbox's disk with everything in it; one that is absent is fine.
    pub fn delete_root(&self, id: &str) -> Result<(), BtrfsError> {
        check_id(id)?;
        btrfs::delete_subvolume(&self.inner.root, id).map(|_| ())
    }

    pub fn set_limit(&self, id: &str, disk_mib: u64) -> Result<(), BtrfsError> {
        self.limit_root(id, disk_mib.saturating_mul(MIB))
    }

    /// Bytes the sandbox wrote itself: what it shares with its base is not counted.
    pub fn usage(&self, id: &str) -> Result<u64, BtrfsError> {
        btrfs::usage(&self.inner.fs, btrfs::subvolume_id(self.open_root(id)?)?)
    }

    /// The sandboxes that have a disk.
    pub fn roots(&self) -> Result<Vec<String>, BtrfsError> {
        Ok(self.all_roots()?.into_iter().filter(|name| !name.starts_with(spare::PREFIX)).collect())
    }

    /// Spares as well.
    pub(super) fn all_roots(&self) -> Result<Vec<String>, BtrfsError> {
        subvolumes_in(&self.inner.dir.join(ROOT))
    }

    pub(super) fn root_fd(&self) -> &OwnedFd {
        &self.inner.root
    }

    pub(super) fn limit_root(&self, id: &str, bytes: u64) -> Result<(), BtrfsError> {
        btrfs::set_limit(&self.inner.root, btrfs::subvolume_id(self.open_root(id)?)?, bytes)
    }

    /// Clones the disk of `from` for a new sandbox `to`, with the same limit.
    pub fn snapshot_root(&self, from: &str, to: &str) -> Result<PathBuf, BtrfsError> {
        let source = self.open_root(from)?;
        let limit = btrfs::limit(&self.inner.fs, btrfs::subvolume_id(&source)?)?;
        self.clone_into_root(source, to, limit)
    }

    /// A frozen copy of a sandbox's disk, as `name` in `dir`, a directory of this pool.
    pub(crate) fn keep_root(&self, id: &str, dir: &Path, name: &str) -> Result<(), BtrfsError> {
        btrfs::snapshot(self.open_root(id)?, open_source(dir)?, name, true, None)
    }

    /// The same of a copy that was kept before.
    pub(crate) fn keep_copy(&self, copy: &Path, dir: &Path, name: &str) -> Result<(), BtrfsError> {
        btrfs::snapshot(open_source(copy)?, open_source(dir)?, name, true, None)
    }

    /// A new disk for sandbox `id`: what was kept as `copy`, which stays, with a limit of its own.
    pub(crate) fn root_from(&self, copy: &Path, id: &str, disk_mib: u64) -> Result<PathBuf, BtrfsError> {
        self.clone_into_root(open_source(copy)?, id, disk_mib.saturating_mul(MIB))
    }

    /// Puts such a copy, which stays, in the place of the sandbox's disk. There is a disk at every moment; `aside` is a name
    /// in `dir` for what is under way, and may be left there by a crash.
    pub(crate) fn put_back(
        &self,
        id: &str,
        dir: &Path,
        name: &str,
        aside: &str,
        disk_mib: u64,
    ) -> Result<(), BtrfsError> {
        check_id(id)?;
        let parent = open_source(dir)?;
        btrfs::delete_subvolume(&parent, aside)?;
        let limit = disk_mib.saturating_mul(MIB);
        btrfs::snapshot(open_below(parent.as_fd(), name)?, &parent, aside, false, Some(limit))?;
        let rename = |flags| rustix::fs::renameat_with(&parent, aside, &self.inner.root, id, flags);
        match rename(RenameFlags::EXCHANGE) {
            Err(rustix::io::Errno::NOENT) => rename(RenameFlags::NOREPLACE),
            other => other,
        }
        .map_err(|e| BtrfsError { step: "put back the disk of", object: id.to_owned(), source: e.into() })?;
        btrfs::delete_subvolume(&parent, aside).map(drop)
    }

    /// May anything grow? Asked before a create, and by whatever watches the disk.
    pub fn room(&self) -> Result<(), NoRoom> {
        for disk in &self.inner.disks {
            let (total, free) = space(disk).unwrap_or((0, 0));
            check_room(disk, total, free)?;
        }
        Ok(())
    }

    /// Makes everything written to the pool so far durable.
    pub fn sync(&self) -> Result<(), BtrfsError> {
        btrfs::sync(&self.inner.root)
    }

    /// Forgets the quota records of deleted disks, which older kernels keep; how many there were.
    pub fn forget_stale_quotas(&self) -> Result<usize, BtrfsError> {
        btrfs::forget_stale_quotas(&self.inner.root, &self.inner.fs)
    }

    /// Deletes every disk, frozen copy and base image of this data directory.
    pub fn wipe(&self) -> Result<(), BtrfsError> {
        for (name, fd) in [(ROOT, &self.inner.root), (BASE, &self.inner.base)] {
            for entry in subvolumes_in(&self.inner.dir.join(name))? {
                btrfs::delete_subvolume(fd, &entry)?;
            }
        }
        let kept = [SAVE, SNAP].map(|name| fs::read_dir(self.inner.dir.join(name)).into_iter().flatten().flatten());
        for id in kept.into_iter().flatten() {
            for copy in subvolumes_in(&id.path())? {
                btrfs::delete_subvolume(open_source(&id.path())?, &copy)?;
            }
            let fail = |source| BtrfsError { step: "delete", object: id.path().display().to_string(), source };
            fs::remove_dir_all(id.path()).map_err(fail)?;
        }
        Ok(())
    }

    /// Unmounts the pool of a data directory; the loop device goes with it. Close every [`Pool`] first.
    pub fn unmount(data_dir: &Path) -> Result<(), PrepareError> {
        let at = data_dir.join(MOUNT);
        let fail = |source| PrepareError::Io { step: "unmount", path: at.clone(), source };
        if mount::mounted_at(&at).map_err(fail)?.is_some() {
            mount::unmount(&at).map_err(fail)?;
        }
        Ok(())
    }

    pub(super) fn open_root(&self, id: &str) -> Result<OwnedFd, BtrfsError> {
        open_below(self.inner.root.as_fd(), id)
    }

    fn clone_into_root(&self, source: impl AsFd, id: &str, limit: u64) -> Result<PathBuf, BtrfsError> {
        check_id(id)?;
        match btrfs::snapshot(source, &self.inner.root, id, false, Some(limit)) {
            Ok(()) => {}
            Err(e) if e.errno() == Some(rustix::io::Errno::EXIST.raw_os_error()) => self.limit_root(id, limit)?,
            Err(e) => return Err(e),
        }
        Ok(self.inner.dir.join(ROOT).join(id))
    }
}

/// Total and free bytes of the file system at `path`, as an ordinary program may use them.
pub fn space(path: &Path) -> io::Result<(u64, u64)> {
    let stat = rustix::fs::statvfs(path)?;
    let used = stat.f_blocks.saturating_sub(stat.f_bfree);
    let total = used.saturating_add(stat.f_bavail).saturating_mul(stat.f_frsize);
    Ok((total, stat.f_bavail.saturating_mul(stat.f_frsize)))
}

pub(crate) fn check_room(path: &Path, total: u64, free_bytes: u64) -> Result<(), NoRoom> {
    let needed_bytes = MIN_FREE_BYTES.max(total / 100 * MIN_FREE_PERCENT);
    if free_bytes < needed_bytes { Err(NoRoom { path: path.to_owned(), free_bytes, needed_bytes }) } else { Ok(()) }
}

/// The pool's own file system and, below a loop device, the disk that holds its file.
pub(crate) fn disks_below(dir: &Path) -> Result<Vec<PathBuf>, PrepareError> {
    let mut disks = vec![dir.to_owned()];
    let holding = mount::mount_holding(dir).map_err(|source| PrepareError::Io {
        step: "look for the mount of",
        path: dir.to_owned(),
        source,
    })?;
    let backing = holding
        .and_then(|m| m.source.strip_prefix("/dev/").and_then(loopdev::backing_file))
        .and_then(|file| file.parent().map(Path::to_owned));
    disks.extend(backing.filter(|parent| parent.is_dir()));
    Ok(disks)
}

/// The file gets its name only when the file system in it is complete.
fn make_image(data_dir: &Path) -> Result<(), PrepareError> {
    let aside = data_dir.join("pool.img.new");
    let fail = |step| {
        let path = aside.clone();
        move |source| PrepareError::Io { step, path, source }
    };
    let (total, _) = space(data_dir).map_err(fail("measure the disk for"))?;
    let file = File::create(&aside).map_err(fail("make"))?;
    if btrfs::is_btrfs(&file).map_err(fail("look at"))? {
        // Copy-on-write below copy-on-write would break every block into pieces.
        let flags = rustix::fs::ioctl_getflags(&file).map_err(|e| fail("look at")(e.into()))?;
        rustix::fs::ioctl_setflags(&file, flags | rustix::fs::IFlags::NOCOW).map_err(|e| fail("mark")(e.into()))?;
    }
    file.set_len(total / MIB * MIB).map_err(fail("size"))?;
    let output = std::process::Command::new(super::packages::tool("mkfs.btrfs").unwrap_or_else(|| "mkfs.btrfs".into()))
        .args(["-q", "-f", "-m", "single", "-d", "single", "-L", "runtime"])
        .arg(&aside)
        .stdin(std::process::Stdio::null())
        .output()
        .map_err(fail("start mkfs.btrfs for"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(PrepareError::Pool { what: format!("mkfs.btrfs {} failed: {said}", aside.display()) });
    }
    file.sync_all().map_err(fail("sync"))?;
    fs::rename(&aside, data_dir.join(IMAGE)).map_err(fail("name"))?;
    File::open(data_dir).and_then(|dir| dir.sync_all()).map_err(fail("name"))
}

fn mount_image(data_dir: &Path) -> Result<(), PrepareError> {
    let image = data_dir.join(IMAGE);
    let at = data_dir.join(MOUNT);
    make_dir(&at)?;
    let device = LoopDevice::attach(&image)?;
    mount::mount_btrfs(device.path(), &at).map_err(|source| PrepareError::Io {
        step: "mount the disk pool at",
        path: at,
        source,
    })
}

fn make_dir(path: &Path) -> Result<(), PrepareError> {
    match fs::create_dir(path) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
            Err(PrepareError::Io { step: "make", path: path.to_owned(), source: e })
        }
        _ => Ok(()),
    }
}

fn open_fd(path: &Path) -> Result<OwnedFd, PrepareError> {
    File::open(path).map(OwnedFd::from).map_err(|source| PrepareError::Io {
        step: "open",
        path: path.to_owned(),
        source,
    })
}

pub(super) fn open_source(path: &Path) -> Result<OwnedFd, BtrfsError> {
    File::open(path).map(OwnedFd::from).map_err(|source| BtrfsError {
        step: "open",
        object: path.display().to_string(),
        source,
    })
}

/// Opens a subvolume by a single name below `dir`.
fn open_below(dir: std::os::fd::BorrowedFd<'_>, name: &str) -> Result<OwnedFd, BtrfsError> {
    use rustix::fs::{Mode, OFlags};
    check_id(name)?;
    let fail = |source| BtrfsError { step: "open the disk of", object: name.to_owned(), source };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(dir, name, flags, Mode::empty()).map_err(|e| fail(e.into()))
}

/// One file name, and none of ours.
fn check_id(id: &str) -> Result<(), BtrfsError> {
    if id.is_empty() || id.starts_with('.') || id.contains(['/', '\0']) {
        let source = io::Error::from(io::ErrorKind::InvalidInput);
        return Err(BtrfsError { step: "use as the name of a disk", object: id.to_owned(), source });
    }
    Ok(())
}

/// Names of the subvolumes directly in `dir`.
pub(super) fn subvolumes_in(dir: &Path) -> Result<Vec<String>, BtrfsError> {
    let fail = |source| BtrfsError { step: "list the disks in", object: dir.display().to_string(), source };
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).map_err(fail)? {
        let Ok(name) = entry.map_err(fail)?.file_name().into_string() else { continue };
        let opened = File::open(dir.join(&name)).and_then(|fd| btrfs::is_subvolume(&fd));
        match opened {
            Ok(true) => names.push(name),
            Ok(false) => {}
            // Deleted, or given another name, since it was listed.
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(fail(e)),
        }
    }
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenth_and_five_gibibytes_must_stay_free() {
        let gib = 1 << 30;
        let at = Path::new("/d");
        assert!(check_room(at, 100 * gib, 11 * gib).is_ok());
        assert_eq!(check_room(at, 100 * gib, 9 * gib).unwrap_err().needed_bytes.div_ceil(gib), 10);
        assert!(check_room(at, 20 * gib, 6 * gib).is_ok());
        assert!(check_room(at, 20 * gib, 4 * gib).is_err());
        assert!(check_room(at, 0, 0).is_err());
    }
}
