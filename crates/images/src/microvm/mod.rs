//! What a machine with a kernel of its own boots: a kernel from Debian's package, and the small first file system that
//! loads what the kernel needs and holds the agent.
//!
//! Nothing here runs a tool: the kernel is unpacked ([`kernel`]), the file system written ([`cpio`]) by code of our own,
//! so that the same input gives the same bytes anywhere.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

pub mod cpio;
pub mod kernel;
pub mod lz4;

/// The package that always depends on Debian's newest kernel for virtual machines.
pub const KERNEL_PACKAGE: &str = "linux-image-cloud-amd64";

/// In the order of loading: one needs those before it. The devices, the disk and what gives memory back first, then what
/// a machine without a network card needs to lead its connections to the agent.
pub const MODULES: &[&str] = &[
    "virtio_ring",
    "virtio",
    "virtio_mmio",
    "virtio_blk",
    "virtio_console",
    "virtio-rng",
    "virtio_balloon",
    "overlay",
    "vsock",
    "vmw_vsock_virtio_transport_common",
    "vmw_vsock_virtio_transport",
    "tun",
    "libcrc32c",
    "nfnetlink",
    "nf_defrag_ipv4",
    "nf_defrag_ipv6",
    "nf_conntrack",
    "nf_nat",
    "nf_tables",
    "nft_chain_nat",
    "nft_redir",
];

/// No module is longer.
const MAX_MODULE: u64 = 8 << 20;
const MAX_KERNEL: u64 = 64 << 20;

#[derive(Debug, thiserror::Error)]
pub enum GuestError {
    #[error("microVM kernel: cannot {step} {path}")]
    Io {
        step: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("microVM kernel: the package has no {what}")]
    Missing { what: String },
    #[error("microVM kernel: {path} does not unpack")]
    Unpack {
        path: PathBuf,
        #[source]
        source: kernel::KernelError,
    },
}

/// A kernel as its package brings it, read into memory.
#[derive(Debug)]
pub struct Kernel {
    /// Such as `6.1.0-57-cloud-amd64`.
    pub release: String,
    /// Uncompressed.
    pub image: Vec<u8>,
    /// Name and content, in the order of [`MODULES`].
    pub modules: Vec<(&'static str, Vec<u8>)>,
}

impl Kernel {
    /// Reads it from the directory into which its package was unpacked.
    pub fn read(unpacked: &Path) -> Result<Self, GuestError> {
        let missing = |what: &str| GuestError::Missing { what: what.to_owned() };
        let boot = unpacked.join("boot");
        let names = fs::read_dir(&boot).map_err(io_error("list", &boot))?;
        let release = names
            .flatten()
            .find_map(|entry| Some(entry.file_name().to_str()?.strip_prefix("vmlinuz-")?.to_owned()))
            .ok_or_else(|| missing("boot/vmlinuz-*"))?;
        let path = boot.join(format!("vmlinuz-{release}"));
        let packed = read(&path, MAX_KERNEL)?;
        let image = kernel::unpack(&packed).map_err(|source| GuestError::Unpack { path, source })?;
        let root = unpacked.join("lib/modules").join(&release).join("kernel");
        let mut found = Vec::new();
        collect(&root, &mut found).map_err(io_error("list", &root))?;
        let modules = MODULES.iter().map(|name| {
            let file = format!("{name}.ko");
            let path = found.iter().find(|path| path.file_name().is_some_and(|found| *found == *file));
            let path = path.ok_or_else(|| missing(&file))?;
            Ok((*name, read(path, MAX_MODULE)?))
        });
        Ok(Self { modules: modules.collect::<Result<_, GuestError>>()?, release, image })
    }
}

/// The first file system, packed: `agent` as its `/init`, the modules in the order in which they are loaded.
pub fn initramfs<'a>(agent: &[u8], modules: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> Vec<u8> {
    let mut archive = cpio::Writer::default();
    for dir in ["dev", "proc", "sys", "root", "modules"] {
        archive.dir(dir);
    }
    // Before anything is mounted, the kernel gives the first process its console from here.
    archive.char_device("dev/console", 5, 1);
    archive.file("init", 0o555, agent);
    for (number, (name, content)) in modules.into_iter().enumerate() {
        archive.file(&format!("modules/{number:02}-{name}.ko"), 0o444, content);
    }
    lz4::pack(&archive.finish())
}

/// Reads a file that is no longer than it may be.
pub fn read(path: &Path, limit: u64) -> Result<Vec<u8>, GuestError> {
    let fail = io_error("read", path);
    match fs::metadata(path) {
        Ok(meta) if meta.len() > limit => Err(fail(io::ErrorKind::FileTooLarge.into())),
        Ok(_) => fs::read(path).map_err(fail),
        Err(error) => Err(fail(error)),
    }
}

fn io_error(step: &'static str, path: &Path) -> impl FnOnce(io::Error) -> GuestError {
    let path = path.to_owned();
    move |source| GuestError::Io { step, path, source }
}

fn collect(dir: &Path, found: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            collect(&entry.path(), found)?;
        } else {
            found.push(entry.path());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_without_a_module_is_told_by_its_name() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("boot")).unwrap();
        let error = Kernel::read(dir.path()).unwrap_err().to_string();
        assert!(error.contains("boot/vmlinuz-*"), "{error}");
    }

    #[test]
    fn the_same_input_gives_the_same_file_system() {
        let made = || initramfs(b"agent", [("one", &b"1"[..]), ("two", &[7; 5000][..])]);
        assert_eq!(made(), made());
        let plain = lz4::unpack(&made(), 1 << 20).unwrap();
        assert_eq!(plain.len() % 512, 0);
        for name in ["init\0", "modules/00-one.ko\0", "modules/01-two.ko\0", "TRAILER!!!\0"] {
            assert!(plain.windows(name.len()).any(|part| part == name.as_bytes()), "{name}");
        }
    }
}
