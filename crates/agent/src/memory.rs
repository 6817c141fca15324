//! Memory is short: the largest process goes, never the sandbox.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use runtime_proto::guest::{ErrorCode, GuestError, Killed, Tell};

use crate::serve::Answer;
use crate::{Agent, tree};

const SIGKILL: i32 = 9;
const PAGE: u64 = 4096;
/// The deepest tree that is climbed to find whose process it was.
const MAX_DEPTH: usize = 1000;

pub(crate) async fn kill_largest(agent: &Arc<Agent>) -> Answer {
    let found = tokio::task::spawn_blocking({
        let agent = agent.clone();
        move || {
            let own = rustix::process::getpid().as_raw_nonzero().get();
            let below = tree::below(own, &|_| false).into_iter();
            let candidates = below.filter(|pid| !agent.reaper.is_runner(*pid));
            let sized = candidates.filter_map(|pid| tree::stat(pid).map(|stat| (pid, stat)));
            let (pid, stat) = sized.filter(|(_, stat)| stat.state != 'Z').max_by_key(|(_, stat)| stat.rss_pages)?;
            // Whose it is must be looked up while it is there.
            let owner = owner(&agent, pid);
            tree::signal(pid, SIGKILL).then_some((pid, stat, owner))
        }
    });
    let Ok(Some((pid, stat, owner))) = found.await else {
        return Err(GuestError::new(ErrorCode::Internal, "memory is short, and there is no process to end").into());
    };
    if let Some(proc) = owner {
        proc.state.send_modify(|state| state.oom_kills += 1);
    }
    Ok(Tell::Killed(Killed { pid, name: stat.name, rss_bytes: stat.rss_pages * PAGE }))
}

/// Whether the kernel has ended a process for want of memory since this was last asked. Never where the host does that
/// for it.
pub(crate) fn kernel_killed() -> bool {
    static SEEN: AtomicU64 = AtomicU64::new(0);
    let counters = tree::read("vmstat", 64 * 1024).unwrap_or_default();
    let count = counters.lines().find_map(|line| line.strip_prefix("oom_kill "));
    let now = count.and_then(|count| count.trim().parse().ok()).unwrap_or(0);
    now > SEEN.fetch_max(now, Ordering::Relaxed)
}

/// The process in whose tree `pid` is. Walks up /proc.
pub(crate) fn owner(agent: &Agent, mut pid: i32) -> Option<Arc<crate::process::Proc>> {
    for _ in 0..MAX_DEPTH {
        let parent = tree::stat(pid)?.parent;
        if agent.reaper.is_runner(parent) {
            return agent.table.by_runner(parent);
        }
        if parent <= 1 {
            return None;
        }
        pid = parent;
    }
    None
}
