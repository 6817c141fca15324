//! Finding and removing what is left of a sandbox, whatever state a crash left it in.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use runtime_host::cgroup::Group;
use runtime_host::process::{self, ProcessId};
use runtime_model::SandboxId;

use super::record::{self, Machine};
use super::{DriverError, Inner, paths};
use crate::host_state::{host_name, parse_host_name};

/// Processes that were told to die take this long at most on a host that works.
const PATIENCE: Duration = Duration::from_secs(10);

impl Inner {
    pub(super) fn trail(&self) -> Result<Vec<SandboxId>, DriverError> {
        let mut names = self.options.cgroups.children(&self.options.cgroup_parent);
        names.retain(|name| name.starts_with(&self.cgroup_prefix));
        let mut found: Vec<SandboxId> =
            names.iter().filter_map(|name| parse_host_name(&name[self.cgroup_prefix.len()..])).collect();
        for dir in [self.options.run_dir.clone(), self.options.data_dir.join("sandboxes")] {
            let fail = |e| DriverError::new("look for sandboxes in", dir.display(), e);
            for entry in fs::read_dir(&dir).map_err(fail)? {
                found.extend(entry.map_err(fail)?.file_name().to_str().and_then(parse_host_name));
            }
        }
        found.sort_unstable();
        found.dedup();
        Ok(found)
    }

    pub(super) fn clean(&self, id: SandboxId) -> Result<(), DriverError> {
        let places = self.places(id);
        let name = self.cgroup(id);
        let group = Group::open(&self.options.cgroups, &self.options.cgroup_parent, &name)
            .map_err(|e| DriverError::new("open the control group", &name, e))?;
        // A machine that ended as it should leaves a word of it: then nothing of it runs, and no search is needed.
        let ended = places.machine_dir.join(record::END).exists() && group.is_none();
        if !ended && (group.is_some() || places.run_dir.exists()) {
            self.kill(id, &places.run_dir, &places.machine_dir, group.as_ref())?;
        }
        if !self.direct {
            self.runsc
                .delete(&host_name(id), Duration::from_secs(30))
                .map_err(|e| DriverError::new("forget the sandbox", id, e))?;
        }
        self.runsc.forget(&host_name(id)).map_err(|e| DriverError::new("remove the runsc files of", id, e))?;
        if let Some(group) = &group {
            group.remove(PATIENCE).map_err(|e| DriverError::new("remove the control group", &name, e))?;
        }
        for dir in [&places.run_dir, &places.machine_dir] {
            match fs::remove_dir_all(dir) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                    return Err(DriverError::new("remove", dir.display(), e));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Ends every process of the sandbox: those on record, those in its group, those that name its directory. A shim
    /// goes first, or it would start what is being swept.
    fn kill(
        &self,
        id: SandboxId,
        run_dir: &Path,
        machine_dir: &Path,
        group: Option<&Group>,
    ) -> Result<(), DriverError> {
        let fail = |e| DriverError::new("end the processes of", id, e);
        if let Some(machine) = record::read::<Machine>(&machine_dir.join(record::MACHINE)).map_err(fail)? {
            for process in [Some(machine.shim), Some(machine.sentry), machine.gofer].into_iter().flatten() {
                if let Some(handle) = ProcessId::from(process).open().map_err(fail)? {
                    handle.kill().map_err(fail)?;
                }
            }
        }
        let end = Instant::now() + PATIENCE;
        loop {
            let mut left: Vec<u32> = named(run_dir);
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
}

/// Shims and parts of `runsc` that were started for this directory, also before they joined a group.
fn named(run_dir: &Path) -> Vec<u32> {
    use std::os::unix::ffi::OsStrExt;
    let dir = run_dir.as_os_str().as_bytes();
    let bundle = run_dir.join(paths::BUNDLE);
    let bundle = bundle.as_os_str().as_bytes();
    let me = std::process::id();
    let ours = |words: &[Vec<u8>]| {
        let Some(program) = words.first().and_then(|word| word.rsplit(|byte| *byte == b'/').next()) else {
            return false;
        };
        let shim = words.get(1).is_some_and(|word| word == crate::shim::SUBCOMMAND.as_bytes())
            && words.get(2).is_some_and(|word| word == dir);
        let part = program.starts_with(b"runsc") || words.iter().any(|word| word == b"boot" || word == b"gofer");
        shim || part && words.iter().any(|word| word.strip_prefix(b"--bundle=").unwrap_or(word) == bundle)
    };
    process::all().into_iter().filter(|(pid, words)| *pid != me && ours(words)).map(|(pid, _)| pid).collect()
}
