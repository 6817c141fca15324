//! A small internet of our own: two network namespaces joined by a wire.
//!
//! The server under test lives in one of them, which has no way anywhere but over the wire. At its other end are the
//! places: documentation addresses stand for the internet, and beside them are private networks and a metadata service
//! that can be reached just as well, so that a check that is missing shows. A name server of ours answers for all names.
//! No packet leaves the machine, whatever the product does.

use crate::process::started;
use crate::{StackOptions, poll};
use anyhow::{Context, Result, bail};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const PREFIX: &str = "rtt-";
const NAMES: &str = "198.51.100.53";
/// The server's end, and the places' end, of each network on the wire.
const NETWORKS: [(&str, &[&str]); 8] = [
    ("198.51.100.1/24", &["198.51.100.10/24", "198.51.100.11/24", "198.51.100.53/24"]),
    ("2001:db8:1::1/64", &["2001:db8:1::10/64"]),
    ("10.77.0.1/24", &["10.77.0.10/24"]),
    ("172.20.0.1/24", &["172.20.0.10/24"]),
    ("192.168.77.1/24", &["192.168.77.10/24"]),
    ("100.64.0.1/24", &["100.64.0.10/24"]),
    ("169.254.169.1/24", &["169.254.169.254/24"]),
    ("fd00:77::1/64", &["fd00:77::10/64"]),
];
/// Where nobody may come.
pub const FORBIDDEN: [&str; 6] =
    ["10.77.0.10", "172.20.0.10", "192.168.77.10", "100.64.0.10", "169.254.169.254", "fd00:77::10"];

/// What a name stands for.
#[derive(Debug, Clone)]
pub enum Named {
    At(Vec<IpAddr>),
    /// Another name, and what that one stands for.
    Alias(String, Vec<IpAddr>),
    /// Something else each time it is asked for.
    Turns(Vec<Vec<IpAddr>>),
}

#[derive(Debug, Default)]
struct Names {
    known: HashMap<String, Named>,
    asked: HashMap<String, usize>,
}

pub struct World {
    server: String,
    outside: String,
    names: Arc<Mutex<Names>>,
    files: tempfile::TempDir,
}

impl World {
    /// Makes the namespaces and moves this thread into the server's. What the thread starts from then on is in it.
    ///
    /// # Panics
    /// When the host does not let it be made.
    #[must_use]
    pub fn enter() -> Self {
        Self::make().unwrap_or_else(|error| panic!("make a world: {error:#}"))
    }

    fn make() -> Result<Self> {
        sweep()?;
        let pid = std::process::id();
        let born = started(i32::try_from(pid)?).context("when this test started")?;
        let (server, outside) = (format!("{PREFIX}{pid}-{born}-s"), format!("{PREFIX}{pid}-{born}-o"));
        let files = tempfile::tempdir().context("a directory for the name server's address")?;
        let resolv = format!("nameserver {NAMES}\noptions timeout:5 attempts:2\n");
        std::fs::write(files.path().join("resolv.conf"), resolv).context("write resolv.conf")?;
        let world = Self { server, outside, names: Arc::default(), files };
        let (server, outside) = (&world.server, &world.outside);
        let mut script = format!(
            "netns add {server}\nnetns add {outside}\nlink add wire netns {server} type veth peer name wire netns {outside}\n"
        );
        ip_batch(&script)?;
        for (namespace, own) in [(server, true), (outside, false)] {
            script.clear();
            for (near, far) in NETWORKS {
                let addresses = if own { vec![near] } else { far.to_vec() };
                for address in addresses {
                    let flags = if address.contains(':') { " nodad" } else { "" };
                    script.push_str(&format!("addr add {address} dev wire{flags}\n"));
                }
            }
            script.push_str("link set lo up\nlink set wire up\n");
            ip_in(namespace, &script)?;
        }
        let socket = world.outside(|| UdpSocket::bind((NAMES, 53))).context("listen for questions of names")?;
        let names = world.names.clone();
        std::thread::spawn(move || answer_names(&socket, &names));
        into(server)?;
        Ok(world)
    }

    /// How a stack in this world is started.
    #[must_use]
    pub fn options(&self) -> StackOptions {
        let resolv = self.files.path().join("resolv.conf").display().to_string();
        let wrap = [
            "unshare",
            "--mount",
            "--propagation",
            "private",
            "sh",
            "-c",
            "mount --bind \"$0\" /etc/resolv.conf && exec \"$@\"",
            &resolv,
        ];
        let args = ["--egress-treat-as-public", "198.51.100.0/24", "--egress-treat-as-public", "2001:db8::/32"];
        StackOptions {
            args: args.map(str::to_owned).into(),
            wrap: wrap.map(str::to_owned).into(),
            ..StackOptions::default()
        }
    }

    /// Does something among the places.
    fn outside<T: Send>(&self, work: impl FnOnce() -> std::io::Result<T> + Send) -> Result<T> {
        std::thread::scope(|scope| {
            let there = scope.spawn(|| {
                into(&self.outside)?;
                Ok::<T, anyhow::Error>(work()?)
            });
            there.join().map_err(|_| anyhow::anyhow!("a thread among the places panicked"))?
        })
    }

    /// # Panics
    /// When nobody can listen there.
    #[must_use]
    pub fn listen(&self, ip: &str, port: u16) -> TcpListener {
        let address = SocketAddr::new(ip.parse().expect("an address"), port);
        self.outside(|| TcpListener::bind(address)).unwrap_or_else(|error| panic!("listen at {address}: {error:#}"))
    }

    /// A web server that answers each request with its own label and what it was asked.
    #[must_use]
    pub fn web(&self, label: &str, ip: &str, port: u16) -> Place {
        let (listener, label) = (self.listen(ip, port), label.to_owned());
        let place = Place::at(&listener);
        let seen = place.clone();
        std::thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                seen.0.came.fetch_add(1, Ordering::SeqCst);
                let (seen, label) = (seen.clone(), label.clone());
                std::thread::spawn(move || {
                    web(socket, &label, &seen);
                    seen.0.left.fetch_add(1, Ordering::SeqCst);
                });
            }
        });
        place
    }

    /// A server that sends back what it gets.
    #[must_use]
    pub fn echo(&self, ip: &str, port: u16) -> Place {
        let listener = self.listen(ip, port);
        let place = Place::at(&listener);
        let seen = place.clone();
        std::thread::spawn(move || {
            for mut socket in listener.incoming().flatten() {
                seen.0.came.fetch_add(1, Ordering::SeqCst);
                let seen = seen.clone();
                std::thread::spawn(move || {
                    let mut buffer = vec![0; 64 * 1024];
                    while let Ok(count @ 1..) = socket.read(&mut buffer) {
                        seen.note(&buffer[..count]);
                        if socket.write_all(&buffer[..count]).is_err() {
                            break;
                        }
                    }
                    seen.0.left.fetch_add(1, Ordering::SeqCst);
                });
            }
        });
        place
    }

    pub fn name(&self, name: &str, stands_for: Named) {
        self.names.lock().expect("the names").known.insert(name.to_owned(), stands_for);
    }

    pub fn name_at(&self, name: &str, ips: &[&str]) {
        self.name(name, Named::At(ips.iter().map(|ip| ip.parse().expect("an address")).collect()));
    }

    /// How often a name was asked for.
    #[must_use]
    pub fn asked(&self, name: &str) -> usize {
        self.names.lock().expect("the names").asked.get(name).copied().unwrap_or(0)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for namespace in [&self.server, &self.outside] {
            let _ = Command::new("ip").args(["netns", "delete", namespace]).output();
        }
    }
}

/// What came to a place.
#[derive(Debug, Clone)]
pub struct Place(Arc<Seen>);

#[derive(Debug)]
struct Seen {
    address: SocketAddr,
    came: AtomicUsize,
    left: AtomicUsize,
    heads: Mutex<Vec<String>>,
    bytes: AtomicUsize,
}

impl Place {
    fn at(listener: &TcpListener) -> Self {
        Self(Arc::new(Seen {
            address: listener.local_addr().expect("an address"),
            came: AtomicUsize::new(0),
            left: AtomicUsize::new(0),
            heads: Mutex::default(),
            bytes: AtomicUsize::new(0),
        }))
    }

    /// Connections so far, once all that were made are counted and have ended. Among them is one of its own, which is
    /// let in behind them.
    ///
    /// # Panics
    /// When nobody is let in, or somebody stays.
    #[must_use]
    pub fn came_and_left(&self) -> usize {
        let mut own = TcpStream::connect(self.0.address).expect("come to the place");
        own.write_all(b"GET /behind HTTP/1.1\r\n\r\n").expect("ask");
        own.read_exact(&mut [0]).expect("an answer");
        drop(own);
        poll::eventually("all have left", SOON, || self.came() == self.left());
        self.came()
    }

    /// Connections so far.
    #[must_use]
    pub fn came(&self) -> usize {
        self.0.came.load(Ordering::SeqCst)
    }

    /// Connections that have ended.
    #[must_use]
    pub fn left(&self) -> usize {
        self.0.left.load(Ordering::SeqCst)
    }

    /// Bytes it was sent.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.0.bytes.load(Ordering::SeqCst)
    }

    /// The heads of requests it was sent.
    ///
    /// # Panics
    /// When a thread that noted one did.
    #[must_use]
    pub fn heads(&self) -> Vec<String> {
        self.0.heads.lock().expect("the heads").clone()
    }

    fn note(&self, bytes: &[u8]) {
        self.0.bytes.fetch_add(bytes.len(), Ordering::SeqCst);
    }
}

fn web(mut socket: TcpStream, label: &str, seen: &Place) {
    let mut got = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        while let Some(end) = got.windows(4).position(|end| end == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&got[..end]).into_owned();
            got.drain(..end + 4);
            let line = head.lines().next().unwrap_or_default().to_owned();
            let host = head.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("host:").map(str::to_owned));
            let body = format!("{label}|{line}|{}\n", host.unwrap_or_default().trim());
            seen.0.heads.lock().expect("the heads").push(head);
            let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
            if socket.write_all(answer.as_bytes()).is_err() {
                return;
            }
        }
        match socket.read(&mut buffer) {
            Ok(count @ 1..) => {
                seen.note(&buffer[..count]);
                got.extend_from_slice(&buffer[..count]);
            }
            Ok(0) | Err(_) => return,
        }
    }
}

fn answer_names(socket: &UdpSocket, names: &Mutex<Names>) {
    let mut buffer = [0; 1500];
    while let Ok((count, peer)) = socket.recv_from(&mut buffer) {
        if let Some(answer) = answer(&buffer[..count], names) {
            let _ = socket.send_to(&answer, peer);
        }
    }
}

/// One question, one answer: A, AAAA and CNAME, or that there is no such name.
fn answer(question: &[u8], names: &Mutex<Names>) -> Option<Vec<u8>> {
    let mut at = 12;
    let mut name = Vec::new();
    loop {
        let length = usize::from(*question.get(at)?);
        at += 1;
        if length == 0 {
            break;
        }
        name.push(String::from_utf8_lossy(question.get(at..at + length)?).to_ascii_lowercase());
        at += length;
    }
    let name = name.join(".");
    let kind = u16::from_be_bytes(question.get(at..at + 2)?.try_into().ok()?);
    let end = at + 4;
    let mut names = names.lock().ok()?;
    let turn = names.asked.entry(name.clone()).or_default();
    // Both kinds are asked for at once: one turn for the two.
    let before = *turn;
    if kind == 1 {
        *turn += 1;
    }
    let (alias, ips) = match names.known.get(&name).cloned() {
        None => (None, None),
        Some(Named::At(ips)) => (None, Some(ips)),
        Some(Named::Alias(alias, ips)) => (Some(alias), Some(ips)),
        Some(Named::Turns(turns)) => (None, turns.get(before % turns.len()).cloned()),
    };
    let mut records: Vec<(u16, Vec<u8>)> = Vec::new();
    if let Some(alias) = alias {
        let labels = alias.split('.').flat_map(|label| [&[label.len() as u8][..], label.as_bytes()].concat());
        records.push((5, labels.chain([0]).collect()));
    }
    for ip in ips.iter().flatten() {
        match ip {
            IpAddr::V4(ip) if kind == 1 => records.push((1, ip.octets().into())),
            IpAddr::V6(ip) if kind == 28 => records.push((28, ip.octets().into())),
            IpAddr::V4(_) | IpAddr::V6(_) => {}
        }
    }
    let mut out = question.get(..2)?.to_vec();
    out.extend([0x84, if ips.is_some() { 0x80 } else { 0x83 }, 0, 1]);
    out.extend((records.len() as u16).to_be_bytes());
    out.extend([0; 4]);
    out.extend(question.get(12..end)?);
    let mut owner = vec![0xc0, 12];
    for (kind, data) in records {
        out.extend(&owner);
        out.extend(kind.to_be_bytes());
        out.extend([0, 1, 0, 0, 0, 0]);
        out.extend((data.len() as u16).to_be_bytes());
        if kind == 5 {
            // What follows belongs to the name that the alias is for.
            owner = vec![0xc0 | (out.len() >> 8) as u8, out.len() as u8];
        }
        out.extend(data);
    }
    Some(out)
}

fn into(namespace: &str) -> Result<()> {
    let path = format!("/run/netns/{namespace}");
    let file = File::open(&path).with_context(|| format!("open {path}"))?;
    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).with_context(|| format!("enter {path}"))
}

fn ip_batch(script: &str) -> Result<()> {
    batch(&mut Command::new("ip"), script)
}

fn ip_in(namespace: &str, script: &str) -> Result<()> {
    batch(Command::new("ip").args(["-netns", namespace]), script)
}

fn batch(command: &mut Command, script: &str) -> Result<()> {
    let mut child = command
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("start ip")?;
    child.stdin.take().context("its input")?.write_all(script.as_bytes()).context("write to ip")?;
    let done = child.wait_with_output().context("wait for ip")?;
    if !done.status.success() {
        bail!("ip: {}", String::from_utf8_lossy(&done.stderr).trim());
    }
    Ok(())
}

/// Removes what tests left that were ended before they could.
fn sweep() -> Result<()> {
    let Ok(entries) = std::fs::read_dir("/run/netns") else { return Ok(()) };
    for entry in entries {
        let name = entry.context("list /run/netns")?.file_name().to_string_lossy().into_owned();
        let Some(rest) = name.strip_prefix(PREFIX) else { continue };
        let mut parts = rest.split('-');
        let (Some(Ok(pid)), Some(Ok(born))) =
            (parts.next().map(str::parse::<i32>), parts.next().map(str::parse::<u64>))
        else {
            continue;
        };
        if started(pid) != Some(born) {
            let _ = Command::new("ip").args(["netns", "delete", &name]).output();
        }
    }
    Ok(())
}

/// How long anything that comes over the wire may take.
pub const SOON: Duration = Duration::from_secs(20);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_answered_with_its_alias_and_its_addresses() {
        let names = Mutex::<Names>::default();
        let ip = "198.51.100.10".parse().expect("an address");
        names.lock().expect("names").known.insert("a.b".to_owned(), Named::Alias("c.d".to_owned(), vec![ip]));
        let question = [&[7, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0][..], b"\x01A\x01b\0", &[0, 1, 0, 1]].concat();
        let out = answer(&question, &names).expect("an answer");
        assert_eq!(&out[..12], &[7, 7, 0x84, 0x80, 0, 1, 0, 2, 0, 0, 0, 0]);
        assert!(out.ends_with(&[0, 4, 198, 51, 100, 10]));
        let unknown = [&[7, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0][..], b"\x01x\0", &[0, 1, 0, 1]].concat();
        assert_eq!(answer(&unknown, &names).expect("an answer")[3], 0x83);
        assert_eq!(answer(&question[..20], &names), None);
    }
}
