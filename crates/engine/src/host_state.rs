//! What all sandboxes of a host share: its disks, its memory, its pace of starting, and the marks of starts under way.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use newtype_uuid::GenericUuid;
use runtime_host::cgroup::Limits;
use runtime_model::{SandboxId, Shape};
use runtime_proto::egress::Egress;
use runtime_proto::node::{Disk, NodeError, NodeEvent, Order};
use tokio::sync::{Notify, Semaphore, broadcast};
use tokio_util::sync::CancellationToken;

use crate::driver::{Driver, Identity, Plan};
use crate::prepare::PreparedHost;
use crate::saves::Saves;
use crate::snapshots::Snapshots;

/// Processes and threads of the host that one sandbox may have at most. Reaching it would end the sandbox: the limit that
/// a guest meets is inside, far below. A guest's process was measured to take up to eight; a host with the small range
/// of 32,768 numbers must survive one bad sandbox.
const HOST_PROCESSES: u64 = 16_384;
/// Memory that stays free for the host itself, in MiB, and as a part of all.
const RESERVE_MIB: u64 = 512;
const RESERVE_PART: u64 = 20;
/// What a sandbox needs to come up; counted for those that are on their way and not yet measured.
const START_MIB: u64 = 64;
const SAVES_AT_ONCE: usize = 2;

pub(crate) struct HostState {
    pub(crate) host: PreparedHost,
    pub(crate) driver: Arc<dyn Driver>,
    /// Holds every sandbox of this host to its rules.
    pub(crate) egress: Arc<dyn Egress>,
    pub(crate) events: broadcast::Sender<NodeEvent>,
    /// A start is mostly CPU: more at once than this only makes all of them late.
    pub(crate) starts: Semaphore,
    pub(crate) max_user_processes: u64,
    pub(crate) saves: Saves,
    pub(crate) snapshots: Snapshots,
    /// A save is mostly the disk's work: more at once than this only makes all of them late.
    pub(crate) saving: Semaphore,
    /// A disk made in advance may have been used up.
    pub(crate) disk_taken: Notify,
    coming_up: AtomicU64,
}

/// Counts a start until it is over.
pub(crate) struct Admitted<'a>(&'a AtomicU64);

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl HostState {
    pub(crate) fn new(
        host: PreparedHost,
        driver: Arc<dyn Driver>,
        egress: Arc<dyn Egress>,
        max_user_processes: u64,
    ) -> io::Result<Self> {
        let (events, _) = broadcast::channel(4096);
        let starts = Semaphore::new(usize::try_from(host.cores).unwrap_or(1).saturating_mul(2).clamp(4, 64));
        let saves = Saves::open(host.pool.dir()).map_err(io::Error::other)?;
        let snapshots = Snapshots::open(host.pool.dir()).map_err(io::Error::other)?;
        let state = Self {
            saves,
            snapshots,
            saving: Semaphore::new(SAVES_AT_ONCE),
            host,
            driver,
            egress,
            events,
            starts,
            max_user_processes,
            disk_taken: Notify::new(),
            coming_up: AtomicU64::new(0),
        };
        fs::create_dir_all(state.marks())?;
        Ok(state)
    }

    /// Sandboxes may be promised more memory than there is; what counts is what is in use now.
    pub(crate) fn admit(&self) -> Result<Admitted<'_>, NodeError> {
        self.host.pool.room().map_err(|e| NodeError::NoRoom(e.to_string()))?;
        let coming = self.coming_up.fetch_add(1, Ordering::AcqRel) + 1;
        let admitted = Admitted(&self.coming_up);
        let free = available_mib().map_err(|e| failed("read", "/proc/meminfo", e))?;
        let reserve = RESERVE_MIB.max(self.host.host_memory_mib / RESERVE_PART);
        if free < reserve + coming * START_MIB {
            let text = format!("{free} MiB of memory are free, of which {reserve} MiB stay with the host");
            return Err(NodeError::NoRoom(text));
        }
        Ok(admitted)
    }

    pub(crate) fn plan(&self, order: &Order, root: PathBuf) -> Plan {
        let limits = limits(&order.shape, self.host.cores);
        let identity = Identity {
            hostname: order.hostname.clone(),
            generation: new_generation(),
            max_user_processes: user_processes(self.max_user_processes, order.shape.memory_mib),
            memory_bytes: limits.memory_bytes,
        };
        Plan { id: order.id, identity, root, shape: order.shape, limits, abort: CancellationToken::new() }
    }

    /// The root of a sandbox, made or found.
    pub(crate) async fn disk(self: &Arc<Self>, order: &Order) -> Result<PathBuf, NodeError> {
        let (state, id, kind, disk_mib) = (self.clone(), order.id, order.disk, order.shape.disk_mib);
        blocking(move || {
            let name = host_name(id);
            let pool = &state.host.pool;
            if kind == Disk::Kept {
                let root =
                    pool.root(&name).map_err(|e| failed("find the disk of", id, e))?.ok_or(NodeError::DiskGone)?;
                state.driver.limit_disk(pool, &name, disk_mib).map_err(|e| failed("limit the disk of", id, e))?;
                return Ok(root);
            }
            if pool.root(&name).map_err(|e| failed("find the disk of", id, e))?.is_some() {
                pool.delete_root(&name).map_err(|e| failed("delete the half-made disk of", id, e))?;
            }
            if let Disk::Snapshot(snapshot) = kind {
                let copy = state.snapshots.disk(snapshot).map_err(|e| failed("find", snapshot, e))?;
                let copy = copy.ok_or(NodeError::SnapshotGone)?;
                let root =
                    pool.root_from(&copy, &name, disk_mib).map_err(|e| failed("copy the snapshot for", id, e))?;
                state.driver.limit_disk(pool, &name, disk_mib).map_err(|e| failed("limit the disk of", id, e))?;
                return Ok(root);
            }
            let made = state.driver.make_disk(pool, &state.host.base, &name, disk_mib);
            state.disk_taken.notify_one();
            made.map_err(|e| failed("make the disk of", id, e))
        })
        .await
    }

    pub(crate) fn has_disk(&self, id: SandboxId) -> Result<bool, NodeError> {
        let root = self.host.pool.root(&host_name(id)).map_err(|e| failed("find the disk of", id, e))?;
        Ok(root.is_some())
    }

    pub(crate) async fn delete_disk(self: &Arc<Self>, id: SandboxId) -> Result<(), NodeError> {
        let state = self.clone();
        blocking(move || {
            let deleted = state.host.pool.delete_root(&host_name(id));
            deleted.map_err(|e| failed("delete the disk of", id, e))
        })
        .await
    }

    /// Removes what is left of a sandbox that does not run; of one that was half made, its disk too.
    pub(crate) async fn sweep(self: &Arc<Self>, id: SandboxId, half_made: bool) -> Result<(), NodeError> {
        self.driver.clean(id).await.map_err(|e| failed("clean up", id, e))?;
        if half_made {
            // First: a memory without its disk must not be taken for one that can be woken.
            let state = self.clone();
            blocking(move || state.saves.sweep(id, None).map_err(|e| failed("drop the saved memory of", id, e)))
                .await?;
            self.delete_disk(id).await?;
            self.unmark(id)?;
        }
        Ok(())
    }

    /// Marks a disk that nobody has been promised yet: a crash from here on leaves nothing worth keeping.
    pub(crate) fn mark(&self, id: SandboxId) -> Result<(), NodeError> {
        let path = self.marks().join(host_name(id));
        fs::write(&path, []).map_err(|e| failed("write", path.display(), e))
    }

    pub(crate) fn unmark(&self, id: SandboxId) -> Result<(), NodeError> {
        let path = self.marks().join(host_name(id));
        match fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(failed("remove", path.display(), e)),
            _ => Ok(()),
        }
    }

    pub(crate) fn marked(&self) -> Vec<SandboxId> {
        let entries = fs::read_dir(self.marks()).into_iter().flatten().flatten();
        entries.filter_map(|entry| parse_host_name(entry.file_name().to_str()?)).collect()
    }

    pub(crate) fn is_marked(&self, id: SandboxId) -> bool {
        self.marks().join(host_name(id)).exists()
    }

    fn marks(&self) -> PathBuf {
        self.host.data_dir.join("starting")
    }
}

/// Higher than every one before.
pub(crate) fn new_generation() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

fn limits(shape: &Shape, cores: u32) -> Limits {
    Limits {
        memory_bytes: shape.memory_mib.saturating_mul(1 << 20),
        cpu_quota_millis: u64::from(shape.vcpu.min(cores)) * 1000,
        cpu_floor_millis: u64::from(shape.cpu_floor_millis),
        pids: HOST_PROCESSES,
    }
}

/// As ids are spelt on the host: `runsc` takes an id that begins like another for that other, so all are equally long.
pub(crate) fn host_name(id: SandboxId) -> String {
    id.into_untyped_uuid().simple().to_string()
}

pub(crate) fn parse_host_name(name: &str) -> Option<SandboxId> {
    let canonical = name.len() == 32 && name.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    canonical.then(|| uuid::Uuid::parse_str(name).ok()).flatten().map(SandboxId::from_untyped_uuid)
}

fn available_mib() -> io::Result<u64> {
    let text = fs::read_to_string("/proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|rest| rest.split_ascii_whitespace().next()).and_then(|number| number.parse::<u64>().ok());
    kib.map(|kib| kib / 1024).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// An error for the log: step, object and the whole chain of causes.
pub(crate) fn failed(step: &str, object: impl std::fmt::Display, error: impl std::error::Error) -> NodeError {
    NodeError::Failed(format!("cannot {step} {object}: {}", chain(&error)))
}

pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        next = cause.source();
    }
    text
}

/// Runs work that waits for the kernel off the async threads. It is not stopped when its caller goes away.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, NodeError> + Send + 'static,
) -> Result<T, NodeError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => Err(failed("finish", "a step on the host", error)),
    }
}

/// How many processes the users of a sandbox may have. gVisor spends about 4.4 MB of the host's memory on a small guest
/// process (measured with forked Pythons under ptrace), counted against the sandbox; and its kernel does not survive a
/// fork that finds no memory. So the limit stays where the memory is not reached by the count alone.
fn user_processes(most: u64, memory_mib: u64) -> u64 {
    (memory_mib / 6).clamp(32, most.max(32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processor_is_capped_to_what_the_host_has() {
        let shape = Shape { vcpu: 16, ..Shape::default() };
        assert_eq!(limits(&shape, 2).cpu_quota_millis, 2000);
        assert_eq!(limits(&shape, 64).cpu_quota_millis, 16_000);
    }

    #[test]
    fn only_whole_names_are_ids() {
        let id = SandboxId::from_untyped_uuid(uuid::Uuid::from_u128(7));
        assert_eq!(parse_host_name(&host_name(id)), Some(id));
        for name in ["", "7", &id.to_string(), &host_name(id).to_uppercase().replace('0', "A"), "hand"] {
            assert_eq!(parse_host_name(name), None, "{name}");
        }
    }

    #[test]
    fn the_count_alone_does_not_reach_the_memory() {
        for (memory_mib, processes) in [(256, 42), (512, 85), (4096, 682), (65_536, 1024)] {
            assert_eq!(user_processes(1024, memory_mib), processes);
            assert!(processes * 44 / 10 < memory_mib);
        }
    }
}
