//! Removing, also whole trees: no recursion, no link followed, whatever the guest changes meanwhile.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use runtime_proto::guest::{ErrorCode, Remove, Removed, Tell};
use rustix::fs::{AtFlags, CWD, Dir, FileType};
use rustix::io::Errno;

use super::{FileError, absolute, act, open_dir};
use crate::Agent;
use crate::serve::Answer;

/// Directories held open at once; those above are closed and found again through `..`.
const OPEN: usize = 64;
/// Directories entered in one go: a guest that fills faster than this removes does not keep a worker for ever.
const MAX_ENTERED: u64 = 10_000_000;
/// Rounds over a directory that the guest keeps filling.
const ROUNDS: usize = 8;

pub(crate) async fn serve(_agent: &Arc<Agent>, wanted: Remove) -> Answer {
    let path = absolute(&wanted.path)?;
    let removed = act(wanted.user, move || remove(&path, wanted.recursive)).await?;
    Ok(Tell::Removed(Removed { removed }))
}

pub(super) fn remove(path: &Path, recursive: bool) -> Result<bool, FileError> {
    if path.file_name().is_none() {
        return Err(FileError::refused(ErrorCode::Invalid, path, "cannot be removed"));
    }
    match rustix::fs::unlinkat(CWD, path, AtFlags::empty()) {
        Ok(()) => return Ok(true),
        // Below a file there is nothing either.
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(false),
        // The two ways of kernels to say that it is a directory.
        Err(Errno::ISDIR | Errno::PERM) if is_dir(path) => {}
        Err(error) => return Err(FileError::new("removing", path, error.into())),
    }
    for _ in 0..ROUNDS {
        match rustix::fs::unlinkat(CWD, path, AtFlags::REMOVEDIR) {
            Ok(()) => return Ok(true),
            Err(Errno::NOENT) => return Ok(false),
            Err(Errno::NOTEMPTY | Errno::EXIST) if recursive => empty(path)?,
            Err(Errno::EXIST) => return Err(FileError::new("removing", path, Errno::NOTEMPTY.into())),
            Err(error) => return Err(FileError::new("removing", path, error.into())),
        }
    }
    Err(FileError::new("removing", path, Errno::NOTEMPTY.into()))
}

fn is_dir(path: &Path) -> bool {
    rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
}

struct Level {
    name: CString,
    /// Device and inode: the directory that `..` leads back to must be this one.
    identity: (u64, u64),
    open: Option<(OwnedFd, Dir)>,
}

fn enter(parent: impl AsFd, name: &CStr) -> Result<Level, Errno> {
    let fd = open_dir(parent, name)?;
    let stat = rustix::fs::fstat(&fd)?;
    let identity = (stat.st_dev, stat.st_ino);
    let entries = Dir::read_from(&fd)?;
    Ok(Level { name: name.to_owned(), identity, open: Some((fd, entries)) })
}

/// Empties a directory, deepest first, by descriptors: neither depth nor the length of paths matters, and a link put in
/// place of a directory leads nowhere.
fn empty(path: &Path) -> Result<(), FileError> {
    let failed = |error: Errno| FileError::new("removing what is in", path, error.into());
    let name = CString::new(path.as_os_str().as_bytes()).map_err(|_| failed(Errno::INVAL))?;
    let mut stack = vec![enter(CWD, &name).map_err(failed)?];
    let mut entered = 0;
    while let Some(Level { open: Some((fd, entries)), .. }) = stack.last_mut() {
        let Some(entry) = entries.next() else {
            leave(&mut stack).map_err(failed)?;
            continue;
        };
        let name = entry.map_err(failed)?.file_name().to_owned();
        if name.as_bytes() == b"." || name.as_bytes() == b".." || unlink(&*fd, &name).map_err(failed)? {
            continue;
        }
        entered += 1;
        if entered > MAX_ENTERED {
            return Err(failed(Errno::BUSY));
        }
        match enter(&*fd, &name) {
            Ok(level) => stack.push(level),
            // Replaced by a link, or gone meanwhile: the next round sees.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
            Err(error) => return Err(failed(error)),
        }
        let high = stack.len().checked_sub(OPEN + 1).and_then(|above| stack.get_mut(above));
        if let Some(level) = high {
            level.open = None;
        }
    }
    Ok(())
}

/// Removes an entry; false if it is a directory that is not empty.
fn unlink(dir: &OwnedFd, name: &CStr) -> Result<bool, Errno> {
    match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(true),
        // The two ways of kernels to say that it is a directory.
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(error) => return Err(error),
    }
    match rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(true),
        Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(false),
        Err(Errno::NOTDIR) => Err(Errno::PERM),
        Err(error) => Err(error),
    }
}

/// Goes back to the parent and removes the directory it comes from.
fn leave(stack: &mut Vec<Level>) -> Result<(), Errno> {
    let (Some(done), Some(parent)) = (stack.pop(), stack.last_mut()) else { return Ok(()) };
    if parent.open.is_none() {
        let Some((fd, _)) = &done.open else { return Ok(()) };
        let again = enter(fd, c"..")?;
        if again.identity != parent.identity {
            // Moved elsewhere while we were in it.
            return Err(Errno::BUSY);
        }
        parent.open = again.open;
    }
    let Some((fd, _)) = &parent.open else { return Ok(()) };
    match rustix::fs::unlinkat(fd, &done.name, AtFlags::REMOVEDIR) {
        // Filled again meanwhile: the next round finds it.
        Ok(()) | Err(Errno::NOENT | Errno::NOTEMPTY | Errno::EXIST) => Ok(()),
        Err(error) => Err(error),
    }
}
