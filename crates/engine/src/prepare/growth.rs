//! Stops all disks where they stand while the host has too little room, so that what a sandbox meets is its quota and
//! never an error of a disk that was promised more than there is.
//!
//! A disk has two limits: its own, on what it refers to, and one on what it alone holds. With simple quotas both count
//! the same bytes, so the second is free for this: a disk's own limit stays what it is, may be changed meanwhile, and a
//! server that starts finds in the file system itself what an earlier one has stopped.

use std::io;

use runtime_host::btrfs::{self, BtrfsError};

use super::Pool;
use super::pool::{check_room, space};

/// What a stopped disk may still take: removing files takes some first.
const SLACK: u64 = 1 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Growth {
    Stop,
    /// Whatever was decided holds: room that comes and goes at the threshold changes nothing.
    AsBefore,
    Allow,
}

impl Growth {
    fn of(total: u64, free: u64) -> Self {
        match check_room("".as_ref(), total, free) {
            Err(_) => Self::Stop,
            // A quarter more than what must stay free.
            Ok(()) if check_room("".as_ref(), total, free / 5 * 4).is_err() => Self::AsBefore,
            Ok(()) => Self::Allow,
        }
    }
}

impl Pool {
    /// What the disks below have room for.
    pub(crate) fn growth(&self) -> io::Result<Growth> {
        let mut all = Growth::Allow;
        for disk in self.disks() {
            let (total, free) = space(disk)?;
            match Growth::of(total, free) {
                Growth::Stop => return Ok(Growth::Stop),
                Growth::AsBefore => all = Growth::AsBefore,
                Growth::Allow => {}
            }
        }
        Ok(all)
    }

    /// Stops every disk at what it has now; how many were not yet. To be repeated while it is to hold: what a disk gives
    /// back is not its own any more.
    pub(crate) fn stop_growth(&self) -> Result<usize, BtrfsError> {
        self.each_root(|id| {
            let stop = btrfs::own_usage(self.fs(), id)?.saturating_add(SLACK);
            let now = btrfs::own_limit(self.fs(), id)?;
            if now.is_none_or(|now| stop < now) {
                btrfs::set_own_limit(self.root_fd(), id, Some(stop))?;
            }
            Ok(now.is_none())
        })
    }

    /// Lets every disk grow up to its own limit again; how many were stopped.
    pub(crate) fn allow_growth(&self) -> Result<usize, BtrfsError> {
        self.each_root(|id| {
            let stopped = btrfs::own_limit(self.fs(), id)?.is_some();
            if stopped {
                btrfs::set_own_limit(self.root_fd(), id, None)?;
            }
            Ok(stopped)
        })
    }

    /// Counts the disks for which `work` says so. One that cannot be served does not keep the others from it.
    fn each_root(&self, work: impl Fn(u64) -> Result<bool, BtrfsError>) -> Result<usize, BtrfsError> {
        let (mut count, mut failure) = (0, None);
        for name in self.roots()? {
            let done = self.open_root(&name).and_then(|root| {
                let id = btrfs::subvolume_id(&root)?;
                work(id)
            });
            match done {
                Ok(changed) => count += usize::from(changed),
                // Deleted meanwhile.
                Err(e) if e.source.kind() == io::ErrorKind::NotFound => {}
                Err(e) => failure = Some(e),
            }
        }
        failure.map_or(Ok(count), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_that_was_stopped_needs_a_quarter_more_to_go_on() {
        let gib = 1 << 30;
        assert_eq!(Growth::of(100 * gib, 9 * gib), Growth::Stop);
        assert_eq!(Growth::of(100 * gib, 11 * gib), Growth::AsBefore);
        assert_eq!(Growth::of(100 * gib, 13 * gib), Growth::Allow);
        assert_eq!(Growth::of(20 * gib, 4 * gib), Growth::Stop);
        assert_eq!(Growth::of(20 * gib, 6 * gib), Growth::AsBefore);
        assert_eq!(Growth::of(0, 0), Growth::Stop);
    }
}
