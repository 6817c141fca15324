//! The whole product, started for one test.
//!
//! A stack is one `runtime serve` on a port of its own and a data directory of its own inside the machine's disk pool,
//! where the base image already is. It can be killed, started again, and looked into; when it goes, all goes with it,
//! and a line in the server's log that says ERROR fails the test unless the test announced it.

use crate::api::Api;
use crate::{Places, Process, leaks, log, poll, program, sweep};
use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Starting reads a database and adopts what runs; more than this is a hang.
const UP: Duration = Duration::from_secs(120);
const DOWN: Duration = Duration::from_secs(120);
const POOL: &str = "/var/lib/runtime/pool";

/// How a stack differs from the usual one.
#[derive(Debug, Default, Clone)]
pub struct StackOptions {
    /// Further arguments of `serve`.
    pub args: Vec<String>,
    /// Further variables for the server.
    pub env: Vec<(String, String)>,
    /// What it is started by: a program that becomes it, and its arguments.
    pub wrap: Vec<String>,
    /// Machines that stand ready. None unless said: tests count what runs.
    pub spares: usize,
}

/// A server that runs, and its data directory.
pub struct Stack {
    program: PathBuf,
    places: Places,
    logs: tempfile::TempDir,
    options: StackOptions,
    server: Option<Child>,
    address: SocketAddr,
    key: String,
    expected: Vec<String>,
}

impl Stack {
    /// # Panics
    /// When the program is not built, the host is not set up or the server does not come up; the message says which.
    #[must_use]
    pub fn start() -> Self {
        Self::start_with(StackOptions::default())
    }

    /// # Panics
    /// As [`Stack::start`].
    #[must_use]
    pub fn start_with(options: StackOptions) -> Self {
        let program = program();
        let stack = Self::make(program, options);
        stack.unwrap_or_else(|error| panic!("start a stack: {error:#}"))
    }

    fn make(program: PathBuf, options: StackOptions) -> Result<Self> {
        let pool = pool()?;
        sweep::stale(&pool).context("sweep what earlier tests left")?;
        let dir = sweep::make(&pool)?;
        let mut stack = Self {
            program,
            places: Places::of(&dir),
            logs: tempfile::tempdir().context("a directory for the log")?,
            options,
            server: None,
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            key: String::new(),
            expected: Vec::new(),
        };
        stack.launch()?;
        let path = stack.places.data.join("owner.key");
        stack.key = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?.trim().to_owned();
        Ok(stack)
    }

    /// Port 0 at first; a later start takes the same port, as a server of one's own would.
    fn launch(&mut self) -> Result<()> {
        let written = self.places.data.join("address");
        let _ = fs::remove_file(&written);
        self.server = Some(self.spawn()?);
        let up = poll_result(UP, || self.look_if_up(&written));
        let found = up.map_err(|error| error.context(format!("the log of the server:\n{}", tail(&self.log()))))?;
        self.address = found;
        Ok(())
    }

    fn spawn(&self) -> Result<Child> {
        let path = self.log_path();
        let log = File::options().create(true).append(true).open(&path).context("open the server's log")?;
        let mut words = self.options.wrap.iter().map(std::ffi::OsStr::new).chain([self.program.as_os_str()]);
        Command::new(words.next().context("a program")?)
            .args(words)
            .args(["serve", "--listen", &self.address.to_string(), "--data-dir"])
            .arg(&self.places.data)
            .args(["--spares", &self.options.spares.to_string()])
            .args(self.engine())
            .args(&self.options.args)
            .envs(self.options.env.iter().map(|(name, value)| (name, value)))
            .env_remove("RUNTIME_API_KEY")
            .env_remove("RUNTIME_API_URL")
            .stdin(Stdio::null())
            .stdout(log.try_clone().context("share the log")?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("start {}", self.program.display()))
    }

    /// The engine that `RUNTIME_TEST_ENGINE` names, for a test that does not name one itself.
    fn engine(&self) -> Vec<std::ffi::OsString> {
        let chosen = self.options.args.iter().any(|arg| arg == "--engine");
        let asked = program::env("RUNTIME_TEST_ENGINE").filter(|_| !chosen);
        asked.map_or_else(Vec::new, |name| vec!["--engine".into(), name.into()])
    }

    fn look_if_up(&mut self, written: &Path) -> Result<Option<SocketAddr>> {
        let server = self.server.as_mut().context("a server")?;
        if let Some(status) = server.try_wait().context("look at the server")? {
            bail!("the server ended at its start: {status}");
        }
        let Ok(text) = fs::read_to_string(written) else { return Ok(None) };
        let text = text.trim();
        let Ok(address) = text.strip_prefix("http://").unwrap_or(text).parse::<SocketAddr>() else { return Ok(None) };
        let health = Api::new(address, None).try_call("GET", "/health", &[], None);
        Ok(health.is_ok_and(|answer| answer.status == 200).then_some(address))
    }

    /// The API with the owner's key.
    #[must_use]
    pub fn api(&self) -> Api {
        Api::new(self.address, Some(self.key.clone()))
    }

    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    #[must_use]
    pub fn owner_key(&self) -> &str {
        &self.key
    }

    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.places.data
    }

    #[must_use]
    pub fn places(&self) -> &Places {
        &self.places
    }

    /// The program under test as a command that finds this stack by its data directory alone.
    #[must_use]
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.env_remove("RUNTIME_API_KEY").env_remove("RUNTIME_API_URL").env("NO_PROXY", "127.0.0.1");
        command
    }

    /// # Panics
    /// When it is not running.
    #[must_use]
    pub fn server_pid(&self) -> i32 {
        let server = self.server.as_ref().expect("the server is running");
        i32::try_from(server.id()).expect("a process id")
    }

    /// The process that carries its sandboxes' connections out.
    #[must_use]
    pub fn egress_pid(&self) -> Option<i32> {
        let server = self.server_pid();
        let children = crate::processes().into_iter().filter(|process| process.parent == server);
        children.into_iter().find(leaks::is_egress).map(|process| process.pid)
    }

    /// What the host holds for it now.
    #[must_use]
    pub fn snapshot(&self) -> leaks::Snapshot {
        leaks::Snapshot::take(&self.places, self.server_pid())
    }

    /// Processes that hold a sandbox of this stack: all that hold its data directory, less the server.
    #[must_use]
    pub fn helpers(&self) -> Vec<Process> {
        let server = self.server.as_ref().and_then(|server| i32::try_from(server.id()).ok());
        let mut found = leaks::helpers(&self.places);
        found.retain(|process| Some(process.pid) != server);
        found
    }

    /// Ends the server as a crash would.
    ///
    /// # Panics
    /// When it cannot be waited for.
    pub fn kill9(&mut self) {
        if let Some(mut server) = self.server.take() {
            server.kill().expect("kill the server");
            server.wait().expect("wait for the server");
        }
    }

    /// Asks the server to end, and waits.
    ///
    /// # Panics
    /// When it does not end, or not well.
    pub fn stop(&mut self) {
        let Some(mut server) = self.server.take() else { return };
        crate::send_signal(i32::try_from(server.id()).expect("a process id"), Signal::TERM);
        let status =
            poll::until("the server ends after SIGTERM", DOWN, || server.try_wait().expect("wait for the server"));
        assert!(status.success(), "the server ended with {status} after SIGTERM:\n{}", tail(&self.log()));
    }

    /// Further arguments from the next start on.
    pub fn set_args(&mut self, args: Vec<String>) {
        self.options.args = args;
    }

    /// Starts the server again on the same data directory and port.
    ///
    /// # Panics
    /// When it does not come up.
    pub fn restart(&mut self) {
        assert!(self.server.is_none(), "end the server before it is started again");
        self.launch().unwrap_or_else(|error| panic!("start the server again: {error:#}"));
    }

    /// Starts the server and kills it after a time, wherever it is then.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn start_and_kill(&mut self, after: Duration) {
        let server = self.spawn().unwrap_or_else(|error| panic!("start the server: {error:#}"));
        self.server = Some(server);
        std::thread::sleep(after);
        self.kill9();
    }

    /// Ends every helper at once, as a reboot of the host would.
    pub fn kill_helpers(&mut self) {
        let server = self.server.as_ref().and_then(|server| i32::try_from(server.id()).ok());
        poll::eventually("every helper is gone", Duration::from_secs(20), || {
            let left: Vec<Process> = self.helpers().into_iter().filter(|one| Some(one.pid) != server).collect();
            left.iter().for_each(|process| crate::send_signal(process.pid, Signal::KILL));
            left.is_empty()
        });
    }

    /// An error line that contains this text is part of the test.
    pub fn expect_error(&mut self, text: &str) {
        self.expected.push(text.to_owned());
    }

    #[must_use]
    pub fn log(&self) -> String {
        fs::read(self.log_path()).map_or_else(|_| String::new(), |raw| String::from_utf8_lossy(&raw).into_owned())
    }

    fn log_path(&self) -> PathBuf {
        self.logs.path().join("server.log")
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        if let Some(mut server) = self.server.take() {
            let _ = server.kill();
            let _ = server.wait();
        }
        let log = self.log();
        let left = sweep::remove(&self.places);
        if std::thread::panicking() {
            eprintln!("--- the end of the log of the server\n{}\n---", tail(&log));
            return;
        }
        left.unwrap_or_else(|error| panic!("take the stack away: {error:#}"));
        let bad = log::unexpected(&log, &self.expected);
        assert!(bad.is_empty(), "the server logged errors that no test announced:\n{}", bad.join("\n"));
    }
}

fn pool() -> Result<PathBuf> {
    let pool = program::env("RUNTIME_TEST_POOL").unwrap_or_else(|| PathBuf::from(POOL));
    if !pool.is_dir() {
        bail!("there is no disk pool at {}: run `runtime setup` as root, or set RUNTIME_TEST_POOL", pool.display());
    }
    Ok(pool)
}

fn poll_result<T>(limit: Duration, mut look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let end = std::time::Instant::now() + limit;
    loop {
        if let Some(value) = look()? {
            return Ok(value);
        }
        if std::time::Instant::now() > end {
            bail!("nothing after {limit:?}");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(60)..].join("\n")
}
