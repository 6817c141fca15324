//! One file that comes in chunks: it lies beside its target until it is whole, under a name that only we give.
//!
//! The file is reached through the descriptor it was made with: what the guest does to its name meanwhile changes what
//! is found at the end, and never where bytes go.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use runtime_proto::guest::{ErrorCode, FileInfo, FileKind, UPLOAD_CHUNK, User};
use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags, renameat_with};
use rustix::io::Errno;
use sha2::{Digest, Sha256};

use super::journal;
use crate::files::write::open_parent;
use crate::files::{FileError, act_here, info, kind_of};

/// Names of files that are being uploaded.
pub(super) const PREFIX: &str = ".runtime-upload-";
/// Read at once when the digest is taken.
const PIECE: usize = 256 * 1024;

pub(crate) struct Staged {
    path: PathBuf,
    dir: OwnedFd,
    name: String,
    file: Arc<File>,
    size: u64,
    sha256: [u8; 32],
    mode: u32,
    user: User,
    have: Mutex<Have>,
    /// Held shared while a chunk is written, alone while the file ends. True: it has ended.
    gate: tokio::sync::RwLock<bool>,
    note: Option<PathBuf>,
}

/// Which chunks are here: a bit for each.
struct Have {
    bits: Vec<u64>,
    bytes: u64,
}

impl Staged {
    /// Makes the file. As the user it is for, on a worker.
    pub(crate) fn begin(
        path: &Path,
        size: u64,
        sha256: [u8; 32],
        mode: u32,
        user: User,
        id: &str,
    ) -> Result<Self, FileError> {
        let name = format!("{PREFIX}{}", crate::identity::random_name());
        let (dir, file) = act_here(user, || make(path, &name))?;
        let note = path.parent().and_then(|parent| journal::note(id, &parent.join(&name)));
        let chunks = usize::try_from(size.div_ceil(UPLOAD_CHUNK)).unwrap_or(usize::MAX);
        Ok(Self {
            path: path.to_owned(),
            dir,
            name,
            file: Arc::new(file),
            size,
            sha256,
            mode,
            user,
            have: Mutex::new(Have { bits: vec![0; chunks.div_ceil(64)], bytes: 0 }),
            gate: tokio::sync::RwLock::new(false),
            note,
        })
    }

    fn have(&self) -> MutexGuard<'_, Have> {
        self.have.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn received(&self) -> u64 {
        self.have().bytes
    }

    /// The bytes that belong at an offset; `None` if no chunk begins there.
    pub(crate) fn length_at(&self, offset: u64) -> Option<u64> {
        (offset.is_multiple_of(UPLOAD_CHUNK) && offset < self.size).then(|| UPLOAD_CHUNK.min(self.size - offset))
    }

    /// Completes when no one ends the file; while it is held, nobody can.
    pub(crate) async fn writing(&self) -> Option<tokio::sync::RwLockReadGuard<'_, bool>> {
        Some(self.gate.read().await).filter(|ended| !**ended)
    }

    /// Completes when no chunk is being written.
    pub(crate) async fn ending(&self) -> Option<tokio::sync::RwLockWriteGuard<'_, bool>> {
        Some(self.gate.write().await).filter(|ended| !**ended)
    }

    /// Writes a whole chunk, on a worker.
    pub(crate) fn write(&self, offset: u64, data: &Bytes) -> Result<(), FileError> {
        self.file.write_all_at(data, offset).map_err(FileError::at("writing", &self.path))?;
        let at = offset / UPLOAD_CHUNK;
        let (word, bit) = ((at / 64) as usize, 1 << (at % 64));
        let mut have = self.have();
        if let Some(word) = have.bits.get_mut(word)
            && *word & bit == 0
        {
            *word |= bit;
            have.bytes += data.len() as u64;
        }
        Ok(())
    }

    /// Gives the file its name, if all of it is here and it is what was announced. On a worker, with the gate held.
    pub(crate) fn commit(&self) -> Result<FileInfo, FileError> {
        let received = self.received();
        if received < self.size {
            return Err(FileError::refused(ErrorCode::UploadIncomplete, &self.path, "has not come whole yet"));
        }
        if self.digest()? != self.sha256 {
            return Err(FileError::refused(ErrorCode::DigestMismatch, &self.path, "is not what was announced"));
        }
        act_here(self.user, || self.take_name())
    }

    /// Of what lies on the disk, whoever wrote it.
    fn digest(&self) -> Result<[u8; 32], FileError> {
        let mut hash = Sha256::new();
        let mut buf = vec![0; PIECE];
        let mut offset = 0;
        while offset < self.size {
            let wanted = PIECE.min(usize::try_from(self.size - offset).unwrap_or(PIECE));
            match self.file.read_at(&mut buf[..wanted], offset).map_err(FileError::at("reading", &self.path))? {
                // Cut by the guest: no digest of it can be right.
                0 => break,
                count => {
                    hash.update(&buf[..count]);
                    offset += count as u64;
                }
            }
        }
        Ok(hash.finalize().into())
    }

    fn take_name(&self) -> Result<FileInfo, FileError> {
        let path = &self.path;
        let name = path.file_name().unwrap_or_default();
        rustix::fs::fchmod(&self.file, Mode::from_raw_mode(self.mode))
            .map_err(FileError::at("setting the mode of", path))?;
        self.file.sync_all().map_err(FileError::at("syncing", path))?;
        let stat = rustix::fs::fstat(&self.file).map_err(FileError::at("looking at", path))?;
        let named = rustix::fs::statat(&self.dir, self.name.as_str(), AtFlags::SYMLINK_NOFOLLOW)
            .map_err(FileError::at("finding the uploaded file beside", path))?;
        if (named.st_dev, named.st_ino) != (stat.st_dev, stat.st_ino) || u64::try_from(stat.st_size) != Ok(self.size) {
            return Err(FileError::refused(ErrorCode::DigestMismatch, path, "was changed while it was uploaded"));
        }
        renameat_with(&self.dir, self.name.as_str(), &self.dir, name, RenameFlags::empty())
            .map_err(FileError::at("giving its name to", path))?;
        // Some file systems cannot sync a directory; the file itself is safe.
        let _ = rustix::fs::fsync(&self.dir);
        Ok(info(path, &stat, None))
    }

    /// Takes its own name away, if it still has it.
    pub(super) fn remove(&self) {
        let _ = rustix::fs::unlinkat(&self.dir, self.name.as_str(), AtFlags::empty());
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        self.remove();
        if let Some(note) = &self.note {
            let _ = std::fs::remove_file(note);
        }
        // The last descriptor frees the space, which takes a while for gigabytes.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let file = self.file.clone();
            runtime.spawn_blocking(move || drop(file));
        }
    }
}

fn make(path: &Path, name: &str) -> Result<(OwnedFd, File), FileError> {
    let (Some(parent), Some(target)) = (path.parent(), path.file_name()) else {
        return Err(FileError::refused(ErrorCode::IsADirectory, path, "is a directory"));
    };
    let dir = open_parent(parent)?;
    match rustix::fs::statat(&dir, target, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) if kind_of(&stat) == FileKind::Directory => {
            return Err(FileError::refused(ErrorCode::IsADirectory, path, "is a directory"));
        }
        Ok(_) | Err(Errno::NOENT) => {}
        // A name that is too long is told before a gigabyte has come.
        Err(error) => return Err(FileError::new("looking at", path, error.into())),
    }
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let fd = rustix::fs::openat(&dir, name, flags, Mode::from_raw_mode(0o600))
        .map_err(FileError::at("making a file beside", path))?;
    Ok((dir, File::from(fd)))
}
