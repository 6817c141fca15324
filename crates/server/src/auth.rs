//! Who asks: a bearer key becomes a [`Caller`], before anything else is looked at.

use runtime_model::{CredentialId, OrgId, PrincipalId};

/// The key behind a request. In the request's extensions once it is known.
#[derive(Debug, Clone)]
pub struct Caller {
    pub credential: CredentialId,
    pub principal: PrincipalId,
    pub org: OrgId,
    pub read_only: bool,
    /// Sees everything of the organization; else only what it made.
    pub account_wide: bool,
}

impl Caller {
    /// Where its idempotency keys live.
    #[must_use]
    pub fn scope(&self) -> String {
        if self.account_wide { format!("org:{}", self.org) } else { format!("key:{}", self.credential) }
    }

    #[must_use]
    pub fn reaches(&self, maker: CredentialId) -> bool {
        self.account_wide || self.credential == maker
    }
}
