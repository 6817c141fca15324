//! From nothing to a running first process: pipes, `runsc create`, watches, the record, start.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use runtime_host::cgroup::Group;
use runtime_host::fifo::{self, End};
use runtime_host::process::{self, ProcessId};

use super::hold::{Hold, SentryHold};
use super::{Held, ShimError, Spec, Watched, io_error};
use crate::driver::Saved;
use crate::driver::gvisor::runsc::{Runsc, Stdio3};
use crate::driver::gvisor::saved::{self, SavedError};
use crate::driver::gvisor::urpc::Control;
use crate::driver::places::paths;
use crate::driver::record::{self, Machine};

/// A host with many starts at once is slow; one that takes this long does not work.
const LIMIT: Duration = Duration::from_secs(60);
/// The end of what `runsc` said that goes into an error.
const SAID: usize = 2048;

/// Held so that the guest sees neither end of file nor a broken pipe while no server is there. Nothing is read
/// from those that are only kept.
pub(super) struct Pipes {
    kept: Vec<OwnedFd>,
    complaints: OwnedFd,
}

impl Pipes {
    fn open(run_dir: &Path) -> Result<Self, ShimError> {
        let open = |name: &str, end| {
            let path = run_dir.join(name);
            fifo::open(&path, end).map_err(io_error("open the pipe", path.display()))
        };
        let kept = vec![open(paths::TO_GUEST, End::Both)?, open(paths::FROM_GUEST, End::Read)?];
        kept.iter().for_each(fifo::widen);
        Ok(Self { kept, complaints: open(paths::COMPLAINTS, End::Both)? })
    }

    /// What the guest's first process gets. Its input is opened for both, or it would see end of file; its output for
    /// writing only, since a pipe it could read would be emptied into a saved image.
    fn guest_ends(run_dir: &Path) -> Result<Stdio3, ShimError> {
        let open = |name: &str, end| {
            let path = run_dir.join(name);
            let pipe = fifo::open(&path, end).map_err(io_error("open the pipe", path.display()))?;
            fifo::set_blocking(&pipe).map_err(io_error("set up the pipe", path.display()))?;
            Ok::<_, ShimError>(pipe)
        };
        Ok(Stdio3 {
            stdin: open(paths::TO_GUEST, End::Both)?,
            stdout: open(paths::FROM_GUEST, End::Write)?,
            stderr: open(paths::COMPLAINTS, End::Write)?,
        })
    }
}

pub(super) fn boot(
    spec: &Spec,
    runsc: &Runsc,
    direct: bool,
    group: impl Fn() -> Result<Option<Group>, ShimError>,
) -> Result<Held, ShimError> {
    let run_dir = &spec.places.run_dir;
    let began = Instant::now();
    let pipes = Pipes::open(run_dir)?;
    let stdio = Pipes::guest_ends(run_dir)?;
    // Read while `runsc` works.
    let saved = spec.restore.clone().map(|from| std::thread::spawn(move || use_up(&from)));
    runsc.create(&spec.id, &run_dir.join(paths::BUNDLE), stdio, LIMIT).map_err(ShimError::Runsc)?;
    let state = runsc.state(&spec.id).map_err(ShimError::Runsc)?;
    let sentry = Watched::open(state.sentry, "the sandbox's kernel")?;
    let gofer = state.gofer.map(|pid| Watched::open(pid, "the sandbox's file server")).transpose()?;
    // Before the first process runs: from then on memory can run out.
    let group = group()?.ok_or(ShimError::Gone("the control group"))?;
    group.set_oom_kill(false).map_err(ShimError::Group)?;
    let shortage = group.watch_oom().map_err(ShimError::Group)?;
    let created = Instant::now();
    // Before the start as well: what runs must be findable.
    let path = spec.places.machine_dir.join(record::MACHINE);
    let found = machine(spec, direct, sentry.id, gofer.as_ref().map(|gofer| gofer.id))?;
    let file = record::write(&path, &found).map_err(io_error("write", path.display()))?;
    if let Some(saved) = saved {
        let files = saved.join().unwrap_or(Err(SavedError::Torn)).map_err(ShimError::Unusable)?;
        Control::connect_for(&state.control, saved::LIMIT)
            .and_then(|mut control| control.restore(&files))
            .map_err(ShimError::Restore)?;
    } else if direct {
        Control::connect(&state.control).and_then(|mut control| control.start(&spec.id)).map_err(ShimError::Start)?;
    } else {
        runsc.start(&spec.id, LIMIT).map_err(ShimError::Runsc)?;
    }
    let started = Instant::now();
    // A process that dies leaves the record readable as it is; only a power cut asks for this, and may have it late.
    file.sync_all().map_err(io_error("sync", path.display()))?;
    let millis = |from: Instant, to: Instant| u64::try_from((to - from).as_millis()).unwrap_or(u64::MAX);
    let (create_ms, start_ms) = (millis(began, created), millis(created, started));
    let Pipes { complaints, kept } = pipes;
    let hold: Box<dyn Hold> = Box::new(SentryHold::new(spec, state.control));
    Ok(Held { sentry, gofer, shortage, complaints, kept, hold, create_ms, start_ms })
}

/// The files of a saved machine. From here on its processes may run and change the disk, which whoever finds the memory
/// later must know: then the disk is put back as it was.
fn use_up(from: &Saved) -> Result<[File; 3], SavedError> {
    let files = saved::open(&from.dir)?;
    if from.dir != from.used {
        saved::rename(&from.dir, &from.used)?;
    }
    Ok(files)
}

pub(super) fn adopt(
    spec: &Spec,
    runsc: &Runsc,
    direct: bool,
    group: impl Fn() -> Result<Option<Group>, ShimError>,
) -> Result<Held, ShimError> {
    let path = spec.places.machine_dir.join(record::MACHINE);
    let found: Machine = record::read(&path)
        .and_then(|found| found.ok_or_else(|| io::ErrorKind::InvalidData.into()))
        .map_err(io_error("read", path.display()))?;
    let pipes = Pipes::open(&spec.places.run_dir)?;
    let sentry = Watched::hold(found.sentry.into(), "the sandbox's kernel")?;
    let gofer = found.gofer.map(|gofer| Watched::hold(gofer.into(), "the sandbox's file server")).transpose()?;
    let group = group()?.ok_or(ShimError::Gone("the control group"))?;
    group.set_oom_kill(false).map_err(ShimError::Group)?;
    let shortage = group.watch_oom().map_err(ShimError::Group)?;
    let now = machine(spec, direct, sentry.id, gofer.as_ref().map(|gofer| gofer.id))?;
    record::write(&path, &now).map_err(io_error("write", path.display()))?;
    let Pipes { complaints, kept } = pipes;
    let state = runsc.state(&spec.id).map_err(ShimError::Runsc)?;
    let hold: Box<dyn Hold> = Box::new(SentryHold::adopt(spec, state.control).map_err(ShimError::Hold)?);
    Ok(Held { sentry, gofer, shortage, complaints, kept, hold, create_ms: 0, start_ms: 0 })
}

/// The last that was said on standard error, in one line.
pub(super) fn said(run_dir: &Path) -> String {
    let Ok(pipe) = fifo::open(&run_dir.join(paths::COMPLAINTS), End::Both) else { return String::new() };
    let mut text = Vec::new();
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = rustix::io::read(&pipe, &mut buffer[..]) {
        text.extend_from_slice(&buffer[..count]);
        let spare = text.len().saturating_sub(SAID);
        text.drain(..spare);
    }
    String::from_utf8_lossy(&text).split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The record of a machine that runs.
fn machine(spec: &Spec, direct: bool, sentry: ProcessId, gofer: Option<ProcessId>) -> Result<Machine, ShimError> {
    let me = ProcessId::of(std::process::id()).ok_or(ShimError::Gone("the shim"))?;
    Ok(Machine {
        engine: "gvisor".to_owned(),
        boot_id: process::boot_id().map_err(io_error("read", "the boot id"))?,
        shim: me.into(),
        sentry: sentry.into(),
        gofer: gofer.map(Into::into),
        to_guest: spec.places.run_dir.join(paths::TO_GUEST),
        from_guest: spec.places.run_dir.join(paths::FROM_GUEST),
        cgroup: spec.cgroup.clone(),
        direct,
        agent: spec.agent.clone(),
        identity: spec.identity.clone(),
    })
}
