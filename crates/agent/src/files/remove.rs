//! Removing, also whole trees: no recursion, no link followed, whatever the guest changes meanwhile.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use runtime_proto::guest::{ErrorCode, Remove, Removed, Tell};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::{FileError, absolute, act};
use crate::Agent;
use crate::serve::Answer;

/// Directories held open at once; a deeper tree is lifted first.
const DEEP: usize = 64;
/// Rounds over a directory that the guest keeps filling.
const ROUNDS: usize = 8;

pub(crate) async fn serve(_agent: &Arc<Agent>, wanted: Remove) -> Answer {
    let path = absolute(&wanted.path)?;
    let removed = act(wanted.user, move || remove(&path, wanted.recursive)).await?;
    Ok(Tell::Removed(Removed { removed }))
}

fn remove(path: &Path, recursive: bool) -> Result<bool, FileError> {
    if path.file_name().is_none() {
        return Err(FileError::refused(ErrorCode::Invalid, path, "cannot be removed"));
    }
    match rustix::fs::unlinkat(CWD, path, AtFlags::empty()) {
        Ok(()) => return Ok(true),
        Err(Errno::NOENT) => return Ok(false),
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
    fd: OwnedFd,
    entries: Dir,
    name: CString,
}

fn level(parent: impl AsFd, name: &CStr) -> Result<Level, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(parent, name, flags, Mode::empty())?;
    Ok(Level { entries: Dir::read_from(&fd)?, fd, name: name.to_owned() })
}

/// Empties a directory. Directories below [`DEEP`] are moved up to the top and come by again as shallow ones, so that
/// neither depth nor path length matters.
fn empty(path: &Path) -> Result<(), FileError> {
    use std::os::unix::ffi::OsStrExt;
    let failed = |error: Errno| FileError::new("removing what is in", path, error.into());
    let name = CString::new(path.as_os_str().as_bytes()).map_err(|_| failed(Errno::INVAL))?;
    let mut stack = vec![level(CWD, &name).map_err(failed)?];
    let mut lifted = 0_u64;
    while let Some(top) = stack.last_mut() {
        let Some(entry) = top.entries.next() else {
            let done = stack.pop();
            if let (Some(done), Some(parent)) = (done, stack.last()) {
                match rustix::fs::unlinkat(&parent.fd, &done.name, AtFlags::REMOVEDIR) {
                    // Filled again meanwhile, or by a lift: the next round finds it.
                    Ok(()) | Err(Errno::NOENT | Errno::NOTEMPTY | Errno::EXIST) => {}
                    Err(error) => return Err(failed(error)),
                }
            }
            continue;
        };
        let name = entry.map_err(failed)?.file_name().to_owned();
        if name.as_bytes() == b"." || name.as_bytes() == b".." {
            continue;
        }
        match rustix::fs::unlinkat(&top.fd, &name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => continue,
            Err(Errno::ISDIR | Errno::PERM) => {}
            Err(error) => return Err(failed(error)),
        }
        match rustix::fs::unlinkat(&top.fd, &name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => continue,
            Err(Errno::NOTEMPTY | Errno::EXIST) => {}
            Err(Errno::NOTDIR) => return Err(failed(Errno::PERM)),
            Err(error) => return Err(failed(error)),
        }
        if stack.len() >= DEEP {
            let lifted_name = format!(".runtime-remove-{}-{lifted}", crate::identity::random_name());
            lifted += 1;
            let (Some(first), Some(top)) = (stack.first(), stack.last()) else { return Ok(()) };
            rustix::fs::renameat(&top.fd, &name, &first.fd, lifted_name.as_str()).map_err(failed)?;
        } else {
            let Some(top) = stack.last() else { return Ok(()) };
            match level(&top.fd, &name) {
                Ok(level) => stack.push(level),
                // Replaced by a link or gone meanwhile: the next round sees.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
                Err(error) => return Err(failed(error)),
            }
        }
    }
    Ok(())
}
