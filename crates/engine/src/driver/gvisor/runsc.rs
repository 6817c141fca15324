//! The `runsc` command line: making and deleting a sandbox, and the state file it keeps about one.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use runtime_host::process::{self, ProcessId};
use serde::{Deserialize, Serialize};

/// Platform, network and disk are part of what a saved machine depends on: the same for all.
/// The only mounts from the host are read-only files that never change, so they need no revalidation.
pub(crate) const FLAGS: &[&str] = &[
    "--platform=ptrace",
    "--network=none",
    "--overlay2=none",
    "--file-access-mounts=exclusive",
    "--host-uds=none",
    "--debug=false",
];

#[derive(Debug, thiserror::Error)]
pub(crate) enum RunscError {
    #[error("cannot run {path}")]
    Run {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("`runsc {verb}` took longer than {} seconds", .limit.as_secs())]
    Slow { verb: &'static str, limit: Duration },
    #[error("`runsc {verb}` failed ({status})")]
    Failed { verb: &'static str, status: ExitStatus },
    #[error("cannot read the state file {path}")]
    State {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Runsc {
    pub(crate) path: PathBuf,
    /// Where it keeps its state files and control sockets.
    pub(crate) root: PathBuf,
}

/// The three standard descriptors of a sandbox's first process.
pub(crate) struct Stdio3 {
    pub(crate) stdin: OwnedFd,
    pub(crate) stdout: OwnedFd,
    pub(crate) stderr: OwnedFd,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) sentry: u32,
    pub(crate) gofer: Option<u32>,
    pub(crate) control: PathBuf,
}

impl Runsc {
    /// Makes the sandbox; its first process waits to be started.
    pub(crate) fn create(&self, id: &str, bundle: &Path, stdio: Stdio3, limit: Duration) -> Result<(), RunscError> {
        let mut command = self.command();
        command.args(["create", "--bundle"]).arg(bundle).arg(id);
        command.stdin(stdio.stdin).stdout(stdio.stdout).stderr(stdio.stderr);
        self.run("create", command, limit)
    }

    /// Runs the first process; where the control socket is not to be used.
    pub(crate) fn start(&self, id: &str, limit: Duration) -> Result<(), RunscError> {
        let mut command = self.command();
        command.args(["start", id]);
        self.run("start", command, limit)
    }

    /// Forgets a sandbox, ending it if need be. One that is unknown is fine.
    pub(crate) fn delete(&self, id: &str, limit: Duration) -> Result<(), RunscError> {
        if !self.knows(id) {
            return Ok(());
        }
        let mut command = self.command();
        command.args(["delete", "--force", id]);
        self.run("delete", command, limit)
    }

    /// Removes its files about a sandbox of which nothing runs any more. With its control group that is all there is,
    /// and twenty milliseconds faster than asking it to.
    pub(crate) fn forget(&self, id: &str) -> io::Result<()> {
        for name in self.names(id) {
            match fs::remove_file(self.root.join(name)) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                _ => {}
            }
        }
        Ok(())
    }

    pub(crate) fn knows(&self, id: &str) -> bool {
        self.names(id).iter().any(|name| self.root.join(name).exists())
    }

    fn names(&self, id: &str) -> [String; 3] {
        [format!("{id}_sandbox:{id}.state"), format!("{id}_sandbox:{id}.lock"), format!("runsc-{id}.sock")]
    }

    pub(crate) fn state(&self, id: &str) -> Result<State, RunscError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct File {
            #[serde(default)]
            gofer_pid: u32,
            sandbox: Sandbox,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Sandbox {
            pid: u32,
            control_socket_path: PathBuf,
        }
        let [name, ..] = self.names(id);
        let path = self.root.join(name);
        let fail = |source| RunscError::State { path: path.clone(), source };
        let text = fs::read(&path).map_err(fail)?;
        let file: File = serde_json::from_slice(&text).map_err(|e| fail(e.into()))?;
        let gofer = (file.gofer_pid != 0).then_some(file.gofer_pid);
        Ok(State { sentry: file.sandbox.pid, gofer, control: file.sandbox.control_socket_path })
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        // It hands its environment on to the sentry: nothing of ours.
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        command.arg("--root").arg(&self.root).args(FLAGS).stdin(Stdio::null());
        command
    }

    fn run(&self, verb: &'static str, mut command: Command, limit: Duration) -> Result<(), RunscError> {
        let run = |source| RunscError::Run { path: self.path.clone(), source };
        let mut child = command.spawn().map_err(run)?;
        let status = wait(&mut child, limit).map_err(run)?.ok_or(RunscError::Slow { verb, limit })?;
        if status.success() { Ok(()) } else { Err(RunscError::Failed { verb, status }) }
    }
}

/// Waits for a child; one that takes too long is killed.
fn wait(child: &mut Child, limit: Duration) -> io::Result<Option<ExitStatus>> {
    // A child cannot be lost before it is reaped: `None` means that it has ended.
    let ended = match ProcessId::of(child.id()).map(ProcessId::open).transpose()?.flatten() {
        Some(handle) => process::PidFd::wait(&handle, limit)?,
        None => true,
    };
    if !ended {
        child.kill()?;
        child.wait()?;
        return Ok(None);
    }
    child.wait().map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_that_hangs_is_ended() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        assert!(wait(&mut child, Duration::from_millis(20)).unwrap().is_none());
        let mut child = Command::new("true").spawn().unwrap();
        assert!(wait(&mut child, Duration::from_secs(120)).unwrap().unwrap().success());
    }

    #[test]
    fn a_state_file_that_is_cut_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let runsc = Runsc { path: "/nowhere/runsc".into(), root: dir.path().to_owned() };
        assert!(!runsc.knows("a"));
        fs::write(dir.path().join("a_sandbox:a.state"), r#"{"sandbox":{"pid":1"#).unwrap();
        assert!(runsc.knows("a") && runsc.state("a").is_err());
        let whole = r#"{"goferPid":7,"sandbox":{"pid":8,"controlSocketPath":"/run/x"},"other":[]}"#;
        fs::write(dir.path().join("a_sandbox:a.state"), whole).unwrap();
        assert_eq!(runsc.state("a").unwrap(), State { sentry: 8, gofer: Some(7), control: "/run/x".into() });
    }
}
