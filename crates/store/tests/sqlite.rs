//! The SQLite store on a real file.

use std::path::Path;
use std::sync::Arc;

use runtime_model::network::Network;
use runtime_model::{CredentialId, PrincipalId, Reason, SandboxId, Shape, State};
use runtime_store::{
    CredentialRow, DeletedRow, Env, IdempotencyRow, ListFilter, OnLimit, Operation, Outcome, PreviewRow, Replay,
    SandboxRow, SqliteStore, Store, UserKind,
};

fn row(name: Option<&str>) -> SandboxRow {
    SandboxRow {
        id: SandboxId::new_v4(),
        credential: CredentialId::new_v4(),
        name: name.map(str::to_owned),
        labels: [("a".to_owned(), "b:c".to_owned()), ("\u{1f980}".to_owned(), "\"'".to_owned())].into(),
        env: Env([("A".to_owned(), "hunter2".to_owned())].into()),
        user: UserKind::Root,
        region: "us-east".to_owned(),
        shape: Shape { vcpu: 3, memory_mib: 777, disk_mib: 4000, cpu_floor_millis: 11 },
        cpu_reserved: true,
        timeout_seconds: 60,
        on_limit: OnLimit::Delete,
        idle_seconds: 300,
        auto_wake: false,
        persistent: true,
        max_total_cost_micros: Some(1 << 40),
        image: Some("i".to_owned()),
        snapshot: Some("s".to_owned()),
        secrets: Some(vec!["x".to_owned()]),
        network: Network { allow: vec!["*.example.com".parse().unwrap()], ..Network::open() },
        network_version: 3,
        network_updated_at: Some(5),
        engine: "gvisor".to_owned(),
        state: State::Starting,
        reason: None,
        operation: Some(Operation::StartNew),
        generation: 1,
        created_at: 1_000,
        ready_at: Some(2),
        last_active_at: Some(3),
        ends_at: Some(4),
        ended_at: Some(5),
        paused_at: Some(6),
        retention_days: Some(7),
        disk_kept: false,
        memory_restored: Some(true),
        charged_micros: 8,
        held_micros: 9,
    }
}

fn key(name: &str, replay: Replay) -> IdempotencyRow {
    IdempotencyRow {
        scope: "org".to_owned(),
        key: name.to_owned(),
        fingerprint: [7; 32],
        status: 200,
        replay,
        expires_at: 10_000,
    }
}

async fn open(dir: &Path) -> SqliteStore {
    SqliteStore::open(&dir.join("runtime.db")).await.unwrap()
}

#[tokio::test]
async fn a_row_comes_back_as_it_went_also_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    let made = row(Some("n"));
    assert!(matches!(store.create_sandbox(made.clone(), None).await.unwrap(), Outcome::Done));
    assert_eq!(store.sandbox(made.id).await.unwrap(), Some(made.clone()));
    assert!(!format!("{made:?}").contains("hunter2"));
    store.close().await;
    let store = open(dir.path()).await;
    assert_eq!(store.sandbox(made.id).await.unwrap(), Some(made.clone()));
    let mut next = SandboxRow { generation: 2, state: State::Stopped, reason: Some(Reason::Idle), ..made };
    next.secrets = None;
    assert!(matches!(store.save_sandbox(next.clone(), None).await.unwrap(), Outcome::Done));
    assert_eq!(store.sandbox(next.id).await.unwrap(), Some(next));
}

#[tokio::test]
async fn racing_creates_of_a_name_leave_one_row_and_one_key() {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(open(dir.path()).await);
    let tasks: Vec<_> = (0..200)
        .map(|n| {
            let store = store.clone();
            tokio::spawn(async move {
                let row = row(Some("n"));
                let key = key(&n.to_string(), Replay::Sandbox(row.id));
                store.create_sandbox(row, Some(key)).await.unwrap()
            })
        })
        .collect();
    let (mut made, mut holders) = (0, Vec::new());
    for task in tasks {
        match task.await.unwrap() {
            Outcome::Done => made += 1,
            Outcome::NameHeld(holder) => holders.push(holder),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((made, holders.len()), (1, 199));
    let ids = store.sandbox_ids().await.unwrap();
    assert_eq!(ids.len(), 1);
    assert!(holders.iter().all(|holder| *holder == ids[0]));
    // The losers' keys went with their rows.
    let mut kept = 0;
    for n in 0..200 {
        kept += usize::from(store.remembered("org", &n.to_string(), 0).await.unwrap().is_some());
    }
    assert_eq!(kept, 1);
}

#[tokio::test]
async fn a_key_in_use_stops_the_create_it_comes_with() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    let first = row(None);
    let record = key("k", Replay::Sandbox(first.id));
    store.create_sandbox(first.clone(), Some(record.clone())).await.unwrap();
    match store.create_sandbox(row(None), Some(key("k", Replay::Body(Vec::new())))).await.unwrap() {
        Outcome::KeyUsed(held) => assert_eq!(*held, record),
        other => panic!("{other:?}"),
    }
    assert_eq!(store.sandbox_ids().await.unwrap(), [first.id]);
    // Past its time it is free.
    let late = SandboxRow { created_at: 20_000, ..row(None) };
    let fresh = IdempotencyRow { expires_at: 30_000, ..key("k", Replay::Sandbox(late.id)) };
    assert!(matches!(store.create_sandbox(late, Some(fresh)).await.unwrap(), Outcome::Done));
}

#[tokio::test]
async fn records_are_kept_once_and_for_their_time() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    store.remember(key("k", Replay::Body(b"first".to_vec()))).await.unwrap();
    store.remember(key("k", Replay::Body(b"second".to_vec()))).await.unwrap();
    let later = store.remember_later(key("l", Replay::Body(b"x".to_vec()))).await;
    later.await.unwrap().unwrap();
    let held = store.remembered("org", "k", 9_999).await.unwrap().unwrap();
    assert!(held.replay == Replay::Body(b"first".to_vec()));
    store.amend(key("k", Replay::Body(b"amended".to_vec()))).await.unwrap();
    let held = store.remembered("org", "k", 9_999).await.unwrap().unwrap();
    assert!(held.replay == Replay::Body(b"amended".to_vec()));
    // Not another request's record, and not one that is not there.
    store.amend(IdempotencyRow { fingerprint: [9; 32], ..key("k", Replay::Body(Vec::new())) }).await.unwrap();
    assert!(store.remembered("org", "k", 9_999).await.unwrap().unwrap() == held);
    store.amend(key("none", Replay::Body(Vec::new()))).await.unwrap();
    assert!(store.remembered("org", "none", 0).await.unwrap().is_none());
    assert!(store.remembered("org", "k", 10_000).await.unwrap().is_none());
    assert!(store.remembered("other", "k", 0).await.unwrap().is_none());
    store.sweep(10_000, 0).await.unwrap();
    assert!(store.remembered("org", "l", 0).await.unwrap().is_none());
}

#[tokio::test]
async fn a_change_made_for_an_older_row_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    let first = row(Some("n"));
    store.create_sandbox(first.clone(), None).await.unwrap();
    let second = SandboxRow { generation: 2, name: Some("m".to_owned()), ..first.clone() };
    assert!(matches!(store.save_sandbox(second.clone(), None).await.unwrap(), Outcome::Done));
    let stale = SandboxRow { generation: 2, state: State::Stopped, ..first.clone() };
    assert!(matches!(
        store.save_sandbox(stale, Some(key("k", Replay::Body(Vec::new())))).await.unwrap(),
        Outcome::Moved
    ));
    assert_eq!(store.sandbox(first.id).await.unwrap(), Some(second));
    assert!(store.remembered("org", "k", 0).await.unwrap().is_none());
    assert_eq!(store.name_holder("n").await.unwrap(), None);
    assert_eq!(store.name_holder("m").await.unwrap(), Some(first.id));
}

#[tokio::test]
async fn a_name_goes_with_the_disk() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    let first = row(Some("n"));
    store.create_sandbox(first.clone(), None).await.unwrap();
    let stopped = SandboxRow { generation: 2, state: State::Stopped, disk_kept: true, ..first };
    store.save_sandbox(stopped.clone(), None).await.unwrap();
    assert!(matches!(store.create_sandbox(row(Some("n")), None).await.unwrap(), Outcome::NameHeld(_)));
    let gone = SandboxRow { generation: 3, disk_kept: false, ..stopped.clone() };
    store.save_sandbox(gone, None).await.unwrap();
    assert!(matches!(store.create_sandbox(row(Some("n")), None).await.unwrap(), Outcome::Done));
    // It cannot have the name back.
    let back = SandboxRow { generation: 4, ..stopped };
    assert!(matches!(store.save_sandbox(back, None).await.unwrap(), Outcome::NameHeld(_)));
}

#[tokio::test]
async fn what_is_deleted_is_remembered_until_it_is_removed_and_swept() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    let made = row(Some("n"));
    store.create_sandbox(made.clone(), None).await.unwrap();
    let deleted = DeletedRow { id: made.id, credential: made.credential, answer: "{}".to_owned(), deleted_at: 5 };
    assert!(store.delete_sandbox(deleted.clone(), None).await.unwrap());
    assert!(!store.delete_sandbox(deleted.clone(), None).await.unwrap());
    assert_eq!(store.sandbox(made.id).await.unwrap(), None);
    assert_eq!(store.name_holder("n").await.unwrap(), None);
    assert_eq!(store.removals().await.unwrap(), [made.id]);
    store.sweep(0, 6).await.unwrap();
    assert_eq!(store.deleted(made.id).await.unwrap(), Some(deleted));
    store.removed(made.id).await.unwrap();
    assert!(store.removals().await.unwrap().is_empty());
    store.sweep(0, 6).await.unwrap();
    assert_eq!(store.deleted(made.id).await.unwrap(), None);
}

#[tokio::test]
async fn lists_filter_and_go_on_after_a_place() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    let mut rows = Vec::new();
    for n in 0..10_i64 {
        let mut made = SandboxRow { created_at: n / 2, ..row(None) };
        made.labels = [("n".to_owned(), (n % 3).to_string())].into();
        store.create_sandbox(made.clone(), None).await.unwrap();
        rows.push(made);
    }
    rows.sort_by_key(|row| (row.created_at, row.id.to_string()));
    let (mut seen, mut after) = (Vec::new(), None);
    loop {
        let page = store.list(ListFilter { after, limit: 3, ..ListFilter::default() }).await.unwrap();
        let Some(last) = page.last() else { break };
        after = Some((last.created_at, last.id));
        seen.extend(page.into_iter().map(|row| row.id));
    }
    assert_eq!(seen, rows.iter().map(|row| row.id).collect::<Vec<_>>());
    let store = &store;
    let count = async |filter: ListFilter| store.list(ListFilter { limit: 100, ..filter }).await.unwrap().len();
    assert_eq!(count(ListFilter { labels: vec!["n:0".to_owned()], ..ListFilter::default() }).await, 4);
    assert_eq!(
        count(ListFilter { labels: vec!["n:0".to_owned(), "n:1".to_owned()], ..ListFilter::default() }).await,
        0
    );
    assert_eq!(count(ListFilter { credential: Some(rows[0].credential), ..ListFilter::default() }).await, 1);
    assert_eq!(count(ListFilter { states: vec![State::Running], ..ListFilter::default() }).await, 0);
}

#[tokio::test]
async fn a_revoke_by_one_opener_is_seen_by_another() {
    let dir = tempfile::tempdir().unwrap();
    let (server, tool) = (open(dir.path()).await, open(dir.path()).await);
    assert_eq!(server.hash_key().await.unwrap(), tool.hash_key().await.unwrap());
    assert_eq!(server.fixed_id("org").await.unwrap(), tool.fixed_id("org").await.unwrap());
    let made = CredentialRow {
        id: CredentialId::new_v4(),
        principal: PrincipalId::new_v4(),
        name: "ci".to_owned(),
        hash: [1; 32],
        prefix: "rtcloud_1".to_owned(),
        read_only: false,
        account_wide: true,
        created_at: 1,
        revoked_at: None,
    };
    tool.insert_credential(made.clone()).await.unwrap();
    assert_eq!(server.credential_by_hash([1; 32]).await.unwrap().map(|row| row.id), Some(made.id));
    assert!(tool.revoke_credential(made.id, 2).await.unwrap());
    assert!(!tool.revoke_credential(made.id, 3).await.unwrap());
    assert!(server.credential_by_hash([1; 32]).await.unwrap().is_none());
}

#[tokio::test]
async fn a_port_has_one_preview_and_it_goes_with_its_sandbox() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    let made = row(None);
    store.create_sandbox(made.clone(), None).await.unwrap();
    let preview = |port, public| PreviewRow {
        sandbox: made.id,
        port,
        id: uuid::Uuid::new_v4(),
        public,
        embed_origins: public.then(|| vec!["https://a.example".to_owned()]),
        secret: [0x5a; 32],
        created_at: 7,
    };
    let (first, other) = (preview(65_535, false), preview(80, true));
    assert!(!format!("{first:?}").contains("90, 90"), "its key is not shown: {first:?}");
    for row in [&first, &other] {
        store.save_preview(row.clone()).await.unwrap();
    }
    assert_eq!(store.previews(made.id).await.unwrap(), [other.clone(), first.clone()]);
    let changed = PreviewRow { public: true, secret: [1; 32], ..first };
    store.save_preview(changed.clone()).await.unwrap();
    assert_eq!(store.preview(made.id, 65_535).await.unwrap(), Some(changed));
    assert_eq!(store.preview(SandboxId::new_v4(), 80).await.unwrap(), None);
    assert!(store.delete_preview(made.id, 80).await.unwrap() && !store.delete_preview(made.id, 80).await.unwrap());
    store.sweep(0, 0).await.unwrap();
    assert_eq!(store.previews(made.id).await.unwrap().len(), 1, "its sandbox is there");
    let gone = DeletedRow { id: made.id, credential: made.credential, answer: "{}".to_owned(), deleted_at: 1 };
    assert!(store.delete_sandbox(gone, None).await.unwrap());
    store.sweep(0, 0).await.unwrap();
    assert_eq!(store.previews(made.id).await.unwrap(), []);
}

#[tokio::test]
async fn a_closed_store_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    store.close().await;
    assert!(store.remember(key("k", Replay::Body(Vec::new()))).await.is_err());
}

#[tokio::test]
async fn the_file_is_its_owners_alone_and_gives_back_what_it_does_not_use() {
    use std::os::unix::fs::PermissionsExt;

    use sqlx::{ConnectOptions, Connection};

    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    store.hash_key().await.unwrap();
    for name in ["runtime.db", "runtime.db-wal", "runtime.db-shm"] {
        let mode = std::fs::metadata(dir.path().join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(dir.path().join("runtime.db"));
    let mut beside = options.connect().await.unwrap();
    let pages = async |db: &mut sqlx::SqliteConnection| -> i64 {
        sqlx::query_scalar("select freelist_count from pragma_freelist_count()").fetch_one(db).await.unwrap()
    };
    store.remember(key("big", Replay::Body(vec![7; 1 << 20]))).await.unwrap();
    // Past its time: the pages it leaves are given back in the same sweep.
    store.sweep(20_000, 0).await.unwrap();
    assert_eq!(pages(&mut beside).await, 0);
    let size: i64 = sqlx::query_scalar("select page_count * page_size from pragma_page_count(), pragma_page_size()")
        .fetch_one(&mut beside)
        .await
        .unwrap();
    assert!(size < 1 << 20, "{size}");
    beside.close().await.unwrap();
    store.close().await;
}

#[tokio::test]
async fn the_end_of_the_writer_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(open(dir.path()).await);
    let watched = store.clone();
    let told = tokio::spawn(async move { watched.ended().await });
    assert!(!told.is_finished());
    store.close().await;
    told.await.unwrap();
}
