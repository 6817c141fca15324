//! The requests about processes, each answered on its stream.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use runtime_proto::channel::{ChannelError, Sender, Stream};
use runtime_proto::guest::{
    Chunk, DATA_STEP, ErrorCode, Exec, ExecDone, Follow, GuestError, Lost, Output as Which, Resize, Signal, Spawn,
    Tell, WriteStdin, Written, decode_input,
};

use super::launch::{Wish, start};
use super::output::{Heads, Piece, Reader};
use super::supervise::signal_tree;
use super::{Phase, Proc, terminal};
use crate::serve::{Answer, tell};
use crate::{Agent, setup, tree};

/// Input that one `WriteStdin` may bring.
const MAX_WRITE: usize = 1024 * 1024;
/// What both heads may take to travel with the end, in one frame.
const INLINE: usize = 40 * 1024;
const SIGWINCH: i32 = 28;
const LOOK_EVERY: Duration = Duration::from_secs(5);
const MAX_HEAD: u64 = 8 * 1024 * 1024;

pub(crate) async fn exec(agent: &Arc<Agent>, exec: Exec, stream: &mut Stream) -> Answer {
    let Some(command) = exec.command else {
        return Err(GuestError::new(ErrorCode::Invalid, "exec: the command is missing").into());
    };
    let wish = Wish {
        exec: true,
        stdin: exec.has_stdin,
        head_limit: exec.head_limit.min(MAX_HEAD) as usize,
        ..Wish::default()
    };
    let (proc, attached) = start(agent, command, wish).await?;
    if exec.has_stdin {
        feed_until_settled(&proc, stream).await?;
    }
    tokio::select! {
        biased;
        () = proc.settled() => {}
        gone = hung_up(stream) => return Err(gone.into()),
    }
    let process = Some(describe(&proc, attached).await);
    let Heads { stdout: (stdout, stdout_truncated), stderr: (stderr, stderr_truncated) } = proc.output.heads();
    let mut done = ExecDone { process, stdout_truncated, stderr_truncated, ..ExecDone::default() };
    if stdout.len() + stderr.len() <= INLINE {
        done.stdout = stdout;
        done.stderr = stderr;
    } else {
        for (which, mut data) in [(Which::Stdout, stdout), (Which::Stderr, stderr)] {
            while !data.is_empty() {
                let piece = data.split_to(data.len().min(DATA_STEP));
                tell(stream, Tell::Chunk(Chunk { stream: which as i32, offset: 0, data: piece })).await?;
            }
        }
    }
    Ok(Tell::ExecDone(done))
}

pub(crate) async fn spawn(agent: &Arc<Agent>, spawn: Spawn, stream: &mut Stream) -> Answer {
    let Some(command) = spawn.command else {
        return Err(GuestError::new(ErrorCode::Invalid, "spawn: the command is missing").into());
    };
    let wish = Wish {
        exec: spawn.exec,
        stdin: spawn.stdin_pipe || spawn.has_stdin,
        pty: spawn.pty,
        binary: spawn.binary,
        head_limit: 0,
    };
    let (proc, attached) = start(agent, command, wish).await?;
    if spawn.has_stdin {
        tell(stream, Tell::Process(describe(&proc, attached).await)).await?;
        feed_until_settled(&proc, stream).await?;
    }
    Ok(Tell::Process(describe(&proc, attached).await))
}

/// Gives what follows the request as standard input, from its first byte: a resend is accepted once.
async fn feed_until_settled(proc: &Arc<Proc>, stream: &mut Stream) -> Result<(), ChannelError> {
    let mut offset = 0;
    loop {
        let message = tokio::select! {
            biased;
            message = stream.recv() => message?,
            () = proc.settled() => return Ok(()),
        };
        let Some(message) = message else {
            let _ = proc.stdin.write(offset, &[], true);
            return Ok(());
        };
        let Ok(input) = decode_input(message) else { return Err(ChannelError::Reset) };
        if !proc.stdin.write_all(offset, &input.data).await {
            // It reads no more; the rest is taken and dropped, so that the host is not held up.
            while stream.recv().await?.is_some() {}
            return Ok(());
        }
        offset += input.data.len() as u64;
    }
}

/// The same after the host has sent all: by looking now and then.
pub(crate) async fn given_up(sender: Sender) {
    while !sender.is_closed() {
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Completes only when the host gave the stream up.
pub(crate) async fn hung_up(stream: &mut Stream) -> ChannelError {
    loop {
        match stream.recv().await {
            Err(gone) => return gone,
            Ok(Some(_)) => {}
            // Finished sending is not gone; but no sign of a reset can come this way any more.
            Ok(None) => return std::future::pending().await,
        }
    }
}

pub(crate) async fn follow(agent: &Arc<Agent>, follow: Follow, stream: &mut Stream) -> Answer {
    let proc = agent.table.get(&follow.process_id)?;
    proc.begun().await?;
    let (end, _) = proc.output.extent();
    if follow.cursor > end {
        let message =
            format!("following process {}: the cursor {} is past its output of {end} bytes", proc.id, follow.cursor);
        return Err(GuestError::new(ErrorCode::Invalid, message).into());
    }
    let reader = proc.output.attach(follow.cursor);
    let mut cursor = follow.cursor;
    if follow.once || follow.wait_ms > 0 {
        let wait = Duration::from_millis(follow.wait_ms);
        tokio::select! {
            _ = tokio::time::timeout(wait, reader.wait(cursor)) => {}
            gone = hung_up(stream) => return Err(gone.into()),
        }
        // What is there now; a process that writes faster than this is read cannot hold the poll.
        let (until, _) = proc.output.extent();
        while cursor < until && send_next(&reader, &mut cursor, stream).await? {}
    } else {
        loop {
            tokio::select! {
                () = reader.wait(cursor) => {}
                gone = hung_up(stream) => return Err(gone.into()),
            }
            if !send_next(&reader, &mut cursor, stream).await? {
                break;
            }
        }
        proc.settled().await;
    }
    drop(reader);
    Ok(Tell::Process(describe(&proc, false).await))
}

/// Sends what stands at the cursor and moves it; false at the end.
async fn send_next(reader: &Reader<'_>, cursor: &mut u64, stream: &mut Stream) -> Result<bool, ChannelError> {
    let next = match reader.look(*cursor) {
        Piece::Wait => return Ok(true),
        Piece::End => return Ok(false),
        Piece::Lost { dropped, resume_at } => {
            tell(stream, Tell::Lost(Lost { dropped, resume_at })).await?;
            resume_at
        }
        Piece::Chunk { which, offset, data } => {
            let next = offset + data.len() as u64;
            tell(stream, Tell::Chunk(Chunk { stream: which as i32, offset, data })).await?;
            next
        }
    };
    *cursor = next;
    reader.advance(next);
    Ok(true)
}

pub(crate) async fn write_stdin(agent: &Arc<Agent>, write: WriteStdin, stream: &mut Stream) -> Answer {
    let proc = agent.table.get(&write.process_id)?;
    let mut data = Vec::new();
    while let Some(message) = stream.recv().await? {
        let piece = decode_input(message).map(|input| input.data).unwrap_or_else(|_| Bytes::new());
        data.extend_from_slice(&piece);
        if data.len() > MAX_WRITE {
            return Err(GuestError::new(ErrorCode::Invalid, "writing standard input: more than 1 MiB at once").into());
        }
    }
    let written = if write.append {
        // A terminal that nobody reads holds up whoever types, not the others.
        tokio::select! {
            written = proc.stdin.append(&data) => written,
            () = given_up(stream.sender()) => return Err(ChannelError::Reset.into()),
        }
    } else {
        proc.stdin.write(write.offset, &data, write.eof)
    };
    match written {
        Ok(offset) => Ok(Tell::Written(Written { offset })),
        Err(error) => {
            let message = format!("writing to process {}: {error}", proc.id);
            Err(GuestError::new(ErrorCode::Invalid, message).into())
        }
    }
}

pub(crate) async fn resize(agent: &Arc<Agent>, wanted: Resize) -> Answer {
    let proc = agent.table.get(&wanted.process_id)?;
    let invalid = |why: &str| GuestError::new(ErrorCode::Invalid, format!("resizing process {}: {why}", proc.id));
    let size = wanted.size.ok_or_else(|| invalid("the size is missing"))?;
    if !proc.pty {
        return Err(invalid("it has no terminal").into());
    }
    proc.begun().await?;
    // One that has ended has nothing to resize, and that is fine.
    match proc.with_terminal(|terminal| terminal::resize(terminal, size)) {
        Some(Err(error)) => return Err(invalid(&error.to_string()).into()),
        // gVisor keeps the size and tells nobody; whoever does not care ignores the signal.
        Some(Ok(())) if setup::user_space_kernel() => signal_tree(&proc, SIGWINCH).await,
        Some(Ok(())) | None => {}
    }
    Ok(crate::serve::done())
}

pub(crate) async fn signal(agent: &Arc<Agent>, signal: Signal) -> Answer {
    let proc = agent.table.get(&signal.process_id)?;
    if !(1..=31).contains(&signal.signal) {
        let message = format!("signalling process {}: there is no signal {}", proc.id, signal.signal);
        return Err(GuestError::new(ErrorCode::Invalid, message).into());
    }
    proc.begun().await?;
    signal_tree(&proc, signal.signal).await;
    Ok(crate::serve::done())
}

pub(crate) async fn list(agent: &Arc<Agent>, stream: &mut Stream) -> Result<(), crate::serve::Failure> {
    for proc in agent.table.list() {
        if !matches!(proc.state.borrow().phase, Phase::Starting | Phase::Refused(_)) {
            tell(stream, Tell::Process(describe(&proc, false).await)).await?;
        }
    }
    Ok(())
}

pub(crate) async fn get(agent: &Arc<Agent>, id: &str) -> Answer {
    let proc = agent.table.get(id)?;
    proc.begun().await?;
    Ok(Tell::Process(describe(&proc, false).await))
}

/// With the number of processes an ended leader left.
async fn describe(proc: &Arc<Proc>, attached: bool) -> runtime_proto::guest::Process {
    let state = proc.state.borrow().clone();
    let left = state.tree && matches!(state.phase, Phase::Ended { .. });
    let roots = if left { proc.roots() } else { Vec::new() };
    let leftovers = if roots.is_empty() {
        0
    } else {
        let walk = move || roots.into_iter().map(tree::living).sum::<usize>();
        tokio::task::spawn_blocking(walk).await.unwrap_or(0) as u32
    };
    proc.describe(state, attached, leftovers)
}
