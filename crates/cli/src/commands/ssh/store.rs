//! Keys and host keys, in a directory that is this user's alone.
//!
//! A key of ours opens nothing by itself: it may log in on the one connection whose opening, with the API's key, named it.
//! So the pair that editors and scripts use may stay, while `runtime sandboxes ssh` makes one for each connection. A host
//! key is for one connection as well, and is forgotten soon after OpenSSH has looked for it.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, anyhow};
use rustix::fs::{FlockOperation, flock};

use super::{Surroundings, no_openssh};
use crate::failure::Failure;

/// How long OpenSSH may take from the start of its proxy to its look at the file.
const KNOWN_FOR: Duration = Duration::from_secs(10 * 60);
/// Files of a login whose program was killed are taken away after this.
const LEFT_FOR: Duration = Duration::from_secs(24 * 60 * 60);
/// What a file of ours may have.
const LONGEST: u64 = 1024 * 1024;
const LOGIN: &str = "login-";

#[derive(Debug)]
pub(super) struct Store {
    dir: PathBuf,
    /// For one connection: gone with this.
    once: bool,
}

impl Store {
    pub(super) fn of(around: &Surroundings) -> Result<Self, Failure> {
        let config = around.config_dir.as_deref();
        let config =
            config.ok_or_else(|| anyhow!("neither HOME nor XDG_CONFIG_HOME is set: there is no place for keys"))?;
        let dir = config.join("runtime-cloud/ssh");
        make_dir(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        Ok(Self { dir, once: false })
    }

    /// A place for one login, with a pair of its own.
    pub(super) fn for_one_login(&self) -> Result<Self, Failure> {
        self.sweep();
        let mut random = [0; 8];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty()).context("cannot draw a name")?;
        let dir = self.dir.join(format!("{LOGIN}{:016x}", u64::from_ne_bytes(random)));
        DirBuilder::new().mode(0o700).create(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        let store = Self { dir, once: true };
        make_pair(&store.identity())?;
        Ok(store)
    }

    pub(super) fn identity(&self) -> PathBuf {
        self.dir.join("id_ed25519")
    }

    pub(super) fn public_key(&self) -> PathBuf {
        self.dir.join("id_ed25519.pub")
    }

    pub(super) fn known_hosts(&self) -> PathBuf {
        self.dir.join("known_hosts")
    }

    pub(super) fn config(&self) -> PathBuf {
        self.dir.join("config")
    }

    pub(super) fn write_config(&self, text: &str) -> Result<(), Failure> {
        let file = self.config();
        Ok(replace(&file, text.as_bytes()).with_context(|| format!("cannot write {}", file.display()))?)
    }

    /// The pair that stays, made when it is first needed.
    pub(super) fn lasting_pair(&self) -> Result<(), Failure> {
        let _lock = lock(&self.dir)?;
        if self.identity().exists() && self.public_key().exists() {
            return Ok(());
        }
        let new = self.dir.join("new_ed25519");
        for old in [new.clone(), new.with_extension("pub")] {
            let _ = fs::remove_file(old);
        }
        make_pair(&new)?;
        let step = || format!("cannot put a key into {}", self.dir.display());
        fs::rename(new.with_extension("pub"), self.public_key()).with_context(step)?;
        Ok(fs::rename(&new, self.identity()).with_context(step)?)
    }

    fn sweep(&self) {
        let Ok(entries) = fs::read_dir(&self.dir) else { return };
        for entry in entries.flatten() {
            let is_login = entry.file_name().to_str().is_some_and(|name| name.starts_with(LOGIN));
            let changed = entry.metadata().and_then(|meta| meta.modified()).ok();
            if is_login && changed.and_then(|at| at.elapsed().ok()).is_some_and(|age| age > LEFT_FOR) {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        if self.once {
            let _ = fs::remove_dir_all(&self.dir);
        }
    }
}

/// The type and the base64 of a public key's file.
pub(super) fn read_public(file: &Path) -> Result<String, Failure> {
    let step = || format!("cannot read the public key {}", file.display());
    let mut text = String::new();
    File::open(file).and_then(|file| file.take(LONGEST).read_to_string(&mut text)).with_context(step)?;
    let mut words = text.split_whitespace();
    match (words.next(), words.next()) {
        (Some(name), Some(blob)) => Ok(format!("{name} {blob}")),
        _ => Err(anyhow!("{} holds no public key", file.display()).into()),
    }
}

/// Has OpenSSH know a host by this key, for a while. Others may be connecting to the same host, with keys of their own.
pub(super) fn know(file: &Path, host: &str, key: &str) -> Result<(), Failure> {
    let step = || format!("cannot write the host key to {}", file.display());
    let _lock = lock(file.parent().unwrap_or(Path::new(".")))?;
    let mut known = String::new();
    match File::open(file).and_then(|file| file.take(LONGEST).read_to_string(&mut known)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(anyhow::Error::new(error).context(step()).into());
        }
        _ => {}
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let text = with_host(&known, host, key, now);
    Ok(replace(file, text.as_bytes()).with_context(step)?)
}

/// The lines that are still wanted, and one more. Each ends with the second it was written.
fn with_host(known: &str, host: &str, key: &str, now: u64) -> String {
    let fresh = |line: &&str| {
        let at = line.rsplit(' ').next().and_then(|word| word.strip_prefix("runtime:")?.parse::<u64>().ok());
        at.is_some_and(|at| now.abs_diff(at) <= KNOWN_FOR.as_secs())
    };
    let mut text: String = known.lines().filter(fresh).map(|line| format!("{line}\n")).collect();
    text.push_str(&format!("{host},[{host}]:* {key} runtime:{now}\n"));
    text
}

fn make_pair(file: &Path) -> Result<(), Failure> {
    let made = Command::new("ssh-keygen")
        .args(["-q", "-t", "ed25519", "-N", "", "-C", "runtime", "-f"])
        .arg(file)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| no_openssh("ssh-keygen", &error))?;
    if !made.status.success() {
        let said = String::from_utf8_lossy(&made.stderr).trim().to_owned();
        return Err(anyhow!("ssh-keygen could not make {}: {said}", file.display()).into());
    }
    Ok(())
}

/// Nobody else reads what is in it.
pub(super) fn make_dir(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

/// Held until it is dropped.
fn lock(dir: &Path) -> Result<File, Failure> {
    let path = dir.join("lock");
    let step = || format!("cannot lock {}", path.display());
    let file = File::options().create(true).truncate(false).write(true).mode(0o600).open(&path).with_context(step)?;
    flock(&file, FlockOperation::LockExclusive).with_context(step)?;
    Ok(file)
}

/// The whole of a file at once; who reads it meanwhile has the old one. Its mode stays; a new one is the user's alone.
pub(super) fn replace(file: &Path, content: &[u8]) -> io::Result<()> {
    let mode = fs::metadata(file).map_or(0o600, |meta| meta.permissions().mode() & 0o777);
    let name = file.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let mut new = name.to_owned();
    new.push(format!(".{}.new", std::process::id()));
    let new = file.with_file_name(new);
    let written = File::options()
        .create(true)
        .truncate(true)
        .write(true)
        .mode(0o600)
        .open(&new)
        .and_then(|mut to| to.write_all(content).and_then(|()| to.set_permissions(Permissions::from_mode(mode))))
        .and_then(|()| fs::rename(&new, file));
    if written.is_err() {
        let _ = fs::remove_file(&new);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_known_by_every_key_of_now_and_by_none_of_before() {
        let first = with_host("", "w.runtime", "ssh-ed25519 AAAA", 1000);
        assert_eq!(first, "w.runtime,[w.runtime]:* ssh-ed25519 AAAA runtime:1000\n");
        let second = with_host(&first, "w.runtime", "ssh-ed25519 BBBB", 1600);
        assert_eq!(second.lines().count(), 2);
        let later = with_host(&format!("{second}not ours\n"), "x.runtime", "ssh-ed25519 CCCC", 2200);
        assert_eq!(later.lines().map(|line| line.split(' ').nth(2)).collect::<Vec<_>>(), [Some("BBBB"), Some("CCCC")]);
    }

    #[test]
    fn a_public_key_is_its_first_two_words() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("k.pub");
        fs::write(&file, "ssh-ed25519 AAAA someone at home\n").expect("written");
        assert_eq!(read_public(&file).expect("a key"), "ssh-ed25519 AAAA");
        fs::write(&file, "\n").expect("written");
        assert!(read_public(&file).is_err());
        assert!(read_public(&dir.path().join("none")).is_err());
    }
}
