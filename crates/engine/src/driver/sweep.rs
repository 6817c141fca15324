//! Finding and ending what is left of a sandbox, whatever state a crash left it in; the same for every driver.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use runtime_host::cgroup::{Group, Layout};
use runtime_host::process::{self, ProcessId};
use runtime_model::SandboxId;

use super::DriverError;
use super::record::Process;
use crate::host_state::parse_host_name;

/// Processes that were told to die take this long at most on a host that works.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// Every sandbox that has a control group, sockets or records here.
pub(crate) fn trail(
    cgroups: &Layout,
    parent: &str,
    prefix: &str,
    run_dir: &Path,
    data_dir: &Path,
) -> Result<Vec<SandboxId>, DriverError> {
    let mut names = cgroups.children(parent);
    names.retain(|name| name.starts_with(prefix));
    let mut found: Vec<SandboxId> = names.iter().filter_map(|name| parse_host_name(&name[prefix.len()..])).collect();
    for dir in [run_dir.to_owned(), data_dir.join("sandboxes")] {
        let fail = |e| DriverError::new("look for sandboxes in", dir.display(), e);
        for entry in fs::read_dir(&dir).map_err(fail)? {
            found.extend(entry.map_err(fail)?.file_name().to_str().and_then(parse_host_name));
        }
    }
    found.sort_unstable();
    found.dedup();
    Ok(found)
}

/// Ends every process of the sandbox: those on record, those in its group, and those whose command line is `ours`. A
/// shim goes first, or it would start what is being swept.
pub(crate) fn kill(
    id: SandboxId,
    recorded: impl IntoIterator<Item = Process>,
    group: Option<&Group>,
    ours: impl Fn(&[Vec<u8>]) -> bool,
) -> Result<(), DriverError> {
    let fail = |e| DriverError::new("end the processes of", id, e);
    for process in recorded {
        if let Some(handle) = ProcessId::from(process).open().map_err(fail)? {
            handle.kill().map_err(fail)?;
        }
    }
    let me = std::process::id();
    let end = Instant::now() + PATIENCE;
    loop {
        let named = process::all().into_iter().filter(|(pid, words)| *pid != me && ours(words));
        let mut left: Vec<u32> = named.map(|(pid, _)| pid).collect();
        if let Some(group) = group {
            group.kill_all().map_err(|e| DriverError::new("end the processes of", id, e))?;
            left.extend(group.pids().map_err(|e| DriverError::new("list the processes of", id, e))?);
        }
        left.retain(|pid| ProcessId::of(*pid).is_some());
        if left.is_empty() {
            return Ok(());
        }
        for pid in &left {
            process::kill(*pid).map_err(fail)?;
        }
        if Instant::now() > end {
            return Err(DriverError::new("end the processes of", id, format!("{left:?} do not die")));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A shim that was started for this directory.
pub(crate) fn is_shim_of(run_dir: &Path, words: &[Vec<u8>]) -> bool {
    use std::os::unix::ffi::OsStrExt;
    words.get(1).is_some_and(|word| word == crate::shim::SUBCOMMAND.as_bytes())
        && words.get(2).is_some_and(|word| word == run_dir.as_os_str().as_bytes())
}
