//! The one binary: picks the subcommand and wires the rooms together. No logic of its own.

mod doctor;
mod keys;
mod serve;
mod setup;

use std::process::ExitCode;

use runtime_cli::{Local, Parsed};

/// The agent that runs in every sandbox, built by `build.rs`.
static AGENT: &[u8] = include_bytes!(env!("RUNTIME_AGENT"));

fn main() -> ExitCode {
    // Words for our own processes, not for people: looked at before anything is set up.
    let mut words = std::env::args_os().skip(1);
    match words.next().as_ref().and_then(|word| word.to_str()) {
        Some(runtime_engine::shim::SUBCOMMAND) => return runtime_engine::shim::shim_main(words),
        Some("openapi") => return print_api_document(),
        _ => {}
    }
    match runtime_cli::parse() {
        Parsed::Done(code) => code,
        Parsed::Client(command) => runtime_cli::run(command),
        Parsed::Local { command, json } => match command {
            Local::Setup(args) => setup::run(&args, json),
            Local::Doctor(args) => doctor::run(&args, json),
            Local::Serve(args) => serve::run(&args),
            Local::Keys(args) => keys::run(args, json),
        },
    }
}

fn print_api_document() -> ExitCode {
    match runtime_server::openapi().to_pretty_json() {
        Ok(text) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("the API document cannot be written: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Prints an error with everything that caused it.
fn fail(error: &anyhow::Error) -> ExitCode {
    eprintln!("Error: {error:#}");
    ExitCode::FAILURE
}
