//! Logins over SSH: one sshd for one connection, started for it and ended with it.
//!
//! It speaks over three pipes and listens nowhere, so nothing in the sandbox and nothing outside can reach it but the
//! host. It runs as the sandbox user, who is then the only one to log in as, and no program of root's reads what a client
//! sends before its key was proven. What it is to know is laid out by [`login`].

mod login;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use runtime_host::spawn::Step;
use runtime_proto::channel::{Sender, Stream};
use runtime_proto::guest::{
    Chunk, DATA_STEP, ErrorCode, Event, GuestError, Output, Ssh, Tell, User, decode_input, encode,
};
use rustix::io::Errno;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio::sync::oneshot;

use crate::order::{Order, Reply};
use crate::pool::Runner;
use crate::process::launch::{PATH, begin, confused, environment, pipe_ends};
use crate::process::requests::given_up;
use crate::process::supervise::Ends;
use crate::serve::{Failure, done, tell};
use crate::users::users;
use crate::{Agent, tree};
use login::Login;

const SSHD: &str = "/usr/sbin/sshd";
/// How long sshd may take to see that its connection is over, before it is made to.
const GOODBYE: Duration = Duration::from_secs(10);
const SIGKILL: i32 = 9;

pub(crate) async fn serve(agent: &Arc<Agent>, wanted: Ssh, stream: &mut Stream) -> Result<(), Failure> {
    let env = environment(User::Sandbox, agent.way_out.variables(), &wanted.env, false);
    let login = tokio::task::spawn_blocking(move || Login::lay_out(&wanted, &env))
        .await
        .map_err(|error| GuestError::new(ErrorCode::Internal, format!("a login over SSH: {error}")))??;
    let order = order(agent, &login.config());
    let (ends, theirs) = pipe_ends(&order, true)?;
    let begun = begin(agent, &order, &theirs.stdio(agent)).await?;
    drop(theirs);
    let (runner, pid) = match begun {
        (runner, Reply::Started, Some(pid)) => (runner, pid),
        (runner, Reply::Failed { step, errno }, _) => {
            agent.pool.give_back(runner);
            return Err(not_started(step, Errno::from_raw_os_error(errno)).into());
        }
        (runner, ..) => return Err(confused(runner).into()),
    };
    // Dropped on every way out: from then on sshd has little time.
    let (_over, is_over) = oneshot::channel();
    tokio::spawn(attend(agent.clone(), runner, pid, login, is_over));
    tell(stream, done()).await?;
    carry(ends, stream).await
}

fn order(agent: &Agent, config: &Path) -> Order {
    let users = users();
    let mut identity = users.identity_of(User::Sandbox);
    // A terminal is to be the group's, and only its member may give it away.
    if let Some(tty) = users.group_by_name("tty").filter(|tty| !identity.groups.contains(tty)) {
        identity.groups.push(tty);
    }
    let argv = [SSHD, "-i", "-e", "-f"].into_iter().map(str::as_bytes);
    let config = config.as_os_str().as_encoded_bytes();
    Order {
        paths: vec![SSHD.into()],
        argv: argv.chain([config]).map(<[u8]>::to_vec).collect(),
        envp: vec![format!("PATH={PATH}").into_bytes()],
        cwd: b"/".to_vec(),
        uid: identity.uid,
        gid: identity.gid,
        groups: identity.groups,
        max_processes: agent.process_limit(identity.uid),
        // What a session left in the background lives on, as it does on other machines.
        kill_leftovers: false,
        terminal: false,
        trace: false,
    }
}

fn not_started(step: Step, errno: Errno) -> GuestError {
    let code = match (step, errno) {
        (Step::Exec, Errno::NOENT | Errno::NOTDIR | Errno::ACCESS) => ErrorCode::FileNotFound,
        (_, Errno::AGAIN | Errno::NOMEM | Errno::MFILE | Errno::NFILE) => ErrorCode::Busy,
        _ => ErrorCode::Internal,
    };
    GuestError::new(code, format!("starting {SSHD} at the step {step:?}: {errno}"))
}

/// Stays with sshd until it has ended, and with what its sessions left behind.
async fn attend(agent: Arc<Agent>, mut runner: Runner, pid: i32, login: Login, is_over: oneshot::Receiver<()>) {
    let ended = {
        let end = runner.end();
        tokio::pin!(end);
        let patience = async {
            let _ = is_over.await;
            tokio::time::sleep(GOODBYE).await;
        };
        tokio::select! {
            biased;
            ended = &mut end => ended,
            () = patience => {
                tree::signal(pid, SIGKILL);
                end.await
            }
        }
    };
    let _ = tokio::task::spawn_blocking(move || drop(login)).await;
    // A runner that was killed is collected by the reaper.
    let Ok((_, empty)) = ended else { return };
    if empty || matches!(runner.reply().await, Ok(Reply::Empty)) {
        agent.pool.give_back(runner);
    }
}

/// Until sshd has closed its side: only it and its own parts hold that.
async fn carry(ends: Ends, stream: &mut Stream) -> Result<(), Failure> {
    let Ends { stdout, stderr, stdin } = ends;
    let sender = stream.sender();
    let out = async {
        let complaints = async {
            match stderr {
                Some(stderr) => pass_on(stderr, Output::Stderr, &sender).await,
                None => Ok(()),
            }
        };
        tokio::try_join!(pass_on(stdout, Output::Stdout, &sender), complaints)
    };
    tokio::select! {
        passed = out => passed.map(|_| ()),
        gone = take_in(stdin, stream) => Err(gone),
    }
}

async fn pass_on(mut pipe: pipe::Receiver, which: Output, sender: &Sender) -> Result<(), Failure> {
    let mut buf = vec![0; DATA_STEP];
    loop {
        match pipe.read(&mut buf).await {
            Ok(0) | Err(_) => return Ok(()),
            Ok(got) => {
                let data = Bytes::copy_from_slice(&buf[..got]);
                let chunk = Chunk { stream: which as i32, offset: 0, data };
                sender.send(encode(&Event::new(Tell::Chunk(chunk)))).await?;
            }
        }
    }
}

/// Completes only when the host has given the login up.
async fn take_in(mut stdin: Option<pipe::Sender>, stream: &mut Stream) -> Failure {
    loop {
        match stream.recv().await {
            Err(gone) => return gone.into(),
            Ok(None) => break,
            Ok(Some(message)) => {
                let Ok(input) = decode_input(message) else { return Failure::Gone };
                // One that reads no more has ended, or will; what still comes is taken and dropped.
                let Some(pipe) = &mut stdin else { continue };
                let written = tokio::select! {
                    written = pipe.write_all(&input.data) => written,
                    // It may stand still, and must not hold up the host's going.
                    () = given_up(stream.sender()) => return Failure::Gone,
                };
                if written.is_err() {
                    stdin = None;
                }
            }
        }
    }
    // The client has ended; sshd hears of it by this.
    drop(stdin);
    // After its end a stream no longer tells that the host gave it up.
    given_up(stream.sender()).await;
    Failure::Gone
}
