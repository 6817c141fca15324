//! A machine that stands still, and one that has been written down.
//!
//!     DIR/{state,mem,meta.json}       devices; memory; what fits it
//!
//! The memory is the whole memory, whatever the machine was started from: a saved machine needs no template. QEMU writes
//! it into the state, and then there is no `mem`. The disk is not there: whoever saves keeps it as it was then. The
//! directory has no `meta.json` until all of it is there. Any number of machines may be restored from it, each with a
//! copy of that disk.

use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use runtime_model::SandboxId;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use super::launch::{Launch, Memory, Start};
use super::vmm::{At, VmmError};
use super::{DISK, DriverError, Inner, Microvm};
use crate::driver::machine::{Machine, Parts};
use crate::driver::places::blocking;
use crate::driver::{Booted, Plan, RestoreError, Save, Saved, record};

/// The devices of a saved machine or template, and its memory.
pub(crate) const STATE: &str = "state";
pub(crate) const MEMORY: &str = "mem";
const META: &str = "meta.json";
/// A few seconds for each gigabyte in use, on a busy host.
const SAVE_LIMIT: Duration = Duration::from_secs(300);

/// What a machine must be like to go on from this.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Meta {
    engine: String,
    version: String,
    accel: String,
    #[serde(default)]
    cpu: String,
    tsc_10mhz: u64,
    base: String,
    memory_mib: u64,
    vcpu: u32,
    disk_mib: u64,
}

impl Inner {
    /// Has the machine's program do something, and waits for it.
    pub(super) async fn tell<T: Send + 'static>(
        &self,
        id: SandboxId,
        step: &'static str,
        work: impl FnOnce(&Launch, &At<'_>) -> Result<T, VmmError> + Send + 'static,
    ) -> Result<T, DriverError> {
        let places = self.places(id);
        let machine = self.living_machine(&places)?;
        let machine = machine.ok_or_else(|| DriverError::new(step, id, "its machine has ended"))?;
        blocking(move || {
            let at = At { run_dir: &places.run_dir, process: machine.vmm.into() };
            work(&machine.launch, &at).map_err(|e| DriverError::new(step, id, e))
        })
        .await
    }

    fn meta(&self, launch: &Launch, disk_mib: u64) -> Meta {
        Meta {
            engine: launch.program.vmm().name().to_owned(),
            version: self.key.version.clone(),
            accel: self.key.accel.to_owned(),
            cpu: self.key.cpu.clone(),
            tsc_10mhz: self.key.tsc_10mhz,
            base: self.key.base.clone(),
            memory_mib: launch.memory_mib,
            vcpu: launch.vcpu,
            disk_mib,
        }
    }
}

struct Saver {
    inner: Arc<Inner>,
    id: SandboxId,
}

#[async_trait]
impl Save for Saver {
    async fn save(&self, into: &Path, given_up: &CancellationToken) -> Result<(), DriverError> {
        let dir = into.to_owned();
        let save = move |launch: &Launch, at: &At<'_>| {
            launch.program.vmm().snapshot(at, launch, &dir, SAVE_LIMIT).map(|()| launch.clone())
        };
        let launch = self.inner.tell(self.id, "save", save).await?;
        if given_up.is_cancelled() {
            return Err(DriverError::new("save", self.id, "it is no longer wanted"));
        }
        let (dir, inner) = (into.to_owned(), self.inner.clone());
        blocking(move || {
            let fail = |e| DriverError::new("write", dir.display(), e);
            let disk_mib = fs::metadata(&launch.disk).map_err(fail)?.len() >> 20;
            // Last: with it, the rest counts.
            let file = record::write(&dir.join(META), &inner.meta(&launch, disk_mib)).map_err(fail)?;
            file.sync_all().map_err(fail)?;
            File::open(&dir).and_then(|dir| dir.sync_all()).map_err(fail)
        })
        .await
    }
}

/// Names the first thing in which a saved machine and this one differ.
fn misfit(saved: &Meta, here: &Meta) -> Option<String> {
    let differs = |what: &str, saved: &dyn std::fmt::Display, here: &dyn std::fmt::Display| {
        Some(format!("it was saved with {what} {saved}, and here it would be {here}"))
    };
    match () {
        () if saved.engine != here.engine => differs("the engine", &saved.engine, &here.engine),
        () if saved.version != here.version => differs("the program", &saved.version, &here.version),
        () if saved.accel != here.accel => differs("acceleration by", &saved.accel, &here.accel),
        () if saved.cpu != here.cpu => differs("the processor", &saved.cpu, &here.cpu),
        () if saved.tsc_10mhz != here.tsc_10mhz => differs("a clock of", &saved.tsc_10mhz, &here.tsc_10mhz),
        () if saved.base != here.base => differs("the base image", &saved.base, &here.base),
        () if saved.memory_mib != here.memory_mib => differs("a memory of", &saved.memory_mib, &here.memory_mib),
        () if saved.vcpu != here.vcpu => differs("processors:", &saved.vcpu, &here.vcpu),
        () if saved.disk_mib != here.disk_mib => differs("a disk of", &saved.disk_mib, &here.disk_mib),
        () => None,
    }
}

impl Microvm {
    pub(super) fn saver_of(&self, id: SandboxId) -> Arc<dyn Save> {
        Arc::new(Saver { inner: self.inner.clone(), id })
    }

    async fn restore_machine(&self, plan: Plan, from: Saved) -> Result<Parts, RestoreError> {
        let Plan { id, mut identity, root, shape, limits, abort } = plan;
        let path = from.dir.join(META);
        let read = record::read::<Meta>(&path).map_err(|e| DriverError::new("read", path.display(), e))?;
        let Some(meta) = read else {
            return Err(RestoreError::Unusable(format!("{} was not saved whole", from.dir.display())));
        };
        let disk = root.join(DISK);
        let held = fs::metadata(&disk).map_err(|e| DriverError::new("look at", disk.display(), e))?;
        let mut launch = self.inner.launch(id, &shape, limits, disk);
        if let Some(why) = misfit(&meta, &self.inner.meta(&launch, held.len() >> 20)) {
            return Err(RestoreError::Unusable(why));
        }
        if from.dir.join(MEMORY).exists() {
            launch.memory = Memory::Template(from.dir.join(MEMORY));
        }
        launch.start = Start::Restore { state: from.dir.join(STATE), spends: Some(from) };
        identity.memory_bytes = runtime_host::cgroup::Limits::from(launch.bounds).memory_bytes;
        let (tie, channel) = self.inner.start(id, &identity, launch, &abort).await?;
        Ok(self.parts(id, identity, Some(tie), channel)?)
    }

    pub(super) async fn restored(&self, plan: Plan, from: Saved) -> Result<Box<dyn Booted>, RestoreError> {
        let id = plan.id;
        match self.restore_machine(plan, from).await {
            Ok(parts) => Ok(Machine::booted(parts)),
            Err(error) => {
                crate::driver::Driver::clean(self, id).await?;
                Err(error)
            }
        }
    }
}
