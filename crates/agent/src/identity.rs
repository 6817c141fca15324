//! Who this sandbox is: taken from the host's hello, at the start and after every restore or fork.

use runtime_proto::guest::Hello;
use rustix::rand::{GetRandomFlags, getrandom};
use rustix::time::{ClockId, Timespec};

use crate::log::log;
use crate::process::now;

/// Clocks closer than this are left alone.
const CLOCK_SLACK_NS: u64 = 5_000_000;

/// Takes over name, randomness and time. What the machine does not allow is left as it is: under a user-space kernel
/// the clock is the host's and the pool is fed by it.
pub(crate) fn take(hello: &Hello) {
    if !hello.hostname.is_empty() && hello.hostname.len() <= 64 {
        if let Err(error) = rustix::system::sethostname(hello.hostname.as_bytes()) {
            log!("setting the host name failed: {error}");
        }
        let hosts = format!("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost\n127.0.1.1\t{}\n", hello.hostname);
        if rustix::process::getpid().is_init() {
            let _ = std::fs::write("/etc/hostname", format!("{}\n", hello.hostname));
            if !std::fs::read_to_string("/etc/hosts").is_ok_and(|known| known.contains(&hello.hostname)) {
                let _ = std::fs::write("/etc/hosts", hosts);
            }
        }
    }
    take_machine_id(&hello.sandbox_id);
    if !hello.entropy.is_empty() {
        let _ = std::fs::write("/dev/urandom", &hello.entropy);
    }
    if hello.host_time > 0 && hello.host_time.abs_diff(now()) > CLOCK_SLACK_NS {
        let time = Timespec {
            tv_sec: (hello.host_time / 1_000_000_000) as i64,
            tv_nsec: (hello.host_time % 1_000_000_000) as i64,
        };
        let _ = rustix::time::clock_settime(ClockId::Realtime, time);
    }
}

/// Nobody shares it: it is the sandbox's own id.
fn take_machine_id(sandbox: &str) {
    let id: String = sandbox.chars().filter(char::is_ascii_hexdigit).collect();
    let path = "/etc/machine-id";
    if id.len() != 32 || !rustix::process::getpid().is_init() {
        return;
    }
    let line = format!("{}\n", id.to_ascii_lowercase());
    if !std::fs::read_to_string(path).is_ok_and(|known| known == line)
        && let Err(error) = std::fs::write(path, line)
    {
        log!("writing the machine id failed: {error}");
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
