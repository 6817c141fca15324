//! Small changes to the tree: look, make, rename, set the mode.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use runtime_proto::guest::{Chmod, ErrorCode, FileKind, GuestError, MakeDir, PathRef, Rename, Tell};
use rustix::fs::{AtFlags, CWD, Mode, RenameFlags, renameat_with};
use rustix::io::Errno;

use super::transfer::transfer;
use super::{FileError, absolute, act, describe, kind_of};
use crate::Agent;
use crate::serve::{Answer, done};

pub(crate) async fn stat(_agent: &Arc<Agent>, wanted: PathRef) -> Answer {
    let path = absolute(&wanted.path)?;
    Ok(Tell::File(act(wanted.user, move || describe(&path)).await?))
}

pub(crate) async fn make_dir(_agent: &Arc<Agent>, wanted: MakeDir) -> Answer {
    let path = absolute(&wanted.path)?;
    act(wanted.user, move || if wanted.parents { make_parents(&path) } else { make(&path) }).await?;
    Ok(done())
}

fn make(path: &Path) -> Result<(), FileError> {
    rustix::fs::mkdir(path, Mode::from_raw_mode(0o755)).map_err(FileError::at("making the directory", path))
}

/// Makes a directory and what is missing above it. One that exists is fine, a file in its place is not.
pub(crate) fn make_parents(path: &Path) -> Result<(), FileError> {
    let mut missing = Vec::new();
    let mut at = path;
    loop {
        match make(at) {
            Ok(()) => break,
            Err(error) if error.is(Errno::NOENT) => {
                missing.push(at);
                match at.parent() {
                    Some(parent) => at = parent,
                    None => return Err(error),
                }
            }
            Err(error) => {
                let is_dir = rustix::fs::stat(at).is_ok_and(|stat| kind_of(&stat) == FileKind::Directory);
                if !is_dir {
                    return Err(if error.is(Errno::EXIST) && at != path {
                        FileError::refused(ErrorCode::NotADirectory, at, "is not a directory")
                    } else {
                        error
                    });
                }
                break;
            }
        }
    }
    for path in missing.into_iter().rev() {
        match make(path) {
            Err(error) if !error.is(Errno::EXIST) => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

pub(crate) async fn rename(_agent: &Arc<Agent>, wanted: Rename) -> Answer {
    let from = absolute(&wanted.from)?;
    let to = absolute(&wanted.to)?;
    act(wanted.user, move || {
        let rename = |source: &Path| take_name(source, &to, wanted.overwrite);
        match rename(&from) {
            Err(Errno::XDEV) => transfer(&from, &to, |copy| rename(copy).map_err(|error| moving(error, copy, &to))),
            other => other.map_err(|error| moving(error, &from, &to)),
        }
    })
    .await?;
    Ok(done())
}

fn take_name(from: &Path, to: &Path, overwrite: bool) -> Result<(), Errno> {
    if overwrite {
        return renameat_with(CWD, from, CWD, to, RenameFlags::empty());
    }
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // Not every file system can promise it: look, then rename.
        Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {
            rustix::fs::statat(CWD, from, AtFlags::SYMLINK_NOFOLLOW)?;
            if rustix::fs::statat(CWD, to, AtFlags::SYMLINK_NOFOLLOW).is_ok() {
                return Err(Errno::EXIST);
            }
            renameat_with(CWD, from, CWD, to, RenameFlags::empty())
        }
        other => other,
    }
}

/// The kernel gives one number for two paths: say which one it was about where that can be told.
fn moving(error: Errno, from: &Path, to: &Path) -> FileError {
    let from_is_there = rustix::fs::statat(CWD, from, AtFlags::SYMLINK_NOFOLLOW).is_ok();
    let path = if from_is_there { to } else { from };
    FileError::new(if from_is_there { "moving to" } else { "moving" }, path, error.into())
}

pub(crate) async fn chmod(_agent: &Arc<Agent>, wanted: Chmod) -> Answer {
    let path = absolute(&wanted.path)?;
    if wanted.mode > 0o7777 {
        let name = String::from_utf8_lossy(path.as_os_str().as_bytes());
        return Err(GuestError::new(ErrorCode::Invalid, format!("the mode for {name} is not valid")).into());
    }
    act(wanted.user, move || {
        rustix::fs::chmod(&path, Mode::from_raw_mode(wanted.mode)).map_err(FileError::at("setting the mode of", &path))
    })
    .await?;
    Ok(done())
}
