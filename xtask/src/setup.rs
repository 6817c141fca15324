//! A bare Debian 12 made fit for build and tests. Every part looks first and acts only on what is missing, by name.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::steps::{answers, call, cargo, output_of};
use crate::workspace::Workspace;

/// What the system's package manager gives, and who wants it. The sandbox engine and its disk tools are not here: the
/// product's own `runtime setup` installs them.
const PACKAGES: &[(&str, &str)] = &[
    ("build-essential", "C compiler and linker, for the crates that carry C"),
    ("ca-certificates", "trust roots for downloads"),
    ("chromium", "the browser whose pages use the TypeScript client"),
    ("curl", "a second HTTP client for tests of framing"),
    ("git", "what tests of the base image clone from"),
    ("openssh-client", "what people log in to sandboxes with"),
    ("iproute2", "network namespaces, for tests of the way out"),
    ("python3", "the public client under test"),
    ("python3-venv", "its own environment for that client"),
];

/// Node.js for the TypeScript client. From wherever it comes: other builds of it carry npm, and their package conflicts
/// with Debian's.
const NODE_PACKAGES: &[(&str, &str)] =
    &[("nodejs", "what the TypeScript client runs on"), ("npm", "its packages, and a newer Node.js")];

/// Cargo's helpers: subcommand, crate, version, further arguments of `cargo install`.
const TOOLS: &[(&str, &str, &str, &[&str])] = &[
    ("nextest", "cargo-nextest", "0.9.143", &[]),
    // Without its default features it needs neither OpenSSL nor a TLS stack: nothing it checks here is fetched.
    ("deny", "cargo-deny", "0.20.2", &["--no-default-features"]),
];

/// Where helpers are compiled: not in the clone, nor in the product's target directory.
const TOOLS_TARGET: &str = "/var/tmp/runtime-xtask-tools";

/// Where the tests' disk pool and base image live; one per machine.
const DATA_DIR: &str = "/var/lib/runtime";

pub(crate) fn packages() -> Result<()> {
    let mut missing: Vec<_> = PACKAGES.iter().filter(|(name, _)| !is_installed(name)).collect();
    // npm answers only where there is a node that runs it.
    if !answers(Command::new("npm").arg("--version")) {
        missing.extend(NODE_PACKAGES);
    }
    if missing.is_empty() {
        println!("    all packages are installed");
        return Ok(());
    }
    for (name, why) in &missing {
        println!("    missing: {name} ({why})");
    }
    let names: Vec<_> = missing.iter().map(|(name, _)| *name).collect();
    if !answers(Command::new("apt-get").arg("--version")) {
        bail!("this is no Debian (apt-get is absent); install by hand: {}", names.join(" "));
    }
    require_root(&format!("installing {}", names.join(" ")))?;
    call(Command::new("apt-get").args(["update", "-q"]))?;
    let mut install = Command::new("apt-get");
    install.env("DEBIAN_FRONTEND", "noninteractive");
    install.args(["install", "-y", "-q", "--no-install-recommends"]).args(names);
    call(&mut install)
}

pub(crate) fn tools(workspace: &Workspace) -> Result<()> {
    components(workspace)?;
    for (subcommand, name, version, more) in TOOLS {
        if answers(cargo(&workspace.root).args([subcommand, "--version"])) {
            println!("    {name} is installed");
            continue;
        }
        println!("    missing: {name}; compiling {version} takes some minutes, once");
        // From the root of the file system: a `.cargo/config.toml` of a clone must not shape a tool.
        let mut install = cargo(Path::new("/"));
        install.args(["install", "--locked", "--version", version]).args(*more).arg(name);
        install.env("CARGO_TARGET_DIR", TOOLS_TARGET).env_remove("CARGO_BUILD_BUILD_DIR");
        call(&mut install)?;
    }
    match fs::remove_dir_all(TOOLS_TARGET) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("removing {TOOLS_TARGET}"))
        }
        _ => Ok(()),
    }
}

/// A minimal toolchain has neither formatter nor clippy.
fn components(workspace: &Workspace) -> Result<()> {
    for (subcommand, component) in [("fmt", "rustfmt"), ("clippy", "clippy")] {
        if answers(cargo(&workspace.root).args([subcommand, "--version"])) {
            continue;
        }
        println!("    missing: {component}");
        call(Command::new("rustup").current_dir(&workspace.root).args(["component", "add", component]))
            .with_context(|| format!("cargo {subcommand} is absent and rustup could not add it"))?;
    }
    Ok(())
}

/// The product prepares its own host; the tests use what it prepared.
pub(crate) fn host(workspace: &Workspace) -> Result<()> {
    require_root("preparing sandboxes (mounts, cgroups, a disk pool)")?;
    for engine in ["gvisor", "qemu"] {
        call(Command::new(workspace.runtime_binary()).args(["setup", "--data-dir", DATA_DIR, "--engine", engine]))?;
    }
    Ok(())
}

fn is_installed(package: &str) -> bool {
    output_of(Command::new("sh").args(["-c", "dpkg-query -W -f '${Status}' \"$1\" 2>/dev/null || true", "sh", package]))
        .is_ok_and(|status| status.ends_with(b"ok installed"))
}

fn require_root(what: &str) -> Result<()> {
    // The kernel gives /proc/self to whom the process acts as.
    let me = fs::metadata("/proc/self").context("reading /proc/self")?.uid();
    if me != 0 {
        bail!("{what} needs root and this is uid {me}; run the same command in a root shell");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_installed_package_counts() {
        assert!(!is_installed("no-such-package-of-ours"));
        assert!(is_installed("dpkg"));
    }
}
