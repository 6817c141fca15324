//! Which calls are followed, and what each wants.

use std::ffi::c_long;

use super::Call;

/// A relative path is meant from the current directory.
pub const NO_DIRECTORY: i32 = libc::AT_FDCWD;

/// What a call wants of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// To open it: its result is a descriptor.
    Open { read: bool, write: bool },
    /// That there be something of this name: the directory that a relative path starts from, and where the path lies.
    Name { directory: i32, path: u64 },
}

/// Every call that [`wanted`] knows.
#[cfg(target_arch = "x86_64")]
pub(super) const NUMBERS: &[c_long] = &[
    libc::SYS_openat,
    libc::SYS_open,
    libc::SYS_openat2,
    libc::SYS_creat,
    libc::SYS_rename,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_link,
    libc::SYS_linkat,
    libc::SYS_symlink,
    libc::SYS_symlinkat,
    libc::SYS_mkdir,
    libc::SYS_mkdirat,
    libc::SYS_truncate,
];
#[cfg(target_arch = "aarch64")]
pub(super) const NUMBERS: &[c_long] = &[
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_linkat,
    libc::SYS_symlinkat,
    libc::SYS_mkdirat,
    libc::SYS_truncate,
];

#[cfg(target_arch = "x86_64")]
pub(super) fn from_registers(registers: &libc::user_regs_struct) -> Call {
    let r = registers;
    Call { number: r.orig_rax as c_long, arguments: [r.rdi, r.rsi, r.rdx, r.r10, r.r8, r.r9], result: r.rax as i64 }
}

/// The first argument stands where the result will: only before the call is it there.
#[cfg(target_arch = "aarch64")]
pub(super) fn from_registers(registers: &libc::user_regs_struct) -> Call {
    let [a, b, c, d, e, f] = [0, 1, 2, 3, 4, 5].map(|at: usize| registers.regs[at]);
    Call { number: registers.regs[8] as c_long, arguments: [a, b, c, d, e, f], result: registers.regs[0] as i64 }
}

/// `word` reads eight bytes of the caller's memory.
pub(super) fn wanted(call: &Call, word: impl Fn(u64) -> Option<u64>) -> Option<Wanted> {
    let [a, b, c, d, ..] = call.arguments;
    let name = |directory: i32, path: u64| Some(Wanted::Name { directory, path });
    // A descriptor's number is the lower half.
    match call.number {
        libc::SYS_openat => opened(c),
        libc::SYS_openat2 => opened(word(c)?),
        libc::SYS_renameat | libc::SYS_renameat2 | libc::SYS_linkat => name(c as i32, d),
        libc::SYS_symlinkat => name(b as i32, c),
        libc::SYS_mkdirat => name(a as i32, b),
        libc::SYS_truncate => name(NO_DIRECTORY, a),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_open => opened(b),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_creat => Some(Wanted::Open { read: false, write: true }),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_rename | libc::SYS_link | libc::SYS_symlink => name(NO_DIRECTORY, b),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_mkdir => name(NO_DIRECTORY, a),
        _ => None,
    }
}

/// A handle that neither reads nor writes is not told of.
fn opened(flags: u64) -> Option<Wanted> {
    let has = |flag: i32| flags & flag as u64 == flag as u64;
    if has(libc::O_PATH) {
        return None;
    }
    let (read, write) = match flags as i32 & libc::O_ACCMODE {
        libc::O_RDONLY => (true, has(libc::O_TRUNC) || has(libc::O_CREAT | libc::O_EXCL)),
        libc::O_WRONLY => (false, true),
        _ => (true, true),
    };
    Some(Wanted::Open { read, write })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(number: c_long, arguments: [u64; 6]) -> Option<Wanted> {
        wanted(&Call { number, arguments, result: 0 }, |at| (at == 77).then_some(libc::O_RDWR as u64))
    }

    #[test]
    fn an_open_says_what_it_is_for() {
        let open = |flags: i32| asked(libc::SYS_openat, [0, 0, flags as u64, 0, 0, 0]);
        for (flags, read, write) in [
            (libc::O_RDONLY | libc::O_CLOEXEC, true, false),
            (libc::O_RDONLY | libc::O_DIRECTORY, true, false),
            (libc::O_RDONLY | libc::O_CREAT, true, false),
            (libc::O_RDONLY | libc::O_CREAT | libc::O_EXCL, true, true),
            (libc::O_RDONLY | libc::O_TRUNC, true, true),
            (libc::O_WRONLY | libc::O_APPEND, false, true),
            (libc::O_RDWR, true, true),
        ] {
            assert_eq!(open(flags), Some(Wanted::Open { read, write }), "{flags:o}");
        }
        assert_eq!(open(libc::O_PATH), None);
        assert_eq!(asked(libc::SYS_openat2, [0, 0, 77, 0, 0, 0]), Some(Wanted::Open { read: true, write: true }));
        assert_eq!(asked(libc::SYS_openat2, [0, 0, 78, 0, 0, 0]), None, "what cannot be read is not guessed");
    }

    #[test]
    fn a_name_is_the_new_one() {
        let minus = NO_DIRECTORY as u32 as u64;
        let name = |directory, path| Some(Wanted::Name { directory, path });
        assert_eq!(asked(libc::SYS_renameat2, [1, 2, minus, 4, 0, 0]), name(NO_DIRECTORY, 4));
        assert_eq!(asked(libc::SYS_symlinkat, [1, 2, 3, 0, 0, 0]), name(2, 3));
        assert_eq!(asked(libc::SYS_mkdirat, [1, 2, 3, 0, 0, 0]), name(1, 2));
        assert_eq!(asked(libc::SYS_truncate, [1, 2, 3, 0, 0, 0]), name(NO_DIRECTORY, 1));
    }

    #[test]
    fn every_followed_call_is_known() {
        for number in NUMBERS {
            assert!(asked(*number, [77; 6]).is_some(), "call {number}");
        }
        assert_eq!(asked(libc::SYS_read, [0; 6]), None);
    }
}
