//! `runtime egress`: the egress program, started by the server with its socket as standard input. Not for people.

use std::ffi::OsString;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use anyhow::{Context, Result};
use runtime_egress::Settings;
use runtime_service::logs::{self, LogOptions};

/// Its work is moving bytes: more threads than this would take the host's cores from the sandboxes.
const THREADS: usize = 2;

pub(crate) fn run(ranges: impl Iterator<Item = OsString>) -> ExitCode {
    match serve(ranges) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => runtime_cli::fail(error, false),
    }
}

fn serve(ranges: impl Iterator<Item = OsString>) -> Result<()> {
    logs::init(&LogOptions::default()).context("logs")?;
    let public = ranges
        .map(|range| range.to_str().and_then(|text| text.parse().ok()).with_context(|| format!("read range {range:?}")))
        .collect::<Result<_>>()?;
    let socket = std::io::stdin().as_fd().try_clone_to_owned().context("take the socket of the server")?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(THREADS).enable_all().build()?;
    runtime.block_on(runtime_egress::run(UnixStream::from(socket), Settings { public }))?;
    // A lookup that hangs holds nobody up.
    runtime.shutdown_background();
    Ok(())
}
