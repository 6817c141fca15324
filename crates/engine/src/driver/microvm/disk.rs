//! A microVM's disk: one sparse file with a file system in it.

use std::fs;
use std::path::Path;

use crate::driver::DriverError;
use crate::prepare::guest;

/// A new disk: a sparse file with an empty file system in it.
pub(super) fn make_disk_file(path: &Path, mib: u64) -> Result<(), DriverError> {
    let fail = |e| DriverError::new("make the disk", path.display(), e);
    let new = path.with_extension("new");
    let _ = fs::remove_file(&new);
    let file = fs::File::create(&new).map_err(fail)?;
    in_place(&file).map_err(fail)?;
    file.set_len(mib << 20).map_err(fail)?;
    let options = "lazy_itable_init=1,lazy_journal_init=1,nodiscard";
    guest::mkfs(["-q", "-F", "-b", "4096", "-m", "0", "-J", "size=16", "-E", options], None, &new)
        .map_err(|e| DriverError::new("make the disk", path.display(), e))?;
    fs::rename(&new, path).map_err(fail)
}

pub(super) fn clone_disk(from: &Path, to: &Path) -> Result<(), DriverError> {
    let fail = |e| DriverError::new("clone the disk", to.display(), e);
    let source = fs::File::open(from).map_err(fail)?;
    let target = fs::File::create(to).map_err(fail)?;
    in_place(&target).map_err(fail)?;
    rustix::fs::ioctl_ficlone(&target, &source).map_err(|e| fail(e.into()))
}

/// Blocks are written where they are: on a file system that writes each block to a new place, small writes in the middle
/// of a file would hold on to what they replaced.
pub(super) fn in_place(file: &fs::File) -> std::io::Result<()> {
    let flags = rustix::fs::ioctl_getflags(file)?;
    Ok(rustix::fs::ioctl_setflags(file, flags | rustix::fs::IFlags::NOCOW)?)
}
