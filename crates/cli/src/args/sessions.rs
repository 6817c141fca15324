//! The verbs of `sandboxes session`.

use clap::{Args, Subcommand};

use super::values::integer;

#[derive(Debug, Subcommand)]
pub enum SessionVerb {
    /// Make a session, and print its token: the only time it is shown.
    #[command(after_help = "\
The token reaches commands, processes and files of this sandbox and nothing else, until it expires or is revoked. A web \
page may use it if its origin is named; without --origin only programs may.

Examples:
  runtime sandboxes session create worker --origin https://app.example.com --ttl 600
  runtime sandboxes session create worker --origin http://localhost:3000 --name dev")]
    Create(CreateArgs),

    /// List sessions that live, and those that ended within a day.
    #[command(visible_alias = "list")]
    Ls(LsArgs),

    /// End a session now, and what it has open.
    Revoke(RevokeArgs),
}

#[derive(Debug, Args)]
pub struct CreateArgs {
    /// The sandbox: its id or name.
    pub sandbox: String,

    /// A web page's origin: https://HOST[:PORT] or http://localhost[:PORT]; repeatable.
    #[arg(long = "origin", value_name = "ORIGIN")]
    pub origins: Vec<String>,

    /// Seconds until it ends, 60 to 86400; an hour if not given.
    #[arg(long, value_name = "SECONDS", value_parser = integer)]
    pub ttl: Option<u64>,

    /// A name, to tell it from others.
    #[arg(long)]
    pub name: Option<String>,
}

#[derive(Debug, Args)]
pub struct LsArgs {
    /// The sandbox: its id or name.
    pub sandbox: String,
}

#[derive(Debug, Args)]
pub struct RevokeArgs {
    /// The sandbox: its id or name.
    pub sandbox: String,

    /// The session's id.
    pub session: String,
}
