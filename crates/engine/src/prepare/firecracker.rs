//! Firecracker and its jailer on this machine. They come as two programs of one release, from nobody's packages: whoever
//! wants them puts them into `/usr/local/bin`.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const PROGRAM: &str = "firecracker";
const JAILER: &str = "jailer";

type Number = (u32, u32, u32);

/// The first with everything that is asked of it; its guests find their devices by ACPI, as Debian's kernel wants them.
const SINCE: Number = (1, 10, 0);
/// The first of which nothing is known.
const UNTIL: Number = (2, 0, 0);
/// From here on guests do not answer over their vsock any more once they were restored, or paused and resumed ...
const MUTE: Number = (1, 16, 0);
/// ... until here, where both are put right.
const SPEAKS: Number = (1, 16, 2);

#[derive(Debug, thiserror::Error)]
pub enum FirecrackerError {
    #[error("Firecracker's {0} is not installed; put firecracker and jailer of one release into /usr/local/bin")]
    Absent(&'static str),
    #[error("cannot run {path} --version")]
    Broken {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{path} --version did not answer with a version")]
    NoVersion { path: PathBuf },
    #[error(
        "{path} is version {version}; it must be 1.10 or later, below 2, and neither 1.16.0 nor 1.16.1, whose guests fall silent"
    )]
    Unfit { path: PathBuf, version: String },
    #[error("firecracker is version {firecracker} and jailer {jailer}; they must be of one release")]
    Apart { firecracker: String, jailer: String },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Firecracker {
    /// Without links: the jailer names its directory for it.
    pub path: PathBuf,
    pub jailer: PathBuf,
    pub version: String,
}

impl Firecracker {
    pub fn find() -> Result<Self, FirecrackerError> {
        let tool = |name| super::packages::tool(name).ok_or(FirecrackerError::Absent(name));
        Self::at(&tool(PROGRAM)?, &tool(JAILER)?)
    }

    /// These two programs.
    pub fn at(program: &Path, jailer: &Path) -> Result<Self, FirecrackerError> {
        let (path, version) = ask(program)?;
        let (jailer, other) = ask(jailer)?;
        let number = number(&version).ok_or_else(|| FirecrackerError::NoVersion { path: path.clone() })?;
        if number < SINCE || number >= UNTIL || (MUTE..SPEAKS).contains(&number) {
            return Err(FirecrackerError::Unfit { path, version });
        }
        if version != other {
            return Err(FirecrackerError::Apart { firecracker: version, jailer: other });
        }
        Ok(Self { path, jailer, version })
    }

    /// Which release it is, in numbers that compare.
    #[must_use]
    pub fn release(&self) -> (u32, u32, u32) {
        number(&self.version).unwrap_or_default()
    }
}

/// The program's own path, and what it calls its version.
fn ask(program: &Path) -> Result<(PathBuf, String), FirecrackerError> {
    let broken = |source| FirecrackerError::Broken { path: program.to_owned(), source };
    let path = std::fs::canonicalize(program).map_err(broken)?;
    let output = Command::new(&path).arg("--version").stdin(Stdio::null()).output().map_err(broken)?;
    match version(&String::from_utf8_lossy(&output.stdout)) {
        Some(version) => Ok((path, version)),
        None => Err(FirecrackerError::NoVersion { path }),
    }
}

/// `Firecracker v1.16.1` or `Jailer v1.16.1` on a line of its own, somewhere in between what it logs.
fn version(text: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let rest = line.trim().strip_prefix("Firecracker v").or_else(|| line.trim().strip_prefix("Jailer v"))?;
        number(rest).map(|_| rest.to_owned())
    })
}

fn number(version: &str) -> Option<Number> {
    let end = version.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(version.len());
    let mut parts = version.get(..end)?.split('.').map(str::parse);
    let number = (parts.next()?.ok()?, parts.next()?.ok()?, parts.next()?.ok()?);
    parts.next().is_none().then_some(number)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn versions_are_found_among_what_is_logged() {
        assert_eq!(version("Firecracker v1.16.1\n\nSupported snapshot data format versions: 7"), Some("1.16.1".into()));
        let logged = "2026-01-01T00:00:00 [anonymous-instance:main] Running\nJailer v1.10.0-dirty\nexiting\n";
        assert_eq!(version(logged), Some("1.10.0-dirty".into()));
        assert_eq!(number("1.10.0-dirty"), Some((1, 10, 0)));
        for none in ["", "Firecracker v1.16", "Firecracker v1.16.1.2", "Firecracker vx", "firecracker 1.16.1"] {
            assert_eq!(version(none), None, "{none}");
        }
    }

    #[test]
    fn only_two_programs_of_one_fit_release_are_taken() {
        let dir = tempfile::tempdir().unwrap();
        let says = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, format!("#!/bin/sh\necho '{text}'\n")).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
            path
        };
        let pair = |version: &str, other: &str| {
            let program = says("firecracker", &format!("Firecracker v{version}"));
            Firecracker::at(&program, &says("jailer", &format!("Jailer v{other}")))
        };
        let fit = pair("1.16.2", "1.16.2").unwrap();
        assert_eq!((fit.version.as_str(), fit.release()), ("1.16.2", (1, 16, 2)));
        assert!(pair("1.10.0", "1.10.0").is_ok() && pair("1.15.1", "1.15.1").is_ok());
        for unfit in ["1.9.1", "1.16.0", "1.16.1", "2.0.0", "0.25.2"] {
            assert!(matches!(pair(unfit, unfit), Err(FirecrackerError::Unfit { .. })), "{unfit}");
        }
        assert!(matches!(pair("1.16.2", "1.15.0"), Err(FirecrackerError::Apart { .. })));
        assert!(matches!(pair("1.16.2", "one"), Err(FirecrackerError::NoVersion { .. })));
        let program = says("firecracker-v1.16.2-x86_64", "Firecracker v1.16.2");
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&program, &link).unwrap();
        let found = Firecracker::at(&link, &says("jailer", "Jailer v1.16.2")).unwrap();
        assert_eq!(found.path.file_name().unwrap(), "firecracker-v1.16.2-x86_64");
        assert!(matches!(Firecracker::at(&dir.path().join("none"), &link), Err(FirecrackerError::Broken { .. })));
    }
}
