//! The verbs about a sandbox's files.

use clap::Args;
use clap::builder::PossibleValuesParser;

use super::values::integer;

#[derive(Debug, Args)]
pub struct FilesArgs {
    /// The sandbox: its id or name.
    pub sandbox: String,

    /// The directory, from / on.
    #[arg(default_value = "/workspace")]
    pub path: String,

    /// How many levels down.
    #[arg(long, value_parser = integer)]
    pub depth: Option<u64>,

    /// Only paths that fit, such as '**/*.py'.
    #[arg(long, value_name = "PATTERN")]
    pub glob: Option<String>,

    /// Names that begin with a dot as well.
    #[arg(long)]
    pub hidden: bool,
}

#[derive(Debug, Args)]
pub struct CpArgs {
    /// What to copy: a path here, or SANDBOX:/path.
    #[arg(value_name = "FROM")]
    pub from: String,

    /// Where to: a path here, or SANDBOX:/path.
    #[arg(value_name = "TO")]
    pub to: String,

    /// Directories with all that is in them.
    #[arg(short, long)]
    pub recursive: bool,
}

#[derive(Debug, Args)]
pub struct WatchArgs {
    /// The sandbox: its id or name.
    pub sandbox: String,

    /// A directory, or one file.
    pub path: String,

    /// All directories below, too.
    #[arg(short, long)]
    pub recursive: bool,

    /// Only what matches; may be given again.
    #[arg(long, value_name = "PATTERN")]
    pub include: Vec<String>,

    /// Nothing that matches; a directory with all below. May be given again.
    #[arg(long, value_name = "PATTERN")]
    pub exclude: Vec<String>,

    /// Which changes, with commas between; all but access if left out.
    #[arg(long, value_delimiter = ',', value_parser = PossibleValuesParser::new(CHANGES))]
    pub events: Vec<String>,
}

const CHANGES: [&str; 6] = ["create", "write", "remove", "rename", "chmod", "access"];
