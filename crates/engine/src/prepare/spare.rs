//! Disks made in advance.
//!
//! A clone is one transaction of the file system, and a transaction waits for the disk: 20 to 45 ms where a flush
//! takes 6. So a few clones are kept ready under names of their own, and a create only gives one its name and its
//! limit, which waits for nothing. With none ready, a create clones.
//!
//! A spare holds nobody's data: what is written to one is written after it got its sandbox's name, in the same or a
//! later transaction, so no crash can bring a used one back under its old name. Those found after a mount are
//! discarded all the same.

use std::io;

use runtime_host::btrfs::{self, BtrfsError};
use rustix::fs::RenameFlags;
use rustix::io::Errno;

use super::{Base, Pool};

/// No id of a sandbox begins so.
pub(super) const PREFIX: &str = ".spare-";
/// Given to a spare until it has a sandbox: enough for the metadata of the clone.
const IDLE_LIMIT: u64 = 64 << 20;
const MOST: usize = 256;

/// What taking a spare came to.
pub(super) enum Taken {
    Yes,
    NoneReady,
    /// The name is in use already.
    Exists,
}

impl Pool {
    /// Makes clones of `base` until `count` are ready; how many were made. Waits for the disk, so it belongs on a
    /// thread of its own; creates go on meanwhile.
    pub fn prepare_spares(&self, base: &Base, count: usize) -> Result<usize, BtrfsError> {
        let source = super::pool::open_source(&base.path)?;
        let mut made = 0;
        while self.spares(base)?.len() < count.min(MOST) {
            let name = format!("{}{}", prefix(base), uuid::Uuid::new_v4().simple());
            btrfs::snapshot(&source, self.root_fd(), &name, false, Some(IDLE_LIMIT))?;
            made += 1;
        }
        Ok(made)
    }

    /// Spares of this base that are ready.
    pub fn spares(&self, base: &Base) -> Result<Vec<String>, BtrfsError> {
        let prefix = prefix(base);
        Ok(self.all_roots()?.into_iter().filter(|name| name.starts_with(&prefix)).collect())
    }

    /// Deletes every spare, of whatever base.
    pub fn discard_spares(&self) -> Result<(), BtrfsError> {
        for name in self.all_roots()?.iter().filter(|name| name.starts_with(PREFIX)) {
            btrfs::delete_subvolume(self.root_fd(), name)?;
        }
        Ok(())
    }

    /// Gives a spare the name and the limit of a sandbox.
    pub(super) fn take_spare(&self, base: &Base, id: &str, limit: u64) -> Result<Taken, BtrfsError> {
        for spare in self.spares(base)? {
            let dir = self.root_fd();
            match rustix::fs::renameat_with(dir, &spare, dir, id, RenameFlags::NOREPLACE) {
                Ok(()) => {
                    // Until here the idle limit holds, so there is no moment without one.
                    self.limit_root(id, limit)?;
                    return Ok(Taken::Yes);
                }
                // Another create took it.
                Err(Errno::NOENT) => {}
                Err(Errno::EXIST) => return Ok(Taken::Exists),
                Err(e) => {
                    let source = io::Error::from(e);
                    return Err(BtrfsError { step: "name a spare disk for", object: id.to_owned(), source });
                }
            }
        }
        Ok(Taken::NoneReady)
    }
}

fn prefix(base: &Base) -> String {
    format!("{PREFIX}{}-", base.digest.get(..12).unwrap_or(&base.digest))
}
