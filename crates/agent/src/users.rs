//! The users of the sandbox: who commands run as, and names for the numbers of files.
//!
//! The files are the guest's and may hold anything: they are read up to a limit, and what does not parse is skipped.

use std::collections::HashMap;
use std::io::Read;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use runtime_host::spawn::Identity;
use runtime_proto::guest::User;
use rustix::fs::{Mode, OFlags};

pub(crate) const SANDBOX_UID: u32 = 1000;
pub(crate) const SANDBOX_GID: u32 = 1000;
pub(crate) const SANDBOX_NAME: &str = "runtime";
const MAX_FILE: u64 = 1 << 20;
/// How old a reading may be: user lists change rarely, commands are many.
const FRESH: Duration = Duration::from_secs(2);

/// A line of `/etc/passwd`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Account {
    pub(crate) name: String,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) home: String,
    pub(crate) shell: String,
}

#[derive(Debug, Default)]
pub(crate) struct Users {
    pub(crate) accounts: Vec<Account>,
    names: HashMap<u32, String>,
    group_names: HashMap<u32, String>,
    /// Group number by user name.
    members: HashMap<String, Vec<u32>>,
}

static CACHE: Mutex<Option<(Instant, Arc<Users>)>> = Mutex::new(None);

/// The lists as they are, or were a moment ago.
pub(crate) fn users() -> Arc<Users> {
    let mut cache = CACHE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((read, users)) = &*cache
        && read.elapsed() < FRESH
    {
        return users.clone();
    }
    let users = Arc::new(Users::parse(&read("/etc/passwd"), &read("/etc/group")));
    *cache = Some((Instant::now(), users.clone()));
    users
}

fn read(path: &str) -> String {
    // Not blocking: the guest may have put a FIFO there.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let Ok(fd) = rustix::fs::open(path, flags, Mode::empty()) else { return String::new() };
    let mut bytes = Vec::new();
    let _ = std::fs::File::from(fd).take(MAX_FILE).read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

impl Users {
    fn parse(passwd: &str, group: &str) -> Self {
        let mut users = Self::default();
        for line in passwd.lines() {
            let fields: Vec<&str> = line.split(':').collect();
            let [name, _, uid, gid, _, home, shell] = fields[..] else { continue };
            let (Ok(uid), Ok(gid)) = (uid.parse(), gid.parse()) else { continue };
            users.names.entry(uid).or_insert_with(|| name.to_owned());
            users.accounts.push(Account {
                name: name.to_owned(),
                uid,
                gid,
                home: home.to_owned(),
                shell: shell.to_owned(),
            });
        }
        for line in group.lines() {
            let fields: Vec<&str> = line.split(':').collect();
            let [name, _, gid, members] = fields[..] else { continue };
            let Ok(gid) = gid.parse() else { continue };
            users.group_names.entry(gid).or_insert_with(|| name.to_owned());
            for member in members.split(',').filter(|member| !member.is_empty()) {
                users.members.entry(member.to_owned()).or_default().push(gid);
            }
        }
        users
    }

    /// The name, or the number where there is none.
    pub(crate) fn owner(&self, uid: u32) -> String {
        self.names.get(&uid).cloned().unwrap_or_else(|| uid.to_string())
    }

    pub(crate) fn group(&self, gid: u32) -> String {
        self.group_names.get(&gid).cloned().unwrap_or_else(|| gid.to_string())
    }

    pub(crate) fn account(&self, name: &str) -> Option<&Account> {
        self.accounts.iter().find(|account| account.name == name)
    }

    pub(crate) fn account_by_id(&self, uid: u32) -> Option<&Account> {
        self.accounts.iter().find(|account| account.uid == uid)
    }

    pub(crate) fn group_by_name(&self, name: &str) -> Option<u32> {
        self.group_names.iter().find(|(_, known)| *known == name).map(|(gid, _)| *gid)
    }

    /// The ids of a process of this user.
    pub(crate) fn identity(&self, uid: u32, gid: u32, name: &str) -> Identity {
        let mut groups = vec![gid];
        for group in self.members.get(name).into_iter().flatten().take(31) {
            if !groups.contains(group) {
                groups.push(*group);
            }
        }
        Identity { uid, gid, groups }
    }

    pub(crate) fn identity_of(&self, user: User) -> Identity {
        match user {
            User::Sandbox => self.identity(SANDBOX_UID, SANDBOX_GID, SANDBOX_NAME),
            User::Root => Identity { uid: 0, gid: 0, groups: vec![0] },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broken_lines_are_skipped() {
        let users = Users::parse(
            "root:x:0:0:root:/root:/bin/bash\nnonsense\nx:y:notanumber:1::/:\nruntime:x:1000:1000::/workspace:/bin/bash\n",
            "root:x:0:\ndocker:x:999:someone,runtime\nbad\n",
        );
        assert_eq!(
            (users.owner(1000), users.owner(5), users.group(999)),
            ("runtime".into(), "5".into(), "docker".into())
        );
        assert_eq!(users.identity_of(User::Sandbox).groups, [1000, 999]);
    }
}
