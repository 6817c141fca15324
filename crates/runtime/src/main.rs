//! The one binary: picks the subcommand and wires the rooms together. No logic of its own.

mod doctor;
mod egress;
mod keys;
mod serve;
mod setup;

use std::process::ExitCode;

use anyhow::Context as _;
use runtime_cli::{Answer, Local, Parsed};
use serde_json::Value;

/// The agent that runs in every sandbox, built by `build.rs`.
static AGENT: &[u8] = include_bytes!(env!("RUNTIME_AGENT"));

fn main() -> ExitCode {
    // Words for our own processes, not for people: looked at before anything is set up.
    let mut words = std::env::args_os().skip(1);
    match words.next().as_ref().and_then(|word| word.to_str()) {
        Some(runtime_engine::shim::SUBCOMMAND) => return runtime_engine::shim::shim_main(words),
        Some(runtime_egress::SUBCOMMAND) => return egress::run(words),
        Some("openapi") => return print_api_document(),
        _ => {}
    }
    match runtime_cli::parse() {
        Parsed::Done(code) => code,
        Parsed::Client(command) => runtime_cli::run(command),
        Parsed::Local { command, json } => match command {
            Local::Setup(args) => setup::run(&args, json),
            Local::Doctor(args) => doctor::run(&args, json),
            Local::Serve(args) => serve::run(&args, json),
            Local::Keys(args) => keys::run(args, json),
        },
    }
}

fn print_api_document() -> ExitCode {
    match runtime_server::openapi().to_pretty_json().context("the API document cannot be written") {
        Ok(text) => Answer::new(text, Value::Null).finish(false),
        Err(error) => runtime_cli::fail(error, false),
    }
}
