//! Real btrfs on a loop device in a temporary directory: clones, quotas, deletes.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use runtime_host::{btrfs, loopdev, mount};

const MIB: u64 = 1 << 20;

struct Fs {
    dir: tempfile::TempDir,
}

impl Fs {
    fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("runtime-host-btrfs").tempdir().unwrap();
        let fs = Self { dir };
        let image = fs.image();
        File::create(&image).unwrap().set_len(1024 * MIB).unwrap();
        assert!(Command::new("mkfs.btrfs").args(["-q", "-m", "single"]).arg(&image).status().unwrap().success());
        fs::create_dir(fs.path()).unwrap();
        let device = loopdev::LoopDevice::attach(&image).unwrap();
        mount::mount_btrfs(device.path(), &fs.path()).unwrap();
        btrfs::enable_simple_quota(fs.open("")).unwrap();
        fs
    }

    fn image(&self) -> PathBuf {
        self.dir.path().join("image")
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("mnt")
    }

    fn open(&self, below: &str) -> File {
        File::open(self.path().join(below)).unwrap()
    }
}

impl Drop for Fs {
    fn drop(&mut self) {
        let _ = mount::unmount(&self.path());
    }
}

/// Fills `file` until the file system says no; the bytes that went in, and the error.
fn fill(file: &Path, at_most: u64) -> (u64, Option<i32>) {
    let block = vec![7u8; MIB as usize];
    let mut out = File::create(file).unwrap();
    for written in 0..at_most / MIB {
        let result = out.write_all(&block).and_then(|()| out.sync_data());
        if let Err(e) = result {
            return (written * MIB, e.raw_os_error());
        }
    }
    (at_most, None)
}

#[test]
fn a_clone_starts_empty_and_ends_at_its_limit() {
    let fs = Fs::new();
    let top = fs.open("");
    let id = btrfs::fs_id(&top).unwrap();
    assert_eq!(btrfs::quota_mode(&id), btrfs::QuotaMode::Simple);

    btrfs::create_subvolume(&top, "base").unwrap();
    assert_eq!(fill(&fs.path().join("base/big"), 100 * MIB), (100 * MIB, None));
    btrfs::set_read_only(fs.open("base"), true).unwrap();
    assert!(btrfs::is_read_only(fs.open("base")).unwrap());
    assert!(File::create(fs.path().join("base/more")).is_err());

    btrfs::snapshot(fs.open("base"), &top, "clone", false, Some(50 * MIB)).unwrap();
    let clone = btrfs::subvolume_id(fs.open("clone")).unwrap();
    assert!(btrfs::is_subvolume(fs.open("clone")).unwrap());
    assert_eq!(btrfs::limit(&id, clone).unwrap(), 50 * MIB);
    assert!(btrfs::usage(&id, clone).unwrap() < MIB, "a clone owns what it did not write");

    let (written, error) = fill(&fs.path().join("clone/new"), 100 * MIB);
    assert_eq!(error, Some(libc::EDQUOT), "after {written} bytes");
    assert!((40 * MIB..=50 * MIB).contains(&written), "stopped after {written} bytes");

    btrfs::set_limit(&top, clone, 80 * MIB).unwrap();
    let (more, _) = fill(&fs.path().join("clone/more"), 20 * MIB);
    assert_eq!(more, 20 * MIB, "a raised limit gives room");
    btrfs::sync(&top).unwrap();
    assert_eq!(btrfs::forget_stale_quotas(&top, &id).unwrap(), 0, "what exists is not stale");
    assert_eq!(btrfs::limit(&id, clone).unwrap(), 80 * MIB);
    let used = btrfs::usage(&id, clone).unwrap();
    assert!((60 * MIB..=80 * MIB).contains(&used), "used {used}");
}

#[test]
fn a_delete_takes_what_is_inside_and_an_absent_one_is_fine() {
    let fs = Fs::new();
    let top = fs.open("");
    btrfs::create_subvolume(&top, "a").unwrap();
    btrfs::create_subvolume(fs.open("a"), "b").unwrap();
    btrfs::create_subvolume(fs.open("a/b"), "c").unwrap();
    btrfs::create_subvolume(fs.open("a"), "d").unwrap();
    fs::write(fs.path().join("a/b/c/file"), "x").unwrap();
    assert_eq!(btrfs::delete_subvolume(&top, "a").unwrap(), btrfs::Deleted::Yes);
    assert!(!fs.path().join("a").exists());
    assert_eq!(btrfs::delete_subvolume(&top, "a").unwrap(), btrfs::Deleted::WasAbsent);
}

#[test]
fn a_name_cannot_leave_its_directory_and_a_plain_directory_is_not_deleted() {
    let fs = Fs::new();
    let top = fs.open("");
    for name in ["", ".", "..", "a/b", "../x", "a\0b"] {
        assert!(btrfs::create_subvolume(&top, name).is_err(), "{name:?}");
        assert!(btrfs::delete_subvolume(&top, name).is_err(), "{name:?}");
    }
    fs::create_dir(fs.path().join("plain")).unwrap();
    fs::write(fs.path().join("plain/file"), "x").unwrap();
    assert!(btrfs::delete_subvolume(&top, "plain").is_err());
    assert!(fs.path().join("plain/file").exists());
    std::os::unix::fs::symlink("plain", fs.path().join("link")).unwrap();
    assert!(btrfs::delete_subvolume(&top, "link").is_err());
}

#[test]
fn the_loop_device_goes_with_the_mount() {
    let fs = Fs::new();
    let image = fs.image();
    let devices = loopdev::devices_of(&image).unwrap();
    assert_eq!(devices.len(), 1);
    let held = mount::mounted_at(&fs.path()).unwrap().unwrap();
    assert_eq!(Path::new(&held.source), devices[0]);
    mount::unmount(&fs.path()).unwrap();
    assert_eq!(loopdev::devices_of(&image).unwrap(), Vec::<PathBuf>::new());
    mount::unmount(&fs.path()).unwrap();
    assert!(fs::metadata(&image).unwrap().blocks() * 512 < 200 * MIB, "the image is sparse");
}
