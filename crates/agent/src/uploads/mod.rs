//! Files and archives that come in parts, over as many requests as they take.
//!
//! The agent holds them, the server nothing: whichever server comes next finds every part that was acknowledged. A file
//! lies beside its target under a name of its own ([`file`]), so it counts against the sandbox's disk from its first
//! byte and takes its name in one step. Whoever starts one and never ends it is forgotten after a time; how one ended
//! is remembered, so that an ending that is sent again is answered as the first.

pub(crate) mod archive;
pub(crate) mod file;
mod journal;
mod requests;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use runtime_proto::guest::{ErrorCode, GuestError, Tell, UploadRef};

use archive::Unpacking;
use file::Staged;
pub(crate) use journal::sweep_left;
pub(crate) use requests::{abort, commit, put, start_archive, start_file};

/// Files that may be under way at once.
const MOST_FILES: usize = 64;
/// A file that nobody sent a part of for this long makes room when there is none.
const GIVES_WAY: Duration = Duration::from_secs(10 * 60);
/// And after this long it is gone in any case.
const FILE_EXPIRES: Duration = Duration::from_secs(24 * 60 * 60);
/// An archive that is left alone holds a worker, and gives it back soon.
const ARCHIVE_EXPIRES: Duration = Duration::from_secs(10 * 60);
/// Endings that are remembered.
const REMEMBERED: usize = 256;
/// Between two looks for what expired.
const LOOK_EVERY: Duration = Duration::from_secs(60);

/// One upload, from its start to its end.
pub(crate) struct Upload {
    pub(crate) id: String,
    key: String,
    touched: Mutex<Instant>,
    pub(crate) body: Body,
}

pub(crate) enum Body {
    File(Staged),
    Archive(Unpacking),
}

impl Body {
    fn is_archive(&self) -> bool {
        match self {
            Self::File(_) => false,
            Self::Archive(_) => true,
        }
    }

    fn expires(&self) -> Duration {
        match self {
            Self::File(_) => FILE_EXPIRES,
            Self::Archive(_) => ARCHIVE_EXPIRES,
        }
    }

    fn received(&self) -> u64 {
        match self {
            Self::File(staged) => staged.received(),
            Self::Archive(unpacking) => unpacking.taken(),
        }
    }
}

impl Upload {
    fn new(id: String, key: String, body: Body) -> Self {
        Self { id, key, touched: Mutex::new(Instant::now()), body }
    }

    fn touch(&self) {
        *self.touched.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    fn idle(&self, now: Instant) -> Duration {
        now.saturating_duration_since(*self.touched.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[derive(Default)]
pub(crate) struct Uploads {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    open: HashMap<String, Arc<Upload>>,
    ended: VecDeque<Ended>,
}

/// An upload that was committed.
struct Ended {
    id: String,
    archive: bool,
    answer: Tell,
}

/// What a reference finds.
pub(crate) enum Found {
    Open(Arc<Upload>),
    Committed(Box<Tell>),
}

impl Uploads {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The one that was started under this key.
    fn by_key(&self, key: &str, archive: bool) -> Option<Arc<Upload>> {
        let inner = self.lock();
        let mut known = inner.open.values();
        known.find(|upload| !key.is_empty() && upload.key == key && upload.body.is_archive() == archive).cloned()
    }

    /// Enters a new one. If there are as many as may be, one that was left alone gives way, or this one is refused.
    fn enter(&self, upload: Upload, most: usize) -> Result<Arc<Upload>, GuestError> {
        let archive = upload.body.is_archive();
        let upload = Arc::new(upload);
        let now = Instant::now();
        let mut inner = self.lock();
        if inner.open.contains_key(&upload.id) {
            return Err(GuestError::new(ErrorCode::Invalid, format!("starting an upload: {} is taken", upload.id)));
        }
        let same = || inner.open.values().filter(|other| other.body.is_archive() == archive);
        let given_way = if same().count() >= most {
            let oldest = same().max_by_key(|other| other.idle(now)).filter(|other| other.idle(now) >= GIVES_WAY);
            let Some(oldest) = oldest.map(|other| other.id.clone()) else {
                let message = format!("starting an upload: {most} are under way in this sandbox");
                return Err(GuestError::new(ErrorCode::TransferLimit, message));
            };
            inner.open.remove(&oldest)
        } else {
            None
        };
        inner.open.insert(upload.id.clone(), upload.clone());
        drop(inner);
        // Outside the lock: with the last of its users its file is removed.
        drop(given_way);
        Ok(upload)
    }

    fn find(&self, wanted: &UploadRef) -> Result<Found, GuestError> {
        let inner = self.lock();
        if let Some(upload) = inner.open.get(&wanted.upload_id).filter(|one| one.body.is_archive() == wanted.archive) {
            upload.touch();
            return Ok(Found::Open(upload.clone()));
        }
        let mut ended = inner.ended.iter();
        match ended.find(|ended| ended.id == wanted.upload_id && ended.archive == wanted.archive) {
            Some(ended) => Ok(Found::Committed(Box::new(ended.answer.clone()))),
            None => {
                let shown: String = wanted.upload_id.chars().take(64).collect();
                Err(GuestError::new(ErrorCode::NoSuchUpload, format!("there is no upload {shown}")))
            }
        }
    }

    fn leave(&self, upload: &Upload) {
        let gone = self.lock().open.remove(&upload.id);
        drop(gone);
    }

    fn committed(&self, upload: &Upload, answer: Tell) {
        let mut inner = self.lock();
        let gone = inner.open.remove(&upload.id);
        if inner.ended.len() >= REMEMBERED {
            inner.ended.pop_front();
        }
        inner.ended.push_back(Ended { id: upload.id.clone(), archive: upload.body.is_archive(), answer });
        drop(inner);
        drop(gone);
    }

    /// Forgets what was left alone for too long.
    fn sweep(&self, now: Instant) {
        let mut expired = Vec::new();
        self.lock().open.retain(|_, upload| {
            let keep = upload.idle(now) < upload.body.expires();
            if !keep {
                expired.push(upload.clone());
            }
            keep
        });
        drop(expired);
    }

    /// Never returns.
    pub(crate) async fn watch(&self) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            self.sweep(Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn upload(dir: &tempfile::TempDir, id: &str, key: &str) -> Upload {
        let path = dir.path().join("target");
        let staged = Staged::begin(&path, 10, [0; 32], 0o644, runtime_proto::guest::User::Root, id).unwrap();
        Upload::new(id.to_owned(), key.to_owned(), Body::File(staged))
    }

    fn names(dir: &tempfile::TempDir) -> usize {
        std::fs::read_dir(dir.path()).unwrap().count()
    }

    #[test]
    fn what_was_left_alone_is_forgotten_with_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let uploads = Uploads::default();
        uploads.enter(upload(&dir, "a", ""), 2).unwrap();
        let started = Instant::now();
        uploads.sweep(started + FILE_EXPIRES - Duration::from_secs(60));
        assert_eq!(names(&dir), 1);
        uploads.sweep(started + FILE_EXPIRES + Duration::from_secs(60));
        assert_eq!(names(&dir), 0);
        let wanted = UploadRef { upload_id: "a".to_owned(), archive: false };
        assert_eq!(uploads.find(&wanted).err().map(|error| error.code()), Some(ErrorCode::NoSuchUpload));
    }

    #[test]
    fn one_too_many_is_refused_unless_another_gives_way() {
        let dir = tempfile::tempdir().unwrap();
        let uploads = Uploads::default();
        let first = uploads.enter(upload(&dir, "a", "k"), 2).unwrap();
        uploads.enter(upload(&dir, "b", ""), 2).unwrap();
        let refused = uploads.enter(upload(&dir, "c", ""), 2).err().unwrap();
        assert_eq!(refused.code(), ErrorCode::TransferLimit);
        assert_eq!(names(&dir), 2);
        let Some(long_ago) = Instant::now().checked_sub(GIVES_WAY) else { return };
        *first.touched.lock().unwrap() = long_ago;
        drop(first);
        uploads.enter(upload(&dir, "c", ""), 2).unwrap();
        assert_eq!(names(&dir), 2);
        assert!(uploads.by_key("k", false).is_none() && uploads.by_key("", false).is_none());
    }
}
