//! The words a person can type, as types. What they mean is for the commands; what is wrong with them is said by
//! [`crate::scan`] before a request is made.

pub mod files;
pub mod local;
pub mod previews;
pub mod sandboxes;
pub mod sessions;
pub mod snapshots;
pub mod ssh;
pub mod values;

use clap::{Arg, ArgAction, CommandFactory, Parser, Subcommand, ValueEnum};

use local::{Engine, KeysArgs, Listen, ServeArgs, SetupArgs};
use sandboxes::SandboxVerb;
use snapshots::SnapshotVerb;

/// The version the program says it is.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Sandboxes for agents, on your own machine.
#[derive(Debug, Parser)]
#[command(
    name = "runtime",
    bin_name = "runtime",
    disable_help_subcommand = true,
    disable_version_flag = true,
    args_override_self = true,
    after_help = "\
Examples:
  runtime up                                       from nothing to a first command
  runtime sandboxes run -- python3 -c 'print(1)'   one command in a sandbox of its own
  id=$(runtime sandboxes create --name worker)     a sandbox that stays
  runtime sandboxes exec worker -- make test       a command in it
  runtime sandboxes rm worker

`runtime COMMAND --help` says more about a command. Client commands use RUNTIME_API_URL and RUNTIME_API_KEY; without \
them, the server of this machine and its owner key.

Not in this version: login, images, volumes, jobs, secrets, networks and the other products of the contract."
)]
pub struct Cli {
    /// Print one JSON value on stdout, and errors as JSON on stderr (only before `--`).
    #[arg(long, global = true)]
    pub json: bool,

    #[command(subcommand)]
    pub command: Option<Word>,
}

#[derive(Debug, Subcommand)]
pub enum Word {
    /// Prepare this machine, start a server and run a first command in a sandbox.
    Up(UpArgs),

    /// Create and use sandboxes.
    #[command(
        visible_aliases = ["sandbox", "sbx"],
        subcommand_required = true,
        arg_required_else_help = false,
        after_help = "\
A sandbox is named by its id or its name.

Examples:
  runtime sandboxes create --name worker --memory 2048
  runtime sandboxes exec worker -- python3 -c 'import sys; print(sys.version)'
  runtime sandboxes ls"
    )]
    Sandboxes {
        #[command(subcommand)]
        verb: SandboxVerb,
    },

    /// See, keep and delete snapshots.
    #[command(
        visible_alias = "snapshot",
        subcommand_required = true,
        arg_required_else_help = false,
        after_help = "\
A snapshot is named by its id or its name.

Examples:
  runtime sandboxes snapshot worker --name ready
  runtime snapshots ls
  runtime sandboxes create --snapshot ID"
    )]
    Snapshots {
        #[command(subcommand)]
        verb: SnapshotVerb,
    },

    /// Show who the key belongs to.
    Whoami,

    /// Show what the key may use.
    Limits,

    /// Serve the sandbox tools to an AI host over stdin and stdout (Model Context Protocol).
    #[command(after_help = "\
A host (an editor, a desktop assistant, an agent) starts this program and speaks MCP with it. Each message goes to the \
server, which has the same tools at /mcp for hosts that take a URL; the tools work with the key's own sandboxes. Nothing \
is printed but MCP, and it ends when the host closes its side.

With RUNTIME_API_URL and RUNTIME_API_KEY it reaches any server; without them, the server of this machine with its owner \
key. Give a host a key of its own: runtime keys create --name my-host

In a host's configuration:
  {\"mcpServers\": {\"runtime\": {\"command\": \"runtime\", \"args\": [\"mcp\"],
    \"env\": {\"RUNTIME_API_URL\": \"http://127.0.0.1:8787\", \"RUNTIME_API_KEY\": \"rtcloud_…\"}}}}
or, for a host that takes a URL: http://127.0.0.1:8787/mcp with the header Authorization: Bearer rtcloud_…

Try it by hand:
  echo '{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/list\"}' | runtime mcp")]
    Mcp,

    /// Prepare this machine to run sandboxes; safe to run again.
    Setup(SetupArgs),

    /// Run the server in the foreground until Ctrl-C; sandboxes go on without it.
    Serve(ServeArgs),

    /// Look at everything the server needs here, with the fix for what is missing.
    Doctor(local::DoctorArgs),

    /// Manage the API keys of this machine's server.
    #[command(subcommand_required = true)]
    Keys {
        #[command(subcommand)]
        verb: KeysArgs,
    },

    /// Print a completion script for a shell.
    #[command(after_help = "\
Examples:
  runtime completions bash > /etc/bash_completion.d/runtime
  runtime completions zsh > ~/.zfunc/_runtime
  runtime completions fish > ~/.config/fish/completions/runtime.fish")]
    Completions {
        /// The shell to complete in.
        shell: Shell,
    },

    /// Show the version.
    Version,
}

/// The shells there is a script for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Shell {
    Bash,
    Elvish,
    Fish,
    Powershell,
    Zsh,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
It runs `runtime setup`, starts `runtime serve` in the background unless one is already running, and runs a command in a \
fresh sandbox that is deleted afterwards. Each step says what it does; nothing is asked; running it again is fine.

Examples:
  runtime up
  runtime up -- uname -a
  runtime up --data-dir /srv/runtime --listen 127.0.0.1:9000")]
pub struct UpArgs {
    #[command(flatten)]
    pub data: local::DataDir,

    /// What runs the sandboxes.
    #[arg(long, value_enum, default_value_t = Engine::Auto)]
    pub engine: Engine,

    /// Where a server that has to be started listens.
    #[arg(long, value_name = "HOST:PORT", default_value_t = Listen::default())]
    pub listen: Listen,

    /// The first command: one word is a shell line, several are a program and its arguments.
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

/// The whole tree, built: usage lines know their full names.
#[must_use]
pub fn tree() -> clap::Command {
    let mut tree = every(Cli::command());
    tree.build();
    tree
}

/// What holds for every command of the tree.
fn every(command: clap::Command) -> clap::Command {
    let command = command
        .args_override_self(true)
        .allow_negative_numbers(true)
        .disable_help_subcommand(true)
        .disable_help_flag(true)
        .mut_args(|arg| if arg.get_id() == "sandbox" { arg.value_parser(values::word) } else { arg })
        .arg(Arg::new("help").short('h').long("help").action(ArgAction::Help).help("Print this help"))
        .max_term_width(100);
    // Snapshots of help must not depend on the terminal they are taken in.
    let command = if cfg!(test) { command.term_width(100) } else { command };
    let names: Vec<String> = command.get_subcommands().map(|sub| sub.get_name().to_owned()).collect();
    names.into_iter().fold(command, |command, name| command.mut_subcommand(name, every))
}
