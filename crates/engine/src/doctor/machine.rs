//! Checks of the machine: rights, kernel, clock, memory, control groups, gVisor, KVM.

use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use runtime_host::cgroup::{self, Layout};

use super::Check;
use crate::prepare::kvm::By;
use crate::prepare::runsc::{RunscError, TESTED};
use crate::prepare::{EngineChoice, Firecracker, Kind, PrepareError, Qemu, Runsc, kernel, kvm, packages, with_causes};

/// No machine that runs this program has a clock before the program was written.
const NOT_BEFORE: u64 = 1_767_225_600;
/// A sandbox of the smallest size, and the server beside it.
const LEAST_MEMORY_MIB: u64 = 1024;
/// Fewer open files than this hold up a server with some dozen sandboxes.
const LEAST_DESCRIPTORS: u64 = 4096;

pub(super) fn rights() -> Check {
    if rustix::process::geteuid().is_root() {
        Check::ok("rights", "running as root")
    } else {
        Check::problem("rights", PrepareError::NotRoot.to_string(), "sudo runtime doctor")
    }
}

pub(super) fn kernel() -> Check {
    match kernel::check() {
        Ok(()) => {
            Check::ok("kernel", format!("Linux {}: btrfs, simple quotas and loop devices are there", kernel::release()))
        }
        Err(PrepareError::Kernel { what, fix }) => Check::problem("kernel", what, fix),
        Err(e) => Check::problem("kernel", e.to_string(), "see the message"),
    }
}

pub(super) fn clock() -> Check {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let source = fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    let source = source.map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned());
    if now < NOT_BEFORE {
        let fix = "set it: timedatectl set-ntp true, or date --set";
        return Check::problem("clock", format!("it says {now} seconds since 1970, which lies in the past"), fix);
    }
    Check::ok("clock", format!("sane; clock source {source}"))
}

pub(super) fn memory() -> Check {
    match (kernel::memory_mib(), kernel::available_memory_mib()) {
        (Ok(total), Some(free)) if free >= LEAST_MEMORY_MIB => {
            Check::ok("memory", format!("{total} MiB, {free} MiB available"))
        }
        (Ok(total), Some(free)) => {
            let fix = format!("free memory: a sandbox and the server want {LEAST_MEMORY_MIB} MiB");
            Check::problem("memory", format!("{total} MiB, only {free} MiB available"), fix)
        }
        _ => Check::problem("memory", "/proc/meminfo cannot be read", "mount -t proc proc /proc"),
    }
}

pub(super) fn cgroups() -> Check {
    match cgroup::detect() {
        Ok(layout @ Layout::V1 { .. }) => Check::ok("control groups", layout.describe()),
        Ok(layout @ Layout::V2 { .. }) => {
            Check::ok("control groups", format!("{}; there the memory limit throttles first", layout.describe()))
        }
        Err(e) => Check::problem(
            "control groups",
            e.to_string(),
            "mount them: mount -t cgroup2 none /sys/fs/cgroup; in a container, run it privileged",
        ),
    }
}

/// gVisor runs guest code with ptrace here.
pub(super) fn ptrace() -> Check {
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").ok();
    match scope.as_deref().map(str::trim) {
        Some("3") => Check::problem(
            "ptrace",
            "forbidden on this machine (yama ptrace_scope 3), and gVisor needs it",
            "set kernel.yama.ptrace_scope to 2 or less below /etc/sysctl.d and reboot",
        ),
        Some(scope) => Check::ok("ptrace", format!("allowed for root (yama ptrace_scope {scope})")),
        None => Check::ok("ptrace", "allowed (no yama)"),
    }
}

pub(super) fn runsc() -> Check {
    match Runsc::find() {
        Ok(runsc) if runsc.urpc_tested => Check::ok("runsc", format!("{} at {}", runsc.version, runsc.path.display())),
        Ok(runsc) => Check::note(
            "runsc",
            format!(
                "{} at {} is not the tested release {TESTED}: its control socket is not used, calls take about 20 ms more",
                runsc.version,
                runsc.path.display()
            ),
        ),
        Err(e @ (RunscError::Absent | RunscError::TooOld { .. })) => {
            Check::problem("runsc", e.to_string(), "runtime setup")
        }
        Err(e) => Check::problem("runsc", e.to_string(), "apt-get install --reinstall runsc"),
    }
}

/// The device's presence proves nothing: only a guest that booted does.
pub(super) fn kvm(data_dir: &Path) -> Check {
    if !Path::new("/dev/kvm").exists() {
        return Check::note("kvm", "no /dev/kvm: microVMs can only be emulated here; gVisor does not need it");
    }
    let answers = [By::Firecracker, By::Qemu].map(|by| kvm::known(data_dir, by));
    let [first, second] = answers;
    // One guest that ran is proof, whoever booted it.
    if let Some(answer) = first.clone().filter(|answer| answer.proven).or(second).or(first) {
        return if answer.proven { Check::ok("kvm", answer.words) } else { Check::note("kvm", answer.words) };
    }
    let under = if Path::new("/sys/module/kvm_pvm").exists() {
        "through kvm_pvm, under which stock guest kernels crash"
    } else {
        "which is no proof that a guest runs"
    };
    Check::note("kvm", format!("/dev/kvm is there, {under}; `runtime setup --engine qemu` boots a guest to find out"))
}

pub(super) fn qemu(choice: EngineChoice) -> Check {
    match Qemu::find() {
        Ok(qemu) => Check::ok("qemu", format!("{} at {}", qemu.version, qemu.path.display())),
        Err(e) if choice == EngineChoice::Qemu => {
            Check::problem("qemu", with_causes(&e), "runtime setup --engine qemu")
        }
        Err(e) => Check::note("qemu", format!("{e}; only --engine qemu needs it (runtime setup --engine qemu)")),
    }
}

/// Nobody needs it who does not ask for it.
pub(super) fn firecracker(choice: EngineChoice) -> Check {
    match Firecracker::find() {
        Ok(found) => Check::ok("firecracker", format!("{} at {}", found.version, found.path.display())),
        Err(e) if choice == EngineChoice::Firecracker => {
            let fix = "put firecracker and jailer of one release into /usr/local/bin, or use another --engine";
            Check::problem("firecracker", with_causes(&e), fix)
        }
        Err(e) => Check::note("firecracker", format!("{}; only --engine firecracker needs it", with_causes(&e))),
    }
}

pub(super) fn engine(choice: EngineChoice, data_dir: &Path) -> Check {
    let proven = kvm::known(data_dir, By::Qemu).is_some_and(|answer| answer.proven);
    match choice.resolve(data_dir) {
        Ok(Kind::Qemu) if choice != EngineChoice::Auto && !proven => {
            Check::ok("engine", "qemu, as asked for; emulated: no guest has been seen to run under KVM here")
        }
        Ok(kind) if choice != EngineChoice::Auto => Check::ok("engine", format!("{}, as asked for", kind.name())),
        Ok(Kind::Firecracker) => {
            Check::ok("engine", "auto picks firecracker: a guest has been seen to run under KVM here")
        }
        Ok(Kind::Qemu) if proven => Check::ok("engine", "auto picks qemu: a guest has been seen to run under KVM here"),
        Ok(Kind::Qemu) => Check::ok("engine", "auto picks qemu, emulated: gVisor is not installed"),
        Ok(Kind::Gvisor) => Check::ok("engine", "auto picks gvisor: no guest has been seen to run under KVM here"),
        Err(e) => Check::problem("engine", e.to_string(), "use --engine gvisor, or leave --engine out"),
    }
}

/// Each connection and each sandbox takes some; a server raises its own limit up to the hard one.
pub(super) fn descriptors() -> Check {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    match limit.maximum {
        Some(most) if most < LEAST_DESCRIPTORS => Check::problem(
            "descriptors",
            format!("this process may open only {most} files"),
            format!("raise the hard limit: LimitNOFILE={LEAST_DESCRIPTORS} in the service, or ulimit -Hn"),
        ),
        Some(most) => Check::ok("descriptors", format!("up to {most} open files")),
        None => Check::ok("descriptors", "as many open files as the kernel has"),
    }
}

pub(super) fn packages(choice: EngineChoice, data_dir: &Path) -> Check {
    let missing = packages::missing(choice.resolve(data_dir).unwrap_or(Kind::Gvisor));
    if missing.is_empty() {
        let version = packages::btrfs_version().map_or_else(String::new, |(major, minor)| format!(" {major}.{minor}"));
        return Check::ok("packages", format!("btrfs-progs{version} and mmdebstrap are installed"));
    }
    let names: Vec<&str> = missing.iter().map(|w| w.name).collect();
    Check::problem("packages", format!("missing or too old: {}", names.join(", ")), "runtime setup")
}
