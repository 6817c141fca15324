//! Whole files, written so that a reader sees the old one or the new one and never a part.
//!
//! The content goes to a file without a name in the same directory's file system, or a temporary name beside the
//! target, is synced, and takes the target's name at once. A symbolic link at the target is replaced, as is a hard
//! link's name; what they pointed to stays as it was. Mode bits are the ones asked for, whatever stood there before.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use runtime_proto::channel::Stream;
use runtime_proto::guest::{DATA_STEP, ErrorCode, FileInfo, GuestError, Tell, User, WriteFile, decode_input};
use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags, renameat_with};
use rustix::io::Errno;
use tokio::sync::{Semaphore, mpsc};

use super::{FileError, absolute, act_here, at_work, info};
use crate::Agent;
use crate::process::launch::HOME;
use crate::serve::Failure;

/// Names of files that are being written: nothing the guest is likely to use, and told apart from each other.
const PREFIX: &str = ".runtime-write-";

/// A file that may wait in memory until all of it has come.
const SMALL: u64 = 1024 * 1024;
/// Large files that are written at once.
static LARGE: Semaphore = Semaphore::const_new(8);

enum Part {
    Data(bytes::Bytes),
    /// All of it came.
    Commit,
}

pub(crate) async fn serve(_agent: &Arc<Agent>, wanted: WriteFile, stream: &mut Stream) -> Result<Tell, Failure> {
    let path = absolute(&wanted.path)?;
    let user = User::try_from(wanted.user)
        .map_err(|_| GuestError::new(ErrorCode::Invalid, "writing a file: the user is unknown"))?;
    if wanted.mode > 0o7777 {
        return Err(GuestError::new(ErrorCode::Invalid, "writing a file: the mode is not valid").into());
    }
    let size = wanted.size;
    let mode = wanted.mode;
    // One worker keeps the file from the first byte to the last. For a small file it begins when all has come, so that
    // a slow host holds none; large ones wait for one of a few, and their short queue makes a slow disk slow the host.
    let small = size <= SMALL;
    let _place = if small { None } else { Some(LARGE.acquire().await.map_err(|_| Failure::Gone)?) };
    let (parts, received) = mpsc::channel(if small { SMALL as usize / 1024 } else { 8 });
    let start = move || at_work(move || act_here(user, || write(&path, mode, received)));
    let (mut worker, mut start) = if small { (None, Some(start)) } else { (Some(start().await?), None) };
    let mut taken = 0;
    let mut messages = 0;
    let complete = loop {
        let Some(message) = stream.recv().await? else { break taken == size };
        let Ok(input) = decode_input(message) else { break false };
        taken += input.data.len() as u64;
        messages += 1;
        if taken > size || input.data.len() > DATA_STEP + 1024 || (small && messages >= SMALL / 1024) {
            break false;
        }
        // A worker that failed has dropped its end; its own error is the answer.
        if parts.send(Part::Data(input.data)).await.is_err() {
            break true;
        }
    };
    if let Some(start) = start.take() {
        worker = Some(start().await?);
    }
    let Some(worker) = worker else { return Err(Failure::Gone) };
    if complete {
        let _ = parts.send(Part::Commit).await;
    }
    drop(parts);
    match worker.await {
        Ok(Ok(Some(info))) => Ok(Tell::File(info)),
        Ok(Ok(None)) => {
            let message = format!("writing {}: {size} bytes were announced, {taken} came", wanted.path);
            Err(GuestError::new(ErrorCode::Invalid, message).into())
        }
        Ok(Err(error)) => Err(error.to_guest().into()),
        Err(_) => Err(GuestError::new(ErrorCode::Internal, "writing a file: the worker ended early").into()),
    }
}

/// A temporary file that is removed unless it got its final name.
struct Temporary {
    dir: OwnedFd,
    name: Option<String>,
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            let _ = rustix::fs::unlinkat(&self.dir, name.as_str(), AtFlags::empty());
        }
    }
}

/// `None`: not all of it came, and nothing was changed.
fn write(path: &Path, mode: u32, mut parts: mpsc::Receiver<Part>) -> Result<Option<FileInfo>, FileError> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(FileError::refused(ErrorCode::IsADirectory, path, "is a directory"));
    };
    let dir = open_parent(parent)?;
    if let Ok(stat) = rustix::fs::statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW)
        && super::kind_of(&stat) == runtime_proto::guest::FileKind::Directory
    {
        return Err(FileError::refused(ErrorCode::IsADirectory, path, "is a directory"));
    }
    let temporary_name = format!("{PREFIX}{}", crate::identity::random_name());
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let fd = rustix::fs::openat(&dir, temporary_name.as_str(), flags, Mode::from_raw_mode(0o600))
        .map_err(FileError::at("making a file beside", path))?;
    let mut temporary = Temporary { dir, name: Some(temporary_name) };
    let mut file = File::from(fd);
    loop {
        match parts.blocking_recv() {
            Some(Part::Data(data)) => file.write_all(&data).map_err(FileError::at("writing", path))?,
            Some(Part::Commit) => break,
            None => return Ok(None),
        }
    }
    rustix::fs::fchmod(&file, Mode::from_raw_mode(mode)).map_err(FileError::at("setting the mode of", path))?;
    file.sync_all().map_err(FileError::at("syncing", path))?;
    let stat = rustix::fs::fstat(&file).map_err(FileError::at("looking at", path))?;
    let temporary_name = temporary.name.clone().unwrap_or_default();
    renameat_with(&temporary.dir, temporary_name.as_str(), &temporary.dir, name, RenameFlags::empty())
        .map_err(FileError::at("giving its name to", path))?;
    temporary.name = None;
    // Some file systems cannot sync a directory; the file itself is safe.
    let _ = rustix::fs::fsync(&temporary.dir);
    Ok(Some(info(path, &stat, None)))
}

/// The parent directory; made with its own parents below the home, nowhere else.
pub(crate) fn open_parent(parent: &Path) -> Result<OwnedFd, FileError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    match rustix::fs::open(parent, flags, Mode::empty()) {
        Ok(fd) => return Ok(fd),
        Err(Errno::NOENT) if under_home(parent) => {}
        // Write and search suffice to write into a directory.
        Err(Errno::ACCESS) => {
            return rustix::fs::open(parent, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
                .map_err(FileError::at("opening the directory", parent));
        }
        Err(error) => return Err(FileError::new("opening the directory", parent, error.into())),
    }
    super::change::make_parents(parent)?;
    let fd = rustix::fs::open(parent, flags, Mode::empty()).map_err(FileError::at("opening the directory", parent))?;
    // A new directory must outlive a crash as its file does.
    let mut above: Option<PathBuf> = parent.parent().map(Path::to_owned);
    while let Some(dir) = above.filter(|dir| under_home(dir)) {
        if let Ok(fd) = rustix::fs::open(&dir, flags, Mode::empty()) {
            let _ = rustix::fs::fsync(fd.as_fd());
        }
        above = dir.parent().map(Path::to_owned);
    }
    Ok(fd)
}

/// By its words: a path that climbs out again is not below.
fn under_home(path: &Path) -> bool {
    path.starts_with(HOME) && !path.components().any(|part| part == std::path::Component::ParentDir)
}
