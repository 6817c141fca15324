//! The agent as the first process of a machine: a process and mount namespace with a throw-away root.

mod common;

use common::*;
use runtime_proto::guest::{Activity, Ask, Command, ExecDone, Nothing, ProcessState, Shutdown, Tell};

/// Everything the machine writes goes to memory that goes away with it.
const BOOT: &str = r#"set -e
mount --make-rprivate /
mount -t tmpfs none /mnt
mkdir /mnt/up /mnt/work /mnt/root
mount -t overlay none -o lowerdir=/,upperdir=/mnt/up,workdir=/mnt/work /mnt/root
cd /mnt/root
mount -t proc proc proc
mount --rbind /dev dev
mount -t tmpfs none run
mount -t tmpfs -o mode=1777 none tmp
cp "$AGENT" run/agent
mkdir -p usr/local/bin workspace
ln -sf /run/agent usr/local/bin/sudo
sed -i /:1000:/d etc/passwd etc/group
echo 'runtime:x:1000:1000::/workspace:/bin/bash' >> etc/passwd
echo 'runtime:x:1000:' >> etc/group
exec chroot . /run/agent"#;

async fn boot() -> Guest {
    boot_with(0).await
}

async fn boot_with(limit: u64) -> Guest {
    let mut command = tokio::process::Command::new("unshare");
    command.args(["--pid", "--mount", "--fork", "--kill-child", "sh", "-c", BOOT]);
    command.env("AGENT", env!("CARGO_BIN_EXE_runtime-agent"));
    Guest::start_as(command, limit).await
}

fn user(line: &str) -> Command {
    Command { user: 0, cwd: "/workspace".into(), ..shell(line) }
}

async fn out(guest: &Guest, command: Command) -> (Option<i32>, String, String) {
    let ExecDone { process, stdout, stderr, .. } = guest.exec(command).await.unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (process.unwrap().exit_code, text(&stdout), text(&stderr))
}

#[tokio::test]
async fn sudo_runs_as_whom_it_is_told() {
    let guest = boot().await;
    for (line, code, stdout) in [
        ("sudo -n id -u", 0, "0\n"),
        ("sudo -u runtime id -un", 0, "runtime\n"),
        ("sudo sh -c 'exit 5'", 5, ""),
        ("sudo sh -c 'kill -15 $$'; echo $?", 0, "143\n"),
        ("echo in | sudo cat", 0, "in\n"),
        (
            "A=1 https_proxy=p sudo B=2 sh -c 'echo $A.$B.$https_proxy.$HOME.$SUDO_USER.$SUDO_UID'",
            0,
            ".2.p./root.runtime.1000\n",
        ),
        ("A=1 sudo -E sh -c 'echo $A.$HOME'", 0, "1./workspace\n"),
        ("A=1 B=2 sudo --preserve-env=A sh -c 'echo $A.$B'", 0, "1.\n"),
        ("sudo -H -E sh -c 'echo $HOME'", 0, "/root\n"),
        ("sudo -i pwd", 0, "/root\n"),
        ("sudo -s echo 'a  b;c'", 0, "a  b;c\n"),
        ("sudo -k && sudo -v && echo ok", 0, "ok\n"),
        ("sudo sudo -u runtime sudo id -u", 0, "0\n"),
        ("sudo pwd", 0, "/workspace\n"),
        ("echo x | sudo tee /etc/x > /dev/null; cat /etc/x; rm /etc/x 2>/dev/null || echo kept", 0, "x\nkept\n"),
    ] {
        let (got, text, errors) = out(&guest, user(line)).await;
        assert_eq!((got, text.as_str()), (Some(code), stdout), "{line}: {errors}");
    }
    for (line, errors) in [
        ("sudo no-such-thing", "sudo: no-such-thing: command not found\n"),
        ("sudo -u nobody-here id", "sudo: unknown user nobody-here\n"),
        ("sudo -e file", "sudo: the option -e is not supported in this sandbox\n"),
    ] {
        assert_eq!(out(&guest, user(line)).await, (Some(1), String::new(), errors.into()), "{line}");
    }
}

#[tokio::test]
async fn what_sudo_started_belongs_to_its_caller() {
    let guest = boot().await;
    // A daemon outlives its sudo, not the exec that called it.
    let line = "sudo sh -c 'setsid sleep 4201 >/dev/null 2>&1 &'; while ! pgrep -x sleep >/dev/null; do :; done; pgrep -cx sleep";
    assert_eq!(out(&guest, user(line)).await.1, "1\n");
    assert_eq!(out(&guest, user("pgrep -cx sleep")).await.1, "0\n");
    // A killed client takes its command along.
    let line = "sudo sleep 4202 & while ! pgrep -x sleep >/dev/null; do :; done; kill -9 $!; while pgrep -x sleep >/dev/null; do :; done; echo gone";
    assert_eq!(out(&guest, Command { timeout_ms: 100_000, ..user(line) }).await.1, "gone\n");
    // A signal to the client reaches the command.
    let line = "sudo sh -c 'trap \"echo got; exit 9\" TERM; echo up; while :; do sleep 0.01; done' > f & while ! grep -q up f; do :; done; kill $!; wait $!; echo $?; cat f";
    assert_eq!(out(&guest, Command { timeout_ms: 100_000, ..user(line) }).await.1, "9\nup\ngot\n");
    // Of a spawned process it stays, is counted, and can be signalled.
    let process = guest.spawn(spawn(user("sudo sh -c 'setsid sleep 4203 >/dev/null 2>&1 &'"))).await;
    let ended = guest.until(&process.id, |process| process.exit_code.is_some() && process.leftovers == 1).await;
    assert_eq!(ended.exit_code, Some(0));
    let Tell::Activity(active) = guest.one(Ask::GetActivity(Nothing {})).await.unwrap() else { panic!() };
    assert!(active.live_processes >= 1, "what was left behind is at work");
    guest.signal(&process.id, 9).await;
    guest.until(&process.id, |process| process.leftovers == 0).await;
    // The word of it comes from the runner, a moment later.
    let idle = Tell::Activity(Activity { live_processes: 0 });
    let wait = async { while guest.one(Ask::GetActivity(Nothing {})).await.unwrap() != idle {} };
    tokio::time::timeout(WAIT, wait).await.expect("what was left is gone, and still counts");
    assert_eq!(out(&guest, user("pgrep -cx sleep")).await.1, "0\n");
}

#[tokio::test]
async fn a_guest_that_kills_everything_leaves_the_agent() {
    let guest = boot().await;
    let spawned = guest.spawn(spawn(user("sleep 4301"))).await;
    for _ in 0..3 {
        let (code, text, _) = out(&guest, shell("kill -9 -1; echo still; exit 3")).await;
        assert_eq!((code, text.as_str()), (Some(3), "still\n"));
    }
    let end = guest.until(&spawned.id, |process| process.exit_code.is_some()).await;
    assert_eq!((end.state, end.exit_code), (ProcessState::Killed as i32, Some(-9)));
    // Orphans are collected, and files go on.
    let line = "echo x > /workspace/f; while ps -eo stat= | grep -q Z; do :; done; echo none";
    assert_eq!(out(&guest, shell(line)).await.1, "none\n");
}

#[tokio::test]
async fn a_fork_bomb_ends_with_its_exec_and_others_go_on() {
    // Few enough that other tests, whose user has the same number, are not bound by it.
    let guest = boot_with(200).await;
    in_enough_time(async |time_ms| {
        let bomb = Command { timeout_ms: 10 * time_ms, ..user("b() { b | b & }; b; sleep 1000") };
        let mut during = None;
        let at_work = async {
            let count = shell("ps -u runtime -o pid= | wc -l");
            while out(&guest, count.clone()).await.1.trim().parse::<u32>().unwrap() < 50 {}
            during = Some(out(&guest, shell("echo here")).await);
            std::future::pending().await
        };
        let bombed = tokio::select! {
            bombed = guest.exec(bomb) => bombed.unwrap(),
            never = at_work => never,
        };
        assert_eq!(bombed.process.unwrap().state, ProcessState::TimedOut as i32);
        during.map(|(code, said, _)| assert_eq!((code, said.as_str()), (Some(0), "here\n")))
    })
    .await;
    let left = out(&guest, user("ps -u runtime -o pid= | wc -l")).await.1;
    assert!(left.trim().parse::<u32>().unwrap() <= 3, "{left}");
}

#[tokio::test]
async fn short_memory_takes_the_largest_and_remembers_whose_it_was() {
    let guest = boot().await;
    let line = "python3 -c 'x = bytearray(80_000_000); print(len(x), flush=True); import time; time.sleep(1000)'; echo after $?";
    let process = guest.spawn(spawn(user(line))).await;
    let small = guest.spawn(spawn(user("sleep 1000"))).await;
    guest.until(&process.id, |process| process.output_bytes > 0).await;
    let Tell::Killed(killed) = guest.one(Ask::KillLargest(Nothing {})).await.unwrap() else { panic!() };
    assert!(killed.rss_bytes > 80_000_000 && killed.name.starts_with("python3"), "{killed:?}");
    let (chunks, _, end) = guest.follow(&process.id, 0).await;
    assert!(text(&chunks).ends_with("after 137\n"), "{}", text(&chunks));
    assert_eq!(end.oom_kills, 1);
    assert_eq!(guest.get(&small.id).await.unwrap().exit_code, None);
}

#[tokio::test]
async fn a_shutdown_asks_then_makes() {
    // Who goes when asked has all the time there is; who does not is not waited for long.
    for (on_term, grace_ms, last, state) in
        [("echo bye; exit 0", 60_000, "bye\n", ProcessState::Exited), ("", 300, "", ProcessState::Killed)]
    {
        let guest = boot().await;
        let line = format!("trap '{on_term}' TERM; echo up; while :; do sleep 0.01; done");
        let process = guest.spawn(spawn(user(&line))).await;
        guest.until(&process.id, |process| process.output_bytes > 0).await;
        guest.one(Ask::Shutdown(Shutdown { grace_ms })).await.unwrap();
        let (chunks, _, end) = guest.follow(&process.id, 0).await;
        let said = text(&chunks);
        assert!(said.starts_with("up\n") && said.ends_with(last), "{said}");
        assert_eq!((end.state, end.exit_code == Some(0)), (state as i32, state == ProcessState::Exited));
    }
}
