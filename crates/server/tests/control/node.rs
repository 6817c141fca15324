//! A node whose machines are entries of a table. Its agent is at the other end of a real channel and speaks real
//! messages; it knows how many processes live, and nothing else.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::BytesMut;
use runtime_model::{Reason, SandboxId, SnapshotId};
use runtime_proto::channel::{Channel, Config, Side};
use runtime_proto::egress::{DecisionPage, Rules};
use runtime_proto::guest::{Activity, Ask, ErrorCode, Event, GuestError, Request, Tell, decode_request, encode};
use runtime_proto::node::{
    Capture, Captured, Disk, GuestStream, HostFacts, MachineStatus, Node, NodeError, NodeEvent, Order, Usage,
};
use tokio::sync::{broadcast, watch};

pub(crate) const MEMORY_MIB: u64 = 8192;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Machine {
    running: bool,
    paused: bool,
}

pub(crate) struct MemoryNode {
    machines: Mutex<HashMap<SandboxId, Machine>>,
    /// Starts go on only while this is true.
    gate: watch::Sender<bool>,
    /// What the next starts answer.
    refusals: Mutex<Vec<NodeError>>,
    starts: Mutex<Vec<(SandboxId, Disk)>>,
    /// What sandboxes were to be held to, in order.
    rules: Mutex<Vec<(SandboxId, Rules)>>,
    live_processes: Mutex<u32>,
    /// What the next wakes answer.
    wake_refusals: Mutex<Vec<NodeError>>,
    snapshots: Mutex<BTreeSet<SnapshotId>>,
    /// What the next captures answer.
    capture_refusals: Mutex<Vec<NodeError>>,
    /// Captures go on only while this is true.
    capture_gate: watch::Sender<bool>,
    /// Stops too.
    stop_gate: watch::Sender<bool>,
    asked: AtomicUsize,
    events: broadcast::Sender<NodeEvent>,
}

impl MemoryNode {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            machines: Mutex::default(),
            gate: watch::Sender::new(true),
            refusals: Mutex::default(),
            starts: Mutex::default(),
            rules: Mutex::default(),
            live_processes: Mutex::new(0),
            wake_refusals: Mutex::default(),
            snapshots: Mutex::default(),
            capture_refusals: Mutex::default(),
            capture_gate: watch::Sender::new(true),
            stop_gate: watch::Sender::new(true),
            asked: AtomicUsize::new(0),
            events: broadcast::channel(16).0,
        })
    }

    pub(crate) fn hold_starts(&self, hold: bool) {
        self.gate.send_replace(!hold);
    }

    pub(crate) fn hold_stops(&self, hold: bool) {
        self.stop_gate.send_replace(!hold);
    }

    pub(crate) fn refuse_next_start(&self, error: NodeError) {
        self.refusals.lock().unwrap().push(error);
    }

    pub(crate) fn refuse_next_wake(&self, error: NodeError) {
        self.wake_refusals.lock().unwrap().push(error);
    }

    pub(crate) fn hold_captures(&self, hold: bool) {
        self.capture_gate.send_replace(!hold);
    }

    pub(crate) fn refuse_next_capture(&self, error: NodeError) {
        self.capture_refusals.lock().unwrap().push(error);
    }

    pub(crate) fn kept(&self) -> Vec<SnapshotId> {
        self.snapshots.lock().unwrap().iter().copied().collect()
    }

    pub(crate) fn starts(&self) -> Vec<(SandboxId, Disk)> {
        self.starts.lock().unwrap().clone()
    }

    /// The rules a sandbox was given, by starts and by changes.
    pub(crate) fn rules_of(&self, id: &str) -> Vec<Rules> {
        let id: SandboxId = id.parse().unwrap();
        self.rules.lock().unwrap().iter().filter(|(of, _)| *of == id).map(|(_, rules)| rules.clone()).collect()
    }

    pub(crate) fn set_live_processes(&self, count: u32) {
        *self.live_processes.lock().unwrap() = count;
    }

    /// Requests to agents so far.
    pub(crate) fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }

    /// As if its helper process was killed; nobody is told.
    pub(crate) fn kill_silently(&self, id: &str) {
        let id: SandboxId = id.parse().unwrap();
        let mut machines = self.machines.lock().unwrap();
        let machine = machines.get_mut(&id).unwrap();
        (machine.running, machine.paused) = (false, false);
    }

    pub(crate) fn kill(&self, id: &str) {
        self.kill_silently(id);
        let id = id.parse().unwrap();
        let _ = self.events.send(NodeEvent::Ended { id, reason: Reason::HostStopped });
    }

    pub(crate) fn add_machine(&self, id: SandboxId, running: bool) {
        self.machines.lock().unwrap().insert(id, Machine { running, paused: false });
    }

    pub(crate) fn has(&self, id: &str) -> bool {
        self.machines.lock().unwrap().contains_key(&id.parse::<SandboxId>().unwrap())
    }

    pub(crate) fn running(&self, id: &str) -> bool {
        self.machines.lock().unwrap().get(&id.parse::<SandboxId>().unwrap()).is_some_and(|machine| machine.running)
    }

    pub(crate) fn count(&self) -> usize {
        self.machines.lock().unwrap().len()
    }
}

#[async_trait]
impl Node for MemoryNode {
    async fn start(&self, order: Order) -> Result<(), NodeError> {
        self.starts.lock().unwrap().push((order.id, order.disk));
        self.rules.lock().unwrap().push((order.id, order.rules.clone()));
        self.gate.subscribe().wait_for(|open| *open).await.unwrap();
        if let Some(error) = self.refusals.lock().unwrap().pop() {
            // Half made: what the undo has to take away.
            self.machines.lock().unwrap().insert(order.id, Machine { running: false, paused: false });
            return Err(error);
        }
        if order.disk == Disk::Kept && !self.machines.lock().unwrap().contains_key(&order.id) {
            return Err(NodeError::DiskGone);
        }
        if let Disk::Snapshot(snapshot) = order.disk
            && !self.snapshots.lock().unwrap().contains(&snapshot)
        {
            return Err(NodeError::SnapshotGone);
        }
        self.machines.lock().unwrap().insert(order.id, Machine { running: true, paused: false });
        Ok(())
    }

    async fn pause(&self, id: SandboxId) -> Result<(), NodeError> {
        match self.machines.lock().unwrap().get_mut(&id) {
            Some(machine) if machine.running || machine.paused => {
                (machine.running, machine.paused) = (false, true);
                Ok(())
            }
            _ => Err(NodeError::NotRunning),
        }
    }

    async fn wake(&self, order: Order) -> Result<(), NodeError> {
        self.rules.lock().unwrap().push((order.id, order.rules.clone()));
        self.gate.subscribe().wait_for(|open| *open).await.unwrap();
        if let Some(error) = self.wake_refusals.lock().unwrap().pop() {
            return Err(error);
        }
        match self.machines.lock().unwrap().get_mut(&order.id) {
            Some(machine) if machine.running || machine.paused => {
                (machine.running, machine.paused) = (true, false);
                Ok(())
            }
            _ => Err(NodeError::MemoryGone("there is none".to_owned())),
        }
    }

    async fn stop(&self, id: SandboxId) -> Result<(), NodeError> {
        self.stop_gate.subscribe().wait_for(|open| *open).await.unwrap();
        if let Some(machine) = self.machines.lock().unwrap().get_mut(&id) {
            (machine.running, machine.paused) = (false, false);
        }
        Ok(())
    }

    async fn remove(&self, id: SandboxId) -> Result<(), NodeError> {
        self.machines.lock().unwrap().remove(&id);
        Ok(())
    }

    async fn capture(&self, wanted: Capture) -> Result<Captured, NodeError> {
        self.capture_gate.subscribe().wait_for(|open| *open).await.unwrap();
        if let Some(error) = self.capture_refusals.lock().unwrap().pop() {
            return Err(error);
        }
        match self.machines.lock().unwrap().get_mut(&wanted.id) {
            // It stands still until it is woken.
            Some(machine) if machine.running || machine.paused => (machine.running, machine.paused) = (false, true),
            Some(_) if !wanted.memory => {}
            _ => return Err(NodeError::NotRunning),
        }
        self.snapshots.lock().unwrap().insert(wanted.snapshot);
        Ok(Captured { stored_bytes: 4096 })
    }

    async fn drop_snapshot(&self, id: SnapshotId) -> Result<(), NodeError> {
        self.snapshots.lock().unwrap().remove(&id);
        Ok(())
    }

    async fn snapshots(&self) -> Result<Vec<SnapshotId>, NodeError> {
        Ok(self.kept())
    }

    async fn set_disk_limit(&self, _id: SandboxId, _disk_mib: u64) -> Result<(), NodeError> {
        Ok(())
    }

    async fn set_network(&self, id: SandboxId, rules: Rules) -> Result<(), NodeError> {
        self.rules.lock().unwrap().push((id, rules));
        Ok(())
    }

    async fn decisions(&self, _: SandboxId, _: Option<u64>, _: usize) -> Result<DecisionPage, NodeError> {
        Ok(DecisionPage::default())
    }

    async fn ask(&self, id: SandboxId, request: Request) -> Result<GuestStream, NodeError> {
        if !self.running(&id.to_string()) {
            return Err(NodeError::NotRunning);
        }
        self.asked.fetch_add(1, Ordering::Relaxed);
        let (host_end, agent_end) = tokio::io::duplex(64 * 1024);
        let config =
            |side| Config { side, epoch: 1, max_open: 1 << 20, max_streams: 16, max_flows: 8, max_incoming: 16 };
        let (opener, _, host) = Channel::new(config(Side::Host)).into_parts();
        let (_, mut asked, agent) = Channel::new(config(Side::Agent)).into_parts();
        for (pump, end) in [(host, host_end), (agent, agent_end)] {
            tokio::spawn(async move {
                let (mut reader, mut writer) = tokio::io::split(end);
                pump.run(&mut reader, &mut writer, &mut BytesMut::new()).await
            });
        }
        let live_processes = *self.live_processes.lock().unwrap();
        tokio::spawn(async move {
            while let Some(opened) = asked.recv().await {
                let tell = match decode_request(opened.first).map(|request| request.ask) {
                    Ok(Some(Ask::GetActivity(_))) => Tell::Activity(Activity { live_processes }),
                    _ => Tell::Error(GuestError::new(ErrorCode::Unsupported, "not this agent")),
                };
                opened.stream.send(encode(&Event::new(tell))).await.unwrap();
                opened.stream.finish().await.unwrap();
            }
        });
        Ok(GuestStream::new(opener.open(encode(&request)).await?))
    }

    async fn machines(&self) -> Result<Vec<MachineStatus>, NodeError> {
        let machines = self.machines.lock().unwrap();
        Ok(machines
            .iter()
            .map(|(id, machine)| {
                let Machine { running, paused } = *machine;
                MachineStatus { id: *id, running, paused, disk: true }
            })
            .collect())
    }

    async fn usage(&self, _id: SandboxId) -> Result<Usage, NodeError> {
        Ok(Usage::default())
    }

    fn events(&self) -> broadcast::Receiver<NodeEvent> {
        self.events.subscribe()
    }

    fn facts(&self) -> HostFacts {
        HostFacts {
            engine: "memory",
            emulated: true,
            cores: 2,
            memory_mib: MEMORY_MIB,
            image: "none".to_owned(),
            pauses: true,
            grows_disk: true,
        }
    }
}
