//! A microVM, from nothing to a running guest: control group, program, record, and then the guest, from its kernel or from
//! where it was saved.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Instant;

use runtime_host::cgroup::{Group, Layout};
use runtime_host::fifo::{self, End};
use runtime_host::process::{self, ProcessId};

use super::hold::VmHold;
use super::{Held, ShimError, Spec, Watched, io_error};
use crate::driver::microvm::launch::{Launch, Start, VmMachine};
use crate::driver::microvm::vmm::{At, Site};
use crate::driver::places::paths;
use crate::driver::record;

/// `channel` is what the server made of the guest's channel in advance.
pub(super) fn boot(spec: &Spec, launch: &Launch, layout: &Layout, channel: OwnedFd) -> Result<Held, ShimError> {
    let began = Instant::now();
    let run_dir = &spec.places.run_dir;
    let vmm = launch.program.vmm();
    let group =
        Group::create(layout, &spec.cgroup_parent, &spec.cgroup, &launch.bounds.into()).map_err(ShimError::Group)?;
    let complaints = open_complaints(run_dir)?;
    let groups = group.doors().map_err(ShimError::Group)?;
    let site = Site { name: &spec.id, run_dir, groups: &groups, channel };
    let spawned = vmm.spawn(launch, site).map_err(ShimError::Vmm)?;
    let pid = spawned.pid;
    let watched = Watched::open(pid, "the virtual machine")?;
    let shortage = group.watch_oom().map_err(ShimError::Group)?;
    let path = spec.places.machine_dir.join(record::MACHINE);
    let file = record::write(&path, &machine(spec, launch, watched.id)?).map_err(io_error("write", path.display()))?;
    // Beside the rest: on a busy disk it takes as long as that.
    let written = std::thread::spawn(move || file.sync_all());
    if let Some(owed) = spawned.owed {
        owed().map_err(ShimError::Vmm)?;
    }
    let created = Instant::now();
    let at = At { run_dir, process: watched.id };
    match &launch.start {
        Start::Cold { .. } => vmm.boot(&at, launch).map_err(ShimError::Vmm)?,
        Start::Restore { spends, .. } => {
            if let Some(saved) = spends {
                rename(&saved.dir, &saved.used)?;
            }
            // Whether an instruction of it ran before it failed is not known: what was spent stays so.
            vmm.restore(&at, launch).map_err(ShimError::Vmm)?;
        }
    }
    let started = Instant::now();
    let written = written.join().unwrap_or_else(|_| Err(io::Error::other("the thread for it ended")));
    written.map_err(io_error("sync", path.display()))?;
    let millis = |from: Instant, to: Instant| u64::try_from((to - from).as_millis()).unwrap_or(u64::MAX);
    let (create_ms, start_ms) = (millis(began, created), millis(created, started));
    let hold = Box::new(VmHold::new(launch.program.clone(), run_dir.clone(), watched.id));
    Ok(Held { sentry: watched, gofer: None, shortage, complaints, kept: Vec::new(), hold, create_ms, start_ms })
}

pub(super) fn adopt(spec: &Spec, launch: &Launch, group: Option<Group>) -> Result<Held, ShimError> {
    let path = spec.places.machine_dir.join(record::MACHINE);
    let found: VmMachine = record::read(&path)
        .and_then(|found| found.ok_or_else(|| io::ErrorKind::InvalidData.into()))
        .map_err(io_error("read", path.display()))?;
    let complaints = open_complaints(&spec.places.run_dir)?;
    let vmm = Watched::hold(found.vmm.into(), "the virtual machine")?;
    let group = group.ok_or(ShimError::Gone("the control group"))?;
    let shortage = group.watch_oom().map_err(ShimError::Group)?;
    record::write(&path, &machine(spec, launch, vmm.id)?).map_err(io_error("write", path.display()))?;
    let hold = VmHold::adopt(launch.program.clone(), spec.places.run_dir.clone(), vmm.id).map_err(ShimError::Hold)?;
    let hold = Box::new(hold);
    Ok(Held { sentry: vmm, gofer: None, shortage, complaints, kept: Vec::new(), hold, create_ms: 0, start_ms: 0 })
}

/// Durable on return. To the same name it is nothing.
fn rename(from: &Path, to: &Path) -> Result<(), ShimError> {
    if from == to {
        return Ok(());
    }
    let fail = io_error("rename", from.display());
    let renamed = std::fs::rename(from, to);
    renamed.and_then(|()| to.parent().map_or(Ok(()), |dir| File::open(dir)?.sync_all())).map_err(fail)
}

fn open_complaints(run_dir: &Path) -> Result<OwnedFd, ShimError> {
    let path = run_dir.join(paths::COMPLAINTS);
    let pipe = fifo::open(&path, End::Both).map_err(io_error("open the pipe", path.display()))?;
    fifo::widen(&pipe);
    Ok(pipe)
}

fn machine(spec: &Spec, launch: &Launch, vmm: ProcessId) -> Result<VmMachine, ShimError> {
    let me = ProcessId::of(std::process::id()).ok_or(ShimError::Gone("the shim"))?;
    Ok(VmMachine {
        engine: launch.program.vmm().name().to_owned(),
        boot_id: process::boot_id().map_err(io_error("read", "the boot id"))?,
        shim: me.into(),
        vmm: vmm.into(),
        cgroup: spec.cgroup.clone(),
        agent: spec.agent.clone(),
        identity: spec.identity.clone(),
        launch: launch.clone(),
    })
}
