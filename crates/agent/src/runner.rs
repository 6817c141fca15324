//! The parent of one command at a time, so that all the command starts stays findable.
//!
//! A runner is a *subreaper*: whatever its command leaves behind, however often it forked and whatever session it took,
//! becomes the runner's child. So "everything below the runner" is exactly "everything the command started". Runners are
//! kept and used again; on the way of a command stands one message there and one back, and no copy of a process.
//!
//! Orders come over descriptor 3. When the agent is gone, a runner kills what is below it and ends.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::time::Duration;

use prost::Message;
use runtime_host::fdpass;
use runtime_host::frugal::{SYS_ADMIN, SYS_RESOURCE, withhold_capability};
use runtime_host::reap::{End, Endings, Reaped, peek_any, reap_any, wait_for};
use runtime_host::spawn::{Announce, Identity, Limit, Program, RLIMIT_NOFILE, RLIMIT_NPROC, SpawnError, Step, spawn};
use rustix::process::{Resource, getrlimit};

use crate::log::log;
use crate::order::{MAX_ORDER, Order, Reply, strings};
use crate::{trace, tree};

pub(crate) const SOCKET: i32 = 3;

/// Open files a command starts with, and may ask for.
const OPEN_FILES: (u64, u64) = (4096, 1 << 20);

pub(crate) fn main(socket: UnixStream) -> ExitCode {
    let own = rustix::process::getpid();
    if rustix::process::set_child_subreaper(Some(own)).is_err() {
        return ExitCode::FAILURE;
    }
    let _ = std::fs::write("/proc/self/oom_score_adj", "-900");
    if crate::setup::user_space_kernel() {
        // There the process limit binds root as well, but for these two rights; without a limit a fork bomb takes the
        // whole sandbox with it.
        for right in [SYS_ADMIN, SYS_RESOURCE] {
            if let Err(error) = withhold_capability(right) {
                // No command runs unbound.
                log!("taking capability {right} away failed: {error}");
                return ExitCode::FAILURE;
            }
        }
    }
    let endings = match Endings::watch() {
        Ok(endings) => endings,
        Err(error) => {
            log!("watching for the ends of commands failed: {error}");
            return ExitCode::FAILURE;
        }
    };
    // Ends when the agent does, or does not speak as it should: either way nothing may be left.
    let _ = serve(&socket, &endings);
    end_all(&mut reap_any);
    ExitCode::SUCCESS
}

fn serve(socket: &UnixStream, endings: &Endings) -> io::Result<()> {
    while let Some((order, mut fds)) = receive(socket)? {
        // The fourth is where its trace goes.
        let record = fds.drain(fds.len().min(3)..).next().filter(|_| order.trace);
        let started = start(socket, &order, &fds, record.is_some());
        drop(fds);
        match started {
            Ok(pid) => {
                reply(socket, Reply::Started)?;
                match record {
                    None => attend(socket, endings, pid, order.kill_leftovers)?,
                    Some(record) => trace::attend::attend(socket, endings, pid, order.kill_leftovers, record)?,
                }
            }
            Err(error) => {
                let errno = error.source.raw_os_error().unwrap_or(rustix::io::Errno::IO.raw_os_error());
                reply(socket, Reply::Failed { step: error.step, errno })?;
            }
        }
    }
    Ok(())
}

fn receive(socket: &UnixStream) -> io::Result<Option<(Order, Vec<OwnedFd>)>> {
    let mut fds = Vec::new();
    let mut data = Vec::new();
    let mut wanted = 4;
    let mut length_known = false;
    while data.len() < wanted {
        let at = data.len();
        data.resize(wanted, 0);
        let got = loop {
            match fdpass::receive(socket, &mut data[at..], &mut fds) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => break other?,
            }
        };
        if got == 0 {
            return Ok(None);
        }
        data.truncate(at + got);
        if !length_known && let Some(head) = data.first_chunk::<4>() {
            length_known = true;
            let length = u32::from_le_bytes(*head) as usize;
            if length > MAX_ORDER {
                return Err(io::ErrorKind::InvalidData.into());
            }
            wanted += length;
        }
    }
    let order = Order::decode(&data[4..]).map_err(|_| io::ErrorKind::InvalidData)?;
    Ok(Some((order, fds)))
}

fn start(socket: &UnixStream, order: &Order, fds: &[OwnedFd], traced: bool) -> Result<i32, SpawnError> {
    let invalid = |source| SpawnError { step: Step::Exec, source };
    let paths = strings(&order.paths).map_err(invalid)?;
    let argv = strings(&order.argv).map_err(invalid)?;
    let envp = strings(&order.envp).map_err(invalid)?;
    let cwd = CString::new(order.cwd.clone()).map_err(|_| invalid(io::ErrorKind::InvalidInput.into()))?;
    let fds: Vec<(BorrowedFd<'_>, i32)> = fds.iter().zip(0..).map(|(fd, number)| (fd.as_fd(), number)).collect();
    let identity = Identity { uid: order.uid, gid: order.gid, groups: order.groups.clone() };
    let limits = limits(order.max_processes);
    let mut program = Program {
        paths: &paths,
        argv: &argv,
        envp: &envp,
        fds: &fds,
        cwd: Some(&cwd),
        identity: Some(&identity),
        limits: &limits,
        new_session: true,
        terminal: order.terminal.then_some(0),
        parent_death_signal: None,
        announce: Some(Announce { to: socket.as_fd(), message: Reply::Starting { pid: 0 }.to_wire() }),
        groups: &[],
        substitute: None,
        traced: None,
    };
    let start = if traced { trace::attend::start } else { spawn };
    let result = start(&program);
    let noexec = rustix::io::Errno::NOEXEC.raw_os_error();
    if let Err(error) = &result
        && error.source.raw_os_error() == Some(noexec)
        && error.step == Step::Exec
        && let Some(script) = paths.iter().find(|path| is_file(path, order))
    {
        // A script without a first line that names its interpreter: a shell reads it, as shells do.
        let mut shell_argv = vec![c"sh".to_owned(), script.clone()];
        shell_argv.extend(argv.iter().skip(1).cloned());
        let shell = [c"/bin/sh".to_owned()];
        program.paths = &shell;
        program.argv = &shell_argv;
        return start(&program);
    }
    result
}

/// Never above our own: raising a hard limit is a right we may not have.
fn limits(max_processes: u64) -> Vec<Limit> {
    let most = |resource, wanted: u64| getrlimit(resource).maximum.map_or(wanted, |maximum| maximum.min(wanted));
    let files = most(Resource::Nofile, OPEN_FILES.1);
    let mut limits = vec![Limit { resource: RLIMIT_NOFILE, soft: files.min(OPEN_FILES.0), hard: files }];
    if max_processes > 0 {
        let processes = most(Resource::Nproc, max_processes);
        limits.push(Limit { resource: RLIMIT_NPROC, soft: processes, hard: processes });
    }
    limits
}

fn is_file(path: &CString, order: &Order) -> bool {
    use std::os::unix::ffi::OsStrExt;
    let path = std::ffi::OsStr::from_bytes(path.to_bytes());
    std::path::Path::new(std::ffi::OsStr::from_bytes(&order.cwd)).join(path).is_file()
}

/// Stays with the command until nothing of it is left, or the agent is gone.
fn attend(socket: &UnixStream, endings: &Endings, leader: i32, kill_leftovers: bool) -> io::Result<()> {
    let end = loop {
        match peek_any()? {
            Reaped::Child(pid, end) => {
                if pid == leader {
                    reply(socket, Reply::Ending { end: end.number() })?;
                }
                wait_for(pid)?;
                if pid == leader {
                    break end;
                }
            }
            Reaped::NoneYet => next_end(socket, endings)?,
            Reaped::NoChildren => return Err(io::ErrorKind::NotFound.into()),
        }
    };
    attend_rest(socket, endings, end, kill_leftovers, &mut reap_any)
}

/// The same once the leader has ended.
pub(crate) fn attend_rest(
    socket: &UnixStream,
    endings: &Endings,
    end: End,
    kill_leftovers: bool,
    reap: &mut dyn FnMut() -> io::Result<Reaped>,
) -> io::Result<()> {
    loop {
        match reap()? {
            Reaped::Child(..) => {}
            Reaped::NoChildren => return reply(socket, Reply::Ended { end: end.number(), empty: true }),
            Reaped::NoneYet => break,
        }
    }
    reply(socket, Reply::Ended { end: end.number(), empty: false })?;
    if kill_leftovers {
        end_all(reap);
    } else {
        loop {
            match reap()? {
                Reaped::Child(..) => {}
                Reaped::NoneYet => next_end(socket, endings)?,
                Reaped::NoChildren => break,
            }
        }
    }
    reply(socket, Reply::Empty)
}

/// Waits for a child to end. No order comes while one is carried out: what can be read is the agent's end.
pub(crate) fn next_end(socket: &UnixStream, endings: &Endings) -> io::Result<()> {
    if endings.wait_or(socket)? { Err(io::ErrorKind::BrokenPipe.into()) } else { Ok(()) }
}

/// Kills everything below this process until nothing is.
fn end_all(reap: &mut dyn FnMut() -> io::Result<Reaped>) {
    let own = rustix::process::getpid().as_raw_nonzero().get();
    let mut pause = Duration::from_millis(1);
    loop {
        loop {
            match reap() {
                Ok(Reaped::Child(..)) => {}
                Ok(Reaped::NoneYet) => break,
                Ok(Reaped::NoChildren) | Err(_) => return,
            }
        }
        tree::kill_below(own, &|_| false);
        // The killed take a moment to be gone, and a fork may have slipped through: look again.
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}

pub(crate) fn reply(mut socket: &UnixStream, reply: Reply) -> io::Result<()> {
    io::Write::write_all(&mut socket, &reply.to_wire())
}

/// The socket a runner was started with.
pub(crate) fn inherited_socket() -> Option<UnixStream> {
    runtime_host::spawn::take_inherited(SOCKET).map(UnixStream::from)
}
