//! Where a data directory's sandboxes are on the host.

use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// A data directory, and what the product derives from its path.
#[derive(Debug, Clone)]
pub struct Places {
    pub data: PathBuf,
    /// Sockets and pipes: socket paths are short, so it lies elsewhere under a name made from the data directory's.
    pub run: PathBuf,
    /// How the names of its control groups begin.
    pub(crate) cgroup_prefix: String,
}

impl Places {
    /// # Panics
    /// When the directory is not there.
    #[must_use]
    pub fn of(data: &Path) -> Self {
        let data = data.canonicalize().unwrap_or_else(|error| panic!("find {}: {error}", data.display()));
        let digest = Sha256::digest(data.as_os_str().as_encoded_bytes());
        let name = digest.iter().take(8).fold(String::new(), |mut name, byte| {
            let _ = write!(name, "{byte:02x}");
            name
        });
        Self { data, run: Path::new("/run/runtime").join(&name), cgroup_prefix: format!("{name}-") }
    }
}
