//! Whose connection it is: from the kernel's table of connections to a socket, from there to a process that holds it, and
//! from that to the command of the API it belongs to.
//!
//! It is told for the record only, and a guest may hide from it. What it costs is bounded: so many links are looked at,
//! for so many connections at once.

use std::io::Read;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::{Agent, memory};

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Who {
    /// 0 = not found.
    pub(super) pid: i32,
    pub(super) program: String,
    pub(super) process_id: String,
}

const MAX_TABLE: u64 = 1 << 20;
const MAX_LINKS: usize = 2048;
/// Connections that are looked for at once: the workers are for what ends processes and starts them, too.
static LOOKING: Semaphore = Semaphore::const_new(2);

/// Who holds the other end of a connection to ourselves.
pub(super) async fn find(agent: &Arc<Agent>, local: SocketAddr, peer: SocketAddr) -> Who {
    let agent = agent.clone();
    let _turn = LOOKING.acquire().await;
    // Reading /proc may take its time: not on the thread that serves everybody.
    tokio::task::spawn_blocking(move || look(&agent, local, peer).unwrap_or_default()).await.unwrap_or_default()
}

fn look(agent: &Agent, local: SocketAddr, peer: SocketAddr) -> Option<Who> {
    let inode = ["/proc/net/tcp", "/proc/net/tcp6"].iter().find_map(|table| inode(&read(table)?, peer, local))?;
    let pid = holder(&format!("socket:[{inode}]"), MAX_LINKS)?;
    let program = read(&format!("/proc/{pid}/comm")).unwrap_or_default().trim_end().to_owned();
    let process_id = memory::owner(agent, pid).map(|proc| proc.id.clone()).unwrap_or_default();
    Some(Who { pid, program, process_id })
}

fn read(path: &str) -> Option<String> {
    let mut bytes = Vec::new();
    std::fs::File::open(path).ok()?.take(MAX_TABLE).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// The socket of the connection from `local` to `remote`, in a table of the kernel. Ports tell it: both ends are ours.
fn inode(table: &str, local: SocketAddr, remote: SocketAddr) -> Option<u64> {
    let port = |place: &str| u16::from_str_radix(place.rsplit_once(':')?.1, 16).ok();
    table.lines().skip(1).find_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        let here = port(words.next()?)?;
        let there = port(words.next()?)?;
        if (here, there) != (local.port(), remote.port()) {
            return None;
        }
        words.nth(6)?.parse().ok().filter(|inode| *inode > 0)
    })
}

/// The youngest process that holds it, found before more than `most` links were looked at: who connects has mostly just
/// begun.
fn holder(link: &str, most: usize) -> Option<i32> {
    let own = i32::try_from(std::process::id()).unwrap_or(0);
    let mut pids: Vec<i32> = std::fs::read_dir("/proc")
        .ok()?
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| *pid != own)
        .collect();
    pids.sort_unstable_by(|a, b| b.cmp(a));
    let mut looked = 0;
    for pid in pids {
        let Ok(fds) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { continue };
        for fd in fds.flatten() {
            looked += 1;
            if looked > most {
                return None;
            }
            if std::fs::read_link(fd.path()).is_ok_and(|target| target.as_os_str().as_bytes() == link.as_bytes()) {
                return Some(pid);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_found_by_its_two_ports() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
             0: 0100007F:2A30 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 11 1\n\
             1: 0100007F:2A30 0100007F:D431 01 00000000:00000000 00:00000000 00000000     0        0 12 1\n\
             2: 0100007F:D431 0100007F:2A30 01 00000000:00000000 00:00000000 00000000  1000        0 13 1\n\
             broken line\n";
        let (client, proxy) = (SocketAddr::from(([127, 0, 0, 1], 0xd431)), SocketAddr::from(([127, 0, 0, 1], 0x2a30)));
        assert_eq!(inode(table, client, proxy), Some(13));
        assert_eq!(inode(table, proxy, client), Some(12));
        assert_eq!(inode(table, client, client), None);
        assert_eq!(inode("", client, proxy), None);
    }

    #[test]
    fn a_process_is_found_by_a_socket_it_holds() {
        // Only others are looked at: a child that keeps one end.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let client = std::net::TcpStream::connect(address).unwrap();
        let (served, peer) = listener.accept().unwrap();
        let mut child = std::process::Command::new("cat").stdin(std::os::fd::OwnedFd::from(client)).spawn().unwrap();
        let inode = inode(&read("/proc/net/tcp").unwrap(), peer, address).unwrap();
        let link = format!("socket:[{inode}]");
        // This host has processes of others, with any number of links.
        assert_eq!(holder(&link, usize::MAX), i32::try_from(child.id()).ok());
        assert_eq!(holder(&link, 0), None);
        drop(served);
        child.wait().unwrap();
    }
}
