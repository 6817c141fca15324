//! Machines that stand ready for whoever asks next.
//!
//! A spare is a machine like any other, with an id, a disk and a task of its own, that belongs to nobody and is let out
//! nowhere. A create takes a spare's id for its sandbox; starting that sandbox is then a change of rules and a greeting
//! (`actor/spare.rs`). Which sizes are kept ready follows what was asked for lately. They are made one at a time, while
//! nobody waits for a start, and only where the host has memory to spare.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use runtime_model::{SandboxId, Shape};
use runtime_proto::egress::Rules;
use runtime_proto::node::{Disk, NodeError, Order};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::actor::{Actor, Command, Handle, Reply, Stop};
use crate::host_state::HostState;

/// No start for so long: then it disturbs nobody to make one.
const QUIET: Duration = Duration::from_millis(300);
/// Where starts never cease, one is made all the same this often.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between looks at what has become of them.
const LOOK: Duration = Duration::from_secs(5);
/// After one that could not be made.
const TROUBLE: Duration = Duration::from_secs(10);
/// What was asked for lately.
const REMEMBERED: usize = 16;

/// How many machines stand ready, and what they may take up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpareLimits {
    pub most: usize,
    /// Memory of the host that all of them together may use; one more is made as long as they use less.
    pub memory_mib: u64,
}

impl SpareLimits {
    pub const NONE: Self = Self { most: 0, memory_mib: 0 };

    /// A twentieth of the host's memory; none on a small host. One that is emulated is never quite idle: one at most.
    #[must_use]
    pub fn of_host(memory_mib: u64, emulated: bool) -> Self {
        let most = usize::try_from(memory_mib / 4096).unwrap_or(usize::MAX).min(if emulated { 1 } else { 4 });
        Self { most, memory_mib: memory_mib / 20 }
    }
}

pub(crate) type Actors = Arc<Mutex<HashMap<SandboxId, Handle>>>;

pub(crate) struct Spares {
    state: Arc<HostState>,
    actors: Actors,
    tasks: TaskTracker,
    limits: SpareLimits,
    stock: Mutex<Stock>,
    changed: Notify,
}

struct Stock {
    ready: Vec<(SandboxId, Shape)>,
    /// Taken for sandboxes that are not started yet.
    lent: HashMap<SandboxId, Shape>,
    /// On its way to being ready, or being removed.
    hidden: HashSet<SandboxId>,
    asked: VecDeque<Shape>,
}

#[derive(Debug, PartialEq, Eq)]
enum Next {
    Make(Shape),
    Drop(SandboxId),
    Rest,
}

impl Spares {
    /// `first` is what is made ready before anybody has asked.
    pub(crate) fn new(
        state: Arc<HostState>,
        actors: Actors,
        tasks: TaskTracker,
        limits: SpareLimits,
        first: Shape,
    ) -> Arc<Self> {
        let stock =
            Stock { ready: Vec::new(), lent: HashMap::new(), hidden: HashSet::new(), asked: VecDeque::from([first]) };
        Arc::new(Self { state, actors, tasks, limits, stock: Mutex::new(stock), changed: Notify::new() })
    }

    fn stock(&self) -> std::sync::MutexGuard<'_, Stock> {
        self.stock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn handle(&self, id: SandboxId) -> Option<Handle> {
        self.actors.lock().unwrap_or_else(PoisonError::into_inner).get(&id).cloned()
    }

    /// One of that shape, which is the caller's until it is started or given back.
    pub(crate) fn take(&self, shape: &Shape) -> Option<SandboxId> {
        if self.limits.most == 0 {
            return None;
        }
        let stands = |id| self.handle(id).is_some_and(|handle| handle.spare.borrow().is_some());
        let mut stock = self.stock();
        if stock.asked.len() == REMEMBERED {
            stock.asked.pop_front();
        }
        stock.asked.push_back(*shape);
        // One that has ended meanwhile is left for the next look.
        let found = stock.ready.iter().position(|(id, made)| made == shape && stands(*id));
        let taken = found.map(|at| stock.ready.swap_remove(at));
        if let Some((id, shape)) = taken {
            stock.lent.insert(id, shape);
        }
        drop(stock);
        self.changed.notify_one();
        taken.map(|(id, _)| id)
    }

    pub(crate) fn give_back(&self, id: SandboxId) {
        let mut stock = self.stock();
        if let Some(shape) = stock.lent.remove(&id) {
            stock.ready.push((id, shape));
        }
    }

    /// It is a sandbox's from now on, or gone.
    pub(crate) fn used(&self, id: SandboxId) {
        self.stock().lent.remove(&id);
    }

    /// All that are nobody's sandbox.
    pub(crate) fn all(&self) -> HashSet<SandboxId> {
        let stock = self.stock();
        let ready = stock.ready.iter().map(|(id, _)| id);
        ready.chain(stock.lent.keys()).chain(&stock.hidden).copied().collect()
    }

    /// Keeps machines ready until it is dropped.
    pub(crate) async fn keep(self: Arc<Self>) {
        if self.limits.most == 0 {
            return;
        }
        loop {
            self.forget_ended().await;
            let worked = match self.next() {
                Next::Rest => None,
                Next::Drop(id) => Some(self.withdraw(id).await),
                Next::Make(shape) => {
                    self.quiet().await;
                    Some(self.make(shape).await)
                }
            };
            match worked {
                Some(Ok(())) => {}
                Some(Err(error)) => {
                    tracing::warn!(%error, "no machine is made ready for now");
                    tokio::time::sleep(TROUBLE).await;
                }
                None => {
                    let _ = tokio::time::timeout(LOOK, self.changed.notified()).await;
                }
            }
        }
    }

    /// Removes all that are nobody's, those under way too. What is left of one that resists goes with the next start.
    pub(crate) async fn discard(&self) {
        let all = self.stock().withdraw_all();
        for removed in futures_util::future::join_all(all.into_iter().map(|id| self.remove(id))).await {
            if let Err(error) = removed {
                tracing::warn!(%error, "a machine that stood ready goes with the next start");
            }
        }
    }

    fn next(&self) -> Next {
        let (room, within_budget) = (self.state.has_memory_to_spare(), self.used_mib() < self.limits.memory_mib);
        self.stock().next(self.limits.most, room, within_budget)
    }

    /// Returns once nobody has waited for a start for a while.
    async fn quiet(&self) {
        let mut asked = self.state.asked.subscribe();
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end && tokio::time::timeout(QUIET, asked.changed()).await.is_ok() {}
    }

    fn used_mib(&self) -> u64 {
        let ready: Vec<SandboxId> = self.stock().ready.iter().map(|(id, _)| *id).collect();
        let of = |id| self.handle(id)?.spare.borrow().clone()?.memory_usage().ok();
        ready.into_iter().filter_map(of).sum::<u64>() >> 20
    }

    async fn make(&self, shape: Shape) -> Result<(), NodeError> {
        let id = SandboxId::new_v4();
        let rules = Rules::closed();
        let order = Order { id, shape, hostname: Order::hostname_of(id), disk: Disk::New, rules };
        self.stock().hidden.insert(id);
        let (actor, handle) = Actor::new(id, self.state.clone(), None);
        self.tasks.spawn(actor.run());
        let commands = handle.commands.clone();
        self.actors.lock().unwrap_or_else(PoisonError::into_inner).insert(id, handle);
        match tell(&commands, Command::Prepare(order)).await {
            Ok(()) => {
                let mut stock = self.stock();
                stock.hidden.remove(&id);
                stock.ready.push((id, shape));
                Ok(())
            }
            Err(error) => {
                if let Err(left) = self.remove(id).await {
                    tracing::warn!(spare = %id, error = %left, "what is left of a machine that was not made stays for now");
                }
                Err(error)
            }
        }
    }

    async fn forget_ended(&self) {
        let ready: Vec<SandboxId> = self.stock().ready.iter().map(|(id, _)| *id).collect();
        for id in ready {
            let stands = self.handle(id).is_some_and(|handle| handle.spare.borrow().is_some());
            if !stands && let Err(error) = self.withdraw(id).await {
                tracing::warn!(spare = %id, %error, "what is left of a machine that stood ready stays for now");
            }
        }
    }

    /// Removes one, unless it was taken meanwhile: then it is somebody's, and so is its disk.
    async fn withdraw(&self, id: SandboxId) -> Result<(), NodeError> {
        if self.stock().withdraw(id) { self.remove(id).await } else { Ok(()) }
    }

    /// Of one that is hidden: nobody can take it.
    async fn remove(&self, id: SandboxId) -> Result<(), NodeError> {
        if let Some(handle) = self.handle(id) {
            tell(&handle.stops, Stop::Remove).await?;
            self.actors.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
        }
        self.stock().hidden.remove(&id);
        Ok(())
    }
}

async fn tell<T>(queue: &mpsc::Sender<(T, Reply)>, what: T) -> Result<(), NodeError> {
    let gone = || NodeError::Busy("its task has ended".to_owned());
    let (reply, answer) = oneshot::channel();
    queue.send((what, reply)).await.map_err(|_| gone())?;
    answer.await.map_err(|_| gone())?
}

impl Stock {
    /// Hides one that stands ready, so that nobody takes it. False: it does not, or is somebody's already.
    fn withdraw(&mut self, id: SandboxId) -> bool {
        let Some(at) = self.ready.iter().position(|(one, _)| *one == id) else { return false };
        self.ready.swap_remove(at);
        self.hidden.insert(id)
    }

    fn withdraw_all(&mut self) -> Vec<SandboxId> {
        let ready = std::mem::take(&mut self.ready);
        self.hidden.extend(ready.into_iter().map(|(id, _)| id));
        self.hidden.iter().copied().collect()
    }

    fn next(&self, most: usize, room: bool, within_budget: bool) -> Next {
        if !room {
            return self.ready.last().map_or(Next::Rest, |(id, _)| Next::Drop(*id));
        }
        let shares = self.shares(most);
        let there = |shape: &Shape| self.ready.iter().filter(|(_, made)| made == shape).count();
        let Some((missing, _)) = shares.iter().find(|(shape, share)| there(shape) < *share) else { return Next::Rest };
        if self.ready.len() < most && within_budget {
            return Next::Make(*missing);
        }
        let share = |shape: &Shape| shares.iter().find(|(one, _)| one == shape).map_or(0, |(_, share)| *share);
        let surplus = self.ready.iter().find(|(_, shape)| there(shape) > share(shape));
        surplus.map_or(Next::Rest, |(id, _)| Next::Drop(*id))
    }

    /// How many of each shape, most asked for first.
    fn shares(&self, most: usize) -> Vec<(Shape, usize)> {
        let mut counts: Vec<(Shape, usize)> = Vec::new();
        for shape in self.asked.iter().rev() {
            match counts.iter_mut().find(|(one, _)| one == shape) {
                Some((_, count)) => *count += 1,
                None => counts.push((*shape, 1)),
            }
        }
        counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let mut left = most;
        let all = self.asked.len().max(1);
        for (_, count) in &mut counts {
            *count = (most * *count).div_ceil(all).min(left);
            left -= *count;
        }
        counts.retain(|(_, count)| *count > 0);
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stock(asked: &[u64], ready: &[u64]) -> Stock {
        let shape = |memory_mib: &u64| Shape { memory_mib: *memory_mib, ..Shape::default() };
        Stock {
            ready: ready.iter().map(|memory| (SandboxId::new_v4(), shape(memory))).collect(),
            lent: HashMap::new(),
            hidden: HashSet::new(),
            asked: asked.iter().map(shape).collect(),
        }
    }

    fn made(next: &Next) -> Option<u64> {
        match next {
            Next::Make(shape) => Some(shape.memory_mib),
            _ => None,
        }
    }

    #[test]
    fn what_is_asked_for_is_what_stands_ready() {
        assert_eq!(made(&stock(&[512], &[]).next(4, true, true)), Some(512));
        assert_eq!(stock(&[512], &[512; 4]).next(4, true, true), Next::Rest);
        // Three of four were small ones.
        let asked = [512, 256, 256, 256];
        let shares: Vec<_> = stock(&asked, &[]).shares(4).iter().map(|(shape, n)| (shape.memory_mib, *n)).collect();
        assert_eq!(shares, [(256, 3), (512, 1)]);
        // What is not asked for any more makes room.
        let full = stock(&asked, &[512; 4]);
        assert_eq!(full.next(4, true, true), Next::Drop(full.ready[0].0));
        assert_eq!(made(&stock(&asked, &[512; 3]).next(4, true, true)), Some(256));
    }

    #[test]
    fn more_shapes_than_places_leave_out_the_rarest() {
        let shares = stock(&[1, 2, 3, 3, 4, 5, 6], &[]).shares(2);
        assert_eq!(shares.iter().map(|(_, n)| n).sum::<usize>(), 2);
        assert_eq!(shares[0].0.memory_mib, 3);
    }

    #[test]
    fn a_host_that_is_short_of_memory_takes_them_back() {
        let low = stock(&[512], &[512, 512]);
        assert_eq!(low.next(4, false, true), Next::Drop(low.ready[1].0));
        assert_eq!(stock(&[512], &[]).next(4, false, true), Next::Rest);
        // Used up what they may use: no more, and those that stand may stay.
        assert_eq!(stock(&[512], &[512]).next(4, true, false), Next::Rest);
    }

    #[test]
    fn one_that_was_taken_is_not_withdrawn() {
        let mut stock = stock(&[512], &[512, 512]);
        let (taken, shape) = stock.ready.swap_remove(0);
        stock.lent.insert(taken, shape);
        assert!(!stock.withdraw(taken), "a sandbox would lose its machine and its disk");
        let other = stock.ready[0].0;
        assert!(stock.withdraw(other) && !stock.withdraw(other));
        assert_eq!(stock.withdraw_all(), [other]);
        assert!(stock.lent.contains_key(&taken));
    }

    #[test]
    fn small_hosts_keep_none() {
        assert_eq!(SpareLimits::of_host(2048, false), SpareLimits { most: 0, memory_mib: 102 });
        assert_eq!(SpareLimits::of_host(24 * 1024, false).most, 4);
        assert_eq!(SpareLimits::of_host(24 * 1024, true).most, 1);
    }
}
