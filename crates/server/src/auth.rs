//! Who asks: a bearer key becomes a [`Caller`], before anything else is looked at.
//!
//! Only a hash of a key is stored. A plain SHA-256 is enough for it, since a key is 256 random bits and not a word a
//! person chose: there is nothing to guess, so nothing that slow hashing would slow down.
//!
//! A revoke, also by another process, holds from the next request on: what was looked up is used again only while the
//! store says that no key has changed, and for a second at most.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use aws_lc_rs::digest::{SHA256, digest};
use axum::http::Method;
use runtime_model::{CredentialId, OrgId, PrincipalId};

use crate::error::{ApiError, Kind};
use crate::{AppState, sessions};

/// The key behind a request. In the request's extensions once it is known.
#[derive(Debug, Clone)]
pub struct Caller {
    pub credential: CredentialId,
    pub principal: PrincipalId,
    pub org: OrgId,
    pub read_only: bool,
    /// Sees everything of the organization; else only what it made.
    pub account_wide: bool,
    /// It asks with the token of a session, which reaches one sandbox, not with a key.
    pub session: Option<Arc<sessions::Access>>,
}

impl Caller {
    /// Where its idempotency keys live.
    #[must_use]
    pub fn scope(&self) -> String {
        match &self.session {
            Some(access) => format!("session:{}", access.session),
            None if self.account_wide => format!("org:{}", self.org),
            None => format!("key:{}", self.credential),
        }
    }

    /// Refuses a change to a key that may only read.
    pub fn may(&self, method: &Method) -> Result<(), ApiError> {
        if self.read_only && !method.is_safe() {
            return Err(ApiError::new(Kind::Forbidden, "This key may only read.")
                .hint("Use a key that was made without --read-only."));
        }
        Ok(())
    }

    /// What this key made, with whatever id. A session reaches its sandbox, which [`AppState::reach`] knows, and nothing
    /// that is asked for in another way.
    #[must_use]
    pub fn reaches(&self, maker: CredentialId) -> bool {
        self.session.is_none() && (self.account_wide || self.credential == maker)
    }
}

/// Callers looked up a moment ago.
#[derive(Default)]
pub(crate) struct KnownCallers(Mutex<HashMap<[u8; 32], Known>>);

struct Known {
    caller: Caller,
    epoch: u64,
    at: Instant,
}

/// Covers a process that was killed between revoking a key and saying so.
const KNOWN_FOR: Duration = Duration::from_secs(1);
const MOST_KNOWN: usize = 1024;

impl KnownCallers {
    fn table(&self) -> std::sync::MutexGuard<'_, HashMap<[u8; 32], Known>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, hash: &[u8; 32], epoch: u64) -> Option<Caller> {
        let table = self.table();
        let known = table.get(hash)?;
        (known.epoch == epoch && known.at.elapsed() < KNOWN_FOR).then(|| known.caller.clone())
    }

    fn put(&self, hash: [u8; 32], epoch: u64, caller: Caller) {
        let mut table = self.table();
        if table.len() >= MOST_KNOWN {
            table.clear();
        }
        table.insert(hash, Known { caller, epoch, at: Instant::now() });
    }
}

/// What is stored of a key.
#[must_use]
pub(crate) fn hash(key: &str) -> [u8; 32] {
    let mut hash = [0; 32];
    hash.copy_from_slice(digest(&SHA256, key.as_bytes()).as_ref());
    hash
}

/// The token of a session, if it is one that is said.
pub(crate) fn session_token(said: Option<&str>) -> Option<&str> {
    let (scheme, token) = said?.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && token.starts_with(sessions::PREFIX)).then_some(token)
}

pub(crate) async fn authenticate(app: &AppState, said: Option<&str>) -> Result<Caller, ApiError> {
    let refused = |message: &str| {
        ApiError::new(Kind::Unauthorized, message)
            .hint("Send `Authorization: Bearer <key>`; the owner's key is in the server's data directory.")
    };
    let said = said.ok_or_else(|| refused("This call needs an API key."))?;
    let (scheme, key) = said.split_once(' ').unwrap_or((said, ""));
    if !scheme.eq_ignore_ascii_case("bearer") {
        return Err(refused("The key must be sent as a bearer token."));
    }
    let key = key.trim();
    let unknown = || refused("This API key is not known here, or was revoked.");
    if !key.starts_with(crate::keys::PREFIX) {
        return Err(unknown());
    }
    let hash = hash(key);
    // Before the look-up: a change that comes in between makes what was found stale at once.
    let epoch = app.store().credential_epoch();
    if let Some(caller) = epoch.and_then(|epoch| app.callers().get(&hash, epoch)) {
        return Ok(caller);
    }
    let found = app.store().credential_by_hash(hash).await;
    let row = found.map_err(|error| ApiError::internal("looking up a key", error))?.ok_or_else(unknown)?;
    let caller = Caller {
        credential: row.id,
        principal: row.principal,
        org: app.org(),
        read_only: row.read_only,
        // A key that may only read reads the records of the whole account.
        account_wide: row.account_wide || row.read_only,
        session: None,
    };
    if let Some(epoch) = epoch {
        app.callers().put(hash, epoch, caller.clone());
    }
    Ok(caller)
}
