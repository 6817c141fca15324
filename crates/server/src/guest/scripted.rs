//! A node for tests whose agent is a list of scripts: each request gets a channel of its own over a pipe, and the next
//! script plays the agent at its other end. Everything between is the real channel.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::BytesMut;
use runtime_model::network::Network;
use runtime_model::{SandboxId, Shape, State};
use runtime_proto::channel::{Channel, Config, Side, Stream};
use runtime_proto::egress::{DecisionPage, Rules};
use runtime_proto::guest::{
    Ask, Chunk, Event, GuestError, MAX_REQUEST, Output, Process, ProcessState, Request, Tell, decode_input,
    decode_request, encode,
};
use runtime_proto::node::{GuestStream, HostFacts, MachineStatus, Node, NodeError, NodeEvent, Order, Usage};
use runtime_store::{Env, OnLimit, SandboxRow, UserKind};
use tokio::sync::broadcast;
use tokio::task::JoinHandle;

use super::gateway::Guest;

type Script = Box<dyn FnOnce(Agent) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send>;

/// The agent's end of one request.
pub(super) struct Agent {
    pub(super) stream: Stream,
    pump: JoinHandle<()>,
}

impl Agent {
    /// Fails silently once the host has let go: the test sees that on its side.
    pub(super) async fn tell(&self, tell: Tell) -> bool {
        self.stream.send(encode(&Event::new(tell))).await.is_ok()
    }

    pub(super) async fn chunk(&self, stream: Output, offset: u64, data: &[u8]) -> bool {
        self.tell(Tell::Chunk(Chunk { stream: stream as i32, offset, data: data.to_vec().into() })).await
    }

    pub(super) async fn input(&mut self) -> Vec<u8> {
        let mut all = Vec::new();
        while let Ok(Some(message)) = self.stream.recv().await {
            all.extend_from_slice(&decode_input(message).expect("the host sends inputs").data);
        }
        all
    }

    /// The channel breaks, after what was told has left: on the one thread of a test every other task has had its turn.
    pub(super) async fn cut(self) {
        for _ in 0..64 {
            tokio::task::yield_now().await;
        }
        self.pump.abort();
    }

    /// Ends the answer, and stays until the host has it.
    pub(super) async fn end(mut self) {
        let _ = self.stream.finish().await;
        while let Ok(Some(_)) = self.stream.recv().await {}
    }

    pub(super) async fn refuse(self, error: GuestError) {
        self.tell(Tell::Error(error)).await;
        self.end().await;
    }
}

pub(super) struct Scripted {
    scripts: Mutex<VecDeque<Script>>,
    asked: Mutex<Vec<Ask>>,
    events: broadcast::Sender<NodeEvent>,
}

pub(super) fn script<F>(play: impl FnOnce(Agent) -> F + Send + 'static) -> Script
where
    F: Future<Output = ()> + Send + 'static,
{
    Box::new(move |agent| Box::pin(play(agent)))
}

impl Scripted {
    pub(super) fn new(scripts: Vec<Script>) -> Arc<Self> {
        Arc::new(Self {
            scripts: Mutex::new(scripts.into()),
            asked: Mutex::new(Vec::new()),
            events: broadcast::channel(1).0,
        })
    }

    pub(super) fn asked(&self) -> Vec<Ask> {
        self.asked.lock().unwrap().clone()
    }
}

#[async_trait]
impl Node for Scripted {
    async fn ask(&self, _id: SandboxId, request: Request) -> Result<GuestStream, NodeError> {
        let (ours, theirs) = tokio::io::duplex(64 * 1024);
        let config =
            |side| Config { side, epoch: 1, max_open: MAX_REQUEST, max_streams: 8, max_flows: 0, max_incoming: 8 };
        let (host, host_in, host_pump) = Channel::new(config(Side::Host)).into_parts();
        let (agent, mut agent_in, agent_pump) = Channel::new(config(Side::Agent)).into_parts();
        tokio::spawn(async move {
            let (mut reader, mut writer) = tokio::io::split(ours);
            let _kept = host_in;
            host_pump.run(&mut reader, &mut writer, &mut BytesMut::new()).await;
        });
        let pump = tokio::spawn(async move {
            let (mut reader, mut writer) = tokio::io::split(theirs);
            let _kept = agent;
            agent_pump.run(&mut reader, &mut writer, &mut BytesMut::new()).await;
        });
        let stream = host.open(encode(&request)).await?;
        let opened = agent_in.recv().await.expect("the request arrives");
        self.asked.lock().unwrap().push(decode_request(opened.first).expect("it decodes").ask.expect("it asks"));
        let Some(script) = self.scripts.lock().unwrap().pop_front() else {
            return Err(NodeError::Channel(runtime_proto::channel::ChannelError::Closed));
        };
        tokio::spawn(async move {
            // Both sides of the channel live as long as the script plays.
            let _kept = (host, agent_in);
            script(Agent { stream: opened.stream, pump }).await;
        });
        Ok(GuestStream::new(stream))
    }

    async fn start(&self, _order: Order) -> Result<(), NodeError> {
        Err(NodeError::NotRunning)
    }
    async fn pause(&self, _id: SandboxId) -> Result<(), NodeError> {
        Err(NodeError::NotRunning)
    }
    async fn wake(&self, _order: Order) -> Result<(), NodeError> {
        Err(NodeError::NotRunning)
    }
    async fn stop(&self, _id: SandboxId) -> Result<(), NodeError> {
        Err(NodeError::NotRunning)
    }
    async fn remove(&self, _id: SandboxId) -> Result<(), NodeError> {
        Err(NodeError::NotRunning)
    }
    async fn set_disk_limit(&self, _id: SandboxId, _disk_mib: u64) -> Result<(), NodeError> {
        Err(NodeError::NotRunning)
    }

    async fn set_network(&self, _: SandboxId, _: Rules) -> Result<(), NodeError> {
        Ok(())
    }

    async fn decisions(&self, _: SandboxId, _: Option<u64>, _: usize) -> Result<DecisionPage, NodeError> {
        Ok(DecisionPage::default())
    }
    async fn machines(&self) -> Result<Vec<MachineStatus>, NodeError> {
        Ok(Vec::new())
    }
    async fn usage(&self, _id: SandboxId) -> Result<Usage, NodeError> {
        Err(NodeError::NotRunning)
    }
    fn events(&self) -> broadcast::Receiver<NodeEvent> {
        self.events.subscribe()
    }
    fn facts(&self) -> HostFacts {
        HostFacts {
            engine: "scripted",
            emulated: false,
            cores: 1,
            memory_mib: 1024,
            image: String::new(),
            pauses: false,
            grows_disk: true,
        }
    }
}

pub(super) fn guest(node: &Arc<Scripted>) -> Guest {
    let id = SandboxId::nil();
    Guest::new(node.clone(), id, Arc::new(row(id)))
}

fn row(id: SandboxId) -> SandboxRow {
    SandboxRow {
        id,
        credential: runtime_model::CredentialId::nil(),
        name: None,
        labels: Default::default(),
        env: Env::default(),
        user: UserKind::Sandbox,
        region: String::new(),
        shape: Shape::default(),
        cpu_reserved: false,
        timeout_seconds: 0,
        on_limit: OnLimit::Stop,
        idle_seconds: 0,
        auto_wake: true,
        persistent: false,
        max_total_cost_micros: None,
        image: None,
        snapshot: None,
        secrets: None,
        network: Network::open(),
        network_version: 1,
        network_updated_at: None,
        engine: "scripted".to_owned(),
        state: State::Running,
        reason: None,
        operation: None,
        generation: 1,
        created_at: 0,
        ready_at: Some(0),
        last_active_at: None,
        ends_at: None,
        ended_at: None,
        paused_at: None,
        retention_days: None,
        disk_kept: true,
        memory_restored: None,
        charged_micros: 0,
        held_micros: 0,
    }
}

pub(super) fn process(state: ProcessState, exit_code: Option<i32>) -> Process {
    Process { id: "p".to_owned(), state: state as i32, exit_code, ..Process::default() }
}
