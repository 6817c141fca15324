//! What a host holds for a data directory, counted, so that a test can compare before and after.
//!
//! Two ways to look: [`Snapshot`] counts what belongs to the directory; [`traces`] looks for the id of a sandbox that is
//! gone in every place of the host where a helper, a mount or a cgroup would carry it, whatever the layout.

use crate::Places;
use crate::process::{Process, holders, processes};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// Counts and names at one moment.
#[derive(Debug, Clone)]
pub struct Snapshot {
    pub helpers: Vec<Process>,
    pub mounts: Vec<String>,
    pub loops: usize,
    pub cgroups: usize,
    pub server_fds: usize,
    pub server_threads: usize,
    pub server_memory_kib: u64,
    pub entries: BTreeSet<PathBuf>,
}

impl Snapshot {
    /// What there is now for a data directory that the process `server` serves.
    #[must_use]
    pub fn take(places: &Places, server: i32) -> Self {
        let proc = format!("/proc/{server}");
        Self {
            helpers: helpers(places).into_iter().filter(|process| process.pid != server).collect(),
            mounts: mounts_of(places),
            loops: loops_of(places),
            cgroups: cgroups_of(places).len(),
            server_fds: count(&format!("{proc}/fd")),
            server_threads: count(&format!("{proc}/task")),
            server_memory_kib: memory_kib(server),
            entries: entries(&places.data, 3).into_iter().chain(entries(&places.run, 3)).collect(),
        }
    }

    /// What is there now that was not before; empty when nothing leaked. A few descriptors more (a kept connection, a
    /// second connection to the database) are no leak; one for each sandbox is.
    #[must_use]
    pub fn grown_since(&self, before: &Self, spare_fds: usize, spare_helpers: usize) -> Vec<String> {
        let mut grown = Vec::new();
        let mut say = |what: &str, now: usize, then: usize| {
            if now > then {
                grown.push(format!("{what}: {then} before, {now} now"));
            }
        };
        say("helper processes", self.helpers.len(), before.helpers.len() + spare_helpers);
        say("mounts", self.mounts.len(), before.mounts.len());
        say("loop devices", self.loops, before.loops);
        say("cgroups", self.cgroups, before.cgroups);
        say("descriptors of the server", self.server_fds, before.server_fds + spare_fds);
        let new: Vec<_> = self.entries.difference(&before.entries).filter(|path| !grows_by_itself(path)).collect();
        if !new.is_empty() {
            grown.push(format!("files and directories: {new:?}"));
        }
        grown
    }

    /// One line of figures.
    #[must_use]
    pub fn figures(&self) -> String {
        let mut line = String::new();
        let _ = write!(
            line,
            "helpers {}, mounts {}, loop devices {}, cgroups {}, server: {} descriptors, {} threads, {} KiB; {} entries",
            self.helpers.len(),
            self.mounts.len(),
            self.loops,
            self.cgroups,
            self.server_fds,
            self.server_threads,
            self.server_memory_kib,
            self.entries.len()
        );
        line
    }
}

/// The database's own files come and go with its checkpoints, and disks are made in advance.
fn grows_by_itself(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    name.starts_with("runtime.db") || name.starts_with(".spare-")
}

/// Every place on the host that still carries one of these sandbox ids, written with dashes or without.
#[must_use]
pub fn traces(ids: &[String], places: &Places) -> Vec<String> {
    let words = spellings(ids);
    let mut found: Vec<String> =
        processes_of(ids).into_iter().map(|process| format!("process {}: {}", process.pid, process.command)).collect();
    found.extend(mounts_carrying(&words).into_iter().map(|mount| format!("mount {mount}")));
    found.extend(cgroups_carrying(&words).into_iter().map(|path| format!("cgroup {}", path.display())));
    let on_disk = [places.data.as_path(), Path::new("/run/runtime")].into_iter().flat_map(|dir| entries(dir, 4));
    found.extend(on_disk.filter(|path| carries(path, &words)).map(|path| path.display().to_string()));
    found
}

fn spellings(ids: &[String]) -> Vec<String> {
    ids.iter().flat_map(|id| [id.clone(), id.replace('-', "")]).collect()
}

/// Processes of the sandboxes of a data directory, its server among them.
pub(crate) fn helpers(places: &Places) -> Vec<Process> {
    let mut found = holders(&[&places.data, &places.run]);
    found.retain(|process| !is_egress(process));
    found
}

/// The server's egress program lives and dies with the server, and is no sandbox's.
pub(crate) fn is_egress(process: &Process) -> bool {
    process.command.split(' ').nth(1) == Some("egress")
}

fn processes_of(ids: &[String]) -> Vec<Process> {
    let words = spellings(ids);
    let us = i32::try_from(std::process::id()).unwrap_or(0);
    processes()
        .into_iter()
        .filter(|process| process.pid != us && is_helper(&process.command))
        .filter(|process| words.iter().any(|word| process.command.contains(word.as_str())))
        .collect()
}

/// A command line of a test or a client may carry an id as well; helpers are runsc and the product's own programs.
fn is_helper(command: &str) -> bool {
    let program = command.split(' ').next().unwrap_or_default();
    let program = program.rsplit('/').next().unwrap_or_default();
    program.starts_with("runsc") || program.starts_with("runtime")
}

pub(crate) fn mounts_of(places: &Places) -> Vec<String> {
    mounts_carrying(&[format!("{}/", places.data.display()), format!("{}/", places.run.display())])
}

fn mounts_carrying(words: &[String]) -> Vec<String> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    table
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .filter(|point| words.iter().any(|word| point.contains(word.as_str())))
        .map(str::to_owned)
        .collect()
}

/// Parents before children.
pub(crate) fn cgroups_of(places: &Places) -> Vec<PathBuf> {
    cgroups(|path| path.ancestors().any(|part| begins(part, &places.cgroup_prefix)))
}

fn cgroups_carrying(words: &[String]) -> Vec<PathBuf> {
    cgroups(|path| carries(path, words))
}

fn cgroups(wanted: impl Fn(&Path) -> bool) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for parent in cgroup_parents() {
        walk(&parent, 4, &mut |path| {
            if wanted(path) {
                found.push(path.to_path_buf());
            }
        });
    }
    found.sort();
    found
}

/// Where the product's groups are: one tree, or one for each controller; from its root or from our own group.
fn cgroup_parents() -> Vec<PathBuf> {
    let root = Path::new("/sys/fs/cgroup");
    let mut trees = vec![root.to_path_buf()];
    trees.extend(fs::read_dir(root).into_iter().flatten().flatten().map(|entry| entry.path()));
    let ours = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let ours: Vec<&str> = ours.lines().filter_map(|line| line.rsplit(':').next()).collect();
    let mut parents: Vec<PathBuf> = trees
        .iter()
        .flat_map(|tree| ours.iter().map(|group| tree.join(group.trim_start_matches('/')).join("runtime")))
        .chain(trees.iter().map(|tree| tree.join("runtime")))
        .filter(|path| path.is_dir())
        .collect();
    parents.sort();
    parents.dedup();
    parents
}

fn begins(path: &Path, prefix: &str) -> bool {
    path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(prefix))
}

fn carries(path: &Path, words: &[String]) -> bool {
    let Some(name) = path.file_name().map(|name| name.to_string_lossy()) else { return false };
    words.iter().any(|word| name.contains(word.as_str()))
}

fn walk(dir: &Path, depth: usize, see: &mut dyn FnMut(&Path)) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            let path = entry.path();
            see(&path);
            if depth > 1 {
                walk(&path, depth - 1, see);
            }
        }
    }
}

/// All names in a directory, `depth` levels down.
fn entries(dir: &Path, depth: usize) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let Ok(list) = fs::read_dir(dir) else { return found };
    for entry in list.flatten() {
        let path = entry.path();
        if depth > 1 && entry.file_type().is_ok_and(|kind| kind.is_dir()) && !is_root_of_a_disk(&path) {
            found.extend(entries(&path, depth - 1));
        }
        found.insert(path);
    }
    found
}

/// A sandbox's disk or a base image: what is inside is the guest's.
fn is_root_of_a_disk(path: &Path) -> bool {
    path.join("etc/debian_version").exists()
}

/// Loop devices of files in the data directory; others of this host have theirs.
fn loops_of(places: &Places) -> usize {
    let backed_by = |entry: fs::DirEntry| fs::read_to_string(entry.path().join("loop/backing_file"));
    fs::read_dir("/sys/block").map_or(0, |list| {
        list.flatten()
            .filter_map(|entry| backed_by(entry).ok())
            .filter(|file| Path::new(file.trim_end()).starts_with(&places.data))
            .count()
    })
}

fn count(dir: &str) -> usize {
    fs::read_dir(dir).map_or(0, Iterator::count)
}

fn memory_kib(pid: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or("0");
    line.trim().trim_end_matches(" kB").parse().unwrap_or(0)
}
