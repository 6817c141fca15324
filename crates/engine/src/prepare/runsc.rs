//! gVisor's `runsc` on this machine.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The release whose internal control socket was tested.
pub const TESTED: &str = "20240729";
/// Where Debian puts it, and where one's own build would lie.
const PLACES: [&str; 3] = ["/usr/bin/runsc", "/usr/local/bin/runsc", "/usr/sbin/runsc"];

#[derive(Debug, thiserror::Error)]
pub enum RunscError {
    #[error("gVisor's runsc is not installed")]
    Absent,
    #[error("cannot run {path} --version")]
    Broken {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{path} --version did not answer with a version")]
    NoVersion { path: PathBuf },
    #[error("{path} is release {version}, older than {TESTED}")]
    TooOld { path: PathBuf, version: String },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Runsc {
    pub path: PathBuf,
    /// As it says itself, such as `0.0~20240729.0`.
    pub version: String,
    /// Its control socket may be spoken to directly; otherwise only its command line is used.
    pub urpc_tested: bool,
}

impl Runsc {
    pub fn find() -> Result<Self, RunscError> {
        let path = PLACES.iter().map(Path::new).find(|path| path.is_file()).ok_or(RunscError::Absent)?.to_owned();
        let output = Command::new(&path)
            .arg("--version")
            .stdin(Stdio::null())
            .output()
            .map_err(|source| RunscError::Broken { path: path.clone(), source })?;
        let text = String::from_utf8_lossy(&output.stdout);
        let Some((version, date)) = parse(&text) else { return Err(RunscError::NoVersion { path }) };
        if date < TESTED {
            return Err(RunscError::TooOld { path, version: version.to_owned() });
        }
        Ok(Self { urpc_tested: date == TESTED, version: version.to_owned(), path })
    }
}

/// The version and the date in it: `runsc version 0.0~20240729.0`, upstream `release-20240729.0`.
fn parse(text: &str) -> Option<(&str, &str)> {
    let version = text.lines().find_map(|line| line.strip_prefix("runsc version "))?.trim();
    let date =
        version.split(|c: char| !c.is_ascii_digit()).find(|digits| digits.len() == 8 && digits.starts_with("20"))?;
    Some((version, date))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_debian_and_upstream() {
        assert_eq!(parse("runsc version 0.0~20240729.0\nspec: 1.0.2-dev\n"), Some(("0.0~20240729.0", "20240729")));
        assert_eq!(parse("runsc version release-20250127.0\n"), Some(("release-20250127.0", "20250127")));
        assert_eq!(parse("runsc version VERSION_MISSING\n"), None);
        assert_eq!(parse(""), None);
    }
}
