use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::*;

const PARENT: &str = "runtime-test";
const PATIENCE: Duration = Duration::from_secs(120);

struct Cleanup(Group);

impl Drop for Cleanup {
    fn drop(&mut self) {
        let _ = self.0.kill_all();
        let _ = self.0.remove(PATIENCE);
    }
}

fn limits() -> Limits {
    Limits { memory_bytes: 64 << 20, cpu_quota_millis: 500, cpu_floor_millis: 250, pids: 64 }
}

fn group(name: &str) -> (Layout, Cleanup) {
    let layout = detect().unwrap();
    let id = format!("{name}-{}", std::process::id());
    let group = Group::create(&layout, PARENT, &id, &limits()).unwrap();
    (layout, Cleanup(group))
}

/// A shell that waits for a line, joins the group meanwhile, and then becomes the command.
fn run_in(group: &Group, script: &str) -> Child {
    let mut child = Command::new("sh")
        .args(["-c", &format!("read go; {script}")])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    group.add_process(child.id()).unwrap();
    use std::io::Write;
    child.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
    child
}

fn readable(fd: impl AsFd, timeout: Duration) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: 0 };
    poll(&mut fds, Some(&timeout)).unwrap() > 0
}

#[test]
fn limits_are_set_and_read_back_and_all_is_removed() {
    let (layout, group) = group("limits");
    assert_eq!(group.0.memory_limit().unwrap(), 64 << 20);
    group.0.set_memory_limit(96 << 20).unwrap();
    assert_eq!(group.0.memory_limit().unwrap(), 96 << 20);
    assert_eq!(group.0.pids().unwrap(), Vec::<u32>::new());
    let id = group.0.below.file_name().unwrap().to_str().unwrap().to_owned();
    assert!(layout.children(PARENT).contains(&id));
    group.0.remove(PATIENCE).unwrap();
    group.0.remove(PATIENCE).unwrap();
    assert!(Group::open(&layout, PARENT, &id).unwrap().is_none());
    assert!(!layout.children(PARENT).contains(&id));
}

#[test]
fn usage_is_counted_and_killing_empties_the_group() {
    let (_, group) = group("usage");
    let mut child = run_in(&group.0, "while :; do :; done");
    assert_eq!(group.0.pids().unwrap(), vec![child.id()]);
    let end = Instant::now() + PATIENCE;
    while group.0.cpu_usage_ns().unwrap() < 5_000_000 {
        assert!(Instant::now() < end, "no CPU time was counted");
        std::thread::yield_now();
    }
    group.0.kill_all().unwrap();
    assert!(!child.wait().unwrap().success());
    group.0.remove(PATIENCE).unwrap();
}

#[test]
fn running_out_of_memory_is_reported_and_survived() {
    let (layout, group) = group("oom");
    group.0.set_oom_kill(false).unwrap();
    let mut watch = group.0.watch_oom().unwrap();
    assert!(!watch.take().unwrap());
    let mut child = run_in(&group.0, "exec python3 -c 'x = bytearray(120 << 20)'");
    assert!(readable(&watch, PATIENCE), "no word of running out of memory");
    assert!(watch.take().unwrap());
    if matches!(layout, Layout::V1 { .. }) {
        // Held at the limit, not killed: more memory lets it finish.
        assert!(child.try_wait().unwrap().is_none());
        group.0.set_memory_limit(256 << 20).unwrap();
        assert!(child.wait().unwrap().success());
    } else {
        group.0.kill_all().unwrap();
        child.wait().unwrap();
    }
}

#[test]
fn with_the_killer_on_the_process_dies() {
    let (_, group) = group("oomkill");
    let mut child = run_in(&group.0, "exec python3 -c 'x = bytearray(120 << 20)'");
    assert!(!child.wait().unwrap().success());
}

#[test]
fn names_cannot_lead_out_of_the_parent() {
    let layout = detect().unwrap();
    for name in ["", ".", "..", "a/b", "../x", "a\0b"] {
        assert!(matches!(Group::open(&layout, PARENT, name), Err(CgroupError::BadName(_))), "{name:?}");
    }
}

#[test]
fn scales_agree_with_each_other() {
    assert_eq!(v1::shares(1000), 1024);
    assert_eq!(v1::shares(0), 2);
    assert_eq!(v2::weight(0), 1);
    assert_eq!(v2::weight(1000), 39);
    assert_eq!(oom::count("low 1\nhigh 2\nmax 3\noom 4\noom_kill 5\n"), 14);
    assert_eq!(parse_number("max\n"), Some(u64::MAX));
}
