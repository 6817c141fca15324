//! The Debian packages the host needs, installed from the machine's own sources.
//!
//! gVisor and a btrfs tool that knows simple quotas are in Debian 12's backports. The backports source is derived
//! from the configured Debian source and used for this one call only, with package lists of its own: the machine's
//! configuration is not changed. Nothing is ever downgraded or removed.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use runtime_images::apt::{self, RELEASE, Source};
use tokio::process::Command;

use super::base::Scratch;
use super::qemu::{Qemu, QemuError};
use super::runsc::{Runsc, RunscError, TESTED};
use super::{Kind, PrepareError, Progress};

/// The first btrfs tools that know a file system with simple quotas.
const BTRFS_SINCE: (u32, u32) = (6, 7);
/// Another package manager may be at work; waiting beats failing.
const LOCK_SECONDS: &str = "300";
const LAST_LINES: usize = 25;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    pub name: &'static str,
    pub why: &'static str,
    backports: bool,
}

/// What is missing here, or too old, for this engine.
pub fn missing(engine: Kind) -> Vec<Wanted> {
    let mut wanted = Vec::new();
    let plain = |name, why| Wanted { name, why, backports: false };
    if tool("mmdebstrap").is_none() {
        wanted.push(plain("mmdebstrap", "builds the base image"));
    }
    if btrfs_version().is_none_or(|version| version < BTRFS_SINCE) {
        wanted.push(Wanted { name: "btrfs-progs", why: "makes the disk pool", backports: true });
    }
    match engine {
        Kind::Gvisor => {
            if matches!(Runsc::find(), Err(RunscError::Absent | RunscError::TooOld { .. })) {
                wanted.push(Wanted {
                    name: "runsc",
                    why: "is gVisor, the kernel each sandbox runs on",
                    backports: true,
                });
            }
        }
        Kind::Firecracker => {
            if tool("mkfs.ext4").is_none() {
                wanted.push(plain("e2fsprogs", "makes the disks of microVMs"));
            }
        }
        Kind::Qemu => {
            if matches!(Qemu::find(), Err(QemuError::Absent | QemuError::TooOld { .. })) {
                wanted.push(plain("qemu-system-x86", "is QEMU, the machine each sandbox is"));
            }
            if tool("mkfs.ext4").is_none() {
                wanted.push(plain("e2fsprogs", "makes the disks of microVMs"));
            }
        }
    }
    wanted
}

/// A program of the system by name. A fixed list, because PATH may be an ordinary user's under sudo or su.
pub fn tool(name: &str) -> Option<PathBuf> {
    ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"]
        .map(|dir| Path::new(dir).join(name))
        .into_iter()
        .find(|path| path.is_file())
}

/// The version of the btrfs tools, where they are complete.
pub fn btrfs_version() -> Option<(u32, u32)> {
    let output = std::process::Command::new(tool("mkfs.btrfs")?).arg("--version").stdin(Stdio::null()).output().ok()?;
    parse_btrfs(&String::from_utf8_lossy(&output.stdout))
}

/// Installs them.
pub(super) async fn install(
    data_dir: &Path,
    engine: Kind,
    wanted: &[Wanted],
    progress: &dyn Progress,
) -> Result<(), PrepareError> {
    if tool("apt-get").is_none() || tool("dpkg").is_none() {
        let names: Vec<&str> = wanted.iter().map(|w| w.name).collect();
        let what = format!("this is no Debian; install these yourself and run setup again: {}", names.join(", "));
        return Err(PrepareError::Packages { what });
    }
    let scratch = Scratch::new(data_dir, "apt")?;
    let apt = Apt::new(scratch.path(), &apt::debian_with_backports(Path::new("/etc/apt"))?)?;
    progress.note("reading the package lists");
    apt.run(&["update"]).await?;
    let names: Vec<String> = wanted.iter().map(Wanted::request).collect();
    progress.note(&format!("installing {}", names.join(" ")));
    let mut arguments = vec!["install", "--yes", "--no-install-recommends", "--no-remove"];
    arguments.extend(names.iter().map(String::as_str));
    apt.run(&arguments).await?;

    let left: Vec<&str> = missing(engine).iter().map(|w| w.name).collect();
    if left.is_empty() {
        return Ok(());
    }
    let what = format!(
        "{} still missing or too old after the installation (runsc must be release {TESTED} or later)",
        left.join(", ")
    );
    Err(PrepareError::Packages { what })
}

impl Wanted {
    /// As apt is asked for it.
    fn request(&self) -> String {
        if self.backports { format!("{}/{RELEASE}-backports", self.name) } else { self.name.to_owned() }
    }
}

/// apt with sources and lists of its own, and otherwise the machine's settings.
pub(super) struct Apt {
    options: Vec<String>,
}

impl Apt {
    pub(super) fn new(dir: &Path, sources: &[Source]) -> Result<Self, PrepareError> {
        let list = dir.join("sources.list");
        let lists = dir.join("lists");
        let text: String = sources.iter().flat_map(Source::lines).map(|line| line + "\n").collect();
        for made in [lists.join("partial"), dir.join("parts")] {
            fs::create_dir_all(&made).map_err(|source| PrepareError::Io { step: "make", path: made, source })?;
        }
        fs::write(&list, text).map_err(|source| PrepareError::Io { step: "write", path: list.clone(), source })?;
        let option = |name: &str, value: String| format!("{name}={value}");
        let path = |path: PathBuf| path.display().to_string();
        Ok(Self {
            options: vec![
                option("Dir::Etc::SourceList", path(list)),
                option("Dir::Etc::SourceParts", path(dir.join("parts"))),
                option("Dir::State::Lists", path(lists)),
                option("Dir::Cache::pkgcache", String::new()),
                option("Dir::Cache::srcpkgcache", String::new()),
                // The lists lie in a directory that is root's only.
                option("APT::Sandbox::User", "root".into()),
                option("DPkg::Lock::Timeout", LOCK_SECONDS.into()),
                option("Dpkg::Options::", "--force-confold".into()),
            ],
        })
    }

    pub(super) async fn run(&self, arguments: &[&str]) -> Result<(), PrepareError> {
        self.run_in(Path::new("/"), arguments).await
    }

    /// Runs in a directory: what is downloaded lands there.
    pub(super) async fn run_in(&self, dir: &Path, arguments: &[&str]) -> Result<(), PrepareError> {
        let mut command = Command::new(tool("apt-get").unwrap_or_else(|| "apt-get".into()));
        for option in &self.options {
            command.arg("-o").arg(option);
        }
        command.arg("--quiet=2").args(arguments).current_dir(dir);
        finish(command, format!("apt-get {}", arguments.join(" "))).await.map(drop)
    }
}

/// Runs a tool of the system; what it printed.
pub(super) async fn command(name: &'static str, arguments: &[&OsStr]) -> Result<String, PrepareError> {
    let mut command = Command::new(tool(name).unwrap_or_else(|| name.into()));
    command.args(arguments);
    finish(command, name.to_owned()).await
}

async fn finish(mut command: Command, name: String) -> Result<String, PrepareError> {
    let output = command
        .env("DEBIAN_FRONTEND", "noninteractive")
        .env("LC_ALL", "C.UTF-8")
        .stdin(Stdio::null())
        .output()
        .await
        .map_err(|source| PrepareError::Io { step: "start", path: PathBuf::from(&name), source })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    }
    let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    let lines: Vec<&str> = said.lines().collect();
    Err(PrepareError::Command {
        command: name,
        status: output.status.to_string(),
        last: lines[lines.len().saturating_sub(LAST_LINES)..].join("\n"),
    })
}

/// `mkfs.btrfs, part of btrfs-progs v6.14`
fn parse_btrfs(text: &str) -> Option<(u32, u32)> {
    let version = text.lines().next()?.split_whitespace().find_map(|word| word.strip_prefix('v'))?;
    let mut parts = version.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_the_btrfs_tools() {
        assert_eq!(parse_btrfs("mkfs.btrfs, part of btrfs-progs v6.14\n"), Some((6, 14)));
        assert!(parse_btrfs("mkfs.btrfs, part of btrfs-progs v6.2").unwrap() < BTRFS_SINCE);
        assert_eq!(parse_btrfs(""), None);
    }

    #[test]
    fn backports_are_asked_for_by_name_and_the_rest_is_not() {
        let plain = Wanted { name: "mmdebstrap", why: "", backports: false };
        let backport = Wanted { name: "runsc", why: "", backports: true };
        assert_eq!(plain.request(), "mmdebstrap");
        assert_eq!(backport.request(), "runsc/bookworm-backports");
    }
}
