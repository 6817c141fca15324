//! What the kernel must offer, and a few facts about the machine.

use std::fs;
use std::path::Path;

use super::PrepareError;

/// Simple quotas came with this version.
const SIMPLE_QUOTA_SINCE: (u32, u32) = (6, 7);

/// Checks what the disk pool stands on.
pub fn check() -> Result<(), PrepareError> {
    let release = release();
    if parse_release(&release).is_none_or(|version| version < SIMPLE_QUOTA_SINCE) {
        return Err(PrepareError::Kernel {
            what: format!("Linux {release} has no btrfs simple quotas, which limit each sandbox's disk"),
            fix: "boot Linux 6.7 or later (Debian 12: linux-image-amd64 from bookworm-backports)".into(),
        });
    }
    if !has_filesystem("btrfs") {
        return Err(PrepareError::Kernel {
            what: "btrfs is not available, and sandboxes' disks are btrfs subvolumes".into(),
            fix: "load it with `modprobe btrfs`, or use a kernel built with CONFIG_BTRFS_FS".into(),
        });
    }
    if !Path::new("/dev/loop-control").exists() {
        return Err(PrepareError::Kernel {
            what: "there are no loop devices, and the disk pool is a file mounted through one".into(),
            fix: "load them with `modprobe loop`; in a container, pass /dev/loop-control and /dev/loop*".into(),
        });
    }
    Ok(())
}

pub fn release() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

/// In `/proc/filesystems`, or a module that a mount would load.
pub fn has_filesystem(name: &str) -> bool {
    let known = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    if known.lines().any(|line| line.split_whitespace().next_back() == Some(name)) {
        return true;
    }
    let modules = Path::new("/lib/modules").join(release());
    ["modules.dep", "modules.builtin"]
        .iter()
        .any(|index| fs::read_to_string(modules.join(index)).is_ok_and(|text| text.contains(&format!("/{name}.ko"))))
}

pub fn memory_mib() -> Result<u64, PrepareError> {
    let path = Path::new("/proc/meminfo");
    let text =
        fs::read_to_string(path).map_err(|source| PrepareError::Io { step: "read", path: path.into(), source })?;
    memory_line(&text, "MemTotal:").ok_or_else(|| PrepareError::Kernel {
        what: "/proc/meminfo names no MemTotal".into(),
        fix: "mount /proc".into(),
    })
}

pub fn available_memory_mib() -> Option<u64> {
    memory_line(&fs::read_to_string("/proc/meminfo").ok()?, "MemAvailable:")
}

fn memory_line(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib / 1024)
}

fn parse_release(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_compare_by_number() {
        assert_eq!(parse_release("6.18.44-x"), Some((6, 18)));
        assert!(parse_release("6.10.1").unwrap() > SIMPLE_QUOTA_SINCE);
        assert!(parse_release("6.1.0-13-amd64").unwrap() < SIMPLE_QUOTA_SINCE);
        assert_eq!(parse_release("odd"), None);
        assert_eq!(memory_line("MemTotal:  2048 kB\n", "MemTotal:"), Some(2));
    }
}
