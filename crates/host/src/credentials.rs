//! Acting for somebody else on one thread only.
//!
//! The C library changes all threads at once; the kernel knows credentials per thread. Only the *effective* ids change:
//! real and saved stay root, so that the guest user can neither signal nor trace the thread, and it can come back.

use std::io;
use std::marker::PhantomData;

/// While it lives, this thread reaches files as the given user. Not `Send`: it belongs to its thread.
#[derive(Debug)]
pub struct Acting {
    bound_to_thread: PhantomData<*const ()>,
}

impl Acting {
    /// Takes on the identity. On an error the thread is as it was.
    pub fn begin(uid: u32, gid: u32, groups: &[u32]) -> io::Result<Self> {
        set_groups(groups)?;
        if let Err(error) = set_effective(libc::SYS_setresgid, gid) {
            let _ = set_groups(&[]);
            return Err(error);
        }
        if let Err(error) = set_effective(libc::SYS_setresuid, uid) {
            let _ = set_effective(libc::SYS_setresgid, 0);
            let _ = set_groups(&[]);
            return Err(error);
        }
        Ok(Self { bound_to_thread: PhantomData })
    }
}

impl Drop for Acting {
    fn drop(&mut self) {
        let back = set_effective(libc::SYS_setresuid, 0)
            .and_then(|()| set_effective(libc::SYS_setresgid, 0))
            .and_then(|()| set_groups(&[]));
        if back.is_err() {
            // The saved id is root, so this cannot happen; were it to, the thread must never do other work.
            loop {
                std::thread::park();
            }
        }
    }
}

fn set_effective(call: libc::c_long, id: u32) -> io::Result<()> {
    const KEEP: u32 = u32::MAX;
    // SAFETY: a call on plain numbers that changes only this thread's credentials.
    match unsafe { libc::syscall(call, KEEP, id, KEEP) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn set_groups(groups: &[u32]) -> io::Result<()> {
    // SAFETY: the kernel reads `len` ids from the slice.
    match unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_thread_changes_and_it_comes_back() {
        let place = tempfile::tempdir().unwrap();
        std::fs::set_permissions(place.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let dir = place.path().join("file");
        std::fs::write(&dir, "root only").unwrap();
        std::fs::set_permissions(&dir, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        {
            let _acting = Acting::begin(1000, 1000, &[1000]).unwrap();
            assert_eq!(std::fs::read(&dir).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
            let other = dir.clone();
            std::thread::spawn(move || std::fs::read(other).unwrap()).join().ok();
        }
        assert!(std::fs::read(&dir).is_ok());
    }
}
