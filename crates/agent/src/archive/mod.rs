//! Trees as tar, out ([`pack`]) and in ([`unpack`]), streamed: neither side ever holds more than a few pieces.
//!
//! Both run on a worker that acts as the user who asks, so the kernel decides what may be read and written. What comes
//! in is not trusted: no name leads out of the directory it is unpacked into, and no number in a header decides how much
//! memory is taken. An archive that was cut is refused, and one that we cut is never whole.

mod members;
mod pack;
pub(crate) mod requests;
mod unpack;

use std::io;
use std::path::Path;

use bytes::{Bytes, BytesMut};
use runtime_proto::guest::{DATA_STEP, ErrorCode};
use tokio::sync::mpsc;

pub(crate) use unpack::unpack;

use crate::files::FileError;

fn refused(name: &[u8], why: &'static str) -> FileError {
    use std::os::unix::ffi::OsStrExt as _;
    let shown = &name[..name.len().min(512)];
    FileError::refused(ErrorCode::InvalidArchive, Path::new(std::ffi::OsStr::from_bytes(shown)), why)
}

/// The archive as a whole.
fn invalid(why: &'static str) -> FileError {
    refused(b"the archive", why)
}

/// A piece of an archive on its way in.
pub(crate) enum Part {
    Data(Bytes),
    /// All of it came.
    End,
}

/// What comes in, as a reader for a worker.
pub(crate) struct Feed {
    parts: mpsc::Receiver<Part>,
    current: Bytes,
    ended: bool,
}

impl Feed {
    pub(crate) fn new(parts: mpsc::Receiver<Part>) -> Self {
        Self { parts, current: Bytes::new(), ended: false }
    }
}

impl io::Read for Feed {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        while self.current.is_empty() && !self.ended {
            match self.parts.blocking_recv() {
                Some(Part::Data(data)) => self.current = data,
                Some(Part::End) => self.ended = true,
                // Whoever sent it went away: not the end of the archive.
                None => return Err(io::ErrorKind::ConnectionAborted.into()),
            }
        }
        let piece = self.current.split_to(self.current.len().min(buf.len()));
        buf[..piece.len()].copy_from_slice(&piece);
        Ok(piece.len())
    }
}

/// What goes out, as a writer for a worker. Once closed it takes nothing more, whoever still wants to finish.
pub(crate) struct Outlet {
    pieces: Option<mpsc::Sender<Bytes>>,
    current: BytesMut,
}

impl Outlet {
    fn new(pieces: mpsc::Sender<Bytes>) -> Self {
        Self { pieces: Some(pieces), current: BytesMut::new() }
    }

    fn close(&mut self) {
        self.pieces = None;
    }

    fn send(&mut self) -> io::Result<()> {
        let piece = self.current.split().freeze();
        match &self.pieces {
            Some(_) if piece.is_empty() => Ok(()),
            Some(pieces) => pieces.blocking_send(piece).map_err(|_| io::ErrorKind::BrokenPipe.into()),
            None => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }
}

impl io::Write for Outlet {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        if self.pieces.is_none() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let taken = data.len().min(DATA_STEP - self.current.len());
        self.current.extend_from_slice(&data[..taken]);
        if self.current.len() == DATA_STEP {
            self.send()?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
