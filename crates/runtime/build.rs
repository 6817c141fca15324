//! Builds the agent as a static program and hands its path to `include_bytes!`, so that one `cargo build` yields one
//! complete binary. The agent has a target directory of its own: the outer build holds the lock of the shared one.

#![expect(clippy::disallowed_methods, reason = "a build script is told its work by the environment")]

use std::env;
use std::path::PathBuf;
use std::process::Command;

const TARGET: &str = "x86_64-unknown-linux-gnu";

fn main() {
    // Asked now, not when this script was compiled: a target directory may serve clones at other paths.
    let workspace = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default()).join("../..");
    for part in ["crates/agent", "crates/proto", "crates/host", "crates/model", "Cargo.toml", "Cargo.lock"] {
        println!("cargo::rerun-if-changed={}", workspace.join(part).display());
    }
    println!("cargo::rerun-if-env-changed=RUNTIME_AGENT_BINARY");
    // Packagers may bring an agent they built apart.
    if let Some(path) = env::var_os("RUNTIME_AGENT_BINARY") {
        println!("cargo::rustc-env=RUNTIME_AGENT={}", PathBuf::from(path).display());
        return;
    }
    let target_dir = agent_target_dir();
    let status = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .current_dir(&workspace)
        .args(["build", "--locked", "--package", "runtime-agent", "--profile", "agent", "--target", TARGET])
        .arg("--target-dir")
        .arg(&target_dir)
        // What the outer build was told about flags and wrappers is not meant for a static program.
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .env_remove("RUSTC_WRAPPER")
        .env("CARGO_BUILD_BUILD_DIR", &target_dir)
        .env("RUSTFLAGS", "-Ctarget-feature=+crt-static -Crelocation-model=static")
        .status();
    match status {
        Ok(status) if status.success() => {}
        Ok(status) => panic!("building the agent failed: cargo ended with {status}"),
        Err(error) => panic!("building the agent failed: cargo did not start: {error}"),
    }
    println!("cargo::rustc-env=RUNTIME_AGENT={}", target_dir.join(TARGET).join("agent/runtime-agent").display());
}

/// `<target>/agent-build`, found from OUT_DIR (`<target>/<profile>/build/<package>/out`), so that every profile shares
/// one agent.
fn agent_target_dir() -> PathBuf {
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    match out.ancestors().nth(4) {
        Some(target) => target.join("agent-build"),
        None => out.join("agent-build"),
    }
}
