//! The same work by hand: plain `runsc` on a bundle made here, and a plain fork and exec on the host.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::json;

pub struct Raw {
    data_dir: PathBuf,
    dir: PathBuf,
    base: PathBuf,
    next: std::cell::Cell<u32>,
}

/// A container started by hand, with a disk of its own.
pub struct Container<'a> {
    raw: &'a Raw,
    id: String,
    root: PathBuf,
}

impl Raw {
    /// Uses the data directory's base image; works in a folder of its own inside the pool.
    pub fn prepare(data_dir: &Path) -> Result<Self> {
        let bases = data_dir.join("pool/base");
        let base = fs::read_dir(&bases)
            .with_context(|| format!("read {} (run `runtime setup` first)", bases.display()))?
            .filter_map(|entry| entry.ok().map(|e| e.path()))
            .find(|path| path.join("usr/bin/python3").exists())
            .with_context(|| format!("no base image in {}", bases.display()))?;
        let dir = data_dir.join("pool").join(format!("bench-{}", std::process::id()));
        fs::create_dir_all(&dir)?;
        Ok(Self { data_dir: data_dir.to_owned(), dir, base, next: std::cell::Cell::new(0) })
    }

    pub fn data_dir(&self) -> &Path {
        &self.data_dir
    }

    fn runsc(&self) -> Command {
        let mut command = Command::new("runsc");
        command
            .arg("--root")
            .arg(self.dir.join("state"))
            .args(["--platform=ptrace", "--network=none", "--overlay2=none"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command
    }

    /// Clone of the base, bundle, `runsc run --detach`.
    pub fn run(&self) -> Result<Container<'_>> {
        let n = self.next.get();
        self.next.set(n + 1);
        let id = format!("bench{n:05}");
        let bundle = self.dir.join(&id);
        let root = self.dir.join(format!("{id}-root"));
        fs::create_dir_all(&bundle)?;
        succeed(Command::new("btrfs").args(["-q", "subvolume", "snapshot"]).arg(&self.base).arg(&root))?;
        let caps = ["CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_KILL", "CAP_SETGID", "CAP_SETUID"];
        let config = json!({
            "ociVersion": "1.0.0",
            "process": {
                "user": {"uid": 0, "gid": 0}, "args": ["/bin/sleep", "infinity"], "cwd": "/",
                "env": ["PATH=/usr/local/bin:/usr/bin:/bin"],
                "capabilities": {"bounding": caps, "effective": caps, "permitted": caps},
            },
            "root": {"path": root, "readonly": false},
            "hostname": "bench",
            "mounts": [
                {"destination": "/proc", "type": "proc", "source": "proc"},
                {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs"},
            ],
            "linux": {"namespaces": [{"type": "pid"}, {"type": "mount"}, {"type": "uts"}, {"type": "ipc"}, {"type": "network"}]},
        });
        fs::write(bundle.join("config.json"), config.to_string())?;
        succeed(self.runsc().args(["run", "--detach", "--bundle"]).arg(&bundle).arg(&id))?;
        Ok(Container { raw: self, id, root })
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // Best effort: a leftover is a folder named bench-<pid> in the pool.
        let _ = fs::remove_dir_all(&self.dir);
    }
}

impl Container<'_> {
    pub fn exec(&self, argv: &[&str]) -> Result<Duration> {
        let start = Instant::now();
        succeed(self.raw.runsc().args(["exec", &self.id]).args(argv))?;
        Ok(start.elapsed())
    }
}

impl Drop for Container<'_> {
    fn drop(&mut self) {
        let _ = self.raw.runsc().args(["delete", "--force", &self.id]).status();
        let _ = Command::new("btrfs").args(["-q", "subvolume", "delete"]).arg(&self.root).status();
    }
}

/// A plain fork and exec on the host.
pub fn host_exec(argv: &[&str]) -> Result<Duration> {
    let start = Instant::now();
    succeed(Command::new(argv[0]).args(&argv[1..]))?;
    Ok(start.elapsed())
}

fn succeed(command: &mut Command) -> Result<()> {
    let status = command.stdout(Stdio::null()).status().with_context(|| format!("start {command:?}"))?;
    ensure!(status.success(), "{command:?} ended with {status}");
    Ok(())
}
