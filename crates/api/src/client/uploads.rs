//! What is larger than one request: files in chunks, folders as archives.

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use reqwest::Response;
use serde_json::json;

use super::{Client, ClientError, Result, path};

/// Chunks under way of one file.
pub const CHUNKS_AT_ONCE: usize = 8;

/// An archive on its way in, part by part.
#[derive(Debug)]
pub struct ArchiveUpload {
    client: Client,
    route: String,
    sent: u64,
    /// Bytes of one part.
    pub step: usize,
}

fn text(record: &super::Record, field: &str) -> Result<String> {
    record
        .text(field)
        .map(str::to_owned)
        .ok_or_else(|| ClientError::local("invalid_answer", format!("the server's answer to an upload has no {field}")))
}

fn step_of(record: &super::Record) -> Result<u64> {
    let step = record.int("chunkBytes").and_then(|step| u64::try_from(step).ok());
    step.filter(|step| (1..=1 << 20).contains(step)).ok_or_else(|| {
        ClientError::local("invalid_answer", "the server's answer to an upload has no usable chunkBytes")
    })
}

impl Client {
    /// Writes a file of any size; it appears whole or not at all. `read` gives the bytes at an offset.
    pub async fn upload_file<F>(
        &self,
        sandbox: &str,
        file: &str,
        size: u64,
        sha256: &str,
        mode: &str,
        read: impl Fn(u64, usize) -> F,
    ) -> Result<()>
    where
        F: Future<Output = Result<Bytes>>,
    {
        let uploads = path(&["v1", "sandboxes", sandbox, "uploads"]);
        let body = json!({"path": file, "size": size, "sha256": sha256, "mode": mode});
        let started = self.post(uploads.as_str(), &body).send().await?;
        let route = format!("{uploads}{}", path(&[&text(&started, "uploadId")?]));
        let step = step_of(&started)?;
        let (route_of, read) = (&route, &read);
        let chunks = stream::iter((0..size.div_ceil(step)).map(|number| async move {
            let offset = number * step;
            let length = usize::try_from(step.min(size - offset)).unwrap_or(usize::MAX);
            let bytes = read(offset, length).await?;
            self.put_bytes(route_of.as_str(), bytes).query("offset", offset.to_string()).send().await.map(drop)
        }));
        let sent = chunks.buffer_unordered(CHUNKS_AT_ONCE).try_collect::<()>().await;
        let ended = match sent {
            Ok(()) => self.post(format!("{route}:commit"), &json!({})).send().await.map(drop),
            Err(error) => Err(error),
        };
        if ended.is_err() {
            // What is left of it is the server's to expire, should this fail too.
            let _ = self.post(format!("{route}:abort"), &json!({})).send().await;
        }
        ended
    }

    /// Begins an archive that is unpacked into a directory as it comes.
    pub async fn upload_archive(&self, sandbox: &str, directory: &str) -> Result<ArchiveUpload> {
        let uploads = path(&["v1", "sandboxes", sandbox, "files", "archive", "uploads"]);
        let started = self.post(uploads.as_str(), &json!({"path": directory, "gzip": true})).send().await?;
        let route = format!("{uploads}{}", path(&[&text(&started, "uploadId")?]));
        let step = usize::try_from(step_of(&started)?).unwrap_or(1);
        Ok(ArchiveUpload { client: self.clone(), route, sent: 0, step })
    }

    /// Reads a directory as a gzip of a tar.
    pub async fn download_archive(&self, sandbox: &str, directory: &str) -> Result<ArchiveDownload> {
        let route = path(&["v1", "sandboxes", sandbox, "files", "archive"]);
        let call = self.get(route).query("path", directory).query("gzip", "true").accept("application/octet-stream");
        Ok(ArchiveDownload { response: call.open().await?, origin: self.inner.origin.as_str().to_owned() })
    }
}

impl ArchiveUpload {
    /// Sends the next part, at most [`ArchiveUpload::step`] bytes.
    pub async fn part(&mut self, bytes: Bytes) -> Result<()> {
        let length = bytes.len() as u64;
        let call = self.client.put_bytes(self.route.as_str(), bytes);
        call.query("offset", self.sent.to_string()).send().await?;
        self.sent += length;
        Ok(())
    }

    /// All parts are sent: returns once everything is unpacked.
    pub async fn commit(self) -> Result<()> {
        self.client.post(format!("{}:commit", self.route), &json!({})).send().await.map(drop)
    }

    pub async fn abort(self) {
        // What is left of it is the server's to expire, should this fail.
        let _ = self.client.post(format!("{}:abort", self.route), &json!({})).send().await;
    }
}

/// An archive on its way out. Whether it is whole shows in the archive itself.
#[derive(Debug)]
pub struct ArchiveDownload {
    response: Response,
    origin: String,
}

impl ArchiveDownload {
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        self.response.chunk().await.map_err(|source| ClientError::transport(&self.origin, source))
    }
}
