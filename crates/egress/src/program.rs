//! The egress program: the gate in a process of its own, without rights, at the end of a socket.
//!
//! The engine's end of the socket is all it hears of the world, and its end is the program's. What a guest's bytes could
//! do to a parser here, they do to a process that owns nothing: no files, no sandboxes, no keys.

use std::io;
use std::os::unix::net::UnixStream as StdStream;
use std::sync::Arc;

use bytes::BytesMut;
use runtime_model::SandboxId;
use runtime_proto::channel::{Channel, Config, Opened, Side, Stream};
use runtime_proto::egress::{Egress, Rules};
use runtime_proto::guest::encode;
use runtime_proto::policy::{self, MAX_ASK, Policy, PolicyAsk, PolicyTell};
use tokio::net::UnixStream;

use crate::service::{Gate, Settings};

/// Flows of all sandboxes of a host, and what is asked beside them.
pub(crate) const MAX_STREAMS: usize = 64 * 1024;
pub(crate) const EPOCH: u32 = 1;

#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    #[error("taking the socket from the engine")]
    Socket(#[source] io::Error),
}

/// Serves the engine at the other end until that is gone.
pub async fn run(socket: StdStream, settings: Settings) -> Result<(), ProgramError> {
    socket.set_nonblocking(true).map_err(ProgramError::Socket)?;
    let socket = UnixStream::from_std(socket).map_err(ProgramError::Socket)?;
    let gate = Gate::new(settings);
    let config = Config {
        side: Side::Agent,
        epoch: EPOCH,
        max_open: MAX_ASK,
        max_streams: MAX_STREAMS,
        max_flows: 0,
        max_incoming: 1024,
    };
    let (_opener, mut incoming, pump) = Channel::new(config).into_parts();
    let (mut reader, mut writer) = socket.into_split();
    let mut unread = BytesMut::new();
    let serve = async {
        while let Some(opened) = incoming.recv().await {
            obey(&gate, opened);
        }
    };
    tokio::select! {
        _ = pump.run(&mut reader, &mut writer, &mut unread) => {}
        () = serve => {}
    }
    gate.close().await;
    Ok(())
}

/// One ask. What takes time goes into a task of the gate's, so that no other waits for it.
fn obey(gate: &Gate, Opened { first, stream }: Opened) {
    let Ok(PolicyAsk { sandbox, policy: Some(policy) }) = policy::decode(first) else { return };
    let Ok(id) = sandbox.parse::<SandboxId>() else { return };
    match policy {
        Policy::Flow(flow) => gate.serve(id, flow, stream),
        other => {
            let own = gate.clone();
            gate.spawn(async move { answer(&own, id, other, stream).await });
        }
    }
}

/// An ask that cannot be done is reset, by dropping its stream.
async fn answer(gate: &Gate, id: SandboxId, policy: Policy, stream: Stream) {
    match policy {
        Policy::Arm(arm) => {
            let Ok(network) = serde_json::from_str(&arm.network) else { return };
            let rules = Rules { version: arm.version, network: Arc::new(network) };
            if gate.arm(id, rules).await.is_err() {
                return;
            }
        }
        Policy::Disarm(_) => gate.disarm(id).await,
        Policy::Forget(_) => gate.forget(id).await,
        Policy::Decisions(page) => {
            let page = gate.decisions(id, page.before, page.limit as usize).await;
            for decision in page.decisions {
                let told = PolicyTell { decision: Some(decision.into()), ..PolicyTell::default() };
                if stream.send(encode(&told)).await.is_err() {
                    return;
                }
            }
            let last = PolicyTell { decision: None, more: page.more, total: page.total };
            if stream.send(encode(&last)).await.is_err() {
                return;
            }
        }
        Policy::Flow(_) => return,
    }
    finish(stream).await;
}

/// Ends our half, and waits for the engine to end its own, so that neither meets a reset.
async fn finish(mut stream: Stream) {
    if stream.finish().await.is_ok() {
        while let Ok(Some(_)) = stream.recv().await {}
    }
}
