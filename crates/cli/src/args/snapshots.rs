//! The verbs of the snapshot product.

use clap::{Args, Subcommand};

use super::values::integer;

#[derive(Debug, Subcommand)]
pub enum SnapshotVerb {
    /// List snapshots, oldest first.
    #[command(
        visible_alias = "list",
        after_help = "\
Examples:
  runtime snapshots ls
  runtime snapshots ls --sandbox worker --json"
    )]
    Ls(LsArgs),

    /// Show one snapshot.
    Get(OneArgs),

    /// Keep a snapshot for so many days from now.
    Extend(ExtendArgs),

    /// Delete a snapshot; sandboxes made from it stay.
    #[command(visible_alias = "delete")]
    Rm(OneArgs),
}

#[derive(Debug, Args)]
pub struct LsArgs {
    /// Only those of this sandbox: its id or name.
    #[arg(long = "sandbox", value_name = "SANDBOX")]
    pub of: Option<String>,

    /// Only those of this name.
    #[arg(long)]
    pub name: Option<String>,
}

#[derive(Debug, Args)]
pub struct OneArgs {
    /// The snapshot: its id or name.
    pub snapshot: String,
}

#[derive(Debug, Args)]
pub struct ExtendArgs {
    /// The snapshot: its id or name.
    pub snapshot: String,

    /// How many days, at most a year from when it was taken.
    #[arg(value_name = "DAYS", value_parser = integer)]
    pub days: u64,
}
