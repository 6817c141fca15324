//! Files, reached as the sandbox user and as root, with what a guest may put in the way.

mod common;

use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use common::*;
use runtime_proto::guest::{
    Ask, Chmod, ErrorCode, FileInfo, FileKind, GuestError, ListFiles, MakeDir, PathRef, Remove, Rename, Tell, WriteFile,
};

const USER: i32 = 0;
const ROOT: i32 = 1;

struct Place {
    guest: Guest,
    dir: tempfile::TempDir,
}

impl Place {
    /// A directory that the sandbox user owns.
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::chown(dir.path(), Some(1000), Some(1000)).unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        Self { guest: Guest::start().await, dir }
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    async fn write(&self, name: &str, data: &[u8]) -> Result<FileInfo, i32> {
        self.write_as(&self.path(name), data, data.len() as u64, 0o644, USER).await.map_err(|error| error.code)
    }

    async fn write_as(&self, path: &str, data: &[u8], size: u64, mode: u32, user: i32) -> Result<FileInfo, GuestError> {
        let mut stream = self.guest.open(Ask::WriteFile(WriteFile { path: path.into(), mode, size, user })).await;
        let sender = stream.sender();
        for piece in data.chunks(runtime_proto::guest::DATA_STEP) {
            let input = runtime_proto::guest::Input { data: bytes::Bytes::copy_from_slice(piece) };
            // A refusal may come before all has been sent.
            if sender.send(runtime_proto::guest::encode(&input)).await.is_err() {
                break;
            }
        }
        let _ = sender.finish().await;
        match collect(&mut stream).await?.pop() {
            Some(Tell::File(info)) => Ok(info),
            other => panic!("{other:?}"),
        }
    }

    async fn read(&self, path: &str, user: i32) -> Result<Vec<u8>, i32> {
        let events =
            self.guest.ask(Ask::ReadFile(PathRef { path: path.into(), user })).await.map_err(|error| error.code)?;
        let mut data = Vec::new();
        let mut size = None;
        for event in events {
            match event {
                Tell::File(info) => size = Some(info.size),
                Tell::Chunk(chunk) => data.extend_from_slice(&chunk.data),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(size, Some(data.len() as u64));
        Ok(data)
    }

    async fn code(&self, ask: Ask) -> i32 {
        self.guest.ask(ask).await.map(|events| panic!("{events:?}")).unwrap_err().code
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = std::fs::read_dir(self.dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

#[tokio::test]
async fn whole_files_there_and_back() {
    let place = Place::new().await;
    let big: Vec<u8> = (0..5_000_000_u32).map(|n| (n % 251) as u8).collect();
    for (name, data) in [("empty", &b""[..]), ("small", b"hi"), ("big", &big), ("name with \u{e9}\n", b"x")] {
        let info = place.write(name, data).await.unwrap();
        assert_eq!(
            (info.size, info.uid, info.mode, info.owner.as_str()),
            (data.len() as u64, 1000, 0o644, info.owner.as_str())
        );
        assert!(place.read(&place.path(name), USER).await.unwrap() == data, "{name}");
    }
    let uptime = place.read("/proc/sys/kernel/ostype", USER).await.unwrap();
    assert_eq!(uptime, b"Linux\n");
    assert_eq!(place.read(&place.path("none"), USER).await, Err(ErrorCode::FileNotFound as i32));
    assert_eq!(place.read(&place.path(""), USER).await, Err(ErrorCode::IsADirectory as i32));
    assert_eq!(place.read("relative", USER).await, Err(ErrorCode::Invalid as i32));
    assert_eq!(place.read("/tmp/\0", USER).await, Err(ErrorCode::Invalid as i32));
    place.guest.close().await;
}

#[tokio::test]
async fn a_write_is_whole_or_not_at_all() {
    let place = Place::new().await;
    place.write("f", b"old").await.unwrap();
    let path = place.path("f");
    for (data, size) in
        [(&b"short"[..], 9), (b"too long", 3), (&[7; 3_000_000], 4_000_000), (&[7; 3_000_000], 2_000_000)]
    {
        let error = place.write_as(&path, data, size, 0o644, USER).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::Invalid as i32);
    }
    assert_eq!((place.read(&path, USER).await.unwrap(), place.names()), (b"old".to_vec(), vec!["f".to_owned()]));
    // A parent is made below the home only.
    assert_eq!(place.write("a/b", b"x").await, Err(ErrorCode::FileNotFound as i32));
    assert_eq!(place.write("f/b", b"x").await, Err(ErrorCode::NotADirectory as i32));
    let mode = place.write_as(&path, b"#!", 2, 0o4755, USER).await.unwrap();
    assert_eq!(mode.mode, 0o4755);
    place.guest.close().await;
}

#[tokio::test]
async fn links_are_replaced_and_what_they_name_is_not_touched() {
    let place = Place::new().await;
    place.write("target", b"keep").await.unwrap();
    symlink(place.path("target"), place.path("soft")).unwrap();
    std::fs::hard_link(place.path("target"), place.path("hard")).unwrap();
    symlink("/etc", place.path("away")).unwrap();
    for name in ["soft", "hard"] {
        place.write(name, b"new").await.unwrap();
        assert_eq!(std::fs::read(place.path(name)).unwrap(), b"new");
        assert!(!std::fs::symlink_metadata(place.path(name)).unwrap().is_symlink());
    }
    assert_eq!(std::fs::read(place.path("target")).unwrap(), b"keep");
    assert_eq!(place.write("away/passwd-x", b"x").await, Err(ErrorCode::PermissionDenied as i32));
    let stat = PathRef { path: place.path("away"), user: USER };
    let Tell::File(info) = place.guest.one(Ask::Stat(stat)).await.unwrap() else { panic!() };
    assert_eq!((info.kind, info.symlink_target.as_deref()), (FileKind::Symlink as i32, Some("/etc")));
    place.guest.close().await;
}

#[tokio::test]
async fn the_user_may_what_the_user_may() {
    let place = Place::new().await;
    let secret = place.path("secret");
    std::fs::write(&secret, "root's").unwrap();
    std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).unwrap();
    let denied = ErrorCode::PermissionDenied as i32;
    assert_eq!(place.read(&secret, USER).await, Err(denied));
    assert_eq!(place.read(&secret, ROOT).await.unwrap(), b"root's");
    assert_eq!(place.write_as("/etc/agent-test", b"", 0, 0o644, USER).await.unwrap_err().code, denied);
    assert_eq!(place.code(Ask::Chmod(Chmod { path: secret.clone(), mode: 0o777, user: USER })).await, denied);
    assert_eq!(
        place.code(Ask::MakeDir(MakeDir { path: "/etc/agent-test".into(), parents: true, user: USER })).await,
        denied
    );
    let rename = Rename { from: "/etc/passwd".into(), to: place.path("p"), overwrite: true, user: USER };
    assert!([denied, ErrorCode::Invalid as i32].contains(&place.code(Ask::Rename(rename)).await));
    // Root's file, the user's directory: replacing it is the user's right.
    assert_eq!(place.write("secret", b"mine").await.unwrap().uid, 1000);
    let info = place.write_as(&place.path("r"), b"", 0, 0o640, ROOT).await.unwrap();
    assert_eq!((info.uid, info.mode), (0, 0o640));
    place.guest.close().await;
}

#[tokio::test]
async fn fifos_and_devices_hold_nobody_up() {
    let place = Place::new().await;
    let fifo = place.path("fifo");
    assert!(std::process::Command::new("mkfifo").args(["-m", "666", &fifo]).status().unwrap().success());
    let invalid = ErrorCode::Invalid as i32;
    assert_eq!(place.read(&fifo, ROOT).await, Err(invalid));
    assert_eq!(place.read("/dev/zero", ROOT).await, Err(invalid));
    place.write_as(&fifo, b"file now", 8, 0o644, ROOT).await.unwrap();
    assert_eq!(place.read(&fifo, ROOT).await.unwrap(), b"file now");
    place.guest.close().await;
}

async fn list(place: &Place, glob: &str, depth: u32, hidden: bool, limit: u32) -> Vec<String> {
    let ask = ListFiles { path: place.path("tree"), depth, glob: glob.into(), hidden, limit, user: USER };
    let prefix = place.path("tree/");
    let mut names = Vec::new();
    for event in place.guest.ask(Ask::ListFiles(ask)).await.unwrap() {
        let Tell::Files(files) = event else { panic!("{event:?}") };
        names.extend(files.files.into_iter().map(|file| file.path.strip_prefix(&prefix).unwrap().to_owned()));
    }
    names
}

#[tokio::test]
async fn listings_by_depth_pattern_and_limit() {
    let place = Place::new().await;
    for name in ["a.py", "b.txt", ".h.py", "d/c.py", "d/e/f.py", "d/.g/x.py", "z/y"] {
        let path = place.dir.path().join("tree").join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "").unwrap();
    }
    symlink("d", place.path("tree/link")).unwrap();
    let table: [(&str, u32, bool, u32, &[&str]); 9] = [
        ("", 1, false, 0, &["a.py", "b.txt", "d", "link", "z"]),
        ("", 1, true, 0, &[".h.py", "a.py", "b.txt", "d", "link", "z"]),
        ("", 2, false, 0, &["a.py", "b.txt", "d", "d/c.py", "d/e", "link", "z", "z/y"]),
        ("*.py", 0, false, 0, &["a.py"]),
        ("**/*.py", 0, false, 0, &["a.py", "d/c.py", "d/e/f.py"]),
        ("**/*.py", 0, true, 0, &[".h.py", "a.py", "d/.g/x.py", "d/c.py", "d/e/f.py"]),
        ("**/*.py", 2, false, 0, &["a.py", "d/c.py"]),
        ("d/*", 0, false, 0, &["d/c.py", "d/e"]),
        ("**/*.py", 0, true, 2, &[".h.py", "a.py"]),
    ];
    for (glob, depth, hidden, limit, expected) in table {
        assert_eq!(list(&place, glob, depth, hidden, limit).await, expected, "{glob} {depth} {hidden} {limit}");
    }
    let of =
        |path: String, glob: &str| ListFiles { path, glob: glob.into(), depth: 1, user: USER, ..ListFiles::default() };
    assert_eq!(place.code(Ask::ListFiles(of(place.path("tree/a.py"), ""))).await, ErrorCode::NotADirectory as i32);
    assert_eq!(place.code(Ask::ListFiles(of(place.path("none"), ""))).await, ErrorCode::FileNotFound as i32);
    assert_eq!(place.code(Ask::ListFiles(of(place.path("tree"), "["))).await, ErrorCode::Invalid as i32);
    for n in 0..800 {
        std::fs::write(place.path(&format!("tree/z/{n:04}-{}", "n".repeat(200))), "").unwrap();
    }
    assert_eq!(list(&place, "z/*-*", 0, false, 0).await.len(), 800);
    place.guest.close().await;
}

fn remove(path: String, recursive: bool) -> Ask {
    Ask::Remove(Remove { path, recursive, user: USER })
}

#[tokio::test]
async fn removing_follows_no_link_and_minds_no_depth() {
    let place = Place::new().await;
    let removed = |events: Tell| matches!(events, Tell::Removed(removed) if removed.removed);
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("keep"), "").unwrap();
    let script = r#"import os,sys
os.chdir(sys.argv[1]); os.setgid(1000); os.setuid(1000)
os.mkdir("deep"); os.symlink(sys.argv[2], "deep/out"); os.chdir("deep")
for i in range(1200):
    os.mkdir("dddddd"); os.chdir("dddddd")
"#;
    let arguments = ["-c", script, place.dir.path().to_str().unwrap(), outside.path().to_str().unwrap()];
    assert!(std::process::Command::new("python3").args(arguments).status().unwrap().success());
    assert_eq!(place.code(remove(place.path("deep"), false)).await, ErrorCode::DirectoryNotEmpty as i32);
    assert!(removed(place.guest.one(remove(place.path("deep"), true)).await.unwrap()));
    assert!(!removed(place.guest.one(remove(place.path("deep"), true)).await.unwrap()));
    assert!(outside.path().join("keep").exists());
    symlink(outside.path(), place.path("l")).unwrap();
    assert!(removed(place.guest.one(remove(place.path("l"), true)).await.unwrap()));
    assert!(outside.path().join("keep").exists() && place.names().is_empty());
    assert_eq!(place.code(remove("/".into(), true)).await, ErrorCode::Invalid as i32);
    assert_eq!(place.code(remove("/etc/passwd".into(), false)).await, ErrorCode::PermissionDenied as i32);
    place.guest.close().await;
}

#[tokio::test]
async fn making_moving_and_modes() {
    let place = Place::new().await;
    let make = |name: &str, parents| Ask::MakeDir(MakeDir { path: place.path(name), parents, user: USER });
    assert_eq!(place.code(make("a/b/c", false)).await, ErrorCode::FileNotFound as i32);
    place.guest.one(make("a/b/c", true)).await.unwrap();
    place.guest.one(make("a/b/c", true)).await.unwrap();
    assert_eq!(place.code(make("a", false)).await, ErrorCode::AlreadyExists as i32);
    assert_eq!(std::fs::metadata(place.path("a/b")).unwrap().uid(), 1000);
    place.write("f", b"1").await.unwrap();
    place.write("g", b"2").await.unwrap();
    assert_eq!(place.code(make("f/x", true)).await, ErrorCode::NotADirectory as i32);
    let rename = |from: &str, to: &str, overwrite| {
        Ask::Rename(Rename { from: place.path(from), to: place.path(to), overwrite, user: USER })
    };
    assert_eq!(place.code(rename("f", "g", false)).await, ErrorCode::AlreadyExists as i32);
    assert_eq!(place.code(rename("none", "x", true)).await, ErrorCode::FileNotFound as i32);
    assert_eq!(place.code(rename("f", "a", true)).await, ErrorCode::IsADirectory as i32);
    place.guest.one(rename("f", "g", true)).await.unwrap();
    place.guest.one(rename("g", "h", false)).await.unwrap();
    assert_eq!(place.names(), ["a", "h"]);
    place.guest.one(Ask::Chmod(Chmod { path: place.path("h"), mode: 0o700, user: USER })).await.unwrap();
    assert_eq!(std::fs::metadata(Path::new(&place.path("h"))).unwrap().mode() & 0o7777, 0o700);
    assert_eq!(
        place.code(Ask::Chmod(Chmod { path: place.path("x"), mode: 0o700, user: USER })).await,
        ErrorCode::FileNotFound as i32
    );
    place.guest.close().await;
}

#[tokio::test]
async fn a_move_to_another_file_system_is_whole_or_nothing() {
    let place = Place::new().await;
    let there = tempfile::tempdir_in("/dev/shm").unwrap();
    let device = |path: &Path| std::fs::metadata(path).unwrap().dev();
    assert_ne!(device(there.path()), device(place.dir.path()), "this machine has one file system for both");
    std::os::unix::fs::chown(there.path(), Some(1000), Some(1000)).unwrap();
    let far = |name: &str| there.path().join(name).to_str().unwrap().to_owned();
    let go = |from: String, to: String, overwrite, user| Ask::Rename(Rename { from, to, overwrite, user });

    place.guest.one(Ask::MakeDir(MakeDir { path: place.path("t/a/b"), parents: true, user: USER })).await.unwrap();
    place.write("t/a/f", b"content").await.unwrap();
    place.guest.one(Ask::Chmod(Chmod { path: place.path("t/a/f"), mode: 0o751, user: USER })).await.unwrap();
    symlink("/nowhere", place.path("t/a/b/link")).unwrap();
    let old = std::fs::metadata(place.path("t/a/f")).unwrap().mtime_nsec();
    place.guest.one(go(place.path("t"), far("t"), false, USER)).await.unwrap();
    assert!(place.names().is_empty(), "{:?}", place.names());
    let file = std::fs::metadata(far("t/a/f")).unwrap();
    assert_eq!((file.mode() & 0o7777, file.uid(), file.mtime_nsec()), (0o751, 1000, old));
    assert_eq!(std::fs::read(far("t/a/f")).unwrap(), b"content");
    assert_eq!(std::fs::read_link(far("t/a/b/link")).unwrap(), Path::new("/nowhere"));

    // What cannot be had leaves both sides as they were, without a trace of the try.
    place.write("g", b"here").await.unwrap();
    std::fs::write(far("g"), b"there").unwrap();
    assert_eq!(place.code(go(place.path("g"), far("g"), false, USER)).await, ErrorCode::AlreadyExists as i32);
    assert_eq!(place.code(go(place.path("g"), far("none/g"), false, USER)).await, ErrorCode::FileNotFound as i32);
    assert!(std::process::Command::new("mkfifo").arg(place.path("fifo")).status().unwrap().success());
    assert_eq!(place.code(go(place.path("fifo"), far("fifo"), false, ROOT)).await, ErrorCode::Invalid as i32);
    let denied = go("/etc/passwd".to_owned(), far("p"), true, USER);
    assert_eq!(place.code(denied).await, ErrorCode::PermissionDenied as i32);
    let mut left: Vec<_> = std::fs::read_dir(there.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["g", "t"]);
    assert_eq!(place.names(), ["fifo", "g"]);
    place.guest.one(go(place.path("g"), far("g"), true, USER)).await.unwrap();
    assert_eq!(std::fs::read(far("g")).unwrap(), b"here");
    place.guest.close().await;
}

#[tokio::test]
async fn a_file_that_does_not_say_its_length_is_read_whole_or_refused() {
    let place = Place::new().await;
    // A process of very many mappings: neighbours with other rights do not become one.
    let script = "import mmap; R, W = mmap.PROT_READ, mmap.PROT_WRITE\n\
                  m = [mmap.mmap(-1, 4096, prot=(R, R | W)[n % 2]) for n in range(20000)]\n\
                  print('ready', flush=True); input()";
    let mut child = std::process::Command::new("python3")
        .args(["-c", script])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.as_mut().unwrap()), &mut line).unwrap();
    let maps = format!("/proc/{}/maps", child.id());
    let told = place.read(&maps, ROOT).await.unwrap();
    assert!(told.len() > 1_000_000 && told == std::fs::read(&maps).unwrap(), "{} bytes", told.len());
    // Too long to be held is refused, not cut.
    let refused = place.read(&format!("/proc/{}/smaps", child.id()), ROOT).await;
    assert_eq!(refused.map(|data| data.len()), Err(ErrorCode::Invalid as i32));
    drop(child.stdin.take());
    child.wait().unwrap();
    place.guest.close().await;
}

#[tokio::test]
async fn a_file_is_read_to_where_it_ends_even_while_it_is_rewritten() {
    let place = Place::new().await;
    // A page, it says, and holds a word.
    let told = place.read("/sys/devices/system/cpu/online", USER).await.unwrap();
    assert_eq!(told, std::fs::read("/sys/devices/system/cpu/online").unwrap());
    let path = place.path("counter");
    std::fs::write(&path, "whole").unwrap();
    let rewriting = Rewriting::of(path.clone());
    let mut whole = 0;
    let mut reads = 0;
    while reads < 2_000 || whole == 0 {
        reads += 1;
        let data = place.read(&path, ROOT).await.unwrap();
        assert!(b"whole".starts_with(&data[..]), "{data:?}");
        whole += usize::from(data.len() == 5);
    }
    drop(rewriting);
    place.guest.close().await;
}

#[tokio::test]
async fn what_no_program_can_open_is_a_refusal_and_not_a_fault() {
    let place = Place::new().await;
    let _socket = std::os::unix::net::UnixListener::bind(place.path("socket")).unwrap();
    assert_eq!(place.read(&place.path("socket"), ROOT).await, Err(ErrorCode::Invalid as i32));
    place.write("f", b"x").await.unwrap();
    let below = Ask::Remove(Remove { path: place.path("f/x"), recursive: false, user: USER });
    assert_eq!(place.guest.one(below).await, Ok(Tell::Removed(runtime_proto::guest::Removed { removed: false })));
    place.guest.close().await;
}
