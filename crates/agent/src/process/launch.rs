//! From a request to a running command: what it is given, and which answer a failure is.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};

use runtime_host::reap::End;
use runtime_host::spawn::Step;
use runtime_proto::guest::{Command, EnvVar, ErrorCode, GuestError, Output as Which, Pty, User};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use tokio::net::unix::pipe;
use tokio::sync::watch;

use super::output::Output;
use super::stdin::Stdin;
use super::supervise::{self, Ends};
use super::{Phase, Proc, State, now, terminal};
use crate::Agent;
use crate::order::{Order, Reply};
use crate::pool::Runner;
use crate::trace::Trace;
use crate::users::{SANDBOX_NAME, users};

pub(crate) const HOME: &str = "/workspace";
pub(crate) const PATH: &str = "/workspace/.local/bin:/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin";
/// What the kernel takes for one argument or variable, and in all, with room for its own.
const MAX_STRING: usize = 128 * 1024;
const MAX_STRINGS: usize = 2 * 1024 * 1024 - 64 * 1024;
const SHOWN: usize = 256;
/// Runners that may be lost under one order before it is given up.
const ATTEMPTS: usize = 5;

/// How a process is wanted, beside the command itself.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Wish {
    /// Everything dies with the leader.
    pub(crate) exec: bool,
    /// Standard input is a pipe that we feed.
    pub(crate) stdin: bool,
    pub(crate) pty: Option<Pty>,
    pub(crate) binary: bool,
    /// Heads to keep, for a plain exec.
    pub(crate) head_limit: usize,
}

fn refuse(code: ErrorCode, message: impl Into<String>) -> GuestError {
    GuestError::new(code, message)
}

/// Starts a process, or joins the one that its key names (then `true`).
pub(crate) async fn start(agent: &Arc<Agent>, command: Command, wish: Wish) -> Result<(Arc<Proc>, bool), GuestError> {
    let order = make_order(agent, &command, wish)?;
    let id = if command.process_id.is_empty() { crate::identity::random_name() } else { command.process_id.clone() };
    let mut output = Output::new(wish.head_limit, !wish.binary);
    if wish.head_limit == 0 {
        output = output.expect_reader();
    }
    let proc = Proc {
        id,
        key: command.key.clone(),
        command: shown(&command),
        cwd: String::from_utf8_lossy(&order.cwd).into_owned(),
        user: command.user,
        pty: wish.pty.is_some(),
        binary: wish.binary,
        exec: wish.exec,
        timeout_ms: command.timeout_ms,
        started: std::time::Instant::now(),
        started_at: now(),
        output,
        stdin: Stdin::new(wish.stdin || wish.pty.is_some()),
        terminal: Mutex::default(),
        state: watch::Sender::new(State::default()),
        helpers: watch::Sender::default(),
        trace: match command.trace_files {
            true => Some(Trace::new().map_err(|error| refuse(ErrorCode::Busy, format!("making a trace: {error}")))?),
            false => None,
        },
    };
    let (proc, known) = agent.table.enter(proc)?;
    if known {
        proc.begun().await?;
        return Ok((proc, true));
    }
    // In a task of its own: a host that hangs up now must not leave it half started.
    let launch = tokio::spawn({
        let (agent, proc) = (agent.clone(), proc.clone());
        async move {
            if let Err(error) = launch(&agent, &proc, &order, wish).await {
                agent.table.withdraw(&proc);
                proc.stdin.shut();
                proc.output.close();
                proc.state.send_modify(|state| {
                    state.phase = Phase::Refused(error);
                    state.settled = true;
                });
            }
        }
    });
    let _ = launch.await;
    proc.begun().await?;
    Ok((proc, false))
}

async fn launch(agent: &Arc<Agent>, proc: &Arc<Proc>, order: &Order, wish: Wish) -> Result<(), GuestError> {
    let (ends, theirs) = match wish.pty {
        Some(size) => terminal_ends(proc, order, size)?,
        None => pipe_ends(order, wish.stdin)?,
    };
    let mark = agent.reaper.mark();
    let stdio = theirs.stdio(agent);
    let given: Vec<BorrowedFd<'_>> =
        stdio.into_iter().chain(proc.trace.as_ref().map(|trace| trace.record.fd())).collect();
    let (runner, reply, pid) = begin(agent, order, &given).await?;
    drop(theirs);
    match (reply, pid) {
        (Reply::Started, Some(pid)) => {
            let runner_pid = runner.pid;
            proc.state.send_modify(|state| {
                state.phase = Phase::Running;
                state.pid = pid;
                state.runner = Some(runner_pid);
                state.tree = true;
            });
            tokio::spawn(supervise::watch(agent.clone(), proc.clone(), runner, ends, mark));
            Ok(())
        }
        (Reply::Failed { step, errno }, _) => {
            agent.pool.give_back(runner);
            not_started(agent, proc, order, step, errno)
        }
        _ => Err(confused(runner)),
    }
}

/// The process's ends: its standard descriptors.
pub(crate) enum Theirs {
    Pipes { stdin: Option<OwnedFd>, stdout: OwnedFd, stderr: OwnedFd },
    Terminal(OwnedFd),
}

impl Theirs {
    pub(crate) fn stdio<'a>(&'a self, agent: &'a Agent) -> [BorrowedFd<'a>; 3] {
        match self {
            Self::Pipes { stdin, stdout, stderr } => {
                [stdin.as_ref().map_or(agent.pool.null(), AsFd::as_fd), stdout.as_fd(), stderr.as_fd()]
            }
            Self::Terminal(terminal) => [terminal.as_fd(); 3],
        }
    }
}

pub(crate) fn pipe_ends(order: &Order, stdin: bool) -> Result<(Ends, Theirs), GuestError> {
    let (stdout, stdout_theirs) = output_pipe(order)?;
    let (stderr, stderr_theirs) = output_pipe(order)?;
    let (stdin, stdin_theirs) = if stdin {
        let (theirs, ours) = new_pipe()?;
        let ours = pipe::Sender::from_owned_fd(nonblocking(ours)?).map_err(|error| no_pipe(&error))?;
        (Some(ours), Some(theirs))
    } else {
        (None, None)
    };
    let theirs = Theirs::Pipes { stdin: stdin_theirs, stdout: stdout_theirs, stderr: stderr_theirs };
    Ok((Ends { stdout, stderr: Some(stderr), stdin }, theirs))
}

/// One end for both directions: all output is standard output.
fn terminal_ends(proc: &Proc, order: &Order, size: Pty) -> Result<(Ends, Theirs), GuestError> {
    let failed = |error: &std::io::Error| {
        let code = match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::NOSPC | Errno::NOMEM | Errno::MFILE | Errno::NFILE | Errno::AGAIN) => ErrorCode::Busy,
            _ => ErrorCode::Internal,
        };
        refuse(code, format!("opening a terminal for a process: {error}"))
    };
    let (ours, theirs) = terminal::open(size, order.uid).map_err(|error| failed(&error.into()))?;
    let ours = nonblocking(ours)?;
    let copy = || rustix::io::fcntl_dupfd_cloexec(&ours, 3).map_err(|error| failed(&error.into()));
    // A terminal is polled as a pipe is.
    let stdin = pipe::Sender::from_owned_fd_unchecked(copy()?).map_err(|error| failed(&error))?;
    let stdout = pipe::Receiver::from_owned_fd_unchecked(copy()?).map_err(|error| failed(&error))?;
    proc.set_terminal(Some(ours));
    Ok((Ends { stdout, stderr: None, stdin: Some(stdin) }, Theirs::Terminal(theirs)))
}

/// Gives the order to a runner and hears whether it began, with the leader's pid.
pub(crate) async fn begin(
    agent: &Arc<Agent>,
    order: &Order,
    given: &[BorrowedFd<'_>],
) -> Result<(Runner, Reply, Option<i32>), GuestError> {
    for _ in 0..ATTEMPTS {
        if let Some(begun) = give(agent, order, given).await? {
            return Ok(begun);
        }
    }
    Err(refuse(ErrorCode::Busy, "starting a process: runners are killed as they come"))
}

/// `None`: the runner was killed before anything ran, which a guest that kills everything does to idle ones too; another
/// may take the order.
async fn give(
    agent: &Arc<Agent>,
    order: &Order,
    given: &[BorrowedFd<'_>],
) -> Result<Option<(Runner, Reply, Option<i32>)>, GuestError> {
    let mut runner = agent.pool.take().await.map_err(|error| refuse(ErrorCode::Busy, chain(&error)))?;
    // What it ends from now on is this order's.
    let _ = runner.memory_kills();
    if runner.send(order, given).await.is_err() {
        return Ok(None);
    }
    let mut pid = None;
    loop {
        match runner.reply().await {
            Ok(Reply::Starting { pid: announced }) => pid = Some(announced),
            Ok(reply) => return Ok(Some((runner, reply, pid))),
            // It was killed between: the program began, and its end can still be told.
            Err(_) if pid.is_some() => return Ok(Some((runner, Reply::Started, pid))),
            Err(gone) => {
                agent.reaper.runner_ended(gone.pid).await;
                return Ok(None);
            }
        }
    }
}

pub(crate) fn confused(runner: Runner) -> GuestError {
    refuse(ErrorCode::Internal, format!("starting a process: the runner {} answered out of turn", runner.pid))
}

/// A program that is missing or may not be run is an ended process, as under a shell; the rest is refused.
fn not_started(agent: &Arc<Agent>, proc: &Arc<Proc>, order: &Order, step: Step, errno: i32) -> Result<(), GuestError> {
    let errno = Errno::from_raw_os_error(errno);
    let cwd = &proc.cwd;
    match (step, errno) {
        (Step::Directory, Errno::ACCESS) => {
            Err(refuse(ErrorCode::PermissionDenied, format!("entering the directory {cwd}: permission denied")))
        }
        (Step::Directory, Errno::NOENT | Errno::NOTDIR) => {
            Err(refuse(ErrorCode::CwdNotFound, format!("the directory {cwd} does not exist")))
        }
        (_, Errno::AGAIN | Errno::NOMEM | Errno::MFILE | Errno::NFILE) => {
            Err(refuse(ErrorCode::Busy, format!("starting a process at the step {step:?}: {errno}")))
        }
        (_, Errno::TOOBIG) => {
            let message = "starting a process: its arguments and environment are longer than the kernel takes";
            Err(refuse(ErrorCode::TooLarge, message))
        }
        (Step::Trace, _) => {
            Err(refuse(ErrorCode::Unsupported, format!("tracing a process: this kernel does not: {errno}")))
        }
        (Step::Exec, _) => {
            let name = String::from_utf8_lossy(order.argv.first().map_or(&b""[..], Vec::as_slice)).into_owned();
            let (code, text) = match errno {
                Errno::NOENT | Errno::NOTDIR if name.contains('/') => {
                    (127, format!("{name}: No such file or directory\n"))
                }
                Errno::NOENT | Errno::NOTDIR => (127, format!("{name}: command not found\n")),
                Errno::ACCESS => (126, format!("{name}: Permission denied\n")),
                other => (126, format!("{name}: cannot run it: {other}\n")),
            };
            proc.output.push_now(if proc.pty { Which::Stdout } else { Which::Stderr }, text.as_bytes());
            proc.output.close();
            proc.set_terminal(None);
            proc.stdin.shut();
            if let Some(trace) = &proc.trace {
                trace.close(false);
            }
            proc.state.send_modify(|state| {
                state.phase = Phase::Ended { end: Some(End::Code(code)), at: now(), duration_ms: 0 };
                state.settled = true;
            });
            agent.table.ended(proc);
            Ok(())
        }
        _ => Err(refuse(ErrorCode::Internal, format!("starting a process at the step {step:?}: {errno}"))),
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

fn no_pipe(error: &std::io::Error) -> GuestError {
    refuse(ErrorCode::Busy, format!("making a pipe for a process: {error}"))
}

/// (read end, write end), both close-on-exec.
fn new_pipe() -> Result<(OwnedFd, OwnedFd), GuestError> {
    pipe_with(PipeFlags::CLOEXEC).map_err(|error| no_pipe(&error.into()))
}

fn nonblocking(fd: OwnedFd) -> Result<OwnedFd, GuestError> {
    rustix::io::ioctl_fionbio(&fd, true).map_err(|error| no_pipe(&error.into()))?;
    Ok(fd)
}

/// Our end, and theirs: owned by the user, so that `/dev/stdout` can be opened by name.
fn output_pipe(order: &Order) -> Result<(pipe::Receiver, OwnedFd), GuestError> {
    let (ours, theirs) = new_pipe()?;
    if order.uid != 0 {
        let uid = rustix::fs::Uid::from_raw(order.uid);
        let gid = rustix::fs::Gid::from_raw(order.gid);
        let _ = rustix::fs::fchown(&theirs, Some(uid), Some(gid));
    }
    let ours = pipe::Receiver::from_owned_fd(nonblocking(ours)?).map_err(|error| no_pipe(&error))?;
    Ok((ours, theirs))
}

/// argv joined by spaces, `bash -c ...` for a line, cut.
fn shown(command: &Command) -> String {
    let full = match &command.shell {
        Some(line) => format!("bash -c {line}"),
        None => command.argv.join(" "),
    };
    match full.char_indices().nth(SHOWN) {
        Some((at, _)) => full[..at].to_owned(),
        None => full,
    }
}

/// `bash -c` with the line. One that is longer than the kernel takes in one argument goes in several, which a first line
/// puts together again; the line sees no arguments either way.
fn shell(line: &str) -> Vec<Vec<u8>> {
    let mut argv = vec![b"bash".to_vec(), b"-c".to_vec()];
    if line.len() < MAX_STRING {
        argv.push(line.as_bytes().to_vec());
        return argv;
    }
    let parts: Vec<&[u8]> = line.as_bytes().chunks(MAX_STRING - 1).collect();
    let joined: String = (1..=parts.len()).map(|number| format!("${{{number}}}")).collect();
    argv.push(format!("eval \"shift $#;{joined}\"").into_bytes());
    argv.push(b"bash".to_vec());
    argv.extend(parts.into_iter().map(<[u8]>::to_vec));
    argv
}

fn make_order(agent: &Agent, command: &Command, wish: Wish) -> Result<Order, GuestError> {
    let invalid = |message: &str| refuse(ErrorCode::Invalid, format!("starting a process: {message}"));
    let user = User::try_from(command.user).map_err(|_| invalid("the user is unknown"))?;
    let argv: Vec<Vec<u8>> = match (&command.shell, command.argv.is_empty()) {
        (Some(line), true) => shell(line),
        (None, false) => command.argv.iter().map(|arg| arg.clone().into_bytes()).collect(),
        _ => return Err(invalid("exactly one of a shell line and an argument list is needed")),
    };
    let cwd = if command.cwd.is_empty() { HOME } else { &command.cwd };
    if !cwd.starts_with('/') {
        return Err(invalid("the directory is not absolute"));
    }
    if argv[0].is_empty() {
        return Err(invalid("the program has no name"));
    }
    let env = environment(user, agent.way_out.variables(), &command.env, wish.pty.is_some());
    if env.iter().any(|(name, _)| name.is_empty() || name.contains('=')) {
        return Err(invalid("a variable's name is empty or holds '='"));
    }
    let path = env.iter().find(|(name, _)| name == "PATH").map_or(PATH, |(_, value)| value.as_str());
    let paths = candidates(&argv[0], path);
    let envp: Vec<Vec<u8>> = env.iter().map(|(name, value)| format!("{name}={value}").into_bytes()).collect();
    let strings = || argv.iter().chain(&envp);
    if strings().any(|text| text.contains(&0)) || cwd.contains('\0') {
        return Err(invalid("a string holds a NUL"));
    }
    let total: usize = strings().map(|text| text.len() + 9).sum();
    if total > MAX_STRINGS || strings().any(|text| text.len() >= MAX_STRING) {
        let message = "starting a process: its arguments and environment are longer than the kernel takes";
        return Err(refuse(ErrorCode::TooLarge, message));
    }
    let identity = users().identity_of(user);
    let identity_uid = identity.uid;
    Ok(Order {
        paths,
        argv,
        envp,
        cwd: cwd.as_bytes().to_vec(),
        uid: identity.uid,
        gid: identity.gid,
        groups: identity.groups,
        max_processes: agent.process_limit(identity_uid),
        kill_leftovers: wish.exec,
        terminal: wish.pty.is_some(),
        trace: command.trace_files,
    })
}

/// Where a name may be, in order.
pub(crate) fn candidates(name: &[u8], path: &str) -> Vec<Vec<u8>> {
    if name.contains(&b'/') {
        return vec![name.to_vec()];
    }
    path.split(':')
        .map(|dir| if dir.is_empty() { "." } else { dir })
        .map(|dir| [dir.as_bytes(), b"/", name].concat())
        .collect()
}

/// The guest's own variables, those of the way out, then the caller's; a later one replaces an earlier.
pub(crate) fn environment(
    user: User,
    way_out: &[(&str, &str)],
    extra: &[EnvVar],
    terminal: bool,
) -> Vec<(String, String)> {
    let (name, home) = match user {
        User::Sandbox => (SANDBOX_NAME, HOME),
        User::Root => ("root", "/root"),
    };
    let own = [
        ("HOME", home),
        ("USER", name),
        ("LOGNAME", name),
        ("SHELL", "/bin/bash"),
        ("PATH", PATH),
        ("LANG", "C.UTF-8"),
    ];
    let own = own.iter().chain(terminal.then_some(&terminal::TERM)).chain(way_out);
    let mut env: Vec<(String, String)> = own.map(|(name, value)| ((*name).into(), (*value).into())).collect();
    let mut places: std::collections::HashMap<String, usize> =
        env.iter().enumerate().map(|(at, (name, _))| (name.clone(), at)).collect();
    for var in extra {
        match places.get(&var.name) {
            Some(at) => env[*at].1.clone_from(&var.value),
            None => {
                places.insert(var.name.clone(), env.len());
                env.push((var.name.clone(), var.value.clone()));
            }
        }
    }
    env
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shown_command_is_cut_between_characters() {
        let command = Command { shell: Some("é".repeat(500)), ..Command::default() };
        let text = shown(&command);
        assert!(text.starts_with("bash -c é"));
        assert_eq!(text.chars().count(), SHOWN);
    }

    #[test]
    fn later_variables_win() {
        let var = |name: &str, value: &str| EnvVar { name: name.into(), value: value.into() };
        let given = [var("A", "1"), var("HOME", "/x"), var("A", "2"), var("P", "q")];
        let env = environment(User::Sandbox, &[("P", "p")], &given, true);
        let get = |name: &str| env.iter().filter(|(n, _)| n == name).map(|(_, v)| v.as_str()).collect::<Vec<_>>();
        assert_eq!((get("A"), get("HOME"), get("USER"), get("P")), (vec!["2"], vec!["/x"], vec!["runtime"], vec!["q"]));
        assert_eq!(get("TERM"), ["xterm-256color"]);
        assert_eq!(environment(User::Sandbox, &[], &[], false).iter().find(|(name, _)| name == "TERM"), None);
    }
}
