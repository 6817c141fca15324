//! Where unfinished uploads lie, noted on the disk: an agent that starts on a kept disk removes what the one before it,
//! which ended with its machine, could not.

use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::process::getpid;

use super::file::PREFIX;
use crate::log::log;

/// Readable by root alone. Only the first process of a sandbox keeps it.
const DIR: &str = "/var/lib/runtime-uploads";
/// No note is longer than a path.
const LONGEST: u64 = 8192;

/// Notes a file; without the note it would merely lie there after a stop.
pub(super) fn note(id: &str, staged: &Path) -> Option<PathBuf> {
    if !getpid().is_init() {
        return None;
    }
    let note = Path::new(DIR).join(id);
    let _ = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(DIR);
    std::fs::write(&note, staged.as_os_str().as_bytes()).ok()?;
    Some(note)
}

/// Removes what an agent before this one left.
pub(crate) fn sweep_left() {
    sweep(Path::new(DIR));
}

fn sweep(dir: &Path) {
    let Ok(notes) = std::fs::read_dir(dir) else { return };
    for note in notes.flatten() {
        let path = PathBuf::from(std::ffi::OsString::from_vec(read(&note.path()).unwrap_or_default()));
        // The guest may have written here what it liked: nothing but a file of that name goes.
        if path.file_name().is_some_and(|name| name.as_bytes().starts_with(PREFIX.as_bytes())) {
            let _ = std::fs::remove_file(&path);
        }
        if let Err(error) = std::fs::remove_file(note.path()) {
            log!("removing the note of an upload failed: {error}");
        }
    }
}

/// Not waiting, and through no link: a pipe of the guest's must not hold up the start.
fn read(note: &Path) -> std::io::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(note, flags, Mode::empty())?);
    let mut path = Vec::new();
    if file.metadata()?.is_file() {
        file.take(LONGEST).read_to_end(&mut path)?;
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use rustix::fs::{CWD, FileType, mknodat};

    use super::*;

    #[test]
    fn notes_of_the_guests_making_hold_nothing_up_and_remove_nothing_else() {
        let (notes, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let staged = place.path().join(format!("{PREFIX}x"));
        let precious = place.path().join("precious");
        for file in [&staged, &precious] {
            std::fs::write(file, "x").unwrap();
        }
        let note = |name: &str| notes.path().join(name);
        mknodat(CWD, note("a"), FileType::Fifo, Mode::RWXU, 0).unwrap();
        std::os::unix::fs::symlink(note("a"), note("b")).unwrap();
        std::fs::write(note("c"), precious.as_os_str().as_bytes()).unwrap();
        std::fs::write(note("d"), staged.as_os_str().as_bytes()).unwrap();
        sweep(notes.path());
        assert_eq!(std::fs::read_dir(notes.path()).unwrap().count(), 0);
        assert!(!staged.exists() && precious.exists());
    }
}
