//! A host without egress: nothing leaves any sandbox.

use async_trait::async_trait;
use runtime_model::SandboxId;
use runtime_proto::channel::Stream;
use runtime_proto::egress::{DecisionPage, Egress, EgressError, Rules};
use runtime_proto::guest::Flow;

/// Takes rules that let nothing out, and refuses all others.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoWayOut;

#[async_trait]
impl Egress for NoWayOut {
    async fn arm(&self, _: SandboxId, rules: Rules) -> Result<(), EgressError> {
        if rules.network.allows_anything() {
            return Err(EgressError::Down("this host was set up without a way out".to_owned()));
        }
        Ok(())
    }

    async fn disarm(&self, _: SandboxId) {}

    async fn forget(&self, _: SandboxId) {}

    fn armed(&self, _: SandboxId) -> Option<Rules> {
        Some(Rules::closed())
    }

    /// Dropping it closes it.
    fn serve(&self, _: SandboxId, _: Flow, _: Stream) {}

    fn open(&self, _: SandboxId) -> usize {
        0
    }

    async fn decisions(&self, _: SandboxId, _: Option<u64>, _: usize) -> DecisionPage {
        DecisionPage::default()
    }
}
