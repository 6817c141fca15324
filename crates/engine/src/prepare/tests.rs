//! Real pools on loop devices in temporary directories.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use runtime_host::{btrfs, loopdev, mount};

use super::*;

const MIB: u64 = 1 << 20;

/// A data directory with a pool file of its own.
struct OwnPool {
    dir: tempfile::TempDir,
}

impl OwnPool {
    fn new() -> (Self, Pool) {
        let own = Self { dir: tempfile::Builder::new().prefix("runtime-prepare").tempdir().unwrap() };
        let pool = Pool::create(own.path()).unwrap();
        (own, pool)
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }
}

impl Drop for OwnPool {
    fn drop(&mut self) {
        let _ = Pool::unmount(self.path());
    }
}

/// A base image of one file.
fn small_base(pool: &Pool) -> Base {
    btrfs::create_subvolume(pool.base_fd(), "small").unwrap();
    let path = pool.base_dir().join("small");
    fs::write(path.join("os"), vec![1u8; 20 * MIB as usize]).unwrap();
    btrfs::set_read_only(File::open(&path).unwrap(), true).unwrap();
    Base { digest: "small".into(), path }
}

fn fill(file: &Path, mib: u64) -> Result<(), i32> {
    let block = vec![7u8; MIB as usize];
    let mut out = File::create(file).unwrap();
    (0..mib).try_for_each(|_| {
        let result = out.write_all(&block).and_then(|()| out.sync_data());
        result.map_err(|e| e.raw_os_error().unwrap_or(0))
    })
}

#[test]
fn disks_are_clones_with_limits_of_their_own() {
    let (_own, pool) = OwnPool::new();
    let base = small_base(&pool);
    let a = pool.create_root("a", &base, 30).unwrap();
    assert_eq!(pool.root("a").unwrap(), Some(a.clone()));
    assert_eq!(pool.root("b").unwrap(), None);
    assert_eq!(fs::metadata(a.join("os")).unwrap().len(), 20 * MIB);
    assert!(pool.usage("a").unwrap() < MIB);

    let over = rustix::io::Errno::DQUOT.raw_os_error();
    assert_eq!(fill(&a.join("new"), 40), Err(over));
    pool.set_limit("a", 60).unwrap();
    assert_eq!(fill(&a.join("more"), 20), Ok(()));

    let b = pool.snapshot_root("a", "b").unwrap();
    assert_eq!(fs::metadata(b.join("more")).unwrap().len(), 20 * MIB);
    assert_eq!(fill(&b.join("own"), 80), Err(over), "a copy has its source's limit");
    assert!(!a.join("own").exists());
    assert_eq!(pool.roots().unwrap(), ["a", "b"]);

    // Repeating the step keeps what is there.
    assert_eq!(pool.create_root("a", &base, 70).unwrap(), a);
    assert!(a.join("more").exists());

    pool.delete_root("a").unwrap();
    pool.delete_root("a").unwrap();
    assert_eq!(pool.roots().unwrap(), ["b"]);
    assert!(b.join("own").exists());
    pool.wipe().unwrap();
    assert_eq!(pool.roots().unwrap(), Vec::<String>::new());
    assert!(!base.path.exists());
}

#[test]
fn a_disk_that_is_over_its_limit_is_limited_copied_and_deleted() {
    let (_own, pool) = OwnPool::new();
    let base = small_base(&pool);
    let a = pool.create_root("a", &base, 30).unwrap();
    assert!(fill(&a.join("new"), 40).is_err());
    pool.sync().unwrap();
    // As a last commit leaves it that wrote more than it had reserved.
    pool.set_limit("a", 10).unwrap();
    assert!(pool.usage("a").unwrap() > 20 * MIB);
    assert!(fs::create_dir(a.join("none")).is_err(), "what is charged to it fails");
    pool.set_limit("a", 11).unwrap();
    assert_eq!(pool.stop_growth().unwrap(), 1);
    assert_eq!(pool.allow_growth().unwrap(), 1);
    pool.snapshot_root("a", "b").unwrap();
    pool.set_limit("a", 60).unwrap();
    assert_eq!(fill(&a.join("more"), 10), Ok(()));
    pool.delete_root("a").unwrap();
    pool.delete_root("b").unwrap();
}

#[test]
fn growth_is_stopped_and_goes_on_within_the_same_limits() {
    let (_own, pool) = OwnPool::new();
    let base = small_base(&pool);
    let roots = [pool.create_root("a", &base, 60).unwrap(), pool.create_root("b", &base, 60).unwrap()];
    let over = Err(rustix::io::Errno::DQUOT.raw_os_error());
    for root in &roots {
        assert_eq!(fill(&root.join("before"), 10), Ok(()));
    }
    pool.sync().unwrap();
    assert_eq!(pool.stop_growth().unwrap(), 2);
    assert_eq!(pool.stop_growth().unwrap(), 0);
    pool.set_limit("b", 80).unwrap();
    for root in &roots {
        assert_eq!(fill(&root.join("during"), 10), over);
        fs::remove_file(root.join("during")).unwrap();
    }
    // What is given back is gone for good.
    fs::remove_file(roots[0].join("before")).unwrap();
    pool.sync().unwrap();
    pool.stop_growth().unwrap();
    assert_eq!(fill(&roots[0].join("again"), 10), over);

    // As the next server finds it.
    assert_eq!(pool.allow_growth().unwrap(), 2);
    assert_eq!(pool.allow_growth().unwrap(), 0);
    assert_eq!(fill(&roots[0].join("after"), 40), Ok(()));
    assert_eq!(fill(&roots[0].join("over"), 40), over, "its own limit holds");
    assert_eq!(fill(&roots[1].join("after"), 60), Ok(()), "as it was set meanwhile");
}

#[test]
fn a_directory_that_others_may_enter_is_closed_or_refused() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let mode = || fs::metadata(dir.path()).unwrap().permissions().mode() & 0o7777;
    let open_up = || fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    open_up();
    make_private_dir(dir.path()).unwrap();
    assert_eq!(mode(), 0o700);
    open_up();
    fs::write(dir.path().join("letter"), "").unwrap();
    assert!(matches!(make_private_dir(dir.path()), Err(PrepareError::OpenDirectory { .. })));
    assert_eq!(mode(), 0o755, "another's directory stays as it is");
    fs::create_dir(dir.path().join("pool")).unwrap();
    make_private_dir(dir.path()).unwrap();
    assert_eq!(mode(), 0o700);
    std::os::unix::fs::chown(dir.path(), Some(12345), None).unwrap();
    assert!(matches!(make_private_dir(dir.path()), Err(PrepareError::NotRootsDirectory { owner: 12345, .. })));
}

#[test]
fn spares_are_taken_once_and_not_kept_over_a_mount() {
    let (own, pool) = OwnPool::new();
    let base = small_base(&pool);
    assert_eq!(pool.prepare_spares(&base, 3).unwrap(), 3);
    assert_eq!(pool.prepare_spares(&base, 3).unwrap(), 0);
    assert_eq!(pool.roots().unwrap(), Vec::<String>::new(), "a spare is nobody's disk");

    // More callers than spares, all at once: each gets a disk of its own, with its limit.
    std::thread::scope(|scope| {
        for n in 0..8 {
            let (pool, base) = (&pool, &base);
            scope.spawn(move || {
                let root = pool.create_root(&format!("r{n}"), base, 30).unwrap();
                fs::write(root.join("mine"), n.to_string()).unwrap();
            });
        }
    });
    assert_eq!(pool.roots().unwrap().len(), 8);
    assert_eq!(pool.spares(&base).unwrap(), Vec::<String>::new());
    for n in 0..8 {
        let root = pool.root(&format!("r{n}")).unwrap().unwrap();
        assert_eq!(fs::read_to_string(root.join("mine")).unwrap(), n.to_string());
        assert_eq!(fill(&root.join("new"), 40), Err(rustix::io::Errno::DQUOT.raw_os_error()), "r{n}");
    }

    pool.prepare_spares(&base, 1).unwrap();
    assert!(pool.create_root("r0", &base, 50).unwrap().join("mine").exists(), "repeating keeps what is there");
    assert_eq!(pool.spares(&base).unwrap().len(), 1);
    drop(pool);
    Pool::unmount(own.path()).unwrap();
    let pool = Pool::open(own.path()).unwrap().unwrap();
    assert_eq!(pool.spares(&base).unwrap(), Vec::<String>::new());
    assert_eq!(pool.roots().unwrap().len(), 8);
}

#[test]
fn ids_cannot_lead_out_of_the_pool() {
    let (_own, pool) = OwnPool::new();
    let base = small_base(&pool);
    for id in ["", ".", "..", ".spare-x", "../base/small", "a/b", "/etc", "a\0b"] {
        assert!(pool.create_root(id, &base, 10).is_err(), "{id:?}");
        assert!(pool.delete_root(id).is_err(), "{id:?}");
        assert!(pool.set_limit(id, 10).is_err(), "{id:?}");
        assert!(pool.root(id).is_err(), "{id:?}");
    }
    assert!(base.path.join("os").exists());
}

#[test]
fn a_pool_is_mounted_again_after_a_restart_and_leaves_no_device() {
    let (own, pool) = OwnPool::new();
    let base = small_base(&pool);
    let root = pool.create_root("kept", &base, 50).unwrap();
    fs::write(root.join("file"), "kept").unwrap();
    let image = fs::canonicalize(own.path()).unwrap().join("pool.img");
    assert!(fs::metadata(&image).unwrap().blocks() * 512 < 300 * MIB, "the file is sparse");
    assert_eq!(loopdev::devices_of(&image).unwrap().len(), 1);

    // As a restart of the machine leaves it.
    drop(pool);
    Pool::unmount(own.path()).unwrap();
    Pool::unmount(own.path()).unwrap();
    assert_eq!(loopdev::devices_of(&image).unwrap(), Vec::<PathBuf>::new());

    let pool = Pool::open(own.path()).unwrap().unwrap();
    assert_eq!(fs::read_to_string(pool.root("kept").unwrap().unwrap().join("file")).unwrap(), "kept");
    assert_eq!(fill(&root.join("new"), 60), Err(rustix::io::Errno::DQUOT.raw_os_error()), "limits survive");
    let again = Pool::open(own.path()).unwrap().unwrap();
    assert_eq!(again.roots().unwrap(), ["kept"]);
    assert_eq!(loopdev::devices_of(&image).unwrap().len(), 1, "opened twice, mounted once");
}

#[test]
fn a_half_made_pool_file_is_made_anew() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("pool.img.new"), "half").unwrap();
    assert!(Pool::open(dir.path()).unwrap().is_none());
    let own = OwnPool { dir };
    let pool = Pool::create(own.path()).unwrap();
    assert_eq!(pool.roots().unwrap(), Vec::<String>::new());
    assert!(!own.path().join("pool.img.new").exists());
}

#[test]
fn something_else_mounted_there_is_not_taken_for_the_pool() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("pool");
    fs::create_dir(&at).unwrap();
    mount::mount_tmpfs(&at, "size=1m").unwrap();
    let own = OwnPool { dir };
    assert!(matches!(Pool::open(own.path()), Err(PrepareError::Pool { .. })));
}

#[test]
fn an_unprepared_directory_names_the_command() {
    let dir = tempfile::tempdir().unwrap();
    let error = open(dir.path(), EngineChoice::Gvisor).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("run: runtime setup --data-dir "), "{text}");
    let error = setup_command(Path::new("/var/lib/runtime"));
    assert_eq!(error, "runtime setup");
}

#[derive(Default)]
struct Notes(Mutex<Vec<String>>);

impl Progress for Notes {
    fn step(&self, name: &str, why: &str) {
        assert!(!why.is_empty());
        self.0.lock().unwrap().push(name.to_owned());
    }
    fn note(&self, text: &str) {
        self.0.lock().unwrap().push(text.to_owned());
    }
    fn done(&self, _: &str, result: &str) {
        assert!(!result.is_empty());
    }
}

/// A data directory inside a btrfs that has this version's image already: all of `setup` but the build.
#[tokio::test]
async fn setup_changes_what_is_missing_and_then_nothing() {
    let (own, outer) = OwnPool::new();
    let digest = runtime_images::base::digest();
    btrfs::create_subvolume(outer.base_fd(), ".build-by-hand").unwrap();
    fs::write(outer.base_dir().join(".build-by-hand/os"), "os").unwrap();
    base::publish(&outer, ".build-by-hand", &digest).unwrap();

    let data_dir = own.path().join("pool/inner");
    let options = |check_only| SetupOptions { data_dir: data_dir.clone(), engine: EngineChoice::Auto, check_only };

    let looked = setup(options(true), &Silent).await.unwrap();
    assert!(!looked.ready() && !looked.changed());
    assert!(!data_dir.exists(), "looking makes nothing");
    assert!(!looked.steps.iter().any(|step| matches!(step.outcome, Outcome::Blocked(_))), "{looked:?}");

    let notes = Notes::default();
    let first = setup(options(false), &notes).await.unwrap();
    assert!(first.ready() && first.changed(), "{first:?}");
    assert_eq!(first.engine, "gvisor");
    assert!(!data_dir.join("pool.img").exists(), "the file system there is used");

    let second = setup(options(false), &Silent).await.unwrap();
    assert!(second.ready() && !second.changed(), "{second:?}");
    assert!(setup(options(true), &Silent).await.unwrap().ready());

    // What a crash in the middle of a build leaves.
    let inner = Pool::open(&data_dir).unwrap().unwrap();
    btrfs::create_subvolume(inner.base_fd(), ".build-crashed").unwrap();
    fs::write(inner.base_dir().join(".build-crashed/half"), "x").unwrap();
    let third = setup(options(false), &notes).await.unwrap();
    assert!(third.ready() && third.changed());
    assert_eq!(base::unfinished(&inner).unwrap(), Vec::<String>::new());
    assert!(notes.0.lock().unwrap().iter().any(|n| n.contains("interrupted build")));

    let host = open(&data_dir, EngineChoice::Gvisor).unwrap();
    assert_eq!(host.base.digest, digest);
    let root = host.pool.create_root("x", &host.base, 10).unwrap();
    assert_eq!(fs::read_to_string(root.join("os")).unwrap(), "os");
    assert!(host.run_dir.starts_with("/run/runtime") && host.run_dir.as_os_str().len() < 40);
    assert!(host.run_dir.is_dir());
    fs::remove_dir(&host.run_dir).unwrap();
    host.pool.wipe().unwrap();
    fs::remove_dir_all(&data_dir).unwrap();
}

#[tokio::test]
async fn a_firecracker_that_is_not_there_is_told_before_anything_is_installed_or_made() {
    let dir = tempfile::tempdir().unwrap();
    let data_dir = dir.path().join("data");
    if Firecracker::find().is_err() {
        let options = SetupOptions { data_dir: data_dir.clone(), engine: EngineChoice::Firecracker, check_only: false };
        let error = setup(options, &Silent).await.unwrap_err();
        assert!(error.to_string().contains("/usr/local/bin"), "{error}");
        assert!(!data_dir.join("pool.img").exists());
    }
    for name in EngineChoice::NAMES {
        assert_eq!(name.parse::<EngineChoice>().unwrap().to_string(), name);
    }
}

#[tokio::test]
async fn two_setups_of_one_directory_do_not_run_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let _held = runtime_host::lock::Lock::acquire(&dir.path().join("setup.lock")).unwrap();
    let options = SetupOptions { data_dir: dir.path().into(), engine: EngineChoice::Gvisor, check_only: false };
    assert!(matches!(setup(options, &Silent).await, Err(PrepareError::SetupRunning(_))));
}

/// A btrfs that is not ours keeps its settings: the pool is a file on it, as on any other file system.
#[test]
fn a_btrfs_without_simple_quotas_is_left_alone() {
    let outer = tempfile::tempdir().unwrap();
    let image = outer.path().join("image");
    File::create(&image).unwrap().set_len(20 << 30).unwrap();
    let made =
        std::process::Command::new(packages::tool("mkfs.btrfs").unwrap()).arg("-q").arg(&image).status().unwrap();
    assert!(made.success());
    let at = outer.path().join("disk");
    fs::create_dir(&at).unwrap();
    let device = loopdev::LoopDevice::attach(&image).unwrap();
    mount::mount_btrfs(device.path(), &at).unwrap();
    drop(device);

    let data_dir = at.join("data");
    fs::create_dir(&data_dir).unwrap();
    let result = std::panic::catch_unwind(|| {
        let pool = Pool::create(&data_dir).unwrap();
        assert!(data_dir.join("pool.img").is_file());
        assert!(pool.shared_root().is_none());
        let id = btrfs::fs_id(File::open(&data_dir).unwrap()).unwrap();
        assert_eq!(btrfs::quota_mode(&id), btrfs::QuotaMode::Off);
    });
    Pool::unmount(&data_dir).unwrap();
    // The loop device lets go of its file a moment after its last user.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(120);
    while let Err(error) = mount::unmount(&at) {
        assert!(std::time::Instant::now() < deadline, "{error}");
        std::thread::yield_now();
    }
    result.unwrap();
}
