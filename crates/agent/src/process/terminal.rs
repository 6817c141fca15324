//! The terminal of a process: a pair of ends, one for the process's session, one for us.

use std::os::fd::{AsFd, OwnedFd};

use runtime_proto::guest::Pty;
use rustix::fs::{Gid, Mode, OFlags, Uid};
use rustix::io::Errno;
use rustix::pty::OpenptFlags;
use rustix::termios::{InputModes, OptionalActions, Winsize, tcgetattr, tcsetattr, tcsetwinsize};

/// What terminals are shown as by their programs, unless the caller says otherwise.
pub(crate) const TERM: (&str, &str) = ("TERM", "xterm-256color");
/// The group that terminals belong to.
const TTY: u32 = 5;
/// Of either side.
const LARGEST: u32 = 10_000;

/// Our end and the process's, which belongs to the user.
pub(crate) fn open(size: Pty, uid: u32) -> Result<(OwnedFd, OwnedFd), Errno> {
    let ours = rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    rustix::pty::grantpt(&ours)?;
    rustix::pty::unlockpt(&ours)?;
    let theirs = peer(&ours)?;
    let _ = rustix::fs::fchown(&theirs, Some(Uid::from_raw(uid)), Some(Gid::from_raw(TTY)));
    let _ = rustix::fs::fchmod(&theirs, Mode::from_raw_mode(0o620));
    resize(&ours, size)?;
    if let Ok(mut modes) = tcgetattr(&theirs) {
        // So that erasing takes a character and not a byte of it.
        modes.input_modes |= InputModes::IUTF8;
        let _ = tcsetattr(&theirs, OptionalActions::Now, &modes);
    }
    Ok((ours, theirs))
}

/// By our end where the kernel can; the guest may have put something else at the name.
fn peer(ours: &OwnedFd) -> Result<OwnedFd, Errno> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    match rustix::pty::ioctl_tiocgptpeer(ours, flags) {
        Err(Errno::NOTTY | Errno::INVAL | Errno::NOSYS) => {}
        other => return other,
    }
    let name = rustix::pty::ptsname(ours, Vec::new())?;
    rustix::fs::open(name, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())
}

/// The programs of the session hear of it.
pub(crate) fn resize(terminal: impl AsFd, size: Pty) -> Result<(), Errno> {
    let side = |cells: u32| cells.clamp(1, LARGEST) as u16;
    tcsetwinsize(terminal, Winsize { ws_row: side(size.rows), ws_col: side(size.cols), ws_xpixel: 0, ws_ypixel: 0 })
}
