//! Processes of others, named so that a number used again cannot be taken for the one that was meant.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// A process: its number and the tick it was started at. Both together are unique until the machine boots again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ProcessId {
    pub pid: u32,
    pub start_time: u64,
}

impl ProcessId {
    /// The process that has this number now; `None` if there is none, or only a zombie.
    #[must_use]
    pub fn of(pid: u32) -> Option<Self> {
        let start_time = running(&fs::read(format!("/proc/{pid}/stat")).ok()?)?;
        Some(Self { pid, start_time })
    }

    #[must_use]
    pub fn is_alive(self) -> bool {
        Self::of(self.pid) == Some(self)
    }

    /// The same, for those who must not take "not known" (no descriptor left, say) for "ended".
    pub fn alive(self) -> io::Result<bool> {
        match fs::read(format!("/proc/{}/stat", self.pid)) {
            Ok(text) => Ok(running(&text) == Some(self.start_time)),
            Err(e) if e.kind() == io::ErrorKind::NotFound || Errno::from_io_error(&e) == Some(Errno::SRCH) => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// A handle that means this very process; `None` if it has ended.
    pub fn open(self) -> io::Result<Option<PidFd>> {
        let Some(pid) = raw(self.pid) else { return Ok(None) };
        let fd = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(fd) => fd,
            Err(Errno::SRCH) => return Ok(None),
            Err(e) => return Err(e.into()),
        };
        // Compared after the open: from here on the number cannot change its meaning under us.
        Ok(self.alive()?.then_some(PidFd(fd)))
    }
}

/// Readable once the process has ended, reaped or not.
#[derive(Debug)]
pub struct PidFd(OwnedFd);

impl PidFd {
    /// SIGKILL; a process that has ended is fine.
    pub fn kill(&self) -> io::Result<()> {
        match pidfd_send_signal(&self.0, Signal::KILL) {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// True once the process has ended.
    pub fn wait(&self, patience: Duration) -> io::Result<bool> {
        wait_readable(self.0.as_fd(), patience)
    }

    pub fn into_fd(self) -> OwnedFd {
        self.0
    }
}

impl AsFd for PidFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Waits until a descriptor can be read or has hung up; false if `patience` ran out.
pub fn wait_readable(fd: BorrowedFd<'_>, patience: Duration) -> io::Result<bool> {
    let end = Instant::now() + patience;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let mut fds = [PollFd::new(&fd, PollFlags::IN)];
        match poll(&mut fds, Some(&timespec(left))) {
            Ok(0) => return Ok(false),
            Ok(_) => return Ok(true),
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

#[must_use]
pub fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}

/// SIGKILL to a number; one that is not there is fine.
pub fn kill(pid: u32) -> io::Result<()> {
    let Some(pid) = raw(pid) else { return Ok(()) };
    match rustix::process::kill_process(pid, Signal::KILL) {
        Ok(()) | Err(Errno::SRCH) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

/// Every process, with the words of its command line.
#[must_use]
pub fn all() -> Vec<(u32, Vec<Vec<u8>>)> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
        .filter_map(|pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
            let words = line.split(|byte| *byte == 0).map(<[u8]>::to_vec).collect();
            Some((pid, words))
        })
        .collect()
}

/// Changes at every boot of the machine.
pub fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// Makes this process one that outlives whoever started it: a session of its own, adopter of its descendants'
/// orphans, and no descriptor but 0, 1 and 2.
pub fn detach() -> io::Result<()> {
    close_from(3)?;
    match rustix::process::setsid() {
        // Leader of a group already: so it stands alone enough.
        Ok(_) | Err(Errno::PERM) => {}
        Err(e) => return Err(e.into()),
    }
    let me = rustix::process::getpid();
    Ok(rustix::process::set_child_subreaper(Some(me))?)
}

/// Takes in one ended child, if there is one. `None` says that no child is left at all.
pub fn reap_one() -> io::Result<Option<Reaped>> {
    loop {
        match rustix::process::wait(rustix::process::WaitOptions::NOHANG) {
            Ok(Some((pid, status))) => {
                return Ok(Some(Reaped::Child { pid: pid.as_raw_pid().unsigned_abs(), status: status.as_raw() }));
            }
            Ok(None) => return Ok(Some(Reaped::StillRunning)),
            Err(Errno::CHILD) => return Ok(None),
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reaped {
    /// With its wait status.
    Child {
        pid: u32,
        status: i32,
    },
    StillRunning,
}

/// Closes every descriptor from `first` on.
fn close_from(first: u32) -> io::Result<()> {
    // SAFETY: closes numbers only. Called by a process that has just begun and owns no descriptor above 2 by type.
    let result = unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, 0u32) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn raw(pid: u32) -> Option<Pid> {
    i32::try_from(pid).ok().and_then(Pid::from_raw)
}

/// The start time of a process that is no zombie. The name before may hold anything, so fields are counted from its
/// closing bracket.
fn running(stat: &[u8]) -> Option<u64> {
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(&stat[end + 1..]).ok()?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    let start_time = fields.nth(18)?.parse().ok()?;
    (!matches!(state, 'Z' | 'X')).then_some(start_time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_by_number_and_start() {
        let me = ProcessId::of(std::process::id()).unwrap();
        assert!(me.is_alive());
        assert!(me.open().unwrap().is_some());
        let impostor = ProcessId { start_time: me.start_time + 1, ..me };
        assert!(!impostor.is_alive());
        assert!(impostor.open().unwrap().is_none());
    }

    #[test]
    fn a_zombie_counts_as_dead_and_its_handle_is_readable() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let id = ProcessId::of(child.id()).unwrap();
        let handle = id.open().unwrap().unwrap();
        assert!(!handle.wait(Duration::ZERO).unwrap());
        handle.kill().unwrap();
        assert!(handle.wait(Duration::from_secs(120)).unwrap());
        assert!(!id.is_alive(), "nobody has reaped it yet");
        child.wait().unwrap();
        handle.kill().unwrap();
    }
}
