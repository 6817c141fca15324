//! Watches of files, with the kernel's real inotify.

mod common;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use common::*;
use runtime_proto::guest::{
    Ask, Change, ChangeKind, ErrorCode, FollowWatch, Input, Nothing, StartWatch, Tell, Watch, WatchEnd, WatchRecord,
    WatchRef, WriteFile, encode,
};

/// What a poll may wait for the kernel and the agent, in milliseconds.
const PATIENCE: u64 = 100_000;

fn wanted(path: &Path) -> StartWatch {
    StartWatch {
        path: path.to_str().unwrap().to_owned(),
        recursive: true,
        batch_ms: 20,
        watch_id: "w".to_owned(),
        user: 1,
        ..StartWatch::default()
    }
}

async fn start(guest: &Guest, wanted: StartWatch) -> Watch {
    match guest.one(Ask::StartWatch(wanted)).await.unwrap() {
        Tell::Watch(watch) => watch,
        other => panic!("{other:?}"),
    }
}

async fn poll(guest: &Guest, cursor: u64, wait_ms: u64) -> (Vec<WatchRecord>, Watch) {
    let ask = FollowWatch { watch_id: "w".to_owned(), cursor, wait_ms, once: true };
    let mut told = guest.ask(Ask::FollowWatch(ask)).await.unwrap();
    let Some(Tell::Watch(watch)) = told.pop() else { panic!("no watch at the end") };
    let records = told.into_iter().map(|told| match told {
        Tell::WatchRecord(record) => record,
        other => panic!("{other:?}"),
    });
    (records.collect(), watch)
}

/// Reads until a file of this name was made, which the caller makes last. A line for each change, that one left out.
async fn lines(guest: &Guest, root: &Path, cursor: &mut u64, last: &str) -> Vec<String> {
    std::fs::write(root.join(last), "").unwrap();
    let mut seen = Vec::new();
    loop {
        let (records, _) = poll(guest, *cursor, PATIENCE).await;
        assert!(!records.is_empty(), "{last} never came after {seen:?}");
        for record in records {
            *cursor = record.cursor;
            for change in record.changes {
                if change.path.ends_with(last) {
                    return seen;
                }
                // Two writes may fall into one batch or two.
                let line = shown(root, &change);
                if seen.last() != Some(&line) {
                    seen.push(line);
                }
            }
        }
    }
}

fn shown(root: &Path, change: &Change) -> String {
    let short = |path: &str| path.strip_prefix(root.to_str().unwrap()).unwrap().trim_start_matches('/').to_owned();
    let kind = ChangeKind::try_from(change.kind).unwrap();
    let old = change.old_path.as_deref().map_or_else(String::new, |old| format!("{} > ", short(old)));
    let slash = if change.is_dir { "/" } else { "" };
    format!("{kind:?} {old}{}{slash}", short(&change.path))
}

#[tokio::test]
async fn each_change_is_told_as_what_it_is() {
    let guest = Guest::start().await;
    let dir = tempfile::tempdir().unwrap();
    let (root, outside) = (dir.path().join("root"), dir.path().join("outside"));
    std::fs::create_dir_all(root.join("old/deep")).unwrap();
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(root.join("file"), "x").unwrap();
    assert!(!start(&guest, wanted(&root)).await.attached);
    let mut cursor = 0;
    let mut step = async |name: &str, expected: &[&str]| {
        let seen = lines(&guest, &root, &mut cursor, &format!("end-of-{name}")).await;
        assert_eq!(seen, expected, "{name}");
    };
    std::fs::write(root.join("file"), "more").unwrap();
    step("write", &["Write file"]).await;
    std::fs::write(root.join("old/deep/new"), "x").unwrap();
    step("create", &["Create old/deep/new", "Write old/deep/new"]).await;
    std::fs::set_permissions(root.join("file"), std::fs::Permissions::from_mode(0o600)).unwrap();
    step("chmod", &["Chmod file"]).await;
    std::fs::rename(root.join("file"), root.join("old/other")).unwrap();
    step("rename", &["Rename file > old/other"]).await;
    std::fs::rename(root.join("old"), root.join("moved")).unwrap();
    std::fs::remove_file(root.join("moved/deep/new")).unwrap();
    step("directory", &["Rename old > moved/", "Remove moved/deep/new"]).await;
    std::fs::rename(root.join("moved"), outside.join("moved")).unwrap();
    step("out", &["Remove moved/"]).await;
    std::fs::write(outside.join("moved/unseen"), "").unwrap();
    std::fs::rename(outside.join("moved"), root.join("back")).unwrap();
    let seen = lines(&guest, &root, &mut cursor, "end-of-in").await;
    let mut rest = seen[1..].to_vec();
    rest.sort();
    assert_eq!(
        (seen[0].as_str(), rest),
        ("Create back/", vec!["Create back/deep/".into(), "Create back/other".into(), "Create back/unseen".into()])
    );
    let mut step = async |name: &str, expected: &[&str]| {
        let seen = lines(&guest, &root, &mut cursor, &format!("end-of-{name}")).await;
        assert_eq!(seen, expected, "{name}");
    };
    std::fs::create_dir_all(root.join("a/b/c")).unwrap();
    step("mkdir -p", &["Create a/", "Create a/b/", "Create a/b/c/"]).await;
    std::fs::write(root.join("a/b/c/d"), "").unwrap();
    step("in a new directory", &["Create a/b/c/d"]).await;
    // A whole file written through the API appears as one.
    let ask = WriteFile { path: root.join("a/api").to_str().unwrap().into(), mode: 0o644, size: 1, user: 1 };
    let stream = guest.open(Ask::WriteFile(ask)).await;
    stream.send(encode(&Input { data: bytes::Bytes::from_static(b"x") })).await.unwrap();
    stream.finish().await.unwrap();
    let mut stream = stream;
    collect(&mut stream).await.unwrap();
    step("api", &["Create a/api"]).await;
    std::fs::remove_dir_all(&root).unwrap();
    let mut end = None;
    while end.is_none() {
        let (records, watch) = poll(&guest, cursor, PATIENCE).await;
        assert!(!records.is_empty() || watch.ended);
        cursor = records.last().unwrap().cursor;
        end = records.last().unwrap().end;
    }
    assert_eq!(end, Some(WatchEnd::RootRemoved as i32));
    guest.close().await;
}

#[tokio::test]
async fn only_what_is_wanted_is_told() {
    let guest = Guest::start().await;
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    std::fs::create_dir_all(root.join("node_modules/x")).unwrap();
    let mut wanted = wanted(root);
    wanted.kinds = vec![ChangeKind::Create as i32, ChangeKind::Rename as i32, ChangeKind::Access as i32];
    wanted.include = vec!["*.py".into(), "end-*".into()];
    wanted.exclude = vec!["node_modules".into()];
    start(&guest, wanted).await;
    for name in ["a.py", "b.txt", "node_modules/c.py", "node_modules/x/d.py"] {
        std::fs::write(root.join(name), "x").unwrap();
    }
    // Into what is wanted, and out of it.
    std::fs::rename(root.join("b.txt"), root.join("b.py")).unwrap();
    std::fs::rename(root.join("a.py"), root.join("a.txt")).unwrap();
    std::fs::read(root.join("b.py")).unwrap();
    let seen = lines(&guest, root, &mut 0, "end-1").await;
    assert_eq!(seen, ["Create a.py", "Create b.py", "Access b.py"]);
    guest.close().await;
}

#[tokio::test]
async fn one_file_is_watched_without_its_neighbours() {
    let guest = Guest::start().await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "x").unwrap();
    start(&guest, StartWatch { recursive: false, ..wanted(&file) }).await;
    std::fs::write(dir.path().join("other"), "x").unwrap();
    std::fs::write(&file, "y").unwrap();
    let (records, _) = poll(&guest, 0, PATIENCE).await;
    let change = &records[0].changes[0];
    assert_eq!((change.kind, change.path.as_str()), (ChangeKind::Write as i32, file.to_str().unwrap()));
    guest.close().await;
}

#[tokio::test]
async fn ten_thousand_directories_and_a_limit() {
    let guest = Guest::start().await;
    let dir = tempfile::tempdir().unwrap();
    for number in 0..10_000 {
        std::fs::create_dir_all(dir.path().join(format!("{}/{number}", number / 100))).unwrap();
    }
    start(&guest, wanted(dir.path())).await;
    std::fs::write(dir.path().join("77/7777/deep"), "").unwrap();
    let seen = lines(&guest, dir.path(), &mut 0, "end").await;
    assert_eq!(seen, ["Create 77/7777/deep"]);
    let few = StartWatch { watch_id: "few".into(), max_watches: 50, ..wanted(dir.path()) };
    start(&guest, few).await;
    let ask = FollowWatch { watch_id: "few".into(), once: true, wait_ms: PATIENCE, ..FollowWatch::default() };
    let told = guest.ask(Ask::FollowWatch(ask)).await.unwrap();
    assert!(matches!(&told[0], Tell::WatchRecord(record) if record.limit == Some(50)), "{told:?}");
    guest.close().await;
}

#[tokio::test]
async fn they_are_four_found_by_key_and_stopped() {
    let guest = Guest::start().await;
    let dir = tempfile::tempdir().unwrap();
    let named = |id: &str, key: &str| StartWatch { watch_id: id.into(), key: key.into(), ..wanted(dir.path()) };
    assert_eq!(start(&guest, named("w", "k")).await.id, "w");
    let again = start(&guest, named("x", "k")).await;
    assert_eq!((again.id.as_str(), again.attached), ("w", true));
    let taken = guest.one(Ask::StartWatch(named("w", "other"))).await.unwrap_err();
    assert_eq!(taken.code(), ErrorCode::AlreadyExists);
    for id in ["2", "3", "4"] {
        start(&guest, named(id, "")).await;
    }
    let full = guest.one(Ask::StartWatch(named("5", ""))).await.unwrap_err();
    assert_eq!(full.code(), ErrorCode::WatchLimit);
    let missing = StartWatch { path: "/none/at/all".into(), ..named("6", "") };
    assert!(guest.one(Ask::StartWatch(missing)).await.is_err());
    // A reader hears the end.
    let follow = FollowWatch { watch_id: "w".into(), ..FollowWatch::default() };
    let mut reader = guest.open(Ask::FollowWatch(follow)).await;
    reader.finish().await.unwrap();
    let stopped = guest.one(Ask::StopWatch(WatchRef { watch_id: "w".into() })).await.unwrap();
    assert!(matches!(stopped, Tell::Removed(removed) if removed.removed));
    let told = collect(&mut reader).await.unwrap();
    assert!(matches!(&told[0], Tell::WatchRecord(record) if record.end == Some(WatchEnd::Stopped as i32)), "{told:?}");
    let again = guest.one(Ask::StopWatch(WatchRef { watch_id: "w".into() })).await.unwrap();
    assert!(matches!(again, Tell::Removed(removed) if !removed.removed));
    assert_eq!(guest.ask(Ask::ListWatches(Nothing {})).await.unwrap().len(), 3);
    let nobody = guest.one(Ask::StopWatch(WatchRef { watch_id: "none".into() })).await.unwrap_err();
    assert_eq!(nobody.code(), ErrorCode::NoSuchWatch);
    let timed = StartWatch { timeout_ms: 1, ..named("w", "") };
    start(&guest, timed).await;
    let (records, watch) = poll(&guest, 0, PATIENCE).await;
    assert_eq!((records[0].end, watch.ended), (Some(WatchEnd::TimedOut as i32), true));
    guest.close().await;
}

#[tokio::test]
async fn a_flood_is_counted_and_the_watch_goes_on() {
    let guest = Guest::start().await;
    let dir = tempfile::tempdir().unwrap();
    start(&guest, StartWatch { batch_ms: 2000, ..wanted(dir.path()) }).await;
    let root = dir.path().to_owned();
    tokio::task::spawn_blocking(move || {
        for number in 0..40_000 {
            std::fs::write(root.join(format!("f{number}")), "").unwrap();
        }
    })
    .await
    .unwrap();
    std::fs::write(dir.path().join("last"), "").unwrap();
    let (mut cursor, mut told, mut dropped, mut unknown, mut lost) = (0, 0, 0, false, 0);
    while told + dropped < 40_001 && !unknown && lost == 0 {
        let (records, _) = poll(&guest, cursor, PATIENCE).await;
        assert!(!records.is_empty(), "{told} told, {dropped} dropped");
        for record in records {
            cursor = record.cursor;
            told += record.changes.len() as u64;
            lost += record.lost.unwrap_or(0);
            if let Some(overflow) = record.overflow {
                dropped += overflow.dropped.unwrap_or(0);
                unknown |= overflow.dropped.is_none();
            }
        }
    }
    // Whichever it was, it was said; and what comes after it is seen.
    assert!(dropped > 0 || unknown || lost > 0);
    let mut cursor = poll(&guest, 0, 0).await.1.cursor;
    std::fs::create_dir(dir.path().join("after")).unwrap();
    lines(&guest, dir.path(), &mut cursor, "end").await;
    guest.close().await;
}
