//! Runners: started ahead, kept for reuse, replaced when the guest kills them.

use std::collections::VecDeque;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use runtime_host::fdpass;
use runtime_host::spawn::{Program, SpawnError, spawn};
use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, recv, socketpair};
use tokio::io::{AsyncReadExt, Interest};
use tokio::net::UnixStream;
use tokio::sync::Semaphore;

use crate::groups::{Group, Groups};
use crate::order::{Order, REPLY, Reply};
use crate::reaper::Reaper;
use crate::runner;

/// Idle runners kept after a burst. Each is a small process that sleeps.
const KEEP_IDLE: usize = 16;
/// Idle runners to have ready, so that a command finds one even when the guest has used up what starting one needs.
const READY: usize = 2;
/// More at once are not sooner ready: starting is work for the processor.
const STARTS_AT_ONCE: usize = 4;

#[derive(Debug, thiserror::Error)]
pub(crate) enum PoolError {
    #[error("making a socket pair for a runner failed")]
    Socket(#[source] io::Error),
    #[error("starting a runner failed")]
    Spawn(#[from] SpawnError),
}

/// A runner that waits for an order or follows one.
pub(crate) struct Runner {
    pub(crate) pid: i32,
    socket: UnixStream,
    group: Option<Group>,
    /// Of what was ended in it, what was asked about before.
    kills: u64,
}

/// The runner is gone: the guest killed it, or it broke.
#[derive(Debug, thiserror::Error)]
#[error("the runner {pid} is gone")]
pub(crate) struct Gone {
    pub(crate) pid: i32,
}

/// The runner is gone before all was said; perhaps it had said how the leader ended.
pub(crate) struct Lost {
    pub(crate) end: Option<i32>,
}

pub(crate) struct Pool {
    idle: Mutex<VecDeque<Runner>>,
    reaper: Arc<Reaper>,
    null: OwnedFd,
    starting: Semaphore,
    groups: Option<Arc<Groups>>,
}

impl Pool {
    pub(crate) fn new(reaper: Arc<Reaper>, groups: Option<Arc<Groups>>) -> io::Result<Self> {
        let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self { idle: Mutex::default(), reaper, null, starting: Semaphore::new(STARTS_AT_ONCE), groups })
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Runner>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An open `/dev/null`, for a program without standard input.
    pub(crate) fn null(&self) -> BorrowedFd<'_> {
        self.null.as_fd()
    }

    /// An idle runner that is alive, or a new one.
    pub(crate) async fn take(self: &Arc<Self>) -> Result<Runner, PoolError> {
        match self.idle_one() {
            Some(runner) => Ok(runner),
            None => self.start(true).await,
        }
    }

    fn idle_one(&self) -> Option<Runner> {
        loop {
            let runner = self.lock().pop_back()?;
            if runner.is_idle() {
                return Some(runner);
            }
        }
    }

    /// Takes back a runner that has nothing below it.
    pub(crate) fn give_back(&self, runner: Runner) {
        let mut idle = self.lock();
        if idle.len() < KEEP_IDLE {
            idle.push_back(runner);
        }
        // Else it is dropped: its socket closes and it ends by itself.
    }

    /// Starts what is missing of the ready ones.
    pub(crate) async fn refill(self: &Arc<Self>) {
        loop {
            let missing = {
                let mut idle = self.lock();
                idle.retain(Runner::is_idle);
                idle.len() < READY
            };
            if !missing {
                return;
            }
            match self.start(false).await {
                Ok(runner) => self.give_back(runner),
                Err(error) => return crate::log::log!("a spare runner could not be started: {error}"),
            }
        }
    }

    async fn start(self: &Arc<Self>, or_idle: bool) -> Result<Runner, PoolError> {
        let pool = self.clone();
        let _place = self.starting.acquire().await.map_err(|error| PoolError::Socket(io::Error::other(error)))?;
        // While this one waited, others may have come back.
        if or_idle && let Some(runner) = self.idle_one() {
            return Ok(runner);
        }
        // Starting a process blocks for milliseconds: not on the thread that serves everybody.
        let started = tokio::task::spawn_blocking(move || pool.start_blocking()).await;
        let (pid, socket, group) = started.map_err(|error| PoolError::Socket(io::Error::other(error)))??;
        socket.set_nonblocking(true).map_err(PoolError::Socket)?;
        let socket = UnixStream::from_std(socket).map_err(PoolError::Socket)?;
        Ok(Runner { pid, socket, group, kills: 0 })
    }

    fn start_blocking(&self) -> Result<(i32, std::os::unix::net::UnixStream, Option<Group>), PoolError> {
        let group = self.groups.as_ref().and_then(Groups::make);
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
            .map_err(|error| PoolError::Socket(error.into()))?;
        let paths: [CString; 1] = [c"/proc/self/exe".to_owned()];
        let argv = [c"runtime-runner".to_owned()];
        let fds = [
            (self.null.as_fd(), 0),
            (self.null.as_fd(), 1),
            (rustix::stdio::stderr(), 2),
            (theirs.as_fd(), runner::SOCKET),
        ];
        let program = Program {
            paths: &paths,
            argv: &argv,
            envp: &[],
            fds: &fds,
            cwd: Some(c"/"),
            identity: None,
            limits: &[],
            new_session: true,
            terminal: None,
            parent_death_signal: None,
            announce: None,
            groups: group.as_ref().map_or(&[], |group| std::slice::from_ref(&group.door)),
            substitute: None,
            traced: None,
        };
        // Under the reaper's lock: a runner must be known as one before its end can be collected.
        let pid = self.reaper.expect_runner(|| spawn(&program))?;
        Ok((pid, ours.into(), group))
    }
}

impl Runner {
    fn is_idle(&self) -> bool {
        // The socket itself is asked: what tokio knows of it may be older than the runner's end.
        let mut byte = [0_u8];
        let asked = retry_on_intr(|| recv(&self.socket, &mut byte[..], RecvFlags::PEEK | RecvFlags::DONTWAIT));
        matches!(asked, Err(Errno::AGAIN))
    }

    /// How many processes below it the kernel has ended for want of memory since this was last asked; `None` where it
    /// does not say.
    pub(crate) fn memory_kills(&mut self) -> Option<u32> {
        let now = self.group.as_ref()?.kills().ok()?;
        let fresh = now.saturating_sub(std::mem::replace(&mut self.kills, now));
        Some(u32::try_from(fresh).unwrap_or(u32::MAX))
    }

    fn gone(&self) -> Gone {
        Gone { pid: self.pid }
    }

    /// Sends an order. The first three descriptors become the program's standard ones.
    pub(crate) async fn send(&self, order: &Order, given: &[BorrowedFd<'_>]) -> Result<(), Gone> {
        let wire = order.to_wire();
        let mut at = 0;
        while at < wire.len() {
            let fds: &[BorrowedFd<'_>] = if at == 0 { given } else { &[] };
            let sent = self.socket.try_io(Interest::WRITABLE, || fdpass::send(&self.socket, &wire[at..], fds));
            match sent {
                Ok(count) => at += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.socket.writable().await.map_err(|_| self.gone())?;
                }
                Err(_) => return Err(self.gone()),
            }
        }
        Ok(())
    }

    /// Waits for the leader's end, and says whether nothing is left below.
    pub(crate) async fn end(&mut self) -> Result<(i32, bool), Lost> {
        let mut said = None;
        loop {
            match self.reply().await {
                Ok(Reply::Ending { end }) => said = Some(end),
                Ok(Reply::Ended { end, empty }) => return Ok((end, empty)),
                Ok(_) | Err(_) => return Err(Lost { end: said }),
            }
        }
    }

    /// The next answer.
    pub(crate) async fn reply(&mut self) -> Result<Reply, Gone> {
        let mut wire = [0; REPLY];
        self.socket.read_exact(&mut wire).await.map_err(|_| self.gone())?;
        Reply::from_wire(&wire).ok_or_else(|| self.gone())
    }
}
