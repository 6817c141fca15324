//! A machine that stands still, and the writing down of its memory behind everybody's back.
//!
//! A save that fails costs nothing but room in memory: the machine stays as it is, can be woken, and is written down
//! later. One that worked is known to its task first, which decides what becomes of the machine.

use std::sync::Arc;
use std::time::Duration;

use runtime_host::cgroup::{CgroupError, Group};
use runtime_model::SandboxId;
use runtime_proto::node::NodeError;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::driver::{Frozen, Notice, Save};
use crate::host_state::{HostState, blocking, failed, new_generation};

/// Who is woken again at once is not saved at all.
const GRACE: Duration = Duration::from_millis(150);
/// Until a save that failed is tried again; twice as long each time, up to the second.
const FIRST_RETRY: Duration = Duration::from_secs(15);
const LAST_RETRY: Duration = Duration::from_secs(600);
/// A sandbox's kernel needs memory to write its memory down, and may be at its limit.
pub(crate) const HEADROOM: u64 = 256 << 20;
/// How far above its limit a sandbox stays if it does not get below it again by itself.
const SLACK: [u64; 3] = [0, 16 << 20, 64 << 20];

pub(crate) struct Standing {
    id: SandboxId,
    state: Arc<HostState>,
    pub(crate) machine: Box<dyn Frozen>,
    save: Stage,
    retry: Duration,
}

enum Stage {
    Under(Saving),
    Later(Instant),
}

struct Saving {
    number: u64,
    given_up: CancellationToken,
    task: AbortOnDropHandle<Result<(), NodeError>>,
}

/// What became of a machine that stands still.
pub(crate) enum Change {
    Notice(Notice),
    /// Its memory is on the disk under this number, and only has to be acknowledged.
    Written(u64),
}

impl Standing {
    pub(crate) fn new(id: SandboxId, state: Arc<HostState>, machine: Box<dyn Frozen>) -> Self {
        let mut standing = Self { id, state, machine, save: Stage::Later(Instant::now()), retry: FIRST_RETRY };
        standing.begin();
        standing
    }

    fn begin(&mut self) {
        let (number, given_up) = (new_generation(), CancellationToken::new());
        let (state, id, saver, group) = (self.state.clone(), self.id, self.machine.saver(), self.machine.group());
        let limit = self.machine.identity().memory_bytes;
        let stop = given_up.clone();
        let work = async move {
            let written = write(&state, id, number, saver, &group, limit, &stop).await;
            if written.is_err() {
                let abandon = move || state.saves.abandon(id, number).map_err(|e| failed("drop the save of", id, e));
                blocking(abandon).await?;
            }
            written
        };
        self.save = Stage::Under(Saving { number, given_up, task: AbortOnDropHandle::new(tokio::spawn(work)) });
    }

    /// It goes on standing still after something else was left off for: it is written down as before.
    pub(crate) fn save_again(&mut self) {
        self.save = Stage::Later(Instant::now());
    }

    /// Cancel-safe.
    pub(crate) async fn change(&mut self) -> Change {
        loop {
            let written = tokio::select! {
                biased;
                notice = self.machine.notice() => return Change::Notice(notice),
                written = next(&mut self.save) => written,
            };
            match written {
                None => self.begin(),
                Some(Ok(number)) => {
                    // Should the task not acknowledge it, it is written again.
                    self.save = Stage::Later(Instant::now() + self.retry);
                    return Change::Written(number);
                }
                Some(Err(error)) => {
                    tracing::warn!(
                        sandbox = %self.id, %error, again_in = ?self.retry,
                        "the memory of a paused sandbox could not be saved; it stays in memory and can be woken",
                    );
                    self.save = Stage::Later(Instant::now() + self.retry);
                    self.retry = (self.retry * 2).min(LAST_RETRY);
                }
            }
        }
    }

    /// The machine is to go on. What its kernel has begun to write is waited for, since it would wait for that itself; what
    /// comes after that is left off.
    pub(crate) async fn leave_off(&mut self) {
        let save = std::mem::replace(&mut self.save, Stage::Later(Instant::now() + self.retry));
        let Stage::Under(Saving { number, given_up, task }) = save else { return };
        given_up.cancel();
        // One that was done just now is not needed either.
        if matches!(task.await, Ok(Ok(()))) {
            let (state, id) = (self.state.clone(), self.id);
            let gone = blocking(move || state.saves.abandon(id, number).map_err(|e| failed("drop the save of", id, e)));
            if let Err(error) = gone.await {
                tracing::warn!(sandbox = %self.id, %error, "a save that is not needed stays on the disk for now");
            }
        }
    }
}

/// Cancel-safe: `None` when it is time for another try.
async fn next(stage: &mut Stage) -> Option<Result<u64, NodeError>> {
    match stage {
        Stage::Later(when) => {
            tokio::time::sleep_until(*when).await;
            None
        }
        Stage::Under(saving) => {
            let number = saving.number;
            Some(match (&mut saving.task).await {
                Ok(result) => result.map(|()| number),
                Err(error) => Err(failed("finish", "a save", error)),
            })
        }
    }
}

async fn write(
    state: &Arc<HostState>,
    id: SandboxId,
    number: u64,
    saver: Arc<dyn Save>,
    group: &Group,
    limit: u64,
    given_up: &CancellationToken,
) -> Result<(), NodeError> {
    let turn = async {
        tokio::time::sleep(GRACE).await;
        state.saving.acquire().await.map_err(|e| failed("save", id, e))
    };
    let Some(turn) = given_up.run_until_cancelled(turn).await else { return Err(not_wanted(id)) };
    let _turn = turn?;
    state.host.pool.room().map_err(|e| NodeError::NoRoom(e.to_string()))?;
    group.set_memory_limit(limit.saturating_add(HEADROOM)).map_err(|e| failed("give room to save to", id, e))?;
    let saves = state.saves.clone();
    let dir = blocking(move || saves.begin(id, number).map_err(|e| failed("save", id, e))).await?;
    saver.save(&dir, given_up).await.map_err(|e| failed("save", id, e))?;
    if given_up.is_cancelled() {
        return Err(not_wanted(id));
    }
    let host = state.clone();
    blocking(move || {
        host.saves.keep_disk(&host.host.pool, id, number).map_err(|e| failed("keep the disk that goes with", id, e))
    })
    .await
}

fn not_wanted(id: SandboxId) -> NodeError {
    NodeError::Busy(format!("sandbox {id} is to go on"))
}

/// After a save: back to the limit, or as near to it as what the save left in the sandbox's kernel allows.
pub(crate) fn back_to_limit(group: &Group, limit: u64) -> Result<(), CgroupError> {
    let mut last = Ok(());
    for slack in SLACK {
        last = group.set_memory_limit(limit.saturating_add(slack));
        if last.is_ok() {
            break;
        }
    }
    last
}
