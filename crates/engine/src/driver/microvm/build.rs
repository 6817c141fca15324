//! Making a template: a machine boots, its agent is greeted once and runs what most run first; then, while it waits for
//! its next host, the machine is saved and ended.

use std::fs;
use std::path::Path;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use newtype_uuid::GenericUuid;
use runtime_host::cgroup::Limits;
use runtime_model::{SandboxId, Shape};
use runtime_proto::guest::{Ask, Command, Exec, Request, TEMPLATE_GENERATION, Tell};
use runtime_proto::node::GuestStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::launch::{Launch, Memory};
use super::saved::MEMORY;
use super::template::{DISK, Key, Template};
use super::{Inner, in_place, make_disk_file};
use crate::driver::places::blocking;
use crate::driver::{DriverError, Identity};
use crate::host_state::chain;
use crate::link::{Asker, Link};

/// An emulated guest on a busy host.
const HELLO_LIMIT: Duration = Duration::from_secs(60);
const SAVE_LIMIT: Duration = Duration::from_secs(60);
/// What is run in it. The kernel tells within two seconds what it has freed: told before the save, it is in no template,
/// and none of its copies has to tell it again.
const WARM: &str = "python3 -c pass; python3 -c pass; sleep 3";
const WARM_LIMIT_MS: u64 = 60_000;
const PIDS: u64 = 1024;

impl Inner {
    pub(super) async fn build(self: &Arc<Self>, key: &Key, shape: &Shape) -> Result<Template, DriverError> {
        let began = Instant::now();
        let aside = self.templates.aside()?;
        let id = SandboxId::from_untyped_uuid(uuid::Uuid::new_v4());
        self.building.lock().unwrap_or_else(PoisonError::into_inner).insert(id);
        let made = self.boot_and_save(id, key, shape, &aside).await;
        let inner = self.clone();
        let cleaned = blocking(move || inner.clean(id)).await;
        self.building.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
        let finished = async {
            made?;
            cleaned?;
            let files = [MEMORY, DISK].map(|name| aside.join(name));
            blocking(move || files.iter().try_for_each(|path| keep(path))).await?;
            self.templates.publish(&aside, key).map(Template::at)
        };
        let result = finished.await;
        if result.is_err() {
            let _ = fs::remove_dir_all(&aside);
        } else {
            let took = began.elapsed();
            tracing::info!(memory_mib = shape.memory_mib, vcpu = key.vcpu, ?took, "a template is ready");
        }
        result
    }

    async fn boot_and_save(&self, id: SandboxId, key: &Key, shape: &Shape, aside: &Path) -> Result<(), DriverError> {
        let (disk, disk_mib, memory_mib) = (aside.join(DISK), key.disk_mib, key.memory_mib);
        let memory = aside.join(MEMORY);
        let limits = Limits {
            memory_bytes: memory_mib.saturating_mul(1 << 20),
            cpu_quota_millis: u64::from(key.vcpu) * 1000,
            cpu_floor_millis: u64::from(shape.cpu_floor_millis),
            pids: PIDS,
        };
        let mut launch = Launch { template: true, ..self.launch(id, shape, limits, disk.clone()) };
        let in_file = launch.program.vmm().runs_in_file();
        if in_file {
            launch.memory = Memory::Written(memory.clone());
        }
        let (uid, outbox) = (launch.uid, launch.outbox.clone());
        blocking(move || {
            make_disk_file(&disk, disk_mib)?;
            if in_file { make_memory_file(&memory, memory_mib, uid) } else { Ok(()) }
        })
        .await?;
        let identity = Identity {
            hostname: "template".to_owned(),
            generation: TEMPLATE_GENERATION,
            max_user_processes: 0,
            memory_bytes: limits.memory_bytes,
        };
        let (_tie, channel) = self.start(id, &identity, launch, &CancellationToken::new()).await?;
        let (link, asker) = Link::new(id, identity, channel, Arc::new(crate::NoWayOut));
        let link = AbortOnDropHandle::new(tokio::spawn(link.run()));
        asker.up(HELLO_LIMIT).await.map_err(|e| DriverError::new("greet the agent of", "a template", e))?;
        if let Err(error) = warm(&asker).await {
            tracing::warn!(error, "a template is made that has not run anything yet");
        }
        let into = aside.to_owned();
        self.tell(id, "save", move |launch, at| launch.program.vmm().snapshot(at, launch, &into, SAVE_LIMIT)).await?;
        let _ = fs::remove_dir_all(outbox);
        // The agent must not see its host go away: the copies would find it waiting for the next one.
        drop(link);
        Ok(())
    }
}

/// Runs what most sandboxes run first, so that every copy finds it read already. An image without it is as well. The
/// agent forgets of it once it is a sandbox's.
async fn warm(asker: &Asker) -> Result<(), String> {
    let command = Command { shell: Some(WARM.to_owned()), timeout_ms: WARM_LIMIT_MS, ..Command::default() };
    let exec = Exec { command: Some(command), head_limit: 0, has_stdin: false };
    let stream = asker.ask(Request::new(Ask::Exec(exec))).await.map_err(|e| chain(&e))?;
    let mut stream = GuestStream::new(stream);
    loop {
        match stream.next().await.map_err(|e| chain(&e))? {
            Some(Tell::ExecDone(_)) => return Ok(()),
            Some(Tell::Chunk(_)) => {}
            other => return Err(format!("the agent answered {other:?}")),
        }
    }
}

/// Memory in a file, which its machine may open.
fn make_memory_file(path: &Path, mib: u64, uid: u32) -> Result<(), DriverError> {
    let fail = |e| DriverError::new("make memory", path.display(), e);
    let file = fs::File::create_new(path).map_err(fail)?;
    in_place(&file).map_err(fail)?;
    file.set_len(mib << 20).map_err(fail)?;
    std::os::unix::fs::fchown(&file, Some(uid), Some(uid)).map_err(fail)
}

/// From now on nobody's, written down, and not to be written to; it lies where only root and its machines come.
fn keep(path: &Path) -> Result<(), DriverError> {
    let fail = |e| DriverError::new("write", path.display(), e);
    let file = fs::File::open(path).map_err(fail)?;
    std::os::unix::fs::fchown(&file, Some(0), Some(0)).map_err(fail)?;
    file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o444)).map_err(fail)?;
    file.sync_all().map_err(fail)
}
