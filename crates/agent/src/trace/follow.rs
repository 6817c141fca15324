//! The tracer of one tree: at each call that was stopped it notes what was opened or made, if it was.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use runtime_host::trace::{NO_DIRECTORY, Stop, Wanted, Why};

use super::record::Writer;
use crate::tree;

/// The kernel's own bound.
const LONGEST_PATH: usize = 4096;
/// What is told of a call that a kernel of the older order stops at twice: the first time, before it is made.
const NOT_MADE: i64 = -38;
/// Not files of the sandbox: each look at them is another.
const NO_FILES: [&[u8]; 3] = [b"/proc/", b"/sys/", b"/dev/"];

pub(super) struct Follower {
    writer: Writer,
    /// What each thread at a call is doing.
    calls: HashMap<i32, Doing>,
}

struct Doing {
    what: What,
    entered: bool,
}

enum What {
    Open {
        read: bool,
        write: bool,
    },
    /// Whole, but its directory may have links in it.
    Make(PathBuf),
}

impl Follower {
    pub(super) fn new(record: OwnedFd) -> Self {
        Self { writer: Writer::new(record), calls: HashMap::new() }
    }

    pub(super) fn gone(&mut self, thread: i32) {
        self.calls.remove(&thread);
    }

    /// Looks at a stopped thread and lets it go on.
    pub(super) fn stopped(&mut self, stop: &Stop) {
        match stop.why {
            Why::Calling => match self.calling(stop) {
                Some(what) => {
                    self.calls.insert(stop.thread, Doing { what, entered: false });
                    stop.step();
                }
                None => stop.go_on(None),
            },
            Why::Called => match self.calls.remove(&stop.thread) {
                Some(doing) => self.called(stop, doing),
                None => stop.go_on(None),
            },
            Why::Program => {
                // Of several threads one became the program, under the number of the first.
                self.calls.remove(&stop.thread);
                self.opened(&format!("{}/exe", stop.thread), true, false);
                stop.go_on(None);
            }
            Why::Stopping => stop.stay(),
            Why::Signal(signal) => stop.go_on(Some(signal)),
            Why::Other => stop.go_on(None),
        }
    }

    fn calling(&self, stop: &Stop) -> Option<What> {
        let call = stop.call()?;
        Some(match stop.wanted(&call)? {
            Wanted::Open { read, write } => What::Open { read, write },
            Wanted::Name { directory, path } => What::Make(whole(stop, directory, path)?),
        })
    }

    fn called(&mut self, stop: &Stop, doing: Doing) {
        match stop.call().map(|call| call.result) {
            Some(NOT_MADE) if !doing.entered => {
                self.calls.insert(stop.thread, Doing { entered: true, ..doing });
                return stop.step();
            }
            Some(result @ 0..) => match doing.what {
                What::Open { read, write } => self.opened(&format!("{}/fd/{result}", stop.thread), read, write),
                What::Make(path) => self.made(&path),
            },
            Some(_) | None => {}
        }
        stop.go_on(None);
    }

    /// Notes where a link of /proc leads.
    fn opened(&mut self, link: &str, read: bool, write: bool) {
        let Some(path) = tree::link(link) else { return };
        if !is_told(&path) || self.writer.knows(&path, read, write) {
            return;
        }
        match tree::kind(link) {
            Some(tree::Kind::File) => self.writer.note(&path, &path, read, write),
            Some(tree::Kind::Directory) => self.writer.note(&path, &as_directory(&path), read, write),
            Some(tree::Kind::Other) | None => {}
        }
    }

    fn made(&mut self, path: &Path) {
        let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else { return };
        let Ok(directory) = directory.canonicalize() else { return };
        let path = directory.join(name);
        let bytes = path.as_os_str().as_bytes();
        if !is_told(bytes) || self.writer.knows(bytes, false, true) {
            return;
        }
        match path.symlink_metadata() {
            Ok(meta) if meta.is_dir() => self.writer.note(bytes, &as_directory(bytes), false, true),
            Ok(_) => self.writer.note(bytes, bytes, false, true),
            // Gone again already: then nothing is there to tell of.
            Err(_) => {}
        }
    }
}

fn is_told(path: &[u8]) -> bool {
    path.starts_with(b"/") && !path.ends_with(b" (deleted)") && !NO_FILES.iter().any(|dir| path.starts_with(dir))
}

fn as_directory(path: &[u8]) -> Vec<u8> {
    if path.ends_with(b"/") { path.to_vec() } else { [path, b"/"].concat() }
}

/// The path in the thread's memory, from our own root.
fn whole(stop: &Stop, directory: i32, path: u64) -> Option<PathBuf> {
    let path = PathBuf::from(std::ffi::OsString::from_vec(stop.text(path, LONGEST_PATH)?));
    let thread = stop.thread;
    let base = match (path.strip_prefix("/"), directory) {
        (Ok(_), _) => tree::link(&format!("{thread}/root"))?,
        (Err(_), NO_DIRECTORY) => tree::link(&format!("{thread}/cwd"))?,
        (Err(_), directory) => tree::link(&format!("{thread}/fd/{directory}"))?,
    };
    Some(Path::new(OsStr::from_bytes(&base)).join(path.strip_prefix("/").unwrap_or(&path)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_a_file_of_the_sandbox() {
        for (path, told) in [
            (&b"/workspace/a"[..], true),
            (b"/process", true),
            (b"/", true),
            (b"/proc/self/stat", false),
            (b"/dev/null", false),
            (b"pipe:[12]", false),
            (b"/tmp/x (deleted)", false),
        ] {
            assert_eq!(is_told(path), told, "{}", String::from_utf8_lossy(path));
        }
        assert_eq!((as_directory(b"/"), as_directory(b"/a")), (b"/".to_vec(), b"/a/".to_vec()));
    }
}
