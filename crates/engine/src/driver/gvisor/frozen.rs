//! A gVisor machine that stands still: how it is written down, and how it goes on.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use runtime_host::cgroup::Group;
use runtime_model::SandboxId;
use tokio_util::sync::CancellationToken;

use super::machine::GvisorMachine;
use super::{Inner, blocking, saved};
use crate::driver::{Booted, DriverError, Frozen, Identity, Notice, Save, StillFrozen};
use crate::host_state::host_name;
use crate::shim::wire::{Ask, Say};

/// A save that an earlier server began holds it up.
const THAW_LIMIT: Duration = Duration::from_secs(60);

pub(super) struct GvisorFrozen(pub(super) GvisorMachine);

struct Saver {
    inner: Arc<Inner>,
    id: SandboxId,
    identity: Identity,
}

#[async_trait]
impl Save for Saver {
    async fn save(&self, into: &Path, given_up: &CancellationToken) -> Result<(), DriverError> {
        let (inner, id, identity, into) = (self.inner.clone(), self.id, self.identity.clone(), into.to_owned());
        let given_up = given_up.clone();
        blocking(move || {
            let fail = |e: Box<dyn std::error::Error + Send + Sync>| DriverError::new("save the memory of", id, e);
            let machine = inner.living_machine(&inner.places(id))?.ok_or_else(|| fail("it has ended".into()))?;
            let state = inner.runsc.state(&host_name(id)).map_err(|e| fail(e.into()))?;
            let given_up = || given_up.is_cancelled();
            saved::write(&state.control, &into, inner.kind.clone(), machine.agent, identity, &given_up)
                .map_err(|e| fail(e.into()))
        })
        .await
    }
}

#[async_trait]
impl Frozen for GvisorFrozen {
    fn identity(&self) -> &Identity {
        self.0.identity()
    }

    fn group(&self) -> Group {
        self.0.group()
    }

    async fn notice(&mut self) -> Notice {
        self.0.notice().await
    }

    fn saver(&self) -> Arc<dyn Save> {
        Arc::new(Saver { inner: self.0.driver.inner.clone(), id: self.0.id, identity: self.0.identity.clone() })
    }

    async fn thaw(mut self: Box<Self>) -> Result<Box<dyn Booted>, StillFrozen> {
        match self.0.told(Ask::Thaw, &Say::Thawed, THAW_LIMIT).await {
            Ok(()) => {
                self.0.still = false;
                Ok(Box::new(self.0))
            }
            Err(error) => Err(StillFrozen { machine: self, error }),
        }
    }

    async fn end(self: Box<Self>) -> Result<(), DriverError> {
        Box::new(self.0).end().await
    }
}
