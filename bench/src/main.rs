//! Measures the running product beside the same work done by hand, in one run on one machine, and prints p50, p90, p99
//! and the ratio of the medians. Samples of both sides are taken in turn, so that a machine whose speed drifts drifts
//! for both. Nothing here passes or fails: it is for reading.
//!
//! `cargo run --release -p runtime-bench -- --help`

mod api;
mod cases;
mod microvm;
mod raw;
mod records;
mod stats;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;

/// Measure a running server (see `runtime serve`) against raw runsc and the bare host.
#[derive(Debug, Parser)]
struct Options {
    #[command(subcommand)]
    other: Option<Other>,
    /// Where the server listens.
    #[arg(long, env = "RUNTIME_API_URL", default_value = "http://127.0.0.1:8787")]
    url: String,
    /// The key to use; without it, the owner key in the data directory.
    #[arg(long, env = "RUNTIME_API_KEY", hide_env_values = true)]
    key: Option<String>,
    /// The server's data directory: its owner key and base image are used.
    #[arg(long, default_value = "/var/lib/runtime")]
    data_dir: PathBuf,
    /// Samples of each quick case; slow cases take a tenth.
    #[arg(long, default_value_t = 200)]
    samples: usize,
    /// Only the cases whose name contains this.
    #[arg(long)]
    only: Option<String>,
}

#[derive(Debug, clap::Subcommand)]
enum Other {
    /// Without a server: microVMs by their driver beside QEMU by hand, or many boots and restores.
    Microvm(microvm::Options),
}

fn main() -> Result<ExitCode> {
    // The driver starts its own program as the shim of each machine.
    let mut words = std::env::args_os().skip(1);
    if words.next().is_some_and(|word| word == runtime_engine::shim::SUBCOMMAND) {
        return Ok(runtime_engine::shim::shim_main(words));
    }
    let options = Options::parse();
    if let Some(Other::Microvm(options)) = &options.other {
        return microvm::run(options).map(|()| ExitCode::SUCCESS);
    }
    let key = match options.key {
        Some(key) => key,
        None => std::fs::read_to_string(options.data_dir.join("owner.key"))
            .with_context(|| format!("read the owner key in {}", options.data_dir.display()))?,
    };
    let api = api::Api::new(&options.url, key.trim())?;
    let raw = raw::Raw::prepare(&options.data_dir)?;
    let mut report = stats::Report::new();
    for (name, case) in cases::ALL {
        if options.only.as_deref().is_none_or(|part| name.contains(part)) {
            eprintln!("measuring {name} ...");
            case(&api, &raw, options.samples, &mut report).with_context(|| format!("case {name}"))?;
        }
    }
    print!("{report}");
    Ok(ExitCode::SUCCESS)
}
