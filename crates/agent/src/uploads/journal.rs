//! Where unfinished uploads lie, noted on the disk: an agent that starts on a kept disk removes what the one before it,
//! which ended with its machine, could not.

use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

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
    let Ok(notes) = std::fs::read_dir(DIR) else { return };
    for note in notes.flatten() {
        let mut path = Vec::new();
        if let Ok(file) = std::fs::File::open(note.path()) {
            let _ = std::io::Read::read_to_end(&mut std::io::Read::take(file, LONGEST), &mut path);
        }
        let path = PathBuf::from(std::ffi::OsString::from_vec(path));
        // The guest may have written here what it liked: nothing but a file of that name goes.
        if path.file_name().is_some_and(|name| name.as_bytes().starts_with(PREFIX.as_bytes())) {
            let _ = std::fs::remove_file(&path);
        }
        if let Err(error) = std::fs::remove_file(note.path()) {
            log!("removing the note of an upload failed: {error}");
        }
    }
}
