//! Loop devices: a file as a disk. Devices are made to let go of their file by themselves once nothing uses them
//! (autoclear), so that an unmount, or a crash before the mount, leaves none behind.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

const CTL_GET_FREE: libc::Ioctl = 0x4C82;
const CONFIGURE: libc::Ioctl = 0x4C0A;
const CLR_FD: libc::Ioctl = 0x4C01;
const AUTOCLEAR: u32 = 4;
const DIRECT_IO: u32 = 16;
/// Another process may take the number between asking and configuring.
const ATTEMPTS: usize = 32;

#[derive(Debug, thiserror::Error)]
#[error("cannot {step} a loop device for {file}")]
pub struct LoopError {
    pub step: &'static str,
    pub file: PathBuf,
    #[source]
    pub source: io::Error,
}

/// An attached device. Keep it until the mount exists: closing the last user detaches it.
#[derive(Debug)]
pub struct LoopDevice {
    _device: File,
    path: PathBuf,
}

impl LoopDevice {
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Attaches `file`, past the page cache where the file system underneath allows it: the file system on the
    /// device caches already, and twice would double the memory.
    pub fn attach(file: &Path) -> Result<Self, LoopError> {
        let fail = |step| move |source| LoopError { step, file: file.to_owned(), source };
        let backing = OpenOptions::new().read(true).write(true).open(file).map_err(fail("open the file of"))?;
        let control = OpenOptions::new()
            .read(true)
            .write(true)
            .open("/dev/loop-control")
            .map_err(fail("open /dev/loop-control for"))?;
        for _ in 0..ATTEMPTS {
            let number = get_free(&control).map_err(fail("find"))?;
            let path = PathBuf::from(format!("/dev/loop{number}"));
            let device = OpenOptions::new()
                .read(true)
                .write(true)
                .custom_flags(libc::O_CLOEXEC)
                .open(&path)
                .map_err(fail("open"))?;
            let configured = match configure(&device, &backing, file, AUTOCLEAR | DIRECT_IO) {
                Err(e) if e.raw_os_error() == Some(libc::EINVAL) => configure(&device, &backing, file, AUTOCLEAR),
                other => other,
            };
            match configured {
                Ok(()) => return Ok(Self { _device: device, path }),
                Err(e) if e.raw_os_error() == Some(libc::EBUSY) => {}
                Err(e) => return Err(fail("configure")(e)),
            }
        }
        Err(fail("find")(io::Error::from_raw_os_error(libc::EBUSY)))
    }
}

/// The devices that have `file` behind them.
pub fn devices_of(file: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/sys/block")?.flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str().filter(|n| n.starts_with("loop")) else { continue };
        if backing_file(name).is_some_and(|backing| backing == file) {
            found.push(Path::new("/dev").join(name));
        }
    }
    Ok(found)
}

/// The file behind a device, by its name (`loop0`).
pub fn backing_file(name: &str) -> Option<PathBuf> {
    let text = fs::read_to_string(Path::new("/sys/block").join(name).join("loop/backing_file")).ok()?;
    Some(PathBuf::from(text.trim_end_matches('\n')))
}

/// Lets go of the file; a device in use does so when its last user leaves.
pub fn detach(device: &Path) -> io::Result<()> {
    let file = OpenOptions::new().read(true).open(device)?;
    // SAFETY: LOOP_CLR_FD takes no argument; the descriptor is open for the call.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), CLR_FD, 0) };
    let error = io::Error::last_os_error();
    if result < 0 && error.raw_os_error() != Some(libc::ENXIO) {
        return Err(error);
    }
    Ok(())
}

#[repr(C)]
struct Info {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    sizelimit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

#[repr(C)]
struct Config {
    fd: u32,
    block_size: u32,
    info: Info,
    reserved: [u64; 8],
}

const _: () = {
    assert!(size_of::<Info>() == 232);
    assert!(size_of::<Config>() == 304);
};

fn get_free(control: &File) -> io::Result<i32> {
    // SAFETY: LOOP_CTL_GET_FREE takes no argument and returns a device number.
    let number = unsafe { libc::ioctl(control.as_raw_fd(), CTL_GET_FREE) };
    if number < 0 { Err(io::Error::last_os_error()) } else { Ok(number) }
}

fn configure(device: &File, backing: &File, name: &Path, flags: u32) -> io::Result<()> {
    use std::os::unix::ffi::OsStrExt;
    let mut file_name = [0u8; 64];
    let bytes = name.as_os_str().as_bytes();
    let len = bytes.len().min(file_name.len() - 1);
    file_name[..len].copy_from_slice(&bytes[..len]);
    let config = Config {
        fd: backing.as_raw_fd() as u32,
        block_size: 0,
        info: Info {
            device: 0,
            inode: 0,
            rdevice: 0,
            offset: 0,
            sizelimit: 0,
            number: 0,
            encrypt_type: 0,
            encrypt_key_size: 0,
            flags,
            file_name,
            crypt_name: [0; 64],
            encrypt_key: [0; 32],
            init: [0; 2],
        },
        reserved: [0; 8],
    };
    // SAFETY: LOOP_CONFIGURE reads a loop_config of exactly this layout; both descriptors are open for the call.
    let result = unsafe { libc::ioctl(device.as_raw_fd(), CONFIGURE, &raw const config) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
