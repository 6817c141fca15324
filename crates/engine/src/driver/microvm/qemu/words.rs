//! QEMU's command line.
//!
//! It gets everything it needs as open descriptors and runs as nobody in particular: it can open no file of the host that
//! is not everybody's. A copy of a template gets a clone of its disk, and only reads its memory.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::{Launch, Memory, Qemu, Start};
use crate::prepare::Accel;

/// The numbers under which QEMU finds its files.
pub(super) mod fds {
    pub(crate) const MONITOR: i32 = 3;
    pub(crate) const CHANNEL: i32 = 4;
    pub(crate) const BASE: i32 = 5;
    pub(crate) const DISK: i32 = 6;
    pub(crate) const MEMORY: i32 = 7;
    pub(crate) const KERNEL: i32 = 8;
    pub(crate) const INITRAMFS: i32 = 9;
    pub(crate) const STATE: i32 = 10;
    /// The disk again, for reading only: QEMU opens it so before it opens it for both.
    pub(crate) const DISK_READ: i32 = 11;
    /// A template's memory, which it is given only when it opens it.
    pub(crate) const SHARED: i32 = 512;
}

/// Translated code that is kept, in MiB: without a limit it grows beyond the guest's memory, with less it thrashes.
const TRANSLATED_MIB: u64 = 64;

impl Qemu {
    /// Its words. `name` shows in the process list and marks the process as this sandbox's.
    pub(super) fn arguments(&self, launch: &Launch, name: &Path) -> Vec<CString> {
        let mut words = Words::default();
        words.add(self.path.as_os_str().as_bytes());
        words.add("-name");
        // A comma would begin another option.
        words.add([b"guest=", name.as_os_str().as_bytes().to_vec().as_slice()].concat());
        words.pair("-M", "microvm,rtc=on,pit=off,pic=off,memory-backend=m0");
        match self.accel {
            Accel::Kvm => {
                words.pair("-accel", "kvm");
                words.pair("-cpu", "host");
            }
            Accel::Tcg => {
                words.pair("-accel", format!("tcg,tb-size={TRANSLATED_MIB}"));
                words.pair("-cpu", "max");
            }
        }
        let size = launch.memory_mib;
        words.pair("-m", format!("{size}M"));
        words.pair("-smp", launch.vcpu.to_string());
        for word in ["-no-reboot", "-nodefaults", "-no-user-config", "-nographic"] {
            words.add(word);
        }
        words.pair("-chardev", "stdio,id=con,signal=off");
        words.pair("-serial", "chardev:con");
        let file = |fd: i32| {
            let path = memory_path(fd);
            format!("memory-backend-file,id=m0,size={size}M,mem-path={}", path.to_string_lossy())
        };
        words.pair(
            "-object",
            match &launch.memory {
                Memory::Own => format!("memory-backend-ram,id=m0,size={size}M"),
                Memory::Written(_) => file(fds::MEMORY) + ",share=on",
                Memory::Template(_) => file(fds::SHARED) + ",share=off",
            },
        );
        words.pair("-chardev", format!("socket,id=mon,fd={},server=on,wait=off", fds::MONITOR));
        words.pair("-mon", "chardev=mon,mode=control");
        words.pair("-chardev", format!("socket,id=ch,fd={},server=on,wait=off", fds::CHANNEL));
        words.pair("-device", "virtio-serial-device,id=vs,max_ports=2");
        words.pair("-device", "virtserialport,chardev=ch,name=agent,id=p1");
        for (number, fd, name, rest) in [(0, fds::BASE, "base", "readonly=on"), (1, fds::DISK, "disk", "discard=unmap")]
        {
            words.pair("-add-fd", format!("fd={fd},set={fd}"));
            if fd == fds::DISK {
                words.pair("-add-fd", format!("fd={},set={fd}", fds::DISK_READ));
            }
            words.pair(
                "-drive",
                format!("if=none,id=d{number},file=/dev/fdset/{fd},format=raw,file.locking=off,{rest}"),
            );
            words.pair("-device", format!("virtio-blk-device,drive=d{number},id=blk{number},serial={name}"));
        }
        words.pair("-object", "rng-random,id=rng0,filename=/dev/urandom");
        words.pair("-device", "virtio-rng-device,rng=rng0,id=rng");
        // The guest tells what it has freed, and that is given back.
        words.pair("-device", "virtio-balloon-device,id=balloon,free-page-reporting=on,deflate-on-oom=on");
        words.pair("-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny");
        match &launch.start {
            Start::Cold { .. } => {
                words.pair("-kernel", format!("/proc/self/fd/{}", fds::KERNEL));
                words.pair("-initrd", format!("/proc/self/fd/{}", fds::INITRAMFS));
                words.pair("-append", self.kernel_words());
            }
            Start::Restore { .. } => words.pair("-incoming", "defer"),
        }
        words.0
    }

    /// The guest's own command line. An emulated kernel is spared what goes wrong or costs most there: finding out the
    /// speed of its clock, and addresses that change with every program, which would be translated anew each time.
    fn kernel_words(&self) -> String {
        let all = "console=ttyS0 panic=-1 reboot=t quiet random.trust_cpu=on 8250.nr_uarts=1 cryptomgr.notests \
                   rcupdate.rcu_expedited=1 apparmor=0";
        match self.accel {
            Accel::Kvm => all.to_owned(),
            Accel::Tcg => {
                format!("{all} mitigations=off tsc_early_khz={} no_timer_check tsc=reliable norandmaps", self.tsc_khz)
            }
        }
    }
}

pub(super) fn memory_path(fd: i32) -> CString {
    // There is no NUL in it.
    CString::new(format!("/proc/self/fd/{fd}")).unwrap_or_default()
}

#[derive(Default)]
struct Words(Vec<CString>);

impl Words {
    fn add(&mut self, word: impl AsRef<[u8]>) {
        // No word of ours holds a NUL; a path with one cannot exist.
        self.0.extend(CString::new(word.as_ref()));
    }

    fn pair(&mut self, name: &str, value: impl AsRef<[u8]>) {
        self.add(name);
        self.add(value);
    }
}

#[cfg(test)]
mod tests {
    use runtime_host::cgroup::Limits;

    use super::super::super::vmm::Program;
    use super::*;

    fn launch(memory: Memory, start: Start, accel: Accel) -> Vec<String> {
        let limits = Limits { memory_bytes: 1, cpu_quota_millis: 1000, cpu_floor_millis: 50, pids: 100 };
        let qemu = Qemu { path: "/usr/bin/qemu".into(), accel, tsc_khz: 2_600_000 };
        let launch = Launch {
            program: Program::Qemu(qemu.clone()),
            memory_mib: 512,
            vcpu: 1,
            uid: 7,
            bounds: limits.into(),
            base: "/b".into(),
            disk: "/d".into(),
            outbox: "/o".into(),
            memory,
            start,
            template: false,
        };
        qemu.arguments(&launch, Path::new("/run/x")).into_iter().map(|word| word.into_string().unwrap()).collect()
    }

    fn cold() -> Start {
        Start::Cold { kernel: "/k".into(), initramfs: "/i".into() }
    }

    #[test]
    fn a_restored_machine_has_the_devices_it_was_saved_with() {
        let devices = |words: &[String]| {
            let pairs = words.windows(2).filter(|pair| ["-M", "-device", "-smp", "-m", "-serial"].contains(&&*pair[0]));
            pairs.map(<[String]>::to_vec).collect::<Vec<_>>()
        };
        let built = launch(Memory::Written("/m".into()), cold(), Accel::Tcg);
        let state = Start::Restore { state: "/s".into(), spends: None };
        let restored = launch(Memory::Template("/m".into()), state, Accel::Tcg);
        assert_eq!(devices(&built), devices(&restored));
        assert!(restored.iter().all(|word| word != "-kernel") && built.iter().all(|word| word != "-incoming"));
        assert!(restored.iter().any(|word| word.ends_with("share=off")));
    }

    #[test]
    fn an_emulated_guest_is_told_its_clock_and_no_machine_gets_a_path_of_the_host() {
        let words = launch(Memory::Own, cold(), Accel::Tcg);
        let append = &words[words.iter().position(|word| word == "-append").unwrap() + 1];
        assert!(append.contains("tsc_early_khz=2600000") && append.contains("norandmaps"), "{append}");
        for word in &words {
            assert!(!["/b", "/d", "/k", "/i"].contains(&word.as_str()), "{word}");
        }
        assert!(words.iter().any(|word| word.starts_with("on,") && word.contains("spawn=deny")));
        let append = launch(Memory::Own, cold(), Accel::Kvm).join(" ");
        assert!(!append.contains("mitigations=off") && !append.contains("tsc_early_khz"), "{append}");
    }
}
