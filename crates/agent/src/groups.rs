//! A control group for each runner, in which the kernel counts what it ended there for want of memory.
//!
//! A command that ends badly need not be the one that was ended: a program it started was, and it went on. The kernel
//! says only at the group whose process it was. On a kernel without such groups there is none, and nobody misses it: the
//! host ends processes there, and says whose.
//!
//! The tree is mounted nowhere: the guest has the place for its own.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{AtFlags, Mode, OFlags, mkdirat, openat, unlinkat};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

use crate::log::log;

/// Enough of `memory.events` for the line that is looked for.
const EVENTS: usize = 1024;
const FLAGS: OFlags = OFlags::CLOEXEC.union(OFlags::NOFOLLOW);

pub(crate) struct Groups {
    root: OwnedFd,
    next: AtomicU64,
    /// Groups of runners that are gone, with what of theirs may still live.
    left: Mutex<Vec<String>>,
}

/// The group of one runner and of all below it.
pub(crate) struct Group {
    groups: Arc<Groups>,
    name: String,
    /// `cgroup.procs`: whoever writes nought to it is in.
    pub(crate) door: OwnedFd,
    events: OwnedFd,
}

impl Groups {
    /// Nothing where the kernel does not count memory in groups.
    pub(crate) fn open() -> Option<Arc<Self>> {
        let root = match tree() {
            Ok(root) => root,
            Err(Errno::NODEV | Errno::NOSYS) => return None,
            Err(error) => {
                log!("opening the control groups failed: {error}");
                return None;
            }
        };
        Some(Arc::new(Self { root, next: AtomicU64::new(1), left: Mutex::default() }))
    }

    /// A runner without one works as well.
    pub(crate) fn make(self: &Arc<Self>) -> Option<Group> {
        self.remove_left();
        let name = format!("runtime-{}", self.next.fetch_add(1, Ordering::Relaxed));
        let made = mkdirat(&self.root, &name, Mode::from_raw_mode(0o755)).and_then(|()| {
            let open = |file: &str, flags| openat(&self.root, format!("{name}/{file}"), flags | FLAGS, Mode::empty());
            Ok((open("cgroup.procs", OFlags::WRONLY)?, open("memory.events", OFlags::RDONLY)?))
        });
        match made {
            Ok((door, events)) => Some(Group { groups: self.clone(), name, door, events }),
            Err(error) => {
                log!("making the control group {name} failed: {error}");
                let _ = unlinkat(&self.root, &name, AtFlags::REMOVEDIR);
                None
            }
        }
    }

    /// One that still holds a process is tried again with the next.
    fn remove_left(&self) {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        left.retain(|name| unlinkat(&self.root, name, AtFlags::REMOVEDIR) == Err(Errno::BUSY));
    }
}

/// The whole tree, with memory counted in it.
fn tree() -> Result<OwnedFd, Errno> {
    let context = fsopen("cgroup2", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    let root = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
    let control = openat(&root, "cgroup.subtree_control", OFlags::WRONLY | FLAGS, Mode::empty())?;
    rustix::io::write(&control, b"+memory")?;
    Ok(root)
}

impl Group {
    /// Processes in it that the kernel has ended for want of memory, since it was made.
    pub(crate) fn kills(&self) -> io::Result<u64> {
        let mut bytes = [0; EVENTS];
        let got = rustix::io::pread(&self.events, &mut bytes, 0)?;
        Ok(parse(&String::from_utf8_lossy(&bytes[..got])))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.groups.left.lock().unwrap_or_else(PoisonError::into_inner).push(std::mem::take(&mut self.name));
        self.groups.remove_left();
    }
}

fn parse(events: &str) -> u64 {
    let count = events.lines().find_map(|line| line.strip_prefix("oom_kill "));
    count.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_is_that_of_ended_processes() {
        assert_eq!(parse("low 0\nhigh 3\nmax 4\noom 5\noom_kill 2\noom_group_kill 7\n"), 2);
        assert_eq!(parse("oom 5\n"), 0);
    }
}
