//! Commands that work on this machine's server rather than through the API. They are parsed here and run by the program
//! that wires the rooms together.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Subcommand, ValueEnum};
use runtime_model::network::Cidr;

use super::values::{public_url, word};

/// A command that is not a client's.
#[derive(Debug)]
pub enum Local {
    Setup(SetupArgs),
    Serve(ServeArgs),
    Doctor(DoctorArgs),
    Keys(KeysArgs),
}

/// What runs the sandboxes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Engine {
    /// The strongest that works here.
    Auto,
    /// A kernel in user space; needs root, no virtualisation.
    Gvisor,
    /// Micro virtual machines by Firecracker; not in this version.
    Firecracker,
    /// A virtual machine for each sandbox, emulated where KVM runs no guest.
    Qemu,
}

impl Engine {
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Gvisor => "gvisor",
            Self::Firecracker => "firecracker",
            Self::Qemu => "qemu",
        }
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Whether the limits of a shared server hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum GuardsWhen {
    /// Off where only this machine can connect, else on.
    Auto,
    On,
    Off,
}

/// Where the server keeps everything.
#[derive(Debug, Clone, Args)]
pub struct DataDir {
    /// The data directory [default: /var/lib/runtime as root, else $XDG_DATA_HOME/runtime].
    #[arg(long = "data-dir", value_name = "DIR")]
    pub given: Option<PathBuf>,
}

impl DataDir {
    /// The directory that was given, or this user's default.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.given.clone().unwrap_or_else(|| crate::surroundings::Surroundings::read().default_data_dir())
    }
}

/// An address to listen on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listen {
    /// A name or an address; IPv6 without brackets.
    pub host: String,
    /// 0 picks a free one.
    pub port: u16,
}

impl Default for Listen {
    fn default() -> Self {
        Self { host: "127.0.0.1".into(), port: 8787 }
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl FromStr for Listen {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "must be HOST:PORT, such as 127.0.0.1:8787 or [::1]:8787".to_owned();
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        if host.is_empty() || (bare.is_none() && host.contains(':')) || !port.bytes().all(|byte| byte.is_ascii_digit())
        {
            return Err(wrong());
        }
        let port = port.parse().map_err(|_| wrong())?;
        Ok(Self { host: bare.unwrap_or(host).to_owned(), port })
    }
}

#[derive(Debug, Args)]
#[command(after_help = "\
Each step says what it does and why, and is skipped when it is already done.

Examples:
  runtime setup
  runtime setup --check       only look; change nothing
  runtime setup --engine gvisor --data-dir /srv/runtime")]
pub struct SetupArgs {
    /// What shall run the sandboxes.
    #[arg(long, value_enum, default_value_t = Engine::Auto)]
    pub engine: Engine,

    #[command(flatten)]
    pub data: DataDir,

    /// Only look, and exit with 1 if something is missing.
    #[arg(long)]
    pub check: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  runtime serve
  runtime serve --listen 127.0.0.1:0 --data-dir /srv/runtime

The first start writes the owner's key to DIR/owner.key. The address is in DIR/address.")]
pub struct ServeArgs {
    /// What runs the sandboxes.
    #[arg(long, value_enum, default_value_t = Engine::Auto)]
    pub engine: Engine,

    #[command(flatten)]
    pub data: DataDir,

    /// Where to listen; port 0 picks a free one.
    #[arg(long, value_name = "HOST:PORT", default_value_t = Listen::default())]
    pub listen: Listen,

    /// Limits on what one key and one address may ask at once; `auto` leaves them off on a loopback address.
    #[arg(long, value_enum, value_name = "WHEN", default_value_t = GuardsWhen::Auto)]
    pub guards: GuardsWhen,

    /// A range of addresses that sandboxes may reach although it is not public, such as a registry's; repeatable. Never
    /// makes loopback or link-local addresses reachable.
    #[arg(long = "egress-treat-as-public", value_name = "RANGE")]
    pub treat_as_public: Vec<Cidr>,

    /// Where clients reach this server, if not at the address they call: behind a proxy, say.
    #[arg(long, value_name = "URL", value_parser = public_url)]
    pub public_url: Option<String>,

    /// Leave the terminal's session; `up` starts the server so.
    #[arg(long, hide = true)]
    pub detached: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Exits with 0 when everything is fine, with 1 when something needs a fix.

Examples:
  runtime doctor
  runtime doctor --listen 0.0.0.0:80
  runtime doctor --engine firecracker --json")]
pub struct DoctorArgs {
    /// What is to run the sandboxes.
    #[arg(long, value_enum, default_value_t = Engine::Auto)]
    pub engine: Engine,

    #[command(flatten)]
    pub data: DataDir,

    /// Where the server listens or is to listen.
    #[arg(long, value_name = "HOST:PORT", default_value_t = Listen::default())]
    pub listen: Listen,
}

#[derive(Debug, Subcommand)]
pub enum KeysArgs {
    /// Make a key; it is printed once, alone on stdout.
    #[command(after_help = "\
A key sees and changes the sandboxes it made; an account-wide one those of every key. A read-only key reads the whole \
account, though nothing that is inside a sandbox, and changes nothing; so it is never account-wide as well.

Examples:
  export RUNTIME_API_KEY=$(runtime keys create --name ci)
  runtime keys create --name admin --account-wide
  runtime keys create --name dashboard --read-only")]
    Create {
        /// What the key is for.
        #[arg(long, value_parser = word)]
        name: Option<String>,

        /// Reads the whole account, but not inside sandboxes, and changes nothing.
        #[arg(long, conflicts_with = "account_wide")]
        read_only: bool,

        /// Sees and changes the sandboxes of every key.
        #[arg(long)]
        account_wide: bool,

        #[command(flatten)]
        data: DataDir,
    },

    /// List the keys, without their secret part.
    #[command(visible_alias = "list")]
    Ls {
        #[command(flatten)]
        data: DataDir,
    },

    /// End a key: it is refused from the next request on.
    Revoke {
        /// The key's id, as `keys ls` shows it.
        #[arg(value_parser = word)]
        id: String,

        #[command(flatten)]
        data: DataDir,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_to_listen_on() {
        for (text, host, port) in
            [("127.0.0.1:8787", "127.0.0.1", 8787), ("[::1]:0", "::1", 0), ("localhost:80", "localhost", 80)]
        {
            let listen: Listen = text.parse().expect(text);
            assert_eq!((listen.host.as_str(), listen.port), (host, port));
            assert_eq!(listen.to_string(), text);
        }
        for text in ["8787", ":8787", "::1:8787", "host:", "host:65536", "host:+1", "[::1]"] {
            assert!(text.parse::<Listen>().is_err(), "{text}");
        }
    }
}
