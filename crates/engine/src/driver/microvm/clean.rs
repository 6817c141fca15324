//! Removing what is left of a microVM, whatever state a crash left it in.

use runtime_host::cgroup::Group;
use runtime_host::process::ProcessId;
use runtime_model::SandboxId;

use super::launch::VmMachine;
use super::vmm::At;
use super::{DriverError, Inner};
use crate::driver::record;
use crate::driver::sweep::{self, PATIENCE};
use crate::host_state::host_name;

impl Inner {
    pub(super) fn trail(&self) -> Result<Vec<SandboxId>, DriverError> {
        let options = &self.options;
        let mut found = sweep::trail(
            &options.cgroups,
            &options.cgroup_parent,
            &self.cgroup_prefix,
            &options.run_dir,
            &options.data_dir,
        )?;
        // Templates in the making are this server's own.
        let building = self.building.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        found.retain(|id| !building.contains(id));
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
            let fail = |e| DriverError::new("end the processes of", id, e);
            let machine = record::read::<VmMachine>(&places.machine_dir.join(record::MACHINE)).map_err(fail)?;
            if let Some(machine) = &machine {
                // The shim first, or it would start what is being swept.
                if let Some(shim) = ProcessId::from(machine.shim).open().map_err(fail)? {
                    shim.kill().map_err(fail)?;
                }
                let at = At { run_dir: &places.run_dir, process: machine.vmm.into() };
                if !machine.launch.program.vmm().kill(&at).map_err(fail)? {
                    return Err(DriverError::new("end the processes of", id, "the virtual machine does not die"));
                }
            }
            let (vmm, name) = (self.program.vmm(), host_name(id));
            let ours = |words: &[Vec<u8>]| {
                sweep::is_shim_of(&places.run_dir, words) || vmm.is_machine(&name, &places.run_dir, words)
            };
            // Also what has not joined a group yet.
            sweep::kill(id, None, group.as_ref(), ours)?;
        }
        if let Some(group) = &group {
            group.remove(PATIENCE).map_err(|e| DriverError::new("remove the control group", &name, e))?;
        }
        places.remove()
    }
}
