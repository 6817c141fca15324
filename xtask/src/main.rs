//! Developer tasks. `cargo xtask ci` is the test command of the README and what CI calls; every other subcommand is
//! one of its steps, to be run alone.
//!
//! The file names follow the work: `args` says what can be asked, `ci` puts steps in order, `steps` runs and times
//! them, `setup` makes a bare machine fit, `edges` checks who imports whom, `openapi` writes the API document.

use std::process::ExitCode;

use clap::Parser;

mod args;
mod ci;
mod edges;
mod openapi;
mod setup;
mod steps;
mod workspace;

fn main() -> ExitCode {
    match ci::run(args::Args::parse().task) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("\nxtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
