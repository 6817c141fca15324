//! Taking a data directory away with all that a host holds for it, whatever state it is in.

use crate::process::{send_signal, started};
use crate::{Places, leaks, poll};
use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const PREFIX: &str = "test-";
/// The inode number of the root of every btrfs subvolume.
const SUBVOLUME_ROOT: u64 = 256;

/// A new directory in the pool whose name tells which process made it.
pub(crate) fn make(pool: &Path) -> Result<PathBuf> {
    let pid = std::process::id();
    let born = started(i32::try_from(pid)?).context("when this test started")?;
    let dir = pool.join(crate::unique(&format!("{PREFIX}{pid}-{born}")));
    fs::create_dir(&dir).with_context(|| format!("make the data directory {}", dir.display()))?;
    Ok(dir)
}

/// Removes what tests left that were ended before they could clean up. One sweeper at a time.
pub(crate) fn stale(pool: &Path) -> Result<()> {
    let path = pool.join(".test-sweep");
    let lock = File::create(&path).with_context(|| format!("create {}", path.display()))?;
    lock.lock().with_context(|| format!("lock {}", path.display()))?;
    for entry in fs::read_dir(pool).with_context(|| format!("list {}", pool.display()))? {
        let dir = entry?.path();
        if maker_is_gone(&dir) {
            remove(&Places::of(&dir))?;
        }
    }
    Ok(())
}

fn maker_is_gone(dir: &Path) -> bool {
    let Some(name) = dir.file_name().and_then(|name| name.to_str()?.strip_prefix(PREFIX)) else { return false };
    let mut parts = name.split('-');
    let (Some(pid), Some(born)) = (parts.next(), parts.next()) else { return false };
    let (Ok(pid), Ok(born)) = (pid.parse::<i32>(), born.parse::<u64>()) else { return false };
    started(pid) != Some(born)
}

/// Kills who holds the directory, then undoes mounts, cgroups, run directories, subvolumes and files.
pub(crate) fn remove(places: &Places) -> Result<()> {
    let dir = &places.data;
    let name = dir.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if !name.starts_with(PREFIX) {
        bail!("refusing to remove {}: no test made it", dir.display());
    }
    kill(places);
    for mount in leaks::mounts_of(places).into_iter().rev() {
        let _ = Command::new("umount").args(["--lazy", &mount]).output();
    }
    for cgroup in leaks::cgroups_of(places).into_iter().rev() {
        poll::eventually(&format!("cgroup {} can go", cgroup.display()), Duration::from_secs(10), || {
            match fs::remove_dir(&cgroup) {
                Err(error) => error.kind() == std::io::ErrorKind::NotFound,
                Ok(()) => true,
            }
        });
    }
    subvolumes(dir)?;
    remove_tree(&places.run)?;
    remove_tree(dir)
}

fn remove_tree(dir: &Path) -> Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("remove {}", dir.display()))
        }
        _ => Ok(()),
    }
}

/// A helper may start another while it is being killed, so this goes on until none is seen.
fn kill(places: &Places) {
    poll::eventually(&format!("no process holds {}", places.data.display()), Duration::from_secs(20), || {
        let held = leaks::helpers(places);
        held.iter().for_each(|process| send_signal(process.pid, Signal::KILL));
        held.is_empty()
    });
}

fn subvolumes(dir: &Path) -> Result<()> {
    for nested in nested_subvolumes(dir) {
        // The product may have set it read-only.
        let _ = Command::new("btrfs").args(["property", "set", "-f"]).arg(&nested).args(["ro", "false"]).output();
        let done = Command::new("btrfs").args(["subvolume", "delete"]).arg(&nested).output();
        let done = done.with_context(|| format!("start btrfs to delete {}", nested.display()))?;
        if !done.status.success() {
            bail!("delete subvolume {}: {}", nested.display(), String::from_utf8_lossy(&done.stderr).trim());
        }
    }
    Ok(())
}

/// Deepest first. Subvolumes are not entered: the product makes none inside a sandbox's disk.
fn nested_subvolumes(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let mut found = Vec::new();
    for entry in entries.flatten() {
        let path = entry.path();
        if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        if entry.metadata().is_ok_and(|meta| meta.ino() == SUBVOLUME_ROOT) {
            found.push(path);
        } else {
            found.extend(nested_subvolumes(&path));
        }
    }
    found
}
