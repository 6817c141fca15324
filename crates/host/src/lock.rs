//! One owner per data directory: an advisory lock that ends with its holder, however it ends.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

#[derive(Debug, thiserror::Error)]
pub enum LockError {
    #[error("{path} is held by {}", match pid { Some(pid) => format!("process {pid}"), None => "another process".into() })]
    Held { path: PathBuf, pid: Option<u32> },
    #[error("cannot {step} the lock file {path}")]
    File {
        step: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Held until dropped. The descriptor is close-on-exec, so no helper process inherits the lock.
#[derive(Debug)]
pub struct Lock {
    file: File,
}

impl Lock {
    pub fn acquire(path: &Path) -> Result<Self, LockError> {
        let fail = |step| move |source| LockError::File { step, path: path.to_owned(), source };
        let mut file = open(path).map_err(fail("open"))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(LockError::Held { path: path.to_owned(), pid: pid_in(&mut file) }),
            Err(e) => return Err(fail("take")(e.into())),
        }
        file.set_len(0).map_err(fail("write"))?;
        file.rewind().map_err(fail("write"))?;
        writeln!(file, "{}", std::process::id()).map_err(fail("write"))?;
        Ok(Self { file })
    }

    /// Who holds the lock now: `None` when nobody does.
    pub fn holder(path: &Path) -> Result<Option<Holder>, LockError> {
        let fail = |step| move |source| LockError::File { step, path: path.to_owned(), source };
        let mut file = match OpenOptions::new().read(true).custom_flags(libc::O_CLOEXEC).open(path) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(fail("open")(e)),
        };
        match flock(&file, FlockOperation::NonBlockingLockShared) {
            Ok(()) => Ok(None),
            Err(Errno::WOULDBLOCK) => Ok(Some(Holder { pid: pid_in(&mut file) })),
            Err(e) => Err(fail("test")(e.into())),
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing would do; unlocking first also covers a descriptor that a fork still shares.
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holder {
    pub pid: Option<u32>,
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(libc::O_CLOEXEC)
        .open(path)
}

fn pid_in(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.take(32).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_taker_learns_who_holds_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        assert_eq!(Lock::holder(&path).unwrap(), None);
        let held = Lock::acquire(&path).unwrap();
        let me = std::process::id();
        match Lock::acquire(&path) {
            Err(LockError::Held { pid, .. }) => assert_eq!(pid, Some(me)),
            other => panic!("expected Held, got {other:?}"),
        }
        assert_eq!(Lock::holder(&path).unwrap(), Some(Holder { pid: Some(me) }));
        drop(held);
        assert_eq!(Lock::holder(&path).unwrap(), None);
        Lock::acquire(&path).unwrap();
    }
}
