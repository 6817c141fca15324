//! What cargo's own account of a manifest leaves out: where a version is pinned, and which lints hold.

use std::path::Path;

use anyhow::{Context, Result};
use toml::{Table, Value};

use super::table::UNSAFE;

/// Dependencies that do not take their version from the workspace.
pub(super) fn unpinned(at: &Path, manifest: &str) -> Result<Vec<String>> {
    let manifest = parse(at, manifest)?;
    let mut wrong = Vec::new();
    let no_targets = Table::new();
    let targets = manifest.get("target").and_then(Value::as_table).unwrap_or(&no_targets);
    let sections = std::iter::once(&manifest).chain(targets.values().filter_map(Value::as_table));
    for section in sections {
        for kind in ["dependencies", "dev-dependencies", "build-dependencies"] {
            for (name, value) in section.get(kind).and_then(Value::as_table).into_iter().flatten() {
                if value.get("workspace").and_then(Value::as_bool) != Some(true) {
                    wrong.push(format!("{}: {kind} {name} is not `workspace = true`", at.display()));
                }
            }
        }
    }
    Ok(wrong)
}

/// Every package takes the workspace's lints, but the one that holds `unsafe`, which must ask for its comments.
pub(super) fn lints(at: &Path, room: &str, manifest: &str) -> Result<Vec<String>> {
    let manifest = parse(at, manifest)?;
    let lints = manifest.get("lints");
    let say = |what: &str| vec![format!("{}: {what}", at.display())];
    if room == UNSAFE {
        let commented = level(lints, "clippy", "undocumented_unsafe_blocks") == Some("deny");
        return Ok(if commented { Vec::new() } else { say("clippy.undocumented_unsafe_blocks must be \"deny\" here") });
    }
    let inherited = lints.and_then(|lints| lints.get("workspace")).and_then(Value::as_bool) == Some(true);
    Ok(if inherited { Vec::new() } else { say("[lints] must be `workspace = true`, which forbids unsafe code") })
}

/// The root's lints, on which all others rest.
pub(super) fn workspace_lints(manifest: &str) -> Result<Vec<String>> {
    let manifest = parse(Path::new("Cargo.toml"), manifest)?;
    let lints = manifest.get("workspace").and_then(|workspace| workspace.get("lints"));
    Ok(match level(lints, "rust", "unsafe_code") {
        Some("deny" | "forbid") => Vec::new(),
        _ => vec!["Cargo.toml: workspace.lints.rust.unsafe_code must be \"deny\" or \"forbid\"".to_owned()],
    })
}

/// A lint's level, in its short form or its long one.
fn level<'a>(lints: Option<&'a Value>, tool: &str, lint: &str) -> Option<&'a str> {
    let value = lints?.get(tool)?.get(lint)?;
    value.as_str().or_else(|| value.get("level")?.as_str())
}

fn parse(at: &Path, manifest: &str) -> Result<Table> {
    manifest.parse().with_context(|| format!("{} is not TOML", at.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at() -> &'static Path {
        Path::new("crates/x/Cargo.toml")
    }

    #[test]
    fn a_version_in_a_member_is_found_wherever_it_stands() {
        let manifest = r#"
            [dependencies]
            good = { workspace = true, features = ["x"] }
            also.workspace = true
            bad = "1"
            [dev-dependencies]
            worse = { path = "../y" }
            [target.'cfg(unix)'.build-dependencies]
            worst = { version = "1" }
        "#;
        let wrong = unpinned(at(), manifest).unwrap();
        let names: Vec<_> = wrong.iter().filter_map(|line| line.split(' ').nth(2)).collect();
        assert_eq!(names, ["bad", "worse", "worst"], "{wrong:?}");
    }

    #[test]
    fn a_member_that_drops_the_lints_is_found() {
        assert_eq!(lints(at(), "model", "[lints]\nworkspace = true").unwrap(), [""; 0]);
        assert_eq!(lints(at(), "model", "[lints.rust]\nunsafe_code = \"allow\"").unwrap().len(), 1);
        assert_eq!(lints(at(), "model", "").unwrap().len(), 1);
    }

    #[test]
    fn the_room_of_unsafe_owes_its_comments() {
        let owed = "[lints.clippy]\nundocumented_unsafe_blocks = \"deny\"";
        assert_eq!(lints(at(), "host", owed).unwrap(), [""; 0]);
        assert_eq!(lints(at(), "host", "[lints.clippy]\nall = \"warn\"").unwrap().len(), 1);
    }

    #[test]
    fn the_root_forbids_unsafe() {
        assert_eq!(workspace_lints("[workspace.lints.rust]\nunsafe_code = \"deny\"").unwrap(), [""; 0]);
        assert_eq!(workspace_lints("[workspace.lints.rust]\nunsafe_code = { level = \"forbid\" }").unwrap(), [""; 0]);
        assert_eq!(workspace_lints("[workspace.lints.rust]\nunsafe_code = \"warn\"").unwrap().len(), 1);
        assert_eq!(workspace_lints("").unwrap().len(), 1);
    }

    #[test]
    fn a_broken_manifest_is_named() {
        assert!(format!("{:#}", unpinned(at(), "[").unwrap_err()).contains("crates/x/Cargo.toml is not TOML"));
    }
}
