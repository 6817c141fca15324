//! The sentry's control socket: one JSON object asks, one answers.
//!
//! It saves the 20 ms that a start of `runsc` costs, but is internal to gVisor. It is therefore used for the release
//! this was tested with ([`crate::prepare::runsc::TESTED`]); another is driven by its command line.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

const ANSWER_LIMIT: u64 = 1024 * 1024;

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
}

pub(crate) struct Control {
    socket: PathBuf,
    stream: UnixStream,
}

impl Control {
    pub(crate) fn connect(socket: &Path) -> Result<Self, UrpcError> {
        let fail = |step| move |source| UrpcError::Io { step, socket: socket.to_owned(), source };
        let stream = UnixStream::connect(socket).map_err(fail("connect to"))?;
        for limit in [UnixStream::set_read_timeout, UnixStream::set_write_timeout] {
            limit(&stream, Some(Duration::from_secs(30))).map_err(fail("bound the time of"))?;
        }
        Ok(Self { socket: socket.to_owned(), stream })
    }

    fn call(&mut self, method: &'static str, arg: &Value) -> Result<(), UrpcError> {
        let fail = |socket: &Path, step, source| UrpcError::Io { step, socket: socket.to_owned(), source };
        let text = serde_json::to_vec(&Call { method, arg }).map_err(|source| UrpcError::Answer { method, source })?;
        self.stream.write_all(&text).map_err(|e| fail(&self.socket, "write to", e))?;
        let mut answers =
            serde_json::Deserializer::from_reader((&self.stream).take(ANSWER_LIMIT)).into_iter::<Answer>();
        match answers.next() {
            Some(Ok(Answer { success: true, .. })) => Ok(()),
            Some(Ok(Answer { err, .. })) => Err(UrpcError::Refused { method, text: err }),
            Some(Err(source)) => Err(UrpcError::Answer { method, source }),
            None => Err(fail(&self.socket, "read from", io::ErrorKind::UnexpectedEof.into())),
        }
    }

    /// Gives the sandbox its loopback interface, the only one it has, and runs its first process.
    pub(crate) fn start(&mut self, id: &str) -> Result<(), UrpcError> {
        let network = |ip: &str, mask: &str| json!({"Destination": {"IP": ip, "Mask": mask}, "Gateway": "", "MTU": 0});
        // Masks are bytes in base64: 255.0.0.0, and 128 set bits.
        let loopback = json!({
            "LoopbackLinks": [{
                "Name": "lo",
                "Addresses": [{"Address": "127.0.0.1", "PrefixLen": 8}, {"Address": "::1", "PrefixLen": 128}],
                "Routes": [network("127.0.0.0", "/wAAAA=="), network("::1", "/////////////////////w==")],
            }],
        });
        self.call("Network.CreateLinksAndRoutes", &loopback)?;
        self.call("containerManager.StartRoot", &json!(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
