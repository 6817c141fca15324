//! Processes that the host started: their record, how they are launched, watched and ended.

pub(crate) mod launch;
pub(crate) mod output;
pub(crate) mod requests;
pub(crate) mod stdin;
pub(crate) mod supervise;
pub(crate) mod table;
pub(crate) mod terminal;

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};

use runtime_host::reap::End;
use runtime_proto::guest::{self, GuestError, ProcessState};
use tokio::sync::watch;

use output::Output;
use stdin::Stdin;

use crate::trace::Trace;

/// One process, from the request until it is forgotten.
pub(crate) struct Proc {
    pub(crate) id: String,
    pub(crate) key: String,
    /// As shown.
    pub(crate) command: String,
    pub(crate) cwd: String,
    pub(crate) user: i32,
    pub(crate) pty: bool,
    pub(crate) binary: bool,
    pub(crate) exec: bool,
    pub(crate) timeout_ms: u64,
    pub(crate) started: std::time::Instant,
    pub(crate) started_at: u64,
    pub(crate) output: Output,
    pub(crate) stdin: Stdin,
    /// Our end of its terminal, while it lives.
    pub(crate) terminal: Mutex<Option<OwnedFd>>,
    pub(crate) state: watch::Sender<State>,
    /// Runners of commands that its tree started under `sudo`.
    pub(crate) helpers: watch::Sender<BTreeSet<i32>>,
    pub(crate) trace: Option<Trace>,
}

#[derive(Clone, Default)]
pub(crate) struct State {
    pub(crate) phase: Phase,
    pub(crate) pid: i32,
    /// The parent of its tree, while there is one.
    pub(crate) runner: Option<i32>,
    /// Its output is complete, and of an exec nothing is left.
    pub(crate) settled: bool,
    /// The tree may still hold processes.
    pub(crate) tree: bool,
    pub(crate) timed_out: bool,
    pub(crate) oom_kills: u32,
}

#[derive(Clone, Default)]
pub(crate) enum Phase {
    #[default]
    Starting,
    /// Never ran; whoever asked for it, or joins by its key, gets this.
    Refused(GuestError),
    Running,
    Ended {
        /// `None`: the guest killed the parent at the moment of the end, and nobody can say.
        end: Option<End>,
        at: u64,
        duration_ms: u64,
    },
}

pub(crate) fn now() -> u64 {
    runtime_proto::handshake::wall_clock_ns()
}

impl Proc {
    /// As told to the host, from one look at its state. `leftovers` is counted by the caller, since it costs a walk.
    pub(crate) fn describe(&self, state: State, attached: bool, leftovers: u32) -> guest::Process {
        const SIGKILL: i32 = 9;
        let (stdin_open, stdin_offset) = self.stdin.state();
        let (output_bytes, first_offset) = self.output.extent();
        let (shown, exit_code, ended_at, duration_ms) = match state.phase {
            Phase::Starting | Phase::Refused(_) | Phase::Running => {
                (ProcessState::Running, None, None, self.started.elapsed().as_millis() as u64)
            }
            Phase::Ended { end, at, duration_ms } => {
                let shown = match end {
                    _ if state.timed_out => ProcessState::TimedOut,
                    None => ProcessState::Unknown,
                    Some(End::Signal(SIGKILL)) => ProcessState::Killed,
                    Some(_) => ProcessState::Exited,
                };
                let code = if state.timed_out { Some(-SIGKILL) } else { end.map(End::number) };
                (shown, code, Some(at), duration_ms)
            }
        };
        guest::Process {
            id: self.id.clone(),
            state: shown as i32,
            exit_code,
            command: self.command.clone(),
            cwd: self.cwd.clone(),
            user: self.user,
            pid: state.pid,
            pty: self.pty,
            stdin_open,
            stdin_offset,
            binary: self.binary,
            started_at: self.started_at,
            ended_at,
            timeout_ms: self.timeout_ms,
            output_bytes,
            first_offset,
            oom_kills: state.oom_kills,
            exec: self.exec,
            attached,
            duration_ms,
            leftovers,
            traced: self.trace.is_some(),
        }
    }

    /// Memory that it holds once it has ended.
    pub(crate) fn weight(&self) -> usize {
        self.output.weight() + self.trace.as_ref().map_or(0, Trace::weight)
    }

    /// Does something with its terminal; `None` if it has none, or none any more.
    pub(crate) fn with_terminal<T>(&self, act: impl FnOnce(&OwnedFd) -> T) -> Option<T> {
        self.terminal.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(act)
    }

    pub(crate) fn set_terminal(&self, terminal: Option<OwnedFd>) {
        *self.terminal.lock().unwrap_or_else(PoisonError::into_inner) = terminal;
    }

    pub(crate) fn add_helper(&self, runner: i32) {
        self.helpers.send_if_modified(|helpers| helpers.insert(runner));
    }

    pub(crate) fn remove_helper(&self, runner: i32) {
        self.helpers.send_if_modified(|helpers| helpers.remove(&runner));
    }

    /// The runners below which its tree hangs.
    pub(crate) fn roots(&self) -> Vec<i32> {
        let own = self.state.borrow().runner;
        own.into_iter().chain(self.helpers.borrow().iter().copied()).collect()
    }

    /// Waits until it runs or has run; an error if it never will.
    pub(crate) async fn begun(&self) -> Result<(), GuestError> {
        let mut state = self.state.subscribe();
        let state = state.wait_for(|state| !matches!(state.phase, Phase::Starting)).await;
        match state.as_deref().map(|state| &state.phase) {
            Ok(Phase::Refused(error)) => Err(error.clone()),
            _ => Ok(()),
        }
    }

    pub(crate) async fn settled(&self) {
        let mut state = self.state.subscribe();
        let _ = state.wait_for(|state| state.settled).await;
    }
}
