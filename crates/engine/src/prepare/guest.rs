//! What a microVM boots, in the pool: kernel, modules, and the base image as a disk of its own.
//!
//!     DIR/pool/base/microvm-<format>-<base>/{vmlinux,modules/,base.ext4,meta.json}
//!
//! The whole is built aside and named once it is complete and synced. All of it is read-only from then on; machines
//! share it.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use aws_lc_rs::digest;
use runtime_images::apt;
use runtime_images::microvm::{self, KERNEL_PACKAGE, Kernel};
use serde::{Deserialize, Serialize};

use super::base::Scratch;
use super::packages::{self, Apt};
use super::{Base, Pool, PrepareError, Progress};

/// Changes when the layout or what is made of the same input does.
const FORMAT: u32 = 2;
const ASIDE: &str = ".build-microvm";
const MIB: u64 = 1 << 20;
/// Below lie those of the file system's own.
const FIRST_INODE: u64 = 11;

/// What the files are, in `meta.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meta {
    pub kernel: String,
    /// Over the kernel and its modules.
    pub digest: String,
    /// Of the base image.
    pub base: String,
    pub modules: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guest {
    dir: PathBuf,
    pub meta: Meta,
}

impl Guest {
    /// This version's, if the pool has it, or if the file system the pool is a part of has it: then it is cloned.
    pub fn find(pool: &Pool, base: &Base) -> Result<Option<Self>, PrepareError> {
        if let Some(found) = Self::own(pool, base) {
            return Ok(Some(found));
        }
        let name = name(base);
        let own = pool.base_dir().join(&name);
        let Some(neighbour) = pool.shared_root().map(|root| root.join("base").join(&name)) else { return Ok(None) };
        if Self::at(&neighbour).is_none() {
            return Ok(None);
        }
        let aside = pool.base_dir().join(format!("{ASIDE}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&aside);
        clone_tree(&neighbour, &aside).map_err(io_error("clone", &neighbour))?;
        // Another server of this pool may have been quicker.
        if fs::rename(&aside, &own).is_err() {
            let _ = fs::remove_dir_all(&aside);
        }
        Ok(Self::at(&own))
    }

    /// Only if this very pool has it.
    pub(super) fn own(pool: &Pool, base: &Base) -> Option<Self> {
        Self::at(&pool.base_dir().join(name(base)))
    }

    fn at(dir: &Path) -> Option<Self> {
        let meta = serde_json::from_slice(&fs::read(dir.join("meta.json")).ok()?).ok()?;
        Some(Self { dir: dir.to_owned(), meta })
    }

    #[must_use]
    pub fn kernel(&self) -> PathBuf {
        self.dir.join("vmlinux")
    }

    #[must_use]
    pub fn base_disk(&self) -> PathBuf {
        self.dir.join("base.ext4")
    }

    /// The first file system with this agent in it.
    pub fn initramfs(&self, agent: &[u8]) -> Result<Vec<u8>, PrepareError> {
        let mut modules = Vec::new();
        for name in &self.meta.modules {
            let path = self.dir.join("modules").join(format!("{name}.ko"));
            modules.push((name.as_str(), fs::read(&path).map_err(io_error("read", &path))?));
        }
        Ok(microvm::initramfs(agent, modules.iter().map(|(name, content)| (*name, content.as_slice()))))
    }

    /// Builds it. The caller holds the setup lock.
    pub(super) async fn build(
        data_dir: &Path,
        pool: &Pool,
        base: &Base,
        progress: &dyn Progress,
    ) -> Result<Self, PrepareError> {
        let kernel = fetch(data_dir, progress).await?;
        let aside = pool.base_dir().join(ASIDE);
        let _ = fs::remove_dir_all(&aside);
        let modules = aside.join("modules");
        fs::create_dir_all(&modules).map_err(io_error("make", &modules))?;
        let mut context = digest::Context::new(&digest::SHA256);
        let mut put = |path: PathBuf, content: &[u8]| {
            context.update(&(content.len() as u64).to_be_bytes());
            context.update(content);
            write_read_only(&path, content)
        };
        put(aside.join("vmlinux"), &kernel.image)?;
        for (name, content) in &kernel.modules {
            put(modules.join(format!("{name}.ko")), content)?;
        }
        progress.note("writing the base image as a disk");
        let (source, disk, seed) = (base.path.clone(), aside.join("base.ext4"), base.digest.clone());
        let made = tokio::task::spawn_blocking(move || make_base_disk(&source, &disk, &seed)).await;
        made.map_err(|e| io_error("write", &aside)(io::Error::other(e)))??;
        let meta = Meta {
            kernel: kernel.release,
            digest: context.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect(),
            base: base.digest.clone(),
            modules: kernel.modules.iter().map(|(name, _)| (*name).to_owned()).collect(),
        };
        let path = aside.join("meta.json");
        let text = serde_json::to_vec(&meta).map_err(|e| io_error("write", &path)(e.into()))?;
        write_read_only(&path, &text)?;
        pool.sync()?;
        let named = pool.base_dir().join(name(base));
        fs::rename(&aside, &named).map_err(io_error("name", &named))?;
        pool.sync()?;
        Ok(Self { dir: named, meta })
    }

    /// Removes what an interrupted build left; true if there was something.
    pub(super) fn sweep(pool: &Pool) -> bool {
        let entries = fs::read_dir(pool.base_dir()).into_iter().flatten().flatten();
        let left = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(ASIDE));
        left.map(|entry| fs::remove_dir_all(entry.path()).is_ok()).fold(false, |any, one| any | one)
    }
}

fn name(base: &Base) -> String {
    format!("microvm-{FORMAT}-{}", base.digest.get(..16).unwrap_or(&base.digest))
}

/// Debian's newest kernel for virtual machines, from this machine's own sources; nothing is installed.
async fn fetch(data_dir: &Path, progress: &dyn Progress) -> Result<Kernel, PrepareError> {
    let scratch = Scratch::new(data_dir, "kernel")?;
    let apt = Apt::new(scratch.path(), &apt::debian(Path::new("/etc/apt"))?)?;
    let packages = scratch.path().join("packages");
    fs::create_dir_all(&packages).map_err(io_error("make", &packages))?;
    progress.note("reading the package lists");
    apt.run(&["update"]).await?;
    // The package that means "the newest" names the one that holds it.
    apt.run_in(&packages, &["download", KERNEL_PACKAGE]).await?;
    let wanted = depends(&only_package(&packages)?).await?;
    let _ = fs::remove_file(only_package(&packages)?);
    progress.note(&format!("downloading {wanted}"));
    apt.run_in(&packages, &["download", &wanted]).await?;
    let unpacked = scratch.path().join("unpacked");
    let package = only_package(&packages)?;
    packages::command("dpkg-deb", &["-x".as_ref(), package.as_os_str(), unpacked.as_os_str()]).await?;
    Ok(Kernel::read(&unpacked)?)
}

fn only_package(dir: &Path) -> Result<PathBuf, PrepareError> {
    let mut entries = fs::read_dir(dir).map_err(io_error("list", dir))?.flatten().map(|entry| entry.path());
    let found = entries.find(|path| path.extension().is_some_and(|end| end == "deb"));
    found.ok_or_else(|| PrepareError::Packages { what: "apt-get download left no package".into() })
}

/// The first package that this one depends on.
async fn depends(package: &Path) -> Result<String, PrepareError> {
    let text = packages::command("dpkg-deb", &["-f".as_ref(), package.as_os_str(), "Depends".as_ref()]).await?;
    let first = text.split([',', '(', '|']).next().unwrap_or_default().trim().to_owned();
    if first.starts_with("linux-image-") {
        Ok(first)
    } else {
        Err(PrepareError::Packages { what: format!("{KERNEL_PACKAGE} depends on {text:?}, which is no kernel") })
    }
}

/// The same content as the subvolume, as a file system that is never written to.
fn make_base_disk(source: &Path, disk: &Path, seed: &str) -> Result<(), PrepareError> {
    let (bytes, inodes) = measure(source).map_err(io_error("measure", source))?;
    // Inode tables, directories and the map of free blocks come on top; what is not used stays a hole.
    let size = (bytes + inodes * 512 + bytes / 10).next_multiple_of(MIB) + 64 * MIB;
    let file = File::create(disk).map_err(io_error("make", disk))?;
    file.set_len(size).map_err(io_error("size", disk))?;
    let uuid = seed_uuid(seed);
    let (inodes_made, inodes) = (inodes, (inodes + 64).to_string());
    let options = format!("hash_seed={uuid},root_owner=0:0,lazy_itable_init=1,nodiscard");
    let arguments = ["-q", "-F", "-b", "4096", "-m", "0", "-N", &inodes, "-O", "^has_journal,^resize_inode"];
    mkfs(arguments.iter().chain(&["-U", &uuid, "-E", &options, "-d"]).copied(), Some(source), disk)?;
    settle_times(disk, inodes_made)?;
    file.sync_all().map_err(io_error("sync", disk))?;
    set_read_only(disk)
}

/// When a file was read or last changed hands says when the image was made, and nothing else: with it, two disks of the
/// same files would differ.
fn settle_times(disk: &Path, inodes: u64) -> Result<(), PrepareError> {
    let program = packages::tool("debugfs").unwrap_or_else(|| "debugfs".into());
    // The root, and from the eleventh on what was put into it, one after the other.
    let numbers = std::iter::once(2).chain(FIRST_INODE..FIRST_INODE + inodes);
    let script = numbers.fold(String::new(), |script, number| {
        script + &format!("set_inode_field <{number}> ctime @1\nset_inode_field <{number}> atime @1\n")
    });
    let path = disk.with_extension("times");
    fs::write(&path, script).map_err(io_error("write", &path))?;
    let mut command = std::process::Command::new(&program);
    command.args(["-w", "-f"]).args([&path, disk]).env("E2FSPROGS_FAKE_TIME", "1");
    let output = command.stdin(Stdio::null()).stdout(Stdio::null()).output().map_err(io_error("run", &program))?;
    fs::remove_file(&path).map_err(io_error("remove", &path))?;
    let said = String::from_utf8_lossy(&output.stderr);
    let complaint = said.lines().find(|line| !line.starts_with("debugfs ") && !line.trim().is_empty());
    match complaint {
        None if output.status.success() => Ok(()),
        _ => {
            let what = format!("debugfs {} failed: {}", disk.display(), complaint.unwrap_or("it did not say why"));
            Err(PrepareError::Pool { what })
        }
    }
}

/// Runs `mkfs.ext4` on a file, with times that do not depend on when it runs.
pub(crate) fn mkfs<'a>(
    arguments: impl IntoIterator<Item = &'a str>,
    content: Option<&Path>,
    disk: &Path,
) -> Result<(), PrepareError> {
    let program = packages::tool("mkfs.ext4").unwrap_or_else(|| "mkfs.ext4".into());
    let mut command = std::process::Command::new(&program);
    command.args(arguments).args(content).arg(disk).stdin(Stdio::null()).env("E2FSPROGS_FAKE_TIME", "1");
    let output = command.output().map_err(io_error("start", &program))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(PrepareError::Pool { what: format!("mkfs.ext4 {} failed: {said}", disk.display()) })
}

/// Bytes in whole blocks and the number of inodes.
fn measure(dir: &Path) -> io::Result<(u64, u64)> {
    let (mut bytes, mut inodes) = (0, 0);
    let mut linked = HashSet::new();
    let mut left = vec![dir.to_owned()];
    while let Some(dir) = left.pop() {
        inodes += 1;
        bytes += 8192;
        for entry in fs::read_dir(&dir)? {
            let entry = entry?;
            let meta = entry.metadata()?;
            if meta.is_dir() {
                left.push(entry.path());
            } else if meta.nlink() == 1 || linked.insert(meta.ino()) {
                inodes += 1;
                bytes += meta.len().next_multiple_of(4096);
            }
        }
    }
    Ok((bytes, inodes))
}

fn seed_uuid(seed: &str) -> String {
    let digest = digest::digest(&digest::SHA256, seed.as_bytes());
    let bytes: [u8; 16] = std::array::from_fn(|at| digest.as_ref().get(at).copied().unwrap_or(0));
    uuid::Builder::from_random_bytes(bytes).into_uuid().to_string()
}

fn write_read_only(path: &Path, content: &[u8]) -> Result<(), PrepareError> {
    fs::write(path, content).map_err(io_error("write", path))?;
    set_read_only(path)
}

/// Readable by the machines, which run as nobody in particular; written by none.
fn set_read_only(path: &Path) -> Result<(), PrepareError> {
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o444);
    fs::set_permissions(path, mode).map_err(io_error("set the mode of", path))
}

fn clone_tree(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            clone_tree(&entry.path(), &target)?;
        } else {
            clone_file(&entry.path(), &target)?;
            fs::set_permissions(&target, entry.metadata()?.permissions())?;
        }
    }
    Ok(())
}

/// A copy that shares its blocks with the original until one of them is written.
pub(crate) fn clone_file(from: &Path, to: &Path) -> io::Result<File> {
    let source = File::open(from)?;
    let target = File::options().read(true).write(true).create_new(true).open(to)?;
    rustix::fs::ioctl_ficlone(&target, &source)?;
    Ok(target)
}

fn io_error(step: &'static str, path: &Path) -> impl FnOnce(io::Error) -> PrepareError {
    let path = path.to_owned();
    move |source| PrepareError::Io { step, path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_of_the_same_files_is_the_same_disk() {
        let dir = tempfile::tempdir().unwrap();
        let source = dir.path().join("root");
        fs::create_dir_all(source.join("etc")).unwrap();
        fs::write(source.join("etc/file"), "text").unwrap();
        fs::hard_link(source.join("etc/file"), source.join("etc/link")).unwrap();
        assert_eq!(measure(&source).unwrap(), (2 * 8192 + 4096, 3));
        let disk = dir.path().join("disk");
        make_base_disk(&source, &disk, "seed").unwrap();
        // Elsewhere, later, and by the same names in another order.
        let (later, other) = (dir.path().join("later"), dir.path().join("other"));
        fs::create_dir_all(later.join("etc")).unwrap();
        fs::write(later.join("etc/link"), "text").unwrap();
        fs::hard_link(later.join("etc/link"), later.join("etc/file")).unwrap();
        for path in ["", "etc", "etc/file"].map(|name| later.join(name)) {
            let there = source.join(path.strip_prefix(&later).unwrap());
            let times = fs::metadata(there).unwrap();
            let times =
                fs::FileTimes::new().set_modified(times.modified().unwrap()).set_accessed(times.accessed().unwrap());
            File::open(path).unwrap().set_times(times).unwrap();
        }
        make_base_disk(&later, &other, "seed").unwrap();
        assert!(fs::read(&disk).unwrap() == fs::read(&other).unwrap(), "byte for byte");
        let meta = fs::metadata(&disk).unwrap();
        assert_eq!(meta.mode() & 0o777, 0o444);
        assert!(meta.blocks() * 512 < 8 * MIB, "it is sparse");
        assert_eq!(seed_uuid("seed"), seed_uuid("seed"));
        assert_ne!(seed_uuid("seed"), seed_uuid("other"));
    }
}
