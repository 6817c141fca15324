//! Who this sandbox is: taken from the host's hello, at the start and after every restore or fork.

use std::io::Write;

use runtime_proto::guest::Hello;
use rustix::rand::{GetRandomFlags, getrandom};
use rustix::time::{ClockId, Timespec};

use crate::log::log;
use crate::process::now;

/// Clocks closer than this are left alone.
const CLOCK_SLACK_NS: u64 = 5_000_000;

/// Takes over randomness, time and name, in this order: nothing may be drawn from a memory that others share. What the
/// machine does not allow is left as it is: under a user-space kernel the clock is the host's and the pool is fed by it.
pub(crate) fn take(hello: &Hello) {
    stir(&hello.entropy);
    if hello.host_time.abs_diff(now()) > CLOCK_SLACK_NS {
        set_clock(hello.host_time);
    }
    if !hello.hostname.is_empty() && hello.hostname.len() <= 64 {
        if let Err(error) = rustix::system::sethostname(hello.hostname.as_bytes()) {
            log!("setting the host name failed: {error}");
        }
        let hosts = format!("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost\n127.0.1.1\t{}\n", hello.hostname);
        if rustix::process::getpid().is_init() {
            tell("/etc/hostname", &format!("{}\n", hello.hostname));
            if !std::fs::read_to_string("/etc/hosts").is_ok_and(|known| known.contains(&hello.hostname)) {
                tell("/etc/hosts", &hosts);
            }
        }
    }
    let machine_id: String = hello.sandbox_id.chars().filter(char::is_ascii_hexdigit).collect();
    if rustix::process::getpid().is_init() && machine_id.len() == 32 {
        tell("/etc/machine-id", &format!("{}\n", machine_id.to_ascii_lowercase()));
    }
}

/// What is late in a later hello is made up for. Never back: the hello may be the one that is late.
pub(crate) fn catch_up(hello: &Hello) {
    if hello.host_time > now().saturating_add(CLOCK_SLACK_NS) {
        set_clock(hello.host_time);
    }
}

/// 0 is a host that does not say.
fn set_clock(ns: u64) {
    if ns == 0 {
        return;
    }
    let time = Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 };
    if let Err(error) = rustix::time::clock_settime(ClockId::Realtime, time)
        && !crate::setup::user_space_kernel()
    {
        log!("setting the clock failed: {error}");
    }
}

fn tell(path: &str, text: &str) {
    if let Err(error) = std::fs::write(path, text) {
        log!("writing {path} failed: {error}");
    }
}

/// Without the right to credit it, it is still mixed in.
fn stir(entropy: &[u8]) {
    if entropy.is_empty() {
        return;
    }
    let pool = match std::fs::File::options().write(true).open("/dev/urandom") {
        Ok(pool) => pool,
        Err(error) => return log!("opening the random pool failed: {error}"),
    };
    let some = &entropy[..entropy.len().min(runtime_host::guest::MAX_ENTROPY)];
    if runtime_host::guest::stir_entropy(&pool, some).is_err()
        && let Err(error) = (&pool).write_all(entropy)
    {
        log!("stirring the random pool failed: {error}");
    }
}

/// 128 random bits as text.
pub(crate) fn random_name() -> String {
    let mut bytes = [0_u8; 16];
    if getrandom(&mut bytes, GetRandomFlags::empty()).is_err() {
        bytes[..8].copy_from_slice(&now().to_le_bytes());
    }
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
