//! A gVisor machine as the server holds it: the tie to its shim, and what can be done with it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use runtime_host::cgroup::Group;
use runtime_host::fifo::{self, End as PipeEnd};
use runtime_model::SandboxId;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::{Gvisor, Places, paths};
use crate::driver::{Booted, Dial, Driver, DriverError, End, Identity, Notice, Reader, Writer};
use crate::host_state::chain;
use crate::shim::wire::{self, Ask, Say};

/// From the request to end until nothing is left; the host may be busy.
const END_LIMIT: Duration = Duration::from_secs(20);
/// Between attempts to give a machine a new shim, at first and at most.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// A connection to a shim.
pub(super) struct Tie {
    stream: UnixStream,
    unread: Vec<u8>,
    said: std::collections::VecDeque<Say>,
    /// The shim, where this server is its parent: kept so that it is reaped.
    _child: Option<tokio::process::Child>,
}

impl Tie {
    pub(super) fn new(stream: UnixStream, child: Option<tokio::process::Child>) -> Self {
        Self { stream, unread: Vec::new(), said: std::collections::VecDeque::new(), _child: child }
    }

    /// What the shim says next; `None` once it is gone. Cancel-safe.
    pub(super) async fn next(&mut self) -> Option<Say> {
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

pub(super) struct GvisorMachine {
    driver: Gvisor,
    id: SandboxId,
    identity: Identity,
    group: Group,
    /// `None`: it has no shim, and gets one.
    tie: Option<Tie>,
    replacing: Option<JoinHandle<Result<Option<Tie>, DriverError>>>,
    /// How long the next attempt waits once one has failed, and until when.
    pause: Duration,
    not_before: Option<Instant>,
}

struct Pipes(Places);

impl Dial for Pipes {
    /// Both ends are opened for both directions: the shim keeps the pipes, so neither end of file nor a broken pipe
    /// would say anything about the guest.
    fn dial(&self) -> Result<(Reader, Writer), DriverError> {
        let open = |name: &str| {
            let path = self.0.run_dir.join(name);
            let pipe =
                fifo::open(&path, PipeEnd::Both).map_err(|e| DriverError::new("open the pipe", path.display(), e))?;
            fifo::widen(&pipe);
            Ok::<_, DriverError>((pipe, path))
        };
        let (pipe, path) = open(paths::FROM_GUEST)?;
        let reader =
            pipe::Receiver::from_owned_fd(pipe).map_err(|e| DriverError::new("read from", path.display(), e))?;
        let (pipe, path) = open(paths::TO_GUEST)?;
        let writer = pipe::Sender::from_owned_fd(pipe).map_err(|e| DriverError::new("write to", path.display(), e))?;
        Ok((Box::new(reader), Box::new(writer)))
    }
}

impl GvisorMachine {
    pub(super) fn new(
        driver: Gvisor,
        id: SandboxId,
        identity: Identity,
        tie: Option<Tie>,
    ) -> Result<Self, DriverError> {
        let options = &driver.inner.options;
        let name = driver.inner.cgroup(id);
        let group = Group::open(&options.cgroups, &options.cgroup_parent, &name)
            .map_err(|e| DriverError::new("open the control group", &name, e))?
            .ok_or_else(|| DriverError::new("open the control group", &name, "there is none"))?;
        Ok(Self { driver, id, identity, group, tie, replacing: None, pause: FIRST_PAUSE, not_before: None })
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
            let (inner, id) = (self.driver.inner.clone(), self.id);
            tokio::spawn(async move { inner.replace_shim(id).await })
        });
        let result = work.await;
        self.replacing = None;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        self.tie = result.map_err(|e| DriverError::new("replace the shim of", self.id, e))??;
        Ok(self.tie.is_some())
    }
}

#[async_trait]
impl Booted for GvisorMachine {
    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn dialer(&self) -> Arc<dyn Dial> {
        Arc::new(Pipes(self.driver.inner.places(self.id)))
    }

    fn group(&self) -> Group {
        self.group.clone()
    }

    async fn notice(&mut self) -> Notice {
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
                Some(Say::Running { .. }) => (self.pause, self.not_before) = (FIRST_PAUSE, None),
                Some(Say::Unknown) => {}
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
        self.driver.clean(self.id).await
    }
}
