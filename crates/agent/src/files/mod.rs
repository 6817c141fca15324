//! Files of the sandbox, reached as the user who asks.
//!
//! The kernel decides what is allowed: each operation runs on a worker thread that has taken on the user's ids for its
//! length. Nothing here blocks on a FIFO or a device: what is not a regular file is not read.

pub(crate) mod change;
mod error;
pub(crate) mod list;
pub(crate) mod read;
pub(crate) mod remove;
mod transfer;
pub(crate) mod write;

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use runtime_host::credentials::Acting;
use runtime_proto::guest::{ErrorCode, FileInfo, FileKind, GuestError, User};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, Stat};
use rustix::io::Errno;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

pub(crate) use error::FileError;

use crate::users::users;

/// Workers that may be at file work at once: 12 of 32. Twelve more may be at archives. The others are for what ends processes and starts them, which
/// no slow disk or endless tree may hold up.
static PLACES: Semaphore = Semaphore::const_new(12);

/// Waits for a place and does file work there. The place is the work's, not its caller's, who may go away.
pub(crate) async fn at_work<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, GuestError> {
    let closed = |_| GuestError::new(ErrorCode::Internal, "reaching a file: no worker is left");
    let place = PLACES.acquire().await.map_err(closed)?;
    Ok(tokio::task::spawn_blocking(move || {
        let _place = place;
        work()
    }))
}

/// Runs file work as the user, off the thread that serves everybody.
pub(crate) async fn act<T: Send + 'static>(
    user: i32,
    work: impl FnOnce() -> Result<T, FileError> + Send + 'static,
) -> Result<T, GuestError> {
    let user = User::try_from(user)
        .map_err(|_| GuestError::new(ErrorCode::Invalid, "reaching a file: the user is unknown"))?;
    match at_work(move || act_here(user, work)).await?.await {
        Ok(result) => result.map_err(|error| error.to_guest()),
        Err(_) => Err(GuestError::new(ErrorCode::Internal, "reaching a file: the worker ended early")),
    }
}

/// Runs file work as the user on this thread.
pub(crate) fn act_here<T>(user: User, work: impl FnOnce() -> Result<T, FileError>) -> Result<T, FileError> {
    if user == User::Root {
        return work();
    }
    let identity = users().identity_of(user);
    let acting = Acting::begin(identity.uid, identity.gid, &identity.groups)
        .map_err(|source| FileError::new("taking on the user's identity", Path::new("/"), source))?;
    let result = work();
    drop(acting);
    result
}

/// An absolute path without `.`; `..` is kept, since links decide what it means.
pub(crate) fn absolute(path: &str) -> Result<PathBuf, GuestError> {
    let invalid = |why: &str| {
        let shown: String = path.chars().take(200).collect();
        GuestError::new(ErrorCode::Invalid, format!("the path {shown:?} {why}"))
    };
    if !path.starts_with('/') {
        return Err(invalid("is not absolute"));
    }
    if path.contains('\0') {
        return Err(invalid("holds a NUL"));
    }
    if path.len() >= 4096 {
        return Err(invalid("is longer than a path may be"));
    }
    Ok(Path::new(path).components().filter(|part| *part != Component::CurDir).collect())
}

/// Opens a directory in a directory, and nothing through a link. Not by `O_DIRECTORY`: with it gVisor follows a link in
/// spite of `O_NOFOLLOW`. What was opened is compared with what bears the name.
pub(crate) fn open_dir(parent: impl AsFd, name: impl rustix::path::Arg + Copy) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let named = rustix::fs::statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
    if kind_of(&named) != FileKind::Directory {
        return Err(Errno::NOTDIR);
    }
    let fd = rustix::fs::openat(&parent, name, flags, Mode::empty())?;
    let stat = rustix::fs::fstat(&fd)?;
    if (stat.st_dev, stat.st_ino) != (named.st_dev, named.st_ino) {
        return Err(Errno::LOOP);
    }
    Ok(fd)
}

/// Everything about one path, links not followed.
pub(crate) fn describe(path: &Path) -> Result<FileInfo, FileError> {
    let step = |source: rustix::io::Errno| FileError::new("looking at", path, source.into());
    let stat = rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW).map_err(step)?;
    let target = (kind_of(&stat) == FileKind::Symlink)
        .then(|| rustix::fs::readlink(path, Vec::new()).ok())
        .flatten()
        .map(|target| String::from_utf8_lossy(target.as_bytes()).into_owned());
    Ok(info(path, &stat, target))
}

pub(crate) fn info(path: &Path, stat: &Stat, symlink_target: Option<String>) -> FileInfo {
    let users = users();
    FileInfo {
        path: String::from_utf8_lossy(path.as_os_str().as_bytes()).into_owned(),
        kind: kind_of(stat) as i32,
        size: u64::try_from(stat.st_size).unwrap_or(0),
        mode: stat.st_mode & 0o7777,
        mtime_ms: stat.st_mtime.saturating_mul(1000).saturating_add(stat.st_mtime_nsec as i64 / 1_000_000),
        uid: stat.st_uid,
        gid: stat.st_gid,
        owner: users.owner(stat.st_uid),
        group: users.group(stat.st_gid),
        symlink_target,
    }
}

pub(crate) fn kind_of(stat: &Stat) -> FileKind {
    match rustix::fs::FileType::from_raw_mode(stat.st_mode) {
        rustix::fs::FileType::RegularFile => FileKind::File,
        rustix::fs::FileType::Directory => FileKind::Directory,
        rustix::fs::FileType::Symlink => FileKind::Symlink,
        _ => FileKind::Other,
    }
}
