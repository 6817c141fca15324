//! Does KVM run guests here? Only a guest that booted is proof: the device can be there, and be opened, on machines
//! under which every stock kernel crashes.
//!
//! The guest of the probe is the real kernel with a first program of a few instructions that prints one line and powers
//! off. Each program that could run machines is asked for itself, and its answer is kept in the data directory for as long
//! as it and both kernels stay the same.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use runtime_images::microvm::cpio;
use serde::{Deserialize, Serialize};

use super::{Firecracker, Guest, PrepareError, Qemu};

const DEVICE: &str = "/dev/kvm";
/// A guest boots in well under a second; a host may be busy.
const LIMIT: Duration = Duration::from_secs(10);
const MARK: &str = "runtime: a guest runs here";
const LOOK: Duration = Duration::from_millis(10);
/// More than a kernel says that boots.
const SAID: usize = 1 << 20;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    pub proven: bool,
    /// What was seen, for people.
    pub words: String,
    program: String,
    kernel: String,
    release: String,
}

/// Who boots the guest.
#[derive(Debug, Clone)]
pub enum Prober {
    Qemu(Qemu),
    Firecracker(Firecracker),
}

impl Prober {
    fn by(&self) -> By {
        match self {
            Self::Qemu(_) => By::Qemu,
            Self::Firecracker(_) => By::Firecracker,
        }
    }

    fn version(&self) -> &str {
        match self {
            Self::Qemu(qemu) => &qemu.version,
            Self::Firecracker(firecracker) => &firecracker.version,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    Qemu,
    Firecracker,
}

impl By {
    fn file(self) -> &'static str {
        match self {
            Self::Qemu => "kvm.json",
            Self::Firecracker => "kvm-firecracker.json",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Qemu => "QEMU",
            Self::Firecracker => "Firecracker",
        }
    }
}

/// The answer that is on file, whoever asked.
#[must_use]
pub fn known(data_dir: &Path, by: By) -> Option<Answer> {
    let answer = read(&data_dir.join(by.file()))?;
    (Path::new(DEVICE).exists() || !answer.proven).then_some(answer)
}

/// The answer for exactly this program and this kernel; a guest is booted if it is not on file.
pub fn ask(data_dir: &Path, prober: &Prober, guest: &Guest) -> Result<Answer, PrepareError> {
    answer(data_dir, prober, guest, |_| true)
}

/// The same for a set-up, whose operator may have put right since what stood in the way: only a proof is taken from file.
pub fn ask_again(data_dir: &Path, prober: &Prober, guest: &Guest) -> Result<Answer, PrepareError> {
    answer(data_dir, prober, guest, |known| known.proven)
}

fn answer(
    data_dir: &Path,
    prober: &Prober,
    guest: &Guest,
    holds: impl Fn(&Answer) -> bool,
) -> Result<Answer, PrepareError> {
    let question = Answer {
        proven: false,
        words: format!("there is no {DEVICE}: microVMs can only be emulated"),
        program: prober.version().to_owned(),
        kernel: guest.meta.digest.clone(),
        release: super::kernel::release(),
    };
    if !Path::new(DEVICE).exists() {
        return Ok(question);
    }
    kept(&data_dir.join(prober.by().file()), question, holds, || boot(data_dir, prober, guest))
}

/// What is on file where it answers this question and holds, else what is found out, which then is on file.
fn kept(
    path: &Path,
    question: Answer,
    holds: impl Fn(&Answer) -> bool,
    find_out: impl FnOnce() -> Result<(bool, String), PrepareError>,
) -> Result<Answer, PrepareError> {
    let same = |known: &Answer| {
        known.program == question.program && known.kernel == question.kernel && known.release == question.release
    };
    if let Some(known) = read(path).filter(|known| same(known) && holds(known)) {
        return Ok(known);
    }
    let (proven, words) = find_out()?;
    let answer = Answer { proven, words, ..question };
    let fail = |source| PrepareError::Io { step: "write", path: path.to_owned(), source };
    let new = path.with_extension("new");
    fs::write(&new, serde_json::to_vec(&answer).map_err(|e| fail(e.into()))?).map_err(fail)?;
    fs::rename(&new, path).map_err(fail)?;
    Ok(answer)
}

fn read(path: &Path) -> Option<Answer> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

fn boot(data_dir: &Path, prober: &Prober, guest: &Guest) -> Result<(bool, String), PrepareError> {
    let scratch = super::base::Scratch::new(data_dir, "kvm")?;
    let first: PathBuf = scratch.path().join("initramfs");
    let fail = |step, path: &Path| {
        let path = path.to_owned();
        move |source| PrepareError::Io { step, path, source }
    };
    fs::write(&first, probe_files()).map_err(fail("write", &first))?;
    let mut command = match prober {
        Prober::Qemu(qemu) => by_qemu(qemu, guest, &first),
        Prober::Firecracker(firecracker) => {
            let machine = scratch.path().join("machine.json");
            let text = by_firecracker(guest, &first).to_string();
            fs::write(&machine, text).map_err(fail("write", &machine))?;
            let mut command = Command::new(&firecracker.path);
            command.arg("--no-api").arg("--config-file").arg(machine);
            command
        }
    };
    let program = PathBuf::from(command.get_program());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(fail("start", &program))?;
    let console = child.stdout.take();
    let reader = std::thread::spawn(move || console.map(listen).unwrap_or_default());
    let end = Instant::now() + LIMIT;
    let mut in_time = true;
    // Firecracker's machines cannot be powered off: whose guest has spoken is ended.
    while !reader.is_finished() && child.try_wait().map_err(fail("wait for", &program))?.is_none() {
        if Instant::now() > end {
            in_time = false;
            break;
        }
        std::thread::sleep(LOOK);
    }
    let _ = child.kill();
    let mut complaint = String::new();
    if let Some(errors) = child.stderr.take() {
        let _ = errors.take(4096).read_to_string(&mut complaint);
    }
    let _ = child.wait();
    let said = reader.join().unwrap_or_default();
    if said.contains(MARK) {
        return Ok((true, format!("a guest kernel booted under KVM, by {}", prober.by().name())));
    }
    let complaint =
        complaint.lines().find(|line| !line.trim().is_empty()).unwrap_or("no word from it").trim().to_owned();
    let how = if in_time { "ended before it said a word" } else { "hung" };
    Ok((false, format!("{DEVICE} is there, but a guest kernel booted under it {how} ({complaint}): KVM is not used")))
}

fn by_qemu(qemu: &Qemu, guest: &Guest, first: &Path) -> Command {
    let mut command = Command::new(&qemu.path);
    command
        .args(["-M", "microvm,rtc=on,pit=off,pic=off", "-accel", "kvm", "-cpu", "host", "-m", "128", "-smp", "1"])
        .args(["-no-reboot", "-nodefaults", "-no-user-config", "-nographic", "-serial", "stdio"])
        .arg("-kernel")
        .arg(guest.kernel())
        .arg("-initrd")
        .arg(first)
        .args(["-append", "console=ttyS0 panic=-1 reboot=t quiet"])
        .args(["-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"]);
    command
}

/// A machine as Firecracker reads it from a file.
fn by_firecracker(guest: &Guest, first: &Path) -> serde_json::Value {
    serde_json::json!({
        "boot-source": {
            "kernel_image_path": guest.kernel(),
            "initrd_path": first,
            "boot_args": "console=ttyS0 panic=-1 reboot=k quiet",
        },
        "drives": [],
        "machine-config": {"vcpu_count": 1, "mem_size_mib": 128},
    })
}

/// What a console says, up to the mark.
fn listen(mut console: impl Read) -> String {
    let (mut said, mut buffer) = (Vec::new(), [0; 4096]);
    while said.len() < SAID
        && let Ok(count @ 1..) = console.read(&mut buffer)
    {
        said.extend_from_slice(&buffer[..count]);
        if said.windows(MARK.len()).any(|part| part == MARK.as_bytes()) {
            break;
        }
    }
    String::from_utf8_lossy(&said).into_owned()
}

fn probe_files() -> Vec<u8> {
    let mut files = cpio::Writer::default();
    files.dir("dev");
    files.char_device("dev/console", 5, 1);
    files.file("init", 0o555, &probe_program());
    files.finish()
}

/// A whole program for x86-64 Linux: it prints the mark and powers the machine off.
fn probe_program() -> Vec<u8> {
    const BASE: u64 = 0x40_0000;
    const HEADERS: u64 = 64 + 56;
    let text = format!("{MARK}\n");
    let mut code = vec![0xb8, 1, 0, 0, 0]; // mov eax, write
    code.extend([0xbf, 1, 0, 0, 0]); // mov edi, 1
    code.extend([0x48, 0x8d, 0x35, 36, 0, 0, 0]); // lea rsi, [rip + 36], the text behind the code
    code.push(0xba); // mov edx, its length
    code.extend((text.len() as u32).to_le_bytes());
    code.extend([0x0f, 0x05]); // syscall
    code.extend([0xb8, 169, 0, 0, 0]); // mov eax, reboot
    code.extend([0xbf, 0xad, 0xde, 0xe1, 0xfe]); // mov edi, its first magic number
    code.extend([0xbe, 0x69, 0x19, 0x12, 0x28]); // mov esi, its second
    code.extend([0xba, 0xdc, 0xfe, 0x21, 0x43]); // mov edx, power off
    code.extend([0x0f, 0x05]); // syscall
    code.extend([0xeb, 0xfe]); // jmp to itself
    code.resize(17 + 36, 0x90);
    code.extend(text.as_bytes());
    let size = HEADERS + code.len() as u64;
    let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    for half in [2_u16, 62] {
        file.extend(half.to_le_bytes()); // executable, x86-64
    }
    file.extend(1_u32.to_le_bytes());
    for word in [BASE + HEADERS, 64, 0] {
        file.extend(word.to_le_bytes()); // entry, program headers, no section headers
    }
    file.extend(0_u32.to_le_bytes());
    for half in [64_u16, 56, 1, 0, 0, 0] {
        file.extend(half.to_le_bytes());
    }
    for word in [1_u32, 5] {
        file.extend(word.to_le_bytes()); // loaded, readable and executable
    }
    for word in [0, BASE, BASE, size, size, 0x1000] {
        file.extend(word.to_le_bytes());
    }
    file.extend(code);
    file
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_proof_is_kept_and_a_setup_asks_again_after_a_no() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kvm.json");
        let question = |program: &str| Answer {
            proven: false,
            words: String::new(),
            program: program.to_owned(),
            kernel: "k".to_owned(),
            release: "r".to_owned(),
        };
        let (always, proofs) = (|_: &Answer| true, |known: &Answer| known.proven);
        let says = |proven| move || Ok((proven, if proven { "it ran" } else { "it hung" }.to_owned()));
        let unasked = || panic!("the answer is on file");
        assert_eq!(kept(&path, question("1"), always, says(false)).unwrap().words, "it hung");
        assert!(!kept(&path, question("1"), always, unasked).unwrap().proven);
        assert!(kept(&path, question("1"), proofs, says(true)).unwrap().proven);
        assert_eq!(kept(&path, question("1"), proofs, unasked).unwrap().words, "it ran");
        // Another program, or another kernel of either side, is another question.
        assert!(!kept(&path, question("2"), always, says(false)).unwrap().proven);
        for other in [Answer { kernel: "l".into(), ..question("2") }, Answer { release: "s".into(), ..question("2") }] {
            assert!(kept(&path, other, always, says(true)).unwrap().proven);
        }
        fs::write(&path, "{").unwrap();
        assert!(kept(&path, question("2"), always, says(true)).unwrap().proven, "what cannot be read is no answer");
    }

    #[test]
    fn a_console_is_heard_up_to_the_mark_and_no_longer() {
        let said = format!("booting\n{MARK}\n");
        // One that never ends: a machine that was not powered off.
        let console = said.as_bytes().chain(std::io::repeat(b'.'));
        assert!(listen(console).starts_with(&said));
        assert!(listen(std::io::repeat(b'.')).len() < 2 * SAID);
        assert_eq!(listen(&b"Kernel panic"[..]), "Kernel panic");
    }

    #[test]
    fn the_program_of_the_probe_runs_and_says_its_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("init");
        fs::write(&path, probe_program()).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o555)).unwrap();
        // As somebody who may not power anything off: that call fails there, and it waits to be killed.
        let file = fs::File::open(&path).unwrap();
        let mut child = Command::new("setpriv")
            .args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "--inh-caps=-all", "/proc/self/fd/0"])
            .stdin(file)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = vec![0; MARK.len() + 1];
        child.stdout.take().unwrap().read_exact(&mut said).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(String::from_utf8(said).unwrap(), format!("{MARK}\n"));
    }
}
