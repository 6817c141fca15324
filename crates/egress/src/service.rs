//! The gate: the rules of each sandbox, and every connection that is open under them.
//!
//! Rules are looked at under one lock with what they let through: a connection is entered only if the rules of that
//! moment let it, and a change of rules looks at every connection that is entered. So none slips in between.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use runtime_model::SandboxId;
use runtime_model::network::{Cidr, Host};
use runtime_proto::channel::Stream;
use runtime_proto::egress::{DecisionPage, Egress, EgressError, Rules};
use runtime_proto::guest::{Flow, Relay};
use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::judge::{self, Destination, Permit, Reason, Refusal};
use crate::ledger::Ledger;
use crate::pipe::pipe;
use crate::proxy;
use crate::resolve::{Resolve, System};
use crate::sniff::Sniff;

/// New connections a second of one sandbox, and how many may come at once after a quiet time.
const NEW_PER_SECOND: u32 = 200;
const BURST: u32 = 400;
/// Names of one sandbox looked up at once.
const LOOKUPS: usize = 16;
/// How long a connection waits where no rules are in place yet.
const RULES_PATIENCE: Duration = Duration::from_secs(5);
/// How long a refused guest may take to read why.
const LINGER: Duration = Duration::from_secs(2);
/// Connections that new rules refuse end by themselves as soon as they are looked at; this only catches a fault.
const CUT_LIMIT: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// Ranges that the operator has declared public.
    pub public: Vec<Cidr>,
}

/// [`Egress`] in this process.
#[derive(Clone)]
pub struct Gate {
    shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) settings: Settings,
    pub(crate) resolver: Arc<dyn Resolve>,
    sandboxes: Mutex<HashMap<SandboxId, Arc<Sandbox>>>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Gate {
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self::with_resolver(settings, Arc::new(System::default()))
    }

    #[must_use]
    pub fn with_resolver(settings: Settings, resolver: Arc<dyn Resolve>) -> Self {
        let shared = Shared {
            settings,
            resolver,
            sandboxes: Mutex::default(),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Cuts everything and waits until it has ended.
    pub async fn close(&self) {
        self.shared.stop.cancel();
        self.shared.tasks.close();
        self.shared.tasks.wait().await;
    }

    /// Runs a task that ends with the gate.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let stop = self.shared.stop.clone();
        self.shared.tasks.spawn(async move {
            tokio::select! {
                () = task => {}
                () = stop.cancelled() => {}
            }
        });
    }

    fn known(&self, id: SandboxId) -> Option<Arc<Sandbox>> {
        self.shared.sandboxes.lock().unwrap_or_else(PoisonError::into_inner).get(&id).cloned()
    }

    fn sandbox(&self, id: SandboxId) -> Arc<Sandbox> {
        self.shared.sandboxes.lock().unwrap_or_else(PoisonError::into_inner).entry(id).or_default().clone()
    }
}

#[async_trait]
impl Egress for Gate {
    async fn arm(&self, id: SandboxId, rules: Rules) -> Result<(), EgressError> {
        self.sandbox(id).arm(rules, &self.shared.settings.public).await;
        Ok(())
    }

    async fn disarm(&self, id: SandboxId) {
        if let Some(sandbox) = self.known(id) {
            sandbox.disarm().await;
        }
    }

    async fn forget(&self, id: SandboxId) {
        self.disarm(id).await;
        self.shared.sandboxes.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
    }

    fn armed(&self, id: SandboxId) -> Option<Rules> {
        self.known(id)?.rules()
    }

    fn serve(&self, id: SandboxId, flow: Flow, stream: Stream) {
        let sandbox = self.sandbox(id);
        let Ok(Relay::Proxy) = Relay::try_from(flow.relay) else { return };
        let (shared, cut) = (self.shared.clone(), CancellationToken::new());
        let stop = shared.stop.clone();
        self.shared.tasks.spawn(async move {
            let (io, carry) = pipe(stream);
            let served = proxy::serve(shared, sandbox, flow, io, cut.clone());
            tokio::pin!(carry);
            tokio::select! {
                biased;
                // Rules that changed, or the end: nothing more passes.
                () = cut.cancelled() => {}
                () = stop.cancelled() => {}
                // The guest's end is gone.
                () = &mut carry => {}
                () = served => {
                    // What was said last still has to arrive.
                    let _ = tokio::time::timeout(LINGER, carry).await;
                }
            }
        });
    }

    fn open(&self, id: SandboxId) -> usize {
        self.known(id).map_or(0, |sandbox| sandbox.state().passes.len())
    }

    async fn decisions(&self, id: SandboxId, before: Option<u64>, limit: usize) -> DecisionPage {
        self.known(id).map_or_else(DecisionPage::default, |sandbox| sandbox.ledger.page(before, limit))
    }
}

pub(crate) struct Sandbox {
    state: Mutex<State>,
    /// Names that are being looked up for it: a slow one must not take the host's turns from others.
    pub(crate) lookups: Semaphore,
    pub(crate) ledger: Ledger,
    /// A pass was given back.
    left: Notify,
    /// There are new rules.
    changed: Notify,
}

impl Default for Sandbox {
    fn default() -> Self {
        let lookups = Semaphore::new(LOOKUPS);
        Self {
            state: Mutex::default(),
            lookups,
            ledger: Ledger::default(),
            left: Notify::new(),
            changed: Notify::new(),
        }
    }
}

#[derive(Default)]
struct State {
    rules: Option<Rules>,
    passes: HashMap<u64, Passed>,
    next: u64,
    pace: Pace,
}

/// A connection under the rules.
struct Passed {
    to: Destination,
    address: IpAddr,
    inside: Option<Sniff>,
    cut: CancellationToken,
}

impl Sandbox {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn rules(&self) -> Option<Rules> {
        self.state().rules.clone()
    }

    /// The same, once they are there: after a restart a guest may be faster than its rules.
    pub(crate) async fn rules_soon(&self) -> Option<Rules> {
        let armed = async {
            loop {
                let changed = self.changed.notified();
                tokio::pin!(changed);
                // Before looking: rules that come in between wake it.
                changed.as_mut().enable();
                if let Some(rules) = self.rules() {
                    return rules;
                }
                changed.await;
            }
        };
        tokio::time::timeout(RULES_PATIENCE, armed).await.ok()
    }

    /// Whether one more may come now.
    pub(crate) fn may_come(&self) -> bool {
        self.state().pace.take(Instant::now())
    }

    async fn arm(&self, rules: Rules, public: &[Cidr]) {
        let cut = {
            let mut state = self.state();
            if state.rules.as_ref().is_some_and(|held| held.version > rules.version) {
                return;
            }
            let refused = |passed: &Passed| judged(&rules, passed, public).is_err();
            let cut: Vec<u64> = state.passes.iter().filter(|(_, passed)| refused(passed)).map(|(id, _)| *id).collect();
            state.rules = Some(rules);
            cut
        };
        self.changed.notify_waiters();
        self.cut(cut).await;
    }

    async fn disarm(&self) {
        let all = {
            let mut state = self.state();
            state.rules = None;
            state.passes.keys().copied().collect()
        };
        self.cut(all).await;
    }

    /// Ends these, and returns once none of them moves a byte any more.
    async fn cut(&self, mut ids: Vec<u64>) {
        for passed in ids.iter().filter_map(|id| self.state().passes.get(id).map(|passed| passed.cut.clone())) {
            passed.cancel();
        }
        let gone = async {
            loop {
                let left = self.left.notified();
                tokio::pin!(left);
                // Before looking: one that leaves in between wakes it.
                left.as_mut().enable();
                {
                    let state = self.state();
                    ids.retain(|id| state.passes.contains_key(id));
                }
                if ids.is_empty() {
                    return;
                }
                left.await;
            }
        };
        if tokio::time::timeout(CUT_LIMIT, gone).await.is_err() {
            tracing::error!("connections that new rules refuse did not end in time");
        }
    }

    /// Enters a connection to an address, if the rules of this moment let it pass.
    pub(crate) fn enter(
        self: &Arc<Self>,
        to: &Destination,
        address: IpAddr,
        cut: &CancellationToken,
        public: &[Cidr],
    ) -> Result<(Pass, Permit, u64), Refusal> {
        let mut state = self.state();
        let rules = state.rules.clone().ok_or_else(|| Refusal::new(Reason::NotReady))?;
        let passed = Passed { to: to.clone(), address, inside: None, cut: cut.clone() };
        let permit = judged(&rules, &passed, public)?;
        let id = state.next;
        state.next += 1;
        state.passes.insert(id, passed);
        Ok((Pass { sandbox: self.clone(), id }, permit, rules.version))
    }
}

/// What the rules say of a connection as it is.
fn judged(rules: &Rules, passed: &Passed, public: &[Cidr]) -> Result<Permit, Refusal> {
    let permit = judge::by_name(&rules.network, &passed.to)?;
    judge::by_addresses(&rules.network, &passed.to, &[passed.address], public)?;
    match &passed.inside {
        Some(Sniff::Tls(Some(host)) | Sniff::Http(Some(host))) => {
            judge::same_name(&rules.network, &passed.to.host, host)?;
        }
        Some(Sniff::Broken(why)) if rules.network.has_rules() => {
            let rule = Some((*why).to_owned());
            return Err(Refusal { reason: Reason::NameMismatch, rule, address: Some(passed.address) });
        }
        Some(Sniff::Http(None) | Sniff::Tls(None)) if hides_its_name(rules, &passed.to.host) => {
            let rule = Some("it names no host".to_owned());
            return Err(Refusal { reason: Reason::NameMismatch, rule, address: Some(passed.address) });
        }
        Some(_) | None => {}
    }
    Ok(permit)
}

/// Without a name a server gives what it gives to everybody, which under a list of names may be another's.
fn hides_its_name(rules: &Rules, judged: &Host) -> bool {
    matches!(judged, Host::Name(_)) && !rules.network.allow.is_empty()
}

/// A connection that is under the rules as long as this lives.
pub(crate) struct Pass {
    sandbox: Arc<Sandbox>,
    id: u64,
}

impl Pass {
    /// Notes what the connection says about itself; an error if the rules do not let it say so.
    pub(crate) fn says(&self, found: Sniff, public: &[Cidr]) -> Result<(), Refusal> {
        let mut state = self.sandbox.state();
        let rules = state.rules.clone().ok_or_else(|| Refusal::new(Reason::NotReady))?;
        let Some(passed) = state.passes.get_mut(&self.id) else { return Err(Refusal::new(Reason::NotReady)) };
        passed.inside = Some(found);
        judged(&rules, passed, public).map(drop)
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        self.sandbox.state().passes.remove(&self.id);
        self.sandbox.left.notify_waiters();
    }
}

/// So many at once, and then so many a second.
#[derive(Default)]
struct Pace {
    used: f64,
    looked: Option<Instant>,
}

impl Pace {
    fn take(&mut self, now: Instant) -> bool {
        let since = self.looked.map_or(Duration::ZERO, |looked| now.saturating_duration_since(looked));
        self.looked = Some(now);
        self.used = (self.used - since.as_secs_f64() * f64::from(NEW_PER_SECOND)).max(0.0);
        let free = self.used + 1.0 <= f64::from(BURST);
        if free {
            self.used += 1.0;
        }
        free
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pace_lets_a_burst_through_and_then_so_many_a_second() {
        let (mut pace, start) = (Pace::default(), Instant::now());
        assert_eq!((0..1000).filter(|_| pace.take(start)).count(), BURST as usize);
        let later = start + Duration::from_millis(500);
        assert_eq!((0..1000).filter(|_| pace.take(later)).count(), NEW_PER_SECOND as usize / 2);
    }
}
