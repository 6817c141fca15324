//! The directories that are looked at: which of the kernel's numbers stands for which path, as they come and go.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::inotify::{self, WatchFlags};
use rustix::io::Errno;

use super::filter::Filter;
use crate::setup::user_space_kernel;

/// Directories of one watch, whatever is asked for.
const MOST: usize = 65_536;
/// The same on gVisor, which holds two descriptors of the host's for each, out of 20,000 or more that a sandbox has; without
/// any left nothing starts or opens. Four watches leave a part of them.
const MOST_ON_GVISOR: usize = 2_000;
/// Bytes of their paths.
const MOST_BYTES: usize = 16 * 1024 * 1024;

/// As many as the kernel bears.
pub(super) fn most() -> usize {
    if user_space_kernel() { MOST_ON_GVISOR } else { MOST }
}

pub(super) struct Tree {
    pub(super) inotify: OwnedFd,
    root: PathBuf,
    recursive: bool,
    flags: WatchFlags,
    most: usize,
    /// Relative to the root, which is the empty one.
    paths: HashMap<i32, PathBuf>,
    bytes: usize,
    /// More directories were met than are looked at.
    full: bool,
    /// And that was told.
    said: bool,
}

impl Tree {
    pub(super) fn new(inotify: OwnedFd, root: PathBuf, recursive: bool, flags: WatchFlags, most: usize) -> Self {
        Self {
            inotify,
            root,
            recursive,
            flags,
            most: most.min(self::most()),
            paths: HashMap::new(),
            bytes: 0,
            full: false,
            said: false,
        }
    }

    /// The root itself, a file or a directory. Links to it are followed.
    pub(super) fn add_root(&mut self, is_dir: bool) -> Result<(), Errno> {
        let only = if is_dir { WatchFlags::ONLYDIR } else { WatchFlags::empty() };
        let number = inotify::add_watch(&self.inotify, &self.root, self.flags | only)?;
        self.insert(number, PathBuf::new());
        Ok(())
    }

    pub(super) fn path(&self, number: i32) -> Option<&PathBuf> {
        self.paths.get(&number)
    }

    pub(super) fn len(&self) -> usize {
        self.paths.len()
    }

    fn insert(&mut self, number: i32, path: PathBuf) {
        self.bytes += path.as_os_str().len();
        if let Some(before) = self.paths.insert(number, path) {
            self.bytes -= before.as_os_str().len();
        }
    }

    /// The kernel let go of it.
    pub(super) fn gone(&mut self, number: i32) {
        if let Some(path) = self.paths.remove(&number) {
            self.bytes -= path.as_os_str().len();
        }
    }

    /// True once, if there were more directories than may be looked at.
    pub(super) fn take_full(&mut self) -> bool {
        self.full && !std::mem::replace(&mut self.said, self.full)
    }

    /// Looks at a directory and all below it, and tells what is there: it may have come before it was looked at.
    pub(super) fn enter(&mut self, path: &Path, filter: &Filter, mut found: impl FnMut(&Path, bool)) {
        if !self.recursive {
            return;
        }
        let mut pending = vec![path.to_owned()];
        while let Some(path) = pending.pop() {
            if !path.as_os_str().is_empty() && !self.add(&path) {
                continue;
            }
            // Closed to this user, or gone again: there is nothing to tell.
            let Ok(entries) = std::fs::read_dir(self.root.join(&path)) else { continue };
            for entry in entries.flatten() {
                let path = path.join(entry.file_name());
                let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
                if !filter.enters(&path) {
                    continue;
                }
                found(&path, is_dir);
                if is_dir && self.paths.len() + pending.len() < self.most {
                    pending.push(path);
                } else {
                    self.full |= is_dir;
                }
            }
        }
    }

    fn add(&mut self, path: &Path) -> bool {
        if self.paths.len() >= self.most || self.bytes >= MOST_BYTES {
            self.full = true;
            return false;
        }
        let flags = self.flags | WatchFlags::ONLYDIR | WatchFlags::DONT_FOLLOW;
        match inotify::add_watch(&self.inotify, self.root.join(path), flags) {
            Ok(number) => {
                self.insert(number, path.to_owned());
                true
            }
            Err(error) => {
                self.full |= matches!(error, Errno::NOSPC | Errno::NOMEM);
                false
            }
        }
    }

    /// Looks at everything anew: what the kernel dropped may have been about directories.
    pub(super) fn look_again(&mut self, filter: &Filter) {
        let mut before = std::mem::take(&mut self.paths);
        self.bytes = 0;
        let root = before.iter().find(|(_, path)| path.as_os_str().is_empty()).map(|(number, _)| *number);
        if let Some(root) = root {
            before.remove(&root);
            self.insert(root, PathBuf::new());
        }
        // Whoever is looked at already keeps its number.
        self.enter(Path::new(""), filter, |_, _| {});
        for number in before.into_keys().filter(|number| !self.paths.contains_key(number)) {
            let _ = inotify::remove_watch(&self.inotify, number);
        }
    }

    /// A directory has another name, and so has all below it.
    pub(super) fn renamed(&mut self, from: &Path, to: &Path) {
        for path in self.paths.values_mut() {
            if let Ok(below) = path.strip_prefix(from) {
                let now = if below.as_os_str().is_empty() { to.to_owned() } else { to.join(below) };
                self.bytes = self.bytes - path.as_os_str().len() + now.as_os_str().len();
                *path = now;
            }
        }
    }

    /// A directory is somewhere else: it and all below is no longer looked at.
    pub(super) fn leave(&mut self, from: &Path) {
        let left: Vec<i32> =
            self.paths.iter().filter(|(_, path)| path.starts_with(from)).map(|(number, _)| *number).collect();
        for number in left {
            // Gone already, perhaps: then so is the number.
            let _ = inotify::remove_watch(&self.inotify, number);
            self.gone(number);
        }
    }
}
