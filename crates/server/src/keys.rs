//! Keys: made, listed and revoked directly in the store's file, also while a server runs on it.
//!
//! A key is `rtcloud_<its id>_<256 random bits, base64url>`. It is shown once; only its hash is kept.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use aws_lc_rs::rand;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use runtime_api::Time;
use runtime_model::{CredentialId, PrincipalId};
use runtime_store::{CredentialRow, SqliteStore, Store, StoreError};
use secrecy::{ExposeSecret, SecretString};

use crate::auth::hash;
use crate::clock::now_ms;

pub const PREFIX: &str = "rtcloud_";
/// The store's file in a data directory.
pub const DATABASE: &str = "runtime.db";
const OWNER: &str = "owner";

#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    #[error("the store refused")]
    Store(#[from] StoreError),
    #[error("no random bytes from the kernel")]
    Random,
    #[error("there is no database {0}: start the server once, or name its data directory")]
    NoDatabase(PathBuf),
    #[error("{step} {path}")]
    File {
        step: &'static str,
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("no key has the id or name {0}")]
    Unknown(String),
    #[error("{count} keys are named {name}: say the id")]
    Ambiguous { name: String, count: usize },
}

/// What a new key may do.
#[derive(Debug, Clone, Default)]
pub struct NewKey {
    pub name: String,
    pub read_only: bool,
    pub account_wide: bool,
}

/// A key that was just made: the only time its text exists.
pub struct MadeKey {
    pub row: CredentialRow,
    pub key: SecretString,
}

impl MadeKey {
    /// The text to hand to its owner, once.
    #[must_use]
    pub fn reveal(&self) -> &str {
        self.key.expose_secret()
    }
}

/// A key as people see it.
#[derive(Debug, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ListedKey {
    pub id: String,
    pub name: String,
    /// `account-wide`, `read-only` or `own sandboxes`.
    pub access: &'static str,
    pub created_at: Option<Time>,
    pub revoked_at: Option<Time>,
}

/// Opens the store of a data directory for the functions below.
pub async fn open(data_dir: &Path) -> Result<SqliteStore, KeyError> {
    let path = data_dir.join(DATABASE);
    if !path.exists() {
        return Err(KeyError::NoDatabase(path));
    }
    Ok(SqliteStore::open(&path).await?)
}

pub async fn create(store: &dyn Store, new: NewKey) -> Result<MadeKey, KeyError> {
    let mut secret = [0_u8; 32];
    rand::fill(&mut secret).map_err(|_| KeyError::Random)?;
    let id = CredentialId::new_v4();
    let text = format!("{PREFIX}{id}_{}", URL_SAFE_NO_PAD.encode(secret));
    // The owner's key acts for the owner; each other key is a principal of its own.
    let principal = if new.name == OWNER && new.account_wide {
        PrincipalId::from_bytes(store.fixed_id("owner").await?.into_bytes())
    } else {
        PrincipalId::new_v4()
    };
    let row = CredentialRow {
        id,
        principal,
        name: new.name,
        hash: hash(&text),
        prefix: text.chars().take(PREFIX.len() + 8).collect(),
        read_only: new.read_only,
        account_wide: new.account_wide,
        created_at: now_ms(),
        revoked_at: None,
    };
    store.insert_credential(row.clone()).await?;
    Ok(MadeKey { row, key: text.into() })
}

/// Oldest first, revoked ones too.
pub async fn list(store: &dyn Store) -> Result<Vec<CredentialRow>, KeyError> {
    Ok(store.credentials().await?)
}

/// The same, for people.
pub async fn listed(store: &dyn Store) -> Result<Vec<ListedKey>, KeyError> {
    let shown = |row: CredentialRow| ListedKey {
        id: row.id.to_string(),
        access: match (row.account_wide, row.read_only) {
            (_, true) => "read-only",
            (true, false) => "account-wide",
            (false, false) => "own sandboxes",
        },
        created_at: Time::from_millis(row.created_at),
        revoked_at: row.revoked_at.and_then(Time::from_millis),
        name: row.name,
    };
    Ok(list(store).await?.into_iter().map(shown).collect())
}

/// By id, by the start of the id (8 characters or more), or by name. Holds from the server's next request.
pub async fn revoke(store: &dyn Store, which: &str) -> Result<CredentialRow, KeyError> {
    let live: Vec<CredentialRow> =
        store.credentials().await?.into_iter().filter(|row| row.revoked_at.is_none()).collect();
    let by_id = |row: &&CredentialRow| {
        let id = row.id.to_string();
        id == which || (which.len() >= 8 && id.starts_with(which))
    };
    let mut found: Vec<&CredentialRow> = live.iter().filter(by_id).collect();
    if found.is_empty() {
        found = live.iter().filter(|row| row.name == which).collect();
    }
    match found.as_slice() {
        [] => Err(KeyError::Unknown(which.to_owned())),
        [row] => {
            store.revoke_credential(row.id, now_ms()).await?;
            Ok((*row).clone())
        }
        several => Err(KeyError::Ambiguous { name: which.to_owned(), count: several.len() }),
    }
}

/// Makes sure that the owner's key file holds a key this store knows. Returns true if it was written now.
pub async fn ensure_owner_key(store: &dyn Store, path: &Path) -> Result<bool, KeyError> {
    let file = |step, source| KeyError::File { step, path: path.to_owned(), source };
    match std::fs::read_to_string(path) {
        Ok(text) => {
            let known = hash(text.trim());
            if let Some(row) = store.credentials().await?.into_iter().find(|row| row.hash == known) {
                if row.revoked_at.is_some() {
                    tracing::warn!(path = %path.display(), "the key in this file was revoked; remove the file for a new one");
                }
                return Ok(false);
            }
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(file("reading the owner's key", error)),
    }
    let made = create(store, NewKey { name: OWNER.to_owned(), read_only: false, account_wide: true }).await?;
    // Under a name of its own first: a reader never sees half a key.
    let partial = path.with_extension("key.new");
    let write = || {
        let mut out = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&partial)?;
        writeln!(out, "{}", made.key.expose_secret())?;
        out.sync_all()?;
        std::fs::rename(&partial, path)
    };
    write().map_err(|source| file("writing the owner's key", source))?;
    Ok(true)
}
