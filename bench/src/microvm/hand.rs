//! QEMU by hand: the same kernel, first file system and disks, started as one would on a command line; nobody in between,
//! no control group, no user of its own, no shim.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use runtime_engine::driver::Identity;
use runtime_engine::driver::microvm::Hypervisor;
use runtime_engine::prepare::Accel;
use serde_json::{Value, json};

use super::Rig;
use super::guest::Guest;

/// What has run in a template before it is saved.
const WARM: &str = "python3 -c pass; python3 -c pass; true";
const PATIENCE: Duration = Duration::from_secs(30);

pub struct ByHand {
    dir: PathBuf,
    qemu: PathBuf,
    accel: Accel,
    memory_mib: u64,
    khz: u64,
    kernel: PathBuf,
    base: PathBuf,
    next: AtomicU32,
}

pub struct Machine {
    guest: Option<Guest>,
    child: Child,
    dir: PathBuf,
}

impl Machine {
    pub async fn sh(&self, command: &str) -> Result<String> {
        Ok(self.guest.as_ref().context("nobody speaks to it")?.sh(command).await)
    }

    pub fn freeze(&mut self) -> Result<()> {
        self.guest = None;
        Monitor::connect(&self.dir.join("q"))?.ask("stop", Value::Null).map(drop)
    }

    /// Of one that stands still: devices and memory as one stream, and the disk as it is; written down.
    pub fn save(&self, hand: &ByHand) -> Result<()> {
        let mut monitor = Monitor::connect(&self.dir.join("q"))?;
        let (state, disk) = hand.saved();
        for path in [&state, &disk] {
            let _ = fs::remove_file(path);
        }
        monitor.ask("migrate-set-capabilities", ignore_shared(false))?;
        monitor.ask("migrate-set-parameters", json!({ "max-bandwidth": 1_u64 << 40 }))?;
        monitor.ask("migrate", json!({ "uri": format!("exec:cat > {}", state.display()) }))?;
        monitor.until("query-migrate", "completed")?;
        clone(&self.dir.join("disk"), &disk)?;
        for path in [&state, &disk] {
            fs::File::open(path)?.sync_all()?;
        }
        Ok(())
    }

    pub async fn thaw(&mut self) -> Result<()> {
        Monitor::connect(&self.dir.join("q"))?.ask("cont", Value::Null)?;
        self.guest = Some(greet(connect(&self.dir.join("c"))?).await?);
        Ok(())
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.dir);
    }
}

impl ByHand {
    /// Builds a template: `mem`, `state` and `disk`, as the driver has them.
    pub async fn prepare(rig: &Rig) -> Result<Self> {
        let (qemu, accel) = match &rig.hypervisor {
            Hypervisor::Qemu { qemu, accel } => (qemu.path.clone(), *accel),
            Hypervisor::Firecracker(_) => bail!("by hand there is only QEMU: measure with --engine qemu"),
        };
        let dir = rig.host.pool.dir().join("by-hand");
        fs::create_dir_all(&dir)?;
        let this = Self {
            qemu,
            accel,
            memory_mib: rig.shape.memory_mib,
            khz: runtime_host::clock::tsc_khz(),
            kernel: rig.guest.kernel(),
            base: rig.guest.base_disk(),
            next: AtomicU32::new(0),
            dir,
        };
        fs::write(this.dir.join("initramfs"), rig.guest.initramfs(&fs::read(&rig.agent)?)?)?;
        let disk = this.dir.join("disk");
        fs::File::create(&disk)?.set_len(rig.shape.disk_mib << 20)?;
        let options = "lazy_itable_init=1,lazy_journal_init=1,nodiscard";
        let made = Command::new("mkfs.ext4").args(["-q", "-F", "-m", "0", "-E", options]).arg(&disk).status()?;
        ensure!(made.success(), "mkfs.ext4 ended with {made}");
        let clean = this.dir.join("clean");
        clone(&disk, &clean)?;
        let memory = this.dir.join("mem");
        fs::File::create(&memory)?.set_len(this.memory_mib << 20)?;
        let memory = format!("{},share=on", this.in_file(&memory));
        let machine = this.start(&this.cold(), &memory, &clean, None).await?;
        // As the driver's.
        machine.sh(WARM).await?;
        let mut monitor = Monitor::connect(&machine.dir.join("q"))?;
        monitor.ask("migrate-set-capabilities", ignore_shared(true))?;
        let state = format!("exec:cat > {}", this.dir.join("state").display());
        monitor.ask("migrate", json!({ "uri": state }))?;
        monitor.until("query-migrate", "completed")?;
        clone(&machine.dir.join("disk"), &this.dir.join("used"))?;
        Ok(this)
    }

    fn in_file(&self, path: &Path) -> String {
        format!("memory-backend-file,id=m0,size={}M,mem-path={}", self.memory_mib, path.display())
    }

    fn cold(&self) -> Vec<String> {
        let mut words = "console=ttyS0 panic=-1 reboot=t quiet random.trust_cpu=on 8250.nr_uarts=1 cryptomgr.notests \
                         rcupdate.rcu_expedited=1 apparmor=0"
            .to_owned();
        if self.accel == Accel::Tcg {
            words += &format!(" mitigations=off tsc_early_khz={} no_timer_check tsc=reliable norandmaps", self.khz);
        }
        let path = |name: &Path| name.display().to_string();
        let initramfs = self.dir.join("initramfs");
        vec!["-kernel".into(), path(&self.kernel), "-initrd".into(), path(&initramfs), "-append".into(), words]
    }

    pub async fn boot(&self) -> Result<Machine> {
        let memory = format!("memory-backend-ram,id=m0,size={}M", self.memory_mib);
        self.start(&self.cold(), &memory, &self.dir.join("disk"), None).await
    }

    pub async fn restore(&self) -> Result<Machine> {
        let memory = format!("{},share=off", self.in_file(&self.dir.join("mem")));
        let from = Some((self.dir.join("state"), true));
        self.start(&["-incoming".into(), "defer".into()], &memory, &self.dir.join("used"), from).await
    }

    fn saved(&self) -> (PathBuf, PathBuf) {
        (self.dir.join("saved-state"), self.dir.join("saved-disk"))
    }

    /// What [`Machine::save`] wrote last.
    pub async fn fork(&self) -> Result<Machine> {
        let memory = format!("memory-backend-ram,id=m0,size={}M", self.memory_mib);
        let (state, disk) = self.saved();
        self.start(&["-incoming".into(), "defer".into()], &memory, &disk, Some((state, false))).await
    }

    /// `from` is a saved state, and whether its memory is apart.
    async fn start(&self, how: &[String], memory: &str, disk: &Path, from: Option<(PathBuf, bool)>) -> Result<Machine> {
        let dir = self.dir.join(self.next.fetch_add(1, Ordering::Relaxed).to_string());
        fs::create_dir(&dir)?;
        let own = dir.join("disk");
        clone(disk, &own)?;
        let (accel, cpu) = match self.accel {
            Accel::Kvm => ("kvm", "host"),
            Accel::Tcg => ("tcg,tb-size=64", "max"),
        };
        let socket =
            |id: &str, name: &str| format!("socket,id={id},path={},server=on,wait=off", dir.join(name).display());
        let child = Command::new(&self.qemu)
            .args(["-M", "microvm,rtc=on,pit=off,pic=off,memory-backend=m0", "-accel", accel, "-cpu", cpu])
            .args(["-m", &format!("{}M", self.memory_mib), "-smp", "1", "-no-reboot", "-nodefaults", "-no-user-config"])
            .args(["-nographic", "-serial", "null", "-object", memory])
            .args(["-chardev", &socket("mon", "q"), "-mon", "chardev=mon,mode=control"])
            .args(["-chardev", &socket("ch", "c"), "-device", "virtio-serial-device,id=vs,max_ports=2"])
            .args(["-device", "virtserialport,chardev=ch,name=agent,id=p1"])
            .args(["-drive", &format!("if=none,id=d0,file={},format=raw,readonly=on", self.base.display())])
            .args(["-device", "virtio-blk-device,drive=d0,id=blk0,serial=base"])
            .args(["-drive", &format!("if=none,id=d1,file={},format=raw,discard=unmap", own.display())])
            .args(["-device", "virtio-blk-device,drive=d1,id=blk1,serial=disk"])
            .args(["-object", "rng-random,id=rng0,filename=/dev/urandom"])
            .args(["-device", "virtio-rng-device,rng=rng0,id=rng"])
            .args(how)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .with_context(|| format!("start {}", self.qemu.display()))?;
        let (channel, monitor) = (dir.join("c"), dir.join("q"));
        let channel = connect(&channel)?;
        if let Some((state, apart)) = from {
            let mut monitor = Monitor::connect(&monitor)?;
            monitor.ask("migrate-set-capabilities", ignore_shared(apart))?;
            monitor.ask("migrate-incoming", json!({ "uri": format!("exec:cat {}", state.display()) }))?;
            // One that was saved while it stood still does not go on by itself.
            loop {
                match monitor.ask("query-status", Value::Null)?["status"].as_str() {
                    Some("running") => break,
                    Some("paused" | "prelaunch" | "postmigrate") => drop(monitor.ask("cont", Value::Null)?),
                    _ => std::thread::sleep(Duration::from_millis(1)),
                }
            }
        }
        let guest = Some(greet(channel).await?);
        Ok(Machine { guest, child, dir })
    }
}

fn ignore_shared(yes: bool) -> Value {
    json!({"capabilities": [{"capability": "x-ignore-shared", "state": yes}]})
}

async fn greet(channel: UnixStream) -> Result<Guest> {
    channel.set_nonblocking(true)?;
    let (reader, writer) = tokio::net::UnixStream::from_std(channel)?.into_split();
    let identity = Identity { hostname: "bench".to_owned(), generation: 2, max_user_processes: 100, memory_bytes: 0 };
    Ok(Guest::over(Box::new(reader), Box::new(writer), &identity, "bench").await)
}

fn connect(path: &Path) -> Result<UnixStream> {
    let end = Instant::now() + PATIENCE;
    loop {
        match UnixStream::connect(path) {
            Ok(stream) => return Ok(stream),
            Err(error) if Instant::now() > end => bail!("{}: {error}", path.display()),
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

fn clone(from: &Path, to: &Path) -> Result<()> {
    let copied = Command::new("cp").args(["--reflink=always"]).arg(from).arg(to).status()?;
    ensure!(copied.success(), "cp ended with {copied}");
    Ok(())
}

struct Monitor(BufReader<UnixStream>);

impl Monitor {
    fn connect(path: &Path) -> Result<Self> {
        let mut this = Self(BufReader::new(connect(path)?));
        this.line()?;
        this.ask("qmp_capabilities", Value::Null)?;
        Ok(this)
    }

    fn line(&mut self) -> Result<Value> {
        let mut line = String::new();
        ensure!(self.0.read_line(&mut line)? > 0, "the monitor ended");
        Ok(serde_json::from_str(&line)?)
    }

    fn ask(&mut self, command: &str, arguments: Value) -> Result<Value> {
        let mut message = json!({ "execute": command });
        if !arguments.is_null() {
            message["arguments"] = arguments;
        }
        writeln!(self.0.get_mut(), "{message}")?;
        loop {
            let line = self.line()?;
            ensure!(line.get("error").is_none(), "{command}: {line}");
            if let Some(value) = line.get("return") {
                return Ok(value.clone());
            }
        }
    }

    fn until(&mut self, command: &str, status: &str) -> Result<()> {
        let end = Instant::now() + PATIENCE;
        while self.ask(command, Value::Null)?["status"] != status {
            ensure!(Instant::now() < end, "{command} does not become {status}");
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}

/// Memory of a process that it shares with nobody.
pub fn private_kib(pid: u32) -> Result<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let lines = text.lines().filter(|line| line.starts_with("Private_"));
    Ok(lines.filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok()).sum())
}
