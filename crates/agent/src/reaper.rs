//! The agent's own children: runners, and whatever lost its parent.
//!
//! As long as a runner lives, orphans go to it. Only when the guest kills a runner do its processes come to us; then a
//! command's leader is waited for here, so that its true end is told and never a guess.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use runtime_host::reap::{End, Reaped, reap_any, stopped_child};
use tokio::sync::oneshot;

use crate::tree;

const SIGCONT: i32 = 18;
/// Ends that nobody asked about yet.
const REMEMBERED: usize = 4096;

#[derive(Default)]
pub(crate) struct Reaper {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    runners: HashSet<i32>,
    /// Leaders that lost their runner, and who waits for them.
    adopted: HashMap<i32, oneshot::Sender<End>>,
    /// Orphans that ended, oldest first, with how many had ended before.
    ended: VecDeque<(u64, i32, End)>,
    count: u64,
    runner_waits: HashMap<i32, oneshot::Sender<()>>,
}

impl Reaper {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a runner and knows it as one before it can be collected.
    pub(crate) fn expect_runner<E>(&self, start: impl FnOnce() -> Result<i32, E>) -> Result<i32, E> {
        let mut inner = self.lock();
        let pid = start()?;
        inner.runners.insert(pid);
        Ok(pid)
    }

    /// Where the record stands; an end from before a command started is not that command's.
    pub(crate) fn mark(&self) -> u64 {
        self.lock().count
    }

    /// Collects every child that has ended; true if a runner was among them.
    pub(crate) fn collect(&self) -> bool {
        let mut inner = self.lock();
        let mut lost_runner = false;
        while let Ok(Reaped::Child(pid, end)) = reap_any() {
            if inner.runners.remove(&pid) {
                lost_runner = true;
                if let Some(waiter) = inner.runner_waits.remove(&pid) {
                    let _ = waiter.send(());
                }
            } else if let Some(waiter) = inner.adopted.remove(&pid) {
                let _ = waiter.send(end);
            } else {
                let count = inner.count;
                inner.ended.push_back((count, pid, end));
                inner.count += 1;
                if inner.ended.len() > REMEMBERED {
                    inner.ended.pop_front();
                }
            }
        }
        // A guest that stops everything stops what runs its commands, too.
        while let Some(pid) = stopped_child() {
            if inner.runners.contains(&pid) {
                tree::signal(pid, SIGCONT);
            }
        }
        lost_runner
    }

    /// Waits until a runner has been collected: only then are its children ours.
    pub(crate) async fn runner_ended(&self, pid: i32) {
        let ended = {
            let mut inner = self.lock();
            if !inner.runners.contains(&pid) {
                return;
            }
            let (sender, receiver) = oneshot::channel();
            inner.runner_waits.insert(pid, sender);
            receiver
        };
        let _ = ended.await;
    }

    /// How a leader ended whose runner is gone; `None` if nobody can say. `mark` is from before it started.
    pub(crate) async fn leader_ended(&self, pid: i32, mark: u64) -> Option<End> {
        let end = {
            let mut inner = self.lock();
            if let Some((_, _, end)) = inner.ended.iter().rev().find(|(at, ended, _)| *ended == pid && *at >= mark) {
                return Some(*end);
            }
            // Under the lock nobody collects: a zombie of ours still has its line in /proc.
            let own = rustix::process::getpid().as_raw_nonzero().get();
            if tree::stat(pid).is_none_or(|stat| stat.parent != own) {
                return None;
            }
            let (sender, receiver) = oneshot::channel();
            inner.adopted.insert(pid, sender);
            receiver
        };
        end.await.ok()
    }

    pub(crate) fn runners(&self) -> usize {
        self.lock().runners.len()
    }

    pub(crate) fn is_runner(&self, pid: i32) -> bool {
        self.lock().runners.contains(&pid)
    }

    /// Runners, and leaders that are ours for want of one.
    pub(crate) fn kept(&self) -> HashSet<i32> {
        let inner = self.lock();
        inner.runners.iter().chain(inner.adopted.keys()).copied().collect()
    }
}
