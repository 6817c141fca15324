//! Trees out and in as tar, and what hostile archives try.

mod common;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use bytes::Bytes;
use common::*;
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use runtime_proto::guest::{
    Ask, DATA_STEP, ErrorCode, GuestError, Input, PathRef, PutChunk, ReadArchive, StartArchive, Tell, UploadRef, encode,
};
use tar::{EntryType, Header};

const USER: i32 = 0;
const ROOT: i32 = 1;

struct Place {
    guest: Guest,
    dir: tempfile::TempDir,
}

impl Place {
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::chown(dir.path(), Some(1000), Some(1000)).unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        Self { guest: Guest::start().await, dir }
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    async fn pack(&self, name: &str, gzip: bool, user: i32, exclude: &[&str]) -> Result<Vec<u8>, GuestError> {
        let exclude = exclude.iter().map(|path| (*path).to_owned()).collect();
        let mut stream =
            self.guest.open(Ask::ReadArchive(ReadArchive { path: self.path(name), gzip, user, exclude })).await;
        let mut data = Vec::new();
        loop {
            match next(&mut stream).await? {
                Some(Tell::Chunk(chunk)) => data.extend_from_slice(&chunk.data),
                Some(Tell::Done(_)) => return Ok(data),
                other => panic!("{other:?}"),
            }
        }
    }

    async fn unpack(&self, name: &str, data: &[u8], user: i32) -> Result<(), ErrorCode> {
        let mut stream = self.guest.open(Ask::WriteArchive(PathRef { path: self.path(name), user })).await;
        send(&stream.sender(), data).await;
        collect(&mut stream).await.map(drop).map_err(|error| error.code())
    }

    async fn start(&self, name: &str, id: &str) -> Result<Tell, GuestError> {
        let start =
            StartArchive { path: self.path(name), user: USER, key: format!("key {id}"), upload_id: id.to_owned() };
        self.guest.one(Ask::StartArchive(start)).await
    }

    async fn put(&self, id: &str, offset: usize, data: &[u8]) -> Result<u64, ErrorCode> {
        let ask = PutChunk { upload: Some(parts(id)), offset: offset as u64, size: data.len() as u64 };
        let mut stream = self.guest.open(Ask::PutChunk(ask)).await;
        send(&stream.sender(), data).await;
        match collect(&mut stream).await.map_err(|error| error.code())?.pop() {
            Some(Tell::Upload(upload)) => Ok(upload.received),
            other => panic!("{other:?}"),
        }
    }

    async fn commit(&self, id: &str) -> Result<Tell, ErrorCode> {
        self.guest.one(Ask::CommitUpload(parts(id))).await.map_err(|error| error.code())
    }
}

fn parts(id: &str) -> UploadRef {
    UploadRef { upload_id: id.to_owned(), archive: true }
}

async fn send(sender: &runtime_proto::channel::Sender, data: &[u8]) {
    for piece in data.chunks(DATA_STEP) {
        // A refusal may come before all has been sent.
        if sender.send(encode(&Input { data: Bytes::copy_from_slice(piece) })).await.is_err() {
            return;
        }
    }
    let _ = sender.finish().await;
}

/// A member as it stands in the archive, whatever it says.
fn member(name: &[u8], kind: EntryType, link: &[u8], data: &[u8]) -> Vec<u8> {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(0o640);
    header.set_mtime(1_000_000_000);
    header.set_size(data.len() as u64);
    let gnu = header.as_gnu_mut().unwrap();
    gnu.name[..name.len()].copy_from_slice(name);
    gnu.linkname[..link.len()].copy_from_slice(link);
    header.set_cksum();
    let mut out = header.as_bytes().to_vec();
    out.extend_from_slice(data);
    out.resize(out.len().next_multiple_of(512), 0);
    out
}

fn file(name: &str, data: &[u8]) -> Vec<u8> {
    member(name.as_bytes(), EntryType::Regular, b"", data)
}

fn whole(members: &[Vec<u8>]) -> Vec<u8> {
    let mut out = members.concat();
    out.extend_from_slice(&[0; 1024]);
    out
}

fn gzip(data: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(data).unwrap();
    encoder.finish().unwrap()
}

/// Names with what they are: mode, size or target.
fn contents(archive: &[u8]) -> BTreeMap<String, String> {
    assert!(archive.ends_with(&[0; 1024]), "the end is marked");
    let mut found = BTreeMap::new();
    for entry in tar::Archive::new(archive).entries().unwrap() {
        let mut entry = entry.unwrap();
        let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        let header = entry.header();
        let mode = header.mode().unwrap();
        let what = match header.entry_type() {
            EntryType::Directory => format!("dir {mode:o}"),
            EntryType::Symlink | EntryType::Link => {
                let target = entry.link_name_bytes().unwrap();
                format!("{:?} {}", entry.header().entry_type(), String::from_utf8_lossy(&target))
            }
            EntryType::Regular => {
                let mut text = String::new();
                entry.read_to_string(&mut text).unwrap();
                format!("{mode:o} {}", if text.len() > 40 { text.len().to_string() } else { text })
            }
            other => panic!("{other:?}"),
        };
        found.insert(name, what);
    }
    found
}

#[tokio::test]
async fn a_tree_goes_out_and_comes_back_the_same() {
    let place = Place::new().await;
    let long = "n".repeat(200);
    let line = format!(
        "mkdir -p t/d/empty t/skip/deep t/{long} && cd t && printf hi > a && chmod 755 a && ln a hard && ln -s /etc/passwd out \
         && ln -s a in && head -c 300000 /dev/zero | tr '\\0' z > d/big && echo x > {long}/{long} && echo s > skip/deep/s \
         && ln -s {long}/{long}{long} far && mkfifo pipe && chmod 500 d/empty && touch -d @1000000000 a && chown -hR 1000:1000 ."
    );
    place.guest.sh(&format!("cd {} && {line}", place.dir.path().display())).await;
    for zip in [false, true] {
        let mut data = place.pack("t", zip, USER, &["skip", "./d//nothing"]).await.unwrap();
        let unpacked = format!("back{zip}");
        place.unpack(&unpacked, &data, USER).await.unwrap();
        if zip {
            let mut plain = Vec::new();
            let mut decoder = GzDecoder::new(&data[..]);
            decoder.read_to_end(&mut plain).unwrap();
            assert!(decoder.into_inner().is_empty(), "one member");
            data = plain;
        }
        let found = contents(&data);
        assert_eq!(found["./"], "dir 755");
        assert_eq!(found["./d/empty/"], "dir 500");
        assert_eq!(found["./d/big"], "644 300000");
        assert_eq!(found["./in"], "Symlink a");
        assert_eq!(found[&format!("./{long}/{long}")], "644 x\n");
        let linked = [&found["./a"], &found["./hard"]];
        assert!(linked.iter().any(|what| *what == "755 hi") && linked.iter().any(|what| what.starts_with("Link ./")));
        assert!(!found.keys().any(|name| name.contains("skip") || name.contains("pipe")), "{found:?}");

        let at = |name: &str| place.dir.path().join(&unpacked).join(name);
        assert_eq!(std::fs::read_to_string(at("hard")).unwrap(), "hi");
        let a = std::fs::metadata(at("a")).unwrap();
        assert_eq!((a.mode() & 0o7777, a.mtime(), a.uid(), a.nlink()), (0o755, 1_000_000_000, 1000, 2));
        assert_eq!(std::fs::metadata(at("d/empty")).unwrap().mode() & 0o7777, 0o500);
        assert_eq!(std::fs::metadata(at("d/big")).unwrap().len(), 300_000);
        assert_eq!(std::fs::read_link(at("out")).unwrap(), Path::new("/etc/passwd"));
        assert_eq!(std::fs::read_link(at("far")).unwrap(), Path::new(&format!("{long}/{long}{long}")));
        assert_eq!(std::fs::read_to_string(at(&format!("{long}/{long}"))).unwrap(), "x\n");
    }
}

/// The tar of the system reads ours, and we read its.
#[tokio::test]
async fn other_tars_agree() {
    let place = Place::new().await;
    let dir = place.dir.path().display();
    let name = "é".repeat(90);
    place.guest.sh(&format!("cd {dir} && mkdir -p s/{name} && echo 1 > s/{name}/{name} && ln -s {name} s/l && printf '\\377' > s/$(printf 'not\\377text')")).await;
    std::fs::write(place.path("ours.tar"), place.pack("s", false, ROOT, &[]).await.unwrap()).unwrap();
    place.guest.sh(&format!("cd {dir} && mkdir o && tar -C o -xf ours.tar && diff -r s o")).await;
    for format in ["gnu", "pax", "ustar", "v7"] {
        let made = format!(
            "cd {dir} && mkdir -p f && echo {format} > f/x && tar --format={format} -C f -cf {format}.tar . && tar --format=pax -C s -czf pax.tgz ."
        );
        place.guest.sh(&made).await;
        let data = std::fs::read(place.path(&format!("{format}.tar"))).unwrap();
        place.unpack(format, &data, USER).await.unwrap();
        assert_eq!(std::fs::read_to_string(place.path(&format!("{format}/x"))).unwrap(), format!("{format}\n"));
    }
    let data = std::fs::read(place.path("pax.tgz")).unwrap();
    place.unpack("p", &data, USER).await.unwrap();
    place.guest.sh(&format!("cd {dir} && diff -r s p")).await;
}

#[tokio::test]
async fn no_name_leads_out() {
    let place = Place::new().await;
    let outside = place.path("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::set_permissions(&outside, std::fs::Permissions::from_mode(0o777)).unwrap();
    std::fs::write(place.path("outside/precious"), "as it was").unwrap();
    let to_outside = member(b"esc", EntryType::Symlink, outside.as_bytes(), b"");
    let up = member(b"esc", EntryType::Symlink, b"../outside", b"");
    let absolute = format!("{outside}/new");
    let long_up =
        [member(b"././@LongLink", EntryType::GNULongName, b"", b"../outside/new\0"), file("fine", b"x")].concat();
    let record = b"27 path=../outside/newfile\n";
    let pax_up = [member(b"x", EntryType::XHeader, b"", record), file("fine", b"x")].concat();
    let pax_absolute = {
        let body = format!(" path={absolute}\n");
        let length = body.len() + 2;
        [member(b"x", EntryType::XHeader, b"", format!("{length}{body}").as_bytes()), file("fine", b"x")].concat()
    };
    let hard_out = member(b"h", EntryType::Link, b"../outside/precious", b"");
    let hard_absolute = member(b"h", EntryType::Link, format!("{outside}/precious").as_bytes(), b"");
    let hard_through = member(b"h", EntryType::Link, b"esc/precious", b"");
    for (why, members) in [
        ("up", vec![file("../outside/new", b"x")]),
        ("up in the middle", vec![file("a/../../outside/new", b"x")]),
        ("from the root", vec![file(&absolute, b"x")]),
        ("up by a long name", vec![long_up]),
        ("up by pax", vec![pax_up]),
        ("from the root by pax", vec![pax_absolute]),
        ("through a link", vec![to_outside.clone(), file("esc/new", b"x")]),
        ("over a file through a link", vec![to_outside.clone(), file("esc/precious", b"x")]),
        ("through a link that leads up", vec![up, file("esc/new", b"x")]),
        ("a directory over a link", vec![to_outside.clone(), member(b"esc/", EntryType::Directory, b"", b"")]),
        ("a directory through a link", vec![to_outside.clone(), member(b"esc/d", EntryType::Directory, b"", b"")]),
        ("a link through a link", vec![to_outside.clone(), member(b"esc/l", EntryType::Symlink, b"/", b"")]),
        ("a hard link up", vec![hard_out.clone(), file("h", b"owned")]),
        ("a hard link from the root", vec![hard_absolute]),
        ("a hard link through a link", vec![to_outside.clone(), hard_through, file("h", b"owned")]),
    ] {
        for user in [USER, ROOT] {
            assert_eq!(place.unpack("t", &whole(&members), user).await, Err(ErrorCode::InvalidArchive), "{why}");
            assert_eq!(std::fs::read_to_string(place.path("outside/precious")).unwrap(), "as it was", "{why}");
            assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 1, "{why}");
            std::fs::remove_dir_all(place.path("t")).unwrap();
        }
    }
    // A link over which a file comes is replaced by it.
    place.unpack("t", &whole(&[to_outside, file("esc", b"mine")]), USER).await.unwrap();
    assert_eq!(std::fs::read_to_string(place.path("t/esc")).unwrap(), "mine");
    // A link that was there before leads nowhere either.
    symlink(&outside, place.path("t/there")).unwrap();
    let through = whole(&[file("there/new", b"x")]);
    assert_eq!(place.unpack("t", &through, ROOT).await, Err(ErrorCode::InvalidArchive));
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 1);
}

#[tokio::test]
async fn what_is_not_taken_is_refused_by_name_and_a_file_is_replaced_not_written_into() {
    let place = Place::new().await;
    for kind in [EntryType::Char, EntryType::Block, EntryType::Fifo, EntryType::GNUSparse, EntryType::new(b'Z')] {
        for user in [USER, ROOT] {
            let archive = whole(&[member(b"dev", kind, b"", b"")]);
            assert_eq!(place.unpack("t", &archive, user).await, Err(ErrorCode::InvalidArchive), "{kind:?}");
        }
    }
    let sparse = member(b"x", EntryType::XHeader, b"", b"22 GNU.sparse.major=1\n");
    assert_eq!(place.unpack("t", &whole(&[sparse, file("f", b"")]), USER).await, Err(ErrorCode::InvalidArchive));
    for name in ["", ".", "/", "./."] {
        assert_eq!(
            place.unpack("t", &whole(&[file(name, b"x")]), USER).await,
            Err(ErrorCode::InvalidArchive),
            "{name:?}"
        );
    }
    assert_eq!(std::fs::read_dir(place.path("t")).unwrap().count(), 0);
    let deep = "d/".repeat(40) + "f";
    place.unpack("t", &whole(&[file(&deep, b"x")]), USER).await.unwrap();

    std::fs::write(place.path("t/f"), "first").unwrap();
    std::fs::hard_link(place.path("t/f"), place.path("t/other")).unwrap();
    place.unpack("t", &whole(&[file("f", b"second")]), USER).await.unwrap();
    assert_eq!(std::fs::read_to_string(place.path("t/f")).unwrap(), "second");
    assert_eq!(std::fs::read_to_string(place.path("t/other")).unwrap(), "first");
    let itself = whole(&[member(b"f", EntryType::Link, b"./f", b"")]);
    place.unpack("t", &itself, USER).await.unwrap();
    assert_eq!(std::fs::read_to_string(place.path("t/f")).unwrap(), "second");
    std::fs::create_dir(place.path("t/dir")).unwrap();
    assert_eq!(place.unpack("t", &whole(&[file("dir", b"x")]), USER).await, Err(ErrorCode::IsADirectory));
    std::fs::create_dir(place.path("closed")).unwrap();
    assert_eq!(place.unpack("closed", &whole(&[file("f", b"x")]), USER).await, Err(ErrorCode::PermissionDenied));
    assert_eq!(place.unpack("t/f", &whole(&[]), USER).await, Err(ErrorCode::NotADirectory));
    // A directory that was there keeps its mode.
    let archive =
        whole(&[member(b"./", EntryType::Directory, b"", b""), member(b"dir/", EntryType::Directory, b"", b"")]);
    let before = std::fs::metadata(place.path("t/dir")).unwrap().mode();
    place.unpack("t", &archive, ROOT).await.unwrap();
    assert_eq!(std::fs::metadata(place.path("t/dir")).unwrap().mode(), before);
}

#[tokio::test]
async fn a_cut_archive_is_refused_wherever_it_is_cut() {
    let place = Place::new().await;
    let archive = whole(&[file("a", &[7; 600]), file("b", &[8; 100])]);
    let zipped = gzip(&archive);
    let plain_cuts = [0, 1, 2, 100, 512, 1000, 1536, 2048, archive.len() - 1024];
    let zipped_cuts = [0, 1, 2, 5, 10, zipped.len() / 2, zipped.len() - 8, zipped.len() - 1];
    for (data, cuts) in [(&archive, &plain_cuts[..]), (&zipped, &zipped_cuts[..])] {
        place.unpack("t", data, USER).await.unwrap();
        for cut in cuts {
            assert_eq!(place.unpack("t", &data[..*cut], USER).await, Err(ErrorCode::InvalidArchive), "cut at {cut}");
        }
    }
    let mut wrong_sum = zipped.clone();
    let at = wrong_sum.len() - 6;
    wrong_sum[at] ^= 1;
    for wrong in [wrong_sum, vec![7; 2048], [&archive[..], &zipped].concat().split_off(3)] {
        assert_eq!(place.unpack("t", &wrong, USER).await, Err(ErrorCode::InvalidArchive));
    }
    // A file that was cut in its middle is not left half.
    let _ = std::fs::remove_dir_all(place.path("t"));
    assert!(place.unpack("t", &archive[..1000], USER).await.is_err());
    assert_eq!(std::fs::read_dir(place.path("t")).unwrap().count(), 0);
}

/// Headers that promise gigabytes cost nothing until the bytes come.
#[tokio::test]
async fn bombs_do_not_go_off() {
    let place = Place::new().await;
    let zeros = |length: u64| {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        let mut header = Header::new_gnu();
        header.set_entry_type(EntryType::XHeader);
        header.set_size(length);
        header.set_cksum();
        encoder.write_all(header.as_bytes()).unwrap();
        for _ in 0..64 {
            encoder.write_all(&vec![0; 1 << 20]).unwrap();
        }
        encoder.finish().unwrap()
    };
    assert_eq!(place.unpack("t", &zeros(64 << 20), USER).await, Err(ErrorCode::InvalidArchive));
    assert_eq!(place.unpack("t", &zeros(u64::MAX), USER).await, Err(ErrorCode::InvalidArchive));
    // After the end, bytes without end.
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    for _ in 0..40 {
        encoder.write_all(&vec![0; 1 << 20]).unwrap();
    }
    assert_eq!(place.unpack("t", &encoder.finish().unwrap(), USER).await, Err(ErrorCode::InvalidArchive));
    let status = std::fs::read_to_string(format!("/proc/{}/status", place.guest.child.id().unwrap())).unwrap();
    let peak: u64 = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.trim().parse().ok())
        .unwrap();
    assert!(peak < 64 * 1024, "{peak} KiB");
}

#[tokio::test]
async fn a_tree_that_cannot_be_read_is_never_a_whole_archive() {
    let place = Place::new().await;
    let refused = |name: &'static str, user| {
        let place = &place;
        async move { place.pack(name, true, user, &[]).await.map(|data| data.len()).map_err(|error| error.code()) }
    };
    std::fs::write(place.path("f"), "x").unwrap();
    assert_eq!(refused("none", USER).await, Err(ErrorCode::FileNotFound));
    assert_eq!(refused("f", USER).await, Err(ErrorCode::NotADirectory));
    std::fs::create_dir_all(place.path("t/d")).unwrap();
    std::fs::write(place.path("t/d/secret"), "x").unwrap();
    std::fs::set_permissions(place.path("t/d/secret"), std::fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(refused("t", USER).await, Err(ErrorCode::PermissionDenied));
    assert!(refused("t", ROOT).await.is_ok());
    for exclude in ["", "/a", "..", "a/../b", "."] {
        assert_eq!(
            place.pack("t", false, ROOT, &[exclude]).await.unwrap_err().code(),
            ErrorCode::Invalid,
            "{exclude:?}"
        );
    }
    // A link in place of the directory is entered by its name only.
    symlink(place.path("t"), place.path("link")).unwrap();
    assert!(contents(&place.pack("link", false, ROOT, &[]).await.unwrap()).contains_key("./d/secret"));
    assert!(!contents(&place.pack("", false, ROOT, &["t"]).await.unwrap()).contains_key("./link/d/secret"));
}

#[tokio::test]
async fn a_file_that_is_rewritten_is_packed_as_it_was_at_some_moment() {
    let place = Place::new().await;
    std::fs::create_dir(place.path("t")).unwrap();
    let rewriting = Rewriting::of(place.path("t/counter"));
    let mut whole = 0;
    let mut packs = 0;
    while packs < 1_000 || whole == 0 {
        packs += 1;
        let packed = contents(&place.pack("t", false, ROOT, &[]).await.unwrap()).remove("./counter").unwrap();
        let text = packed.strip_prefix("644 ").unwrap();
        assert!("whole".starts_with(text), "{packed}");
        whole += usize::from(text == "whole");
    }
    drop(rewriting);
}

#[tokio::test]
async fn a_large_archive_comes_in_parts_and_a_part_again() {
    let mut place = Place::new().await;
    let data = whole(&(0..30_u8).map(|n| file(&format!("d/f{n}"), &vec![n; 100_001])).collect::<Vec<_>>());
    let steps: Vec<usize> = (0..data.len()).step_by(1_000_000).collect();
    let part = |at: usize| &data[at..data.len().min(at + 1_000_000)];
    place.start("t", "u").await.unwrap();
    assert_eq!(place.put("u", 5, b"x").await, Err(ErrorCode::Invalid));
    for (n, at) in steps.iter().enumerate() {
        place.put("u", *at, part(*at)).await.unwrap();
        // Again, whole and from its middle, and after the host has gone.
        place.put("u", *at, part(*at)).await.unwrap();
        if n == 1 {
            place.guest = place.guest.reattach().await;
            assert!(matches!(place.start("t", "u").await.unwrap(), Tell::Upload(upload) if upload.attached));
        }
    }
    assert_eq!(place.put("u", data.len(), b"").await.unwrap(), data.len() as u64);
    let done = place.commit("u").await.unwrap();
    assert_eq!(place.commit("u").await.unwrap(), done);
    for n in 0..30_u8 {
        assert_eq!(std::fs::read(place.path(&format!("t/d/f{n}"))).unwrap(), vec![n; 100_001]);
    }

    // Cut: the commit says so, and the upload is over.
    place.start("cut", "v").await.unwrap();
    place.put("v", 0, &data[..150_000]).await.unwrap();
    assert_eq!(place.commit("v").await, Err(ErrorCode::InvalidArchive));
    assert_eq!(place.commit("v").await, Err(ErrorCode::NoSuchUpload));
    assert_eq!(std::fs::read_dir(place.path("cut/d")).unwrap().count(), 1);

    // Refused while it comes; its error stays the answer.
    place.start("bad", "w").await.unwrap();
    let bad = [file("../x", b"x"), vec![0; 1 << 19]].concat();
    let refused = async {
        let mut at = 0;
        loop {
            match place.put("w", at, &bad).await {
                Ok(_) => at += bad.len(),
                Err(code) => return code,
            }
        }
    };
    assert_eq!(tokio::time::timeout(WAIT, refused).await.unwrap(), ErrorCode::InvalidArchive);
    assert_eq!(place.commit("w").await, Err(ErrorCode::InvalidArchive));

    // Four at once; one that is aborted makes room.
    for id in ["a", "b", "c", "d"] {
        place.start("many", id).await.unwrap();
    }
    assert_eq!(place.start("many", "e").await.unwrap_err().code(), ErrorCode::TransferLimit);
    place.guest.one(Ask::AbortUpload(parts("a"))).await.unwrap();
    place.start("many", "e").await.unwrap();
}

/// Readers that go away or do not read give their places back, and hold up nobody else.
#[tokio::test]
async fn readers_are_counted_and_let_go() {
    let place = Place::new().await;
    std::fs::create_dir(place.path("t")).unwrap();
    std::fs::write(place.path("t/f"), vec![1; 8 << 20]).unwrap();
    let ask = || Ask::ReadArchive(ReadArchive { path: place.path("t"), user: ROOT, ..ReadArchive::default() });
    let mut held = Vec::new();
    for _ in 0..4 {
        let mut stream = place.guest.open(ask()).await;
        assert!(matches!(next(&mut stream).await, Ok(Some(Tell::Chunk(_)))));
        held.push(stream);
    }
    assert_eq!(place.guest.ask(ask()).await.unwrap_err().code(), ErrorCode::TransferLimit);
    assert_eq!(place.guest.sh("echo on").await, "on\n");
    drop(held);
    let again = async {
        while place.guest.ask(ask()).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(WAIT, again).await.expect("the places are given back");
}
