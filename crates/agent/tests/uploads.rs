//! Files that come in chunks, whatever order they come in and whatever the guest does meanwhile.

mod common;

use std::os::unix::fs::{MetadataExt, PermissionsExt};

use bytes::Bytes;
use common::*;
use runtime_proto::guest::{
    Ask, DATA_STEP, ErrorCode, GuestError, Input, PutChunk, StartUpload, Tell, UPLOAD_CHUNK, Upload, UploadRef, encode,
};

const CHUNK: usize = UPLOAD_CHUNK as usize;

struct Place {
    guest: Guest,
    dir: tempfile::TempDir,
}

fn digest(data: &[u8]) -> Bytes {
    use sha2::Digest as _;
    Bytes::copy_from_slice(&sha2::Sha256::digest(data))
}

/// Different at every place.
fn content(length: usize) -> Vec<u8> {
    (0..length.div_ceil(8) as u64)
        .flat_map(|n| (n.wrapping_mul(0x9e37_79b9_7f4a_7c15)).to_le_bytes())
        .take(length)
        .collect()
}

fn file(id: &str) -> UploadRef {
    UploadRef { upload_id: id.to_owned(), archive: false }
}

impl Place {
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::chown(dir.path(), Some(1000), Some(1000)).unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        Self { guest: Guest::start().await, dir }
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.dir.path()).unwrap();
        let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    async fn start(&self, name: &str, data: &[u8], id: &str) -> Result<Upload, GuestError> {
        self.start_as(StartUpload {
            path: self.path(name),
            size: data.len() as u64,
            sha256: digest(data),
            mode: 0o640,
            user: 0,
            key: format!("key of {id}"),
            upload_id: id.to_owned(),
        })
        .await
    }

    async fn start_as(&self, start: StartUpload) -> Result<Upload, GuestError> {
        match self.guest.one(Ask::StartUpload(start)).await? {
            Tell::Upload(upload) => Ok(upload),
            other => panic!("{other:?}"),
        }
    }

    async fn put(&self, id: &str, offset: usize, data: &[u8]) -> Result<u64, GuestError> {
        self.put_as(id, offset, data, data.len()).await
    }

    async fn put_as(&self, id: &str, offset: usize, data: &[u8], size: usize) -> Result<u64, GuestError> {
        let ask = PutChunk { upload: Some(file(id)), offset: offset as u64, size: size as u64 };
        let mut stream = self.guest.open(Ask::PutChunk(ask)).await;
        let sender = stream.sender();
        for piece in data.chunks(DATA_STEP) {
            // A refusal may come before all has been sent.
            if sender.send(encode(&Input { data: Bytes::copy_from_slice(piece) })).await.is_err() {
                break;
            }
        }
        let _ = sender.finish().await;
        match collect(&mut stream).await?.pop() {
            Some(Tell::Upload(upload)) => Ok(upload.received),
            other => panic!("{other:?}"),
        }
    }

    async fn put_chunk(&self, id: &str, data: &[u8], number: usize) -> u64 {
        let at = number * CHUNK;
        self.put(id, at, &data[at..data.len().min(at + CHUNK)]).await.unwrap()
    }

    async fn commit(&self, id: &str) -> Result<Tell, ErrorCode> {
        self.guest.one(Ask::CommitUpload(file(id))).await.map_err(|error| error.code())
    }

    async fn abort(&self, id: &str) -> Result<Tell, ErrorCode> {
        self.guest.one(Ask::AbortUpload(file(id))).await.map_err(|error| error.code())
    }
}

#[tokio::test]
async fn chunks_come_in_any_order_at_once_and_again() {
    let place = Place::new().await;
    let data = content(5 * CHUNK + 12_345);
    std::fs::create_dir_all(place.path("d/e")).unwrap();
    std::os::unix::fs::chown(place.path("d/e"), Some(1000), Some(1000)).unwrap();
    place.start("d/e/big", &data, "u").await.unwrap();
    tokio::join!(
        place.put_chunk("u", &data, 5),
        place.put_chunk("u", &data, 0),
        place.put_chunk("u", &data, 3),
        place.put_chunk("u", &data, 3),
    );
    assert_eq!(place.commit("u").await.unwrap_err(), ErrorCode::UploadIncomplete);
    place.put_chunk("u", &data, 1).await;
    place.put_chunk("u", &data, 2).await;
    assert_eq!(place.put_chunk("u", &data, 4).await, data.len() as u64);
    assert!(!std::path::Path::new(&place.path("d/e/big")).exists());
    let Tell::File(info) = place.commit("u").await.unwrap() else { panic!("no file") };
    assert_eq!((info.size, info.mode, info.uid), (data.len() as u64, 0o640, 1000));
    assert_eq!(std::fs::read(place.path("d/e/big")).unwrap(), data);
    assert_eq!(std::fs::read_dir(place.path("d/e")).unwrap().count(), 1);
    // The answer was lost and the commit comes again.
    assert_eq!(place.commit("u").await.unwrap(), Tell::File(info));
    assert_eq!(place.put("u", 0, &data[..CHUNK]).await.unwrap_err().code(), ErrorCode::Invalid);
}

#[tokio::test]
async fn a_host_that_goes_away_loses_nothing_that_was_taken() {
    let mut place = Place::new().await;
    let data = content(3 * CHUNK);
    place.start("f", &data, "u").await.unwrap();
    place.put_chunk("u", &data, 0).await;
    place.put_chunk("u", &data, 2).await;
    place.guest = place.guest.reattach().await;
    // The request for the start comes again under its key, with an id of the next host's own.
    let again = StartUpload {
        key: "key of u".to_owned(),
        upload_id: "other".to_owned(),
        sha256: digest(&data),
        path: place.path("f"),
        ..StartUpload::default()
    };
    let known = place.start_as(again).await.unwrap();
    assert_eq!((known.upload_id.as_str(), known.attached, known.received), ("u", true, 2 * CHUNK as u64));
    place.put_chunk("u", &data, 1).await;
    place.commit("u").await.unwrap();
    assert_eq!(std::fs::read(place.path("f")).unwrap(), data);
}

#[tokio::test]
async fn what_does_not_fit_changes_nothing() {
    let place = Place::new().await;
    let data = content(2 * CHUNK + 10);
    std::fs::write(place.path("f"), "before").unwrap();
    place.start("f", &data, "u").await.unwrap();
    for (offset, size) in [(1, 10), (CHUNK, 10), (2 * CHUNK, CHUNK), (3 * CHUNK, 10), (0, 0)] {
        assert_eq!(
            place.put("u", offset, &data[..size]).await.unwrap_err().code(),
            ErrorCode::Invalid,
            "{offset} {size}"
        );
    }
    // Half a chunk, then the end; and more than was said.
    assert_eq!(place.put_as("u", 0, &data[..10], CHUNK).await.unwrap_err().code(), ErrorCode::Invalid);
    assert_eq!(place.put_as("u", 2 * CHUNK, &data[..11], 10).await.unwrap_err().code(), ErrorCode::Invalid);
    assert_eq!(place.put_as("u", 0, &data, data.len()).await.unwrap_err().code(), ErrorCode::Invalid);
    assert_eq!(place.commit("u").await.unwrap_err(), ErrorCode::UploadIncomplete);
    // Whole, but not what was announced: then the right bytes are sent.
    place.put("u", 0, &vec![1; CHUNK]).await.unwrap();
    place.put_chunk("u", &data, 1).await;
    place.put_chunk("u", &data, 2).await;
    assert_eq!(place.commit("u").await.unwrap_err(), ErrorCode::DigestMismatch);
    assert_eq!(std::fs::read_to_string(place.path("f")).unwrap(), "before");
    place.put_chunk("u", &data, 0).await;
    place.commit("u").await.unwrap();
    assert_eq!(std::fs::read(place.path("f")).unwrap(), data);
    assert_eq!(place.names(), ["f"]);
}

#[tokio::test]
async fn an_abort_leaves_nothing_and_ids_are_not_guessed() {
    let place = Place::new().await;
    let data = content(CHUNK + 1);
    place.start("f", &data, "u").await.unwrap();
    place.put_chunk("u", &data, 0).await;
    assert_eq!(place.names().len(), 1);
    place.abort("u").await.unwrap();
    assert_eq!(place.names(), [] as [&str; 0]);
    assert_eq!(place.abort("u").await.unwrap_err(), ErrorCode::NoSuchUpload);
    assert_eq!(place.commit("u").await.unwrap_err(), ErrorCode::NoSuchUpload);
    assert_eq!(place.put("u", 0, &data[..CHUNK]).await.unwrap_err().code(), ErrorCode::NoSuchUpload);
    for id in ["", "../../etc/cron.d/x", "a/b", &"a".repeat(65)] {
        assert_eq!(place.start("f", &data, id).await.unwrap_err().code(), ErrorCode::Invalid, "{id}");
    }
    place.start("empty", b"", "e").await.unwrap();
    assert!(place.guest.one(Ask::CommitUpload(UploadRef { archive: true, ..file("e") })).await.is_err());
    place.commit("e").await.unwrap();
    assert_eq!(std::fs::metadata(place.path("empty")).unwrap().len(), 0);
}

#[tokio::test]
async fn a_place_that_may_not_be_written_is_refused_before_anything_comes() {
    let place = Place::new().await;
    let start = |path: &str, user| StartUpload {
        path: path.to_owned(),
        size: 10,
        sha256: digest(b"x"),
        user,
        upload_id: "u".to_owned(),
        ..StartUpload::default()
    };
    std::fs::create_dir(place.path("closed")).unwrap();
    let long = place.path(&"n".repeat(300));
    for (path, code) in [
        (place.path("closed/f"), ErrorCode::PermissionDenied),
        (place.path("closed"), ErrorCode::IsADirectory),
        ("/".to_owned(), ErrorCode::IsADirectory),
        (place.path("none/f"), ErrorCode::FileNotFound),
        (long, ErrorCode::Invalid),
        ("relative".to_owned(), ErrorCode::Invalid),
    ] {
        assert_eq!(place.start_as(start(&path, 0)).await.unwrap_err().code(), code, "{path}");
    }
    let huge = StartUpload { size: u64::MAX, ..start(&place.path("f"), 0) };
    assert_eq!(place.start_as(huge).await.unwrap_err().code(), ErrorCode::Invalid);
    let short = StartUpload { sha256: Bytes::from_static(b"abc"), ..start(&place.path("f"), 0) };
    assert_eq!(place.start_as(short).await.unwrap_err().code(), ErrorCode::Invalid);
    assert_eq!(place.names(), ["closed"]);
}

/// The guest sees the file while it grows, and may put another in its place.
#[tokio::test]
async fn a_guest_that_swaps_the_file_gets_no_bytes_elsewhere_and_no_success() {
    let place = Place::new().await;
    let data = content(CHUNK);
    let outside = place.path("outside");
    std::fs::write(&outside, "untouched").unwrap();
    place.start("f", &data, "u").await.unwrap();
    let staged = place.names().into_iter().find(|name| name.starts_with('.')).unwrap();
    std::fs::remove_file(place.path(&staged)).unwrap();
    std::os::unix::fs::symlink(&outside, place.path(&staged)).unwrap();
    place.put_chunk("u", &data, 0).await;
    assert_eq!(place.commit("u").await.unwrap_err(), ErrorCode::DigestMismatch);
    assert_eq!(std::fs::read_to_string(&outside).unwrap(), "untouched");
    place.abort("u").await.unwrap();
    assert_eq!(place.names(), ["outside"]);

    // A link at the target is replaced; where it pointed stays as it was.
    std::os::unix::fs::symlink(&outside, place.path("link")).unwrap();
    place.start("link", &data, "v").await.unwrap();
    place.put_chunk("v", &data, 0).await;
    // Bytes changed behind our back are found by the digest.
    let staged = place.names().into_iter().find(|name| name.starts_with('.')).unwrap();
    let good = std::fs::read(place.path(&staged)).unwrap();
    std::fs::write(place.path(&staged), "changed").unwrap();
    assert_eq!(place.commit("v").await.unwrap_err(), ErrorCode::DigestMismatch);
    std::fs::write(place.path(&staged), good).unwrap();
    place.commit("v").await.unwrap();
    assert_eq!(std::fs::read_to_string(&outside).unwrap(), "untouched");
    assert!(std::fs::symlink_metadata(place.path("link")).unwrap().is_file());
    assert_eq!(std::fs::metadata(place.path("link")).unwrap().mode() & 0o7777, 0o640);
}
