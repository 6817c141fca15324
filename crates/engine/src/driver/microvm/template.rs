//! Templates: machines that were booted once, up to the point where their agent waits for its first word, and are then
//! only copied.
//!
//!     DIR/pool/templates/<key>/{mem,state,disk}
//!
//! A copy gets a clone of the disk that shares its blocks, and maps the memory privately from the very file, so it costs
//! what it changes, and all copies share one page cache. No machine can write to the file that others are made of. The
//! key names everything that a saved state depends on; another QEMU, kernel, agent, processor or size is another
//! template.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use runtime_model::Shape;
use serde::Serialize;
use tokio::sync::OnceCell;

use super::saved::{MEMORY, STATE};
use crate::driver::DriverError;

/// Changes when what is saved, or how a machine is put together, does.
const FORMAT: u32 = 2;
/// Sizes that are kept at once; each holds about a hundred megabytes of disk.
const MOST: usize = 4;
/// The start of a size that makes it worth a template; before, its machines boot.
const WORTH_IT: u32 = 2;

pub(super) const DISK: &str = "disk";

/// What two machines must have in common for one to be a copy of the other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Key {
    pub(super) format: u32,
    /// Of the program that runs machines; its name as well.
    pub(super) version: String,
    pub(super) accel: &'static str,
    /// Of the host, where its guests see it.
    pub(super) cpu: String,
    /// Rounded: the same machine measures it a little differently each time.
    pub(super) tsc_10mhz: u64,
    pub(super) kernel: String,
    pub(super) base: String,
    pub(super) agent: String,
    pub(super) memory_mib: u64,
    pub(super) vcpu: u32,
    pub(super) disk_mib: u64,
}

impl Key {
    pub(super) fn sized(&self, shape: &Shape, vcpu: u32) -> Self {
        Self { memory_mib: shape.memory_mib, vcpu, disk_mib: shape.disk_mib, ..self.clone() }
    }

    pub(super) fn new() -> Self {
        Self {
            format: FORMAT,
            version: String::new(),
            accel: "",
            cpu: String::new(),
            tsc_10mhz: 0,
            kernel: String::new(),
            base: String::new(),
            agent: String::new(),
            memory_mib: 0,
            vcpu: 0,
            disk_mib: 0,
        }
    }

    /// What all sizes have in common, then the whole.
    fn name(&self) -> String {
        format!("{}{}", self.kin(), digest(self))
    }

    /// How the names of all templates begin that this server can use.
    fn kin(&self) -> String {
        digest(&Self { memory_mib: 0, vcpu: 0, disk_mib: 0, ..self.clone() }) + "-"
    }
}

fn digest(key: &Key) -> String {
    // These types always serialize.
    short_digest(&serde_json::to_vec(key).unwrap_or_default())
}

fn short_digest(text: &[u8]) -> String {
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, text);
    digest.as_ref().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// What a guest that runs on the host's own processor sees of it, from the host's list of processors: the model, and a
/// digest of everything it can do.
pub(super) fn cpu(list: &str) -> String {
    let first = list.split("\n\n").next().unwrap_or_default();
    let field = |wanted: &str| {
        let fields = first.lines().filter_map(|line| line.split_once(':'));
        fields
            .map(|(name, value)| (name.trim(), value.trim()))
            .find(|(name, _)| *name == wanted)
            .map_or("", |found| found.1)
    };
    let model = ["vendor_id", "cpu family", "model", "stepping"].map(field).join("-");
    format!("{model}-{}", short_digest(format!("{} {}", field("flags"), field("bugs")).as_bytes()))
}

/// One that is ready to be copied.
#[derive(Debug)]
pub(super) struct Template {
    dir: PathBuf,
}

impl Template {
    pub(super) fn at(dir: PathBuf) -> Self {
        Self { dir }
    }

    pub(super) fn memory(&self) -> PathBuf {
        self.dir.join(MEMORY)
    }

    pub(super) fn state(&self) -> PathBuf {
        self.dir.join(STATE)
    }

    pub(super) fn disk(&self) -> PathBuf {
        self.dir.join(DISK)
    }
}

struct Slot {
    cell: Arc<OnceCell<Option<Arc<Template>>>>,
    starts: u32,
    last: Instant,
}

/// The templates of this server.
pub(super) struct Templates {
    dir: PathBuf,
    slots: Mutex<HashMap<String, Slot>>,
}

impl Templates {
    /// Forgets what an interrupted build left, and those that no machine of this server could be a copy of.
    pub(super) fn open(dir: PathBuf, any_size: &Key) -> Result<Self, DriverError> {
        let kin = any_size.kin();
        fs::create_dir_all(&dir).map_err(|e| DriverError::new("make the directory", dir.display(), e))?;
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            if !entry.file_name().to_string_lossy().starts_with(&kin) {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
        Ok(Self { dir, slots: Mutex::default() })
    }

    /// A directory for one that is being built.
    pub(super) fn aside(&self) -> Result<PathBuf, DriverError> {
        let dir = self.dir.join(format!(".build-{}", uuid::Uuid::new_v4().simple()));
        fs::create_dir(&dir).map_err(|e| DriverError::new("make the directory", dir.display(), e))?;
        Ok(dir)
    }

    /// Gives a finished one its name.
    pub(super) fn publish(&self, aside: &Path, key: &Key) -> Result<PathBuf, DriverError> {
        let dir = self.dir.join(key.name());
        let _ = fs::remove_dir_all(&dir);
        fs::rename(aside, &dir).map_err(|e| DriverError::new("name", aside.display(), e))?;
        Ok(dir)
    }

    /// The template of this size, where there is one or where it is worth having one; then `build` makes it, once,
    /// however many ask. `wanted` makes it worth having at the first start.
    pub(super) async fn get(
        &self,
        key: &Key,
        wanted: bool,
        build: impl AsyncFnOnce() -> Result<Template, DriverError>,
    ) -> Option<Arc<Template>> {
        let name = key.name();
        let dir = self.dir.join(&name);
        let (cell, starts) = self.count(&name);
        if let Some(ready) = cell.get() {
            return ready.clone();
        }
        if !dir.exists() && !wanted && starts < WORTH_IT {
            return None;
        }
        let made = cell.get_or_init(async || {
            // It has its name only since all of it was written.
            if dir.exists() {
                return Some(Arc::new(Template::at(dir.clone())));
            }
            match build().await {
                Ok(template) => Some(Arc::new(template)),
                Err(error) => {
                    let error = crate::host_state::chain(&error);
                    tracing::warn!(error, "no template could be made; machines of this size boot instead");
                    None
                }
            }
        });
        made.await.clone()
    }

    /// Drops one that does not work.
    pub(super) fn discard(&self, key: &Key) {
        let name = key.name();
        self.lock().remove(&name);
        let _ = fs::remove_dir_all(self.dir.join(name));
    }

    /// Notes a start, and makes room by dropping the size that was not asked for the longest.
    fn count(&self, name: &str) -> (Arc<OnceCell<Option<Arc<Template>>>>, u32) {
        let mut slots = self.lock();
        let now = Instant::now();
        let slot = slots.entry(name.to_owned()).or_insert_with(|| Slot { cell: Arc::default(), starts: 0, last: now });
        slot.starts = slot.starts.saturating_add(1);
        slot.last = now;
        let answer = (slot.cell.clone(), slot.starts);
        let ready = slots.iter().filter(|(_, slot)| matches!(slot.cell.get(), Some(Some(_))));
        let (count, oldest) = ready.fold((0, None::<(&String, Instant)>), |(count, oldest), (name, slot)| {
            let older = oldest.is_none_or(|(_, last)| slot.last < last);
            (count + 1, if older { Some((name, slot.last)) } else { oldest })
        });
        if count > MOST
            && let Some(oldest) = oldest.map(|(name, _)| name.clone())
        {
            slots.remove(&oldest);
            // Machines that were copied from it have its memory open, and clones of its disk.
            let _ = fs::remove_dir_all(self.dir.join(oldest));
        }
        answer
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Slot>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(memory_mib: u64) -> Key {
        Key { memory_mib, ..Key::new() }
    }

    fn written(templates: &Templates, key: &Key) -> Result<Template, DriverError> {
        let aside = templates.aside()?;
        fs::write(aside.join(MEMORY), "remembered").unwrap();
        Ok(Template::at(templates.publish(&aside, key)?))
    }

    #[tokio::test]
    async fn a_size_gets_a_template_at_its_second_start_and_keeps_it_over_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let templates = Templates::open(dir.path().into(), &key(0)).unwrap();
        let build = async || written(&templates, &key(8));
        assert!(templates.get(&key(8), false, build).await.is_none());
        let made = templates.get(&key(8), false, build).await.unwrap();
        let same = templates.get(&key(8), false, async || panic!("it is there")).await.unwrap();
        assert!(Arc::ptr_eq(&made, &same));

        drop(templates);
        let templates = Templates::open(dir.path().into(), &key(0)).unwrap();
        let loaded = templates.get(&key(8), false, async || panic!("it is on the disk")).await.unwrap();
        assert_eq!(fs::read_to_string(loaded.memory()).unwrap(), "remembered");
        fs::create_dir(dir.path().join(".build-crashed")).unwrap();
        drop(templates);
        let templates = Templates::open(dir.path().into(), &key(0)).unwrap();
        assert!(!dir.path().join(".build-crashed").exists());
        drop(templates);
        let upgraded = Key { agent: "new".to_owned(), ..key(0) };
        let templates = Templates::open(dir.path().into(), &upgraded).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "nothing can be a copy of it any more");
        drop(templates);
        let templates = Templates::open(dir.path().into(), &key(0)).unwrap();
        written(&templates, &key(8)).unwrap();
        templates.discard(&key(8));
        assert!(templates.get(&key(8), false, async || panic!("not worth it yet")).await.is_none());
    }

    #[test]
    fn a_processor_is_known_by_its_model_and_by_what_it_can_do() {
        let list = "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 1\nmodel name\t: some\n\
                    stepping\t: 1\ncpu MHz\t\t: 2595.124\nflags\t\t: fpu sse avx2\nbugs\t\t: x\n\nprocessor\t: 1\n";
        let one = cpu(list);
        assert!(one.starts_with("AuthenticAMD-25-1-1-"), "{one}");
        assert_eq!(one, cpu(&list.replace("2595.124", "3100.000")), "its speed of the moment says nothing");
        assert_ne!(one, cpu(&list.replace(" avx2", "")));
        assert_ne!(key(8).name(), Key { cpu: one, ..key(8) }.name());
    }

    #[tokio::test]
    async fn the_size_not_asked_for_the_longest_makes_room() {
        let dir = tempfile::tempdir().unwrap();
        let templates = Templates::open(dir.path().into(), &key(0)).unwrap();
        for size in 1..=6 {
            assert!(templates.get(&key(size), true, async || written(&templates, &key(size))).await.is_some());
        }
        let there = |size| dir.path().join(key(size).name()).exists();
        assert_eq!((1..=6).map(there).collect::<Vec<_>>(), [false, true, true, true, true, true]);
    }
}
