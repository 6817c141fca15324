//! Memories of paused machines on disk, each with the disk that goes with it: `pool/save/<id>`.
//!
//! ```text
//!   new-<n> ──commit──> gen-<n> ──about to run──> used-<n> ──runs──> spent-<n> ──> (gone)
//!                          disk-<n> is there from before gen-<n> to after used-<n>
//! ```
//!
//! A memory is written beside what is there and gets its name when it and its disk are whole and durable. From the moment
//! its machine may run the sandbox's own disk may be ahead of it (`used`); should that machine be lost before it was heard,
//! both are taken again from here. Once it was heard, and before anybody can use it, it is `spent`: what the sandbox does
//! from then on must never be undone. The newest that is not spent counts; everything else is swept.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use runtime_host::btrfs::{self, BtrfsError};
use runtime_model::SandboxId;

use crate::driver::Saved;
use crate::host_state::{host_name, parse_host_name};
use crate::prepare::{Pool, SAVE};

const NEW: &str = "new-";
const WHOLE: &str = "gen-";
const USED: &str = "used-";
const SPENT: &str = "spent-";
const DISK: &str = "disk-";
/// A disk on its way back.
const ASIDE: &str = "back-";

#[derive(Debug, thiserror::Error)]
pub(crate) enum SaveError {
    #[error("cannot {step} {path}")]
    Io {
        step: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Disk(#[from] BtrfsError),
}

pub(crate) fn fail(step: &'static str, path: &Path) -> impl FnOnce(io::Error) -> SaveError {
    let path = path.to_owned();
    move |source| SaveError::Io { step, path, source }
}

#[derive(Debug, Clone)]
pub(crate) struct Saves {
    dir: PathBuf,
}

/// The newest memory of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Newest {
    number: u64,
    pub(crate) saved: Saved,
    /// The disk that goes with it, which a copy of another sandbox's does not have.
    pub(crate) disk: PathBuf,
    /// The sandbox's disk is not known to be as it was.
    pub(crate) disk_moved: bool,
}

impl Saves {
    pub(crate) fn open(pool: &Path) -> Result<Self, SaveError> {
        let dir = pool.join(SAVE);
        make(&dir)?;
        Ok(Self { dir })
    }

    fn of(&self, id: SandboxId) -> PathBuf {
        self.dir.join(host_name(id))
    }

    /// An empty directory to write generation `number` into.
    pub(crate) fn begin(&self, id: SandboxId, number: u64) -> Result<PathBuf, SaveError> {
        let path = self.of(id).join(format!("{NEW}{number}"));
        remove(&path)?;
        make(&path)?;
        Ok(path)
    }

    /// The disk of a machine that stands still, with all that was written to it.
    pub(crate) fn keep_disk(&self, pool: &Pool, id: SandboxId, number: u64) -> Result<(), SaveError> {
        Ok(pool.keep_root(&host_name(id), &self.of(id), &format!("{DISK}{number}"))?)
    }

    /// What was begun is whole and durable: it counts from now on, and what was before it goes.
    pub(crate) fn commit(&self, id: SandboxId, number: u64) -> Result<(), SaveError> {
        let dir = self.of(id);
        let (new, whole) = (dir.join(format!("{NEW}{number}")), dir.join(format!("{WHOLE}{number}")));
        fs::rename(&new, &whole).map_err(fail("rename", &new))?;
        sync(&dir)?;
        sync(&self.dir)?;
        self.sweep(id, Some(number))
    }

    /// What was begun is not wanted any more.
    pub(crate) fn abandon(&self, id: SandboxId, number: u64) -> Result<(), SaveError> {
        remove(&self.of(id).join(format!("{NEW}{number}")))?;
        remove(&self.of(id).join(format!("{DISK}{number}")))?;
        self.drop_empty(id)
    }

    /// A copy of a memory of another sandbox, for this one to be woken from. It has no disk beside it, so its sandbox must be
    /// marked as half made until it runs.
    pub(crate) fn take_copy(&self, id: SandboxId, number: u64, from: &Path) -> Result<(), SaveError> {
        let new = self.begin(id, number)?;
        copy_files(from, &new)?;
        fs::rename(&new, self.of(id).join(format!("{WHOLE}{number}"))).map_err(fail("rename", &new))
    }

    /// Not to know is an error: a memory is not given up because it cannot be seen just now.
    pub(crate) fn newest(&self, id: SandboxId) -> Result<Option<Newest>, SaveError> {
        let dir = self.of(id);
        let mut newest = None;
        for name in names(&dir)? {
            let numbered = |prefix| name.strip_prefix(prefix).and_then(|number| number.parse::<u64>().ok());
            let (number, disk_moved) = match (numbered(WHOLE), numbered(USED)) {
                (Some(number), _) => (number, false),
                (None, Some(number)) => (number, true),
                (None, None) => continue,
            };
            if newest.is_none_or(|(newest, _)| newest < number) {
                newest = Some((number, disk_moved));
            }
        }
        Ok(newest.map(|(number, disk_moved)| {
            let (used, disk) = (dir.join(format!("{USED}{number}")), dir.join(format!("{DISK}{number}")));
            let dir = if disk_moved { used.clone() } else { dir.join(format!("{WHOLE}{number}")) };
            Newest { number, saved: Saved { dir, used }, disk, disk_moved }
        }))
    }

    /// Gives the sandbox the disk that goes with that memory.
    pub(crate) fn put_disk_back(
        &self,
        pool: &Pool,
        id: SandboxId,
        newest: &Newest,
        disk_mib: u64,
    ) -> Result<(), SaveError> {
        let (disk, aside) = (format!("{DISK}{}", newest.number), format!("{ASIDE}{}", newest.number));
        Ok(pool.put_back(&host_name(id), &self.of(id), &disk, &aside, disk_mib)?)
    }

    /// Its machine, which is in memory, is about to run: see [`USED`].
    pub(crate) fn use_up(&self, id: SandboxId) -> Result<(), SaveError> {
        self.rename_all(id, &[WHOLE], USED)
    }

    /// Its machine runs: nothing that was saved may ever run again.
    pub(crate) fn spend(&self, id: SandboxId) -> Result<(), SaveError> {
        self.rename_all(id, &[WHOLE, USED], SPENT)
    }

    fn rename_all(&self, id: SandboxId, from: &[&str], to: &str) -> Result<(), SaveError> {
        let dir = self.of(id);
        let mut renamed = false;
        for name in names(&dir)? {
            let Some(number) = from.iter().find_map(|prefix| name.strip_prefix(prefix)) else { continue };
            let (old, new) = (dir.join(&name), dir.join(format!("{to}{number}")));
            fs::rename(&old, &new).map_err(fail("rename", &old))?;
            renamed = true;
        }
        if renamed { sync(&dir) } else { Ok(()) }
    }

    /// Removes everything but generation `keep`.
    pub(crate) fn sweep(&self, id: SandboxId, keep: Option<u64>) -> Result<(), SaveError> {
        let dir = self.of(id);
        if keep.is_none() {
            // Half of a memory must not be taken for a whole one.
            self.spend(id)?;
        }
        let keep = keep.map(|number| [WHOLE, USED, DISK].map(|prefix| format!("{prefix}{number}")));
        for name in names(&dir)? {
            if keep.as_ref().is_none_or(|keep| !keep.contains(&name)) {
                remove(&dir.join(name))?;
            }
        }
        self.drop_empty(id)
    }

    /// What a crash left half written or out of date goes; a whole memory stays.
    pub(crate) fn tidy(&self, id: SandboxId) -> Result<(), SaveError> {
        self.sweep(id, self.newest(id)?.map(|newest| newest.number))
    }

    /// Every sandbox of which there is anything.
    pub(crate) fn all(&self) -> Result<Vec<SandboxId>, SaveError> {
        Ok(names(&self.dir)?.iter().filter_map(|name| parse_host_name(name)).collect())
    }

    /// Every sandbox that can be woken from what is here.
    pub(crate) fn whole(&self) -> Result<Vec<SandboxId>, SaveError> {
        let mut whole = Vec::new();
        for id in self.all()? {
            if self.newest(id)?.is_some() {
                whole.push(id);
            }
        }
        Ok(whole)
    }

    fn drop_empty(&self, id: SandboxId) -> Result<(), SaveError> {
        let dir = self.of(id);
        match fs::remove_dir(&dir) {
            Err(e) if !matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::DirectoryNotEmpty) => {
                Err(fail("remove", &dir)(e))
            }
            _ => Ok(()),
        }
    }
}

/// Copies the files of a memory. The copies share their blocks with what they are made from, and nothing else.
pub(crate) fn copy_files(from: &Path, into: &Path) -> Result<(), SaveError> {
    for name in names(from)? {
        let (old, new) = (from.join(&name), into.join(&name));
        let source = File::open(&old).map_err(fail("open", &old))?;
        let made = File::options().write(true).create_new(true).open(&new).map_err(fail("make", &new))?;
        rustix::fs::ioctl_ficlone(&made, &source).map_err(|e| fail("copy to", &new)(e.into()))?;
    }
    Ok(())
}

/// Of a directory that is absent: none.
pub(crate) fn names(dir: &Path) -> Result<Vec<String>, SaveError> {
    let entries = match fs::read_dir(dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(fail("list", dir))?,
    };
    let mut names = Vec::new();
    for entry in entries {
        names.extend(entry.map_err(fail("list", dir))?.file_name().into_string());
    }
    Ok(names)
}

pub(crate) fn make(path: &Path) -> Result<(), SaveError> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(fail("make", path))
}

pub(crate) fn remove(path: &Path) -> Result<(), SaveError> {
    let is_disk = match File::open(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        opened => opened.and_then(|opened| btrfs::is_subvolume(&opened)).map_err(fail("open", path))?,
    };
    if is_disk && let (Some(dir), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str())) {
        let dir = File::open(dir).map_err(fail("open", dir))?;
        return Ok(btrfs::delete_subvolume(&dir, name).map(drop)?);
    }
    match fs::remove_dir_all(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(fail("remove", path)(e)),
        _ => Ok(()),
    }
}

pub(crate) fn sync(dir: &Path) -> Result<(), SaveError> {
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(fail("sync", dir))
}

#[cfg(test)]
mod tests {
    use newtype_uuid::GenericUuid;

    use super::*;

    #[test]
    fn only_what_is_whole_is_found_and_the_rest_is_swept() {
        let pool = tempfile::tempdir().unwrap();
        let saves = Saves::open(pool.path()).unwrap();
        let id = SandboxId::from_untyped_uuid(uuid::Uuid::from_u128(1));
        saves.begin(id, 9).unwrap();
        assert_eq!(saves.newest(id).unwrap(), None);
        saves.begin(id, 10).unwrap();
        saves.commit(id, 10).unwrap();
        let Newest { saved, disk_moved, .. } = saves.newest(id).unwrap().unwrap();
        assert!(saved.dir.ends_with("gen-10") && saved.dir.is_dir() && !disk_moved);
        assert!(!saved.dir.with_file_name("new-9").exists());

        saves.use_up(id).unwrap();
        saves.begin(id, 11).unwrap();
        saves.tidy(id).unwrap();
        assert_eq!(names(&saves.of(id)).unwrap(), ["used-10"]);
        let Newest { saved, disk_moved, .. } = saves.newest(id).unwrap().unwrap();
        assert!(saved.dir == saved.used && disk_moved);
        assert_eq!(saves.whole().unwrap(), [id]);

        saves.spend(id).unwrap();
        assert_eq!(saves.newest(id).unwrap(), None);
        assert_eq!((saves.whole().unwrap(), saves.all().unwrap()), (vec![], vec![id]));
        saves.begin(id, 11).unwrap();
        saves.tidy(id).unwrap();
        assert!(saves.all().unwrap().is_empty());
        saves.abandon(id, 11).unwrap();
        saves.tidy(id).unwrap();
    }
}
