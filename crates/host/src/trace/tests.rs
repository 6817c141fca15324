use std::ffi::CString;
use std::time::{Duration, Instant};

use super::*;
use crate::spawn::{Program, spawn};

/// Runs a shell under trace on this thread. What was wanted, with the path a descriptor led to or a name was given by,
/// and how the shell ended.
fn followed(script: &str) -> (Vec<(Wanted, String)>, End) {
    let words = ["bash", "-c", script].map(|word| CString::new(word).unwrap());
    let (held, tracing) = prepare().unwrap();
    let leader = std::thread::scope(|scope| {
        let starting = scope.spawn(move || {
            spawn(&Program {
                paths: &[c"/bin/bash".to_owned()],
                argv: &words,
                envp: &[c"PATH=/usr/bin:/bin".to_owned()],
                fds: &[],
                cwd: None,
                identity: None,
                limits: &[],
                new_session: true,
                terminal: None,
                parent_death_signal: None,
                announce: None,
                groups: &[],
                substitute: None,
                traced: Some(&held),
            })
        });
        assert!(tracing.attach().is_ok());
        starting.join().unwrap().unwrap()
    });
    let (mut pending, mut out) = (std::collections::HashMap::new(), Vec::new());
    let (mut end, limit) = (None, Instant::now() + Duration::from_secs(120));
    loop {
        assert!(Instant::now() < limit, "the shell does not end");
        match news().unwrap() {
            // Other tests of this process have children of their own; each runs in a process of its own under nextest.
            News::NobodyLeft => return (out, end.unwrap()),
            News::NoneYet => std::thread::sleep(Duration::from_millis(1)),
            News::Ended(pid, how) if pid == leader => end = Some(how),
            News::Ended(..) => {}
            News::Stopped(stop) => match stop.why {
                Why::Calling => {
                    let wanted = stop.wanted(&stop.call().unwrap());
                    let text = match wanted {
                        Some(Wanted::Name { path, .. }) => stop.text(path, 4096),
                        _ => None,
                    };
                    pending.insert(stop.thread, (wanted, text));
                    stop.step();
                }
                Why::Called => {
                    let result = stop.call().unwrap().result;
                    if let Some((Some(wanted), text)) = pending.remove(&stop.thread)
                        && result >= 0
                    {
                        let link = || std::fs::read_link(format!("/proc/{}/fd/{result}", stop.thread)).unwrap();
                        let path = text.map_or_else(|| link().display().to_string(), |t| String::from_utf8(t).unwrap());
                        out.push((wanted, path));
                    }
                    stop.go_on(None);
                }
                Why::Stopping => stop.stay(),
                Why::Signal(signal) => stop.go_on(Some(signal)),
                Why::Program | Why::Other => stop.go_on(None),
            },
        }
    }
}

#[test]
fn what_a_shell_and_its_children_open_and_make() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().display();
    std::fs::write(dir.path().join("in"), "x").unwrap();
    let (seen, end) = followed(&format!("cd {at}; cat in > out; mkdir d; mv out d/moved; (cat < d/moved); exit 3"));
    assert_eq!(end, End::Code(3));
    let read = |path: String| (Wanted::Open { read: true, write: false }, path);
    assert!(seen.contains(&read(format!("{at}/in"))), "{seen:?}");
    assert!(seen.contains(&(Wanted::Open { read: false, write: true }, format!("{at}/out"))), "{seen:?}");
    assert!(seen.contains(&read(format!("{at}/d/moved"))), "{seen:?}");
    let named: Vec<&str> =
        seen.iter().filter(|(w, _)| matches!(w, Wanted::Name { .. })).map(|(_, p)| p.as_str()).collect();
    assert_eq!(named, ["d", "d/moved"]);
}

#[test]
fn signals_and_stops_are_what_they_are_without_a_tracer() {
    assert_eq!(followed("kill -TERM $$").1, End::Signal(15));
    assert_eq!(followed("trap 'exit 7' USR1; kill -USR1 $$; sleep 20").1, End::Code(7));
    // The stopped one does not go on by itself.
    let script = "(kill -STOP $BASHPID; exit 5) & for n in $(seq 1000); do \
        read -r _ _ state _ < /proc/$!/stat; [[ $state == [Tt] ]] && break; sleep .01; done; \
        sleep .2; kill -0 $! || exit 1; while kill -CONT $! 2>/dev/null; do sleep .05; done; wait $!";
    assert_eq!(followed(script).1, End::Code(5));
}

#[test]
fn threads_are_followed_too() {
    let script = "python3 -c 'import threading as t; x = t.Thread(target=lambda: open(\"/etc/hostname\").read()); x.start(); x.join()'";
    let (seen, end) = followed(script);
    assert_eq!(end, End::Code(0));
    assert!(seen.iter().any(|(_, path)| path == "/etc/hostname"), "{seen:?}");
}

/// One that cannot be attached must not run free of its tracer.
#[test]
fn a_program_that_nobody_takes_does_not_start() {
    let (held, tracing) = prepare().unwrap();
    drop(tracing);
    let started = spawn(&Program {
        paths: &[c"/bin/true".to_owned()],
        argv: &[c"true".to_owned()],
        envp: &[],
        fds: &[],
        cwd: None,
        identity: None,
        limits: &[],
        new_session: true,
        terminal: None,
        parent_death_signal: None,
        announce: None,
        groups: &[],
        substitute: None,
        traced: Some(&held),
    });
    assert_eq!(started.unwrap_err().step, crate::spawn::Step::Trace);
}
