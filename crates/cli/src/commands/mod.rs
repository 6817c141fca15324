//! One file per command.

mod account;
mod command;
mod cp;
mod create;
mod exec;
mod files;
mod forward;
mod input;
mod lifecycle;
mod ls;
mod mcp;
mod network;
mod overview;
mod previews;
mod process;
mod run;
mod sessions;
mod shell;
mod show;
mod snapshots;
mod ssh;
mod tunnel;
mod up;
mod update;
mod watch;

use clap_complete::aot;
use runtime_api::client::Client;
use serde_json::json;

use crate::ClientVerb;
use crate::args::sandboxes::SandboxVerb;
use crate::args::snapshots::SnapshotVerb;
use crate::args::{Shell, VERSION};
use crate::connect::connect;
use crate::failure::Failure;
use crate::printer::Printer;
use crate::surroundings::Surroundings;

/// The exit code, or why there is none.
type Outcome = Result<u8, Failure>;

/// What every command of the API works with.
pub(crate) struct Context {
    pub(crate) client: Client,
    pub(crate) printer: Printer,
}

pub(crate) async fn run(verb: ClientVerb, printer: Printer) -> Outcome {
    let around = Surroundings::read();
    let context = || connect(&around, printer).map(|client| Context { client, printer });
    match verb {
        ClientVerb::Overview => overview::overview(&around, printer).await,
        ClientVerb::Up(up) => up::up(&around, up, printer).await,
        ClientVerb::Whoami => account::whoami(&context()?).await,
        ClientVerb::Limits => account::limits(&context()?).await,
        ClientVerb::Mcp => mcp::mcp(&context()?).await,
        ClientVerb::Version => version(printer),
        ClientVerb::Completions(shell) => completions(shell, printer),
        ClientVerb::Snapshots(verb) => {
            let context = context()?;
            match verb {
                SnapshotVerb::Ls(args) => snapshots::ls(&context, args).await,
                SnapshotVerb::Get(args) => snapshots::get(&context, &args.snapshot).await,
                SnapshotVerb::Extend(args) => snapshots::extend(&context, &args.snapshot, args.days).await,
                SnapshotVerb::Rm(args) => snapshots::remove(&context, &args.snapshot).await,
            }
        }
        ClientVerb::Sandboxes(verb) => sandboxes(verb, &around, printer).await,
    }
}

async fn sandboxes(verb: SandboxVerb, around: &Surroundings, printer: Printer) -> Outcome {
    // Half of it needs no server.
    let verb = match verb {
        SandboxVerb::Ssh(args) => return ssh::ssh(around, args, printer).await,
        verb => verb,
    };
    // What can be refused without a server is refused first.
    match &verb {
        SandboxVerb::Run(run) => command::words(&run.command, "run")?,
        SandboxVerb::Exec(exec) => command::words(&exec.command, "exec <sandbox>")?,
        SandboxVerb::Cp(cp) => cp::check(cp)?,
        SandboxVerb::Update(update) => update::needs_something(update)?,
        SandboxVerb::Preview(preview) => {
            preview.wanted()?;
        }
        _ => {}
    }
    let context = Context { client: connect(around, printer)?, printer };
    match verb {
        SandboxVerb::Create(args) => create::create(&context, &args).await,
        SandboxVerb::Run(args) => run::run(&context, &args).await,
        SandboxVerb::Exec(args) => exec::exec(&context, args).await,
        SandboxVerb::Ls(args) => ls::ls(&context, args).await,
        SandboxVerb::Get(args) => show::get(&context, &args.sandbox).await,
        SandboxVerb::Stop(args) => lifecycle::stop(&context, args).await,
        SandboxVerb::Restart(args) => lifecycle::restart(&context, &args.sandbox).await,
        SandboxVerb::Pause(args) => lifecycle::pause(&context, &args.sandbox).await,
        SandboxVerb::Wake(args) => lifecycle::wake(&context, &args.sandbox, args.timeout).await,
        SandboxVerb::Snapshot(args) => snapshots::take(&context, args).await,
        SandboxVerb::Fork(args) => snapshots::fork(&context, args).await,
        SandboxVerb::Extend(args) => lifecycle::extend(&context, &args.sandbox, args.seconds).await,
        SandboxVerb::Update(args) => update::update(&context, args).await,
        SandboxVerb::Resize(args) => lifecycle::resize(&context, args).await,
        SandboxVerb::Rm(args) => lifecycle::remove(&context, &args.sandbox).await,
        SandboxVerb::Cat(args) => files::cat(&context, args).await,
        SandboxVerb::Files(args) => files::files(&context, args).await,
        SandboxVerb::Cp(args) => cp::cp(&context, args).await,
        SandboxVerb::Shell(args) => shell::shell(&context, args).await,
        SandboxVerb::Spawn(args) => process::spawn(&context, args).await,
        SandboxVerb::Ps(args) => process::ps(&context, &args.sandbox).await,
        SandboxVerb::Logs(args) => process::logs(&context, args).await,
        SandboxVerb::Kill(args) => process::kill(&context, args).await,
        SandboxVerb::Watch(args) => watch::watch(&context, args).await,
        SandboxVerb::PortForward(args) => forward::forward(&context, args).await,
        SandboxVerb::Ssh(args) => ssh::ssh(around, args, printer).await,
        SandboxVerb::Network(args) => network::network(&context, &args).await,
        SandboxVerb::NetworkLog(args) => network::log(&context, &args).await,
        SandboxVerb::Preview(args) => previews::preview(&context, &args).await,
        SandboxVerb::Previews(args) => previews::ls(&context, &args.sandbox).await,
        SandboxVerb::Unshare(args) => previews::unshare(&context, &args).await,
        SandboxVerb::Session { verb } => sessions::session(&context, verb).await,
    }
}

fn version(printer: Printer) -> Outcome {
    if printer.json {
        printer.value(&json!({ "version": VERSION }))?;
    } else {
        printer.line(&format!("runtime {VERSION}"))?;
    }
    Ok(0)
}

fn completions(shell: Shell, printer: Printer) -> Outcome {
    let shell = match shell {
        Shell::Bash => aot::Shell::Bash,
        Shell::Elvish => aot::Shell::Elvish,
        Shell::Fish => aot::Shell::Fish,
        Shell::Powershell => aot::Shell::PowerShell,
        Shell::Zsh => aot::Shell::Zsh,
    };
    let mut script = Vec::new();
    aot::generate(shell, &mut crate::args::tree(), "runtime", &mut script);
    let script = String::from_utf8_lossy(&script);
    if printer.json {
        printer.value(&json!({ "script": script }))?;
    } else {
        printer.line(script.trim_end())?;
    }
    Ok(0)
}
