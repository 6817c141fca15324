//! The real agent with two pipes, and a host that speaks the real channel to it.
#![allow(dead_code, reason = "each test file uses a part")]

use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use runtime_proto::channel::{Channel, Config, Opener, Side, Stream};
use runtime_proto::guest::{
    Ask, Chunk, Command, Event, Exec, ExecDone, Follow, GuestError, Hello, Input, Output, Process, Request, Signal,
    Spawn, Tell, decode_event, encode,
};
use runtime_proto::handshake;
use tokio::process::{Child, ChildStdin, ChildStdout};
use tokio::task::JoinHandle;

/// Longer than any answer takes on a machine that stands still now and then: only a hang is longer.
pub const WAIT: Duration = Duration::from_secs(120);

static EPOCH: AtomicU32 = AtomicU32::new(1);

/// An agent that ends with the test.
pub struct Guest {
    pub host: Opener,
    pub child: Child,
    pump: JoinHandle<(ChildStdin, ChildStdout)>,
    hang_up: tokio::sync::oneshot::Sender<()>,
}

async fn attach(
    mut stdin: ChildStdin,
    mut stdout: ChildStdout,
    limit: u64,
) -> (Opener, JoinHandle<(ChildStdin, ChildStdout)>, tokio::sync::oneshot::Sender<()>) {
    let epoch = EPOCH.fetch_add(1, Ordering::Relaxed);
    let hello = Hello {
        nonce: Bytes::from(epoch.to_le_bytes().repeat(4)),
        protocol_min: 1,
        protocol_max: 1,
        sandbox_id: "test".into(),
        generation: 1,
        max_user_processes: limit,
        epoch,
        ..Hello::default()
    };
    let greeted = tokio::time::timeout(WAIT, handshake::greet(&mut stdout, &mut stdin, &hello)).await;
    let (_, rest) = greeted.expect("a welcome in time").expect("a welcome");
    let config =
        Config { side: Side::Host, epoch, max_open: 1 << 20, max_streams: 4096, max_flows: 64, max_incoming: 4096 };
    let (host, _incoming, pump) = Channel::new(config).into_parts();
    let (hang_up, hung_up) = tokio::sync::oneshot::channel::<()>();
    let pump = tokio::spawn(async move {
        let _incoming = _incoming;
        let mut rest = rest;
        tokio::select! {
            _ = pump.run(&mut stdout, &mut stdin, &mut rest) => {}
            _ = hung_up => {}
        }
        (stdin, stdout)
    });
    (host, pump, hang_up)
}

impl Guest {
    pub async fn start() -> Self {
        Self::start_as(tokio::process::Command::new(env!("CARGO_BIN_EXE_runtime-agent")), 0).await
    }

    /// With a limit on the user's processes; 0 = the agent's own.
    pub async fn start_as(mut command: tokio::process::Command, limit: u64) -> Self {
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true).spawn().expect("the agent starts");
        let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (host, pump, hang_up) = attach(stdin, stdout, limit).await;
        Self { host, child, pump, hang_up }
    }

    /// The host goes away in the middle of everything, and another says hello.
    pub async fn reattach(self) -> Self {
        let _ = self.hang_up.send(());
        let (stdin, stdout) = self.pump.await.unwrap();
        let (host, pump, hang_up) = attach(stdin, stdout, 0).await;
        Self { host, child: self.child, pump, hang_up }
    }

    /// Closes the channel and waits for the agent's own end.
    pub async fn close(mut self) {
        let _ = self.hang_up.send(());
        drop(self.pump.await.unwrap());
        tokio::time::timeout(WAIT, self.child.wait()).await.expect("the agent ends").unwrap();
    }

    pub async fn open(&self, ask: Ask) -> Stream {
        self.host.open(encode(&Request::new(ask))).await.expect("a stream")
    }

    /// All events of a request without input.
    pub async fn ask(&self, ask: Ask) -> Result<Vec<Tell>, GuestError> {
        let mut stream = self.open(ask).await;
        stream.finish().await.unwrap();
        collect(&mut stream).await
    }

    pub async fn one(&self, ask: Ask) -> Result<Tell, GuestError> {
        Ok(self.ask(ask).await?.pop().expect("an event"))
    }

    pub async fn exec(&self, command: Command) -> Result<ExecDone, GuestError> {
        self.exec_with(command, None).await
    }

    pub async fn exec_with(&self, command: Command, stdin: Option<&[u8]>) -> Result<ExecDone, GuestError> {
        let ask = Exec { command: Some(command), head_limit: 65536, has_stdin: stdin.is_some() };
        let mut stream = self.open(Ask::Exec(ask)).await;
        let sender = stream.sender();
        if let Some(stdin) = stdin {
            send_input(&sender, stdin).await;
        }
        sender.finish().await.unwrap();
        let (mut out, mut err) = (Vec::new(), Vec::new());
        for event in collect(&mut stream).await? {
            match event {
                Tell::Chunk(chunk) if chunk.stream == Output::Stdout as i32 => out.extend_from_slice(&chunk.data),
                Tell::Chunk(chunk) => err.extend_from_slice(&chunk.data),
                Tell::ExecDone(mut done) => {
                    if !out.is_empty() || !err.is_empty() {
                        (done.stdout, done.stderr) = (out.into(), err.into());
                    }
                    return Ok(done);
                }
                other => panic!("an exec answered {other:?}"),
            }
        }
        panic!("an exec ended without an answer")
    }

    /// Runs a shell line as root, expects success, gives the output.
    pub async fn sh(&self, line: &str) -> String {
        let done = self.exec(shell(line)).await.unwrap();
        let code = done.process.unwrap().exit_code;
        assert_eq!(code, Some(0), "{line}: {}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout.to_vec()).unwrap()
    }

    pub async fn spawn(&self, spawn: Spawn) -> Process {
        match self.one(Ask::Spawn(spawn)).await.unwrap() {
            Tell::Process(process) => process,
            other => panic!("a spawn answered {other:?}"),
        }
    }

    pub async fn get(&self, id: &str) -> Result<Process, GuestError> {
        let wanted = runtime_proto::guest::ProcessRef { process_id: id.into() };
        match self.one(Ask::GetProcess(wanted)).await? {
            Tell::Process(process) => Ok(process),
            other => panic!("{other:?}"),
        }
    }

    pub async fn signal(&self, id: &str, signal: i32) {
        self.one(Ask::Signal(Signal { process_id: id.into(), signal })).await.unwrap();
    }

    /// Follows to the end: chunks, what was lost, and the process.
    pub async fn follow(&self, id: &str, cursor: u64) -> (Vec<Chunk>, u64, Process) {
        let ask = Follow { process_id: id.into(), cursor, ..Follow::default() };
        parts(self.ask(Ask::Follow(ask)).await.unwrap())
    }

    /// Looks again until the process is as wanted.
    pub async fn until(&self, id: &str, wanted: impl Fn(&Process) -> bool) -> Process {
        let look = async {
            loop {
                let process = self.get(id).await.unwrap();
                if wanted(&process) {
                    return process;
                }
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(WAIT, look).await.expect("the process gets there")
    }
}

pub fn parts(events: Vec<Tell>) -> (Vec<Chunk>, u64, Process) {
    let (mut chunks, mut lost) = (Vec::new(), 0);
    for event in events {
        match event {
            Tell::Chunk(chunk) => chunks.push(chunk),
            Tell::Lost(gap) => lost += gap.dropped,
            Tell::Process(process) => return (chunks, lost, process),
            other => panic!("{other:?}"),
        }
    }
    panic!("no process at the end")
}

pub fn text(chunks: &[Chunk]) -> String {
    String::from_utf8(chunks.iter().flat_map(|chunk| chunk.data.to_vec()).collect()).unwrap()
}

pub async fn send_input(sender: &runtime_proto::channel::Sender, data: &[u8]) {
    for piece in data.chunks(runtime_proto::guest::DATA_STEP) {
        sender.send(encode(&Input { data: Bytes::copy_from_slice(piece) })).await.unwrap();
    }
}

pub async fn next(stream: &mut Stream) -> Result<Option<Tell>, GuestError> {
    let message = tokio::time::timeout(WAIT, stream.recv()).await.expect("an event in time").expect("an open stream");
    let Some(message) = message else { return Ok(None) };
    let Event { tell } = decode_event(message).unwrap();
    match tell.expect("a known event") {
        Tell::Error(error) => Err(error),
        tell => Ok(Some(tell)),
    }
}

pub async fn collect(stream: &mut Stream) -> Result<Vec<Tell>, GuestError> {
    let mut events = Vec::new();
    while let Some(event) = next(stream).await? {
        events.push(event);
    }
    Ok(events)
}

/// As root, in `/`: the test machine has no sandbox user's home.
pub fn shell(line: &str) -> Command {
    Command { shell: Some(line.into()), cwd: "/".into(), user: 1, ..Command::default() }
}

pub fn argv(args: &[&str]) -> Command {
    let argv = args.iter().map(|arg| (*arg).to_owned()).collect();
    Command { argv, cwd: "/".into(), user: 1, ..Command::default() }
}

pub fn spawn(command: Command) -> Spawn {
    Spawn { command: Some(command), ..Spawn::default() }
}

/// True while a process lives (a zombie does not).
pub fn alive(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with('Z') && !rest.starts_with('X'))
}

/// Words for `sleep` that only this test's processes carry: other runs of the same test may be on this machine.
pub fn mark(number: u32) -> String {
    format!("{number}.{:010}", std::process::id())
}

/// Waits until no process carries the mark: an answer waits for the dead, but not for ever.
pub async fn gone(mark: &str) {
    let look = async {
        while !processes_with(mark).is_empty() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(WAIT, look).await.unwrap_or_else(|_| panic!("{:?} live on", processes_with(mark)));
}

/// What a command has done before its time was up depends on the machine: gives it twice the time until it was enough.
pub async fn in_enough_time<T>(mut attempt: impl AsyncFnMut(u64) -> Option<T>) -> T {
    let mut time_ms = 300;
    loop {
        if let Some(done) = attempt(time_ms).await {
            return done;
        }
        time_ms *= 2;
        assert!(time_ms < 200_000, "no time is enough");
    }
}

/// Some mark that only this test's processes carry, for looking whether any is left.
pub fn processes_with(mark: &str) -> Vec<i32> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        if String::from_utf8_lossy(&line).contains(mark) && alive(pid) {
            found.push(pid);
        }
    }
    found
}

/// A file that is truncated and written again, as `>` of a shell does, until this goes.
pub struct Rewriting {
    done: std::sync::Arc<std::sync::atomic::AtomicBool>,
    writer: Option<std::thread::JoinHandle<()>>,
}

impl Rewriting {
    pub fn of(path: String) -> Self {
        std::fs::write(&path, "whole").unwrap();
        let done = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let seen = done.clone();
        let writer = std::thread::spawn(move || {
            while !seen.load(std::sync::atomic::Ordering::Relaxed) {
                std::fs::write(&path, "whole").unwrap();
            }
        });
        Self { done, writer: Some(writer) }
    }
}

impl Drop for Rewriting {
    fn drop(&mut self) {
        self.done.store(true, std::sync::atomic::Ordering::Relaxed);
        self.writer.take().unwrap().join().unwrap();
    }
}
