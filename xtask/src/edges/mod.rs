//! The import table, enforced: from what cargo reads in the manifests and from the manifests themselves.
//!
//! Everything wrong is reported at once, one line each, so that one run is enough to put it right.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::workspace::{Package, Workspace};

mod manifest;
mod table;
mod unsafety;

use table::{AROUND, BINARY, FOR_TESTS, RESERVED, ROOMS};

pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    let mut wrong = imports(&workspace.packages);
    for package in &workspace.packages {
        let manifest = read(&package.manifest_path)?;
        let at = package.folder(&workspace.root).join("Cargo.toml");
        wrong.extend(manifest::unpinned(&at, &manifest)?);
        wrong.extend(manifest::lints(&at, room(&package.name), &manifest)?);
        wrong.extend(unsafety::permitted(&workspace.root, package)?);
    }
    wrong.extend(manifest::workspace_lints(&read(&workspace.root.join("Cargo.toml"))?)?);
    if !wrong.is_empty() {
        bail!("{} rule(s) broken (the table is xtask/src/edges/table.rs):\n  {}", wrong.len(), wrong.join("\n  "));
    }
    println!("    {} packages keep to the import table", workspace.packages.len());
    Ok(())
}

/// Every import of one of ours, and of a reserved crate, that the table does not have.
fn imports(packages: &[Package]) -> Vec<String> {
    let rooms: BTreeMap<_, _> = ROOMS.iter().copied().collect();
    let mut wrong = Vec::new();
    for package in packages {
        let from = room(&package.name);
        if AROUND.contains(&from) {
            continue;
        }
        let Some(allowed) = rooms.get(from) else {
            wrong.push(format!("package {} is no room of the table", package.name));
            continue;
        };
        for dependency in &package.dependencies {
            let for_tests = dependency.kind.as_deref() == Some("dev");
            if dependency.path.is_none() {
                wrong.extend(reserved(from, &dependency.name).filter(|_| !for_tests));
                continue;
            }
            let to = room(&dependency.name);
            // A room's tests may name the room itself, to switch on a feature meant for tests.
            let may = allowed.contains(&to) || (for_tests && (FOR_TESTS.contains(&to) || to == from));
            if !may {
                let only = if allowed.is_empty() { "none of ours".to_owned() } else { allowed.join(", ") };
                let how = if for_tests { "imports (in tests)" } else { "imports" };
                wrong.push(format!("{from} {how} {to}; it may import {only}"));
            }
        }
    }
    wrong
}

fn reserved(from: &str, name: &str) -> Option<String> {
    let (_, rooms, why) = RESERVED.iter().find(|(reserved, ..)| *reserved == name)?;
    (!rooms.contains(&from))
        .then(|| format!("{from} depends on {name}, which is for {} alone: {why}", rooms.join(", ")))
}

/// The room a package name stands for.
fn room(package: &str) -> &str {
    if package == BINARY { package } else { package.strip_prefix("runtime-").unwrap_or(package) }
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::Dependency;

    fn package(name: &str, dependencies: &[(&str, Option<&str>)]) -> Package {
        let dependencies = dependencies.iter().map(|(name, kind)| Dependency {
            name: (*name).to_owned(),
            kind: kind.map(str::to_owned),
            path: (name.starts_with("runtime") || *name == "xtask").then(|| "/somewhere".into()),
        });
        Package { name: name.to_owned(), manifest_path: "/x/Cargo.toml".into(), dependencies: dependencies.collect() }
    }

    #[test]
    fn a_forbidden_edge_is_found_and_named() {
        let wrong = imports(&[package("runtime-server", &[("runtime-model", None), ("runtime-engine", None)])]);
        assert_eq!(wrong, ["server imports engine; it may import model, api, proto, store, images, service"]);
        let wrong = imports(&[package("runtime-model", &[("runtime-host", Some("build"))])]);
        assert_eq!(wrong, ["model imports host; it may import none of ours"]);
    }

    #[test]
    fn the_kit_is_for_tests_only() {
        assert_eq!(imports(&[package("runtime-store", &[("runtime-test-kit", Some("dev"))])]), [""; 0]);
        assert_eq!(imports(&[package("runtime-store", &[("runtime-test-kit", None)])]).len(), 1);
        assert_eq!(imports(&[package("runtime-store", &[("runtime-e2e", Some("dev"))])]).len(), 1);
        assert_eq!(imports(&[package("runtime-cli", &[("xtask", None)])]).len(), 1);
    }

    #[test]
    fn a_test_crosses_no_edge_that_the_room_may_not() {
        assert_eq!(imports(&[package("runtime-server", &[("runtime-engine", Some("dev"))])]).len(), 1);
        assert_eq!(imports(&[package("runtime-engine", &[("runtime-host", Some("dev"))])]), [""; 0]);
        assert_eq!(imports(&[package("runtime-host", &[("runtime-host", Some("dev"))])]), [""; 0]);
    }

    #[test]
    fn what_lies_around_the_product_may_import_anything() {
        assert_eq!(
            imports(&[package(
                "runtime-e2e",
                &[("runtime-engine", None), ("runtime-test-kit", None), ("anyhow", None)]
            )]),
            [""; 0]
        );
        assert_eq!(imports(&[package("xtask", &[("runtime", None)])]), [""; 0]);
    }

    #[test]
    fn a_package_without_a_row_is_refused() {
        assert_eq!(imports(&[package("runtime-utils", &[])]), ["package runtime-utils is no room of the table"]);
    }

    #[test]
    fn a_reserved_crate_stays_in_its_room() {
        assert_eq!(imports(&[package("runtime-store", &[("sqlx", None)])]), [""; 0]);
        let wrong = imports(&[package("runtime-server", &[("sqlx", None)])]);
        assert_eq!(wrong, ["server depends on sqlx, which is for store alone: only store speaks SQL"]);
    }

    #[test]
    fn arrows_point_down_only() {
        // A row names rows above it alone, so there can be no circle.
        for (row, (name, allowed)) in ROOMS.iter().enumerate() {
            for to in *allowed {
                let at = ROOMS.iter().position(|(other, _)| other == to);
                assert!(at.is_some_and(|at| at < row), "{name} -> {to}");
            }
        }
    }

    #[test]
    fn this_workspace_keeps_to_the_table() {
        let workspace = Workspace::load().unwrap();
        assert!(workspace.packages.iter().any(|package| package.name == BINARY));
        if let Err(broken) = check(&workspace) {
            panic!("{broken:#}");
        }
    }
}
