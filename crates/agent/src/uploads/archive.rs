//! An archive that comes in parts, in order, and is unpacked as it comes: it needs no room beside what it holds.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Buf;
use runtime_proto::channel::Stream;
use runtime_proto::guest::{ErrorCode, GuestError, User, decode_input};
use tokio::sync::{Mutex, Semaphore, SemaphorePermit, mpsc};
use tokio::task::JoinHandle;

use crate::archive::{Feed, Part, unpack};
use crate::files::{FileError, act_here};
use crate::serve::Failure;

/// Archives that come in at once; each has a worker as long as its sender takes.
pub(super) const MOST: usize = 4;
static PLACES: Semaphore = Semaphore::const_new(MOST);

pub(crate) struct Unpacking {
    taken: AtomicU64,
    /// One part at a time.
    work: Mutex<Work>,
}

enum Work {
    Open {
        parts: mpsc::Sender<Part>,
        worker: JoinHandle<Result<(), FileError>>,
        _place: SemaphorePermit<'static>,
    },
    /// Why it can go no further.
    Failed(GuestError),
    Ended,
}

fn lost() -> GuestError {
    GuestError::new(ErrorCode::Internal, "unpacking an archive: the worker ended early")
}

impl Unpacking {
    pub(super) fn begin(path: PathBuf, user: User) -> Result<Self, GuestError> {
        let Ok(place) = PLACES.try_acquire() else {
            let message = format!("unpacking an archive: {MOST} are coming into this sandbox");
            return Err(GuestError::new(ErrorCode::TransferLimit, message));
        };
        let (parts, received) = mpsc::channel(8);
        let worker = tokio::task::spawn_blocking(move || act_here(user, || unpack(&path, Feed::new(received))));
        let work = Mutex::new(Work::Open { parts, worker, _place: place });
        Ok(Self { taken: AtomicU64::new(0), work })
    }

    /// Bytes that were taken, in order.
    pub(super) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Acquire)
    }

    /// Takes what is new in a part. One that breaks off was taken as far as it came.
    pub(super) async fn put(&self, offset: u64, size: u64, stream: &mut Stream) -> Result<(), Failure> {
        let mut work = self.work.lock().await;
        let taken = self.taken();
        let invalid = |message: String| Failure::Told(GuestError::new(ErrorCode::Invalid, message));
        if offset > taken {
            return Err(invalid(format!("unpacking an archive: {taken} bytes came, the part starts at {offset}")));
        }
        let mut known = taken - offset;
        let mut left = size;
        while let Some(message) = stream.recv().await? {
            let mut data = match decode_input(message) {
                Ok(input) if input.data.len() as u64 <= left => input.data,
                _ => return Err(invalid(format!("unpacking an archive: more than the {size} bytes announced came"))),
            };
            left -= data.len() as u64;
            let skip = known.min(data.len() as u64);
            known -= skip;
            data.advance(skip as usize);
            let length = data.len() as u64;
            if length > 0 {
                work.take(data).await?;
                self.taken.fetch_add(length, Ordering::AcqRel);
            }
        }
        match left {
            0 => Ok(()),
            left => Err(invalid(format!("unpacking an archive: of {size} bytes announced {left} did not come"))),
        }
    }

    /// All of it came: waits until all is unpacked. `None`: another has ended it.
    pub(super) async fn commit(&self) -> Option<Result<(), GuestError>> {
        let mut work = self.work.lock().await;
        match std::mem::replace(&mut *work, Work::Ended) {
            Work::Open { parts, worker, _place } => {
                // One that failed takes no more; its error is the answer.
                let _ = parts.send(Part::End).await;
                drop(parts);
                let unpacked = worker.await.map_err(|_| lost());
                Some(unpacked.and_then(|result| result.map_err(|error| error.to_guest())))
            }
            Work::Failed(error) => Some(Err(error)),
            Work::Ended => None,
        }
    }

    /// Ends it where it is; waits until nothing is written any more.
    pub(super) async fn abort(&self) {
        let mut work = self.work.lock().await;
        if let Work::Open { parts, worker, _place } = std::mem::replace(&mut *work, Work::Ended) {
            drop(parts);
            let _ = worker.await;
        }
    }
}

impl Work {
    async fn take(&mut self, data: bytes::Bytes) -> Result<(), GuestError> {
        match self {
            Self::Open { parts, worker, .. } => {
                if parts.send(Part::Data(data)).await.is_ok() {
                    return Ok(());
                }
                let error = match worker.await {
                    Ok(Err(error)) => error.to_guest(),
                    // It had its end already, and more came.
                    Ok(Ok(())) => GuestError::new(ErrorCode::InvalidArchive, "the archive goes on after its end"),
                    Err(_) => lost(),
                };
                *self = Self::Failed(error.clone());
                Err(error)
            }
            Self::Failed(error) => Err(error.clone()),
            Self::Ended => Err(lost()),
        }
    }
}
