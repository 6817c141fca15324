//! The members of a tar, one after another, from a reader that is not trusted.
//!
//! Names and records that stand before a member (GNU's long names, pax) are read up to a limit; a size is only ever how
//! much is copied, never how much is allocated.

use std::io::{self, Read};

use tar::{EntryType, Header};

use super::{invalid, refused};
use crate::files::FileError;

const BLOCK: usize = 512;
/// One long name, or the pax records of one member.
const MAX_EXTENSION: u64 = 64 * 1024;
/// Longer than any path the kernel takes.
pub(super) const MAX_NAME: usize = 4096;
/// Headers of one archive, extensions too: a bound on work that costs the sender nothing.
const MAX_HEADERS: u64 = 20_000_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    File,
    HardLink,
    Symlink,
    Directory,
}

#[derive(Debug)]
pub(super) struct Member {
    pub(super) name: Vec<u8>,
    /// Of links: where to.
    pub(super) link: Vec<u8>,
    pub(super) kind: Kind,
    pub(super) mode: u32,
    /// Seconds since the Unix epoch.
    pub(super) mtime: i64,
}

/// What stood before a member about it.
#[derive(Default)]
struct Extensions {
    name: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
    mtime: Option<i64>,
}

pub(super) struct Members<R> {
    input: R,
    /// Of the current member: bytes not read yet, then padding.
    left: u64,
    padding: u64,
    headers: u64,
}

fn cut() -> FileError {
    invalid("is cut short")
}

/// The reader's own failure says nothing of the archive but that it is not whole, or not gzip.
fn unreadable(error: &io::Error) -> FileError {
    match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionAborted => cut(),
        _ => invalid("does not decompress"),
    }
}

impl<R: Read> Members<R> {
    pub(super) fn new(input: R) -> Self {
        Self { input, left: 0, padding: 0, headers: 0 }
    }

    /// The next member; `None` at the end that the archive itself marks.
    pub(super) fn next(&mut self) -> Result<Option<Member>, FileError> {
        let mut before = Extensions::default();
        loop {
            self.skip_rest()?;
            let Some(header) = self.header()? else { return Ok(None) };
            let size = header.entry_size().map_err(|_| invalid("holds a size that is not one"))?;
            match header.entry_type() {
                EntryType::GNULongName => before.name = Some(self.long_name(size)?),
                EntryType::GNULongLink => before.link = Some(self.long_name(size)?),
                EntryType::XHeader => before.read_pax(&self.extension(size)?)?,
                // Defaults for all that follow: comments, in practice.
                EntryType::XGlobalHeader => drop(self.extension(size)?),
                kind => return self.member(&header, kind, size, before).map(Some),
            }
        }
    }

    fn member(&mut self, header: &Header, kind: EntryType, size: u64, before: Extensions) -> Result<Member, FileError> {
        let name = before.name.unwrap_or_else(|| header.path_bytes().into_owned());
        let link = before.link.or_else(|| header.link_name_bytes().map(Into::into)).unwrap_or_default();
        let size = before.size.unwrap_or(size);
        let kind = match kind {
            // An old tar has no kind of its own for directories.
            EntryType::Regular | EntryType::Continuous if name.ends_with(b"/") => Kind::Directory,
            EntryType::Regular | EntryType::Continuous => Kind::File,
            EntryType::Link => Kind::HardLink,
            EntryType::Symlink => Kind::Symlink,
            EntryType::Directory => Kind::Directory,
            EntryType::Char | EntryType::Block => return Err(refused(&name, "is a device, which is not taken")),
            EntryType::Fifo => return Err(refused(&name, "is a pipe, which is not taken")),
            EntryType::GNUSparse => return Err(refused(&name, "is stored sparse, which is not taken")),
            _ => return Err(refused(&name, "is of a kind that is not taken")),
        };
        if name.len() > MAX_NAME || link.len() > MAX_NAME {
            return Err(refused(&name, "has a name longer than a path may be"));
        }
        // Links carry no bytes, whatever some writers say.
        let size = if matches!(kind, Kind::HardLink | Kind::Symlink) { 0 } else { size };
        self.begin(size)?;
        let mode = header.mode().map_err(|_| refused(&name, "has a mode that is not one"))?;
        let mtime = before.mtime.unwrap_or_else(|| header.mtime().map_or(0, |at| i64::try_from(at).unwrap_or(0)));
        Ok(Member { name, link, kind, mode, mtime })
    }

    fn begin(&mut self, size: u64) -> Result<(), FileError> {
        self.left = size;
        self.padding =
            size.checked_next_multiple_of(BLOCK as u64).ok_or_else(|| invalid("holds a size past all"))? - size;
        Ok(())
    }

    fn skip_rest(&mut self) -> Result<(), FileError> {
        let rest = self.left.checked_add(self.padding).ok_or_else(|| invalid("holds a size past all"))?;
        let skipped =
            io::copy(&mut (&mut self.input).take(rest), &mut io::sink()).map_err(|error| unreadable(&error))?;
        (self.left, self.padding) = (0, 0);
        if skipped < rest { Err(cut()) } else { Ok(()) }
    }

    /// The next header; `None` if it is the block of zeros that ends an archive.
    fn header(&mut self) -> Result<Option<Header>, FileError> {
        self.headers += 1;
        if self.headers > MAX_HEADERS {
            return Err(invalid("holds more members than are taken"));
        }
        let mut block = [0; BLOCK];
        self.input.read_exact(&mut block).map_err(|error| unreadable(&error))?;
        if block == [0; BLOCK] {
            return Ok(None);
        }
        let mut header = Header::new_old();
        header.as_mut_bytes().copy_from_slice(&block);
        // The checksum is of the header with blanks in its own place.
        let sum: u32 = block
            .iter()
            .enumerate()
            .map(|(at, byte)| u32::from(if (148..156).contains(&at) { b' ' } else { *byte }))
            .sum();
        match header.cksum() {
            Ok(said) if said == sum => Ok(Some(header)),
            _ => Err(invalid("is not a tar")),
        }
    }

    fn extension(&mut self, size: u64) -> Result<Vec<u8>, FileError> {
        if size > MAX_EXTENSION {
            return Err(invalid("holds a name or a record longer than is taken"));
        }
        self.begin(size)?;
        let mut data = Vec::new();
        (&mut self.input).take(size).read_to_end(&mut data).map_err(|error| unreadable(&error))?;
        self.left = 0;
        if (data.len() as u64) < size { Err(cut()) } else { Ok(data) }
    }

    /// Ends at the first zero.
    fn long_name(&mut self, size: u64) -> Result<Vec<u8>, FileError> {
        let mut name = self.extension(size)?;
        if let Some(end) = name.iter().position(|byte| *byte == 0) {
            name.truncate(end);
        }
        Ok(name)
    }

    /// Bytes of the current member; 0 at its end.
    pub(super) fn read(&mut self, buf: &mut [u8]) -> Result<usize, FileError> {
        let wanted = buf.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        if wanted == 0 {
            return Ok(0);
        }
        match self.input.read(&mut buf[..wanted]).map_err(|error| unreadable(&error))? {
            0 => Err(cut()),
            got => {
                self.left -= got as u64;
                Ok(got)
            }
        }
    }

    /// Reads what follows the end mark, so that a checksum at the very end is looked at.
    pub(super) fn finish(mut self, most: u64) -> Result<(), FileError> {
        let rest =
            io::copy(&mut (&mut self.input).take(most + 1), &mut io::sink()).map_err(|error| unreadable(&error))?;
        if rest > most { Err(invalid("goes on after its end")) } else { Ok(()) }
    }
}

impl Extensions {
    /// Records of the form `length key=value\n`.
    fn read_pax(&mut self, mut data: &[u8]) -> Result<(), FileError> {
        let bad = || invalid("holds a pax record that does not read");
        while !data.is_empty() {
            let blank = data.iter().take(10).position(|byte| *byte == b' ').ok_or_else(bad)?;
            let length: usize =
                std::str::from_utf8(&data[..blank]).ok().and_then(|text| text.parse().ok()).ok_or_else(bad)?;
            let record = data.get(blank + 1..length).and_then(|record| record.strip_suffix(b"\n")).ok_or_else(bad)?;
            data = &data[length..];
            let equals = record.iter().position(|byte| *byte == b'=').ok_or_else(bad)?;
            let (key, value) = (&record[..equals], &record[equals + 1..]);
            let text = || std::str::from_utf8(value).ok();
            match key {
                b"path" => self.name = Some(value.to_vec()),
                b"linkpath" => self.link = Some(value.to_vec()),
                b"size" => self.size = Some(text().and_then(|text| text.parse().ok()).ok_or_else(bad)?),
                b"mtime" => {
                    let whole = text().and_then(|text| text.split('.').next()).ok_or_else(bad)?;
                    self.mtime = Some(whole.parse().map_err(|_| bad())?);
                }
                key if key.starts_with(b"GNU.sparse") => {
                    return Err(invalid("holds a file that is stored sparse, which is not taken"));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pax(text: &[u8]) -> Option<Extensions> {
        let mut extensions = Extensions::default();
        extensions.read_pax(text).ok().map(|()| extensions)
    }

    #[test]
    fn pax_records_are_read_or_refused() {
        let read = pax(b"13 path=a/b\xff\n13 size=1234\n20 mtime=12.5678901\n").unwrap();
        assert_eq!((read.name, read.size, read.mtime), (Some(b"a/b\xff".to_vec()), Some(1234), Some(12)));
        for wrong in [
            &b"x"[..],
            b"5 a=b\n",
            b"99 path=a\n",
            b"0 path=a\n",
            b"2 \n",
            b"9 path:a\n",
            b"18446744073709551616 a=b\n",
            b"11 size=-1\n\n",
            b"24 GNU.sparse.name=abcd\n",
        ] {
            assert!(pax(wrong).is_none(), "{:?}", String::from_utf8_lossy(wrong));
        }
    }

    proptest! {
        #[test]
        fn whatever_comes_is_an_answer(data in proptest::collection::vec(any::<u8>(), 0..2048), kind in any::<u8>(), size in any::<u64>()) {
            let _ = pax(&data);
            let mut header = Header::new_gnu();
            header.set_size(size);
            header.set_entry_type(EntryType::new(kind));
            header.set_cksum();
            let bytes = [header.as_bytes().as_slice(), &data].concat();
            let mut members = Members::new(&bytes[..]);
            while let Ok(Some(_)) = members.next() {}
        }
    }
}
