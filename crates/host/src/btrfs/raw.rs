//! The ioctl structures of `linux/btrfs.h` and one safe function per call.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd};

pub(super) const SUBVOL_RDONLY: u64 = 1 << 1;
const SUBVOL_QGROUP_INHERIT: u64 = 1 << 2;
const SUBVOL_SPEC_BY_ID: u64 = 1 << 4;
pub(super) const QUOTA_ENABLE_SIMPLE: u64 = 4;
const QGROUP_LIMIT_MAX_RFER: u64 = 1;
pub(super) const QGROUP_LIMIT_MAX_EXCL: u64 = 1 << 1;
const QGROUP_INHERIT_SET_LIMITS: u64 = 1;
const ROOT_TREE: u64 = 1;
/// (parent, this, child): an entry from a subvolume to one inside it; and the way back, (child, this, parent).
const ROOT_REF_KEY: u32 = 156;
const ROOT_BACKREF_KEY: u32 = 144;

const NONE: u32 = 0;
const WRITE: u32 = 1;
const READ: u32 = 2;

/// An ioctl number as `asm-generic/ioctl.h` builds it, for btrfs' magic.
const fn number(direction: u32, nr: u32, size: usize) -> libc::Ioctl {
    ((direction << 30) | ((size as u32) << 16) | (0x94 << 8) | nr) as libc::Ioctl
}

#[repr(C)]
pub(super) struct VolArgs {
    pub(super) fd: i64,
    transid: u64,
    pub(super) flags: u64,
    inherit_size: u64,
    inherit: u64,
    unused: [u64; 2],
    name: [u8; 4040],
}

impl VolArgs {
    pub(super) fn by_name(name: &[u8]) -> Self {
        let mut args =
            Self { fd: 0, transid: 0, flags: 0, inherit_size: 0, inherit: 0, unused: [0; 2], name: [0; 4040] };
        let len = name.len().min(args.name.len() - 1);
        args.name[..len].copy_from_slice(&name[..len]);
        args
    }

    pub(super) fn by_id(id: u64) -> Self {
        let mut args = Self::by_name(&[]);
        args.flags = SUBVOL_SPEC_BY_ID;
        args.name[..8].copy_from_slice(&id.to_ne_bytes());
        args
    }
}

#[repr(C)]
struct Limit {
    flags: u64,
    max_rfer: u64,
    max_excl: u64,
    rsv_rfer: u64,
    rsv_excl: u64,
}

impl Limit {
    fn bytes(max: u64) -> Self {
        Self { flags: QGROUP_LIMIT_MAX_RFER, max_rfer: max, max_excl: 0, rsv_rfer: 0, rsv_excl: 0 }
    }
}

#[repr(C)]
pub(super) struct QgroupInherit {
    flags: u64,
    num_qgroups: u64,
    num_ref_copies: u64,
    num_excl_copies: u64,
    limit: Limit,
}

impl QgroupInherit {
    pub(super) fn limited_to(bytes: u64) -> Self {
        Self {
            flags: QGROUP_INHERIT_SET_LIMITS,
            num_qgroups: 0,
            num_ref_copies: 0,
            num_excl_copies: 0,
            limit: Limit::bytes(bytes),
        }
    }
}

#[repr(C)]
struct QgroupLimit {
    qgroup: u64,
    limit: Limit,
}

#[repr(C)]
pub(super) struct FsInfo {
    max_id: u64,
    num_devices: u64,
    pub(super) fsid: [u8; 16],
    rest: [u8; 992],
}

impl FsInfo {
    pub(super) fn zeroed() -> Self {
        Self { max_id: 0, num_devices: 0, fsid: [0; 16], rest: [0; 992] }
    }
}

#[repr(C)]
pub(super) struct InoLookup {
    pub(super) treeid: u64,
    pub(super) objectid: u64,
    name: [u8; 4080],
}

impl InoLookup {
    pub(super) fn zeroed() -> Self {
        Self { treeid: 0, objectid: 0, name: [0; 4080] }
    }
}

const SEARCH_BUFFER: usize = 4096 - 104;

#[repr(C)]
struct Search {
    tree: u64,
    min_objectid: u64,
    max_objectid: u64,
    min_offset: u64,
    max_offset: u64,
    min_transid: u64,
    max_transid: u64,
    min_type: u32,
    max_type: u32,
    items: u32,
    unused: u32,
    unused_more: [u64; 4],
    buffer: [u8; SEARCH_BUFFER],
}

const _: () = {
    assert!(size_of::<VolArgs>() == 4096);
    assert!(size_of::<FsInfo>() == 1024);
    assert!(size_of::<InoLookup>() == 4096);
    assert!(size_of::<Search>() == 4096);
    assert!(size_of::<QgroupInherit>() == 72);
    assert!(size_of::<QgroupLimit>() == 48);
};

/// Issues one of the ioctls below.
///
/// # Safety
/// `request` must be a btrfs ioctl whose argument type is `T`; the kernel reads and writes no more than the size
/// encoded in the request, which every caller derives from `size_of::<T>()`.
unsafe fn call<T>(fd: BorrowedFd<'_>, request: libc::Ioctl, arg: *mut T) -> io::Result<()> {
    // SAFETY: the descriptor is borrowed for the call; the caller vouches for `request` and `arg`.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), request, arg) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

pub(super) fn subvol_create(dir: BorrowedFd<'_>, args: &VolArgs) -> io::Result<()> {
    // SAFETY: SUBVOL_CREATE_V2 reads a vol_args_v2 and writes nothing back.
    unsafe { call(dir, number(WRITE, 24, size_of::<VolArgs>()), std::ptr::from_ref(args).cast_mut()) }
}

pub(super) fn snap_create(dir: BorrowedFd<'_>, args: &mut VolArgs, inherit: Option<&QgroupInherit>) -> io::Result<()> {
    if let Some(inherit) = inherit {
        args.flags |= SUBVOL_QGROUP_INHERIT;
        args.inherit_size = size_of::<QgroupInherit>() as u64;
        args.inherit = std::ptr::from_ref(inherit) as u64;
    }
    // SAFETY: SNAP_CREATE_V2 reads a vol_args_v2; `inherit` outlives the call and its size is the one stated.
    unsafe { call(dir, number(WRITE, 23, size_of::<VolArgs>()), std::ptr::from_mut(args)) }
}

pub(super) fn snap_destroy(dir: BorrowedFd<'_>, args: &VolArgs) -> io::Result<()> {
    // SAFETY: SNAP_DESTROY_V2 reads a vol_args_v2 and writes nothing back.
    unsafe { call(dir, number(WRITE, 63, size_of::<VolArgs>()), std::ptr::from_ref(args).cast_mut()) }
}

pub(super) fn get_flags(subvolume: BorrowedFd<'_>) -> io::Result<u64> {
    let mut flags = 0u64;
    // SAFETY: SUBVOL_GETFLAGS writes one u64.
    unsafe { call(subvolume, number(READ, 25, size_of::<u64>()), &raw mut flags) }?;
    Ok(flags)
}

pub(super) fn set_flags(subvolume: BorrowedFd<'_>, mut flags: u64) -> io::Result<()> {
    // SAFETY: SUBVOL_SETFLAGS reads one u64.
    unsafe { call(subvolume, number(WRITE, 26, size_of::<u64>()), &raw mut flags) }
}

pub(super) fn fs_info(dir: BorrowedFd<'_>, args: &mut FsInfo) -> io::Result<()> {
    // SAFETY: FS_INFO writes an fs_info_args, which FsInfo is by size and leading fields.
    unsafe { call(dir, number(READ, 31, size_of::<FsInfo>()), std::ptr::from_mut(args)) }
}

pub(super) fn ino_lookup(dir: BorrowedFd<'_>, args: &mut InoLookup) -> io::Result<()> {
    // SAFETY: INO_LOOKUP reads and writes an ino_lookup_args.
    unsafe { call(dir, number(READ | WRITE, 18, size_of::<InoLookup>()), std::ptr::from_mut(args)) }
}

pub(super) fn quota_ctl(dir: BorrowedFd<'_>, command: u64) -> io::Result<()> {
    let mut args = [command, 0u64];
    // SAFETY: QUOTA_CTL reads and writes two u64.
    unsafe { call(dir, number(READ | WRITE, 40, size_of::<[u64; 2]>()), &raw mut args) }
}

pub(super) fn qgroup_remove(dir: BorrowedFd<'_>, qgroup: u64) -> io::Result<()> {
    let mut args = [0u64, qgroup];
    // SAFETY: QGROUP_CREATE reads two u64: create (0 = remove) and the number.
    unsafe { call(dir, number(WRITE, 42, size_of::<[u64; 2]>()), &raw mut args) }
}

pub(super) fn qgroup_limit(dir: BorrowedFd<'_>, qgroup: u64, bytes: u64) -> io::Result<()> {
    let mut args = QgroupLimit { qgroup, limit: Limit::bytes(bytes) };
    // SAFETY: QGROUP_LIMIT reads a qgroup_limit_args (its number says "read" for historical reasons).
    unsafe { call(dir, number(READ, 43, size_of::<QgroupLimit>()), &raw mut args) }
}

/// `None` lifts it.
pub(super) fn qgroup_limit_own(dir: BorrowedFd<'_>, qgroup: u64, bytes: Option<u64>) -> io::Result<()> {
    let max_excl = bytes.unwrap_or(u64::MAX);
    let limit = Limit { flags: QGROUP_LIMIT_MAX_EXCL, max_rfer: 0, max_excl, rsv_rfer: 0, rsv_excl: 0 };
    let mut args = QgroupLimit { qgroup, limit };
    // SAFETY: as in `qgroup_limit`.
    unsafe { call(dir, number(READ, 43, size_of::<QgroupLimit>()), &raw mut args) }
}

/// The subvolumes whose entry lies directly in subvolume `id`.
pub(super) fn child_subvolumes(dir: BorrowedFd<'_>, id: u64) -> io::Result<Vec<u64>> {
    references(dir, id, ROOT_REF_KEY)
}

/// Has subvolume `id` an entry anywhere? A deleted one has none, from the moment its name is gone.
pub(super) fn is_linked(dir: BorrowedFd<'_>, id: u64) -> io::Result<bool> {
    Ok(!references(dir, id, ROOT_BACKREF_KEY)?.is_empty())
}

fn references(dir: BorrowedFd<'_>, id: u64, kind: u32) -> io::Result<Vec<u64>> {
    let mut children = Vec::new();
    let mut from = 0u64;
    loop {
        let mut args = Search {
            tree: ROOT_TREE,
            min_objectid: id,
            max_objectid: id,
            min_offset: from,
            max_offset: u64::MAX,
            min_transid: 0,
            max_transid: u64::MAX,
            min_type: kind,
            max_type: kind,
            items: 4096,
            unused: 0,
            unused_more: [0; 4],
            buffer: [0; SEARCH_BUFFER],
        };
        // SAFETY: TREE_SEARCH reads a search key and writes items into the buffer that follows it, inside Search.
        unsafe { call(dir, number(READ | WRITE, 17, size_of::<Search>()), &raw mut args) }?;
        if args.items == 0 {
            return Ok(children);
        }
        let mut at = 0usize;
        for _ in 0..args.items {
            let Some(header) = args.buffer.get(at..at + 32) else { break };
            let child = u64_at(header, 16);
            let len = u32::from_ne_bytes([header[28], header[29], header[30], header[31]]) as usize;
            children.push(child);
            from = child;
            at = at.saturating_add(32).saturating_add(len);
        }
        if from == u64::MAX {
            return Ok(children);
        }
        from += 1;
    }
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut value = [0u8; 8];
    value.copy_from_slice(&bytes[at..at + 8]);
    u64::from_ne_bytes(value)
}

/// Starts and awaits a commit of the whole file system.
pub(super) fn sync(dir: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: SYNC takes no argument.
    unsafe { call(dir, number(NONE, 8, 0), std::ptr::null_mut::<u8>()) }
}
