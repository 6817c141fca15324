//! From nothing to a first command: prepare this machine, start a server, run something in a sandbox.
//!
//! The preparing and the serving are the program's own other commands, so that what `up` does can be done by hand. Every
//! step is safe to repeat: a machine that is prepared is only looked at, and a server that runs is used.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use runtime_api::client::Client;
use runtime_service::signals::Signals;
use serde_json::json;

use super::Outcome;
use super::command;
use super::run::Errand;
use crate::args::UpArgs;
use crate::connect::{LocalServer, Target, client};
use crate::failure::Failure;
use crate::printer::{Printer, plain};
use crate::surroundings::{Surroundings, read_word};

/// A server that has not begun to answer by then has a reason that is in its log.
const SERVER_STARTS_WITHIN: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Where somebody listens, a busy machine is given time to answer: who is taken for gone is started a second time.
const LOOK_PATIENCE: Duration = Duration::from_secs(10);
const LOG_LINES: usize = 20;
const LOG_BYTES: u64 = 16 * 1024;
const FIRST_COMMAND: [&str; 3] =
    ["python3", "-c", "import platform; print('hello from', platform.node(), platform.release())"];

pub(super) async fn up(around: &Surroundings, args: UpArgs, printer: Printer) -> Outcome {
    let default_dir = around.default_data_dir();
    let data_dir = args.data.given.clone().unwrap_or_else(|| default_dir.clone());
    // A relative directory would mean another one to whoever reads the messages later.
    let data_dir = std::path::absolute(&data_dir).with_context(|| format!("cannot resolve {}", data_dir.display()))?;
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let mut signals = Signals::catch().context("cannot watch for Ctrl-C")?;
    let place = Place { program, data_dir, engine: args.engine.as_str(), listen: args.listen.to_string(), printer };

    printer.talk(&format!("[1/3] Prepare this machine: what sandboxes need, kept in {}", place.data_dir.display()));
    tokio::select! {
        biased;
        signal = signals.next() => return Ok(signal.exit_code()),
        prepared = place.setup() => prepared?,
    }

    printer.talk("[2/3] Start the server: it owns the sandboxes and answers the API");
    let server = tokio::select! {
        biased;
        signal = signals.next() => return Ok(signal.exit_code()),
        server = place.server() => server?,
    };

    let words: Vec<String> =
        if args.command.is_empty() { FIRST_COMMAND.map(str::to_owned).into() } else { args.command.clone() };
    printer.talk(&format!("[3/3] Run a first command in a fresh sandbox: {}", plain(&words.join(" "))));
    let errand = Errand { client: &server.client, printer, keep: false };
    let (code, result) = errand.run(&json!({}), command::body(&words, None, printer), &mut signals).await?;

    if printer.json {
        printer.value(&json!({
            "url": server.client.origin().as_str(),
            "dataDir": place.data_dir,
            "keyFile": place.data_dir.join("owner.key"),
            "pid": server.pid,
            "result": result,
        }))?;
    }
    printer.hint(&place.next_steps(&server, place.data_dir == default_dir));
    Ok(code)
}

/// Where the server is, or shall be.
struct Place {
    program: PathBuf,
    data_dir: PathBuf,
    engine: &'static str,
    listen: String,
    printer: Printer,
}

/// One that answers and knows the owner's key.
struct Running {
    client: Client,
    pid: Option<u32>,
}

impl Place {
    fn own(&self, verb: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.arg(verb).arg("--data-dir").arg(&self.data_dir).args(["--engine", self.engine]);
        command
    }

    async fn setup(&self) -> Result<(), Failure> {
        let mut command = self.own("setup");
        // Its output is talk here: stdout belongs to the first command.
        command.stdin(Stdio::null()).stdout(std::io::stderr());
        let mut command = tokio::process::Command::from(command);
        let status = command.status().await.context("cannot run `runtime setup`")?;
        if status.success() {
            return Ok(());
        }
        let again = format!("runtime setup --data-dir {}", self.data_dir.display());
        Err(anyhow!(
            "`runtime setup` did not finish ({status}); its last lines above say why.\n\
             `runtime doctor` lists what is missing, with the fix. Then run `runtime up` again, or only `{again}`."
        )
        .into())
    }

    async fn server(&self) -> Result<Running, Failure> {
        if let Some(client) = self.answering().await? {
            self.printer.talk(&format!("  ok already running at {}", client.origin().as_str()));
            return Ok(Running { client, pid: self.owner_pid() });
        }
        let mut child = self.start()?;
        let began = Instant::now();
        loop {
            if let Some(client) = self.answering().await? {
                self.printer.talk(&format!("  ok listening at {}", client.origin().as_str()));
                return Ok(Running { client, pid: Some(child.id()) });
            }
            if let Some(status) = child.try_wait().context("cannot watch the server")? {
                return Err(self.no_server(&format!("the server ended at once ({status})")).into());
            }
            if began.elapsed() > SERVER_STARTS_WITHIN {
                let seconds = SERVER_STARTS_WITHIN.as_secs();
                return Err(self
                    .no_server(&format!("the server (process {}) did not answer within {seconds} s", child.id()))
                    .into());
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Starts it so that it outlives this program and its terminal.
    fn start(&self) -> Result<Child, Failure> {
        let log = self.log();
        let open = |path: &Path| -> std::io::Result<(File, File)> {
            fs::create_dir_all(&self.data_dir)?;
            let file = OpenOptions::new().create(true).append(true).open(path)?;
            Ok((file.try_clone()?, file))
        };
        let (out, err) = open(&log).with_context(|| format!("cannot open the server's log {}", log.display()))?;
        self.own("serve")
            .args(["--listen", &self.listen, "--detached"])
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err)
            .spawn()
            .context("cannot start `runtime serve`")
            .map_err(Failure::from)
    }

    /// The directory's server, if it answers and its key is known to it: another program's answer does not count.
    async fn answering(&self) -> Result<Option<Client>, Failure> {
        let Some(LocalServer { origin, key: Some(key) }) = LocalServer::of(&self.data_dir) else { return Ok(None) };
        let client = client(&Target { origin, key: Some(key) }, self.printer)?;
        if client.get("/health").send_once(LOOK_PATIENCE).await.is_err() {
            return Ok(None);
        }
        let known = client.get("/v1/me").send_once(LOOK_PATIENCE).await.is_ok();
        Ok(known.then_some(client))
    }

    fn no_server(&self, what: &str) -> anyhow::Error {
        let log = self.log();
        let tail = log_tail(&log).unwrap_or_else(|error| format!("(cannot read it: {error})"));
        let shown = if tail.is_empty() { "(empty)".to_owned() } else { tail };
        anyhow!(
            "{what}. The end of {}:\n{shown}\n\
             `runtime doctor` looks at everything it needs; `--listen 127.0.0.1:PORT` picks another port. \
             Then run `runtime up` again.",
            log.display()
        )
    }

    fn log(&self) -> PathBuf {
        self.data_dir.join("serve.log")
    }

    /// The process that holds the directory, where it says so.
    fn owner_pid(&self) -> Option<u32> {
        read_word(&self.data_dir.join("lock"))?.split_whitespace().next()?.parse().ok()
    }

    fn next_steps(&self, server: &Running, default_dir: bool) -> String {
        let key_file = self.data_dir.join("owner.key");
        let url = server.client.origin().as_str();
        let stop = server.pid.map_or_else(|| "end its process".to_owned(), |pid| format!("kill {pid}"));
        let mut lines = vec![
            String::new(),
            "Ready. What now:".into(),
            "  runtime sandboxes run -- python3 -c 'print(1)'   a command in a sandbox of its own".into(),
            "  runtime sandboxes create --name worker           a sandbox that stays".into(),
            "  runtime help                                     everything else".into(),
            format!(
                "The server is at {url}, its owner's key in {}, its log in {}.",
                key_file.display(),
                self.log().display()
            ),
            format!(
                "Stop it with `{stop}`; its sandboxes go on, and the next `runtime up` or `runtime serve` takes them over."
            ),
        ];
        if !default_dir {
            lines.push("It is not in the default place. For other commands and SDKs:".into());
            lines.push(format!("  export RUNTIME_API_URL={url} RUNTIME_API_KEY=\"$(cat '{}')\"", key_file.display()));
        }
        lines.join("\n")
    }
}

/// The last lines of a log, whatever its size.
fn log_tail(path: &Path) -> std::io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(LOG_BYTES)))?;
    let mut bytes = Vec::new();
    file.take(LOG_BYTES).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    Ok(lines[lines.len().saturating_sub(LOG_LINES)..]
        .iter()
        .map(|line| format!("  | {line}"))
        .collect::<Vec<_>>()
        .join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::TcpListener;
    use std::os::unix::fs::PermissionsExt;

    /// A place whose program is a script; what it does for a verb is its text.
    fn place(dir: &Path, script: &str) -> Place {
        let program = dir.join("program");
        fs::write(&program, format!("#!/bin/sh\n{script}\n")).expect("a script");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("executable");
        Place {
            program,
            data_dir: dir.join("data"),
            engine: "auto",
            listen: "127.0.0.1:0".into(),
            printer: Printer { json: true },
        }
    }

    /// A server that says yes to everything; its URL.
    fn yes() -> String {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let mut asked = Vec::new();
                let mut byte = [0];
                while !asked.ends_with(b"\r\n\r\n") && matches!(stream.read(&mut byte), Ok(1)) {
                    asked.push(byte[0]);
                }
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}");
            }
        });
        url
    }

    #[tokio::test]
    async fn a_set_up_that_fails_says_what_to_do() {
        let dir = tempfile::tempdir().expect("a directory");
        let place = place(dir.path(), "exit 3");
        let error = place.setup().await.expect_err("it failed").to_string();
        assert!(error.contains("exit status: 3") && error.contains("runtime doctor"), "{error}");
    }

    #[tokio::test]
    async fn a_server_is_started_once_and_then_found() {
        let dir = tempfile::tempdir().expect("a directory");
        let script = format!(
            "echo \"$@\" >> \"$3.asked\"; echo {} > \"$3/address\"; echo key > \"$3/owner.key\"; exec sleep 1000",
            yes()
        );
        let place = place(dir.path(), &script);
        let started = place.server().await.expect("it answers");
        let pid = started.pid.expect("its own child");
        fs::write(place.data_dir.join("lock"), format!("{pid}\n")).expect("the lock");
        let found = place.server().await.expect("it answers still");
        assert_eq!(found.pid, Some(pid));
        let asked = fs::read_to_string(dir.path().join("data.asked")).expect("what was asked");
        let expected =
            format!("serve --data-dir {} --engine auto --listen 127.0.0.1:0 --detached\n", place.data_dir.display());
        assert_eq!(asked, expected);
        let pid = rustix::process::Pid::from_raw(i32::try_from(pid).expect("a pid")).expect("a pid");
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("its end");
    }

    #[tokio::test]
    async fn a_server_that_ends_shows_its_log() {
        let dir = tempfile::tempdir().expect("a directory");
        let place = place(dir.path(), "echo the port is taken >&2; exit 1");
        let error = place.server().await.err().expect("it ended").to_string();
        assert!(error.contains("the server ended at once (exit status: 1)"), "{error}");
        assert!(error.contains("  | the port is taken\n") && error.contains("--listen"), "{error}");
    }

    #[test]
    fn the_end_of_a_log() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("serve.log");
        let text: String = (0..5000).map(|line| format!("line {line}\n")).collect();
        fs::write(&path, text).expect("a log");
        let tail = log_tail(&path).expect("readable");
        assert_eq!(tail.lines().count(), LOG_LINES);
        assert!(tail.starts_with("  | line 4980\n") && tail.ends_with("  | line 4999"), "{tail}");
    }
}
