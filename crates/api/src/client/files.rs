//! File bytes, whole or not at all.

use bytes::Bytes;
use reqwest::Response;
use sha2::{Digest, Sha256};

use super::{Client, ClientError, Record, Result, path};

/// The largest file that one request may write.
pub const MAX_WHOLE_FILE: usize = 1024 * 1024;
/// A read that comes short is made again this often.
const REREADS: u32 = 2;

/// A file on its way here. Its end is only the end if the length, and the digest where one was promised, agree.
#[derive(Debug)]
pub struct Download {
    response: Response,
    origin: String,
    promised: Option<u64>,
    digest: Option<(String, Sha256)>,
    received: u64,
}

impl Download {
    fn new(response: Response, origin: String) -> Self {
        let header = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok());
        let promised = header("x-content-length").and_then(|text| text.parse().ok());
        let digest = header("x-content-sha256").map(|hex| (hex.to_ascii_lowercase(), Sha256::new()));
        Self { response, origin, promised, digest, received: 0 }
    }

    /// The length the server promised.
    #[must_use]
    pub fn promised(&self) -> Option<u64> {
        self.promised
    }

    /// The next bytes; nothing at an end that has been checked.
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        match self.response.chunk().await {
            Ok(Some(piece)) => {
                self.received += piece.len() as u64;
                if let Some((_, hash)) = &mut self.digest {
                    hash.update(&piece);
                }
                if self.promised.is_some_and(|promised| self.received > promised) {
                    return Err(self.incomplete("more bytes came than the server announced"));
                }
                Ok(Some(piece))
            }
            Ok(None) => self.check().map(|()| None),
            Err(source) if self.promised.is_some() => {
                let cause = ClientError::transport(&self.origin, source);
                Err(self.incomplete(&cause.message))
            }
            Err(source) => Err(ClientError::transport(&self.origin, source)),
        }
    }

    fn check(&mut self) -> Result<()> {
        if self.promised.is_some_and(|promised| promised != self.received) {
            return Err(self.incomplete("the file ended early"));
        }
        if let Some((promised, hash)) = self.digest.take() {
            let found: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
            if found != promised {
                return Err(self.incomplete("the bytes are not those the server announced"));
            }
        }
        Ok(())
    }

    fn incomplete(&self, why: &str) -> ClientError {
        let expected = self.promised.map_or_else(|| "an unknown number of".to_owned(), |bytes| bytes.to_string());
        ClientError::local("download_incomplete", format!("{why} ({} of {expected} bytes)", self.received))
            .with_hint("The file may be changing while it is read; try again.")
    }
}

impl Client {
    /// Opens a file for reading as it streams.
    pub async fn download(&self, sandbox: &str, file: &str) -> Result<Download> {
        let route = path(&["v1", "sandboxes", sandbox, "files", "content"]);
        let call = self.get(route).query("path", file).accept("application/octet-stream");
        Ok(Download::new(call.open().await?, self.inner.origin.as_str().to_owned()))
    }

    /// Reads a file of at most `limit` bytes; one that changed under the read is read again.
    pub async fn read_file(&self, sandbox: &str, file: &str, limit: usize) -> Result<Vec<u8>> {
        let mut rereads = 0;
        loop {
            match self.read_file_once(sandbox, file, limit).await {
                Err(error) if error.code == "download_incomplete" && rereads < REREADS => rereads += 1,
                outcome => return outcome,
            }
        }
    }

    async fn read_file_once(&self, sandbox: &str, file: &str, limit: usize) -> Result<Vec<u8>> {
        let mut download = self.download(sandbox, file).await?;
        let mut bytes = Vec::new();
        while let Some(piece) = download.next().await? {
            if bytes.len() + piece.len() > limit {
                return Err(ClientError::local("file_too_large", format!("{file} is larger than {limit} bytes")));
            }
            bytes.extend_from_slice(&piece);
        }
        Ok(bytes)
    }

    /// Writes a small file at once; it appears whole or not at all.
    pub async fn write_file(&self, sandbox: &str, file: &str, bytes: Bytes, mode: Option<&str>) -> Result<Record> {
        if bytes.len() > MAX_WHOLE_FILE {
            let message =
                format!("{file}: {} bytes are more than one request may write ({MAX_WHOLE_FILE})", bytes.len());
            return Err(ClientError::local("file_too_large", message));
        }
        let mut call =
            self.put_bytes(path(&["v1", "sandboxes", sandbox, "files", "content"]), bytes).query("path", file);
        if let Some(mode) = mode {
            call = call.query("mode", mode);
        }
        call.send().await
    }

    /// The entries below a directory.
    pub async fn list_files(
        &self,
        sandbox: &str,
        directory: &str,
        depth: Option<u64>,
        glob: Option<&str>,
        hidden: bool,
    ) -> Result<Vec<Record>> {
        let mut call = self.get(path(&["v1", "sandboxes", sandbox, "files", "list"])).query("path", directory);
        if let Some(depth) = depth {
            call = call.query("depth", depth.to_string());
        }
        if let Some(glob) = glob {
            call = call.query("glob", glob);
        }
        if hidden {
            call = call.query("hidden", "true");
        }
        Ok(call.send().await?.data())
    }
}
