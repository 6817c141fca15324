//! What the program finds around it, read once: variables, who runs it, where its data is.

use std::path::{Path, PathBuf};

/// Where root keeps its server.
const SYSTEM_DIR: &str = "/var/lib/runtime";

#[derive(Debug, Clone)]
pub(crate) struct Surroundings {
    /// `RUNTIME_API_URL`.
    pub(crate) api_url: Option<String>,
    /// `RUNTIME_API_KEY`.
    pub(crate) api_key: Option<String>,
    root: bool,
    /// `$XDG_DATA_HOME/runtime`, if there is a home.
    own_dir: Option<PathBuf>,
    system_dir: PathBuf,
    pub(crate) home: Option<PathBuf>,
    /// Where this user's programs keep their settings.
    pub(crate) config_dir: Option<PathBuf>,
}

impl Surroundings {
    #[expect(clippy::disallowed_methods, reason = "this is the edge where the client's environment is read")]
    pub(crate) fn read() -> Self {
        let text = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let path = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let own_dir = path("XDG_DATA_HOME").or_else(|| path("HOME").map(|home| home.join(".local/share")));
        Self {
            api_url: text("RUNTIME_API_URL"),
            api_key: text("RUNTIME_API_KEY"),
            root: rustix::process::geteuid().is_root(),
            own_dir: own_dir.map(|dir| dir.join("runtime")),
            system_dir: SYSTEM_DIR.into(),
            home: path("HOME"),
            config_dir: path("XDG_CONFIG_HOME").or_else(|| path("HOME").map(|home| home.join(".config"))),
        }
    }

    /// Where this user's server keeps everything unless told otherwise.
    pub(crate) fn default_data_dir(&self) -> PathBuf {
        match &self.own_dir {
            Some(own) if !self.root => own.clone(),
            _ => self.system_dir.clone(),
        }
    }

    /// Where a server of this machine may have left its address: one's own first.
    pub(crate) fn data_dirs(&self) -> Vec<PathBuf> {
        let first = self.default_data_dir();
        let others = [Some(self.system_dir.clone()), self.own_dir.clone()].into_iter().flatten();
        std::iter::once(first.clone()).chain(others.filter(|dir| *dir != first)).collect()
    }

    #[cfg(test)]
    pub(crate) fn for_test(system_dir: &Path, own_dir: Option<&Path>, root: bool) -> Self {
        Self {
            api_url: None,
            api_key: None,
            root,
            own_dir: own_dir.map(Path::to_path_buf),
            system_dir: system_dir.to_path_buf(),
            home: None,
            config_dir: None,
        }
    }
}

/// The first bytes of a small file, trimmed; nothing if it is not there, not readable, empty or not text.
pub(crate) fn read_word(path: &Path) -> Option<String> {
    use std::io::Read;
    let mut text = String::new();
    std::fs::File::open(path).ok()?.take(4096).read_to_string(&mut text).ok()?;
    let word = text.trim();
    (!word.is_empty()).then(|| word.to_owned())
}
