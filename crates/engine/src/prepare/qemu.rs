//! QEMU on this machine, and how fast its guests may run.

use std::io;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};

const PROGRAM: &str = "qemu-system-x86_64";
/// The oldest whose `microvm` machine and migration were tried.
const SINCE: (u32, u32) = (7, 2);

#[derive(Debug, thiserror::Error)]
pub enum QemuError {
    #[error("QEMU ({PROGRAM}) is not installed")]
    Absent,
    #[error("cannot run {path} --version")]
    Broken {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{path} --version did not answer with a version")]
    NoVersion { path: PathBuf },
    #[error("{path} is version {version}, older than {}.{}", SINCE.0, SINCE.1)]
    TooOld { path: PathBuf, version: String },
}

/// How a guest's instructions are carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Accel {
    /// By the processor. Only where a guest was seen to run.
    Kvm,
    /// In software.
    Tcg,
}

impl Accel {
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::Tcg => "tcg",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Qemu {
    pub path: PathBuf,
    /// As it says itself, with the distribution's part: a saved machine belongs to exactly one.
    pub version: String,
}

impl Qemu {
    pub fn find() -> Result<Self, QemuError> {
        let path = super::packages::tool(PROGRAM).ok_or(QemuError::Absent)?;
        let output = Command::new(&path)
            .arg("--version")
            .stdin(Stdio::null())
            .output()
            .map_err(|source| QemuError::Broken { path: path.clone(), source })?;
        let text = String::from_utf8_lossy(&output.stdout);
        let Some((version, number)) = parse(&text) else { return Err(QemuError::NoVersion { path }) };
        if number < SINCE {
            return Err(QemuError::TooOld { path, version: version.to_owned() });
        }
        Ok(Self { version: version.to_owned(), path })
    }
}

/// `QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18+b3)`
fn parse(text: &str) -> Option<(&str, (u32, u32))> {
    let version = text.lines().next()?.strip_prefix("QEMU emulator version ")?.trim();
    let mut parts = version.split(|c: char| !c.is_ascii_digit());
    Some((version, (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_debian_and_upstream() {
        let debian = "QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18+b3)\nCopyright\n";
        assert_eq!(parse(debian), Some(("7.2.22 (Debian 1:7.2+dfsg-7+deb12u18+b3)", (7, 2))));
        assert_eq!(parse("QEMU emulator version 10.0.2\n").unwrap().1, (10, 0));
        assert!(parse("QEMU emulator version 6.0.0").unwrap().1 < SINCE);
        assert_eq!(parse("qemu"), None);
    }
}
