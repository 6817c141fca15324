//! One attachment of a host after another: hello, welcome, requests until the next hello. All state outlives them.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use runtime_proto::channel::{Channel, ChannelError, Config, Ended, Opened, Side, Stream};
use runtime_proto::guest::{
    Activity, Ask, ErrorCode, Event, GuestError, MAX_FLOWS, MAX_REQUEST, Nothing, Tell, Welcome, decode_request, encode,
};
use runtime_proto::{PROTOCOL, PROTOCOL_MIN, handshake};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::log::log;
use crate::process::requests;
use crate::{Agent, archive, connect, files, identity, memory, setup, shutdown, ssh, trace, uploads, watches};

/// Streams the host may have open: a process, its reader and a write for each, and as many file requests.
const MAX_STREAMS: usize = 4096;

/// Why a request has no answer: an error to tell, or nobody left to tell it to.
pub(crate) enum Failure {
    Told(GuestError),
    Gone,
}

pub(crate) type Answer = Result<Tell, Failure>;

impl From<GuestError> for Failure {
    fn from(error: GuestError) -> Self {
        Self::Told(error)
    }
}

impl From<ChannelError> for Failure {
    fn from(_: ChannelError) -> Self {
        Self::Gone
    }
}

pub(crate) fn done() -> Tell {
    Tell::Done(Nothing {})
}

pub(crate) async fn tell(stream: &Stream, tell: Tell) -> Result<(), ChannelError> {
    stream.send(encode(&Event::new(tell))).await
}

/// Serves hosts until the input ends, if it ever does.
pub(crate) async fn serve<R, W>(agent: &Arc<Agent>, reader: &mut R, writer: &mut W)
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let mut buf = BytesMut::new();
    let mut generation = 0;
    loop {
        let hello = match handshake::await_hello(reader, &mut buf).await {
            Ok(hello) => hello,
            Err(handshake::HandshakeError::Closed | handshake::HandshakeError::Io(_)) => return,
            Err(error) => {
                log!("a hello was not understood: {error}");
                continue;
            }
        };
        if hello.generation != generation {
            generation = hello.generation;
            identity::take(&hello);
        } else {
            identity::catch_up(&hello);
        }
        agent.is_now(hello.generation);
        agent.set_max_user_processes(hello.max_user_processes);
        if let Some(way_out) = hello.way_out {
            agent.way_out.tell(way_out);
        }
        let protocol = PROTOCOL.min(hello.protocol_max).max(PROTOCOL_MIN);
        let welcome = Welcome {
            nonce: hello.nonce.clone(),
            protocol,
            agent_version: env!("CARGO_PKG_VERSION").to_owned(),
            boot: agent.boot.clone(),
            time: handshake::wall_clock_ns(),
        };
        if handshake::welcome(writer, &welcome).await.is_err() {
            continue;
        }
        let config = Config {
            side: Side::Agent,
            epoch: hello.epoch,
            max_open: MAX_REQUEST,
            max_streams: MAX_STREAMS + MAX_FLOWS,
            max_flows: MAX_FLOWS,
            max_incoming: MAX_STREAMS,
        };
        let (opener, mut incoming, pump) = Channel::new(config).into_parts();
        agent.way_out.attach(Some(opener));
        let accept = async {
            while let Some(opened) = incoming.recv().await {
                tokio::spawn(answer(agent.clone(), opened));
            }
        };
        let ended = tokio::select! {
            ended = pump.run(reader, writer, &mut buf) => ended,
            () = accept => Ended::Closed,
        };
        agent.way_out.attach(None);
        if let Ended::Violation(why) = ended {
            log!("the host broke the protocol: {why}");
        }
    }
}

async fn answer(agent: Arc<Agent>, opened: Opened) {
    let Opened { first, mut stream } = opened;
    let told = match handle(&agent, first, &mut stream).await {
        Ok(Some(last)) => tell(&stream, last).await,
        Ok(None) => Ok(()),
        Err(Failure::Told(error)) => {
            if matches!(error.code(), ErrorCode::Busy | ErrorCode::Internal) && rustix::process::getpid().is_init() {
                setup::restore_limits();
            }
            tell(&stream, Tell::Error(error)).await
        }
        Err(Failure::Gone) => return,
    };
    if told.is_ok() && stream.finish().await.is_ok() {
        // The peer's own end, if it is on its way, must not meet a reset.
        let _ = tokio::time::timeout(Duration::from_secs(5), async { while let Ok(Some(_)) = stream.recv().await {} })
            .await;
    }
}

async fn handle(agent: &Arc<Agent>, first: Bytes, stream: &mut Stream) -> Result<Option<Tell>, Failure> {
    let request = decode_request(first)
        .map_err(|error| GuestError::new(ErrorCode::Invalid, format!("reading a request: {error}")))?;
    let Some(ask) = request.ask else {
        return Err(GuestError::new(ErrorCode::Unsupported, "this agent does not know the request").into());
    };
    let last = match ask {
        Ask::Exec(exec) => requests::exec(agent, exec, stream).await?,
        Ask::Spawn(spawn) => requests::spawn(agent, spawn, stream).await?,
        Ask::Follow(follow) => requests::follow(agent, follow, stream).await?,
        Ask::WriteStdin(write) => requests::write_stdin(agent, write, stream).await?,
        Ask::Signal(signal) => requests::signal(agent, signal).await?,
        Ask::ListProcesses(_) => {
            requests::list(agent, stream).await?;
            return Ok(None);
        }
        Ask::GetProcess(wanted) => requests::get(agent, &wanted.process_id).await?,
        Ask::ReadFile(wanted) => files::read::serve(agent, wanted, stream).await?,
        Ask::WriteFile(wanted) => files::write::serve(agent, wanted, stream).await?,
        Ask::ListFiles(wanted) => files::list::serve(agent, wanted, stream).await?,
        Ask::Stat(wanted) => files::change::stat(agent, wanted).await?,
        Ask::MakeDir(wanted) => files::change::make_dir(agent, wanted).await?,
        Ask::Remove(wanted) => files::remove::serve(agent, wanted).await?,
        Ask::Rename(wanted) => files::change::rename(agent, wanted).await?,
        Ask::Chmod(wanted) => files::change::chmod(agent, wanted).await?,
        Ask::KillLargest(_) => memory::kill_largest(agent).await?,
        // What an ended leader left in the background is at work as well.
        Ask::GetActivity(_) => {
            Tell::Activity(Activity { live_processes: (agent.table.live() + agent.table.left_behind()) as u32 })
        }
        Ask::StartUpload(wanted) => uploads::start_file(agent, wanted).await?,
        Ask::PutChunk(wanted) => uploads::put(agent, wanted, stream).await?,
        Ask::CommitUpload(wanted) => uploads::commit(agent, wanted).await?,
        Ask::AbortUpload(wanted) => uploads::abort(agent, wanted).await?,
        Ask::ReadArchive(wanted) => archive::requests::read(agent, wanted, stream).await?,
        Ask::WriteArchive(wanted) => archive::requests::write(agent, wanted, stream).await?,
        Ask::StartArchive(wanted) => uploads::start_archive(agent, wanted).await?,
        Ask::Resize(wanted) => requests::resize(agent, wanted).await?,
        Ask::Connect(wanted) => {
            connect::serve(wanted, stream).await?;
            return Ok(None);
        }
        Ask::StartWatch(wanted) => watches::start(agent, wanted).await?,
        Ask::ListWatches(_) => {
            watches::list(agent, stream).await?;
            return Ok(None);
        }
        Ask::FollowWatch(wanted) => watches::follow(agent, wanted, stream).await?,
        Ask::StopWatch(wanted) => watches::stop(agent, &wanted.watch_id).await?,
        Ask::Ssh(wanted) => {
            ssh::serve(agent, wanted, stream).await?;
            return Ok(None);
        }
        Ask::SetNetwork(wanted) => {
            agent.way_out.tell(wanted.way_out);
            done()
        }
        Ask::Shutdown(wanted) => shutdown::run(agent, Duration::from_millis(wanted.grace_ms)).await?,
        Ask::Sync(_) => {
            tokio::task::spawn_blocking(rustix::fs::sync)
                .await
                .map_err(|error| GuestError::new(ErrorCode::Internal, format!("writing to the disks: {error}")))?;
            done()
        }
        Ask::GetTraced(wanted) => trace::requests::get(agent, wanted, stream).await?,
        // Where the kernel turns out not to, the command that wants it is refused.
        Ask::CanTrace(_) => done(),
    };
    Ok(Some(last))
}
