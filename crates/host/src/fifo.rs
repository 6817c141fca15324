//! Named pipes that two programs meet at, neither of which may see the other's going away.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

/// What a pipe may hold: the most an ordinary system lets root's processes ask for.
pub const CAPACITY: usize = 1024 * 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Read,
    Write,
    /// Both: the holder sees neither end of file nor a broken pipe.
    Both,
}

/// Makes a pipe of that name, for root only. One that is there already is replaced: it may hold a predecessor's bytes.
pub fn make(path: &Path) -> io::Result<()> {
    for _ in 0..2 {
        match rustix::fs::mknodat(rustix::fs::CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0) {
            Err(Errno::EXIST) => rustix::fs::unlink(path)?,
            other => return Ok(other?),
        }
    }
    Err(Errno::EXIST.into())
}

/// Opens an end without waiting for the other. Writing alone needs a reader that is there already. Anything that is
/// not a pipe is refused.
pub fn open(path: &Path, end: End) -> io::Result<OwnedFd> {
    let access = match end {
        End::Read => OFlags::RDONLY,
        End::Write => OFlags::WRONLY,
        End::Both => OFlags::RDWR,
    };
    let flags = access | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let fd = rustix::fs::open(path, flags, Mode::empty())?;
    if FileType::from_raw_mode(rustix::fs::fstat(&fd)?.st_mode) != FileType::Fifo {
        return Err(io::Error::from(io::ErrorKind::InvalidData));
    }
    Ok(fd)
}

/// Gives the pipe [`CAPACITY`]; a system that allows less keeps what it has.
pub fn widen(pipe: &OwnedFd) {
    let _ = rustix::pipe::fcntl_setpipe_size(pipe, CAPACITY);
}

/// Makes reads and writes wait, as a program that inherits the descriptor expects.
pub fn set_blocking(pipe: &OwnedFd) -> io::Result<()> {
    let flags = rustix::fs::fcntl_getfl(pipe)?;
    Ok(rustix::fs::fcntl_setfl(pipe, flags - OFlags::NONBLOCK)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_wait_in_the_pipe_while_nobody_but_its_holder_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p");
        make(&path).unwrap();
        let holder = open(&path, End::Read).unwrap();
        widen(&holder);
        let writer = open(&path, End::Write).unwrap();
        rustix::io::write(&writer, &vec![7; CAPACITY]).unwrap();
        drop(writer);
        let reader = open(&path, End::Read).unwrap();
        let mut buffer = vec![0; CAPACITY];
        assert_eq!(rustix::io::read(&reader, &mut buffer[..]).unwrap(), CAPACITY);
        make(&path).unwrap();
        std::fs::write(dir.path().join("f"), "").unwrap();
        assert!(open(&dir.path().join("f"), End::Read).is_err());
    }
}
