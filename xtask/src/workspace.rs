//! The workspace as cargo describes it: where it is, where it builds, its members and what each declares.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::steps::{cargo, output_of};

#[derive(Debug, Deserialize)]
pub(crate) struct Workspace {
    #[serde(rename = "workspace_root")]
    pub(crate) root: PathBuf,
    pub(crate) target_directory: PathBuf,
    pub(crate) packages: Vec<Package>,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) manifest_path: PathBuf,
    pub(crate) dependencies: Vec<Dependency>,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Dependency {
    pub(crate) name: String,
    pub(crate) kind: Option<String>,
    /// Set for a dependency that lies on this disk, which here means: one of ours.
    pub(crate) path: Option<PathBuf>,
}

impl Workspace {
    /// Reads the manifests; `--no-deps` keeps cargo from resolving, and so from the network.
    pub(crate) fn load() -> Result<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask lies in no workspace")?;
        // A clone that was moved after xtask was built: the current directory is then the better answer.
        let start = if root.join("Cargo.toml").is_file() { root } else { Path::new(".") };
        let json = output_of(cargo(start).args(["metadata", "--format-version=1", "--no-deps", "--offline"]))?;
        let workspace: Self = serde_json::from_slice(&json).context("cargo metadata gave JSON of an unknown shape")?;
        if workspace.packages.is_empty() {
            bail!("cargo metadata names no package in {}", workspace.root.display());
        }
        Ok(workspace)
    }

    /// The product as built in the release profile.
    pub(crate) fn runtime_binary(&self) -> PathBuf {
        self.target_directory.join("release/runtime")
    }
}

impl Package {
    /// The package's folder, relative to the workspace root where it lies below it.
    pub(crate) fn folder<'a>(&'a self, root: &Path) -> &'a Path {
        let folder = self.manifest_path.parent().unwrap_or(&self.manifest_path);
        folder.strip_prefix(root).unwrap_or(folder)
    }
}
