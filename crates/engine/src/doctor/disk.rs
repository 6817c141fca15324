//! Checks of the disk: loop devices, the pool, the base image, room.

use std::fs::{self, File};
use std::path::Path;

use runtime_host::btrfs::{self, QuotaMode};
use runtime_host::{loopdev, mount};

use super::Check;
use crate::prepare::pool;

const GIB: u64 = 1 << 30;

pub(super) fn loop_devices() -> Check {
    if Path::new("/dev/loop-control").exists() {
        Check::ok("loop devices", "/dev/loop-control is there")
    } else {
        Check::problem("loop devices", "/dev/loop-control is missing", "modprobe loop")
    }
}

pub(super) fn pool(data_dir: &Path) -> Vec<Check> {
    let data_dir = &fs::canonicalize(data_dir).unwrap_or_else(|_| data_dir.to_owned());
    let dir = data_dir.join("pool");
    let setup = || setup_command(data_dir);
    let mounted = mount::mounted_at(&dir).ok().flatten();
    let on_btrfs = File::open(&dir).is_ok_and(|fd| btrfs::is_btrfs(&fd).unwrap_or(false));
    if !on_btrfs {
        let detail = if data_dir.join("pool.img").is_file() {
            format!("{} is not mounted; `runtime serve` and setup mount it", data_dir.join("pool.img").display())
        } else {
            format!("there is none in {}", data_dir.display())
        };
        return vec![Check::problem("disk pool", detail, setup()), base_image(data_dir, false)];
    }
    let quota = File::open(&dir).ok().and_then(|fd| btrfs::fs_id(&fd).ok()).map(|id| btrfs::quota_mode(&id));
    let place = match mounted.and_then(|m| m.source.strip_prefix("/dev/").and_then(loopdev::backing_file)) {
        Some(file) => format!("{} holds it", file.display()),
        None => "part of the file system there".to_owned(),
    };
    let pool = match quota {
        Some(QuotaMode::Simple) => Check::ok("disk pool", format!("at {}, simple quotas; {place}", dir.display())),
        Some(QuotaMode::Full) => Check::problem(
            "disk pool",
            "full quotas are on, which make every clone slow",
            format!("btrfs quota disable {}, then {}", dir.display(), setup()),
        ),
        Some(QuotaMode::Off) | None => {
            Check::problem("disk pool", "quotas are off, so that disk limits do not hold", setup())
        }
    };
    vec![pool, base_image(data_dir, true)]
}

fn base_image(data_dir: &Path, pool: bool) -> Check {
    let digest = runtime_images::base::digest();
    let path = data_dir.join("pool/base").join(&digest);
    if pool && path.join(runtime_images::base::MANIFEST).is_file() {
        Check::ok("base image", format!("{} at {}", &digest[..12], path.display()))
    } else if pool {
        Check::problem("base image", format!("{} has not been built", &digest[..12]), setup_command(data_dir))
    } else {
        Check::problem("base image", "there is no pool to look in", setup_command(data_dir))
    }
}

pub(super) fn room(data_dir: &Path) -> Check {
    // The nearest place that exists: before a setup the data directory need not.
    let Some(place) = data_dir.ancestors().find(|path| path.is_dir()) else {
        return Check::problem(
            "disk room",
            "the data directory's path cannot be followed",
            "give an absolute --data-dir",
        );
    };
    let host = pool::disks_below(place).unwrap_or_else(|_| vec![place.to_owned()]);
    for disk in host {
        match pool::space(&disk) {
            Ok((total, free)) => {
                if let Err(e) = pool::check_room(&disk, total, free) {
                    let fix = "free disk space: new sandboxes are refused until then";
                    return Check::problem("disk room", e.to_string(), fix);
                }
            }
            Err(e) => {
                return Check::problem(
                    "disk room",
                    format!("cannot measure {}: {e}", disk.display()),
                    "see the message",
                );
            }
        }
    }
    match pool::space(place) {
        Ok((total, free)) => Check::ok("disk room", format!("{} GiB of {} GiB free", free / GIB, total / GIB)),
        Err(e) => Check::problem("disk room", format!("cannot measure {}: {e}", place.display()), "see the message"),
    }
}

fn setup_command(data_dir: &Path) -> String {
    crate::prepare::setup_command(data_dir)
}
