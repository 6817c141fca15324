//! Removing what is left of a sandbox, whatever state a crash left it in.

use std::path::Path;
use std::time::Duration;

use runtime_host::cgroup::Group;
use runtime_model::SandboxId;

use super::{DriverError, Inner};
use crate::driver::places::paths;
use crate::driver::record::{self, Machine};
use crate::driver::sweep::{self, PATIENCE};
use crate::host_state::host_name;

impl Inner {
    pub(super) fn trail(&self) -> Result<Vec<SandboxId>, DriverError> {
        let options = &self.options;
        sweep::trail(&options.cgroups, &options.cgroup_parent, &self.cgroup_prefix, &options.run_dir, &options.data_dir)
    }

    pub(super) fn clean(&self, id: SandboxId) -> Result<(), DriverError> {
        let places = self.places(id);
        let name = self.cgroup(id);
        let group = Group::open(&self.options.cgroups, &self.options.cgroup_parent, &name)
            .map_err(|e| DriverError::new("open the control group", &name, e))?;
        // A machine that ended as it should leaves a word of it: then nothing of it runs, and no search is needed.
        let ended = places.machine_dir.join(record::END).exists() && group.is_none();
        if !ended && (group.is_some() || places.run_dir.exists()) {
            let machine = record::read::<Machine>(&places.machine_dir.join(record::MACHINE))
                .map_err(|e| DriverError::new("end the processes of", id, e))?;
            let recorded = machine.into_iter().flat_map(|m| [Some(m.shim), Some(m.sentry), m.gofer]).flatten();
            sweep::kill(id, recorded, group.as_ref(), |words| is_ours(&places.run_dir, words))?;
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
        places.remove()
    }
}

/// Shims and parts of `runsc` that were started for this directory, also before they joined a group.
fn is_ours(run_dir: &Path, words: &[Vec<u8>]) -> bool {
    use std::os::unix::ffi::OsStrExt;
    let bundle = run_dir.join(paths::BUNDLE);
    let bundle = bundle.as_os_str().as_bytes();
    let Some(program) = words.first().and_then(|word| word.rsplit(|byte| *byte == b'/').next()) else {
        return false;
    };
    let part = program.starts_with(b"runsc") || words.iter().any(|word| word == b"boot" || word == b"gofer");
    sweep::is_shim_of(run_dir, words)
        || part && words.iter().any(|word| word.strip_prefix(b"--bundle=").unwrap_or(word) == bundle)
}
