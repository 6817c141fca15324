//! The verbs of previews.

use clap::Args;

use super::values::{integer, port};
use crate::scan::UsageError;

#[derive(Debug, Args)]
#[command(
    override_usage = "runtime sandboxes preview [OPTIONS] <SANDBOX> <PORT>\n       runtime sandboxes preview rotate <SANDBOX> <PORT>"
)]
pub struct PreviewArgs {
    /// The sandbox: its id or name. With `rotate` before both, every token of before ends.
    pub sandbox: String,

    /// The port that its server listens on.
    pub port: String,

    /// What stands behind `rotate SANDBOX`.
    #[arg(hide = true)]
    pub last: Option<String>,

    /// For everybody who has the address, without a token.
    #[arg(long)]
    pub public: bool,

    /// Seconds that the link lasts at least, 60 to 604800; a day if not given.
    #[arg(long, value_name = "SECONDS", value_parser = integer, conflicts_with = "public")]
    pub ttl: Option<u64>,
}

/// What `preview` is to do.
#[derive(Debug, PartialEq, Eq)]
pub enum Wanted<'a> {
    Share { sandbox: &'a str, port: u16 },
    Rotate { sandbox: &'a str, port: u16 },
}

impl PreviewArgs {
    /// # Errors
    /// When that is no port, or there are words that mean nothing.
    pub fn wanted(&self) -> Result<Wanted<'_>, UsageError> {
        let see = |mistake: UsageError| mistake.hint("See: runtime sandboxes preview --help");
        let number =
            |text: &str| port(text).map_err(|must| see(UsageError::new(format!("<PORT> {must}, not {text:?}"))));
        match &self.last {
            None => Ok(Wanted::Share { sandbox: &self.sandbox, port: number(&self.port)? }),
            Some(_) if self.sandbox == "rotate" && (self.public || self.ttl.is_some()) => {
                Err(see(UsageError::new("`preview rotate` changes the token and nothing else")))
            }
            Some(last) if self.sandbox == "rotate" => Ok(Wanted::Rotate { sandbox: &self.port, port: number(last)? }),
            Some(last) => Err(see(UsageError::new(format!("{last:?} is one word too many")))),
        }
    }
}

#[derive(Debug, Args)]
pub struct UnshareArgs {
    /// The sandbox: its id or name.
    pub sandbox: String,

    /// The port.
    #[arg(value_parser = port)]
    pub port: u16,
}
