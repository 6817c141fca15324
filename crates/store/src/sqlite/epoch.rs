//! Tells processes on one database that a credential changed, without a query: the length of a small file beside it,
//! which grows by a byte after each change.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::StoreError;

pub(super) struct Epoch(PathBuf);

impl Epoch {
    pub(super) fn beside(database: &Path) -> Self {
        Self(database.with_extension("keys-changed"))
    }

    pub(super) fn read(&self) -> Option<u64> {
        match std::fs::metadata(&self.0) {
            Ok(file) => Some(file.len()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Some(0),
            Err(_) => None,
        }
    }

    pub(super) fn raise(&self) -> Result<(), StoreError> {
        let file = OpenOptions::new().append(true).create(true).mode(0o600).open(&self.0);
        file.and_then(|mut file| file.write_all(b"."))
            .map_err(|source| StoreError::Epoch { path: self.0.clone(), source })
    }
}
