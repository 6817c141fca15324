//! A machine on disk: what gVisor wrote of it, and what must hold for it to run again.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use aws_lc_rs::digest::{Context, SHA256};
use serde::{Deserialize, Serialize};

use super::urpc::{Control, UrpcError};
use crate::driver::Identity;
use crate::driver::record;

const RECORD: &str = "saved.json";
/// The state, the index of the memory, and the memory; in the order in which gVisor wants them.
const FILES: [&str; 3] = ["checkpoint.img", "pages_meta.img", "pages.img"];
/// A second for every gigabyte is usual; this is for the largest on a slow disk.
pub(crate) const LIMIT: Duration = Duration::from_secs(600);
const READ: usize = 1 << 20;

/// What the machine that wrote it was like. Another must be so too, or the memory does not fit it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Kind {
    pub(crate) engine: String,
    /// The program, by digest: another build of the same version takes a memory and then fails.
    pub(crate) runsc: String,
    pub(crate) flags: Vec<String>,
    pub(crate) mounts: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedMachine {
    pub(crate) kind: Kind,
    /// The agent whose program the memory holds.
    pub(crate) agent: String,
    pub(crate) identity: Identity,
    files: Vec<SavedFile>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct SavedFile {
    name: String,
    len: u64,
    sha256: String,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum SavedError {
    #[error("cannot {step} {path}")]
    Io {
        step: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the sandbox's kernel did not save it")]
    Sentry(#[from] UrpcError),
    #[error("{path} is not what was saved")]
    Damaged { path: PathBuf },
    #[error("reading it broke off")]
    Torn,
    #[error("it is not wanted any more")]
    GivenUp,
}

fn io_error(step: &'static str, path: &Path) -> impl FnOnce(io::Error) -> SavedError {
    let path = path.to_owned();
    move |source| SavedError::Io { step, path, source }
}

/// Writes a frozen machine into an empty directory. On return it is on the disk, whole and read once. Given up on, it
/// ends as soon as gVisor, which cannot be interrupted, has done its part.
pub(crate) fn write(
    control: &Path,
    into: &Path,
    kind: Kind,
    agent: String,
    identity: Identity,
    given_up: &dyn Fn() -> bool,
) -> Result<(), SavedError> {
    let go_on = || if given_up() { Err(SavedError::GivenUp) } else { Ok(()) };
    let make = |name: &str| {
        let path = into.join(name);
        File::options().read(true).write(true).create_new(true).open(&path).map_err(io_error("make", &path))
    };
    let files = [make(FILES[0])?, make(FILES[1])?, make(FILES[2])?];
    Control::connect_for(control, LIMIT)?.save(&files)?;
    let mut record = SavedMachine { kind, agent, identity, files: Vec::with_capacity(FILES.len()) };
    for (name, file) in FILES.into_iter().zip(&files) {
        let path = into.join(name);
        go_on()?;
        file.sync_all().map_err(io_error("sync", &path))?;
        let mut file = File::open(&path).map_err(io_error("open", &path))?;
        let (len, sha256) = digest(&mut file, given_up).map_err(io_error("read", &path))?;
        record.files.push(SavedFile { name: name.to_owned(), len, sha256 });
    }
    go_on()?;
    let path = into.join(RECORD);
    let file = record::write(&path, &record).map_err(io_error("write", &path))?;
    file.sync_all().map_err(io_error("sync", &path))?;
    sync(into)
}

pub(crate) fn read_record(dir: &Path) -> Result<SavedMachine, SavedError> {
    let path = dir.join(RECORD);
    record::read(&path).map_err(io_error("read", &path))?.ok_or(SavedError::Damaged { path })
}

/// The files of a saved machine, each of which is byte for byte what was written.
pub(crate) fn open(dir: &Path) -> Result<[File; 3], SavedError> {
    let record = read_record(dir)?;
    let mut opened = Vec::with_capacity(FILES.len());
    for name in FILES {
        let path = dir.join(name);
        let damaged = || SavedError::Damaged { path: path.clone() };
        let wanted = record.files.iter().find(|file| file.name == name).ok_or_else(damaged)?;
        // gVisor wants to be able to write, though it does not.
        let mut file = match File::options().read(true).write(true).open(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(damaged()),
            opened => opened.map_err(io_error("open", &path))?,
        };
        if file.metadata().map_err(io_error("read", &path))?.len() != wanted.len {
            return Err(damaged());
        }
        let (_, sha256) = digest(&mut file, &|| false).map_err(io_error("read", &path))?;
        if sha256 != wanted.sha256 {
            return Err(damaged());
        }
        io::Seek::rewind(&mut file).map_err(io_error("read", &path))?;
        opened.push(file);
    }
    opened.try_into().map_err(|_| SavedError::Torn)
}

fn digest(file: &mut File, given_up: &dyn Fn() -> bool) -> io::Result<(u64, String)> {
    let mut context = Context::new(&SHA256);
    let mut buffer = vec![0; READ];
    let mut len = 0;
    while !given_up() {
        match file.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => {
                len += count as u64;
                context.update(&buffer[..count]);
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok((len, context.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect()))
}

pub(crate) fn digest_of(path: &Path) -> io::Result<String> {
    digest(&mut File::open(path)?, &|| false).map(|(_, sha256)| sha256)
}

fn sync(dir: &Path) -> Result<(), SavedError> {
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(io_error("sync", dir))
}

/// Durable when it returns.
pub(crate) fn rename(old: &Path, new: &Path) -> Result<(), SavedError> {
    fs::rename(old, new).map_err(io_error("rename", old))?;
    new.parent().map_or(Ok(()), sync)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn one_that_is_given_up_on_ends_after_gvisors_part() {
        let dir = tempfile::tempdir().unwrap();
        let (control, into) = (dir.path().join("s"), dir.path().join("new"));
        fs::create_dir(&into).unwrap();
        let listener = UnixListener::bind(&control).unwrap();
        let sentry = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut asked = [0; 4096];
            let count = stream.read(&mut asked).unwrap();
            stream.write_all(br#"{"success":true,"err":"","result":null}"#).unwrap();
            String::from_utf8_lossy(&asked[..count]).into_owned()
        });
        let kind = Kind { engine: String::new(), runsc: String::new(), flags: Vec::new(), mounts: Vec::new() };
        let identity = Identity { hostname: String::new(), generation: 1, max_user_processes: 1, memory_bytes: 1 };
        let done = write(&control, &into, kind, String::new(), identity, &|| true);
        assert!(matches!(done, Err(SavedError::GivenUp)), "{done:?}");
        assert!(sentry.join().unwrap().contains("containerManager.Checkpoint"));
        assert!(!into.join(RECORD).exists());
    }
}
