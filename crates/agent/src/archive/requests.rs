//! The requests about archives that one stream answers. One that comes in parts is in [`crate::uploads::archive`].

use std::collections::HashSet;
use std::sync::Arc;

use bytes::BytesMut;
use runtime_proto::channel::Stream;
use runtime_proto::guest::{
    Chunk, ErrorCode, GuestError, PathRef, ReadArchive, Tell, UPLOAD_CHUNK, User, decode_input,
};
use tokio::sync::{Semaphore, mpsc};

use super::pack::{open_root, pack};
use super::{Outlet, unpack};
use crate::Agent;
use crate::files::{absolute, act, act_here};
use crate::process::requests::hung_up;
use crate::serve::{Failure, done, tell};

/// Trees that are read at once; each has a worker as long as its reader takes.
const MOST_READ: usize = 4;
static READING: Semaphore = Semaphore::const_new(MOST_READ);
/// Small archives that are unpacked at once; more wait a moment.
static UNPACKING: Semaphore = Semaphore::const_new(4);
const MAX_EXCLUDES: usize = 1000;

pub(crate) fn user_of(user: i32) -> Result<User, GuestError> {
    User::try_from(user).map_err(|_| GuestError::new(ErrorCode::Invalid, "moving an archive: the user is unknown"))
}

fn lost() -> GuestError {
    GuestError::new(ErrorCode::Internal, "moving an archive: the worker ended early")
}

/// Plain relative paths, without `.` and slashes too many.
fn excluded(paths: &[String]) -> Result<HashSet<Vec<u8>>, GuestError> {
    let invalid = |path: &str| {
        let shown: String = path.chars().take(200).collect();
        GuestError::new(ErrorCode::Invalid, format!("the path {shown:?} cannot be excluded: it must be a relative one"))
    };
    if paths.len() > MAX_EXCLUDES {
        return Err(GuestError::new(ErrorCode::Invalid, format!("more than {MAX_EXCLUDES} paths are excluded")));
    }
    let mut out = HashSet::new();
    for path in paths {
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
        if path.starts_with('/') || path.contains('\0') || parts.is_empty() || parts.contains(&"..") {
            return Err(invalid(path));
        }
        out.insert(parts.join("/").into_bytes());
    }
    Ok(out)
}

pub(crate) async fn read(_agent: &Arc<Agent>, wanted: ReadArchive, stream: &mut Stream) -> Result<Tell, Failure> {
    let path = absolute(&wanted.path)?;
    let user = user_of(wanted.user)?;
    let exclude = excluded(&wanted.exclude)?;
    let gzip = wanted.gzip;
    let Ok(_place) = READING.try_acquire() else {
        let message = format!("reading an archive: {MOST_READ} are being read from this sandbox");
        return Err(GuestError::new(ErrorCode::TransferLimit, message).into());
    };
    // What cannot be opened is told before anything is sent.
    let root = path.clone();
    act(wanted.user, move || open_root(&root).map(drop)).await?;
    let (pieces, mut packed) = mpsc::channel(4);
    // Not among the places of file work, which a slow reader must not hold.
    let mut worker =
        tokio::task::spawn_blocking(move || act_here(user, || pack(&path, gzip, exclude, Outlet::new(pieces))));
    loop {
        let piece = tokio::select! {
            piece = packed.recv() => piece,
            gone = hung_up(stream) => {
                // With nobody to take what it packs, it ends; only then is its place free.
                drop(packed);
                let _ = (&mut worker).await;
                return Err(gone.into());
            }
        };
        let Some(data) = piece else { break };
        if let Err(gone) = tell(stream, Tell::Chunk(Chunk { stream: 0, offset: 0, data })).await {
            drop(packed);
            let _ = worker.await;
            return Err(gone.into());
        }
    }
    worker.await.map_err(|_| lost())?.map_err(|error| error.to_guest())?;
    Ok(done())
}

/// One that fits a request: all of it has come before anything is unpacked.
pub(crate) async fn write(_agent: &Arc<Agent>, wanted: PathRef, stream: &mut Stream) -> Result<Tell, Failure> {
    let path = absolute(&wanted.path)?;
    let user = user_of(wanted.user)?;
    let _place = UNPACKING.acquire().await.map_err(|_| Failure::Gone)?;
    let mut data = BytesMut::new();
    while let Some(message) = stream.recv().await? {
        let piece = decode_input(message).map(|input| input.data).unwrap_or_default();
        if data.len() + piece.len() > UPLOAD_CHUNK as usize {
            let message = format!("unpacking an archive: more than {UPLOAD_CHUNK} bytes came at once");
            return Err(GuestError::new(ErrorCode::Invalid, message).into());
        }
        data.extend_from_slice(&piece);
    }
    let worker = tokio::task::spawn_blocking(move || act_here(user, || unpack(&path, &data[..])));
    worker.await.map_err(|_| lost())?.map_err(|error| error.to_guest())?;
    Ok(done())
}
