//! Is the address free, or is it our own server that has it?

use std::fs::{self, File};
use std::io::{self, Read};
use std::net::TcpListener;
use std::path::Path;

use runtime_host::lock::Lock;

use super::Check;

const NAME: &str = "address";

pub(super) fn listen(data_dir: &Path, listen: &str) -> Check {
    let ours = server_of(data_dir);
    if let Some((pid, Some(address))) = &ours
        && same_port(address, listen)
    {
        return Check::ok(NAME, format!("{listen}: the server of this data directory has it (process {pid})"));
    }
    match TcpListener::bind(listen) {
        Ok(_) => match ours {
            Some((pid, Some(address))) => Check::ok(
                NAME,
                format!("{listen} is free; this data directory's server (process {pid}) is at {address}"),
            ),
            Some((pid, None)) => {
                Check::note(NAME, format!("{listen} is free, but process {pid} holds the data directory"))
            }
            None => Check::ok(NAME, format!("{listen} is free")),
        },
        Err(e) if e.kind() == io::ErrorKind::AddrInUse => Check::problem(
            NAME,
            format!("{listen} is taken by another program"),
            format!("stop it (ss -ltnp | grep {listen}), or choose another: runtime serve --listen 127.0.0.1:0"),
        ),
        Err(e) => Check::problem(
            NAME,
            format!("cannot listen on {listen}: {e}"),
            "choose an address of this machine: runtime serve --listen 127.0.0.1:8787",
        ),
    }
}

/// Process and address of the server that holds the data directory.
fn server_of(data_dir: &Path) -> Option<(String, Option<String>)> {
    let holder = Lock::holder(&data_dir.join("lock")).ok().flatten()?;
    let pid = holder.pid.map_or_else(|| "unknown".to_owned(), |pid| pid.to_string());
    let mut text = String::new();
    let file: io::Result<File> = fs::File::open(data_dir.join("address"));
    let read = file.and_then(|file| file.take(512).read_to_string(&mut text));
    Some((pid, read.ok().map(|_| text.trim().to_owned()).filter(|t| !t.is_empty())))
}

fn same_port(url: &str, listen: &str) -> bool {
    let port = |text: &str| text.trim_end_matches('/').rsplit(':').next().and_then(|p| p.parse::<u16>().ok());
    port(url).is_some() && port(url) == port(listen)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Status;

    #[test]
    fn tells_our_server_from_a_stranger() {
        let dir = tempfile::tempdir().unwrap();
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap().to_string();
        assert_eq!(listen(dir.path(), &address).status, Status::Problem);

        let lock = Lock::acquire(&dir.path().join("lock")).unwrap();
        fs::write(dir.path().join("address"), format!("http://{address}\n")).unwrap();
        let check = listen(dir.path(), &address);
        assert_eq!(check.status, Status::Ok);
        assert!(check.detail.contains(&std::process::id().to_string()));

        drop(lock);
        assert_eq!(listen(dir.path(), &address).status, Status::Problem, "a stale address file proves nothing");
        drop(socket);
        assert_eq!(listen(dir.path(), &address).status, Status::Ok);
        assert_eq!(listen(dir.path(), "nonsense").status, Status::Problem);
    }
}
