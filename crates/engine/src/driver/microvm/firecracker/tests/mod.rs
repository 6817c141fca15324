//! What we ask of Firecracker, held against its published document, and the jail it is asked in. No guest runs here.

use std::path::Path;

use runtime_host::cgroup::Limits;
use runtime_host::process::ProcessId;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::super::launch::Memory;
use super::super::launch::Start;
use super::super::vmm::Program;
use super::api::{ApiError, State};
use super::http::Http;
use super::*;

mod stand_in;
use stand_in::{StandIn, check};

/// The oldest that is allowed, one whose balloon reports, and the newest that is known.
const OLDEST: Release = (1, 10, 0);
const REPORTING: Release = (1, 14, 0);
const NEWEST: Release = (1, 16, 2);
/// Every request of a machine's life that carries something, in each release, with the answer it gets. One line each;
/// whoever changes what is sent changes this file.
const EXCHANGES: &str = include_str!("exchanges.jsonl");
/// Where files can share blocks, and machines are put.
const POOL: &str = "/var/lib/runtime/pool";

struct Place {
    dir: tempfile::TempDir,
    run_dir: PathBuf,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("firecracker-test-").tempdir_in(POOL).unwrap();
        let run_dir = dir.path().join("run");
        fs::create_dir(&run_dir).unwrap();
        for name in ["base", "disk.ext4", "kernel", "initramfs"] {
            fs::write(dir.path().join(name), name).unwrap();
        }
        Self { dir, run_dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn launch(&self, memory: Memory, start: Start) -> Launch {
        let limits = Limits { memory_bytes: 1, cpu_quota_millis: 1000, cpu_floor_millis: 50, pids: 100 };
        Launch {
            program: Program::Firecracker(program()),
            memory_mib: 512,
            vcpu: 2,
            uid: 1_000_000_007,
            bounds: limits.into(),
            base: self.path("base"),
            disk: self.path("disk.ext4"),
            outbox: self.path("out"),
            memory,
            start,
            template: false,
        }
    }

    fn cold(&self) -> Launch {
        let start = Start::Cold { kernel: self.path("kernel"), initramfs: self.path("initramfs") };
        self.launch(Memory::Own, start)
    }

    fn start(&self, name: &str, launch: &Launch) -> StandIn {
        self.start_release(name, launch, NEWEST)
    }

    fn start_release(&self, name: &str, launch: &Launch, release: Release) -> StandIn {
        StandIn::start(Jail::of(&self.run_dir, &program().path, name), launch.clone(), release)
    }

    fn at<'a>(&'a self, machine: &StandIn) -> At<'a> {
        At { run_dir: &self.run_dir, process: machine.process }
    }
}

fn program() -> Firecracker {
    Firecracker { path: "/opt/fc/firecracker-v1.16.2-x86_64".into(), jailer: "/opt/fc/jailer".into(), release: NEWEST }
}

fn mounts() -> String {
    fs::read_to_string("/proc/thread-self/mountinfo").unwrap()
}

#[tokio::test]
async fn a_machine_is_booted_paused_saved_and_restored_as_the_document_says() {
    let place = Place::new();
    let (vmm, launch) = (program(), place.cold());
    let source = place.start("source", &launch);
    let at = place.at(&source);
    vmm.boot(&at, &launch).unwrap();
    let heard = || source.heard.lock().unwrap().clone();
    let asked = |request: &str| {
        let (line, heard) = (format!("{request} "), heard());
        let line = heard.iter().find_map(|heard| heard.strip_prefix(&line)).unwrap_or_else(|| panic!("{heard:?}"));
        serde_json::from_str::<Value>(line).unwrap()
    };
    assert_eq!(
        asked("PUT /machine-config"),
        json!({"vcpu_count": 2, "mem_size_mib": 512, "smt": false, "track_dirty_pages": false})
    );
    assert_eq!(asked("PUT /drives/base")["is_read_only"], true);
    assert_eq!(
        asked("PUT /drives/disk"),
        json!({"drive_id": "disk", "path_on_host": "/disk", "is_root_device": false, "is_read_only": false,
               "cache_type": "Writeback"})
    );
    let boot = asked("PUT /boot-source");
    assert!(boot["boot_args"].as_str().unwrap().split(' ').any(|word| word == "runtime.vsock=52"), "{boot}");
    assert_eq!(asked("PUT /vsock"), json!({"guest_cid": 3, "uds_path": "/v"}));
    assert_eq!(asked("PUT /entropy"), json!({}));
    assert_eq!(asked("PUT /balloon"), json!({"amount_mib": 0, "deflate_on_oom": true, "free_page_reporting": true}));
    assert_eq!(heard().last().unwrap(), r#"PUT /actions {"action_type":"InstanceStart"}"#);

    // The guest does not listen at first; what it says right behind the agreement is not lost.
    let (mut reader, mut writer) = vmm.dial(&at, None).unwrap().dial().unwrap();
    writer.write_all(b"hello").await.unwrap();
    let mut said = [0; 12];
    reader.read_exact(&mut said).await.unwrap();
    assert_eq!(&said, b"guest: hello");

    // Pausing and resuming twice is fine, in either state.
    for _ in 0..2 {
        vmm.pause(&at).unwrap();
        vmm.pause(&at).unwrap();
        vmm.resume(&at).unwrap();
        vmm.resume(&at).unwrap();
    }
    vmm.pause(&at).unwrap();
    let saved = place.path("saved");
    fs::create_dir(&saved).unwrap();
    vmm.snapshot(&at, &launch, &saved, API_LIMIT).unwrap();
    let create = asked("PUT /snapshot/create");
    assert_eq!(create, json!({"snapshot_type": "Full", "snapshot_path": "/out/state", "mem_file_path": "/out/mem"}));
    assert_eq!(fs::read_to_string(saved.join("mem")).unwrap(), "/out/mem");
    assert_eq!(fs::read_dir(&launch.outbox).unwrap().count(), 0, "what it wrote is not left with it");

    // Twice from the same files, which neither can write to: copies of a template.
    let start = Start::Restore { state: saved.join("state"), spends: None };
    for name in ["one", "other"] {
        let copy = place.launch(Memory::Template(saved.join("mem")), start.clone());
        let copied = place.start(name, &copy);
        let at = place.at(&copied);
        vmm.restore(&at, &copy).unwrap();
        let heard = copied.heard.lock().unwrap().clone();
        let load = json!({"snapshot_path": "/state", "resume_vm": true,
                          "mem_backend": {"backend_type": "File", "backend_path": "/memory"},
                          "vsock_override": {"uds_path": "/v"}, "clock_realtime": true});
        assert_eq!(heard.len(), 2, "{heard:?}");
        assert_eq!(serde_json::from_str::<Value>(&heard[1]["PUT /snapshot/load ".len()..]).unwrap(), load);
        // From the same outbox as the source: a jail of its own each time.
        assert!(matches!(Firecracker::attach(&at).unwrap(), Present::Running(_)));
    }
    assert!(!mounts().contains(place.run_dir.to_str().unwrap()), "nobody else sees the jails");
}

#[test]
fn what_firecracker_refuses_is_told_with_its_reason() {
    let place = Place::new();
    let (vmm, launch) = (program(), place.cold());
    let machine = place.start("one", &launch);
    let at = place.at(&machine);
    let root = Root::of(machine.process).unwrap();
    // It exists before it listens.
    drop(Fresh::wait(&root.path(jail::API), API_LIMIT, || true).unwrap());
    let error = vmm.pause(&at).unwrap_err();
    assert!(matches!(error, VmmError::Firecracker(ApiError::Phase(State::NotStarted))), "{error:?}");
    vmm.boot(&at, &launch).unwrap();
    // A process that has a machine takes no other.
    for again in [vmm.boot(&at, &launch), vmm.restore(&at, &launch)] {
        let error = again.unwrap_err();
        assert!(matches!(error, VmmError::Firecracker(ApiError::Phase(State::Running))), "{error:?}");
    }
    // A disk that is full, say.
    fs::remove_dir_all(&launch.outbox).unwrap();
    let error = crate::host_state::chain(&vmm.snapshot(&at, &launch, place.dir.path(), API_LIMIT).unwrap_err());
    assert!(error.contains("PUT /snapshot/create (400): Cannot create a file at /out/state"), "{error}");

    let jail = Jail::of(&place.run_dir, Path::new("/firecracker"), "none");
    let gone = At { run_dir: &place.run_dir, process: ProcessId { pid: machine.process.pid, start_time: 1 } };
    assert!(Root::of(gone.process).is_err(), "a number that is used again");
    assert!(vmm.dial(&gone, None).is_err());
    let began = std::time::Instant::now();
    assert!(Fresh::wait(&jail.root.join("api.sock"), API_LIMIT, || false).is_err());
    assert!(began.elapsed() < API_LIMIT, "whose process has ended is not waited for");
}

#[test]
fn the_stand_in_refuses_what_the_document_does_not_have() {
    let place = Place::new();
    let machine = place.start("one", &place.cold());
    let root = Root::of(machine.process).unwrap();
    let mut http = loop {
        if let Ok(http) = Http::connect(&root.path(jail::API)) {
            break http;
        }
    };
    let mut put = |path: &str, body: Value| {
        let answer = http.ask("PUT", path, Some(body.to_string().as_bytes()), API_LIMIT).unwrap();
        (answer.status, String::from_utf8(answer.body).unwrap())
    };
    let wrong = [
        ("/machine-config", json!({"vcpu_count": 1, "mem_size_mib": 1, "vcpus": 1})),
        ("/machine-config", json!({"vcpu_count": 1})),
        ("/machine-config", json!({"vcpu_count": 33, "mem_size_mib": 1})),
        ("/machine-config", json!({"vcpu_count": "1", "mem_size_mib": 1})),
        ("/vsock", json!({"guest_cid": 2, "uds_path": "/v"})),
        (
            "/snapshot/load",
            json!({"snapshot_path": "/state", "mem_backend": {"backend_type": "file", "backend_path": "/m"}}),
        ),
        ("/snapshot/create", json!({"snapshot_path": "/state", "mem_file_path": "/m"})),
        ("/drives/", json!({"drive_id": "", "is_root_device": false})),
        ("/vm", json!({"state": "Paused"})),
        ("/actions", json!({"action_type": "InstanceStart"})),
        ("/nothing", json!({})),
    ];
    for (path, body) in wrong {
        let (status, why) = put(path, body.clone());
        assert!(status == 400 && why.contains("fault_message"), "{path} {body}: {status} {why}");
    }
    assert_eq!(put("/machine-config", json!({"vcpu_count": 1, "mem_size_mib": 1})).0, 204);
    let document: Value = serde_json::from_str(include_str!("../document.json")).unwrap();
    for kind in document["types"].as_object().unwrap().keys() {
        assert!(check(&document, NEWEST, kind, &json!({"x": 1})).is_err(), "{kind}");
    }
    let balloon = json!({"amount_mib": 0, "deflate_on_oom": true, "free_page_reporting": true});
    assert!(check(&document, REPORTING, "Balloon", &balloon).is_ok());
    assert!(check(&document, OLDEST, "Balloon", &balloon).unwrap_err().contains("free_page_reporting"));
    let load = json!({"snapshot_path": "/state", "mem_backend": {"backend_type": "file", "backend_path": "/m"}});
    assert!(check(&document, NEWEST, "SnapshotLoadParams", &load).unwrap_err().contains("backend_type"));
    let load = json!({"snapshot_path": "/state", "vsock_override": {"uds_path": "/v", "cid": 3}});
    assert!(check(&document, NEWEST, "SnapshotLoadParams", &load).unwrap_err().contains("cid"));
    assert!(check(&document, REPORTING, "SnapshotLoadParams", &load).unwrap_err().contains("vsock_override"));
}

/// One life, and that of a copy and of one that was saved: booted, paused, saved, and both restored. Returns what was
/// asked and answered.
fn life(place: &Place, vmm: &Firecracker, start: impl Fn(&str, &Launch) -> ProcessId) -> Vec<String> {
    let launch = place.cold();
    let launch = Launch { program: Program::Firecracker(vmm.clone()), ..launch };
    http::recorded();
    let at = At { run_dir: &place.run_dir, process: start("source", &launch) };
    vmm.boot(&at, &launch).unwrap();
    vmm.pause(&at).unwrap();
    let saved = place.path(&format!("saved-{}", vmm.release.1));
    fs::create_dir(&saved).unwrap();
    vmm.snapshot(&at, &launch, &saved, SAVE_LIMIT).unwrap();
    vmm.resume(&at).unwrap();
    let spends = crate::driver::Saved { dir: saved.clone(), used: saved.clone() };
    for (name, spends) in [("copy", None), ("woken", Some(spends))] {
        let start_from = Start::Restore { state: saved.join("state"), spends };
        let copy = Launch { start: start_from, memory: Memory::Template(saved.join("mem")), ..launch.clone() };
        let at = At { run_dir: &place.run_dir, process: start(name, &copy) };
        vmm.restore(&at, &copy).unwrap();
    }
    let (major, minor, patch) = vmm.release;
    let exchanges = http::recorded();
    let with_bodies = exchanges.into_iter().filter(|exchange| exchange["body"].is_object());
    with_bodies
        .map(|mut exchange| {
            exchange["release"] = json!(format!("{major}.{minor}.{patch}"));
            exchange.to_string()
        })
        .collect()
}

const SAVE_LIMIT: Duration = Duration::from_secs(60);

#[test]
fn what_each_release_is_asked_is_written_down() {
    let mut lines = Vec::new();
    for release in [OLDEST, REPORTING, NEWEST] {
        let place = Place::new();
        let vmm = Firecracker { release, ..program() };
        lines.extend(life(&place, &vmm, |name, launch| place.start_release(name, launch, release).process));
    }
    let written: Vec<&str> = EXCHANGES.lines().collect();
    assert!(lines == written, "exchanges.jsonl should be:\n{}", lines.join("\n"));
}

/// Needs no guest that gets anywhere, only a KVM that can be opened.
#[test]
#[cfg_attr(not(firecracker), ignore = "needs RUNTIME_FIRECRACKER")]
#[expect(clippy::disallowed_methods, reason = "a test has no other edge at which to read it")]
fn the_real_firecracker_answers_as_is_written_down() {
    let program = PathBuf::from(std::env::var_os("RUNTIME_FIRECRACKER").expect("RUNTIME_FIRECRACKER"));
    let found = crate::prepare::Firecracker::at(&program, &program.with_file_name("jailer")).unwrap();
    let release = found.release();
    let vmm = Firecracker { path: found.path, jailer: found.jailer, release };
    let place = Place::new();
    let prepared = crate::prepare::open(place.dir.path(), crate::prepare::EngineChoice::Qemu).unwrap();
    let crate::prepare::Machinery::Qemu { guest, .. } = prepared.machinery else { panic!("not QEMU") };
    fs::copy(guest.kernel(), place.path("kernel")).unwrap();
    fs::write(place.path("initramfs"), guest.initramfs(b"nobody").unwrap()).unwrap();
    for disk in ["base", "disk.ext4"] {
        File::options().write(true).open(place.path(disk)).unwrap().set_len(1 << 20).unwrap();
    }
    fifo::make(&place.run_dir.join(paths::COMPLAINTS)).unwrap();
    let said = fifo::open(&place.run_dir.join(paths::COMPLAINTS), End::Both).unwrap();
    let processes = std::cell::RefCell::new(Vec::new());
    let start = |name: &str, launch: &Launch| {
        let (vmm, launch, run_dir, name) = (vmm.clone(), launch.clone(), place.run_dir.clone(), name.to_owned());
        // A jail is a name space of the thread's own.
        let spawned = std::thread::spawn(move || {
            let channel = File::open("/dev/null").unwrap().into();
            vmm.spawn(&launch, Site { name: &name, run_dir: &run_dir, groups: &[], channel }).unwrap().pid
        });
        let process = ProcessId::of(spawned.join().unwrap()).unwrap();
        processes.borrow_mut().push(process);
        process
    };
    let lines = life(&place, &vmm, start);
    for process in processes.into_inner() {
        let _ = vmm.kill(&At { run_dir: &place.run_dir, process });
    }
    drop(said);
    // By the newest release on file that is not newer.
    let known = [NEWEST, REPORTING, OLDEST].into_iter().find(|known| *known <= release).unwrap();
    let comparable = |line: &str| {
        let mut exchange: Value = serde_json::from_str(line).unwrap();
        exchange["release"].take();
        exchange
    };
    let expected: Vec<Value> =
        EXCHANGES.lines().filter(|line| line.contains(&stand_in::version(known))).map(comparable).collect();
    assert_eq!(lines.iter().map(|line| comparable(line)).collect::<Vec<_>>(), expected);
}

#[test]
fn a_jail_holds_what_its_machine_needs_and_only_its_disk_can_be_written() {
    use std::os::unix::fs::MetadataExt;
    let place = Place::new();
    let launch = place.cold();
    let jail = Jail::of(&place.run_dir, &program().path, "one");
    fs::create_dir(&launch.outbox).unwrap();
    fs::write(launch.outbox.join("left"), "by an earlier life").unwrap();
    jail.build(&launch).unwrap();
    let mut names: Vec<_> = fs::read_dir(&jail.root).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["base", "disk", "initramfs", "kernel", "out"]);
    for name in ["base", "kernel", "initramfs"] {
        let path = jail.root.join(name);
        assert_eq!(fs::read_to_string(&path).unwrap(), name);
        let error = fs::write(&path, "other").unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem, "{name}, even by root");
    }
    for path in [jail.root.join("disk"), jail.root.join("out")] {
        assert_eq!(fs::metadata(path).unwrap().uid(), launch.uid);
    }
    fs::write(jail.root.join("disk"), "written").unwrap();
    assert_eq!(fs::read_to_string(&launch.disk).unwrap(), "written");
    assert_eq!(fs::read_dir(&launch.outbox).unwrap().count(), 0);
    let seen = std::thread::spawn(mounts_of_the_first_thread).join().unwrap();
    assert!(!seen.contains(place.run_dir.to_str().unwrap()), "nobody else sees it");
}

fn mounts_of_the_first_thread() -> String {
    fs::read_to_string(format!("/proc/{}/mountinfo", std::process::id())).unwrap()
}

#[test]
fn the_jailer_gets_a_user_a_root_and_limits_and_firecracker_keeps_its_filters() {
    let jail = Jail::of(Path::new("/run/runtime/x/7"), &program().path, "7");
    let words = jail.arguments(&program(), "7", 1_000_000_007);
    let words: Vec<&str> = words.iter().map(|word| word.to_str().unwrap()).collect();
    let expected = "/opt/fc/jailer --id 7 --exec-file /opt/fc/firecracker-v1.16.2-x86_64 --uid 1000000007 \
                    --gid 1000000007 --chroot-base-dir /run/runtime/x/7/jail --resource-limit no-file=1024 -- \
                    --api-sock /api.sock";
    assert_eq!(words.join(" "), expected);
    assert!(!words.contains(&"--no-seccomp") && !words.contains(&"--daemonize") && !words.contains(&"--new-pid-ns"));
    assert_eq!(jail.root, Path::new("/run/runtime/x/7/jail/firecracker-v1.16.2-x86_64/7/root"));

    let split = |line: &str| line.split(' ').map(|word| word.as_bytes().to_vec()).collect::<Vec<_>>();
    let ours = |line: &str| program().is_machine("7", Path::new("/x"), &split(line));
    assert!(ours(expected));
    assert!(ours("./firecracker-v1.16.2-x86_64 --id=7 --start-time-us=1 --api-sock /api.sock"));
    assert!(!ours("./firecracker --id=77 --api-sock /api.sock") && !ours("vim --id 7") && !ours(""));
}

#[tokio::test]
async fn a_vsock_that_answers_nonsense_is_an_error_and_not_a_stream() {
    use tokio::net::UnixListener;
    let dir = tempfile::tempdir().unwrap();
    for (number, nonsense) in ["NO 1\n", "OK\n", "OK -1\n", "OK 11111111111111111111\n", "OK 1 2\n"].iter().enumerate()
    {
        let path = dir.path().join(number.to_string());
        let listener = UnixListener::bind(&path).unwrap();
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.write_all(nonsense.as_bytes()).await.unwrap();
            let mut rest = Vec::new();
            let _ = stream.read_to_end(&mut rest).await;
        });
        let (mut reader, _writer) = dial::Vsock { path, jail: None }.dial().unwrap();
        let error = reader.read_u8().await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidData, "{nonsense:?}");
        server.await.unwrap();
    }
}
