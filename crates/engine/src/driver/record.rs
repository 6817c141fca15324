//! What is written down about a machine, so that whoever comes next finds it: `machine.json` while it runs, `end.json`
//! once it has ended. They only locate; the store decides what should be.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use runtime_host::process::ProcessId;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::driver::Identity;

pub(crate) const MACHINE: &str = "machine.json";
pub(crate) const END: &str = "end.json";
/// Its processes are held still.
pub(crate) const FROZEN: &str = "frozen";
/// Files longer than this are not ours.
const LIMIT: u64 = 64 * 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    /// In clock ticks since the machine booted, as the kernel tells it.
    pub(crate) start_time: u64,
}

impl From<ProcessId> for Process {
    fn from(id: ProcessId) -> Self {
        Self { pid: id.pid, start_time: id.start_time }
    }
}

impl From<Process> for ProcessId {
    fn from(process: Process) -> Self {
        Self { pid: process.pid, start_time: process.start_time }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) engine: String,
    pub(crate) boot_id: String,
    pub(crate) shim: Process,
    pub(crate) sentry: Process,
    pub(crate) gofer: Option<Process>,
    pub(crate) to_guest: PathBuf,
    pub(crate) from_guest: PathBuf,
    /// Below the parent of all sandboxes' groups.
    pub(crate) cgroup: String,
    /// By the control socket, not by the command line.
    pub(crate) direct: bool,
    pub(crate) agent: String,
    pub(crate) identity: Identity,
}

/// How a machine ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EndRecord {
    pub(crate) cause: String,
    /// It was asked to end.
    pub(crate) asked: bool,
    /// Times it ran out of memory.
    pub(crate) memory_shortages: u64,
    /// It was to come from a saved memory that is no good.
    #[serde(default)]
    pub(crate) unusable: bool,
}

/// Puts a whole file in place of what was there. A reader sees the old or the new, never a piece.
pub(crate) fn write(path: &Path, value: &impl Serialize) -> io::Result<File> {
    let new = path.with_extension("new");
    let mut file = File::create(&new)?;
    file.write_all(&serde_json::to_vec(value)?)?;
    fs::rename(&new, path)?;
    Ok(file)
}

/// `None` if there is none, or something that is no record: both mean that nothing is known. One that cannot be read
/// just now is an error.
pub(crate) fn read<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
    };
    if file.metadata()?.len() > LIMIT {
        return Ok(None);
    }
    let mut text = Vec::new();
    file.take(LIMIT).read_to_end(&mut text)?;
    Ok(serde_json::from_slice(&text).ok())
}
