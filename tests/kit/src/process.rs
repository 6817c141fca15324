//! Looking at processes through /proc.

use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::Path;

/// A process of this machine.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Process {
    pub pid: i32,
    pub parent: i32,
    pub command: String,
}

/// Every process there is, zombies left out.
#[must_use]
pub fn processes() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok()).filter_map(read).collect()
}

fn read(pid: i32) -> Option<Process> {
    let (state, parent) = state_and_parent(pid)?;
    if state == 'Z' || state == 'X' {
        return None;
    }
    let raw = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let command = String::from_utf8_lossy(&raw).replace('\0', " ").trim_end().to_owned();
    Some(Process { pid, parent, command })
}

fn state_and_parent(pid: i32) -> Option<(char, i32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut rest = stat.get(stat.rfind(')')? + 2..)?.split(' ');
    Some((rest.next()?.chars().next()?, rest.next()?.parse().ok()?))
}

/// When a process started, in clock ticks since the boot: with its id it names one process for ever.
#[must_use]
pub(crate) fn started(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.get(stat.rfind(')')? + 2..)?.split(' ').nth(19)?.parse().ok()
}

/// Runs and is no zombie.
#[must_use]
pub fn alive(pid: i32) -> bool {
    state_and_parent(pid).is_some_and(|(state, _)| state != 'Z' && state != 'X')
}

/// Sends a signal; a process that is gone already is no fault.
pub fn send_signal(pid: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid) {
        let _ = kill_process(pid, signal);
    }
}

/// Processes that hold one of the directories: named on their command line, standing in it, or with a file of it open;
/// and all that descend from those. This process and its ancestors are never among them.
#[must_use]
pub(crate) fn holders(dirs: &[&Path]) -> Vec<Process> {
    let all = processes();
    let ours = ancestors(&all);
    let mut found: Vec<Process> =
        all.iter().filter(|one| !ours.contains(&one.pid) && dirs.iter().any(|dir| holds(one, dir))).cloned().collect();
    loop {
        let more: Vec<Process> = all
            .iter()
            .filter(|one| !ours.contains(&one.pid) && !found.contains(one))
            .filter(|one| found.iter().any(|holder| holder.pid == one.parent))
            .cloned()
            .collect();
        if more.is_empty() {
            return found;
        }
        found.extend(more);
    }
}

fn holds(process: &Process, dir: &Path) -> bool {
    if names(&process.command, &dir.to_string_lossy()) {
        return true;
    }
    let proc = format!("/proc/{}", process.pid);
    ["cwd", "root", "exe"].iter().any(|link| points_into(&Path::new(&proc).join(link), dir))
        || fs::read_dir(Path::new(&proc).join("fd"))
            .is_ok_and(|fds| fds.flatten().any(|fd| points_into(&fd.path(), dir)))
}

/// Whether a command line names the directory itself or something in it, and not another one that begins alike.
fn names(command: &str, dir: &str) -> bool {
    command
        .match_indices(dir)
        .any(|(at, _)| command[at + dir.len()..].chars().next().is_none_or(|next| next == '/' || next == ' '))
}

fn points_into(link: &Path, dir: &Path) -> bool {
    fs::read_link(link).is_ok_and(|target| target.starts_with(dir))
}

fn ancestors(all: &[Process]) -> Vec<i32> {
    let mut found = vec![i32::try_from(std::process::id()).unwrap_or(0)];
    while let Some(one) = all.iter().find(|one| Some(&one.pid) == found.last()) {
        if one.parent <= 1 {
            break;
        }
        found.push(one.parent);
    }
    found
}

/// The most memory a process has held since the last [`reset_memory_peak`], in KiB.
#[must_use]
pub fn memory_peak_kib(pid: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the status of the server");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("VmHWM of the server");
    line.trim().trim_end_matches(" kB").parse().expect("VmHWM is a number")
}

/// Lets [`memory_peak_kib`] count from here.
pub fn reset_memory_peak(pid: i32) {
    fs::write(format!("/proc/{pid}/clear_refs"), "5").expect("reset the peak of the server's memory");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_longer_name_is_another_directory() {
        assert!(names("serve --data-dir /p/test-1", "/p/test-1"));
        assert!(names("gofer --bundle /p/test-1/sandboxes/x", "/p/test-1"));
        assert!(!names("serve --data-dir /p/test-12", "/p/test-1"));
    }

    #[test]
    fn holders_are_found_by_an_open_file_and_never_name_this_test() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut child = std::process::Command::new("sleep").arg("60").current_dir(dir.path()).spawn().expect("sleep");
        let held = holders(&[dir.path()]);
        child.kill().expect("end it");
        child.wait().expect("reap it");
        assert_eq!(held.len(), 1, "{held:?}");
        assert!(holders(&[dir.path()]).is_empty());
    }
}
