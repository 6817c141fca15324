//! A move to another file system, where the kernel cannot rename: `/tmp` is one of its own.
//!
//! The copy is made beside its new name; then the source steps aside under a name of its own, which shows that it may be
//! taken away; then the copy takes its name, and the source is removed. Whatever fails on the way is undone, so there is
//! never a half-made tree under either name.

use std::fs::{File, FileTimes};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use runtime_proto::guest::{ErrorCode, FileKind};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, RawDir, RenameFlags, Stat, renameat_with};

use super::remove::remove;
use super::{FileError, kind_of, open_dir};
use crate::identity::random_name;

/// Names of what is under way: nothing the guest is likely to use.
const PREFIX: &str = ".runtime-move-";
/// Directories within each other; a deeper tree is refused.
const DEEPEST: usize = 256;
const MOST_ENTRIES: u64 = 1_000_000;

/// Moves `from` to `to`; `take_name` gives the finished copy its name, by the caller's rules.
pub(super) fn transfer(
    from: &Path,
    to: &Path,
    take_name: impl FnOnce(&Path) -> Result<(), FileError>,
) -> Result<(), FileError> {
    let copy = beside(to)?;
    let aside = beside(from)?;
    let made = Copying { entries: 0 }.tree(from, &copy).and_then(|()| {
        renameat_with(CWD, from, CWD, &aside, RenameFlags::empty()).map_err(FileError::at("moving", from))?;
        take_name(&copy).inspect_err(|_| {
            if let Err(error) = renameat_with(CWD, &aside, CWD, from, RenameFlags::empty()) {
                crate::log::log!("giving a file its name back failed: {error}");
            }
        })
    });
    if let Err(error) = made {
        if let Err(left) = remove(&copy, true) {
            crate::log::log!("removing a copy that is not wanted failed: {left}");
        }
        return Err(error);
    }
    remove(&aside, true).map(drop)
}

fn beside(path: &Path) -> Result<PathBuf, FileError> {
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(_)) => Ok(parent.join(format!("{PREFIX}{}", random_name()))),
        _ => Err(FileError::refused(ErrorCode::Invalid, path, "cannot be moved")),
    }
}

struct Copying {
    entries: u64,
}

impl Copying {
    /// Copies one entry and all below it. The names are read anew at each level, so the tree may be of any width.
    fn tree(&mut self, from: &Path, to: &Path) -> Result<(), FileError> {
        // What is to be done, deepest last: a directory's attributes come after its entries, which need its first ones.
        let mut todo = vec![Step::Copy(from.to_owned(), to.to_owned(), 0)];
        while let Some(step) = todo.pop() {
            match step {
                Step::Finish(path, stat) => finish_dir(&path, &stat)?,
                Step::Copy(from, to, depth) => {
                    self.entries += 1;
                    if self.entries > MOST_ENTRIES {
                        return Err(FileError::refused(
                            ErrorCode::Invalid,
                            &from,
                            "holds too many entries to be moved",
                        ));
                    }
                    let stat = rustix::fs::statat(CWD, &from, AtFlags::SYMLINK_NOFOLLOW)
                        .map_err(FileError::at("moving", &from))?;
                    match kind_of(&stat) {
                        FileKind::File => file(&from, &to, &stat)?,
                        FileKind::Symlink => link(&from, &to)?,
                        FileKind::Directory if depth == DEEPEST => {
                            return Err(FileError::refused(ErrorCode::Invalid, &from, "is too deep to be moved"));
                        }
                        FileKind::Directory => {
                            rustix::fs::mkdir(&to, Mode::from_raw_mode(0o700))
                                .map_err(FileError::at("making the directory", &to))?;
                            let entries = names(&from)?;
                            todo.push(Step::Finish(to.clone(), stat));
                            todo.extend(entries.into_iter().map(|name| {
                                let (from, to) = (from.join(&name), to.join(&name));
                                Step::Copy(from, to, depth + 1)
                            }));
                        }
                        FileKind::Other => {
                            let why = "is neither a file, a directory nor a link, and cannot go to another file system";
                            return Err(FileError::refused(ErrorCode::Invalid, &from, why));
                        }
                    }
                }
            }
        }
        Ok(())
    }
}

enum Step {
    Copy(PathBuf, PathBuf, usize),
    Finish(PathBuf, Stat),
}

fn names(dir: &Path) -> Result<Vec<PathBuf>, FileError> {
    use std::os::unix::ffi::OsStrExt;
    let fd = open_dir(CWD, dir).map_err(FileError::at("listing", dir))?;
    let mut buffer = Vec::with_capacity(32 * 1024);
    let mut entries = RawDir::new(fd, buffer.spare_capacity_mut());
    let mut found = Vec::new();
    while let Some(entry) = entries.next() {
        let entry = entry.map_err(FileError::at("listing", dir))?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            found.push(PathBuf::from(std::ffi::OsStr::from_bytes(name)));
        }
        if found.len() as u64 > MOST_ENTRIES {
            return Err(FileError::refused(ErrorCode::Invalid, dir, "holds too many entries to be moved"));
        }
    }
    Ok(found)
}

fn file(from: &Path, to: &Path, seen: &Stat) -> Result<(), FileError> {
    // Not blocking, and looked at again: the guest may have put a FIFO there meanwhile.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::NOCTTY;
    let fd = rustix::fs::open(from, flags, Mode::empty()).map_err(FileError::at("opening", from))?;
    let stat = rustix::fs::fstat(&fd).map_err(FileError::at("looking at", from))?;
    if kind_of(&stat) != FileKind::File || (stat.st_dev, stat.st_ino) != (seen.st_dev, seen.st_ino) {
        return Err(FileError::refused(ErrorCode::Invalid, from, "changed while it was moved"));
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let fresh =
        rustix::fs::open(to, flags, Mode::from_raw_mode(0o600)).map_err(FileError::at("making a file beside", to))?;
    let (mut source, mut target) = (File::from(fd), File::from(fresh));
    io::copy(&mut source, &mut target).map_err(FileError::at("writing", to))?;
    rustix::fs::fchmod(&target, Mode::from_raw_mode(stat.st_mode & 0o7777))
        .map_err(FileError::at("setting the mode of", to))?;
    target.set_times(times(&stat)).map_err(FileError::at("setting the times of", to))?;
    target.sync_all().map_err(FileError::at("syncing", to))
}

fn link(from: &Path, to: &Path) -> Result<(), FileError> {
    let target = rustix::fs::readlink(from, Vec::new()).map_err(FileError::at("reading the link", from))?;
    rustix::fs::symlink(target, to).map_err(FileError::at("making the link", to))
}

fn finish_dir(path: &Path, stat: &Stat) -> Result<(), FileError> {
    let fd = open_dir(CWD, path).map_err(FileError::at("opening the directory", path))?;
    let dir = File::from(fd);
    dir.set_times(times(stat)).map_err(FileError::at("setting the times of", path))?;
    rustix::fs::fchmod(&dir, Mode::from_raw_mode(stat.st_mode & 0o7777))
        .map_err(FileError::at("setting the mode of", path))
}

fn times(stat: &Stat) -> FileTimes {
    let at = |seconds: i64, nanos: u64| {
        let part = Duration::from_nanos(nanos.min(999_999_999));
        let whole = Duration::from_secs(seconds.unsigned_abs());
        let base = if seconds < 0 {
            SystemTime::UNIX_EPOCH.checked_sub(whole)
        } else {
            SystemTime::UNIX_EPOCH.checked_add(whole)
        };
        base.and_then(|base| base.checked_add(part)).unwrap_or(SystemTime::UNIX_EPOCH)
    };
    FileTimes::new()
        .set_accessed(at(stat.st_atime, stat.st_atime_nsec))
        .set_modified(at(stat.st_mtime, stat.st_mtime_nsec))
}
