//! One connection between OpenSSH and the sandbox's sshd.

use std::path::Path;

use runtime_api::client::ClientError;
use tokio::task::JoinSet;

use super::store::{Store, know, read_public};
use super::{Context, Outcome, Surroundings, bare};
use crate::args::ssh::ProxyArgs;
use crate::commands::tunnel::{Connection, Inward, Tunnel};
use crate::failure::Failure;
use crate::printer::plain;
use crate::scan::UsageError;

pub(super) async fn proxy(context: &Context, around: &Surroundings, args: &ProxyArgs) -> Outcome {
    let host = args.host.to_lowercase();
    if host.contains(|c: char| c.is_whitespace() || c.is_control() || ",*?!|@#".contains(c)) {
        return Err(UsageError::new(format!("{:?} is no name of a host", args.host))
            .hint("Use the sandbox's id: ID.runtime.")
            .into());
    }
    let typed = args.typed.as_deref().filter(|typed| typed.to_lowercase() == host);
    let sandbox = context.client.resolve(bare(typed.unwrap_or(&args.host))).await?;
    let key = match &args.key {
        Some(file) => read_public(file)?,
        None => {
            let store = Store::of(around)?;
            store.lasting_pair()?;
            read_public(&store.public_key())?
        }
    };
    let known_hosts = match &args.known_hosts {
        Some(file) => file.clone(),
        None => Store::of(around)?.known_hosts(),
    };
    let mut tasks = JoinSet::new();
    let tunnel = Tunnel::reach(context, &sandbox, &mut tasks).await?;
    let carried = async {
        let mut connection = Connection::open(&tunnel, &format!("ssh {key} host-key")).await?;
        let told = connection.inward.recv().await;
        introduce(told, &known_hosts, &host)?;
        Ok::<(), Ended>(connection.carry(tokio::io::stdin(), tokio::io::stdout()).await?)
    };
    let ended = tokio::select! {
        biased;
        carried = carried => match carried {
            Ok(()) => return Ok(0),
            Err(Ended::Failed(failure)) => return Err(failure),
            // What OpenSSH has no more use for is no failure of ours; a tunnel that broke is.
            Err(Ended::Gone) => tasks.try_join_next(),
        },
        ended = tasks.join_next() => ended,
    };
    match ended {
        Some(Ok(Err(failure))) => Err(failure),
        Some(_) => Err(anyhow::anyhow!("the tunnel was closed").into()),
        None => Err(Failure::Said),
    }
}

enum Ended {
    Failed(Failure),
    /// One of the two sides is no longer there.
    Gone,
}

impl From<Failure> for Ended {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl From<Option<String>> for Ended {
    fn from(why: Option<String>) -> Self {
        why.map_or(Self::Gone, |why| Self::Failed(refused(&why)))
    }
}

/// Before OpenSSH hears a byte of the other side, it finds the key that side must prove.
fn introduce(told: Option<Inward>, known_hosts: &Path, host: &str) -> Result<(), Failure> {
    let key = match told {
        Some(Inward::HostKey(key)) => key,
        Some(Inward::Closed(Some(why))) => return Err(refused(&why)),
        _ => {
            return Err(
                ClientError::local("no_host_key", "the server did not tell the host key; nothing was sent").into()
            );
        }
    };
    let mut words = key.split(' ');
    let plain = |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_graphic());
    match (words.next(), words.next(), words.next()) {
        (Some(name), Some(blob), None) if plain(name) && plain(blob) => know(known_hosts, host, &key),
        _ => Err(ClientError::local("no_host_key", "the server told a host key that does not read").into()),
    }
}

fn refused(why: &str) -> Failure {
    match why {
        "no-sshd" => ClientError::local("no_sshd", "there is no OpenSSH server in the sandbox (/usr/sbin/sshd)")
            .with_hint("Install openssh-server in it, or use `runtime sandboxes shell`, which needs nothing."),
        "unavailable" => ClientError::local("unavailable", "the sandbox runs an agent from before SSH")
            .with_hint("Stop it and start it again, or use `runtime sandboxes shell`."),
        "reset" => ClientError::local("connection_error", "the connection broke: the sandbox was paused or stopped")
            .with_hint("Connect again; that wakes a paused sandbox."),
        why => ClientError::local("ssh_refused", format!("the connection was refused: {}", plain(why))),
    }
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_host_key_that_reads_there_is_no_connection() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("known_hosts");
        let key = |text: &str| Some(Inward::HostKey(text.to_owned()));
        for wrong in
            [None, Some(Inward::End), key(""), key("ssh-ed25519"), key("a b c"), key("a b\n* c d"), key("a  b")]
        {
            assert!(introduce(wrong, &file, "w.runtime").is_err());
        }
        assert!(!file.exists());
        introduce(key("ssh-ed25519 AAAA"), &file, "w.runtime").expect("known");
        assert!(std::fs::read_to_string(&file).expect("read").starts_with("w.runtime,[w.runtime]:* ssh-ed25519 AAAA "));
    }
}
