//! A file's content: what it is first, then exactly as many bytes as was said.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use runtime_proto::channel::Stream;
use runtime_proto::guest::{Chunk, DATA_STEP, ErrorCode, FileInfo, FileKind, GuestError, PathRef, Tell};
use rustix::fs::{Mode, OFlags};

use super::{FileError, absolute, act, at_work, info, kind_of};
use crate::Agent;
use crate::serve::{Failure, tell};

/// Read at once by a worker: few trips between threads, little memory.
const PIECE: usize = 8 * DATA_STEP;
/// The most that is read of a file that does not say how long it is.
const MAX_UNSIZED: u64 = 8 * 1024 * 1024;

pub(crate) async fn serve(_agent: &Arc<Agent>, wanted: PathRef, stream: &mut Stream) -> Result<Tell, Failure> {
    let path = absolute(&wanted.path)?;
    let (file, info, first) = act(wanted.user, move || open(&path)).await?;
    let size = info.size;
    let file = Arc::new(file);
    // `File` is also the last event where there is no content; the size says which.
    if size == 0 {
        return Ok(Tell::File(info));
    }
    tell(stream, Tell::File(info)).await?;
    let mut offset = 0;
    let mut ready = first;
    loop {
        let mut piece = if ready.is_empty() { next(&file, offset, size).await? } else { std::mem::take(&mut ready) };
        offset += piece.len() as u64;
        while piece.len() > DATA_STEP {
            tell(stream, chunk(piece.split_to(DATA_STEP))).await?;
        }
        if offset == size {
            return Ok(chunk(piece));
        }
        tell(stream, chunk(piece)).await?;
    }
}

fn chunk(data: Bytes) -> Tell {
    Tell::Chunk(Chunk { stream: 0, offset: 0, data })
}

async fn next(file: &Arc<File>, offset: u64, size: u64) -> Result<Bytes, GuestError> {
    let file = file.clone();
    // The file is open: no rights are needed any more.
    let read = at_work(move || read_piece(&file, offset, size)).await?.await;
    match read {
        Ok(Ok(piece)) => Ok(piece),
        Ok(Err(error)) => Err(GuestError::new(ErrorCode::Internal, format!("reading a file at {offset}: {error}"))),
        Err(_) => Err(GuestError::new(ErrorCode::Internal, "reading a file: the worker ended early")),
    }
}

/// The next bytes of a file of which `size` were announced.
fn read_piece(file: &File, offset: u64, size: u64) -> std::io::Result<Bytes> {
    let wanted = usize::try_from(size - offset).unwrap_or(PIECE).min(PIECE);
    let data = up_to(file, offset, wanted)?;
    if data.len() < wanted {
        // It became shorter under our hands: not what was announced, so not to be passed off as it.
        return Err(std::io::Error::new(std::io::ErrorKind::UnexpectedEof, "it became shorter while it was read"));
    }
    Ok(data.into())
}

/// So many bytes from there, or fewer where the file ends.
fn up_to(file: &File, offset: u64, wanted: usize) -> std::io::Result<Vec<u8>> {
    let mut data = vec![0; wanted];
    let mut got = 0;
    while got < wanted {
        match file.read_at(&mut data[got..], offset + got as u64)? {
            0 => break,
            count => got += count,
        }
    }
    data.truncate(got);
    Ok(data)
}

fn open(path: &Path) -> Result<(File, FileInfo, Bytes), FileError> {
    // Not blocking, so that a FIFO without a writer opens at once and is refused.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(FileError::at("opening", path))?;
    let stat = rustix::fs::fstat(&fd).map_err(FileError::at("looking at", path))?;
    match kind_of(&stat) {
        FileKind::File => {}
        FileKind::Directory => {
            return Err(FileError::refused(ErrorCode::IsADirectory, path, "is a directory"));
        }
        _ => return Err(FileError::refused(ErrorCode::Invalid, path, "is not a regular file")),
    }
    let file = File::from(fd);
    let mut info = info(path, &stat, None);
    let first = if info.size == 0 {
        // Files of /proc say 0 and hold text: bounded, read whole, and announced by what was read.
        let mut data = Vec::new();
        std::io::Read::read_to_end(&mut std::io::Read::take(&file, MAX_UNSIZED + 1), &mut data)
            .map_err(FileError::at("reading", path))?;
        if data.len() as u64 > MAX_UNSIZED {
            let why = "does not say how long it is, and is longer than 8 MiB";
            return Err(FileError::refused(ErrorCode::Invalid, path, why));
        }
        info.size = data.len() as u64;
        data.into()
    } else {
        // Read before its size is announced: a file that is rewritten at this moment may have become shorter than it just
        // said, and those of /sys always are. Where it ended is what it was.
        let wanted = usize::try_from(info.size).unwrap_or(PIECE).min(PIECE);
        let data = up_to(&file, 0, wanted).map_err(FileError::at("reading", path))?;
        if data.len() < wanted {
            info.size = data.len() as u64;
        }
        data.into()
    };
    Ok((file, info, first))
}
