//! Packing a tree: by descriptors, no link followed, each file exactly as long as its header says.
//!
//! The archive is plain GNU tar with names that begin with `./`. Sockets, pipes and devices are left out. Whatever else
//! cannot be read as it was announced ends the archive before its end mark.

use std::collections::{HashMap, HashSet};
use std::ffi::{CStr, OsStr};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use flate2::Compression;
use flate2::write::GzEncoder;
use runtime_proto::guest::ErrorCode;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use tar::{EntryType, Header};

use super::Outlet;
use crate::files::{FileError, open_dir};
use crate::users::{Users, users};

const BLOCK: usize = 512;
const PIECE: usize = 128 * 1024;
const MAX_DEPTH: usize = 1024;
/// Files of several names that are remembered; beyond, a name costs a copy.
const MAX_LINKED: usize = 50_000;

pub(super) fn open_root(path: &Path) -> Result<OwnedFd, FileError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    rustix::fs::open(path, flags, Mode::empty()).map_err(FileError::at("opening the directory", path))
}

/// Packs the directory. On a worker that acts as the user.
pub(super) fn pack(path: &Path, gzip: bool, exclude: HashSet<Vec<u8>>, mut outlet: Outlet) -> Result<(), FileError> {
    let root = open_root(path)?;
    if !gzip {
        Packer::new(path, exclude, &mut outlet).run(root)?;
        return outlet.send().map_err(FileError::at("sending", path));
    }
    let mut encoder = GzEncoder::new(outlet, Compression::fast());
    if let Err(error) = Packer::new(path, exclude, &mut encoder).run(root) {
        // Dropping it would write its trailer, and the cut would look whole.
        encoder.get_mut().close();
        return Err(error);
    }
    let mut outlet = encoder.finish().map_err(FileError::at("sending", path))?;
    outlet.send().map_err(FileError::at("sending", path))
}

struct Level {
    /// Relative, without the leading `./`.
    name: Vec<u8>,
    fd: OwnedFd,
    entries: Dir,
}

struct Packer<'a, W> {
    root: &'a Path,
    exclude: HashSet<Vec<u8>>,
    out: W,
    users: Arc<Users>,
    linked: HashMap<(u64, u64), Vec<u8>>,
    buf: Vec<u8>,
}

impl<'a, W: Write> Packer<'a, W> {
    fn new(root: &'a Path, exclude: HashSet<Vec<u8>>, out: W) -> Self {
        Self { root, exclude, out, users: users(), linked: HashMap::new(), buf: vec![0; PIECE] }
    }

    fn at(&self, name: &[u8]) -> PathBuf {
        self.root.join(OsStr::from_bytes(name))
    }

    fn failed<E: Into<io::Error>>(
        &self,
        step: &'static str,
        name: &[u8],
    ) -> impl FnOnce(E) -> FileError + use<'a, W, E> {
        let path = self.at(name);
        move |error| FileError::new(step, &path, error.into())
    }

    fn run(mut self, root: OwnedFd) -> Result<(), FileError> {
        let stat = rustix::fs::fstat(&root).map_err(self.failed("looking at", b""))?;
        self.member(b"", &stat, EntryType::Directory, b"")?;
        let entries = Dir::read_from(&root).map_err(self.failed("listing", b""))?;
        let mut stack = vec![Level { name: Vec::new(), fd: root, entries }];
        while let Some(level) = stack.last_mut() {
            let Some(entry) = level.entries.next() else {
                stack.pop();
                continue;
            };
            let entry = entry.map_err(self.failed("listing", &level.name))?;
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            let full = [&level.name[..], if level.name.is_empty() { b"" } else { b"/" }, name.to_bytes()].concat();
            if self.exclude.contains(&full) {
                continue;
            }
            if let Some(next) = self.entry(&level.fd, name, full)? {
                if stack.len() >= MAX_DEPTH {
                    let why = "is deeper than can be packed";
                    return Err(FileError::refused(ErrorCode::Invalid, &self.at(&next.name), why));
                }
                stack.push(next);
            }
        }
        self.out.write_all(&[0; 2 * BLOCK]).map_err(self.failed("sending", b""))
    }

    /// Packs one entry; a directory is to be entered next. What is gone meanwhile is no part of the tree.
    fn entry(&mut self, dir: &OwnedFd, name: &CStr, full: Vec<u8>) -> Result<Option<Level>, FileError> {
        let stat = match rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(None),
            other => other.map_err(self.failed("looking at", &full))?,
        };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                let fd = match open_dir(dir, name) {
                    Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(None),
                    other => other.map_err(self.failed("opening the directory", &full))?,
                };
                let stat = rustix::fs::fstat(&fd).map_err(self.failed("looking at", &full))?;
                let entries = Dir::read_from(&fd).map_err(self.failed("listing", &full))?;
                self.member(&full, &stat, EntryType::Directory, b"")?;
                Ok(Some(Level { name: full, fd, entries }))
            }
            FileType::Symlink => {
                let target = match rustix::fs::readlinkat(dir, name, Vec::new()) {
                    Err(Errno::NOENT | Errno::INVAL) => return Ok(None),
                    other => other.map_err(self.failed("reading the link", &full))?,
                };
                self.member(&full, &stat, EntryType::Symlink, target.as_bytes())?;
                Ok(None)
            }
            FileType::RegularFile => self.file(dir, name, &full).map(|()| None),
            _ => Ok(None),
        }
    }

    fn file(&mut self, dir: impl AsFd, name: &CStr, full: &[u8]) -> Result<(), FileError> {
        // Not blocking: what was a file a moment ago may be a pipe.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let fd = match rustix::fs::openat(dir, name, flags, Mode::empty()) {
            Err(Errno::NOENT | Errno::LOOP | Errno::NXIO) => return Ok(()),
            other => other.map_err(self.failed("opening", full))?,
        };
        let stat = rustix::fs::fstat(&fd).map_err(self.failed("looking at", full))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Ok(());
        }
        if stat.st_nlink > 1 {
            let identity = (stat.st_dev, stat.st_ino);
            if let Some(first) = self.linked.get(&identity) {
                let first = [b"./", &first[..]].concat();
                return self.member(full, &stat, EntryType::Link, &first);
            }
            if self.linked.len() < MAX_LINKED {
                self.linked.insert(identity, full.to_vec());
            }
        }
        self.content(File::from(fd), stat, full)
    }

    /// A file's header and what is in it.
    fn content(&mut self, file: File, mut stat: Stat, full: &[u8]) -> Result<(), FileError> {
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        let mut file = file.take(size);
        // The first bytes before the header: a file that is rewritten at this moment may have become shorter than it just
        // said. Where it ended is what it was.
        let mut ready = 0;
        while ready < self.buf.len() && (ready as u64) < size {
            match file.read(&mut self.buf[ready..]).map_err(self.failed("reading", full))? {
                0 => {
                    stat.st_size = ready as i64;
                    break;
                }
                got => ready += got,
            }
        }
        self.member(full, &stat, EntryType::Regular, b"")?;
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        let mut left = size;
        while left > 0 {
            if ready == 0 {
                ready = file.read(&mut self.buf).map_err(self.failed("reading", full))?;
            }
            if ready == 0 {
                let why = "became shorter while it was read";
                return Err(FileError::refused(ErrorCode::Internal, &self.at(full), why));
            }
            self.out.write_all(&self.buf[..ready]).map_err(self.failed("sending", full))?;
            left -= ready as u64;
            ready = 0;
        }
        self.pad(size, full)
    }

    fn pad(&mut self, size: u64, full: &[u8]) -> Result<(), FileError> {
        let over = (size % BLOCK as u64) as usize;
        let padding = if over == 0 { 0 } else { BLOCK - over };
        self.out.write_all(&[0; BLOCK][..padding]).map_err(self.failed("sending", full))
    }

    /// Writes a member's header, and before it its long names.
    fn member(&mut self, full: &[u8], stat: &Stat, kind: EntryType, link: &[u8]) -> Result<(), FileError> {
        let is_dir = kind == EntryType::Directory;
        let slash: &[u8] = if is_dir && !full.is_empty() { b"/" } else { b"" };
        let name = [b"./", full, slash].concat();
        self.long(&name, EntryType::GNULongName, full)?;
        self.long(link, EntryType::GNULongLink, full)?;
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(stat.st_mode & 0o7777);
        header.set_uid(stat.st_uid.into());
        header.set_gid(stat.st_gid.into());
        header.set_mtime(u64::try_from(stat.st_mtime).unwrap_or(0));
        header.set_size(if kind == EntryType::Regular { u64::try_from(stat.st_size).unwrap_or(0) } else { 0 });
        if let Some(gnu) = header.as_gnu_mut() {
            put(&mut gnu.name, &name);
            put(&mut gnu.linkname, link);
            put(&mut gnu.uname, self.users.owner(stat.st_uid).as_bytes());
            put(&mut gnu.gname, self.users.group(stat.st_gid).as_bytes());
        }
        self.write_header(header, full)
    }

    fn long(&mut self, text: &[u8], kind: EntryType, full: &[u8]) -> Result<(), FileError> {
        if text.len() <= 100 {
            return Ok(());
        }
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        let size = text.len() as u64 + 1;
        header.set_size(size);
        if let Some(gnu) = header.as_gnu_mut() {
            put(&mut gnu.name, b"././@LongLink");
        }
        self.write_header(header, full)?;
        self.out.write_all(text).and_then(|()| self.out.write_all(&[0])).map_err(self.failed("sending", full))?;
        self.pad(size, full)
    }

    fn write_header(&mut self, mut header: Header, full: &[u8]) -> Result<(), FileError> {
        header.set_cksum();
        self.out.write_all(header.as_bytes()).map_err(self.failed("sending", full))
    }
}

/// As much as fits.
fn put(field: &mut [u8], text: &[u8]) {
    let length = field.len().min(text.len());
    field[..length].copy_from_slice(&text[..length]);
}
