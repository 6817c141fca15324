//! The OCI description of one sandbox: what `runsc` is told to make.

use std::path::{Path, PathBuf};

use runtime_host::cgroup::Limits;
use serde::Serialize;

/// Where the agent lies inside.
pub(super) const AGENT: &str = "/usr/local/lib/runtime/agent";
/// The agent again, under the name that makes it act as `sudo`: set-user-id bits mean nothing inside.
const SUDO: &str = "/usr/bin/sudo";

/// All of root's powers inside but those over the network and over resource limits. The kernel they act on is the
/// sandbox's own.
const CAPABILITIES: &[&str] = &[
    "CAP_AUDIT_CONTROL",
    "CAP_AUDIT_READ",
    "CAP_AUDIT_WRITE",
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_DAC_READ_SEARCH",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_IPC_LOCK",
    "CAP_IPC_OWNER",
    "CAP_KILL",
    "CAP_LEASE",
    "CAP_LINUX_IMMUTABLE",
    "CAP_MKNOD",
    "CAP_NET_BIND_SERVICE",
    "CAP_NET_BROADCAST",
    "CAP_SETFCAP",
    "CAP_SETGID",
    "CAP_SETPCAP",
    "CAP_SETUID",
    "CAP_SYS_ADMIN",
    "CAP_SYS_BOOT",
    "CAP_SYS_CHROOT",
    "CAP_SYS_NICE",
    "CAP_SYS_PTRACE",
    // For the agent alone: commands start without it, so that limits bind root.
    "CAP_SYS_RESOURCE",
    "CAP_SYS_TIME",
    "CAP_SYS_TTY_CONFIG",
    "CAP_SYSLOG",
];

/// Directories in memory, with the share of the sandbox's memory (in percent) that each may take. Together they leave
/// enough for the kernel inside and the agent: full ones must not starve what could empty them.
const IN_MEMORY: &[(&str, u64, &str)] = &[
    ("/tmp", 35, "mode=1777"),
    ("/var/tmp", 10, "mode=1777"),
    ("/run", 4, "mode=0755"),
    ("/dev/shm", 15, "mode=1777"),
];

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Bundle {
    oci_version: &'static str,
    process: Process,
    root: Root,
    hostname: String,
    mounts: Vec<Mount>,
    linux: Linux,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Process {
    terminal: bool,
    user: User,
    args: [&'static str; 1],
    env: [&'static str; 3],
    cwd: &'static str,
    capabilities: Capabilities,
    rlimits: [Rlimit; 1],
    no_new_privileges: bool,
}

#[derive(Debug, Serialize)]
struct User {
    uid: u32,
    gid: u32,
}

#[derive(Debug, Serialize)]
struct Capabilities {
    bounding: &'static [&'static str],
    effective: &'static [&'static str],
    permitted: &'static [&'static str],
    inheritable: &'static [&'static str],
}

#[derive(Debug, Serialize)]
struct Rlimit {
    #[serde(rename = "type")]
    kind: &'static str,
    hard: u64,
    soft: u64,
}

#[derive(Debug, Serialize)]
struct Root {
    path: PathBuf,
    readonly: bool,
}

#[derive(Debug, Serialize)]
struct Mount {
    destination: &'static str,
    #[serde(rename = "type")]
    kind: &'static str,
    source: PathBuf,
    options: Vec<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Linux {
    cgroups_path: String,
    namespaces: Vec<Namespace>,
    resources: Resources,
}

#[derive(Debug, Serialize)]
struct Namespace {
    #[serde(rename = "type")]
    kind: &'static str,
}

#[derive(Debug, Serialize)]
struct Resources {
    memory: Memory,
    cpu: Cpu,
    pids: Pids,
}

#[derive(Debug, Serialize)]
struct Memory {
    limit: u64,
}

#[derive(Debug, Serialize)]
struct Cpu {
    quota: u64,
    period: u64,
    shares: u64,
}

#[derive(Debug, Serialize)]
struct Pids {
    limit: u64,
}

pub(super) struct Parts<'a> {
    pub(super) root: &'a Path,
    pub(super) hostname: &'a str,
    pub(super) agent: &'a Path,
    pub(super) cgroups_path: String,
    pub(super) limits: &'a Limits,
}

const PERIOD_US: u64 = 100_000;

impl Bundle {
    pub(super) fn new(parts: &Parts<'_>) -> Self {
        let limits = parts.limits;
        Self {
            oci_version: "1.0.2",
            process: Process {
                terminal: false,
                user: User { uid: 0, gid: 0 },
                args: [AGENT],
                env: [
                    "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                    "HOME=/root",
                    "LANG=C.UTF-8",
                ],
                cwd: "/",
                capabilities: Capabilities {
                    bounding: CAPABILITIES,
                    effective: CAPABILITIES,
                    permitted: CAPABILITIES,
                    // None: what a program inherits so, it would keep although the runners withhold it.
                    inheritable: &[],
                },
                rlimits: [Rlimit { kind: "RLIMIT_NOFILE", hard: 1_048_576, soft: 65_536 }],
                no_new_privileges: true,
            },
            root: Root { path: parts.root.to_owned(), readonly: false },
            hostname: parts.hostname.to_owned(),
            mounts: mounts(parts.agent, limits.memory_bytes),
            linux: Linux {
                cgroups_path: parts.cgroups_path.clone(),
                namespaces: ["pid", "network", "ipc", "uts", "mount"].map(|kind| Namespace { kind }).into(),
                resources: Resources {
                    memory: Memory { limit: limits.memory_bytes },
                    cpu: Cpu {
                        quota: (limits.cpu_quota_millis * PERIOD_US / 1000).max(1000),
                        period: PERIOD_US,
                        shares: (limits.cpu_floor_millis * 1024 / 1000).clamp(2, 262_144),
                    },
                    pids: Pids { limit: limits.pids },
                },
            },
        }
    }
}

/// Where something is mounted: a saved machine needs all of them again.
pub(super) fn destinations() -> Vec<String> {
    mounts(Path::new(""), 0).iter().map(|mount| mount.destination.to_owned()).collect()
}

fn mounts(agent: &Path, memory_bytes: u64) -> Vec<Mount> {
    let plain = |destination, kind: &'static str| Mount { destination, kind, source: kind.into(), options: Vec::new() };
    let mut mounts =
        vec![plain("/proc", "proc"), plain("/sys", "sysfs"), plain("/dev", "tmpfs"), plain("/dev/pts", "devpts")];
    for (destination, percent, mode) in IN_MEMORY {
        let size = memory_bytes / 100 * percent;
        mounts.push(Mount {
            destination,
            kind: "tmpfs",
            source: "tmpfs".into(),
            options: vec![format!("size={size}"), (*mode).to_owned(), "nosuid".to_owned(), "nodev".to_owned()],
        });
    }
    for destination in [AGENT, SUDO] {
        mounts.push(Mount {
            destination,
            kind: "bind",
            source: agent.to_owned(),
            options: vec!["ro".to_owned(), "bind".to_owned()],
        });
    }
    mounts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_directories_leave_room_for_what_could_empty_them() {
        assert!(IN_MEMORY.iter().map(|(_, percent, _)| percent).sum::<u64>() <= 70);
    }

    #[test]
    fn nothing_writable_of_the_host_but_the_root_is_mounted() {
        let limits = Limits { memory_bytes: 1 << 30, cpu_quota_millis: 2000, cpu_floor_millis: 50, pids: 4096 };
        let parts = Parts {
            root: Path::new("/pool/root/x"),
            hostname: "h",
            agent: Path::new("/data/agent/d"),
            cgroups_path: "/runtime/x".to_owned(),
            limits: &limits,
        };
        let bundle = Bundle::new(&parts);
        for mount in bundle.mounts.iter().filter(|mount| mount.kind == "bind") {
            assert!(mount.options.iter().any(|option| option == "ro"), "{mount:?}");
        }
        for forbidden in ["CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_SYS_MODULE"] {
            assert!(!CAPABILITIES.contains(&forbidden));
        }
    }
}
