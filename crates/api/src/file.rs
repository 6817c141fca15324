//! Files in a sandbox. Every path is absolute.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::exec::is_false;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum FileType {
    File,
    Directory,
    Symlink,
    Other,
}

/// A file as the sandbox shows it; links are not followed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct FileEntry {
    pub name: String,
    pub path: String,
    #[serde(rename = "type")]
    pub kind: FileType,
    pub size: u64,
    /// Four octal digits, like `0644`.
    pub mode: String,
    #[schema(format = DateTime)]
    pub modified_at: String,
    pub mtime_ms: i64,
    pub uid: u32,
    pub gid: u32,
    pub owner: String,
    pub group: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub symlink_target: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FileListing {
    pub data: Vec<FileEntry>,
}

/// What is at a path: an entry with `exists: true`, or `exists: false` and the path.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum FileStat {
    Found(FileFound),
    Missing(FileMissing),
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FileFound {
    pub exists: bool,
    #[serde(flatten)]
    pub entry: FileEntry,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FileMissing {
    pub exists: bool,
    pub path: String,
}

impl From<FileEntry> for FileStat {
    fn from(entry: FileEntry) -> Self {
        Self::Found(FileFound { exists: true, entry })
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FileWritten {
    pub path: String,
    pub size: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct MakeDirRequest {
    pub path: String,
    /// Make missing parents too, and be content with a directory that is there.
    #[serde(skip_serializing_if = "is_false")]
    pub parents: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RemoveRequest {
    pub path: String,
    /// Remove a directory with all that is in it.
    #[serde(skip_serializing_if = "is_false")]
    pub recursive: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RemoveAnswer {
    /// False: there was nothing.
    pub removed: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RenameRequest {
    pub from: String,
    pub to: String,
    #[serde(skip_serializing_if = "is_false")]
    pub overwrite: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ChmodRequest {
    pub path: String,
    /// Octal digits, like `755`.
    pub mode: String,
}

/// A file that comes in chunks.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct UploadRequest {
    pub path: String,
    pub size: u64,
    /// Of the whole file, in hexadecimal.
    pub sha256: String,
    /// Octal digits, like `644`, which it is if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
}

/// An archive that comes in parts, to be unpacked into a folder.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ArchiveRequest {
    pub path: String,
    /// Said for people: what it is shows in its first bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gzip: Option<bool>,
    /// `sandbox` or `root`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct UploadStarted {
    pub upload_id: String,
    /// Bytes of each chunk; only the last of a file is shorter.
    pub chunk_bytes: u64,
    /// As it was sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UploadProgress {
    /// Bytes that are here now.
    pub received: u64,
}

/// An answer that says only that it was done: `{}`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Empty {}
