//! Where the things of one sandbox lie on the host, and how its shim is started there; the same for every driver.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use runtime_model::SandboxId;
use serde::{Deserialize, Serialize};
use tokio::net::UnixStream;

use super::machine::Tie;
use super::{DriverError, record};
use crate::host_state::host_name;
use crate::shim::{SUBCOMMAND, Spec};

/// Names in a sandbox's run directory.
pub(crate) mod paths {
    pub(crate) const TO_GUEST: &str = "in";
    pub(crate) const FROM_GUEST: &str = "out";
    /// The standard error of the guest's first process; a microVM's console.
    pub(crate) const COMPLAINTS: &str = "err";
    pub(crate) const SOCKET: &str = "s";
    /// A microVM's channel, and its monitor.
    pub(crate) const CHANNEL: &str = "c";
    pub(crate) const MONITOR: &str = "q";
    pub(crate) const SPEC: &str = "shim.json";
    pub(crate) const BUNDLE: &str = "bundle";
    pub(crate) const LOG: &str = "log";
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Places {
    /// Sockets and pipes; gone after a reboot. Its path is short.
    pub(crate) run_dir: PathBuf,
    /// Records; in the data directory.
    pub(crate) machine_dir: PathBuf,
}

impl Places {
    pub(crate) fn new(run_dir: &Path, data_dir: &Path, id: SandboxId) -> Self {
        let name = host_name(id);
        Self { run_dir: run_dir.join(&name), machine_dir: data_dir.join("sandboxes").join(&name) }
    }

    pub(crate) fn make(&self) -> Result<(), DriverError> {
        make_dir(&self.machine_dir)?;
        make_dir(&self.run_dir)
    }

    /// Writes down what the next shim is to do, and makes its socket.
    pub(crate) fn listen_for_shim(&self, spec: &Spec) -> Result<OwnedFd, DriverError> {
        write_file(&self.run_dir.join(paths::SPEC), spec)?;
        listen(&self.run_dir.join(paths::SOCKET))
    }

    /// Starts a shim on that socket and connects to it. The connection waits in the socket's queue until it is accepted.
    /// `handed` is what the shim finds as its standard error.
    pub(crate) async fn start_shim(
        &self,
        program: &Path,
        socket: OwnedFd,
        handed: impl Into<Stdio>,
    ) -> Result<Tie, DriverError> {
        let mut command = tokio::process::Command::new(program);
        command.arg(SUBCOMMAND).arg(&self.run_dir).current_dir("/");
        command.env_clear().stdin(socket).stdout(Stdio::null()).stderr(handed);
        let child = command.spawn().map_err(|e| DriverError::new("start the shim by", program.display(), e))?;
        let path = self.run_dir.join(paths::SOCKET);
        let stream = UnixStream::connect(&path)
            .await
            .map_err(|e| DriverError::new("connect to the shim at", path.display(), e))?;
        Ok(Tie::new(stream, Some(child)))
    }

    pub(crate) fn remove(&self) -> Result<(), DriverError> {
        for dir in [&self.run_dir, &self.machine_dir] {
            match fs::remove_dir_all(dir) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => {
                    return Err(DriverError::new("remove", dir.display(), e));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// A socket in place of whatever was there.
pub(crate) fn listen(path: &Path) -> Result<OwnedFd, DriverError> {
    let fail = |e| DriverError::new("make the socket", path.display(), e);
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(fail(e)),
        _ => {}
    }
    std::os::unix::net::UnixListener::bind(path).map(OwnedFd::from).map_err(fail)
}

pub(crate) fn make_dir(path: &Path) -> Result<(), DriverError> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(|e| DriverError::new("make the directory", path.display(), e))
}

pub(crate) fn write_file(path: &Path, value: &impl Serialize) -> Result<(), DriverError> {
    record::write(path, value).map(drop).map_err(|e| DriverError::new("write", path.display(), e))
}

/// Runs work that waits for the kernel off the async threads. It is not stopped when its caller goes away.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, DriverError> + Send + 'static,
) -> Result<T, DriverError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => Err(DriverError::new("finish", "a step on the host", error)),
    }
}
