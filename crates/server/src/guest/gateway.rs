//! The way into a running sandbox: who may, and how it is asked. What its refusals are called is in [`super::refusal`].
//!
//! A request whose channel breaks half way may have run. It is asked a second time only where that cannot do the work
//! twice: a command carries a key under which the agent finds the first one, reading changes nothing, and a file is
//! written whole. Everything else is answered `host_unavailable`, which clients may send again.

use std::sync::Arc;

use bytes::Bytes;
use runtime_model::SandboxId;
use runtime_proto::channel::Sender;
use runtime_proto::guest::{Ask, DATA_STEP, Exec, Input, Process, Request, Spawn, Tell, encode};
use runtime_proto::node::{AskError, GuestStream, Node, NodeError};
use runtime_store::SandboxRow;

use super::command::Surroundings;
pub(crate) use super::refusal::{Asked, asked_with, from_ask};
use crate::error::{ApiError, Kind};
use crate::sandboxes::Ready;
use crate::{AppState, Caller};

/// A running sandbox that a caller may use. While one of its clones lives, the sandbox counts as active.
#[derive(Clone)]
pub(crate) struct Guest {
    node: Arc<dyn Node>,
    id: SandboxId,
    row: Arc<SandboxRow>,
    /// The mark of activity, and the way to know whether it is paused. A test's machine is just there.
    stay: Option<Stay>,
}

#[derive(Clone)]
struct Stay {
    app: AppState,
    ready: Arc<Ready>,
}

/// An exec that has ended: its process and the head of both outputs.
pub(crate) struct Ran {
    pub(crate) process: Process,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    pub(crate) stdout_truncated: bool,
    pub(crate) stderr_truncated: bool,
}

impl Guest {
    /// Wakes the sandbox, or waits while it starts; refuses one that is not the caller's, or is stopped.
    pub(crate) async fn reach(app: &AppState, caller: &Caller, id: &str) -> Result<Self, ApiError> {
        may_look_inside(caller)?;
        Ok(Self::of(app, app.ready(caller, id).await?))
    }

    /// One that was found ready.
    pub(crate) fn of(app: &AppState, ready: Ready) -> Self {
        let (node, id, row) = (app.node().clone(), ready.id, ready.row.clone());
        Self { node, id, row, stay: Some(Stay { app: app.clone(), ready: Arc::new(ready) }) }
    }

    #[cfg(test)]
    pub(super) fn new(node: Arc<dyn Node>, id: SandboxId, row: Arc<SandboxRow>) -> Self {
        Self { node, id, row, stay: None }
    }

    pub(super) fn id(&self) -> SandboxId {
        self.id
    }

    pub(crate) fn memory_mib(&self) -> u64 {
        self.row.shape.memory_mib
    }

    pub(crate) fn disk_bytes(&self) -> u64 {
        self.row.shape.disk_mib << 20
    }

    pub(crate) fn around(&self) -> Surroundings {
        Surroundings::of(&self.row)
    }

    /// To read what a watch saw: neither wakes the sandbox nor counts as use of it.
    pub(crate) async fn glance(app: &AppState, caller: &Caller, id: &str) -> Result<Self, ApiError> {
        may_look_inside(caller)?;
        Ok(Self::of(app, app.glance(caller, id).await?))
    }

    pub(super) async fn ask(&self, ask: Ask) -> Result<GuestStream, Asked> {
        let mut again = true;
        loop {
            match self.node.ask(self.id, Request::new(ask.clone())).await {
                Err(NodeError::NotRunning) if again => match self.stay.as_ref().filter(|_| self.may_wake()) {
                    // Paused since it was reached: as if it had been reached now.
                    Some(Stay { app, ready }) => drop(app.ready_again(ready.live().clone()).await?),
                    // Paused and woken again, or gone.
                    None => again = false,
                },
                other => return other.map_err(Asked::Node),
            }
        }
    }

    fn may_wake(&self) -> bool {
        self.is_away() && self.stay.as_ref().is_some_and(|stay| stay.ready.is_use())
    }

    /// It is paused, or on its way there or back.
    pub(crate) fn is_away(&self) -> bool {
        self.stay.as_ref().is_some_and(|stay| stay.ready.is_away())
    }

    /// Waits until it is away.
    pub(crate) async fn away(&self) {
        match &self.stay {
            Some(stay) => stay.ready.away().await,
            None => std::future::pending().await,
        }
    }

    /// Waits while it is away. Nothing that goes on inside wakes it: whoever paused it meant that.
    pub(crate) async fn back(&self) -> Result<(), ApiError> {
        match &self.stay {
            Some(stay) => stay.ready.back().await,
            None => Ok(()),
        }
    }

    /// After a channel that broke: as often as there are pauses, and once besides.
    pub(super) async fn may_ask_again(&self, breaks: &mut u32) -> Result<bool, ApiError> {
        if self.is_away() {
            self.back().await?;
            return Ok(true);
        }
        *breaks += 1;
        Ok(*breaks == 1)
    }

    /// Opens a stream of answers.
    pub(crate) async fn open(&self, ask: Ask) -> Result<GuestStream, ApiError> {
        self.ask(ask).await.map_err(ApiError::from)
    }

    /// One question, one answer. Not asked a second time.
    pub(crate) async fn once(&self, ask: Ask) -> Result<Tell, Asked> {
        Ok(self.ask(ask).await?.only().await?)
    }

    /// The same for a question that may be asked twice.
    pub(crate) async fn again(&self, ask: Ask) -> Result<Tell, Asked> {
        let mut breaks = 0;
        loop {
            match self.once(ask.clone()).await {
                Err(error) if error.is_broken() && self.may_ask_again(&mut breaks).await? => {}
                other => return other,
            }
        }
    }

    /// One question followed by bytes.
    pub(crate) async fn with_input(&self, ask: Ask, data: Bytes) -> Result<Tell, Asked> {
        let mut stream = self.ask(ask).await?;
        let mut feeding = std::pin::pin!(feed(stream.sender(), data));
        tokio::select! {
            biased;
            // An agent that answers before it has read everything has decided.
            told = async {
                let told = stream.next().await?;
                told.ok_or(AskError::Short)
            } => return Ok(told?),
            () = &mut feeding => {}
        }
        Ok(stream.only().await?)
    }

    /// The same for work that may be done twice.
    pub(crate) async fn with_input_again(&self, ask: Ask, data: Bytes) -> Result<Tell, Asked> {
        let mut breaks = 0;
        loop {
            match self.with_input(ask.clone(), data.clone()).await {
                Err(error) if error.is_broken() && self.may_ask_again(&mut breaks).await? => {}
                other => return other,
            }
        }
    }

    /// Runs a command to its end.
    pub(crate) async fn exec(&self, exec: Exec, stdin: Option<Bytes>) -> Result<Ran, ApiError> {
        let mut breaks = 0;
        loop {
            match self.exec_once(exec.clone(), stdin.clone()).await {
                // By its key it finds the command that is perhaps running; what came of its output is told from the start.
                Err(error) if error.is_broken() && self.may_ask_again(&mut breaks).await? => {}
                other => return Ok(other?),
            }
        }
    }

    async fn exec_once(&self, exec: Exec, stdin: Option<Bytes>) -> Result<Ran, Asked> {
        let limit = usize::try_from(exec.head_limit).unwrap_or(usize::MAX);
        let mut stream = self.ask(Ask::Exec(exec)).await?;
        let Some(stdin) = stdin else {
            return Ok(collect(&mut stream, limit).await?);
        };
        let mut feeding = std::pin::pin!(feed(stream.sender(), stdin));
        let mut collecting = std::pin::pin!(collect(&mut stream, limit));
        tokio::select! {
            biased;
            ran = &mut collecting => return Ok(ran?),
            () = &mut feeding => {}
        }
        Ok(collecting.await?)
    }

    /// Starts a process and gives it its input, which the agent takes at once and holds: what is acknowledged does not
    /// depend on this server any more.
    pub(crate) async fn spawn(&self, spawn: Spawn, stdin: Option<Bytes>) -> Result<Process, ApiError> {
        let mut told = None;
        let mut breaks = 0;
        loop {
            match self.spawn_once(&spawn, stdin.clone(), &mut told).await {
                Err(error) if error.is_broken() && self.may_ask_again(&mut breaks).await? => {}
                other => break other?,
            }
        }
        told.ok_or_else(|| from_ask(AskError::Short))
    }

    /// The agent tells the process before it wants any input, and once more after it.
    async fn spawn_once(&self, spawn: &Spawn, stdin: Option<Bytes>, told: &mut Option<Process>) -> Result<(), Asked> {
        let mut stream = self.ask(Ask::Spawn(spawn.clone())).await?;
        match stream.only().await? {
            Tell::Process(process) => *told = Some(process),
            _ => return Err(AskError::Unexpected.into()),
        }
        let Some(stdin) = stdin else { return Ok(()) };
        let mut feeding = std::pin::pin!(feed(stream.sender(), stdin));
        let mut fed = false;
        loop {
            tokio::select! {
                biased;
                end = stream.next() => return Ok(end?.map(|_| ()).ok_or(AskError::Short)?),
                () = &mut feeding, if !fed => fed = true,
            }
        }
    }
}

fn may_look_inside(caller: &Caller) -> Result<(), ApiError> {
    if caller.read_only {
        return Err(ApiError::new(Kind::Forbidden, "This key reads records, not what is inside a sandbox.")
            .hint("Use a key that was made without --read-only."));
    }
    Ok(())
}

/// Whether the agent knew the process by its key from a request before this one. This one's own second asking finds the
/// process under the id that it chose itself.
pub(crate) fn is_replay(asked_id: &str, process: &Process) -> bool {
    process.attached && process.id != asked_id
}

/// Sends bytes, then says that no more come. An agent that does not want them ends it early; its answer says why.
async fn feed(sender: Sender, mut data: Bytes) {
    while !data.is_empty() {
        let piece = data.split_to(data.len().min(DATA_STEP));
        if sender.send(encode(&Input { data: piece })).await.is_err() {
            return;
        }
    }
    // The same: nobody is left to be told.
    let _ = sender.finish().await;
}

/// What an exec answers. The limit was asked for; a guest that sends more is cut, not believed.
async fn collect(stream: &mut GuestStream, limit: usize) -> Result<Ran, AskError> {
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    loop {
        match stream.only().await? {
            Tell::Chunk(chunk) => {
                let is_stderr = chunk.stream == runtime_proto::guest::Output::Stderr as i32;
                append(if is_stderr { &mut stderr } else { &mut stdout }, &chunk.data, limit);
            }
            Tell::ExecDone(done) => {
                append(&mut stdout, &done.stdout, limit);
                append(&mut stderr, &done.stderr, limit);
                return Ok(Ran {
                    process: done.process.ok_or(AskError::Unexpected)?,
                    stdout,
                    stderr,
                    stdout_truncated: done.stdout_truncated,
                    stderr_truncated: done.stderr_truncated,
                });
            }
            _ => return Err(AskError::Unexpected),
        }
    }
}

fn append(to: &mut Vec<u8>, bytes: &[u8], limit: usize) {
    let room = limit.saturating_sub(to.len());
    to.extend_from_slice(&bytes[..bytes.len().min(room)]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_a_replay_if_another_request_named_it() {
        let told = |attached| Process { id: "first".to_owned(), attached, ..Process::default() };
        assert!(is_replay("second", &told(true)));
        assert!(!is_replay("first", &told(true)), "this request's own second asking");
        assert!(!is_replay("first", &told(false)));
    }
}
