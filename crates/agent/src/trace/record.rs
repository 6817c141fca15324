//! The paths of one trace: a file in memory, one record after the other, of a bounded size.
//!
//! Several runners may write to it; each record goes in one write at the end. Root inside may scribble on it, so it is
//! read as something that came from outside.

use std::collections::{BTreeSet, HashSet};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

use rustix::fs::{MemfdFlags, OFlags};

use super::Found;

/// Bytes of records of one trace.
const MOST: u64 = 1024 * 1024;
/// The longest path of the kernel, and then some: directories end in `/`.
const LONGEST: usize = 4096 + 1;

const READ: u8 = b'r';
const WRITTEN: u8 = b'w';
const CUT: u8 = b'c';
const HEAD: usize = 5;

/// The agent's end.
pub(crate) struct Record(OwnedFd);

impl Record {
    pub(crate) fn new() -> io::Result<Self> {
        let fd = rustix::fs::memfd_create(c"runtime-trace", MemfdFlags::CLOEXEC)?;
        // Of the open file itself: it holds for whoever is given it.
        let flags = rustix::fs::fcntl_getfl(&fd)?;
        rustix::fs::fcntl_setfl(&fd, flags | OFlags::APPEND)?;
        Ok(Self(fd))
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// All that was noted, and lets go of the memory it took.
    pub(super) fn take(&self, cut: bool) -> Found {
        let mut bytes = vec![0; MOST as usize];
        let mut at = 0;
        let read = self.0.try_clone().map(File::from).map(|file| {
            while let Ok(got @ 1..) = file.read_at(&mut bytes[at..], at as u64) {
                at += got;
            }
            // Longer than the runners make it: not all of it is read.
            let whole = file.metadata().is_ok_and(|meta| meta.len() <= MOST);
            let _ = file.set_len(0);
            whole
        });
        let mut found = parse(&bytes[..at]);
        found.truncated |= cut || !read.unwrap_or(false);
        found
    }
}

fn parse(mut bytes: &[u8]) -> Found {
    let (mut read, mut written) = (BTreeSet::new(), BTreeSet::new());
    let mut truncated = false;
    while let Some((head, rest)) = bytes.split_first_chunk::<HEAD>() {
        let [kind, length @ ..] = *head;
        let length = u32::from_le_bytes(length) as usize;
        let Some((path, rest)) = rest.split_at_checked(length) else {
            truncated = true;
            break;
        };
        bytes = rest;
        let path = || String::from_utf8_lossy(path).into_owned();
        match kind {
            READ => drop(read.insert(path())),
            WRITTEN => drop(written.insert(path())),
            _ => truncated = true,
        }
    }
    Found { read: read.into_iter().collect(), written: written.into_iter().collect(), truncated }
}

/// A runner's end.
pub(super) struct Writer {
    file: File,
    read: HashSet<Vec<u8>>,
    written: HashSet<Vec<u8>>,
    full: bool,
}

impl Writer {
    pub(super) fn new(fd: OwnedFd) -> Self {
        Self { file: fd.into(), read: HashSet::new(), written: HashSet::new(), full: false }
    }

    /// Whether both are noted already.
    pub(super) fn knows(&self, path: &[u8], read: bool, write: bool) -> bool {
        self.full || ((!read || self.read.contains(path)) && (!write || self.written.contains(path)))
    }

    /// Notes a path as it is known by, and as it is told.
    pub(super) fn note(&mut self, path: &[u8], told: &[u8], read: bool, write: bool) {
        if read && !self.read.contains(path) {
            self.read.insert(path.to_vec());
            self.put(READ, told);
        }
        if write && !self.written.contains(path) {
            self.written.insert(path.to_vec());
            self.put(WRITTEN, told);
        }
    }

    fn put(&mut self, kind: u8, path: &[u8]) {
        if self.full {
            return;
        }
        let length = self.file.metadata().map_or(MOST, |meta| meta.len());
        // There is always room to say that there was more.
        let fits = length + (2 * HEAD + path.len()) as u64 <= MOST && path.len() <= LONGEST;
        let (kind, path) = if fits { (kind, path) } else { (CUT, &[][..]) };
        self.full = !fits;
        let record = [&[kind][..], &(path.len() as u32).to_le_bytes(), path].concat();
        // Without memory for it, the trace ends here.
        self.full |= self.file.write_all(&record).is_err();
        if self.full {
            self.read = HashSet::new();
            self.written = HashSet::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn writer(record: &Record) -> Writer {
        Writer::new(record.0.try_clone().unwrap())
    }

    #[test]
    fn each_path_is_told_once_and_in_order_whoever_noted_it() {
        let record = Record::new().unwrap();
        let (mut one, mut two) = (writer(&record), writer(&record));
        one.note(b"/b", b"/b", true, false);
        one.note(b"/d", b"/d/", true, true);
        two.note(b"/a", b"/a", true, false);
        two.note(b"/b", b"/b", true, false);
        one.note(b"/b", b"/b", true, false);
        assert!(one.knows(b"/b", true, false) && !one.knows(b"/b", true, true) && !one.knows(b"/a", true, false));
        let strings = |list: &[&str]| list.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>();
        let expected = Found { read: strings(&["/a", "/b", "/d/"]), written: strings(&["/d/"]), truncated: false };
        assert_eq!(record.take(false), expected);
        assert!(record.take(true).truncated);
    }

    #[test]
    fn more_than_fits_is_cut_and_says_so() {
        let record = Record::new().unwrap();
        let mut writer = writer(&record);
        for n in 0..1000 {
            let path = format!("/{}/{n}", "x".repeat(4000));
            writer.note(path.as_bytes(), path.as_bytes(), true, true);
        }
        let found = record.take(false);
        assert!(found.truncated);
        assert!((100..300).contains(&(found.read.len() + found.written.len())));
    }

    proptest! {
        #[test]
        fn what_a_guest_scribbles_is_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let record = Record::new().unwrap();
            File::from(record.0.try_clone().unwrap()).write_all(&bytes).unwrap();
            let found = record.take(false);
            let told: usize = found.read.iter().chain(&found.written).map(String::len).sum();
            prop_assert!(told <= 3 * bytes.len());
        }
    }
}
