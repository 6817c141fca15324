//! Snapshots on the disk: `pool/snap/<id>`.
//!
//! ```text
//!   new-<id> ──commit──> <id> ──remove──> gone-<id> ──> (nothing)
//!     disk       a read-only copy of the disk
//!     memory/    of one that was taken with its memory: as its driver wrote it
//! ```
//!
//! A snapshot has its name when all of it is durable, and loses it before any of it goes: what bears the name is whole.
//! It shares blocks with the sandbox it is of and with its copies, and needs neither.

use std::fs;
use std::path::{Path, PathBuf};

use newtype_uuid::GenericUuid;
use runtime_model::SnapshotId;

use crate::prepare::SNAP;
use crate::saves::{SaveError, fail, make, names, remove, sync};

const NEW: &str = "new-";
const GONE: &str = "gone-";
pub(crate) const DISK: &str = "disk";
pub(crate) const MEMORY: &str = "memory";

#[derive(Debug, Clone)]
pub(crate) struct Snapshots {
    dir: PathBuf,
}

impl Snapshots {
    pub(crate) fn open(pool: &Path) -> Result<Self, SaveError> {
        let snapshots = Self { dir: pool.join(SNAP) };
        make(&snapshots.dir)?;
        Ok(snapshots)
    }

    fn at(&self, prefix: &str, id: SnapshotId) -> PathBuf {
        self.dir.join(format!("{prefix}{}", id.into_untyped_uuid().simple()))
    }

    /// An empty directory to capture into.
    pub(crate) fn begin(&self, id: SnapshotId) -> Result<PathBuf, SaveError> {
        let new = self.at(NEW, id);
        remove_all(&new)?;
        make(&new)?;
        Ok(new)
    }

    /// What was begun is whole and durable.
    pub(crate) fn commit(&self, id: SnapshotId) -> Result<(), SaveError> {
        let new = self.at(NEW, id);
        sync(&new)?;
        fs::rename(&new, self.at("", id)).map_err(fail("rename", &new))?;
        sync(&self.dir)
    }

    pub(crate) fn abandon(&self, id: SnapshotId) -> Result<(), SaveError> {
        remove_all(&self.at(NEW, id))
    }

    /// The disk of a snapshot that is whole.
    pub(crate) fn disk(&self, id: SnapshotId) -> Result<Option<PathBuf>, SaveError> {
        self.part(id, DISK)
    }

    /// The memory of one that has it.
    pub(crate) fn memory(&self, id: SnapshotId) -> Result<Option<PathBuf>, SaveError> {
        self.part(id, MEMORY)
    }

    fn part(&self, id: SnapshotId, name: &str) -> Result<Option<PathBuf>, SaveError> {
        let path = self.at("", id).join(name);
        Ok(fs::exists(&path).map_err(fail("look for", &path))?.then_some(path))
    }

    /// What the memory takes up.
    pub(crate) fn memory_bytes(&self, id: SnapshotId) -> Result<u64, SaveError> {
        let Some(dir) = self.memory(id)? else { return Ok(0) };
        let mut bytes: u64 = 0;
        for name in names(&dir)? {
            let path = dir.join(name);
            bytes = bytes.saturating_add(fs::metadata(&path).map_err(fail("measure", &path))?.len());
        }
        Ok(bytes)
    }

    pub(crate) fn remove(&self, id: SnapshotId) -> Result<(), SaveError> {
        let (whole, gone) = (self.at("", id), self.at(GONE, id));
        if fs::exists(&whole).map_err(fail("look for", &whole))? {
            remove_all(&gone)?;
            fs::rename(&whole, &gone).map_err(fail("rename", &whole))?;
            sync(&self.dir)?;
        }
        remove_all(&gone)?;
        self.abandon(id)
    }

    pub(crate) fn all(&self) -> Result<Vec<SnapshotId>, SaveError> {
        Ok(names(&self.dir)?.iter().filter_map(|name| parse(name)).collect())
    }

    /// Removes what a crash left half captured or half removed.
    pub(crate) fn tidy(&self) -> Result<(), SaveError> {
        for name in names(&self.dir)? {
            if name.starts_with(NEW) || name.starts_with(GONE) {
                remove_all(&self.dir.join(name))?;
            }
        }
        Ok(())
    }
}

fn parse(name: &str) -> Option<SnapshotId> {
    crate::host_state::parse_host_name(name).map(|id| SnapshotId::from_untyped_uuid(id.into_untyped_uuid()))
}

fn remove_all(dir: &Path) -> Result<(), SaveError> {
    for name in names(dir)? {
        remove(&dir.join(name))?;
    }
    remove(dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_whole_has_its_name() {
        let pool = tempfile::tempdir().unwrap();
        let snapshots = Snapshots::open(pool.path()).unwrap();
        let [whole, half, gone] = [1, 2, 3].map(|n| SnapshotId::from_untyped_uuid(uuid::Uuid::from_u128(n)));
        for id in [whole, gone] {
            let new = snapshots.begin(id).unwrap();
            for part in [DISK, MEMORY] {
                fs::create_dir(new.join(part)).unwrap();
            }
            fs::write(new.join(MEMORY).join("pages"), b"12345").unwrap();
            assert_eq!(snapshots.disk(id).unwrap(), None);
            snapshots.commit(id).unwrap();
        }
        snapshots.begin(half).unwrap();
        snapshots.remove(gone).unwrap();
        snapshots.remove(gone).unwrap();
        assert_eq!(snapshots.all().unwrap(), [whole]);
        assert!(snapshots.disk(whole).unwrap().is_some() && snapshots.memory(gone).unwrap().is_none());
        assert_eq!(snapshots.memory_bytes(whole).unwrap(), 5);
        assert_eq!(names(&snapshots.dir).unwrap().len(), 2);
        snapshots.tidy().unwrap();
        assert_eq!(names(&snapshots.dir).unwrap().len(), 1);
    }
}
