//! The base image that every sandbox starts from.

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use aws_lc_rs::digest;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

use crate::apt::Source;

/// File name and text of everything that decides what the image is.
const DESCRIPTION: [(&str, &str); 5] = [
    ("version", include_str!("../base/version")),
    ("packages", include_str!("../base/packages")),
    ("build.sh", include_str!("../base/build.sh")),
    ("finish.sh", include_str!("../base/finish.sh")),
    ("check.sh", include_str!("../base/check.sh")),
];

/// What the finished image says about itself, below its root.
pub const MANIFEST: &str = "usr/share/runtime/manifest";

/// Where the build finds its tools, whatever PATH the caller has.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// How much of the build's talk an error repeats.
const LAST_LINES: usize = 25;
const MAX_LINE: usize = 500;

#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    #[error("base image: cannot write {path}")]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("base image: cannot start `{program}`")]
    Start {
        program: &'static str,
        #[source]
        source: io::Error,
    },
    #[error("base image: lost sight of the build")]
    Watch(#[source] io::Error),
    #[error("base image: the build failed ({status}); it said last:\n{last}")]
    Failed { status: std::process::ExitStatus, last: String },
    #[error("base image: the build ended well but left no {path}")]
    Incomplete { path: PathBuf },
}

/// The image's name: SHA-256 over the description, in hex.
pub fn digest() -> String {
    let mut context = digest::Context::new(&digest::SHA256);
    for (name, text) in DESCRIPTION {
        for part in [name.as_bytes(), text.as_bytes()] {
            context.update(&(part.len() as u64).to_be_bytes());
            context.update(part);
        }
    }
    context.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Builds the image in `target`, an empty directory, using `work` for files of its own. Each line the build prints
/// goes to `said`. Nothing it mounts or starts outlives it; dropping the future kills it. What is in `target` after
/// a failure is rubbish: the caller builds aside and renames.
pub async fn build(
    target: &Path,
    work: &Path,
    sources: &[Source],
    said: &(dyn Fn(&str) + Sync),
) -> Result<(), BuildError> {
    let list: String = sources.iter().flat_map(Source::lines).map(|line| line + "\n").collect();
    for (name, text) in DESCRIPTION.into_iter().chain([("sources.list", list.as_str())]) {
        let path = work.join(name);
        fs::write(&path, text).map_err(|source| BuildError::Write { path, source })?;
    }

    // However this process ends, the build ends with it: it dies with its parent, and its name space with it.
    let mut child = Command::new("setpriv")
        .args(["--pdeathsig", "KILL", "unshare"])
        .args(["--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--mount-proc"])
        .args(["sh", "-c", "exec bash \"$0\" \"$1\" \"$2\" 2>&1"])
        .arg(work.join("build.sh"))
        .arg(target)
        .arg(work)
        .env("PATH", PATH)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|source| BuildError::Start { program: "setpriv", source })?;

    let mut last = VecDeque::new();
    if let Some(output) = child.stdout.take() {
        let mut lines = BufReader::new(output).split(b'\n');
        while let Some(line) = lines.next_segment().await.map_err(BuildError::Watch)? {
            let line: String = String::from_utf8_lossy(&line).trim_end().chars().take(MAX_LINE).collect();
            if line.is_empty() {
                continue;
            }
            said(&line);
            if last.len() == LAST_LINES {
                last.pop_front();
            }
            last.push_back(line);
        }
    }
    let status = child.wait().await.map_err(BuildError::Watch)?;
    if !status.success() {
        return Err(BuildError::Failed { status, last: last.make_contiguous().join("\n") });
    }
    let manifest = target.join(MANIFEST);
    if !manifest.is_file() {
        return Err(BuildError::Incomplete { path: manifest });
    }
    Ok(())
}

/// What the build is doing, in words for a person, where one of its lines says so.
pub fn stage(line: &str) -> Option<&'static str> {
    const STAGES: [(&str, &str); 6] = [
        ("I: running apt-get update", "reading the package lists"),
        ("I: downloading packages", "downloading packages"),
        ("I: extracting archives", "unpacking"),
        ("I: installing essential packages", "installing the essential packages"),
        ("I: installing remaining packages", "installing the other packages (the longest part, about a minute)"),
        ("I: running --customize-hook", "adding the user, uv, pnpm and yarn, then trying every tool"),
    ];
    STAGES.iter().find(|(prefix, _)| line.starts_with(prefix)).map(|(_, text)| *text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_is_stable_and_a_file_name() {
        let digest = digest();
        assert_eq!(digest.len(), 64);
        assert!(digest.bytes().all(|b| b.is_ascii_hexdigit()));
        assert_eq!(digest, super::digest());
    }

    #[test]
    fn the_description_names_no_place_to_download_from() {
        for (name, text) in DESCRIPTION {
            assert!(!text.contains("://"), "{name} names a host");
        }
    }

    #[test]
    fn every_package_is_named_once() {
        let (_, packages) = DESCRIPTION[1];
        let mut names: Vec<&str> = packages.lines().filter(|l| !l.starts_with('#') && !l.is_empty()).collect();
        let all = names.len();
        assert!(all > 30);
        assert!(names.iter().all(|n| n.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b))));
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
    }

    #[tokio::test]
    async fn a_build_that_fails_says_what_it_said() {
        let scratch = tempfile::tempdir().unwrap();
        let dir = scratch.path();
        let target = dir.join("target");
        // Not empty: the tool refuses such a target before it fetches anything.
        fs::create_dir_all(target.join("occupied")).unwrap();
        let error = build(&target, dir, &[], &|_| {}).await.unwrap_err();
        let BuildError::Failed { last, .. } = error else { panic!("expected Failed, got {error:?}") };
        assert!(last.contains("not empty"), "{last}");
    }
}
