//! Which processes are known, by id and by key, and when they are forgotten.
//!
//! The list shows the live ones and the last few that ended. Others that ended a moment ago stay reachable by id (a
//! reader may be on its way), and by key for longer (a host that died may ask again); both within a bound of bytes.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use runtime_proto::guest::{ErrorCode, GuestError, KEPT_ENDED, MAX_PROCESSES};

use super::Proc;

/// Ended processes known by id or key beyond the listed ones.
const MAX_ENDED: usize = 1024;
const MAX_ENDED_BYTES: usize = 32 * 1024 * 1024;
/// How long the full output of an ended process outlives its place in the list.
const OUTPUT_GRACE: Duration = Duration::from_secs(60);

#[derive(Default)]
pub(crate) struct Table {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    by_id: HashMap<String, Arc<Proc>>,
    by_key: HashMap<String, String>,
    /// In order of their start.
    order: Vec<String>,
    /// In order of their end.
    ended: VecDeque<(Instant, Arc<Proc>)>,
    live: usize,
}

impl Table {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters a new process, or finds the one its key already names (then `true`).
    pub(crate) fn enter(&self, proc: Proc) -> Result<(Arc<Proc>, bool), GuestError> {
        let mut inner = self.lock();
        if !proc.key.is_empty()
            && let Some(known) = inner.by_key.get(&proc.key).and_then(|id| inner.by_id.get(id))
        {
            return Ok((known.clone(), true));
        }
        if inner.by_id.contains_key(&proc.id) {
            let message = format!("starting a process: the id {} is taken", proc.id);
            return Err(GuestError::new(ErrorCode::Invalid, message));
        }
        if inner.live >= MAX_PROCESSES {
            let message = format!("starting a process: {MAX_PROCESSES} are alive already");
            return Err(GuestError::new(ErrorCode::ProcessLimit, message));
        }
        let proc = Arc::new(proc);
        inner.live += 1;
        inner.order.push(proc.id.clone());
        if !proc.key.is_empty() {
            inner.by_key.insert(proc.key.clone(), proc.id.clone());
        }
        inner.by_id.insert(proc.id.clone(), proc.clone());
        Ok((proc, false))
    }

    /// It never ran.
    pub(crate) fn withdraw(&self, proc: &Proc) {
        let mut inner = self.lock();
        inner.live -= 1;
        inner.remove(proc);
    }

    /// It ended; the oldest ended ones may be forgotten.
    pub(crate) fn ended(&self, proc: &Arc<Proc>) {
        let mut inner = self.lock();
        inner.live -= 1;
        inner.ended.push_back((Instant::now(), proc.clone()));
        inner.forget_some();
    }

    /// As if they had never been.
    pub(crate) fn forget_ended(&self) {
        let mut inner = self.lock();
        for (_, proc) in std::mem::take(&mut inner.ended) {
            inner.remove(&proc);
        }
    }

    pub(crate) fn get(&self, id: &str) -> Result<Arc<Proc>, GuestError> {
        self.lock().by_id.get(id).cloned().ok_or_else(|| {
            let shown: String = id.chars().take(64).collect();
            GuestError::new(ErrorCode::NoSuchProcess, format!("there is no process {shown}"))
        })
    }

    /// Live processes, those that left something running, and the last few that ended; oldest first.
    pub(crate) fn list(&self) -> Vec<Arc<Proc>> {
        let inner = self.lock();
        let shown = inner.ended.len().saturating_sub(KEPT_ENDED);
        let hidden = inner.ended.iter().take(shown).filter(|(_, proc)| !proc.state.borrow().tree);
        let hidden: Vec<&str> = hidden.map(|(_, proc)| proc.id.as_str()).collect();
        let hidden: std::collections::HashSet<&str> = hidden.into_iter().collect();
        let shown = inner.order.iter().filter(|id| !hidden.contains(id.as_str()));
        shown.filter_map(|id| inner.by_id.get(id).cloned()).collect()
    }

    pub(crate) fn live(&self) -> usize {
        self.lock().live
    }

    /// Ended ones of whose tree something lives on.
    pub(crate) fn left_behind(&self) -> usize {
        self.lock().ended.iter().filter(|(_, proc)| proc.state.borrow().tree).count()
    }

    /// The process whose tree hangs below this runner.
    pub(crate) fn by_runner(&self, runner: i32) -> Option<Arc<Proc>> {
        self.lock().by_id.values().find(|proc| proc.roots().contains(&runner)).cloned()
    }
}

impl Inner {
    fn remove(&mut self, proc: &Proc) {
        self.by_id.remove(&proc.id);
        if self.by_key.get(&proc.key).is_some_and(|id| *id == proc.id) {
            self.by_key.remove(&proc.key);
        }
        self.order.retain(|id| *id != proc.id);
    }

    fn forget_some(&mut self) {
        let beyond = self.ended.len().saturating_sub(KEPT_ENDED);
        for (at, proc) in self.ended.iter().take(beyond) {
            if at.elapsed() >= OUTPUT_GRACE {
                proc.output.forget();
            }
        }
        let mut weight: usize = self.ended.iter().map(|(_, proc)| proc.weight()).sum();
        let mut index = 0;
        while self.ended.len() > KEPT_ENDED && index + KEPT_ENDED < self.ended.len() {
            let (at, proc) = &self.ended[index];
            let keyless_and_old = proc.key.is_empty() && at.elapsed() >= OUTPUT_GRACE;
            if self.ended.len() <= MAX_ENDED && weight <= MAX_ENDED_BYTES && !keyless_and_old {
                break;
            }
            // What left something running stays, or nobody could end it.
            if proc.state.borrow().tree {
                index += 1;
                continue;
            }
            weight = weight.saturating_sub(proc.weight());
            if let Some((_, proc)) = self.ended.remove(index) {
                self.remove(&proc);
            }
        }
    }
}
