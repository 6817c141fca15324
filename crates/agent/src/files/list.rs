//! Listing a tree: in the order of paths, links not followed, memory bounded by the limit and one directory at a time.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use globset::{GlobBuilder, GlobMatcher};
use runtime_proto::channel::Stream;
use runtime_proto::guest::{ErrorCode, FileInfo, FileKind, FileList, GuestError, ListFiles, Tell};
use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags};
use rustix::io::Errno;

use super::{FileError, absolute, act, info, kind_of};
use crate::Agent;
use crate::process::requests::hung_up;
use crate::serve::{Failure, tell};

/// Entries of one answer.
const MAX_ENTRIES: usize = 100_000;
/// What one `Files` message may hold of names, well within a frame.
const BATCH_BYTES: usize = 32 * 1024;
const MAX_GLOB: usize = 4096;
/// Directories that wait to be looked into.
const MAX_PENDING: usize = 1_000_000;
/// A guest can make trees that take days.
const LIMIT: Duration = Duration::from_secs(30);

pub(crate) async fn serve(_agent: &Arc<Agent>, wanted: ListFiles, stream: &mut Stream) -> Result<Tell, Failure> {
    let path = absolute(&wanted.path)?;
    let glob = matcher(&wanted.glob)?;
    let limit = if wanted.limit == 0 { MAX_ENTRIES } else { MAX_ENTRIES.min(wanted.limit as usize) };
    let depth = if wanted.depth == 0 { u32::MAX } else { wanted.depth };
    let (until, gone) = (Instant::now() + LIMIT, Arc::new(AtomicBool::new(false)));
    let _leaving = Leaving(gone.clone());
    let walk = Walk { root: path, depth, glob, hidden: wanted.hidden, limit, until, gone };
    let found = tokio::select! {
        found = act(wanted.user, move || walk.run()) => found?,
        gone = hung_up(stream) => return Err(gone.into()),
    };
    let mut batch = Vec::new();
    let mut bytes = 0;
    for file in found {
        // Numbers, owner and group besides the path.
        let size = file.path.len() + file.owner.len() + file.group.len() + 64;
        let size = size + file.symlink_target.as_ref().map_or(0, String::len);
        if bytes + size > BATCH_BYTES && !batch.is_empty() {
            tell(stream, Tell::Files(FileList { files: std::mem::take(&mut batch) })).await?;
            bytes = 0;
        }
        bytes += size;
        batch.push(file);
    }
    Ok(Tell::Files(FileList { files: batch }))
}

/// Ends the walk with the request.
struct Leaving(Arc<AtomicBool>);

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn matcher(glob: &str) -> Result<Option<GlobMatcher>, GuestError> {
    if glob.is_empty() {
        return Ok(None);
    }
    let invalid = |why: String| GuestError::new(ErrorCode::Invalid, format!("the pattern is not valid: {why}"));
    if glob.len() > MAX_GLOB {
        return Err(invalid(format!("it is longer than {MAX_GLOB} bytes")));
    }
    let built = GlobBuilder::new(glob).literal_separator(true).build().map_err(|error| invalid(error.to_string()))?;
    Ok(Some(built.compile_matcher()))
}

struct Walk {
    root: PathBuf,
    depth: u32,
    glob: Option<GlobMatcher>,
    hidden: bool,
    limit: usize,
    until: Instant,
    /// Nobody waits for it.
    gone: Arc<AtomicBool>,
}

impl Walk {
    fn run(self) -> Result<Vec<FileInfo>, FileError> {
        let root = &self.root;
        let stat = rustix::fs::stat(root).map_err(FileError::at("looking at", root))?;
        if kind_of(&stat) != FileKind::Directory {
            return Err(FileError::refused(ErrorCode::NotADirectory, root, "is not a directory"));
        }
        // Sorted by path: the largest is dropped when there are too many, whatever order directories give.
        let mut found: BTreeMap<Vec<u8>, FileInfo> = BTreeMap::new();
        let mut pending: Vec<(PathBuf, u32)> = vec![(PathBuf::new(), 1)];
        while let Some((relative, level)) = pending.pop() {
            let dir = root.join(&relative);
            let names = match names(&dir) {
                Ok(names) => names,
                Err(error) if relative.as_os_str().is_empty() => {
                    return Err(FileError::new("listing", &dir, error.into()));
                }
                // Closed to this user, or gone meanwhile: its own entry is listed, what is in it cannot be.
                Err(_) => continue,
            };
            for name in names {
                if self.gone.load(Ordering::Relaxed) || Instant::now() >= self.until {
                    let why = "holds more than can be listed in time; name a part of it, or a depth";
                    return Err(FileError::refused(ErrorCode::Invalid, root, why));
                }
                if !self.hidden && name.as_encoded_bytes().first() == Some(&b'.') {
                    continue;
                }
                let relative = relative.join(&name);
                let path = root.join(&relative);
                let Ok(stat) = rustix::fs::statat(CWD, &path, AtFlags::SYMLINK_NOFOLLOW) else { continue };
                let kind = kind_of(&stat);
                if kind == FileKind::Directory && level < self.depth && pending.len() < MAX_PENDING {
                    pending.push((relative.clone(), level + 1));
                }
                if self.glob.as_ref().is_some_and(|glob| !glob.is_match(&relative)) {
                    continue;
                }
                let key = path.as_os_str().as_encoded_bytes().to_vec();
                if found.len() >= self.limit && found.last_key_value().is_some_and(|(last, _)| *last <= key) {
                    continue;
                }
                found.insert(key, entry(&path, &stat, kind));
                if found.len() > self.limit {
                    found.pop_last();
                }
            }
        }
        Ok(found.into_values().collect())
    }
}

fn entry(path: &Path, stat: &rustix::fs::Stat, kind: FileKind) -> FileInfo {
    let target = (kind == FileKind::Symlink)
        .then(|| rustix::fs::readlink(path, Vec::new()).ok())
        .flatten()
        .map(|target| String::from_utf8_lossy(target.as_bytes()).into_owned());
    info(path, stat, target)
}

fn names(dir: &Path) -> Result<Vec<OsString>, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut names = Vec::new();
    for entry in Dir::new(rustix::fs::open(dir, flags, Mode::empty())?)? {
        let name = entry?.file_name().to_bytes().to_vec();
        if name != b"." && name != b".." {
            names.push(OsString::from_vec(name));
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_mean_what_the_contract_says() {
        for (glob, path, expected) in [
            ("*.py", "a.py", true),
            ("*.py", "d/a.py", false),
            ("**/*.py", "a.py", true),
            ("**/*.py", "d/e/a.py", true),
            ("d/*", "d/a", true),
            ("d/*", "d/e/a", false),
            ("d/**", "d/e/a", true),
            ("{a,b}.txt", "b.txt", true),
            ("[!a].txt", "a.txt", false),
        ] {
            assert_eq!(matcher(glob).unwrap().unwrap().is_match(path), expected, "{glob} on {path}");
        }
        assert!(matcher("[").is_err());
        assert!(matcher("").unwrap().is_none());
    }

    #[test]
    fn a_walk_ends_in_time_and_with_its_request() {
        let walk = |until, gone| Walk {
            root: "/proc".into(),
            depth: 1,
            glob: None,
            hidden: true,
            limit: 10,
            until,
            gone: Arc::new(AtomicBool::new(gone)),
        };
        let later = Instant::now() + LIMIT;
        assert!(walk(later, false).run().is_ok());
        assert!(walk(later, true).run().is_err());
        assert!(walk(Instant::now(), false).run().is_err());
    }
}
