//! The words of `sandboxes ssh`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct SshArgs {
    #[command(subcommand)]
    pub verb: Option<SshVerb>,

    /// The sandbox: its id or name.
    pub sandbox: Option<String>,

    /// The command: one word is a shell line, several are a program and its arguments; none is a login.
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

#[derive(Debug, Subcommand)]
pub enum SshVerb {
    /// Print settings for OpenSSH by which `ssh NAME.runtime` reaches a sandbox.
    #[command(after_help = "\
With them scp, sftp, rsync, git and editors that work over SSH reach every sandbox as NAME.runtime or ID.runtime. They \
hold no secret: each connection is opened with RUNTIME_API_URL and RUNTIME_API_KEY, or this machine's server.

Examples:
  runtime sandboxes ssh config --install
  ssh worker.runtime
  scp -r ./src worker.runtime:
  ssh -L 5432:localhost:5432 worker.runtime")]
    Config(ConfigArgs),

    /// Carry one connection between OpenSSH and a sandbox: what ProxyCommand runs.
    #[command(after_help = "\
It speaks SSH on its stdin and stdout and nothing else. Before the first byte it writes the sandbox's host key, which is \
new for each connection and comes from the server, to the file that OpenSSH checks it against.

Example, in ~/.ssh/config:
  ProxyCommand runtime sandboxes ssh proxy %h")]
    Proxy(ProxyArgs),
}

#[derive(Debug, Args)]
pub struct ConfigArgs {
    /// Keep them in a file of their own, and have ~/.ssh/config include it.
    #[arg(long)]
    pub install: bool,
}

#[derive(Debug, Args)]
pub struct ProxyArgs {
    /// The host as OpenSSH calls it (%h): NAME.runtime, or an id or name.
    pub host: String,

    /// The host as it was typed (%n): OpenSSH's own is in small letters.
    pub typed: Option<String>,

    /// The public key that may log in.
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,

    /// Where the host key is written.
    #[arg(long, value_name = "FILE")]
    pub known_hosts: Option<PathBuf>,
}
