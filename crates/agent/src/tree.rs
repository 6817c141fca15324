//! Who is below whom, read from /proc: to signal a whole tree, to end it, to find the largest process.
//!
//! /proc is opened once at the start: a guest that mounts something over it, or removes it, changes nothing for us.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;

use rustix::fs::{Dir, Mode, OFlags};
use rustix::process::{Pid, Signal, kill_process};

static PROC: OnceLock<Option<OwnedFd>> = OnceLock::new();

fn proc_dir() -> Option<&'static OwnedFd> {
    PROC.get_or_init(|| {
        rustix::fs::open("/proc", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).ok()
    })
    .as_ref()
}

/// Opens /proc while it is still ours.
pub(crate) fn prepare() {
    let _ = proc_dir();
}

/// A file below /proc.
pub(crate) fn read(path: &str, limit: u64) -> Option<String> {
    let fd = rustix::fs::openat(proc_dir()?, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut bytes = Vec::new();
    std::fs::File::from(fd).take(limit).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Where a link below /proc leads.
pub(crate) fn link(path: &str) -> Option<Vec<u8>> {
    Some(rustix::fs::readlinkat(proc_dir()?, path, Vec::new()).ok()?.into_bytes())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    Directory,
    Other,
}

/// What is at the end of a link below /proc, whatever its name is by now.
pub(crate) fn kind(path: &str) -> Option<Kind> {
    let found = rustix::fs::statat(proc_dir()?, path, rustix::fs::AtFlags::empty()).ok()?;
    Some(match rustix::fs::FileType::from_raw_mode(found.st_mode) {
        rustix::fs::FileType::RegularFile => Kind::File,
        rustix::fs::FileType::Directory => Kind::Directory,
        _ => Kind::Other,
    })
}

fn numbers_in(path: &str) -> Vec<i32> {
    let Some(proc_dir) = proc_dir() else { return Vec::new() };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(fd) = rustix::fs::openat(proc_dir, path, flags, Mode::empty()) else { return Vec::new() };
    let Ok(dir) = Dir::new(fd) else { return Vec::new() };
    dir.flatten().filter_map(|entry| entry.file_name().to_str().ok()?.parse().ok()).collect()
}

/// One line of `/proc/<pid>/stat`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stat {
    pub(crate) name: String,
    pub(crate) state: char,
    pub(crate) parent: i32,
    pub(crate) rss_pages: u64,
}

pub(crate) fn stat(pid: i32) -> Option<Stat> {
    parse_stat(&read(&format!("{pid}/stat"), 4096)?)
}

/// The name may hold spaces and brackets: what counts is the last bracket.
fn parse_stat(line: &str) -> Option<Stat> {
    let open = line.find('(')?;
    let close = line.rfind(')')?;
    let name = line.get(open + 1..close)?.to_owned();
    let fields: Vec<&str> = line.get(close + 1..)?.split_whitespace().collect();
    Some(Stat {
        name,
        state: fields.first()?.chars().next()?,
        parent: fields.get(1)?.parse().ok()?,
        rss_pages: fields.get(21).and_then(|field| field.parse().ok()).unwrap_or(0),
    })
}

pub(crate) fn all() -> Vec<i32> {
    numbers_in(".")
}

/// Direct children; `None` where the kernel does not list them.
pub(crate) fn children(pid: i32) -> Option<Vec<i32>> {
    let mut out = Vec::new();
    let threads = numbers_in(&format!("{pid}/task"));
    let mut listed = threads.is_empty();
    for thread in threads {
        if let Some(line) = read(&format!("{pid}/task/{thread}/children"), 1 << 20) {
            listed = true;
            out.extend(line.split_whitespace().filter_map(|word| word.parse::<i32>().ok()));
        }
    }
    listed.then_some(out)
}

/// Everything below `root`, parents before children, leaving out what `skip` names and all below that.
pub(crate) fn below(root: i32, skip: &dyn Fn(i32) -> bool) -> Vec<i32> {
    let mut by_parent: Option<HashMap<i32, Vec<i32>>> = None;
    let mut seen = HashSet::from([root]);
    let mut queue = VecDeque::from([root]);
    let mut out = Vec::new();
    while let Some(pid) = queue.pop_front() {
        let found = children(pid).unwrap_or_else(|| {
            by_parent.get_or_insert_with(parents_read_one_by_one).get(&pid).cloned().unwrap_or_default()
        });
        for child in found {
            if !skip(child) && seen.insert(child) {
                out.push(child);
                queue.push_back(child);
            }
        }
    }
    out
}

/// How many below `root` live: those that ended and wait to be collected do not.
pub(crate) fn living(root: i32) -> usize {
    below(root, &|_| false).into_iter().filter(|pid| stat(*pid).is_some_and(|stat| stat.state != 'Z')).count()
}

fn parents_read_one_by_one() -> HashMap<i32, Vec<i32>> {
    let mut map: HashMap<i32, Vec<i32>> = HashMap::new();
    for pid in all() {
        if let Some(stat) = stat(pid) {
            map.entry(stat.parent).or_default().push(pid);
        }
    }
    map
}

/// Sends a signal; a process that is gone is no error.
pub(crate) fn signal(pid: i32, number: i32) -> bool {
    match (Pid::from_raw(pid), Signal::from_named_raw(number)) {
        (Some(pid), Some(signal)) => kill_process(pid, signal).is_ok(),
        _ => false,
    }
}

/// Signals everything below `root` once.
pub(crate) fn signal_below(root: i32, number: i32, skip: &dyn Fn(i32) -> bool) {
    for pid in below(root, skip) {
        signal(pid, number);
    }
}

/// Stops all that is below `root` first, so that nothing forks while it is being killed, then kills it.
pub(crate) fn kill_below(root: i32, skip: &dyn Fn(i32) -> bool) {
    let mut stopped = HashSet::new();
    // Each round stops what the last one's forks made; a tree at its process limit is still within a few rounds.
    for _ in 0..64 {
        let mut fresh = false;
        for pid in below(root, skip) {
            if stopped.insert(pid) {
                fresh = true;
                signal(pid, Signal::STOP.as_raw());
            }
        }
        if !fresh {
            break;
        }
    }
    for pid in stopped {
        signal(pid, Signal::KILL.as_raw());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_made_to_confuse_is_read_right() {
        let tail = "S 7 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 3 22974464 3812 1 0";
        let stat = parse_stat(&format!("12 (a) R 99 (b)) {tail}")).unwrap();
        assert_eq!((stat.name.as_str(), stat.parent, stat.rss_pages), ("a) R 99 (b)", 7, 3812));
        assert_eq!(parse_stat("12 (x"), None);
        assert_eq!(parse_stat(""), None);
    }
}
