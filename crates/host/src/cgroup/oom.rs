//! Word of a group's running out of memory.
//!
//! v1 signals an eventfd when an allocation fails at the limit (and the last time when the group is removed). v2
//! changes `memory.events`, which inotify reports. Either descriptor can be waited for with poll; [`OomWatch::take`]
//! then says whether memory really ran out since the last call.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::inotify;

use super::{CgroupError, read, write};

#[derive(Debug)]
pub struct OomWatch {
    fd: OwnedFd,
    source: Source,
}

#[derive(Debug)]
enum Source {
    V1 { group: PathBuf },
    V2 { events: PathBuf, seen: u64 },
}

impl OomWatch {
    pub(super) fn v1(group: &Path) -> Result<Self, CgroupError> {
        let control = group.join("memory.oom_control");
        let fail = |step| {
            let path = control.clone();
            move |source| CgroupError::File { step, path, source }
        };
        let file = File::open(&control).map_err(fail("open"))?;
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| fail("make an event for")(e.into()))?;
        write(&group.join("cgroup.event_control"), &format!("{} {}", fd.as_raw_fd(), file.as_raw_fd()))?;
        Ok(Self { fd, source: Source::V1 { group: group.to_owned() } })
    }

    pub(super) fn v2(group: &Path) -> Result<Self, CgroupError> {
        let events = group.join("memory.events");
        let fail = |e: rustix::io::Errno| CgroupError::File { step: "watch", path: events.clone(), source: e.into() };
        let fd = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK).map_err(fail)?;
        inotify::add_watch(&fd, &events, inotify::WatchFlags::MODIFY).map_err(fail)?;
        let seen = count(&read(&events)?);
        Ok(Self { fd, source: Source::V2 { events, seen } })
    }

    /// Empties the descriptor. True if memory ran out since the last call; false also once the group is gone.
    pub fn take(&mut self) -> io::Result<bool> {
        let mut buffer = [0u8; 4096];
        let mut signalled = false;
        loop {
            match rustix::io::read(&self.fd, &mut buffer) {
                Ok(0) => break,
                // An eventfd is read whole by one read, and is empty after it.
                Ok(_) => signalled = true,
                Err(rustix::io::Errno::AGAIN) => break,
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        match &mut self.source {
            Source::V1 { group } => Ok(signalled && group.exists()),
            Source::V2 { events, seen } => {
                let Ok(text) = std::fs::read_to_string(events) else { return Ok(false) };
                let now = count(&text);
                let more = now > *seen;
                *seen = now;
                Ok(more)
            }
        }
    }

    pub fn into_fd(self) -> OwnedFd {
        self.fd
    }
}

impl AsFd for OomWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for OomWatch {
    fn as_raw_fd(&self) -> i32 {
        self.fd.as_raw_fd()
    }
}

/// Times the group was at a limit that something had to be done about.
pub(super) fn count(events: &str) -> u64 {
    events
        .lines()
        .filter_map(|line| line.split_once(' '))
        .filter(|(name, _)| matches!(*name, "high" | "max" | "oom" | "oom_kill"))
        .filter_map(|(_, n)| n.trim().parse::<u64>().ok())
        .fold(0, u64::saturating_add)
}
