//! The agent's side of `sudo`: who may ask, what the command is given, and when it must end.
//!
//! A command started here belongs to the process whose tree the caller is in: it is signalled and ended with that tree.
//! While the caller waits, its connection stands for it; closed early, the command is killed.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use runtime_host::fdpass;
use runtime_host::spawn::{Identity, Step};
use rustix::io::Errno;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;

use super::environment::environment;
use super::{Ask, MAX_REQUEST, SOCKET, Said};
use crate::log::log;
use crate::order::{Order, Reply};
use crate::pool::Runner;
use crate::process::Proc;
use crate::process::launch::{PATH, candidates};
use crate::users::{Account, SANDBOX_UID, users};
use crate::{Agent, memory, tree};

/// Commands under `sudo` at once, and callers that have not said yet what they want.
const MAX_COMMANDS: usize = 512;
const ASK_TIME: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error("the request did not arrive whole")]
    Request(#[source] io::Error),
    #[error("only the sandbox's user and root may ask")]
    Caller,
    #[error("unknown user {0}")]
    User(String),
    #[error("unknown group {0}")]
    Group(String),
    #[error("a string holds a NUL")]
    Nul,
    #[error("{0}: command not found")]
    NotFound(String),
    #[error("{name}: {errno}")]
    Start { name: String, errno: Errno },
    #[error("the sandbox has too many processes")]
    Busy,
}

/// Listens until the end of the sandbox. Without the socket there is no `sudo`, and all else works.
pub(crate) async fn serve(agent: Arc<Agent>) {
    let _ = std::fs::remove_file(SOCKET);
    let listener = match UnixListener::bind(SOCKET) {
        Ok(listener) => listener,
        Err(error) => return log!("listening on {SOCKET} failed: {error}"),
    };
    if let Err(error) = std::fs::set_permissions(SOCKET, std::fs::Permissions::from_mode(0o666)) {
        log!("opening {SOCKET} to the user failed: {error}");
    }
    let places = Arc::new(Semaphore::new(MAX_COMMANDS));
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((socket, _)) => {
                let agent = agent.clone();
                tokio::spawn(async move {
                    attend(&agent, socket).await;
                    drop(place);
                });
            }
            Err(error) => {
                log!("accepting a caller of sudo failed: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn attend(agent: &Arc<Agent>, mut socket: UnixStream) {
    let said = match run(agent, &mut socket).await {
        Ok(Some(end)) => Said { end: Some(end), ..Said::default() },
        Ok(None) => return,
        Err(refusal) => {
            let source = std::error::Error::source(&refusal).map(|source| format!(": {source}")).unwrap_or_default();
            Said { refused: format!("{refusal}{source}"), end: None }
        }
    };
    let body = said.encode_to_vec();
    let wire = [&(body.len() as u32).to_le_bytes()[..], &body].concat();
    let _ = tokio::time::timeout(ASK_TIME, socket.write_all(&wire)).await;
}

/// How the command ended; `None` if its caller did not wait for it.
async fn run(agent: &Arc<Agent>, socket: &mut UnixStream) -> Result<Option<i32>, Refusal> {
    fdpass::name_senders(&*socket).map_err(|_| Refusal::Caller)?;
    let received = tokio::time::timeout(ASK_TIME, receive(socket)).await;
    let received = received.map_err(|_| Refusal::Request(io::ErrorKind::TimedOut.into()))?;
    let (ask, fds, sender) = received.map_err(Refusal::Request)?;
    let fdpass::Sender { pid, uid } = sender.ok_or(Refusal::Caller)?;
    if uid != 0 && uid != SANDBOX_UID {
        return Err(Refusal::Caller);
    }
    let [stdin, stdout, stderr] =
        <[OwnedFd; 3]>::try_from(fds).map_err(|_| Refusal::Request(io::ErrorKind::InvalidData.into()))?;
    let owner = tokio::task::spawn_blocking({
        let agent = agent.clone();
        move || memory::owner(&agent, pid)
    });
    let owner = owner.await.ok().flatten();
    let mut order = order(agent, ask, uid, owner.is_none())?;
    // What it opens is told with what its caller opens.
    let record = owner.as_ref().and_then(|owner| owner.trace.as_ref()).map(|trace| trace.record.fd());
    order.trace = record.is_some();
    let given: Vec<BorrowedFd<'_>> =
        [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()].into_iter().chain(record).collect();
    let mut runner = agent.pool.take().await.map_err(|_| Refusal::Busy)?;
    let _ = runner.memory_kills();
    runner.send(&order, &given).await.map_err(|_| Refusal::Busy)?;
    drop(given);
    drop((stdin, stdout, stderr));
    if let Some(owner) = &owner {
        owner.add_helper(runner.pid);
    }
    let started = started(&mut runner, &order).await;
    if let Err(refusal) = started {
        if let Some(owner) = &owner {
            owner.remove_helper(runner.pid);
        }
        agent.pool.give_back(runner);
        return Err(refusal);
    }
    let (end, empty) = until_end(socket, &mut runner).await;
    if let (Some(owner), Some(killed @ 1..)) = (&owner, runner.memory_kills()) {
        owner.state.send_modify(|state| state.oom_kills = state.oom_kills.saturating_add(killed));
    }
    if empty {
        leave(agent, owner.as_ref(), runner);
    } else {
        // What it left lives on with the tree that called it.
        let agent = agent.clone();
        tokio::spawn(async move {
            if matches!(runner.reply().await, Ok(Reply::Empty)) {
                leave(&agent, owner.as_ref(), runner);
            } else if let Some(owner) = owner {
                owner.remove_helper(runner.pid);
            }
        });
    }
    Ok(end)
}

fn leave(agent: &Arc<Agent>, owner: Option<&Arc<Proc>>, runner: Runner) {
    if let Some(owner) = owner {
        owner.remove_helper(runner.pid);
    }
    agent.pool.give_back(runner);
}

async fn started(runner: &mut Runner, order: &Order) -> Result<(), Refusal> {
    let name = String::from_utf8_lossy(order.argv.first().map_or(&b""[..], Vec::as_slice)).into_owned();
    loop {
        return match runner.reply().await {
            Ok(Reply::Starting { .. }) => continue,
            Ok(Reply::Started) => Ok(()),
            Ok(Reply::Failed { step: Step::Exec, errno }) if errno == Errno::NOENT.raw_os_error() => {
                Err(Refusal::NotFound(name))
            }
            Ok(Reply::Failed { errno, .. }) => Err(Refusal::Start { name, errno: Errno::from_raw_os_error(errno) }),
            Ok(Reply::Ending { .. } | Reply::Ended { .. } | Reply::Empty) | Err(_) => Err(Refusal::Busy),
        };
    }
}

/// Passes signals on until the command ends; kills it when the caller is gone. Says as well whether nothing is left.
async fn until_end(socket: &mut UnixStream, runner: &mut Runner) -> (Option<i32>, bool) {
    let root = runner.pid;
    let reply = runner.end();
    tokio::pin!(reply);
    let mut waiting = true;
    loop {
        let mut signals = [0; 16];
        tokio::select! {
            biased;
            reply = &mut reply => {
                return match reply {
                    Ok((end, empty)) => (waiting.then_some(end), empty),
                    Err(lost) => (lost.end.filter(|_| waiting), false),
                };
            }
            read = socket.read(&mut signals), if waiting => {
                let count = read.unwrap_or(0);
                waiting = count > 0;
                let signals = signals[..count].to_vec();
                let _ = tokio::task::spawn_blocking(move || {
                    if signals.is_empty() {
                        tree::kill_below(root, &|_| false);
                    }
                    for signal in signals {
                        // To the command itself: it passes on what its own children should get.
                        let command = tree::children(root).unwrap_or_default();
                        for pid in command {
                            tree::signal(pid, i32::from(signal));
                        }
                    }
                })
                .await;
            }
        }
    }
}

async fn receive(socket: &UnixStream) -> io::Result<(Ask, Vec<OwnedFd>, Option<fdpass::Sender>)> {
    let mut fds = Vec::new();
    let mut sender = None;
    let mut data = Vec::new();
    let mut buffer = vec![0; 16 * 1024];
    loop {
        if let Some(head) = data.first_chunk::<4>() {
            let length = u32::from_le_bytes(*head) as usize;
            if length > MAX_REQUEST || data.len() > 4 + length {
                return Err(io::ErrorKind::InvalidData.into());
            }
            if data.len() == 4 + length {
                let ask = Ask::decode(&data[4..]).map_err(|_| io::ErrorKind::InvalidData)?;
                return Ok((ask, fds, sender));
            }
        }
        let read = || fdpass::receive_signed(socket, &mut buffer, &mut fds, &mut sender);
        let got = socket.async_io(Interest::READABLE, read).await?;
        if got == 0 || fds.len() > 3 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        data.extend_from_slice(&buffer[..got]);
    }
}

/// What a command is to be: whose, with which variables, from which words.
fn order(agent: &Agent, ask: Ask, caller: u32, alone: bool) -> Result<Order, Refusal> {
    let target = account(&ask.user)?;
    let users = users();
    let gid = match ask.group.as_str() {
        "" => target.gid,
        name => match name.strip_prefix('#').and_then(|number| number.parse().ok()) {
            Some(gid) => gid,
            None => users.group_by_name(name).ok_or_else(|| Refusal::Group(name.to_owned()))?,
        },
    };
    let Identity { uid, gid, groups } = users.identity(target.uid, gid, &target.name);
    let shell = if target.shell.is_empty() { "/bin/bash" } else { &target.shell };
    let (paths, argv) = words(&ask, shell);
    let envp = environment(&ask, &target, shell, caller, &argv);
    let cwd = if ask.login { target.home.clone().into_bytes() } else { ask.cwd };
    if argv.iter().chain(&envp).chain([&cwd]).any(|text| text.contains(&0)) {
        return Err(Refusal::Nul);
    }
    Ok(Order {
        paths,
        argv,
        envp,
        cwd,
        uid,
        gid,
        groups,
        max_processes: agent.process_limit(uid),
        kill_leftovers: alone,
        terminal: false,
        trace: false,
    })
}

fn account(name: &str) -> Result<Account, Refusal> {
    let users = users();
    let root = || Account { name: "root".into(), uid: 0, gid: 0, home: "/root".into(), shell: "/bin/bash".into() };
    let found = match name {
        "" | "root" | "#0" => Some(users.account("root").cloned().unwrap_or_else(root)),
        name => match name.strip_prefix('#').map(str::parse) {
            Some(Ok(uid)) => users.account_by_id(uid).cloned(),
            _ => users.account(name).cloned(),
        },
    };
    found.ok_or_else(|| Refusal::User(name.to_owned()))
}

fn words(ask: &Ask, shell: &str) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    if !ask.login && !ask.shell {
        let name = ask.argv.first().cloned().unwrap_or_default();
        return (candidates(&name, PATH), ask.argv.clone());
    }
    let base = shell.rsplit('/').next().unwrap_or(shell);
    let mut argv = vec![if ask.login { format!("-{base}") } else { base.to_owned() }.into_bytes()];
    if !ask.argv.is_empty() {
        let quoted: Vec<Vec<u8>> = ask.argv.iter().map(|word| quote(word)).collect();
        argv.extend([b"-c".to_vec(), quoted.join(&b' ')]);
    }
    (vec![shell.as_bytes().to_vec()], argv)
}

/// As the original does: everything but plain characters gets a backslash, so that the shell sees the same words.
fn quote(word: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(word.len());
    for byte in word {
        if !byte.is_ascii_alphanumeric() && !b"_-$".contains(byte) && byte.is_ascii() {
            out.push(b'\\');
        }
        out.push(*byte);
    }
    out
}
