//! Collecting children, and how they ended.

use rustix::io::Errno;
use rustix::process::{Pid, WaitOptions, WaitStatus};
use std::io;

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
pub fn reap_any(block: bool) -> io::Result<Reaped> {
    let options = if block { WaitOptions::empty() } else { WaitOptions::NOHANG };
    loop {
        match rustix::process::wait(options) {
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

/// Waits until some child has ended and says how, without collecting it: were this process to die now, the child's end
/// would not be lost with it. `None` = there are no children.
pub fn peek_any() -> io::Result<Option<(i32, End)>> {
    loop {
        // SAFETY: zero is a valid value of this plain structure, which the kernel fills in.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        // SAFETY: `info` lives through the call, which only writes to it.
        let result = unsafe { libc::waitid(libc::P_ALL, 0, &raw mut info, libc::WEXITED | libc::WNOWAIT) };
        if result == 0 {
            // SAFETY: after a successful waitid these fields are the ones filled in.
            let (pid, status) = unsafe { (info.si_pid(), info.si_status()) };
            let end = if info.si_code == libc::CLD_EXITED { End::Code(status) } else { End::Signal(status) };
            return Ok(Some((pid, end)));
        }
        match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::ECHILD) => return Ok(None),
            error if error.kind() == io::ErrorKind::Interrupted => {}
            error => return Err(error),
        }
    }
}
