//! QEMU's monitor: one JSON object a line over a unix socket, asked and answered in turn.
//!
//! Used by the shim while a machine starts and by the server to save it. QEMU runs a guest's devices, so what it says is
//! not trusted either: lines have a limit, and every wait ends.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use runtime_host::fdpass;
use serde_json::{Value, json};

/// The longest line.
const LINE: usize = 1 << 20;
const ANSWER_LIMIT: Duration = Duration::from_secs(20);
/// Between two looks at a machine that is on its way.
const LOOK: Duration = Duration::from_millis(1);

#[derive(Debug, thiserror::Error)]
pub(crate) enum QmpError {
    #[error("the monitor of QEMU broke off at {command}")]
    Io {
        command: String,
        #[source]
        source: io::Error,
    },
    #[error("QEMU refused {command}: {why}")]
    Refused { command: String, why: String },
    #[error("QEMU did not finish {what} in time")]
    Slow { what: &'static str },
    #[error("QEMU could not finish {what}: {why}")]
    Failed { what: &'static str, why: String },
}

pub(crate) struct Qmp {
    stream: UnixStream,
    unread: Vec<u8>,
}

impl Qmp {
    /// Connects and agrees on the plain protocol.
    pub(crate) fn connect(path: &Path) -> Result<Self, QmpError> {
        let fail = |source| QmpError::Io { command: "its greeting".to_owned(), source };
        let stream = UnixStream::connect(path).map_err(fail)?;
        stream.set_read_timeout(Some(ANSWER_LIMIT)).map_err(fail)?;
        stream.set_write_timeout(Some(ANSWER_LIMIT)).map_err(fail)?;
        let mut qmp = Self { stream, unread: Vec::new() };
        let end = Instant::now() + ANSWER_LIMIT;
        while qmp.line(end).map_err(fail)?.get("QMP").is_none() {}
        qmp.ask("qmp_capabilities", Value::Null)?;
        Ok(qmp)
    }

    pub(crate) fn ask(&mut self, command: &str, arguments: Value) -> Result<Value, QmpError> {
        self.ask_with(command, arguments, None)
    }

    /// With a descriptor that goes along.
    fn ask_with(&mut self, command: &str, arguments: Value, fd: Option<BorrowedFd<'_>>) -> Result<Value, QmpError> {
        let fail = |source| QmpError::Io { command: command.to_owned(), source };
        let mut message = json!({ "execute": command });
        if !arguments.is_null() {
            message["arguments"] = arguments;
        }
        let mut line = message.to_string().into_bytes();
        line.push(b'\n');
        let mut rest = line.as_slice();
        let mut fds: &[BorrowedFd<'_>] = fd.as_slice();
        while !rest.is_empty() {
            let sent = fdpass::send(&self.stream, rest, fds).map_err(fail)?;
            rest = &rest[sent..];
            fds = &[];
        }
        let end = Instant::now() + ANSWER_LIMIT;
        loop {
            let mut answer = self.line(end).map_err(fail)?;
            if let Some(value) = answer.get_mut("return") {
                return Ok(value.take());
            }
            if let Some(error) = answer.get("error") {
                let why = error["desc"].as_str().unwrap_or("it did not say why").to_owned();
                return Err(QmpError::Refused { command: command.to_owned(), why });
            }
            // Everything else is news that nobody asked for.
        }
    }

    fn line(&mut self, end: Instant) -> io::Result<Value> {
        loop {
            if let Some(at) = self.unread.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.unread.drain(..=at).collect();
                return serde_json::from_slice(&line).map_err(io::Error::from);
            }
            if self.unread.len() > LINE {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "a line without an end"));
            }
            if Instant::now() > end {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let mut buffer = [0; 4096];
            match self.stream.read(&mut buffer)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => self.unread.extend_from_slice(&buffer[..count]),
            }
        }
    }

    /// Restores a saved machine and waits until it runs. The saved state is open in QEMU under this number.
    pub(crate) fn restore(&mut self, fd: i32, memory_apart: bool, limit: Duration) -> Result<(), QmpError> {
        self.leave_out_memory(memory_apart)?;
        self.ask("migrate-incoming", json!({ "uri": format!("fd:{fd}") }))?;
        let end = Instant::now() + limit;
        loop {
            let status = self.ask("query-status", Value::Null)?;
            match status["status"].as_str().unwrap_or_default() {
                "running" => return Ok(()),
                "inmigrate" => {}
                // Saved while it stood still.
                "paused" | "prelaunch" | "postmigrate" => return self.resume(),
                other => {
                    let why = format!("it is {other:?} after it");
                    return Err(QmpError::Failed { what: "the restore", why });
                }
            }
            if Instant::now() > end {
                return Err(QmpError::Slow { what: "the restore" });
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Writes the machine's state to `file` and leaves it standing still, its disk written.
    pub(crate) fn save(&mut self, file: impl AsFd, memory_apart: bool, limit: Duration) -> Result<(), QmpError> {
        self.stand_still_anew()?;
        self.leave_out_memory(memory_apart)?;
        self.ask_with("getfd", json!({ "fdname": "state" }), Some(file.as_fd()))?;
        // As fast as the disk takes it.
        self.ask("migrate-set-parameters", json!({ "max-bandwidth": 1_u64 << 40 }))?;
        self.ask("migrate", json!({ "uri": "fd:state" }))?;
        let end = Instant::now() + limit;
        loop {
            let status = self.ask("query-migrate", Value::Null)?;
            match status["status"].as_str().unwrap_or_default() {
                "completed" => return Ok(()),
                "failed" | "cancelled" => {
                    let why = status["error-desc"].as_str().unwrap_or("it did not say why").to_owned();
                    return Err(QmpError::Failed { what: "the save", why });
                }
                _ => {}
            }
            if Instant::now() > end {
                let _ = self.ask("migrate_cancel", Value::Null);
                return Err(QmpError::Slow { what: "the save" });
            }
            std::thread::sleep(LOOK);
        }
    }

    /// QEMU does not save a machine that still stands as its last save left it: it has to have run since, if only for a
    /// moment. What is written then is that later state, to which the disk belongs that is kept after the save.
    fn stand_still_anew(&mut self) -> Result<(), QmpError> {
        if self.ask("query-status", Value::Null)?["status"] == "postmigrate" {
            self.resume()?;
            self.freeze()?;
        }
        Ok(())
    }

    fn leave_out_memory(&mut self, yes: bool) -> Result<(), QmpError> {
        let capability = json!({ "capability": "x-ignore-shared", "state": yes });
        self.ask("migrate-set-capabilities", json!({ "capabilities": [capability] })).map(drop)
    }

    pub(crate) fn is_running(&mut self) -> Result<bool, QmpError> {
        Ok(self.ask("query-status", Value::Null)?["running"] == true)
    }

    pub(crate) fn freeze(&mut self) -> Result<(), QmpError> {
        self.ask("stop", Value::Null).map(drop)
    }

    pub(crate) fn resume(&mut self) -> Result<(), QmpError> {
        self.ask("cont", Value::Null).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixListener;

    /// A monitor that expects these commands and gives these answers.
    fn monitor(script: Vec<(&'static str, &'static str)>) -> (tempfile::TempDir, std::thread::JoinHandle<()>) {
        let dir = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(dir.path().join("q")).unwrap();
        let thread = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            writeln!(stream, r#"{{"QMP":{{"version":{{}},"capabilities":[]}}}}"#).unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
            for (command, answer) in [("qmp_capabilities", r#"{"return":{}}"#)].into_iter().chain(script) {
                let line: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
                assert_eq!(line["execute"], command);
                writeln!(stream, "{answer}").unwrap();
            }
        });
        (dir, thread)
    }

    #[test]
    fn news_between_question_and_answer_is_passed_over() {
        let (dir, thread) =
            monitor(vec![("stop", "{\"event\":\"STOP\"}\n{\"return\":{}}"), ("cont", r#"{"error":{"desc":"no"}}"#)]);
        let mut qmp = Qmp::connect(&dir.path().join("q")).unwrap();
        qmp.freeze().unwrap();
        let error = qmp.resume().unwrap_err();
        assert_eq!(error.to_string(), "QEMU refused cont: no");
        thread.join().unwrap();
    }

    #[test]
    fn a_monitor_that_ends_or_talks_nonsense_is_an_error() {
        let (dir, thread) = monitor(vec![("stop", "nonsense")]);
        let mut qmp = Qmp::connect(&dir.path().join("q")).unwrap();
        assert!(matches!(qmp.freeze(), Err(QmpError::Io { .. })));
        thread.join().unwrap();
        assert!(matches!(qmp.freeze(), Err(QmpError::Io { .. })));
        assert!(Qmp::connect(&dir.path().join("nothing")).is_err());
    }

    #[test]
    fn a_save_that_fails_says_why() {
        let done = r#"{"return":{}}"#;
        let failed = r#"{"return":{"status":"failed","error-desc":"No space left"}}"#;
        let script =
            ["migrate-set-capabilities", "getfd", "migrate-set-parameters", "migrate"].map(|name| (name, done));
        // One that stands as a save left it is let go on for a moment first.
        for (status, first) in [
            (r#"{"return":{"status":"paused"}}"#, &[][..]),
            (r#"{"return":{"status":"postmigrate"}}"#, &[("cont", done), ("stop", done)]),
        ] {
            let before = [("query-status", status)].into_iter().chain(first.iter().copied());
            let (dir, thread) = monitor(before.chain(script).chain([("query-migrate", failed)]).collect());
            let mut qmp = Qmp::connect(&dir.path().join("q")).unwrap();
            let error = qmp.save(std::fs::File::open("/dev/null").unwrap(), true, ANSWER_LIMIT).unwrap_err();
            assert_eq!(error.to_string(), "QEMU could not finish the save: No space left");
            thread.join().unwrap();
        }
    }
}
