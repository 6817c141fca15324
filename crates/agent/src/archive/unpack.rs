//! Unpacking into a directory: each name is walked from there, one part at a time, and no link is followed on the way.
//!
//! Links are made as the archive says, wherever they point: they are content. A member whose name leads through one, or
//! up, or begins at the root, is refused, and with it the archive. What was unpacked before stays. A directory that was
//! there keeps its mode; a file that was there is replaced, and never written into. Everything belongs to the user who
//! unpacks.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io::{BufReader, Cursor, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;
use runtime_proto::guest::ErrorCode;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Timespec, Timestamps};
use rustix::io::Errno;

use super::members::{Kind, Member, Members};
use super::{invalid, refused};
use crate::files::change::make_parents;
use crate::files::{self, FileError};

const GZIP: [u8; 2] = [0x1f, 0x8b];
const PIECE: usize = 128 * 1024;
/// What may follow the end mark: writers fill up to whole records.
const AFTER_END: u64 = 16 * 1024 * 1024;
/// Names of directories that wait for their modes.
const MAX_WAITING: usize = 8 * 1024 * 1024;
const MAX_PARTS: usize = 1024;
/// Times that every file system takes.
const LATEST: i64 = 1 << 33;

/// Unpacks a tar, or a gzip of one, into a directory, which is made if it is missing. On a worker that acts as the user.
pub(crate) fn unpack(root: &Path, mut input: impl Read) -> Result<(), FileError> {
    make_parents(root).map_err(|error| match error.is(Errno::EXIST) {
        true => FileError::refused(ErrorCode::NotADirectory, root, "is not a directory"),
        false => error,
    })?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = rustix::fs::open(root, flags, Mode::empty()).map_err(FileError::at("opening the directory", root))?;
    let mut head = [0; 2];
    input.read_exact(&mut head).map_err(|_| invalid("is cut short"))?;
    let whole = BufReader::with_capacity(PIECE, Cursor::new(head).chain(input));
    let tree = Tree::new(root, dir);
    if head == GZIP {
        tree.take(Members::new(BufReader::with_capacity(PIECE, MultiGzDecoder::new(whole))))
    } else {
        tree.take(Members::new(whole))
    }
}

/// How a directory is to be once it is full.
#[derive(Clone, Copy)]
struct Finish {
    mode: u32,
    mtime: Option<i64>,
}

struct Tree<'a> {
    shown: &'a Path,
    root: OwnedFd,
    /// The directories of the last member, from the top, open.
    open: Vec<(Vec<u8>, OwnedFd)>,
    /// Directories made here, by name, in their final state.
    made: HashMap<Vec<u8>, Finish>,
    made_bytes: usize,
}

impl<'a> Tree<'a> {
    fn new(shown: &'a Path, root: OwnedFd) -> Self {
        Self { shown, root, open: Vec::new(), made: HashMap::new(), made_bytes: 0 }
    }

    fn take<R: Read>(mut self, mut members: Members<R>) -> Result<(), FileError> {
        let mut buf = vec![0; PIECE];
        while let Some(member) = members.next()? {
            let parts = parts(&member.name)?;
            match (member.kind, parts.split_last()) {
                // The directory itself.
                (Kind::Directory, None) => {}
                (Kind::Directory, Some(_)) => self.directory(&parts, &member)?,
                (_, None) => return Err(refused(&member.name, "is no name of a file")),
                (Kind::File, Some((name, above))) => self.file(above, name, &member, &mut members, &mut buf)?,
                (Kind::Symlink, Some((name, above))) => self.symlink(above, name, &member)?,
                (Kind::HardLink, Some((name, above))) => self.hard_link(above, name, &member)?,
            }
        }
        members.finish(AFTER_END)?;
        self.finish_directories();
        // Files written through the API are on the disk before the answer.
        rustix::fs::syncfs(&self.root).map_err(FileError::at("syncing", self.shown))
    }

    fn at(&self, name: &[u8]) -> PathBuf {
        self.shown.join(OsStr::from_bytes(name))
    }

    fn failed(&self, step: &'static str, name: &[u8]) -> impl FnOnce(Errno) -> FileError + use<> {
        let path = self.at(name);
        move |errno| match errno {
            Errno::LOOP | Errno::NOTDIR => {
                FileError::refused(ErrorCode::InvalidArchive, &path, "leads through something that is no directory")
            }
            errno => FileError::new(step, &path, errno.into()),
        }
    }

    /// Opens a directory below, made if it is missing, and leaves it as the last of those that are open.
    fn enter(&mut self, parts: &[&[u8]], full: &[u8]) -> Result<(), FileError> {
        let same = self.open.iter().zip(parts).take_while(|((have, _), want)| have == *want).count();
        self.open.truncate(same);
        for at in same..parts.len() {
            let part = parts[at];
            let step = "opening a directory of";
            let fd = match open_dir(self.last(), part) {
                Err(Errno::NOENT) => {
                    self.make(&parts[..=at], Mode::from_raw_mode(0o755))
                        .map_err(self.failed("making a directory of", full))?;
                    open_dir(self.last(), part).map_err(self.failed(step, full))?
                }
                other => other.map_err(self.failed(step, full))?,
            };
            self.open.push((part.to_vec(), fd));
        }
        Ok(())
    }

    /// The deepest open directory.
    fn last(&self) -> &OwnedFd {
        self.open.last().map_or(&self.root, |(_, fd)| fd)
    }

    /// Makes the last of the parts in the directory that is open, and remembers that it is ours; false if it was there.
    fn make(&mut self, parts: &[&[u8]], mode: Mode) -> Result<bool, Errno> {
        let name = parts.last().copied().unwrap_or_default();
        match rustix::fs::mkdirat(self.last(), OsStr::from_bytes(name), mode) {
            Ok(()) => {}
            Err(Errno::EXIST) => return Ok(false),
            Err(error) => return Err(error),
        }
        let path = parts.join(&b'/');
        if self.made_bytes + path.len() <= MAX_WAITING {
            self.made_bytes += path.len() + size_of::<Finish>() + 64;
            self.made.insert(path, Finish { mode: mode.as_raw_mode(), mtime: None });
        }
        Ok(true)
    }

    fn directory(&mut self, parts: &[&[u8]], member: &Member) -> Result<(), FileError> {
        let (_, above) = parts.split_last().unwrap_or((&&b""[..], &[]));
        self.enter(above, &member.name)?;
        // Its owner must be able to fill it; it gets its mode at the end.
        let made = self
            .make(parts, Mode::from_raw_mode(member.mode & 0o7777 | 0o700))
            .map_err(self.failed("making a directory of", &member.name))?;
        self.enter(parts, &member.name)?;
        match self.made.get_mut(&parts.join(&b'/')) {
            Some(finish) => *finish = Finish { mode: member.mode & 0o7777, mtime: Some(member.mtime) },
            None if made => {
                let mode = Mode::from_raw_mode(member.mode & 0o7777 | 0o700);
                rustix::fs::fchmod(self.last(), mode).map_err(self.failed("setting the mode of", &member.name))?;
            }
            None => {}
        }
        Ok(())
    }

    /// Makes place for a new name: what is there goes, unless it is a directory.
    fn clear(&self, name: &[u8], full: &[u8]) -> Result<(), FileError> {
        let (dir, name) = (self.last(), OsStr::from_bytes(name));
        match rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(self.failed("looking at", full)(error)),
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => {
                Err(FileError::refused(ErrorCode::IsADirectory, &self.at(full), "is a directory"))
            }
            Ok(_) => match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => Ok(()),
                Err(error) => Err(self.failed("replacing", full)(error)),
            },
        }
    }

    fn file<R: Read>(
        &mut self,
        above: &[&[u8]],
        name: &[u8],
        member: &Member,
        members: &mut Members<R>,
        buf: &mut [u8],
    ) -> Result<(), FileError> {
        let full = &member.name;
        self.enter(above, full)?;
        self.clear(name, full)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let os_name = OsStr::from_bytes(name);
        let fd = rustix::fs::openat(self.last(), os_name, flags, Mode::from_raw_mode(0o600))
            .map_err(self.failed("making", full))?;
        let mut file = std::fs::File::from(fd);
        let copied = copy(members, &mut file, buf, &self.at(full));
        if copied.is_err() {
            // Half a file is worse than none.
            let _ = rustix::fs::unlinkat(self.last(), os_name, AtFlags::empty());
        }
        copied?;
        rustix::fs::fchmod(&file, Mode::from_raw_mode(member.mode & 0o7777))
            .map_err(self.failed("setting the mode of", full))?;
        let _ = rustix::fs::futimens(&file, &times(member.mtime));
        Ok(())
    }

    fn symlink(&mut self, above: &[&[u8]], name: &[u8], member: &Member) -> Result<(), FileError> {
        let full = &member.name;
        if member.link.is_empty() || member.link.contains(&0) {
            return Err(refused(full, "is a link to nothing"));
        }
        self.enter(above, full)?;
        self.clear(name, full)?;
        rustix::fs::symlinkat(OsStr::from_bytes(&member.link), self.last(), OsStr::from_bytes(name))
            .map_err(self.failed("making the link", full))
    }

    /// To a file of the same tree, found as names are: from the top, through directories only.
    fn hard_link(&mut self, above: &[&[u8]], name: &[u8], member: &Member) -> Result<(), FileError> {
        let full = &member.name;
        let to = parts(&member.link)?;
        let Some((target, target_above)) = to.split_last() else {
            return Err(refused(full, "is a link to nothing"));
        };
        let mut from: Option<OwnedFd> = None;
        for part in target_above {
            let next = open_dir(from.as_ref().unwrap_or(&self.root), part);
            from = Some(next.map_err(self.failed("finding what is linked by", full))?);
        }
        self.enter(above, full)?;
        let (target, name) = (OsStr::from_bytes(target), OsStr::from_bytes(name));
        let from = from.as_ref().unwrap_or(&self.root);
        // Looked at first: a link to itself must not remove the one file there is.
        let there = rustix::fs::statat(from, target, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(self.failed("finding what is linked by", full))?;
        let here = rustix::fs::statat(self.last(), name, AtFlags::SYMLINK_NOFOLLOW);
        if here.is_ok_and(|here| (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)) {
            return Ok(());
        }
        self.clear(name.as_bytes(), full)?;
        rustix::fs::linkat(from, target, self.last(), name, AtFlags::empty())
            .map_err(self.failed("making the link", full))
    }

    /// Deepest first, so that one that closes itself does not close those below. What cannot be set is left as it is.
    fn finish_directories(&mut self) {
        let mut made: Vec<(Vec<u8>, Finish)> = self.made.drain().collect();
        made.sort_by(|a, b| b.0.cmp(&a.0));
        self.open.clear();
        for (path, finish) in made {
            let mut at: Result<Option<OwnedFd>, Errno> = Ok(None);
            for part in path.split(|byte| *byte == b'/') {
                at = at.and_then(|dir| open_dir(dir.as_ref().unwrap_or(&self.root), part)).map(Some);
            }
            if let (Ok(Some(dir)), Some(mtime)) = (at, finish.mtime) {
                let _ = rustix::fs::fchmod(&dir, Mode::from_raw_mode(finish.mode));
                let _ = rustix::fs::futimens(&dir, &times(mtime));
            }
        }
    }
}

fn copy<R: Read>(
    members: &mut Members<R>,
    file: &mut std::fs::File,
    buf: &mut [u8],
    path: &Path,
) -> Result<(), FileError> {
    loop {
        match members.read(buf)? {
            0 => return Ok(()),
            got => file.write_all(&buf[..got]).map_err(FileError::at("writing", path))?,
        }
    }
}

fn open_dir(dir: &OwnedFd, name: &[u8]) -> Result<OwnedFd, Errno> {
    files::open_dir(dir, OsStr::from_bytes(name))
}

/// The parts of a name, `.` left out. Up, and from the root, is refused.
fn parts(name: &[u8]) -> Result<Vec<&[u8]>, FileError> {
    if name.is_empty() || name.contains(&0) {
        return Err(refused(name, "is no name of a file"));
    }
    if name.starts_with(b"/") {
        return Err(refused(name, "begins at the root"));
    }
    let parts: Vec<&[u8]> = name.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".").collect();
    if parts.contains(&&b".."[..]) {
        return Err(refused(name, "leads up"));
    }
    if parts.len() > MAX_PARTS {
        return Err(refused(name, "is deeper than is taken"));
    }
    Ok(parts)
}

fn times(mtime: i64) -> Timestamps {
    let at = Timespec { tv_sec: mtime.clamp(-LATEST, LATEST), tv_nsec: 0 };
    Timestamps { last_access: at, last_modification: at }
}
