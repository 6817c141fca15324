//! One connection: its bytes to the host and back.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use runtime_proto::channel::{ChannelError, FLOW_STEP, Opener, Stream};
use runtime_proto::guest::{Call, Flow, Relay, Want, encode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::who::{self, Who};
use crate::Agent;

/// How long a connection waits for a host that is being attached again.
const HOST_PATIENCE: Duration = Duration::from_secs(20);

pub(super) async fn relay(agent: &Arc<Agent>, mut socket: TcpStream, peer: SocketAddr) {
    let _ = socket.set_nodelay(true);
    let Ok(local) = socket.local_addr() else { return };
    let who = who::find(agent, local, peer).await;
    let Some(stream) = open(agent, who).await else { return };
    // However it ends, dropping both ends tells both sides.
    let _ = carry(&mut socket, stream).await;
}

async fn open(agent: &Agent, who: Who) -> Option<Stream> {
    let flow = Flow { relay: Relay::Proxy as i32, pid: who.pid, program: who.program, process_id: who.process_id };
    let call = encode(&Call { want: Some(Want::Flow(flow)) });
    let mut host = agent.way_out.host.subscribe();
    let opened = async {
        loop {
            let usable = |opener: &Option<Opener>| opener.as_ref().is_some_and(|opener| !opener.is_closed());
            let opener = host.wait_for(usable).await.ok()?.clone()?;
            match opener.open(call.clone()).await {
                Ok(stream) => return Some(stream),
                // It went between; the next is waited for.
                Err(ChannelError::Closed) => tokio::task::yield_now().await,
                Err(_) => return None,
            }
        }
    };
    tokio::time::timeout(HOST_PATIENCE, opened).await.ok().flatten()
}

/// Until both directions have ended, or the stream has.
async fn carry(socket: &mut TcpStream, mut stream: Stream) -> Result<(), ChannelError> {
    let (mut reader, mut writer) = socket.split();
    let sender = stream.sender();
    let out = async {
        let mut buffer = BytesMut::new();
        loop {
            buffer.reserve(FLOW_STEP);
            match (&mut reader).take(FLOW_STEP as u64).read_buf(&mut buffer).await {
                Ok(0) => return sender.finish().await,
                Ok(_) => sender.send(buffer.split().freeze()).await?,
                Err(_) => return Err(ChannelError::Reset),
            }
        }
    };
    let back = async {
        while let Some(message) = stream.recv().await? {
            if writer.write_all(&message).await.is_err() {
                return Err(ChannelError::Reset);
            }
        }
        let _ = writer.shutdown().await;
        Ok(())
    };
    tokio::try_join!(out, back).map(drop)
}
