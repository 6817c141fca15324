//! What is done when a sandbox is out of memory: its largest process ends, the sandbox goes on.
//!
//! The kernel has stopped everything in the sandbox's group, its agent too. So the limit is raised a little, the agent is
//! asked to end the largest process, and the next, until the limit can go back. What allocates on meanwhile runs into the
//! raised limit, and is given a little more, up to a point; a sandbox that does not get below its limit then cannot be
//! helped.

use std::time::Duration;

use runtime_host::cgroup::{CgroupError, Group};
use runtime_proto::guest::{Ask, Nothing, Request, Tell};
use runtime_proto::node::GuestStream;
use tokio::time::Instant;

use crate::link::Asker;

const RAISE: u64 = 80 << 20;
/// How far above its limit a sandbox may get while it is being relieved.
const MOST: u64 = 8 * RAISE;
/// A bomb of many small processes takes many to end.
const MAX_KILLS: usize = 512;
const MAX_SILENCES: usize = 4;
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// For the memory of one process to come back, before the next one is ended.
const RETURN_LIMIT: Duration = Duration::from_millis(250);
const LOOK: Duration = Duration::from_millis(10);
/// So close to the raised limit, the sandbox stands still again.
const CLOSE: u64 = 8 << 20;

#[derive(Debug, thiserror::Error)]
pub(crate) enum ShortageError {
    #[error("its memory limit cannot be moved")]
    Group(#[from] CgroupError),
    #[error("its memory did not come back after {killed} processes were ended; its agent said last: {said}")]
    Hopeless { killed: usize, said: String },
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Relief {
    /// Names of the processes that were ended, as the guest calls them.
    pub(crate) killed: Vec<String>,
}

/// Returns once the sandbox is back below `limit`. One that has helped itself meanwhile loses nothing.
pub(crate) async fn relieve(group: &Group, limit: u64, asker: &Asker) -> Result<Relief, ShortageError> {
    let mut relief = Relief::default();
    // The limit may be the raised one of an attempt that was not finished.
    if !group.is_short_of_memory()? && back_to(group, limit).await {
        return Ok(relief);
    }
    let (mut raised, mut silences) = (RAISE, 0);
    let mut said = String::from("nothing");
    group.set_memory_limit(limit.saturating_add(raised))?;
    while relief.killed.len() < MAX_KILLS && silences < MAX_SILENCES {
        match kill_largest(asker).await {
            Ok(name) => relief.killed.push(name),
            Err(text) => {
                said = text;
                silences += 1;
            }
        }
        if back_to(group, limit).await {
            return Ok(relief);
        }
        if group.memory_usage()? + CLOSE > limit.saturating_add(raised) && raised < MOST {
            raised += RAISE;
            group.set_memory_limit(limit.saturating_add(raised))?;
        }
    }
    Err(ShortageError::Hopeless { killed: relief.killed.len(), said })
}

async fn kill_largest(asker: &Asker) -> Result<String, String> {
    let answer = async {
        let stream = asker.ask(Request::new(Ask::KillLargest(Nothing {}))).await.map_err(|e| e.to_string())?;
        match GuestStream::new(stream).only().await.map_err(|e| e.to_string())? {
            Tell::Killed(killed) => Ok(killed.name),
            _ => Err("something else than was asked".to_owned()),
        }
    };
    tokio::time::timeout(ANSWER_LIMIT, answer).await.map_err(|_| "nothing in time".to_owned())?
}

/// A killed process gives its memory back in the background. Lowering the limit makes the kernel drop what it only caches,
/// and is refused while too much is in real use.
async fn back_to(group: &Group, limit: u64) -> bool {
    let end = Instant::now() + RETURN_LIMIT;
    loop {
        match group.set_memory_limit(limit) {
            Ok(()) => return true,
            Err(error) if Instant::now() > end => {
                tracing::debug!(%error, "the memory limit does not go back yet");
                return false;
            }
            Err(_) => tokio::time::sleep(LOOK).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use newtype_uuid::GenericUuid;
    use runtime_host::cgroup::{self, Limits};
    use runtime_model::SandboxId;

    use super::*;
    use crate::driver::{Dial, DriverError, Identity, Reader, Writer};
    use crate::link::Link;
    use crate::prepare::CGROUP_PARENT;

    struct Nobody;

    impl Dial for Nobody {
        fn dial(&self) -> Result<(Reader, Writer), DriverError> {
            Err(DriverError::new("dial", "nobody", "there is no machine"))
        }
    }

    /// Its agent is not even asked; and a limit that was left raised is put back.
    #[tokio::test]
    async fn who_is_no_longer_short_loses_nothing() {
        let limit = 64 << 20;
        let limits = Limits { memory_bytes: limit, cpu_quota_millis: 1000, cpu_floor_millis: 100, pids: 16 };
        let name = format!("shortage-test-{}", std::process::id());
        let group = Group::create(&cgroup::detect().unwrap(), CGROUP_PARENT, &name, &limits).unwrap();
        group.set_memory_limit(limit + RAISE).unwrap();
        let identity = Identity { hostname: String::new(), generation: 1, max_user_processes: 1, memory_bytes: limit };
        let id = SandboxId::from_untyped_uuid(uuid::Uuid::from_u128(1));
        let (_link, asker) = Link::new(id, identity, Arc::new(Nobody), Arc::new(crate::NoWayOut));
        let relief = relieve(&group, limit, &asker).await;
        let limit_after = group.memory_limit();
        group.remove(Duration::from_secs(5)).unwrap();
        assert_eq!(relief.unwrap(), Relief::default());
        assert_eq!(limit_after.unwrap(), limit);
    }
}
