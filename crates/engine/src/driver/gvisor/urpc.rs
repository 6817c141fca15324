//! The sentry's control socket: one JSON object asks, one answers.
//!
//! It saves the 20 ms that a start of `runsc` costs, but is internal to gVisor. It is therefore used for the release
//! this was tested with ([`crate::prepare::runsc::TESTED`]); another is driven by its command line.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use runtime_host::fdpass;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

const ANSWER_LIMIT: u64 = 1024 * 1024;
/// What every thread of a sandbox is doing, of which there may be some thousands.
const STACKS_LIMIT: u64 = 256 * 1024 * 1024;

#[derive(Debug, thiserror::Error)]
pub(crate) enum UrpcError {
    #[error("cannot {step} the control socket {socket}")]
    Io {
        step: &'static str,
        socket: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the answer to {method} does not parse")]
    Answer {
        method: &'static str,
        #[source]
        source: serde_json::Error,
    },
    #[error("{method} was refused: {text}")]
    Refused { method: &'static str, text: String },
}

#[derive(Serialize)]
struct Call<'a> {
    method: &'a str,
    arg: &'a Value,
}

#[derive(Deserialize)]
struct Answer {
    success: bool,
    #[serde(default)]
    err: String,
    #[serde(default)]
    result: Value,
}

pub(crate) struct Control {
    socket: PathBuf,
    stream: UnixStream,
}

impl Control {
    pub(crate) fn connect(socket: &Path) -> Result<Self, UrpcError> {
        Self::connect_for(socket, Duration::from_secs(30))
    }

    /// For calls that take as long as there is memory to move.
    pub(crate) fn connect_for(socket: &Path, limit: Duration) -> Result<Self, UrpcError> {
        let fail = |step| move |source| UrpcError::Io { step, socket: socket.to_owned(), source };
        let stream = UnixStream::connect(socket).map_err(fail("connect to"))?;
        for bound in [UnixStream::set_read_timeout, UnixStream::set_write_timeout] {
            bound(&stream, Some(limit)).map_err(fail("bound the time of"))?;
        }
        Ok(Self { socket: socket.to_owned(), stream })
    }

    fn call(&mut self, method: &'static str, arg: &Value) -> Result<(), UrpcError> {
        self.call_with(method, arg, &[])
    }

    fn call_with(&mut self, method: &'static str, arg: &Value, files: &[File]) -> Result<(), UrpcError> {
        self.ask(method, arg, files, ANSWER_LIMIT).map(drop)
    }

    /// The files go along with the question.
    fn ask(&mut self, method: &'static str, arg: &Value, files: &[File], limit: u64) -> Result<Value, UrpcError> {
        let fail = |socket: &Path, step, source| UrpcError::Io { step, socket: socket.to_owned(), source };
        let text = serde_json::to_vec(&Call { method, arg }).map_err(|source| UrpcError::Answer { method, source })?;
        let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        let sent = fdpass::send(&self.stream, &text, &files).map_err(|e| fail(&self.socket, "write to", e))?;
        self.stream.write_all(&text[sent..]).map_err(|e| fail(&self.socket, "write to", e))?;
        let mut answers = serde_json::Deserializer::from_reader((&self.stream).take(limit)).into_iter::<Answer>();
        match answers.next() {
            Some(Ok(Answer { success: true, result, .. })) => Ok(result),
            Some(Ok(Answer { err, .. })) => Err(UrpcError::Refused { method, text: err }),
            Some(Err(source)) => Err(UrpcError::Answer { method, source }),
            None => Err(fail(&self.socket, "read from", io::ErrorKind::UnexpectedEof.into())),
        }
    }

    /// Gives the sandbox its loopback interface, the only one it has, and runs its first process.
    pub(crate) fn start(&mut self, id: &str) -> Result<(), UrpcError> {
        self.loopback()?;
        self.call("containerManager.StartRoot", &json!(id))
    }

    /// The same for one whose processes come from a file. `files` are those of [`Self::save`].
    pub(crate) fn restore(&mut self, files: &[File; 3]) -> Result<(), UrpcError> {
        self.loopback()?;
        self.call_with("containerManager.Restore", &json!({"HavePagesFile": true, "HaveDeviceFile": false}), files)
    }

    /// Stops every process where it stands. Each of these needs one [`Self::thaw`].
    pub(crate) fn freeze(&mut self) -> Result<(), UrpcError> {
        self.call("containerManager.Pause", &Value::Null)
    }

    pub(crate) fn thaw(&mut self) -> Result<(), UrpcError> {
        self.call("containerManager.Resume", &Value::Null)
    }

    /// Whether every process is stopped where it stands. Some stop themselves now and then; the agent never does.
    pub(crate) fn is_frozen(&mut self) -> Result<bool, UrpcError> {
        let stacks = self.ask("debug.Stacks", &Value::Null, &[], STACKS_LIMIT)?;
        Ok(stacks.as_str().is_some_and(all_stopped))
    }

    /// Writes the sandbox's state, the index of its memory and its memory into these files. However it goes, the sandbox
    /// is as before: without `Resume`, a failure would end it.
    pub(crate) fn save(&mut self, files: &[File; 3]) -> Result<(), UrpcError> {
        let how = json!({
            "metadata": {"compression": "none"},
            "MemoryFileSaveOpts": {},
            "have_pages_file": true,
            "Resume": true,
        });
        self.call_with("containerManager.Checkpoint", &how, files)
    }

    fn loopback(&mut self) -> Result<(), UrpcError> {
        let network = |ip: &str, mask: &str| json!({"Destination": {"IP": ip, "Mask": mask}, "Gateway": "", "MTU": 0});
        // Masks are bytes in base64: 255.0.0.0, and 128 set bits.
        let loopback = json!({
            "LoopbackLinks": [{
                "Name": "lo",
                "Addresses": [{"Address": "127.0.0.1", "PrefixLen": 8}, {"Address": "::1", "PrefixLen": 128}],
                "Routes": [network("127.0.0.0", "/wAAAA=="), network("::1", "/////////////////////w==")],
            }],
        });
        self.call("Network.CreateLinksAndRoutes", &loopback)
    }
}

/// Of what the threads of gVisor's kernel do: there is one for each thread of the guest, and those of a sandbox that was
/// told to stop all wait to be told to go on.
fn all_stopped(stacks: &str) -> bool {
    let mut guests = stacks.split("\n\n").filter(|stack| stack.contains("kernel.(*Task).run(")).peekable();
    guests.peek().is_some() && guests.all(|stack| stack.contains("kernel.(*Task).doStop("))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sandbox_stands_still_if_every_thread_of_its_guest_does() {
        let stopped = "goroutine 9 [semacquire]:\nsync.(*Cond).Wait\ngvisor/kernel.(*Task).doStop(0x1)\n\
                       gvisor/kernel.(*Task).run(0x1)\n";
        let runs = "goroutine 8 [syscall]:\ngvisor/kernel.(*Task).block(0x1)\ngvisor/kernel.(*Task).run(0x1)\n";
        let other = "goroutine 1 [chan receive]:\nmain.main()\n";
        assert!(all_stopped(&[other, stopped, stopped].join("\n")));
        assert!(!all_stopped(&[other, stopped, runs].join("\n")));
        assert!(!all_stopped(other));
    }

    #[test]
    fn a_refusal_and_a_torn_answer_are_errors() {
        for (answer, expected) in [
            (r#"{"success":false,"err":"no such container","result":null}"#, "refused: no such container"),
            (r#"{"success":tr"#, "does not parse"),
            ("", "cannot read from"),
        ] {
            let (mine, mut theirs) = UnixStream::pair().unwrap();
            theirs.write_all(answer.as_bytes()).unwrap();
            theirs.shutdown(std::net::Shutdown::Write).unwrap();
            let mut control = Control { socket: "test".into(), stream: mine };
            let error = control.call("debug.Test", &json!(null)).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
