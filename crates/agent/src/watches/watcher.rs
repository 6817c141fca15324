//! One watch at work, on a thread of its own: what the kernel tells becomes changes, batches, records.
//!
//! The kernel tells a rename in two halves with one cookie, perhaps with others between. A first half whose second is not
//! in the same read is a removal, unless nothing came after it: then the second may be in the next. A new directory is looked through when it is first seen, since
//! things may have come into it before; what the kernel tells of these a second time is passed over.

use std::collections::{HashMap, HashSet};
use std::io::PipeReader;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use runtime_proto::guest::{ChangeKind, WatchEnd, WatchRecord};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{ReadFlags, Reader};
use rustix::io::Errno;

use super::batch::Batch;
use super::filter::Filter;
use super::log::Log;
use super::tree::Tree;

/// A step of the run clock; longer gaps are time the machine was not running.
const TICK: Duration = Duration::from_secs(2);
/// Events taken between two looks at the clock.
const AT_ONCE: usize = 4096;
/// Entries of new directories that are told by name; more are counted.
const MOST_FOUND: usize = 10_000;

pub(super) struct Watcher {
    pub(super) root: PathBuf,
    pub(super) tree: Tree,
    pub(super) filter: Filter,
    pub(super) kinds: HashSet<ChangeKind>,
    pub(super) batch_time: Duration,
    /// `None`: until stopped.
    pub(super) left: Option<Duration>,
    pub(super) log: Arc<Log>,
    batch: Batch,
    /// First halves of renames: the path, and whether it is a directory.
    moved: HashMap<u32, (PathBuf, bool)>,
    /// The kernel has more than was read.
    behind: bool,
    /// Found in new directories since the last read, and before it: the kernel tells them as well, in the next read.
    found: HashSet<PathBuf>,
    found_before: HashSet<PathBuf>,
}

/// An event of the kernel, owned.
struct Told {
    number: i32,
    flags: ReadFlags,
    cookie: u32,
    name: Option<PathBuf>,
}

impl Watcher {
    pub(super) fn new(
        root: PathBuf,
        tree: Tree,
        filter: Filter,
        kinds: HashSet<ChangeKind>,
        batch_time: Duration,
        left: Option<Duration>,
        log: Arc<Log>,
    ) -> Self {
        Self {
            root,
            tree,
            filter,
            kinds,
            batch_time,
            left,
            log,
            batch: Batch::default(),
            moved: HashMap::new(),
            behind: false,
            found: HashSet::new(),
            found_before: HashSet::new(),
        }
    }

    /// Looks at all that is there, without telling of it.
    pub(super) fn begin(&mut self) {
        self.tree.enter(Path::new(""), &self.filter, |_, _| {});
        self.tell_limit();
    }

    /// Until it is stopped (`stop` closes), its time is up, or what it watches is gone.
    pub(super) fn run(mut self, stop: &PipeReader) {
        let mut due: Option<Instant> = None;
        let end = loop {
            let now = Instant::now();
            let mut wait = due.map_or(TICK, |due| due.saturating_duration_since(now)).min(TICK);
            if let Some(left) = self.left {
                wait = wait.min(left);
            }
            let stopped = match self.wait(stop, wait) {
                Ok(stopped) => stopped,
                Err(error) => {
                    crate::log::log!("waiting for changes below {} failed: {error}", self.root.display());
                    break WatchEnd::Unknown;
                }
            };
            let passed = now.elapsed();
            if let Some(left) = &mut self.left {
                *left = left.saturating_sub(if passed > wait + TICK { wait } else { passed });
            }
            // What came before the end is told.
            let end = self.drain();
            if let Some(end) = end {
                break end;
            }
            if stopped {
                break WatchEnd::Stopped;
            }
            if self.left.is_some_and(|left| left.is_zero()) {
                break WatchEnd::TimedOut;
            }
            let waiting = !self.batch.is_empty() || !self.moved.is_empty();
            match due {
                None if waiting => due = Some(Instant::now() + self.batch_time),
                Some(at) if Instant::now() >= at => {
                    // A second half may be in what was not read yet.
                    if !self.behind {
                        self.settle(|_| true);
                    }
                    self.flush();
                    due = None;
                }
                _ => {}
            }
        };
        self.settle(|_| true);
        self.flush();
        self.log.end(end);
    }

    fn wait(&self, stop: &PipeReader, wait: Duration) -> Result<bool, Errno> {
        let mut both = [PollFd::new(&self.tree.inotify, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
        let wait = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: i64::from(wait.subsec_nanos()) };
        match poll(&mut both, Some(&wait)) {
            Ok(_) | Err(Errno::INTR) => Ok(!both[1].revents().is_empty()),
            Err(error) => Err(error),
        }
    }

    /// Takes what the kernel has, up to a measure.
    fn drain(&mut self) -> Option<WatchEnd> {
        let (told, all) = match self.read() {
            Ok(read) => read,
            Err(error) => {
                crate::log::log!("reading changes below {} failed: {error}", self.root.display());
                return Some(WatchEnd::Unknown);
            }
        };
        let seconds: HashSet<u32> =
            told.iter().filter(|event| event.flags.contains(ReadFlags::MOVED_TO)).map(|event| event.cookie).collect();
        if !told.is_empty() {
            self.settle(|cookie| !seconds.contains(&cookie));
        }
        let last = told.len().saturating_sub(1);
        for (at, event) in told.into_iter().enumerate() {
            let waits = at == last || seconds.contains(&event.cookie);
            if let Some(end) = self.take(event, waits) {
                return Some(end);
            }
        }
        if all {
            // What was found before this read has been told twice by now.
            self.found_before.clear();
        }
        self.found_before.extend(self.found.drain());
        self.behind = !all;
        self.tell_limit();
        None
    }

    /// Events, and whether these are all.
    fn read(&self) -> Result<(Vec<Told>, bool), Errno> {
        let mut told = Vec::new();
        let mut buffer = [MaybeUninit::uninit(); 16 * 1024];
        let mut reader = Reader::new(&self.tree.inotify, &mut buffer);
        while told.len() < AT_ONCE || !reader.is_buffer_empty() {
            match reader.next() {
                Ok(event) => told.push(Told {
                    number: event.wd(),
                    flags: event.events(),
                    cookie: event.cookie(),
                    name: event.file_name().map(|name| PathBuf::from(std::ffi::OsStr::from_bytes(name.to_bytes()))),
                }),
                Err(Errno::WOULDBLOCK) => return Ok((told, true)),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        Ok((told, false))
    }

    /// `waits`: a first half of a rename may have its second still to come.
    fn take(&mut self, told: Told, waits: bool) -> Option<WatchEnd> {
        let Told { number, flags, cookie, name } = told;
        if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
            self.settle(|_| true);
            self.batch.overflown();
            self.tree.look_again(&self.filter);
            return None;
        }
        let dir = self.tree.path(number)?.clone();
        if flags.contains(ReadFlags::IGNORED) {
            self.tree.gone(number);
            return None;
        }
        let is_dir = flags.contains(ReadFlags::ISDIR);
        let Some(name) = name else {
            if !dir.as_os_str().is_empty() {
                // Its directory tells the same of it, by its name.
                return None;
            }
            if flags.intersects(ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF | ReadFlags::UNMOUNT) {
                return Some(WatchEnd::RootRemoved);
            }
            self.took_place(flags, &dir, is_dir);
            return None;
        };
        let path = dir.join(name);
        if flags.contains(ReadFlags::MOVED_FROM) {
            self.known(&path);
            if waits {
                self.moved.insert(cookie, (path, is_dir));
            } else {
                self.went(&path, is_dir);
            }
        } else if flags.contains(ReadFlags::MOVED_TO) {
            match self.moved.remove(&cookie) {
                Some((from, _)) => self.renamed(&from, &path, is_dir),
                None => self.came(&path, is_dir),
            }
        } else if flags.contains(ReadFlags::CREATE) {
            self.came(&path, is_dir);
        } else if flags.contains(ReadFlags::DELETE) {
            self.known(&path);
            self.tell(ChangeKind::Remove, &path, is_dir, None);
        } else {
            self.took_place(flags, &path, is_dir);
        }
        None
    }

    /// Changes that give nothing another name.
    fn took_place(&mut self, flags: ReadFlags, path: &Path, is_dir: bool) {
        if flags.contains(ReadFlags::MODIFY) {
            self.tell(ChangeKind::Write, path, is_dir, None);
        }
        if flags.contains(ReadFlags::ATTRIB) {
            self.tell(ChangeKind::Chmod, path, is_dir, None);
        }
        // Whoever lists a directory reads it; of files alone it is news.
        if flags.contains(ReadFlags::ACCESS) && !is_dir {
            self.tell(ChangeKind::Access, path, is_dir, None);
        }
    }

    /// It was found, and is no longer expected.
    fn known(&mut self, path: &Path) -> bool {
        self.found.remove(path) | self.found_before.remove(path)
    }

    fn came(&mut self, path: &Path, is_dir: bool) {
        if self.known(path) {
            return;
        }
        self.tell(ChangeKind::Create, path, is_dir, None);
        if is_dir && self.filter.enters(path) {
            let (mut found, mut more) = (Vec::new(), 0);
            self.tree.enter(path, &self.filter, |path, is_dir| {
                if found.len() < MOST_FOUND {
                    found.push((path.to_owned(), is_dir));
                } else if self.filter.shows(path) {
                    more += 1;
                }
            });
            for (path, is_dir) in found {
                self.tell(ChangeKind::Create, &path, is_dir, None);
                if self.found.len() < MOST_FOUND {
                    self.found.insert(path);
                }
            }
            if self.kinds.contains(&ChangeKind::Create) {
                self.batch.dropped(more);
            }
        }
    }

    fn renamed(&mut self, from: &Path, to: &Path, is_dir: bool) {
        if !self.filter.enters(from) {
            return self.came(to, is_dir);
        }
        if is_dir && self.filter.enters(to) {
            self.tree.renamed(from, to);
        } else if is_dir {
            self.tree.leave(from);
        }
        match (self.filter.shows(from), self.filter.shows(to)) {
            (true, true) => self.tell(ChangeKind::Rename, to, is_dir, Some(from)),
            (true, false) => self.tell(ChangeKind::Remove, from, is_dir, None),
            (false, _) => self.tell(ChangeKind::Create, to, is_dir, None),
        }
    }

    fn tell(&mut self, kind: ChangeKind, path: &Path, is_dir: bool, old: Option<&Path>) {
        // What is watched itself is always shown.
        let shown = path.as_os_str().is_empty() || self.filter.shows(path);
        if shown && self.kinds.contains(&kind) {
            let old = old.map(|old| self.shown(old));
            self.batch.add(kind, self.shown(path), is_dir, old);
        }
    }

    fn shown(&self, path: &Path) -> String {
        let path = if path.as_os_str().is_empty() { self.root.clone() } else { self.root.join(path) };
        String::from_utf8_lossy(path.as_os_str().as_bytes()).into_owned()
    }

    fn tell_limit(&mut self) {
        if self.tree.take_full() {
            let limit = Some(u32::try_from(self.tree.len()).unwrap_or(u32::MAX));
            self.log.push(WatchRecord { limit, ..WatchRecord::default() });
        }
    }

    /// First halves whose second does not come any more: they went where nobody looks.
    fn settle(&mut self, which: impl Fn(u32) -> bool) {
        let cookies: Vec<u32> = self.moved.keys().copied().filter(|cookie| which(*cookie)).collect();
        for cookie in cookies {
            if let Some((path, is_dir)) = self.moved.remove(&cookie) {
                self.went(&path, is_dir);
            }
        }
    }

    fn went(&mut self, path: &Path, is_dir: bool) {
        if is_dir {
            self.tree.leave(path);
        }
        self.tell(ChangeKind::Remove, path, is_dir, None);
    }

    fn flush(&mut self) {
        for record in self.batch.take() {
            self.log.push(record);
        }
    }
}

#[cfg(test)]
mod tests {
    use runtime_proto::guest::StartWatch;

    use super::*;

    #[test]
    fn what_the_kernel_dropped_is_said_and_its_directories_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let wanted = StartWatch { recursive: true, kinds: vec![ChangeKind::Create as i32], ..StartWatch::default() };
        let log = Arc::new(Log::default());
        let filter = Filter::new(&wanted).unwrap();
        let mut watcher = super::super::prepare(dir.path().to_owned(), &wanted, filter, log.clone()).expect("a watch");
        let most = std::fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap();
        for number in 0..most.trim().parse::<usize>().unwrap() + 10 {
            std::fs::write(dir.path().join(number.to_string()), "").unwrap();
        }
        // Nobody was told of this one.
        std::fs::create_dir(dir.path().join("missed")).unwrap();
        loop {
            assert!(watcher.drain().is_none());
            if !watcher.behind {
                break;
            }
        }
        watcher.flush();
        let before = log.cursor();
        std::fs::write(dir.path().join("missed/seen"), "").unwrap();
        assert!(watcher.drain().is_none());
        watcher.flush();
        let (mut cursor, mut overflows) = (0, Vec::new());
        while cursor < before {
            let seen = log.after(cursor).records;
            overflows.extend(seen.iter().filter_map(|record| record.overflow).map(|overflow| overflow.dropped));
            cursor = seen.last().unwrap().cursor;
        }
        assert!(overflows.contains(&None), "{overflows:?}");
        let after = log.after(before).records;
        assert!(after[0].changes[0].path.ends_with("missed/seen"), "{after:?}");
    }

    #[test]
    fn a_name_taken_anew_is_not_mixed_up_with_what_went_away() {
        let dir = tempfile::tempdir().unwrap();
        let (root, outside) = (dir.path().join("root"), dir.path().join("outside"));
        std::fs::create_dir_all(root.join("d")).unwrap();
        std::fs::create_dir(&outside).unwrap();
        let wanted = StartWatch { recursive: true, ..StartWatch::default() };
        let log = Arc::new(Log::default());
        let filter = Filter::new(&wanted).unwrap();
        let mut watcher = super::super::prepare(root.clone(), &wanted, filter, log.clone()).expect("a watch");
        // All in one batch: out, and another one under the name.
        std::fs::rename(root.join("d"), outside.join("d")).unwrap();
        std::fs::create_dir(root.join("d")).unwrap();
        assert!(watcher.drain().is_none());
        watcher.flush();
        std::fs::create_dir(root.join("d/x")).unwrap();
        std::fs::create_dir(outside.join("d/unseen")).unwrap();
        assert!(watcher.drain().is_none());
        watcher.flush();
        let told: Vec<(i32, String)> = log
            .after(0)
            .records
            .into_iter()
            .flat_map(|record| record.changes)
            .map(|change| (change.kind, change.path.replace(root.to_str().unwrap(), "")))
            .collect();
        let expected = [(ChangeKind::Remove, "/d"), (ChangeKind::Create, "/d"), (ChangeKind::Create, "/d/x")];
        assert_eq!(told, expected.map(|(kind, path)| (kind as i32, path.to_owned())));
    }
}
