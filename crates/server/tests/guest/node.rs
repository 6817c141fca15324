//! A node whose machines are agents on this host, each at the other end of two pipes.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use bytes::Bytes;
use runtime_model::SandboxId;
use runtime_proto::channel::{Channel, Config, Opener, Side};
use runtime_proto::egress::{DecisionPage, Rules};
use runtime_proto::guest::{Hello, Request, encode};
use runtime_proto::node::{GuestStream, HostFacts, MachineStatus, Node, NodeError, NodeEvent, Order, Usage};
use runtime_proto::{PROTOCOL, PROTOCOL_MIN, handshake};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::{Mutex, broadcast, oneshot};
use tokio::task::JoinHandle;

static EPOCH: AtomicU32 = AtomicU32::new(1);

/// Built once per test process; a build that is fresh costs nothing. Blocks as long as another build does.
pub(crate) fn agent_binary() -> &'static PathBuf {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        let built = std::process::Command::new(env!("CARGO"))
            .args(["build", "--package", "runtime-agent", "--message-format", "json"])
            .stderr(Stdio::inherit())
            .output()
            .expect("cargo runs");
        assert!(built.status.success(), "the agent does not build");
        String::from_utf8(built.stdout)
            .expect("cargo speaks UTF-8")
            .lines()
            .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
            .filter_map(|message| message["executable"].as_str().map(PathBuf::from))
            .find(|path| path.ends_with("runtime-agent"))
            .expect("cargo names the agent")
    })
}

struct Machine {
    host: Opener,
    _child: Child,
    pump: JoinHandle<(ChildStdin, ChildStdout)>,
    hang_up: oneshot::Sender<()>,
}

pub(crate) struct LocalNode {
    machines: Mutex<HashMap<SandboxId, Machine>>,
    events: broadcast::Sender<NodeEvent>,
}

async fn attach(mut stdin: ChildStdin, mut stdout: ChildStdout, child: Child) -> Machine {
    let epoch = EPOCH.fetch_add(1, Ordering::Relaxed);
    let hello = Hello {
        nonce: Bytes::from(epoch.to_le_bytes().repeat(4)),
        protocol_min: PROTOCOL_MIN,
        protocol_max: PROTOCOL,
        sandbox_id: "test".to_owned(),
        generation: 1,
        epoch,
        ..Hello::default()
    };
    let (_, mut rest) = handshake::greet(&mut stdout, &mut stdin, &hello).await.expect("the agent welcomes");
    let config =
        Config { side: Side::Host, epoch, max_open: 1 << 20, max_streams: 4096, max_flows: 64, max_incoming: 4096 };
    let (host, incoming, pump) = Channel::new(config).into_parts();
    let (hang_up, hung_up) = oneshot::channel::<()>();
    let pump = tokio::spawn(async move {
        let _incoming = incoming;
        tokio::select! {
            _ = pump.run(&mut stdout, &mut stdin, &mut rest) => {}
            _ = hung_up => {}
        }
        (stdin, stdout)
    });
    Machine { host, _child: child, pump, hang_up }
}

impl LocalNode {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { machines: Mutex::default(), events: broadcast::channel(16).0 })
    }

    /// Breaks the channel of every machine in the middle of whatever it does, and makes another.
    pub(crate) async fn break_channels(&self) {
        let mut machines = self.machines.lock().await;
        for (id, machine) in machines.drain().collect::<Vec<_>>() {
            let _ = machine.hang_up.send(());
            let (stdin, stdout) = machine.pump.await.expect("the pump ends");
            machines.insert(id, attach(stdin, stdout, machine._child).await);
        }
    }
}

#[async_trait]
impl Node for LocalNode {
    async fn start(&self, order: Order) -> Result<(), NodeError> {
        let mut machines = self.machines.lock().await;
        if machines.contains_key(&order.id) {
            return Ok(());
        }
        let mut child = Command::new(agent_binary())
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| NodeError::Failed(format!("starting the agent: {error}")))?;
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(NodeError::Failed("the agent has no pipes".to_owned()));
        };
        machines.insert(order.id, attach(stdin, stdout, child).await);
        Ok(())
    }

    async fn pause(&self, _id: SandboxId) -> Result<(), NodeError> {
        Err(NodeError::Unsupported("pausing"))
    }

    async fn wake(&self, _order: Order) -> Result<(), NodeError> {
        Err(NodeError::Unsupported("pausing"))
    }

    /// An agent that is not the first process ends with its input, and ends what it started.
    async fn stop(&self, id: SandboxId) -> Result<(), NodeError> {
        self.machines.lock().await.remove(&id);
        Ok(())
    }

    async fn remove(&self, id: SandboxId) -> Result<(), NodeError> {
        self.stop(id).await
    }

    async fn set_disk_limit(&self, _id: SandboxId, _disk_mib: u64) -> Result<(), NodeError> {
        Ok(())
    }

    async fn set_network(&self, _: SandboxId, _: Rules) -> Result<(), NodeError> {
        Ok(())
    }

    async fn decisions(&self, _: SandboxId, _: Option<u64>, _: usize) -> Result<DecisionPage, NodeError> {
        Ok(DecisionPage::default())
    }

    async fn ask(&self, id: SandboxId, request: Request) -> Result<GuestStream, NodeError> {
        let host = self.machines.lock().await.get(&id).ok_or(NodeError::NotRunning)?.host.clone();
        Ok(GuestStream::new(host.open(encode(&request)).await?))
    }

    async fn machines(&self) -> Result<Vec<MachineStatus>, NodeError> {
        let machines = self.machines.lock().await;
        Ok(machines.keys().map(|id| MachineStatus { id: *id, running: true, paused: false, disk: true }).collect())
    }

    async fn usage(&self, _id: SandboxId) -> Result<Usage, NodeError> {
        Ok(Usage::default())
    }

    fn events(&self) -> broadcast::Receiver<NodeEvent> {
        self.events.subscribe()
    }

    fn facts(&self) -> HostFacts {
        HostFacts {
            engine: "gvisor",
            emulated: false,
            cores: 2,
            memory_mib: 1 << 20,
            image: "test".to_owned(),
            pauses: false,
            grows_disk: true,
        }
    }
}
