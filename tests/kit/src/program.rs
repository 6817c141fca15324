//! Where the built program is.

use std::path::{Path, PathBuf};

/// The `runtime` binary under test: `RUNTIME_BIN`, else the one built beside this test in the same profile.
///
/// # Panics
/// When there is none, telling what to run.
#[must_use]
pub fn program() -> PathBuf {
    if let Some(path) = env("RUNTIME_BIN") {
        assert!(path.is_file(), "RUNTIME_BIN names {}, which is not a file", path.display());
        return path;
    }
    let test = std::env::current_exe().expect("the path of this test");
    let profile = profile_of(&test);
    let mut tried = Vec::new();
    for target in targets(&test) {
        let path = target.join(profile).join("runtime");
        if path.is_file() {
            return path;
        }
        if !tried.contains(&path) {
            tried.push(path);
        }
    }
    let flag = if profile == "release" { " --release" } else { "" };
    panic!("the program under test is not built; run `cargo build{flag}` or set RUNTIME_BIN. Looked at: {tried:?}");
}

fn profile_of(test: &Path) -> &'static str {
    let release = test.ancestors().any(|part| part.file_name().is_some_and(|name| name == "release"));
    if release { "release" } else { "debug" }
}

/// Target directories this test may have been built for, the likeliest first. Tests lie in the build directory, which
/// may be another one than the target directory.
fn targets(test: &Path) -> Vec<PathBuf> {
    let clone = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).map(|root| root.join("target"));
    let beside = test.ancestors().nth(3).map(Path::to_path_buf);
    env("CARGO_TARGET_DIR").into_iter().chain(beside).chain(clone).collect()
}

#[allow(clippy::disallowed_methods, reason = "the edge of the tests: which program to run is said by the environment")]
pub(crate) fn env(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}
