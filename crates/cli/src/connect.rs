//! Which server, with which key.
//!
//! `RUNTIME_API_URL` and `RUNTIME_API_KEY` decide. Without them the server of this machine is meant: its address and its
//! owner's key are in its data directory. The owner's key is only ever sent to that address.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context;
use runtime_api::client::{Client, ClientError, ClientOptions, Origin};

use crate::args::VERSION;
use crate::failure::Failure;
use crate::printer::{Printer, plain};
use crate::scan::UsageError;
use crate::surroundings::{Surroundings, read_word};

const DEFAULT_ADDRESS: &str = "http://127.0.0.1:8787";

/// Where calls go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) origin: Origin,
    pub(crate) key: Option<String>,
}

/// The server of a data directory.
#[derive(Debug, Clone)]
pub(crate) struct LocalServer {
    pub(crate) origin: Origin,
    pub(crate) key: Option<String>,
}

impl LocalServer {
    /// What the directory says about its server, which may be running or not.
    pub(crate) fn of(data_dir: &std::path::Path) -> Option<Self> {
        let origin = Origin::parse(&reachable(&read_word(&data_dir.join("address"))?)).ok()?;
        Some(Self { origin, key: read_word(&data_dir.join("owner.key")) })
    }
}

/// An address to connect to for an address that was listened on.
fn reachable(address: &str) -> String {
    let url = if address.contains("://") { address.to_owned() } else { format!("http://{address}") };
    url.replacen("//0.0.0.0:", "//127.0.0.1:", 1).replacen("//[::]:", "//[::1]:", 1)
}

pub(crate) fn target(around: &Surroundings) -> Result<Target, Failure> {
    let local = around.data_dirs().iter().find_map(|dir| LocalServer::of(dir));
    let origin = match (&around.api_url, &local) {
        (Some(url), _) => parse_origin(url)?,
        (None, Some(local)) => local.origin.clone(),
        (None, None) => parse_origin(DEFAULT_ADDRESS)?,
    };
    let key = match &around.api_key {
        Some(key) if key.chars().any(|c| c.is_whitespace() || c.is_control()) => {
            return Err(UsageError::new("RUNTIME_API_KEY holds blanks or line breaks, which no key does").into());
        }
        Some(key) => Some(key.clone()),
        None => local.filter(|local| local.origin == origin).and_then(|local| local.key),
    };
    Ok(Target { origin, key })
}

fn parse_origin(url: &str) -> Result<Origin, Failure> {
    Origin::parse(url).map_err(|error| UsageError::new(format!("RUNTIME_API_URL: {error}")).into())
}

/// A client for a target; nothing is sent yet.
pub(crate) fn client(target: &Target, printer: Printer) -> Result<Client, Failure> {
    let tls = if target.origin.is_https() {
        runtime_service::tls::client_config().context("cannot set up TLS")?
    } else {
        runtime_service::tls::no_roots().context("cannot set up TLS")?
    };
    let told = Mutex::new(BTreeSet::new());
    let options = ClientOptions {
        origin: target.origin.clone(),
        key: target.key.clone(),
        caller: format!("runtime-cli/{VERSION}"),
        on_room_wait: Some(Arc::new(move |refusal: &ClientError, _| {
            // Once per reason, however long it takes.
            if told.lock().unwrap_or_else(PoisonError::into_inner).insert(refusal.code.clone()) {
                printer.talk(&format!("Waiting for room [{}]: {}", refusal.code, plain(&refusal.message)));
            }
        })),
    };
    Ok(Client::new(options, tls)?)
}

/// A client that has a key, or the reason why there is none.
pub(crate) fn connect(around: &Surroundings, printer: Printer) -> Result<Client, Failure> {
    let target = target(around)?;
    if target.key.is_none() {
        return Err(no_key(around).into());
    }
    client(&target, printer)
}

fn no_key(around: &Surroundings) -> ClientError {
    let unreadable: Option<PathBuf> = around
        .data_dirs()
        .into_iter()
        .map(|dir| dir.join("owner.key"))
        .find(|file| file.exists() && read_word(file).is_none());
    let error = ClientError::local(
        "missing_api_key",
        "RUNTIME_API_KEY is not set, and no owner's key was found for this server",
    );
    match unreadable {
        Some(file) => error.with_hint(format!(
            "{} exists, but you may not read it: use root, or set RUNTIME_API_KEY.",
            file.display()
        )),
        None if around.api_url.is_some() => {
            error.with_hint("Set RUNTIME_API_KEY to a key of the server that RUNTIME_API_URL names.")
        }
        None => error
            .with_hint("Start a server on this machine with `runtime up`, or set RUNTIME_API_URL and RUNTIME_API_KEY."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn server(dir: &std::path::Path, address: &str, key: &str) {
        fs::create_dir_all(dir).expect("a directory");
        fs::write(dir.join("address"), address).expect("address");
        fs::write(dir.join("owner.key"), key).expect("key");
    }

    #[test]
    fn nothing_has_to_be_exported_on_ones_own_machine() {
        let dir = tempfile::tempdir().expect("a directory");
        let (system, own) = (dir.path().join("system"), dir.path().join("own"));
        let around = Surroundings::for_test(&system, Some(&own), false);
        let found = target(&around).expect("the default");
        assert_eq!((found.origin.as_str(), found.key), (DEFAULT_ADDRESS, None));

        server(&system, "http://127.0.0.1:9001\n", "rtcloud_system\n");
        let found = target(&around).expect("the system's server");
        assert_eq!((found.origin.as_str(), found.key.as_deref()), ("http://127.0.0.1:9001", Some("rtcloud_system")));

        server(&own, "0.0.0.0:9002", "rtcloud_own");
        let found = target(&around).expect("one's own server");
        assert_eq!((found.origin.as_str(), found.key.as_deref()), ("http://127.0.0.1:9002", Some("rtcloud_own")));
    }

    #[test]
    fn the_owners_key_goes_nowhere_else() {
        let dir = tempfile::tempdir().expect("a directory");
        server(dir.path(), "http://127.0.0.1:9001", "rtcloud_owner");
        let mut around = Surroundings::for_test(dir.path(), None, true);
        around.api_url = Some("https://example.com".into());
        assert_eq!(target(&around).expect("fine").key, None);
        around.api_url = Some("http://127.0.0.1:9001/".into());
        assert_eq!(target(&around).expect("fine").key.as_deref(), Some("rtcloud_owner"));
        around.api_key = Some("other".into());
        assert_eq!(target(&around).expect("fine").key.as_deref(), Some("other"));
    }

    #[test]
    fn odd_settings_are_named() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut around = Surroundings::for_test(dir.path(), None, true);
        around.api_url = Some("http://10.0.0.1".into());
        assert!(target(&around).expect_err("not private").to_string().starts_with("RUNTIME_API_URL: "));
        around.api_url = None;
        around.api_key = Some("a b".into());
        assert!(target(&around).expect_err("blanks").to_string().contains("RUNTIME_API_KEY"));
    }
}
