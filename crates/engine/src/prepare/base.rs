//! The base image in the pool: found, cloned from a neighbour's, or built.
//!
//! A build happens in a subvolume with a name of its own; only a finished and checked one is made read-only, synced
//! and renamed to its digest. What a crash leaves has another name, and the next setup removes it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use runtime_host::btrfs::{self, BtrfsError};
use runtime_images::apt;
use runtime_images::base as image;

use super::{Pool, PrepareError, Progress, pool};

/// What unfinished images are called.
const ASIDE: &str = ".build-";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Base {
    pub digest: String,
    pub path: PathBuf,
}

impl Base {
    /// This version's base image, if the pool has it, or if the file system the pool is a part of has it: then it
    /// is cloned, which takes no time.
    pub fn find(pool: &Pool) -> Result<Option<Self>, PrepareError> {
        let digest = image::digest();
        let path = pool.base_dir().join(&digest);
        if is_finished(&path) {
            return Ok(Some(Self { digest, path }));
        }
        let Some(neighbour) = pool.shared_root().map(|root| root.join("base").join(&digest)) else { return Ok(None) };
        if !is_finished(&neighbour) {
            return Ok(None);
        }
        let source = File::open(&neighbour).map_err(|source| PrepareError::Io {
            step: "open the base image",
            path: neighbour,
            source,
        })?;
        match btrfs::snapshot(&source, pool.base_fd(), &digest, true, None) {
            Ok(()) => {}
            Err(e) if e.errno() == Some(rustix::io::Errno::EXIST.raw_os_error()) => {}
            Err(e) => return Err(e.into()),
        }
        Ok(Some(Self { digest, path }))
    }

    /// Builds it. The caller holds the setup lock.
    pub(super) async fn build(data_dir: &Path, pool: &Pool, progress: &dyn Progress) -> Result<Self, PrepareError> {
        let sources = apt::debian(Path::new("/etc/apt"))?;
        let digest = image::digest();
        let aside = format!("{ASIDE}{digest}");
        btrfs::create_subvolume(pool.base_fd(), &aside)?;
        let target = pool.base_dir().join(&aside);
        let work = Scratch::new(data_dir, "base")?;
        let built = image::build(&target, work.path(), &sources, &|line| {
            if let Some(stage) = image::stage(line) {
                progress.note(stage);
            }
        })
        .await;
        if let Err(e) = built {
            sweep(pool)?;
            return Err(e.into());
        }
        publish(pool, &aside, &digest)?;
        Ok(Self { path: pool.base_dir().join(&digest), digest })
    }
}

/// Gives a complete image its name.
pub(super) fn publish(pool: &Pool, aside: &str, digest: &str) -> Result<(), PrepareError> {
    let from = pool.base_dir().join(aside);
    let fail = |step| {
        let path = from.clone();
        move |source| PrepareError::Io { step, path, source }
    };
    let subvolume = File::open(&from).map_err(fail("open"))?;
    btrfs::set_read_only(&subvolume, true)?;
    btrfs::sync(&subvolume)?;
    fs::rename(&from, pool.base_dir().join(digest)).map_err(fail("name"))?;
    btrfs::sync(&subvolume)?;
    Ok(())
}

/// Removes unfinished images; how many there were.
pub(super) fn sweep(pool: &Pool) -> Result<usize, PrepareError> {
    let mut swept = 0;
    for name in unfinished(pool)? {
        btrfs::delete_subvolume(pool.base_fd(), &name)?;
        swept += 1;
    }
    Ok(swept)
}

pub(super) fn unfinished(pool: &Pool) -> Result<Vec<String>, BtrfsError> {
    Ok(pool::subvolumes_in(&pool.base_dir())?.into_iter().filter(|name| name.starts_with(ASIDE)).collect())
}

fn is_finished(path: &Path) -> bool {
    File::open(path)
        .is_ok_and(|fd| btrfs::is_subvolume(&fd).unwrap_or(false) && btrfs::is_read_only(&fd).unwrap_or(false))
}

/// A directory in the data directory for the files of one step: gone with it, or emptied by the next setup.
pub(super) struct Scratch(PathBuf);

impl Scratch {
    pub(super) fn new(data_dir: &Path, purpose: &str) -> Result<Self, PrepareError> {
        let path = data_dir.join(format!(".setup-{purpose}"));
        let _ = fs::remove_dir_all(&path);
        super::make_private_dir(&path).map(Self)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
