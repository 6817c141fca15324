//! Settings of this process that keep it small or take rights from what it starts.

use std::io;

/// Fewer memory pools than threads: the C library's default sets aside one per thread.
pub fn few_memory_pools() {
    // SAFETY: a setting of the allocator; a value it does not like is refused.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 2);
    }
}

/// `CAP_SYS_ADMIN`
pub const SYS_ADMIN: u32 = 21;
/// `CAP_SYS_RESOURCE`
pub const SYS_RESOURCE: u32 = 24;

/// From now on, no program started by this process can have the capability; the process itself keeps it.
pub fn withhold_capability(number: u32) -> io::Result<()> {
    // SAFETY: a call on plain numbers.
    match unsafe { libc::prctl(libc::PR_CAPBSET_DROP, libc::c_ulong::from(number), 0, 0, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
