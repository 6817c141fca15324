//! Control groups: what one sandbox may use, what it used, and word of its running out of memory.
//!
//! Two layouts exist in the field. *v1* (also "hybrid") has one tree per controller; *v2* has one tree for all. A
//! [`Group`] is a handle on one sandbox's group in whichever there is. The sandbox's helper usually makes the group
//! itself when it is told the path; the handle then adjusts, measures, watches and cleans up.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::mount;

mod oom;
mod v1;
mod v2;

pub use oom::OomWatch;

#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    #[error("no usable control groups: {0}")]
    Unsupported(String),
    #[error("control group name {0:?} is not a single file name")]
    BadName(String),
    #[error("cannot {step} {path}")]
    File {
        step: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Which trees there are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Layout {
    V1 { memory: PathBuf, cpu: PathBuf, cpuacct: PathBuf, pids: PathBuf, others: Vec<PathBuf> },
    V2 { root: PathBuf },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    pub memory_bytes: u64,
    /// Thousandths of a CPU that may be used at most.
    pub cpu_quota_millis: u64,
    /// Thousandths of a CPU that are kept under contention.
    pub cpu_floor_millis: u64,
    /// A far guard: at this limit the helper itself may fail, so real process limits are set inside.
    pub pids: u64,
}

/// Finds the layout of this machine.
pub fn detect() -> Result<Layout, CgroupError> {
    let mounts = mount::mounts().map_err(|source| CgroupError::File {
        step: "read",
        path: "/proc/self/mountinfo".into(),
        source,
    })?;
    let tree = |controller: &str| {
        mounts
            .iter()
            .find(|m| m.fs_type == "cgroup" && m.super_options.split(',').any(|o| o == controller))
            .map(|m| m.mount_point.clone())
    };
    if let Some(memory) = tree("memory") {
        let missing = |name: &str| CgroupError::Unsupported(format!("cgroup v1 without the {name} controller"));
        let cpu = tree("cpu").ok_or_else(|| missing("cpu"))?;
        let cpuacct = tree("cpuacct").ok_or_else(|| missing("cpuacct"))?;
        let pids = tree("pids").ok_or_else(|| missing("pids"))?;
        let known = [&memory, &cpu, &cpuacct, &pids];
        let mut others: Vec<PathBuf> = mounts
            .iter()
            .filter(|m| m.fs_type == "cgroup" && !known.contains(&&m.mount_point))
            .map(|m| m.mount_point.clone())
            .collect();
        others.extend(mounts.iter().filter(|m| m.fs_type == "cgroup2").map(|m| m.mount_point.clone()));
        return Ok(Layout::V1 { memory, cpu, cpuacct, pids, others });
    }
    let Some(root) = mounts.iter().find(|m| m.fs_type == "cgroup2").map(|m| m.mount_point.clone()) else {
        return Err(CgroupError::Unsupported("neither cgroup v1 nor v2 is mounted".into()));
    };
    let offered = read(&root.join("cgroup.controllers"))?;
    for controller in ["memory", "cpu", "pids"] {
        if !offered.split_whitespace().any(|c| c == controller) {
            return Err(CgroupError::Unsupported(format!("cgroup v2 does not offer the {controller} controller")));
        }
    }
    Ok(Layout::V2 { root })
}

impl Layout {
    /// In words, for people.
    pub fn describe(&self) -> String {
        match self {
            Self::V1 { memory, .. } => format!("v1 (memory at {})", memory.display()),
            Self::V2 { root } => format!("v2 (at {})", root.display()),
        }
    }

    /// Makes the parent of all sandboxes' groups and hands the controllers down to it. Repeatable.
    pub fn prepare_parent(&self, parent: &str) -> Result<(), CgroupError> {
        check_name(parent)?;
        match self {
            Self::V1 { .. } => {
                for tree in self.limit_trees() {
                    make(&tree.join(parent))?;
                }
                Ok(())
            }
            Self::V2 { root } => v2::prepare_parent(root, parent),
        }
    }

    /// Is the parent of all sandboxes' groups there?
    pub fn has_parent(&self, parent: &str) -> bool {
        self.limit_trees().iter().all(|tree| tree.join(parent).is_dir())
    }

    /// The groups below `parent`: what a sweep after a crash compares with the sandboxes that should exist.
    pub fn children(&self, parent: &str) -> Vec<String> {
        let mut names: Vec<String> = self
            .all_trees()
            .iter()
            .flat_map(|tree| fs::read_dir(tree.join(parent)).into_iter().flatten().flatten())
            .filter(|entry| entry.file_type().is_ok_and(|t| t.is_dir()))
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        names.sort();
        names.dedup();
        names
    }

    /// The trees that carry limits.
    fn limit_trees(&self) -> Vec<&Path> {
        match self {
            Self::V1 { memory, cpu, cpuacct, pids, .. } => {
                let mut trees: Vec<&Path> = vec![memory, cpu, cpuacct, pids];
                trees.sort();
                trees.dedup();
                trees
            }
            Self::V2 { root } => vec![root],
        }
    }

    /// Every tree in which a helper may have made a group.
    fn all_trees(&self) -> Vec<&Path> {
        let mut trees = self.limit_trees();
        if let Self::V1 { others, .. } = self {
            trees.extend(others.iter().map(PathBuf::as_path));
        }
        trees
    }
}

/// One sandbox's group: `<parent>/<id>` in every tree.
#[derive(Debug, Clone)]
pub struct Group {
    layout: Layout,
    below: PathBuf,
}

impl Group {
    pub fn create(layout: &Layout, parent: &str, id: &str, limits: &Limits) -> Result<Self, CgroupError> {
        check_name(id)?;
        layout.prepare_parent(parent)?;
        let group = Self { layout: layout.clone(), below: Path::new(parent).join(id) };
        for tree in layout.limit_trees() {
            make(&tree.join(&group.below))?;
        }
        group.set_limits(limits)?;
        Ok(group)
    }

    /// A handle on a group that somebody else made; `None` if there is none.
    pub fn open(layout: &Layout, parent: &str, id: &str) -> Result<Option<Self>, CgroupError> {
        check_name(parent)?;
        check_name(id)?;
        let group = Self { layout: layout.clone(), below: Path::new(parent).join(id) };
        Ok(group.memory_dir().is_dir().then_some(group))
    }

    pub fn set_limits(&self, limits: &Limits) -> Result<(), CgroupError> {
        match &self.layout {
            Layout::V1 { cpu, pids, .. } => v1::set_limits(&self.at(cpu), &self.at(pids), limits)?,
            Layout::V2 { root } => v2::set_limits(&self.at(root), limits)?,
        }
        self.set_memory_limit(limits.memory_bytes)
    }

    pub fn set_memory_limit(&self, bytes: u64) -> Result<(), CgroupError> {
        match &self.layout {
            Layout::V1 { memory, .. } => write(&self.at(memory).join("memory.limit_in_bytes"), &bytes.to_string()),
            Layout::V2 { root } => v2::set_memory_limit(&self.at(root), bytes),
        }
    }

    pub fn memory_limit(&self) -> Result<u64, CgroupError> {
        match &self.layout {
            Layout::V1 { memory, .. } => number(&self.at(memory).join("memory.limit_in_bytes")),
            Layout::V2 { root } => v2::memory_limit(&self.at(root)),
        }
    }

    /// For [`crate::spawn::Program::groups`]: a program that joins by itself is in from its first instruction, and keeps
    /// nobody waiting, as moving another process does for a while on a busy host.
    pub fn doors(&self) -> Result<Vec<OwnedFd>, CgroupError> {
        let name = match &self.layout {
            Layout::V1 { .. } => "tasks",
            Layout::V2 { .. } => "cgroup.procs",
        };
        let open = |tree: &Path| {
            let path = self.at(tree).join(name);
            let file = fs::File::options().write(true).open(&path);
            file.map(OwnedFd::from).map_err(|source| CgroupError::File { step: "open", path, source })
        };
        self.layout.limit_trees().into_iter().map(open).collect()
    }

    pub fn add_process(&self, pid: u32) -> Result<(), CgroupError> {
        for tree in self.layout.limit_trees() {
            write(&self.at(tree).join("cgroup.procs"), &pid.to_string())?;
        }
        Ok(())
    }

    pub fn memory_usage(&self) -> Result<u64, CgroupError> {
        match &self.layout {
            Layout::V1 { memory, .. } => number(&self.at(memory).join("memory.usage_in_bytes")),
            Layout::V2 { root } => number(&self.at(root).join("memory.current")),
        }
    }

    /// CPU time used since the group exists.
    pub fn cpu_usage_ns(&self) -> Result<u64, CgroupError> {
        match &self.layout {
            Layout::V1 { cpuacct, .. } => number(&self.at(cpuacct).join("cpuacct.usage")),
            Layout::V2 { root } => v2::cpu_usage_ns(&self.at(root)),
        }
    }

    /// The processes in the group, in every tree.
    pub fn pids(&self) -> Result<Vec<u32>, CgroupError> {
        let mut pids = Vec::new();
        for tree in self.layout.all_trees() {
            collect_pids(&self.at(tree), &mut pids)?;
        }
        pids.sort_unstable();
        pids.dedup();
        Ok(pids)
    }

    /// Memory has run out and nothing has given since: processes are stopped at the limit, or throttled by it.
    pub fn is_short_of_memory(&self) -> Result<bool, CgroupError> {
        match &self.layout {
            Layout::V1 { memory, .. } => {
                let control = read(&self.at(memory).join("memory.oom_control"))?;
                Ok(control.lines().any(|line| line == "under_oom 1"))
            }
            Layout::V2 { root } => {
                Ok(number(&self.at(root).join("memory.current"))? >= v2::memory_limit(&self.at(root))?)
            }
        }
    }

    /// A descriptor that becomes readable when the group runs out of memory.
    pub fn watch_oom(&self) -> Result<OomWatch, CgroupError> {
        match &self.layout {
            Layout::V1 { memory, .. } => OomWatch::v1(&self.at(memory)),
            Layout::V2 { root } => OomWatch::v2(&self.at(root)),
        }
    }

    /// The bare descriptor of [`Group::watch_oom`], for a caller with a poll loop of its own.
    pub fn oom_events_fd(&self) -> Result<OwnedFd, CgroupError> {
        Ok(self.watch_oom()?.into_fd())
    }

    /// With `false`, running out of memory stops the group's processes at the limit instead of killing one, and
    /// whoever watches raises the limit, ends the right process inside and puts the limit back. v2 cannot stop
    /// them: there the limit becomes one that throttles, with a hard one a little above.
    pub fn set_oom_kill(&self, kill: bool) -> Result<(), CgroupError> {
        match &self.layout {
            Layout::V1 { memory, .. } => {
                write(&self.at(memory).join("memory.oom_control"), if kill { "0" } else { "1" })
            }
            Layout::V2 { root } => v2::set_oom_kill(&self.at(root), kill),
        }
    }

    /// Sends SIGKILL to everything in the group.
    pub fn kill_all(&self) -> Result<(), CgroupError> {
        if let Layout::V2 { root } = &self.layout {
            let file = self.at(root).join("cgroup.kill");
            if file.exists() {
                return write(&file, "1");
            }
        }
        // A process stopped by the memory limit cannot die before it gets memory or the killer is back.
        let _ = self.set_oom_kill(true);
        for pid in self.pids()? {
            let Some(pid) = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw) else { continue };
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
        Ok(())
    }

    /// Removes the group from every tree; what is absent is fine. A group whose last process has only just died
    /// is busy for a moment, and is tried again for up to `patience`.
    pub fn remove(&self, patience: Duration) -> Result<(), CgroupError> {
        let end = std::time::Instant::now() + patience;
        for tree in self.layout.all_trees() {
            let dir = self.at(tree);
            loop {
                match remove_tree(&dir) {
                    Ok(()) => break,
                    Err(e) if e.raw_os_error() == Some(libc::EBUSY) && std::time::Instant::now() < end => {
                        std::thread::sleep(Duration::from_millis(2));
                    }
                    Err(source) => return Err(CgroupError::File { step: "remove", path: dir, source }),
                }
            }
        }
        Ok(())
    }

    fn at(&self, tree: &Path) -> PathBuf {
        tree.join(&self.below)
    }

    fn memory_dir(&self) -> PathBuf {
        match &self.layout {
            Layout::V1 { memory, .. } => self.at(memory),
            Layout::V2 { root } => self.at(root),
        }
    }
}

fn remove_tree(dir: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(e),
    };
    for entry in entries.flatten().filter(|e| e.file_type().is_ok_and(|t| t.is_dir())) {
        remove_tree(&entry.path())?;
    }
    match fs::remove_dir(dir) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

fn collect_pids(dir: &Path, pids: &mut Vec<u32>) -> Result<(), CgroupError> {
    let fail = |step, source| CgroupError::File { step, path: dir.to_owned(), source };
    let text = match fs::read_to_string(dir.join("cgroup.procs")) {
        Ok(text) => text,
        Err(e) if gone(&e) => return Ok(()),
        Err(e) => return Err(fail("read the processes of", e)),
    };
    pids.extend(text.lines().filter_map(|line| line.trim().parse::<u32>().ok()).filter(|&pid| pid != 0));
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|t| t.is_dir()) {
            collect_pids(&entry.path(), pids)?;
        }
    }
    Ok(())
}

fn gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ENODEV)
}

fn check_name(name: &str) -> Result<(), CgroupError> {
    if name.is_empty() || name == "." || name == ".." || name.contains(['/', '\0', '\n']) {
        return Err(CgroupError::BadName(name.to_owned()));
    }
    Ok(())
}

fn make(dir: &Path) -> Result<(), CgroupError> {
    match fs::create_dir(dir) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
            Err(CgroupError::File { step: "make", path: dir.to_owned(), source: e })
        }
        _ => Ok(()),
    }
}

fn write(file: &Path, text: &str) -> Result<(), CgroupError> {
    fs::write(file, text).map_err(|source| CgroupError::File { step: "write", path: file.to_owned(), source })
}

fn read(file: &Path) -> Result<String, CgroupError> {
    fs::read_to_string(file).map_err(|source| CgroupError::File { step: "read", path: file.to_owned(), source })
}

fn number(file: &Path) -> Result<u64, CgroupError> {
    let text = read(file)?;
    parse_number(&text).ok_or_else(|| CgroupError::File {
        step: "understand",
        path: file.to_owned(),
        source: io::Error::from(io::ErrorKind::InvalidData),
    })
}

/// A number, or "max" for no limit.
fn parse_number(text: &str) -> Option<u64> {
    match text.trim() {
        "max" => Some(u64::MAX),
        digits => digits.parse().ok(),
    }
}

#[cfg(test)]
mod tests;
