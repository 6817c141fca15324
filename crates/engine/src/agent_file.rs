//! The agent on disk: written once by its digest, so that sandboxes that still use an older one keep it.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
#[error("cannot write the agent to {path}")]
pub struct AgentFileError {
    path: PathBuf,
    #[source]
    source: io::Error,
}

#[derive(Debug, Clone)]
pub struct AgentFile {
    path: PathBuf,
    digest: String,
}

impl AgentFile {
    /// Nobody may write to it, not even by mistake: every sandbox of this host runs it.
    pub fn install(data_dir: &Path, agent: &[u8]) -> Result<Self, AgentFileError> {
        let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, agent);
        let digest: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        let dir = data_dir.join("agent");
        let path = dir.join(&digest);
        let fail = |source| AgentFileError { path: path.clone(), source };
        if fs::read(&path).is_ok_and(|there| there == agent) {
            return Ok(Self { path, digest });
        }
        fs::create_dir_all(&dir).map_err(fail)?;
        let new = dir.join(format!("{digest}.new"));
        // One left by a crash is read-only.
        let _ = fs::remove_file(&new);
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new).map_err(fail)?;
        file.write_all(agent).map_err(fail)?;
        file.set_permissions(fs::Permissions::from_mode(0o555)).map_err(fail)?;
        file.sync_all().map_err(fail)?;
        drop(file);
        fs::rename(&new, &path).map_err(fail)?;
        Ok(Self { path, digest })
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// An older one, as a saved machine remembers it.
    #[must_use]
    pub fn sibling(&self, digest: &str) -> PathBuf {
        self.path.with_file_name(digest)
    }

    #[must_use]
    pub fn digest(&self) -> &str {
        &self.digest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_file_is_replaced_and_a_good_one_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let file = AgentFile::install(dir.path(), b"agent").unwrap();
        let first = fs::metadata(file.path()).unwrap();
        assert_eq!(first.permissions().mode() & 0o777, 0o555);
        fs::remove_file(file.path()).unwrap();
        fs::write(file.path(), b"ag").unwrap();
        let file = AgentFile::install(dir.path(), b"agent").unwrap();
        assert_eq!(fs::read(file.path()).unwrap(), b"agent");
        let again = AgentFile::install(dir.path(), b"agent").unwrap();
        assert_eq!(again.digest(), file.digest());
    }
}
