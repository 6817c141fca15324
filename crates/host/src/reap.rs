//! Collecting children, and how they ended.

use std::io;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::process::{Pid, WaitOptions, WaitStatus};

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Code(i32),
    Signal(i32),
}

impl End {
    /// The exit code, or the signal's number made negative.
    #[must_use]
    pub fn number(self) -> i32 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => -signal,
        }
    }

    #[must_use]
    pub fn from_number(number: i32) -> Self {
        if number < 0 { Self::Signal(-number) } else { Self::Code(number) }
    }

    fn from_status(status: WaitStatus) -> Option<Self> {
        status.exit_status().map(Self::Code).or_else(|| status.terminating_signal().map(Self::Signal))
    }
}

/// What a look for ended children found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reaped {
    Child(i32, End),
    /// Children exist, none has ended.
    NoneYet,
    NoChildren,
}

/// Collects one ended child of this process, whichever it is.
pub fn reap_any() -> io::Result<Reaped> {
    loop {
        match rustix::process::wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) => {
                if let Some(end) = End::from_status(status) {
                    return Ok(Reaped::Child(pid.as_raw_nonzero().get(), end));
                }
            }
            Ok(None) => return Ok(Reaped::NoneYet),
            Err(Errno::CHILD) => return Ok(Reaped::NoChildren),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// A child that somebody stopped since the last look, if there is one.
pub fn stopped_child() -> Option<i32> {
    // SAFETY: zero is a valid value of this plain structure, which the kernel fills in.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: `info` lives through the call, which only writes to it.
    let result = unsafe { libc::waitid(libc::P_ALL, 0, &raw mut info, libc::WSTOPPED | libc::WNOHANG) };
    // SAFETY: after a successful waitid the number is filled in; it stays zero when no child was stopped.
    let pid = unsafe { info.si_pid() };
    (result == 0 && pid != 0).then_some(pid)
}

/// Waits for one child to end.
pub fn wait_for(pid: i32) -> io::Result<End> {
    let pid = Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidInput)?;
    loop {
        match rustix::process::waitpid(Some(pid), WaitOptions::empty()) {
            Ok(Some((_, status))) => {
                if let Some(end) = End::from_status(status) {
                    return Ok(end);
                }
            }
            Ok(None) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// A child that has ended and how, without collecting it: were this process to die now, the child's end would not be
/// lost with it.
pub fn peek_any() -> io::Result<Reaped> {
    loop {
        // SAFETY: zero is a valid value of this plain structure, which the kernel fills in.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        let options = libc::WEXITED | libc::WNOWAIT | libc::WNOHANG;
        // SAFETY: `info` lives through the call, which only writes to it.
        let result = unsafe { libc::waitid(libc::P_ALL, 0, &raw mut info, options) };
        if result == 0 {
            // SAFETY: after a successful waitid these fields are filled in, or still zero where no child has ended.
            let (pid, status) = unsafe { (info.si_pid(), info.si_status()) };
            return Ok(match info.si_code {
                _ if pid == 0 => Reaped::NoneYet,
                libc::CLD_EXITED => Reaped::Child(pid, End::Code(status)),
                _ => Reaped::Child(pid, End::Signal(status)),
            });
        }
        match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::ECHILD) => return Ok(Reaped::NoChildren),
            error if error.kind() == io::ErrorKind::Interrupted => {}
            error => return Err(error),
        }
    }
}

/// Word of children that ended, for who waits for something else as well.
#[derive(Debug)]
pub struct Endings {
    signals: OwnedFd,
}

impl Endings {
    /// Call once, in the only thread of the process: it blocks SIGCHLD, which [`crate::spawn::spawn`] undoes for what it
    /// starts.
    pub fn watch() -> io::Result<Self> {
        // SAFETY: a signal set is plain bits for which zero is valid; it lives through the calls, which only read or
        // fill it. The descriptor is new and nobody else's.
        let signals = unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            libc::sigaddset(&raw mut set, libc::SIGCHLD);
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
            let fd = libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(fd)
        };
        Ok(Self { signals })
    }

    /// Returns once a child has ended since the last call, or `other` can be read or has ended (then `true`). What ended
    /// before the first call is told to it as well.
    pub fn wait_or(&self, other: impl AsFd) -> io::Result<bool> {
        let other = other.as_fd();
        let mut both = [PollFd::new(&self.signals, PollFlags::IN), PollFd::new(&other, PollFlags::IN)];
        match rustix::event::poll(&mut both, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let readable = !both[1].revents().is_empty();
        // One record stands for all that came; the rest is asked of the children themselves.
        let mut record = [0; size_of::<libc::signalfd_siginfo>()];
        match rustix::io::read(&self.signals, &mut record) {
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => Ok(readable),
            Err(error) => Err(error.into()),
        }
    }
}
