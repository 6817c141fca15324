//! A machine as the server holds it: the tie to its shim, and what can be done with it. The same for every driver; what
//! differs is how its channel is dialled, how a lost shim is replaced, and how it is written down ([`Keeper`]).

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use runtime_host::cgroup::Group;
use runtime_model::SandboxId;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::{Booted, Dial, DriverError, End, Frozen, Identity, Notice, Save, StillBooted, StillFrozen};
use crate::host_state::chain;
use crate::shim::wire::{self, Ask, Say};

/// From the request to end until nothing is left; the host may be busy.
const END_LIMIT: Duration = Duration::from_secs(20);
/// Between attempts to give a machine a new shim, at first and at most.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// A shim answers at once; the host may be busy.
const FREEZE_LIMIT: Duration = Duration::from_secs(10);
/// A save that an earlier server began holds it up.
const THAW_LIMIT: Duration = Duration::from_secs(60);
const TELL_ATTEMPTS: usize = 3;

/// A connection to a shim.
pub(crate) struct Tie {
    stream: UnixStream,
    unread: Vec<u8>,
    said: VecDeque<Say>,
    /// The shim, where this server is its parent: kept so that it is reaped.
    _child: Option<tokio::process::Child>,
}

impl Tie {
    pub(crate) fn new(stream: UnixStream, child: Option<tokio::process::Child>) -> Self {
        Self { stream, unread: Vec::new(), said: VecDeque::new(), _child: child }
    }

    /// What the shim says next; `None` once it is gone. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Option<Say> {
        loop {
            if let Some(say) = self.said.pop_front() {
                return Some(say);
            }
            match self.stream.read_buf(&mut self.unread).await {
                Ok(1..) if self.unread.len() <= wire::LINE => {}
                _ => return None,
            }
            self.said.extend(wire::take_lines::<Say>(&mut self.unread));
        }
    }

    async fn ask(&mut self, ask: Ask) -> std::io::Result<()> {
        self.stream.write_all(&wire::line(&ask)).await
    }
}

/// What a driver does for its machines.
#[async_trait]
pub(crate) trait Keeper: Send + Sync + 'static {
    /// Puts a new shim beside a machine whose own is gone. `None` if the machine is gone too.
    async fn replace_shim(&self, id: SandboxId) -> Result<Option<Tie>, DriverError>;
    /// Writes it down while it stands still.
    fn saver(&self, id: SandboxId, identity: &Identity) -> Arc<dyn Save>;
    /// Removes everything of that sandbox but its disk.
    async fn clean(&self, id: SandboxId) -> Result<(), DriverError>;
}

/// What a machine is made of.
pub(crate) struct Parts {
    pub(crate) keeper: Arc<dyn Keeper>,
    pub(crate) id: SandboxId,
    pub(crate) identity: Identity,
    pub(crate) group: Group,
    pub(crate) dialer: Arc<dyn Dial>,
    /// `None`: it has no shim, and gets one.
    pub(crate) tie: Option<Tie>,
}

pub(crate) struct Machine {
    keeper: Arc<dyn Keeper>,
    id: SandboxId,
    identity: Identity,
    group: Group,
    dialer: Arc<dyn Dial>,
    tie: Option<Tie>,
    /// It is to stand still.
    still: bool,
    /// Heard while something else was waited for.
    heard: VecDeque<Notice>,
    replacing: Option<JoinHandle<Result<Option<Tie>, DriverError>>>,
    /// How long the next attempt waits once one has failed, and until when.
    pause: Duration,
    not_before: Option<Instant>,
}

/// One that stands still.
struct Standing(Machine);

impl Machine {
    /// One that runs.
    pub(crate) fn booted(parts: Parts) -> Box<dyn Booted> {
        Box::new(Self::new(parts, false))
    }

    /// One that stands still.
    pub(crate) fn frozen(parts: Parts) -> Box<dyn Frozen> {
        Box::new(Standing(Self::new(parts, true)))
    }

    fn new(parts: Parts, still: bool) -> Self {
        let Parts { keeper, id, identity, group, dialer, tie } = parts;
        let (heard, replacing, pause, not_before) = (VecDeque::new(), None, FIRST_PAUSE, None);
        Self { keeper, id, identity, group, dialer, tie, still, heard, replacing, pause, not_before }
    }

    /// The tie broke: the machine has ended, or only its shim has and another is put in its place. Cancel-safe, since
    /// the work is in a task of its own.
    async fn mend(&mut self) -> Result<bool, DriverError> {
        if let Some(time) = self.not_before {
            tokio::time::sleep_until(time).await;
        }
        // Until the new one has said that it holds the machine, this was an attempt that failed.
        self.not_before = Some(Instant::now() + self.pause);
        let work = self.replacing.get_or_insert_with(|| {
            let (keeper, id) = (self.keeper.clone(), self.id);
            tokio::spawn(async move { keeper.replace_shim(id).await })
        });
        let result = work.await;
        self.replacing = None;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        self.tie = result.map_err(|e| DriverError::new("replace the shim of", self.id, e))??;
        Ok(self.tie.is_some())
    }

    /// It stands still, or does not: if that is not what it should, the shim is told again.
    async fn hold_to(&mut self, stands_still: bool) {
        if stands_still != self.still
            && let Some(tie) = &mut self.tie
        {
            let ask = if self.still { Ask::Freeze } else { Ask::Thaw };
            // If it fails, the tie is broken, which the next notice finds.
            let _ = tie.ask(ask).await;
        }
    }

    /// Has the shim do something and waits for its word. A shim that is gone meanwhile is replaced and asked again: both
    /// things it can be asked are fine when they are done already.
    async fn told(&mut self, ask: Ask, done: &Say, limit: Duration) -> Result<(), DriverError> {
        let id = self.id;
        let fail = |why: String| DriverError::new("have the shim do it to", id, why);
        let end = Instant::now() + limit;
        for _ in 0..TELL_ATTEMPTS {
            if self.tie.is_none() && !self.mend().await? {
                self.heard.push_back(Notice::Ended(End { cause: "it ended together with its shim".to_owned() }));
                return Err(fail("it has ended".to_owned()));
            }
            let Some(tie) = &mut self.tie else { continue };
            if tie.ask(ask).await.is_err() {
                self.tie = None;
                continue;
            }
            loop {
                match tokio::time::timeout_at(end, tie.next()).await {
                    Ok(Some(said)) if said == *done => return Ok(()),
                    Ok(Some(Say::Failed { cause })) => return Err(fail(cause)),
                    Ok(Some(Say::OutOfMemory)) => self.heard.push_back(Notice::OutOfMemory),
                    Ok(Some(Say::Ended(end))) => {
                        self.heard.push_back(Notice::Ended(End { cause: end.cause }));
                        return Err(fail("it has ended".to_owned()));
                    }
                    Ok(Some(Say::Running { .. } | Say::Frozen | Say::Thawed | Say::Unknown)) => {}
                    Ok(None) => {
                        self.tie = None;
                        break;
                    }
                    Err(_) => return Err(fail("it did not answer in time".to_owned())),
                }
            }
        }
        Err(fail("its shim ends again and again".to_owned()))
    }
}

#[async_trait]
impl Booted for Machine {
    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn dialer(&self) -> Arc<dyn Dial> {
        self.dialer.clone()
    }

    fn group(&self) -> Group {
        self.group.clone()
    }

    async fn notice(&mut self) -> Notice {
        if let Some(notice) = self.heard.pop_front() {
            return notice;
        }
        loop {
            let Some(tie) = &mut self.tie else {
                match self.mend().await {
                    Ok(true) => {
                        tracing::warn!(sandbox = %self.id, "the sandbox's shim was gone and has been replaced");
                        continue;
                    }
                    Ok(false) => return Notice::Ended(End { cause: "it ended together with its shim".to_owned() }),
                    Err(error) => {
                        let error = chain(&error);
                        tracing::error!(sandbox = %self.id, error, "the sandbox has no shim; another is tried soon");
                        continue;
                    }
                }
            };
            match tie.next().await {
                Some(Say::OutOfMemory) => return Notice::OutOfMemory,
                Some(Say::Ended(end)) => return Notice::Ended(End { cause: end.cause }),
                Some(Say::Running { frozen, .. }) => {
                    (self.pause, self.not_before) = (FIRST_PAUSE, None);
                    self.hold_to(frozen).await;
                }
                // The late answer to something that was given up on.
                Some(Say::Frozen) => self.hold_to(true).await,
                Some(Say::Thawed) => self.hold_to(false).await,
                Some(Say::Failed { .. } | Say::Unknown) => {}
                None => self.tie = None,
            }
        }
    }

    async fn memory_relieved(&mut self) {
        if let Some(tie) = &mut self.tie {
            // If it fails, the tie is broken, which the next notice finds.
            let _ = tie.ask(Ask::Relieved).await;
        }
    }

    async fn freeze(mut self: Box<Self>) -> Result<Box<dyn Frozen>, StillBooted> {
        match self.told(Ask::Freeze, &Say::Frozen, FREEZE_LIMIT).await {
            Ok(()) => {
                self.still = true;
                Ok(Box::new(Standing(*self)))
            }
            Err(error) => Err(StillBooted { machine: self, error }),
        }
    }

    async fn end(mut self: Box<Self>) -> Result<(), DriverError> {
        if let Some(work) = self.replacing.take() {
            // The new shim must not come up after everything was swept.
            let _ = work.await;
        }
        if let Some(tie) = &mut self.tie {
            let asked = async {
                // One that has ended already does not hear it. In any case its last word is followed by its own end.
                let _ = tie.ask(Ask::End).await;
                while tie.next().await.is_some() {}
            };
            let _ = tokio::time::timeout(END_LIMIT, asked).await;
        }
        // After a shim that did its work, little more than removing two directories.
        self.keeper.clean(self.id).await
    }
}

#[async_trait]
impl Frozen for Standing {
    fn identity(&self) -> &Identity {
        self.0.identity()
    }

    fn group(&self) -> Group {
        self.0.group()
    }

    async fn notice(&mut self) -> Notice {
        self.0.notice().await
    }

    fn saver(&self) -> Arc<dyn Save> {
        self.0.keeper.saver(self.0.id, &self.0.identity)
    }

    async fn thaw(mut self: Box<Self>) -> Result<Box<dyn Booted>, StillFrozen> {
        match self.0.told(Ask::Thaw, &Say::Thawed, THAW_LIMIT).await {
            Ok(()) => {
                self.0.still = false;
                Ok(Box::new(self.0))
            }
            Err(error) => Err(StillFrozen { machine: self, error }),
        }
    }

    async fn end(self: Box<Self>) -> Result<(), DriverError> {
        Box::new(self.0).end().await
    }
}
