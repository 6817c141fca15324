//! The shim: one small process per sandbox that outlives the server.
//!
//! It is the parent of everything `runsc` makes (and so can reap it), holds the pipes to the guest open while no server
//! is there, hears when the sandbox runs out of memory or ends, cleans up behind it and writes down how it ended. It
//! decides nothing: a server tells it to end the sandbox, or it ends by itself. If the shim itself is killed, the
//! sandbox goes on and the server starts another that takes over (`adopt`).
//!
//! It runs on one thread, without an async runtime, and holds no more than a few hundred kilobytes.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use runtime_host::cgroup::{self, CgroupError, Group};
use runtime_host::process::{self, PidFd, ProcessId, Reaped};
use serde::{Deserialize, Serialize};

use crate::driver::gvisor::runsc::{Runsc, RunscError};
use crate::driver::gvisor::saved::SavedError;
use crate::driver::gvisor::urpc::UrpcError;
use crate::driver::microvm::launch::{Launch, VmMachine};
use crate::driver::microvm::vmm::VmmError;
use crate::driver::places::{Places, paths};
use crate::driver::record::{self, EndRecord, Machine};
use crate::driver::{Identity, Saved};
use crate::host_state::chain;

mod boot;
mod hold;
mod log;
mod vm;
mod watch;
pub(crate) mod wire;

use log::Log;

/// The word after the program's name that leads to [`shim_main`].
pub const SUBCOMMAND: &str = "shim";

/// What a shim is told, in a file beside its socket.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Spec {
    pub(crate) id: String,
    pub(crate) kind: Kind,
    pub(crate) places: Places,
    pub(crate) cgroup_parent: String,
    pub(crate) cgroup: String,
    pub(crate) agent: String,
    pub(crate) identity: Identity,
    /// The sandbox runs already; its former shim is gone.
    pub(crate) adopt: bool,
    /// Its processes come from here.
    #[serde(default)]
    pub(crate) restore: Option<Saved>,
}

/// What it is to start and to watch.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    Gvisor {
        runsc: Runsc,
        /// Use the control socket.
        direct: bool,
    },
    Microvm(Box<Launch>),
}

#[derive(Debug, thiserror::Error)]
enum ShimError {
    #[error("cannot {step} {object}")]
    Io {
        step: &'static str,
        object: String,
        #[source]
        source: io::Error,
    },
    #[error("the sandbox was not made")]
    Runsc(#[source] RunscError),
    #[error("the sandbox was not started")]
    Start(#[source] UrpcError),
    #[error("the saved memory cannot be used")]
    Unusable(#[source] SavedError),
    #[error("it is not known whether the sandbox stands still")]
    Hold(#[source] hold::HoldError),
    #[error("the saved memory was not taken")]
    Restore(#[source] UrpcError),
    #[error("the sandbox's control group cannot be watched")]
    Group(#[source] CgroupError),
    #[error("the virtual machine was not started")]
    Vmm(#[source] VmmError),
    #[error("{0} ended while it was being started")]
    Gone(&'static str),
}

fn io_error(step: &'static str, object: impl std::fmt::Display) -> impl FnOnce(io::Error) -> ShimError {
    let object = object.to_string();
    move |source| ShimError::Io { step, object, source }
}

/// A machine that runs, as its shim sees it.
struct Held {
    sentry: Watched,
    gofer: Option<Watched>,
    shortage: cgroup::OomWatch,
    complaints: OwnedFd,
    /// Ends of pipes that only have to stay open.
    #[expect(dead_code, reason = "held, never read")]
    kept: Vec<OwnedFd>,
    hold: Box<dyn hold::Hold>,
    create_ms: u64,
    start_ms: u64,
}

struct Watched {
    id: ProcessId,
    handle: PidFd,
}

impl Watched {
    fn open(pid: u32, what: &'static str) -> Result<Self, ShimError> {
        Self::hold(ProcessId::of(pid).ok_or(ShimError::Gone(what))?, what)
    }

    fn hold(id: ProcessId, what: &'static str) -> Result<Self, ShimError> {
        let handle = id.open().map_err(io_error("open a handle on", what))?.ok_or(ShimError::Gone(what))?;
        Ok(Self { id, handle })
    }
}

/// Runs a shim to its end. `args` holds one word, the sandbox's run directory; standard input is the socket to listen on.
pub fn shim_main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let Some(dir) = args.into_iter().next().map(PathBuf::from) else {
        let _ = writeln!(io::stderr(), "the shim is started by the server, not by hand");
        return ExitCode::from(2);
    };
    let mut log = Log::open(&dir.join(paths::LOG));
    match run(&dir, &mut log) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            log.line(&chain(&error));
            ExitCode::FAILURE
        }
    }
}

fn run(dir: &Path, log: &mut Log) -> Result<(), ShimError> {
    // Descriptors above 2 are closed under their owners: the log must not close, later, what then has its number.
    *log = Log::closed();
    let detached = process::detach();
    *log = Log::open(&dir.join(paths::LOG));
    detached.map_err(io_error("detach from", "the server"))?;
    let listener = take_listener().map_err(io_error("take over", "the socket"))?;
    let handed = take_handed().map_err(io_error("take over", "standard error"))?;
    let spec_file = dir.join(paths::SPEC);
    let spec: Spec = record::read(&spec_file)
        .and_then(|spec| spec.ok_or_else(|| io::ErrorKind::InvalidData.into()))
        .map_err(io_error("read", spec_file.display()))?;
    let layout = cgroup::detect().map_err(ShimError::Group)?;
    let open_group = || Group::open(&layout, &spec.cgroup_parent, &spec.cgroup).map_err(ShimError::Group);

    let held = match &spec.kind {
        Kind::Gvisor { runsc, direct } if spec.adopt => boot::adopt(&spec, runsc, *direct, open_group),
        Kind::Gvisor { runsc, direct } => boot::boot(&spec, runsc, *direct, open_group),
        Kind::Microvm(launch) if spec.adopt => open_group().and_then(|group| vm::adopt(&spec, launch, group)),
        Kind::Microvm(launch) => vm::boot(&spec, launch, &layout, handed),
    };
    let (end, clients) = match held {
        Ok(mut held) => {
            let (end, clients) = watch::watch(&mut held, &listener, log)?;
            let _ = held.sentry.handle.kill();
            if let Some(gofer) = &held.gofer {
                let _ = gofer.handle.kill();
            }
            let status = reap(Some(held.sentry.id.pid));
            watch::drain(held.complaints.as_fd(), log);
            let mut end = watch::describe(end, status);
            if !end.asked && !log.last().is_empty() {
                end.cause = format!("{}; its last words: {}", end.cause, log.last());
            }
            (end, clients)
        }
        // The server sees that this shim is gone, and tries another.
        Err(error) if spec.adopt && may_live(&spec) => return Err(error),
        Err(error) => {
            kill_recorded(&spec);
            let mut cause = chain(&error);
            let said = boot::said(&spec.places.run_dir);
            if !said.is_empty() {
                cause = format!("{cause}: {said}");
            }
            log.line(&cause);
            let unusable = matches!(
                error,
                ShimError::Unusable(SavedError::Damaged { .. }) | ShimError::Restore(UrpcError::Refused { .. })
            );
            (EndRecord { cause, asked: false, memory_shortages: 0, unusable }, watch::Clients::default())
        }
    };
    let cleaned = clean(&spec, open_group, log);
    let path = spec.places.machine_dir.join(record::END);
    if cleaned {
        record::write(&path, &end).map_err(io_error("write", path.display()))?;
    }
    watch::tell_end(clients, &listener, end);
    Ok(())
}

/// A sandbox that runs, or of which that is not known, is not ended because its new shim failed.
fn may_live(spec: &Spec) -> bool {
    match recorded(spec) {
        Ok(Some(needed)) => needed.into_iter().all(|process| process.alive().unwrap_or(true)),
        Ok(None) => false,
        Err(_) => true,
    }
}

/// The processes without which the sandbox is none.
fn recorded(spec: &Spec) -> io::Result<Option<Vec<ProcessId>>> {
    let path = spec.places.machine_dir.join(record::MACHINE);
    let ids = |processes: Vec<Option<record::Process>>| processes.into_iter().flatten().map(ProcessId::from).collect();
    Ok(match &spec.kind {
        Kind::Gvisor { .. } => {
            record::read::<Machine>(&path)?.map(|machine| ids(vec![Some(machine.sentry), machine.gofer]))
        }
        Kind::Microvm(_) => record::read::<VmMachine>(&path)?.map(|machine| ids(vec![Some(machine.vmm)])),
    })
}

/// A sandbox that was made and not started: its file server waits for ever.
fn kill_recorded(spec: &Spec) {
    for process in recorded(spec).ok().flatten().unwrap_or_default() {
        if let Ok(Some(handle)) = process.open() {
            let _ = handle.kill();
        }
    }
}

/// Standard input is the socket; in its place comes nothing, so that no child can inherit it.
fn take_listener() -> io::Result<UnixListener> {
    let socket = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
    let nothing = File::open("/dev/null")?;
    rustix::stdio::dup2_stdin(&nothing)?;
    let listener = UnixListener::from(socket);
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Standard error is what the server gave along, if anything.
fn take_handed() -> io::Result<OwnedFd> {
    let handed = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stderr(), 3)?;
    let nothing = File::options().write(true).open("/dev/null")?;
    rustix::stdio::dup2_stderr(&nothing)?;
    Ok(handed)
}

const REAP_PATIENCE: Duration = Duration::from_secs(10);

/// Takes in everything that has been killed, and says how `pid` ended.
fn reap(pid: Option<u32>) -> Option<i32> {
    let end = Instant::now() + REAP_PATIENCE;
    let mut wanted = None;
    loop {
        match process::reap_one() {
            Ok(Some(Reaped::Child { pid: ended, status })) => {
                if Some(ended) == pid {
                    wanted = Some(status);
                }
            }
            Ok(Some(Reaped::StillRunning)) if Instant::now() < end => std::thread::sleep(Duration::from_millis(1)),
            Ok(_) | Err(_) => return wanted,
        }
    }
}

/// True if nothing is left.
fn clean(spec: &Spec, group: impl Fn() -> Result<Option<Group>, ShimError>, log: &mut Log) -> bool {
    let mut whole = true;
    match group() {
        Ok(Some(group)) => {
            // Also what `runsc` left when it failed half way.
            let _ = group.kill_all();
            reap(None);
            if let Kind::Gvisor { runsc, direct: false } = &spec.kind {
                whole &= log.note("forget the sandbox", runsc.delete(&spec.id, Duration::from_secs(30)));
            }
            whole &= log.note("remove the control group", group.remove(Duration::from_secs(5)));
        }
        Ok(None) => {}
        Err(error) => whole &= log.note("open the control group", Err::<(), _>(error)),
    }
    match &spec.kind {
        Kind::Gvisor { runsc, .. } => {
            whole & log.note("remove the files of runsc about the sandbox", runsc.forget(&spec.id))
        }
        Kind::Microvm(_) => whole,
    }
}
