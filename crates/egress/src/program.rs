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

/// Flows of all sandboxes of a host.
pub(crate) const MAX_FLOWS: usize = 64 * 1024;
/// And what is asked beside them, for which there is room whatever the guests do.
const MAX_ASKS: usize = 4096;

/// One end of the channel. The engine plays the agent in it, since it is who opens flows: so each holds no more in
/// memory than it does on the way from its guest.
pub(crate) fn end(side: Side) -> Config {
    let streams = MAX_FLOWS + MAX_ASKS;
    Config {
        side,
        epoch: 1,
        max_open: MAX_ASK,
        max_streams: streams,
        max_flows: streams,
        max_incoming: match side {
            Side::Host => 1024,
            Side::Agent => 0,
        },
    }
}

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
    let (_opener, mut incoming, pump) = Channel::new(end(Side::Host)).into_parts();
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

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use runtime_model::network::Network;
    use runtime_proto::channel::{ChannelError, FLOW_STEP, FLOW_WINDOW};
    use runtime_proto::guest::Flow;
    use runtime_proto::policy::Arm;

    use super::*;

    #[tokio::test]
    async fn asks_are_answered_and_a_flow_holds_no_more_than_one_of_a_guest() {
        let (ours, theirs) = StdStream::pair().unwrap();
        let program = tokio::spawn(run(theirs, Settings::default()));
        ours.set_nonblocking(true).unwrap();
        let (mut reader, mut writer) = UnixStream::from_std(ours).unwrap().into_split();
        let (engine, _none, pump) = Channel::new(end(Side::Agent)).into_parts();
        let pumping = tokio::spawn(async move { pump.run(&mut reader, &mut writer, &mut BytesMut::new()).await });
        let ask = |policy| encode(&PolicyAsk { sandbox: SandboxId::new_v4().to_string(), policy: Some(policy) });

        let network = serde_json::to_string(&Network::closed()).unwrap();
        let mut armed = engine.open(ask(Policy::Arm(Arm { version: 1, network }))).await.unwrap();
        assert_eq!(armed.recv().await, Ok(None));
        armed.finish().await.unwrap();

        // Its rules never come: nobody reads what is sent behind the head, until it is told so.
        let mut flow = engine.open(ask(Policy::Flow(Flow::default()))).await.unwrap();
        let sender = flow.sender();
        assert!(matches!(sender.send(Bytes::from(vec![0; FLOW_STEP + 1])).await, Err(ChannelError::TooLong(_))));
        sender.send(Bytes::from_static(b"CONNECT a.example.com:80 HTTP/1.1\r\n\r\n")).await.unwrap();
        let mut sent = 0;
        let fill = async {
            while sender.send(Bytes::from(vec![0; 1024])).await.is_ok() {
                sent += 1024;
            }
            std::future::pending::<()>().await;
        };
        let answer = tokio::select! {
            () = fill => unreachable!("it never ends"),
            answer = flow.recv() => answer.unwrap().unwrap(),
        };
        assert!(answer.starts_with(b"HTTP/1.1 503 "), "{answer:?}");
        assert!(sent > FLOW_WINDOW / 2 && sent < 3 * FLOW_WINDOW, "{sent}");
        drop((flow, engine));
        pumping.abort();
        program.await.unwrap().unwrap();
    }
}
