//! The requests about uploads, each answered on its stream.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use runtime_proto::channel::Stream;
use runtime_proto::guest::{
    ErrorCode, GuestError, MAX_UPLOAD, PutChunk, StartArchive, StartUpload, Tell, UPLOAD_CHUNK, Upload as Told,
    UploadRef, decode_input,
};
use tokio::sync::Semaphore;

use super::archive::{self, Unpacking};
use super::file::Staged;
use super::{Body, Found, MOST_FILES, Upload};
use crate::Agent;
use crate::archive::requests::user_of;
use crate::files::{FileError, absolute, at_work};
use crate::serve::{Answer, Failure, done};

/// Chunks that are held in memory at once; more wait with their host.
static CHUNKS: Semaphore = Semaphore::const_new(16);
/// Files that take their digest at once: reading gigabytes is work for a disk and a processor.
static ENDINGS: Semaphore = Semaphore::const_new(2);
const MAX_ID: usize = 64;

fn invalid(why: impl std::fmt::Display) -> GuestError {
    GuestError::new(ErrorCode::Invalid, format!("uploading: {why}"))
}

fn lost() -> GuestError {
    GuestError::new(ErrorCode::Internal, "uploading: the worker ended early")
}

/// Ids become names of notes on the disk.
fn check_id(id: &str) -> Result<(), GuestError> {
    let plain = id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    if id.is_empty() || id.len() > MAX_ID || !plain { Err(invalid("the id is not valid")) } else { Ok(()) }
}

fn told(upload: &Upload, attached: bool) -> Tell {
    Tell::Upload(Told { upload_id: upload.id.clone(), received: upload.body.received(), attached })
}

pub(crate) async fn start_file(agent: &Arc<Agent>, wanted: StartUpload) -> Answer {
    let path = absolute(&wanted.path)?;
    let user = user_of(wanted.user)?;
    let sha256: [u8; 32] = wanted.sha256[..].try_into().map_err(|_| invalid("the digest is not 32 bytes"))?;
    if wanted.mode > 0o7777 || wanted.size > MAX_UPLOAD {
        return Err(invalid("the mode or the size is not valid").into());
    }
    check_id(&wanted.upload_id)?;
    if let Some(known) = agent.uploads.by_key(&wanted.key, false) {
        return Ok(told(&known, true));
    }
    let StartUpload { size, mode, key, upload_id, .. } = wanted;
    let id = upload_id.clone();
    let staged = at_work(move || Staged::begin(&path, size, sha256, mode, user, &id)).await?.await;
    let staged = staged.map_err(|_| lost())?.map_err(|error| error.to_guest())?;
    let upload = agent.uploads.enter(Upload::new(upload_id, key, Body::File(staged)), MOST_FILES)?;
    Ok(told(&upload, false))
}

pub(crate) async fn start_archive(agent: &Arc<Agent>, wanted: StartArchive) -> Answer {
    let path = absolute(&wanted.path)?;
    let user = user_of(wanted.user)?;
    check_id(&wanted.upload_id)?;
    if let Some(known) = agent.uploads.by_key(&wanted.key, true) {
        return Ok(told(&known, true));
    }
    let unpacking = Unpacking::begin(path, user)?;
    let upload = Upload::new(wanted.upload_id, wanted.key, Body::Archive(unpacking));
    let upload = agent.uploads.enter(upload, archive::MOST)?;
    Ok(told(&upload, false))
}

pub(crate) async fn put(agent: &Arc<Agent>, wanted: PutChunk, stream: &mut Stream) -> Answer {
    let reference = wanted.upload.ok_or_else(|| invalid("which upload is not said"))?;
    let Found::Open(upload) = agent.uploads.find(&reference)? else {
        return Err(invalid(format_args!("{} has ended", reference.upload_id)).into());
    };
    if wanted.size > UPLOAD_CHUNK {
        return Err(invalid(format_args!("a chunk is longer than {UPLOAD_CHUNK} bytes")).into());
    }
    match &upload.body {
        Body::File(staged) => put_file(&upload, staged, wanted.offset, wanted.size, stream).await?,
        Body::Archive(unpacking) => unpacking.put(wanted.offset, wanted.size, stream).await?,
    }
    upload.touch();
    Ok(told(&upload, false))
}

async fn put_file(
    upload: &Arc<Upload>,
    staged: &Staged,
    offset: u64,
    size: u64,
    stream: &mut Stream,
) -> Result<(), Failure> {
    match staged.length_at(offset) {
        Some(expected) if expected == size => {}
        Some(expected) => {
            return Err(invalid(format_args!("{expected} bytes belong at {offset}, not {size}")).into());
        }
        None => return Err(invalid(format_args!("no chunk begins at {offset}")).into()),
    }
    let _place = CHUNKS.acquire().await.map_err(|_| Failure::Gone)?;
    let data = whole(stream, size).await?;
    let ended = || invalid(format_args!("{} has ended", upload.id));
    let _writing = staged.writing().await.ok_or_else(ended)?;
    Ok(on_worker(upload, move |staged| staged.write(offset, &data)).await?)
}

/// File work on a worker, which keeps the upload as long as it takes.
async fn on_worker<T: Send + 'static>(
    upload: &Arc<Upload>,
    work: impl FnOnce(&Staged) -> Result<T, FileError> + Send + 'static,
) -> Result<T, GuestError> {
    let upload = upload.clone();
    let worker = at_work(move || match &upload.body {
        Body::File(staged) => work(staged).map_err(|error| error.to_guest()),
        Body::Archive(_) => Err(lost()),
    });
    worker.await?.await.map_err(|_| lost())?
}

/// Exactly so many bytes, or nothing: half a chunk is never written.
async fn whole(stream: &mut Stream, size: u64) -> Result<Bytes, Failure> {
    let size = usize::try_from(size).unwrap_or(usize::MAX).min(UPLOAD_CHUNK as usize);
    let mut data = BytesMut::with_capacity(size);
    while let Some(message) = stream.recv().await? {
        let Ok(input) = decode_input(message) else { return Err(invalid("a message does not decode").into()) };
        if data.len() + input.data.len() > size {
            return Err(invalid(format_args!("more came than the {size} bytes announced")).into());
        }
        data.extend_from_slice(&input.data);
    }
    if data.len() < size {
        return Err(invalid(format_args!("{size} bytes were announced, {} came", data.len())).into());
    }
    Ok(data.freeze())
}

pub(crate) async fn commit(agent: &Arc<Agent>, wanted: UploadRef) -> Answer {
    let upload = match agent.uploads.find(&wanted)? {
        Found::Open(upload) => upload,
        Found::Committed(answer) => return Ok(*answer),
    };
    let answer = match &upload.body {
        Body::File(staged) => match staged.ending().await {
            Some(mut ending) => {
                let _place = ENDINGS.acquire().await.map_err(|_| Failure::Gone)?;
                let answer = Tell::File(on_worker(&upload, Staged::commit).await?);
                *ending = true;
                answer
            }
            // Another ended it while this one waited.
            None => return committed(agent, &wanted),
        },
        Body::Archive(unpacking) => match unpacking.commit().await {
            Some(Ok(())) => done(),
            Some(Err(error)) => {
                agent.uploads.leave(&upload);
                return Err(error.into());
            }
            None => return committed(agent, &wanted),
        },
    };
    agent.uploads.committed(&upload, answer.clone());
    Ok(answer)
}

fn committed(agent: &Arc<Agent>, wanted: &UploadRef) -> Answer {
    match agent.uploads.find(wanted)? {
        Found::Committed(answer) => Ok(*answer),
        Found::Open(_) => Err(lost().into()),
    }
}

pub(crate) async fn abort(agent: &Arc<Agent>, wanted: UploadRef) -> Answer {
    let Found::Open(upload) = agent.uploads.find(&wanted)? else {
        return Err(invalid(format_args!("{} is committed", wanted.upload_id)).into());
    };
    match &upload.body {
        Body::File(staged) => {
            if let Some(mut ending) = staged.ending().await {
                *ending = true;
                staged.remove();
            }
        }
        Body::Archive(unpacking) => unpacking.abort().await,
    }
    agent.uploads.leave(&upload);
    Ok(done())
}
