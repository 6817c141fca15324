//! The command line: a client of the public API with no other way in.
//!
//! [`parse`] turns what was typed into a [`ClientCommand`], which [`run`] carries out through the API, or into a [`Local`]
//! command, which works on this machine's server and is carried out by the program that wires the rooms together. Help,
//! completions' words and mistakes are dealt with here, before anything is sent.
//!
//! Results go to stdout and talk to stderr (`printer`); a mistake names what was probably meant (`scan`); a refusal reads
//! in the words that were typed (`failure`).

mod answer;
pub mod args;
mod commands;
mod connect;
mod doctor;
mod exit;
mod failure;
mod likely;
mod printer;
mod progress;
mod scan;
mod surroundings;
mod vocabulary;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::FromArgMatches;
use clap::error::{ContextKind, ContextValue, ErrorKind};

pub use answer::{Answer, fail};
pub use args::local::{DataDir, DoctorArgs, Engine, GuardsWhen, KeysArgs, Listen, Local, ServeArgs, SetupArgs};
pub use doctor::{Check, Status, print_doctor};
pub use printer::{facts, table};
pub use progress::{Progress, StderrProgress};
pub use scan::UsageError;

use args::{Cli, Shell, UpArgs, Word};
use failure::Failure;
use printer::Printer;
use scan::Scanned;

/// What was typed.
#[derive(Debug)]
pub enum Parsed {
    /// For [`run`].
    Client(ClientCommand),
    /// For the program that has the server and the engine.
    Local { command: Local, json: bool },
    /// Answered already: help, the version, or a mistake.
    Done(ExitCode),
}

/// A command that needs nothing but the API.
#[derive(Debug)]
pub struct ClientCommand {
    json: bool,
    verb: ClientVerb,
}

#[derive(Debug)]
enum ClientVerb {
    Overview,
    Up(UpArgs),
    Sandboxes(args::sandboxes::SandboxVerb),
    Snapshots(args::snapshots::SnapshotVerb),
    Whoami,
    Limits,
    Mcp,
    Completions(Shell),
    Version,
}

/// Reads the process's arguments; prints help and mistakes.
#[must_use]
pub fn parse() -> Parsed {
    let mut words = Vec::new();
    for (position, word) in std::env::args_os().enumerate().skip(1) {
        match word.into_string() {
            Ok(word) => words.push(word),
            Err(_) => {
                let mistake = UsageError::new(format!("argument {position} is not UTF-8 text"));
                let printer = Printer { json: scan::wants_json(&words) };
                return Parsed::Done(Failure::from(mistake).tell(printer).into());
            }
        }
    }
    parse_from(&words)
}

/// As [`parse`], for words that came another way; without the program's name.
#[must_use]
pub fn parse_from(words: &[String]) -> Parsed {
    let printer = Printer { json: scan::wants_json(words) };
    match parse_words(words) {
        Ok(Meant::Client(command)) => Parsed::Client(command),
        Ok(Meant::Local(command)) => {
            if matches!(&command, Local::Serve(serve) if serve.detached) {
                // Here, in the one thread there is yet. It fails for a group's leader, which needs it least.
                let _ = rustix::process::setsid();
            }
            Parsed::Local { command, json: printer.json }
        }
        Ok(Meant::Help(text)) => match printer.line(text.trim_end()) {
            Ok(()) => Parsed::Done(ExitCode::SUCCESS),
            Err(error) => Parsed::Done(Failure::from(error).tell(printer).into()),
        },
        Err(mistake) => Parsed::Done(Failure::from(mistake).tell(printer).into()),
    }
}

/// The data directory of a server that was not told another: `/var/lib/runtime` as root, else the user's own.
#[must_use]
pub fn default_data_dir() -> PathBuf {
    surroundings::Surroundings::read().default_data_dir()
}

/// Carries out a client's command. Blocks until it is done.
#[must_use]
pub fn run(command: ClientCommand) -> ExitCode {
    let printer = Printer { json: command.json };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            return Failure::from(anyhow::Error::new(error).context("cannot start the runtime")).tell(printer).into();
        }
    };
    let code = match runtime.block_on(commands::run(command.verb, printer)) {
        Ok(code) => code,
        Err(failure) => failure.tell(printer),
    };
    // A write that nobody reads must not hold the process.
    runtime.shutdown_background();
    code.into()
}

/// [`Parsed`] without its printing.
#[derive(Debug)]
enum Meant {
    Client(ClientCommand),
    Local(Local),
    Help(String),
}

fn parse_words(words: &[String]) -> Result<Meant, UsageError> {
    let json = scan::wants_json(words);
    let client = |verb| Ok(Meant::Client(ClientCommand { json, verb }));
    let tree = args::tree();
    let typed = match scan::scan(words, &tree) {
        Scanned::Overview => return client(ClientVerb::Overview),
        Scanned::Version => return client(ClientVerb::Version),
        Scanned::Help(path) => return Ok(Meant::Help(help(&tree, &path))),
        Scanned::Refused(mistake) => return Err(mistake),
        Scanned::Words(typed) => typed,
    };
    let path = command_of(&typed, &tree);
    let matches = tree.try_get_matches_from(typed).map_err(|error| explain(&error, &path))?;
    let cli = Cli::from_arg_matches(&matches).map_err(|error| explain(&error, &path))?;
    let Some(word) = cli.command else { return client(ClientVerb::Overview) };
    match word {
        Word::Up(up) => client(ClientVerb::Up(up)),
        Word::Sandboxes { verb } => client(ClientVerb::Sandboxes(verb)),
        Word::Snapshots { verb } => client(ClientVerb::Snapshots(verb)),
        Word::Whoami => client(ClientVerb::Whoami),
        Word::Limits => client(ClientVerb::Limits),
        Word::Mcp => client(ClientVerb::Mcp),
        Word::Completions { shell } => client(ClientVerb::Completions(shell)),
        Word::Version => client(ClientVerb::Version),
        Word::Setup(setup) => Ok(Meant::Local(Local::Setup(setup))),
        Word::Serve(serve) => Ok(Meant::Local(Local::Serve(serve))),
        Word::Doctor(doctor) => Ok(Meant::Local(Local::Doctor(doctor))),
        Word::Keys { verb } => Ok(Meant::Local(Local::Keys(verb))),
    }
}

fn help(tree: &clap::Command, path: &[String]) -> String {
    let mut command = tree;
    for word in path {
        command = command.find_subcommand(word).unwrap_or(command);
    }
    let text = command.clone().render_help();
    if std::io::stdout().is_terminal() { text.ansi().to_string() } else { text.to_string() }
}

/// The names that lead to the command that was typed; what comes after them is not part of it.
fn command_of(typed: &[String], tree: &clap::Command) -> Vec<String> {
    let mut command = tree;
    let mut path = Vec::new();
    for word in typed.iter().skip(1).filter(|word| !word.starts_with('-')) {
        let Some(sub) = command.find_subcommand(word) else { break };
        command = sub;
        path.push(sub.get_name().to_owned());
    }
    path
}

/// What clap refuses, in our words: the option, then what is wrong with it. `path` leads to the command.
fn explain(error: &clap::Error, path: &[String]) -> UsageError {
    let context = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        Some(ContextValue::Strings(texts)) => Some(texts.join(", ")),
        _ => None,
    };
    // "--memory <MIB>" is "--memory" to whoever typed it; a word without an option keeps its name.
    let arg = context(ContextKind::InvalidArg).unwrap_or_default();
    let short = if arg.starts_with("--") { arg.split(' ').next().unwrap_or_default().to_owned() } else { arg.clone() };
    let value = context(ContextKind::InvalidValue).unwrap_or_default();
    let message = match error.kind() {
        ErrorKind::InvalidValue => match context(ContextKind::ValidValue).filter(|valid| !valid.is_empty()) {
            Some(valid) => format!("{short} is one of {valid}, not {value:?}"),
            None => format!("{short} needs a value, not {value:?}"),
        },
        ErrorKind::ValueValidation => {
            let why =
                std::error::Error::source(error).map_or_else(|| "is not accepted".to_owned(), ToString::to_string);
            format!("{short} {why}, not {value:?}")
        }
        ErrorKind::MissingRequiredArgument => format!("{arg} is missing"),
        ErrorKind::ArgumentConflict => {
            let prior = context(ContextKind::PriorArg).unwrap_or_default();
            format!("{short} and {} exclude each other", prior.split(' ').next().unwrap_or_default())
        }
        ErrorKind::UnknownArgument => format!("{arg:?} is one word too many"),
        _ => {
            let text = error.to_string();
            text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned()
        }
    };
    UsageError::new(message).hint(format!("See: {} --help", scan::full_name(path)))
}

#[cfg(test)]
mod tests;
