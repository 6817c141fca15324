//! The engine's end of the egress program: starts it, arms it, passes connections to it, and starts another when it dies.
//!
//! ```text
//!   Down ──started, and every sandbox armed again──> Up ──it ended──> Down
//! ```
//!
//! The rules that hold are kept here, so that a new program knows them before it is handed its first connection. While it
//! is down everything is refused: connections are closed, and a change of rules waits for the next one.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use runtime_model::SandboxId;
use runtime_proto::channel::{Channel, ChannelError, Config, Opener, Side, Stream};
use runtime_proto::egress::{DecisionPage, Egress, EgressError, Rules};
use runtime_proto::guest::{Flow, encode};
use runtime_proto::policy::{self, Arm, MAX_ASK, Page, Policy, PolicyAsk, PolicyTell};
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::program::{EPOCH, MAX_STREAMS};
use crate::service::Settings;

/// The word that makes the program of the product this one.
pub const SUBCOMMAND: &str = "egress";
/// Between two starts, at first and at most.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// A program that lived this long did not die of its start.
const LIVED: Duration = Duration::from_secs(30);
/// How long a change of rules waits for a program.
const PATIENCE: Duration = Duration::from_secs(10);
const NOBODY: u32 = 65_534;

#[derive(Debug, Clone)]
pub struct KeeperOptions {
    /// The program whose [`SUBCOMMAND`] is [`crate::program::run`].
    pub program: PathBuf,
    pub settings: Settings,
    /// Give it no rights: only root can.
    pub as_nobody: bool,
}

/// [`Egress`] in a process of its own. Cheap to clone.
#[derive(Clone)]
pub struct Keeper {
    shared: Arc<Shared>,
}

struct Shared {
    options: KeeperOptions,
    armed: Mutex<HashMap<SandboxId, Rules>>,
    open: Mutex<HashMap<SandboxId, usize>>,
    up: watch::Sender<Option<Opener>>,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Keeper {
    /// Starts the program in the background; what is asked before it is up waits.
    #[must_use]
    pub fn start(options: KeeperOptions) -> Self {
        let shared = Arc::new(Shared {
            options,
            armed: Mutex::default(),
            open: Mutex::default(),
            up: watch::Sender::new(None),
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
        });
        let keep = shared.clone();
        shared.tasks.spawn(async move {
            let stop = keep.stop.clone();
            tokio::select! {
                () = keep.keep() => {}
                () = stop.cancelled() => {}
            }
            keep.up.send_replace(None);
        });
        Self { shared }
    }

    /// Ends the program and what it carries.
    pub async fn close(&self) {
        self.shared.stop.cancel();
        self.shared.tasks.close();
        self.shared.tasks.wait().await;
    }

    /// Asks the program, waiting for one if need be. Every ask may be repeated.
    async fn ask(&self, id: SandboxId, policy: Policy) -> Result<Vec<Bytes>, EgressError> {
        let ask = encode(&PolicyAsk { sandbox: id.to_string(), policy: Some(policy) });
        let asked = async {
            let mut up = self.shared.up.subscribe();
            loop {
                let usable = |opener: &Option<Opener>| opener.as_ref().is_some_and(|opener| !opener.is_closed());
                let Some(opener) = up.wait_for(usable).await.ok().and_then(|opener| opener.clone()) else {
                    return Err(EgressError::Down("it is being closed".to_owned()));
                };
                match exchange(&opener, ask.clone()).await {
                    Ok(told) => return Ok(told),
                    // It died with the question: the next is asked.
                    Err(ChannelError::Closed) => tokio::task::yield_now().await,
                    Err(error) => return Err(EgressError::Down(error.to_string())),
                }
            }
        };
        let late = || EgressError::Down("its program did not come up in time".to_owned());
        tokio::time::timeout(PATIENCE, asked).await.map_err(|_| late())?
    }
}

/// Asks, and hears everything that is told.
async fn exchange(opener: &Opener, ask: Bytes) -> Result<Vec<Bytes>, ChannelError> {
    let mut stream = opener.open(ask).await?;
    let mut told = Vec::new();
    while let Some(message) = stream.recv().await? {
        told.push(message);
    }
    stream.finish().await?;
    Ok(told)
}

impl Shared {
    fn armed(&self) -> MutexGuard<'_, HashMap<SandboxId, Rules>> {
        self.armed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, id: SandboxId, change: impl FnOnce(usize) -> usize) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let count = change(open.get(&id).copied().unwrap_or(0));
        if count == 0 {
            open.remove(&id);
        } else {
            open.insert(id, count);
        }
    }

    async fn keep(&self) {
        let mut pause = FIRST_PAUSE;
        loop {
            let began = tokio::time::Instant::now();
            match self.one().await {
                Ok(status) => tracing::error!(status, "the egress program ended; every connection is closed"),
                Err(error) => tracing::error!(%error, "the egress program does not start; everything is refused"),
            }
            self.up.send_replace(None);
            pause = if began.elapsed() >= LIVED { FIRST_PAUSE } else { (pause * 2).min(LONGEST_PAUSE) };
            tokio::time::sleep(pause).await;
        }
    }

    /// One life of the program; how it ended.
    async fn one(&self) -> io::Result<String> {
        let (ours, theirs) = StdStream::pair()?;
        ours.set_nonblocking(true)?;
        let ours = UnixStream::from_std(ours)?;
        let mut command = std::process::Command::new(&self.options.program);
        command.arg(SUBCOMMAND).current_dir("/").env_clear();
        for range in &self.options.settings.public {
            command.arg(range.to_string());
        }
        if self.options.as_nobody {
            command.uid(NOBODY).gid(NOBODY);
        }
        command.stdin(Stdio::from(OwnedFd::from(theirs))).stdout(Stdio::null()).stderr(Stdio::inherit());
        // A key that ends the server from a terminal is not for it: it ends with its socket.
        command.process_group(0);
        let mut child = tokio::process::Command::from(command).kill_on_drop(true).spawn()?;
        let config = Config {
            side: Side::Host,
            epoch: EPOCH,
            max_open: MAX_ASK,
            max_streams: MAX_STREAMS,
            max_flows: 0,
            max_incoming: 0,
        };
        let (opener, _incoming, pump) = Channel::new(config).into_parts();
        let (mut reader, mut writer) = ours.into_split();
        let mut unread = BytesMut::new();
        let arm = async {
            // Until none was changed meanwhile: what is armed while this runs goes to a program that is not up.
            let mut done: HashMap<SandboxId, u64> = HashMap::new();
            loop {
                let next = self
                    .armed()
                    .iter()
                    .find(|(id, rules)| done.get(id) != Some(&rules.version))
                    .map(|(id, rules)| (*id, rules.clone()));
                let Some((id, rules)) = next else { break };
                let ask = PolicyAsk { sandbox: id.to_string(), policy: Some(arming(&rules)) };
                if exchange(&opener, encode(&ask)).await.is_err() {
                    return std::future::pending().await;
                }
                done.insert(id, rules.version);
            }
            self.up.send_replace(Some(opener));
            std::future::pending::<()>().await;
        };
        tokio::select! {
            _ = pump.run(&mut reader, &mut writer, &mut unread) => {}
            () = arm => {}
        }
        self.up.send_replace(None);
        // Its socket is closed: it ends, or is ended.
        drop((reader, writer));
        let _ = child.start_kill();
        child.wait().await.map(|status| status.to_string())
    }
}

fn arming(rules: &Rules) -> Policy {
    let network = serde_json::to_string(&*rules.network).unwrap_or_default();
    Policy::Arm(Arm { version: rules.version, network })
}

#[async_trait]
impl Egress for Keeper {
    async fn arm(&self, id: SandboxId, rules: Rules) -> Result<(), EgressError> {
        {
            let mut armed = self.shared.armed();
            if armed.get(&id).is_some_and(|held| held.version > rules.version) {
                return Ok(());
            }
            armed.insert(id, rules.clone());
        }
        self.ask(id, arming(&rules)).await.map(drop)
    }

    async fn disarm(&self, id: SandboxId) {
        self.shared.armed().remove(&id);
        let up = self.shared.up.borrow().clone();
        // One that is not up has forgotten it anyway.
        if let Some(opener) = up {
            let ask = PolicyAsk { sandbox: id.to_string(), policy: Some(Policy::Disarm(true)) };
            let _ = tokio::time::timeout(PATIENCE, exchange(&opener, encode(&ask))).await;
        }
    }

    async fn forget(&self, id: SandboxId) {
        self.shared.armed().remove(&id);
        let up = self.shared.up.borrow().clone();
        if let Some(opener) = up {
            let ask = PolicyAsk { sandbox: id.to_string(), policy: Some(Policy::Forget(true)) };
            let _ = tokio::time::timeout(PATIENCE, exchange(&opener, encode(&ask))).await;
        }
    }

    fn armed(&self, id: SandboxId) -> Option<Rules> {
        self.shared.armed().get(&id).cloned()
    }

    fn serve(&self, id: SandboxId, flow: Flow, stream: Stream) {
        let shared = self.shared.clone();
        self.shared.tasks.spawn(async move {
            shared.count(id, |count| count + 1);
            let stop = shared.stop.clone();
            tokio::select! {
                () = pass(&shared, id, flow, stream) => {}
                () = stop.cancelled() => {}
            }
            shared.count(id, |count| count.saturating_sub(1));
        });
    }

    fn open(&self, id: SandboxId) -> usize {
        self.shared.open.lock().unwrap_or_else(PoisonError::into_inner).get(&id).copied().unwrap_or(0)
    }

    async fn decisions(&self, id: SandboxId, before: Option<u64>, limit: usize) -> DecisionPage {
        let ask = Policy::Decisions(Page { before, limit: u32::try_from(limit).unwrap_or(u32::MAX) });
        let mut page = DecisionPage::default();
        for message in self.ask(id, ask).await.unwrap_or_default() {
            let Ok(PolicyTell { decision, more, total }) = policy::decode(message) else { continue };
            match decision {
                Some(told) => page.decisions.push(told.into()),
                None => (page.more, page.total) = (more, total),
            }
        }
        page
    }
}

/// A connection from the guest's stream to the program's, message by message. A program that is down closes it.
async fn pass(shared: &Shared, id: SandboxId, flow: Flow, mut guest: Stream) {
    let ask = encode(&PolicyAsk { sandbox: id.to_string(), policy: Some(Policy::Flow(flow)) });
    let mut up = shared.up.subscribe();
    let usable = |opener: &Option<Opener>| opener.as_ref().is_some_and(|opener| !opener.is_closed());
    let waited = tokio::time::timeout(PATIENCE, up.wait_for(usable)).await;
    let Some(opener) = waited.ok().and_then(Result::ok).and_then(|opener| opener.clone()) else { return };
    let Ok(mut program) = opener.open(ask).await else { return };
    let (to_program, to_guest) = (program.sender(), guest.sender());
    let out = async {
        while let Some(message) = guest.recv().await? {
            to_program.send(message).await?;
        }
        to_program.finish().await
    };
    let back = async {
        while let Some(message) = program.recv().await? {
            to_guest.send(message).await?;
        }
        to_guest.finish().await
    };
    let _ = tokio::try_join!(out, back);
}
