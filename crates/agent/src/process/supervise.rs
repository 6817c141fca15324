//! From a running command to its end: reading its output, counting its time, telling its end, leaving nothing behind.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use runtime_host::reap::End;
use runtime_proto::guest::Output as Which;
use rustix::io::retry_on_intr;
use tokio::net::unix::pipe;
use tokio::sync::watch as tokio_watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::output::unfinished;
use super::{Phase, Proc, now};
use crate::Agent;
use crate::log::log;
use crate::order::Reply;
use crate::pool::{Lost, Runner};
use crate::{memory, tree};

/// How long an unfinished character is held back for its rest.
const HOLD: Duration = Duration::from_secs(1);
/// How long the output of an ended leader is waited for while somebody else holds it.
const LINGER: Duration = Duration::from_millis(500);
/// How long killing what an exec left may delay its answer.
const KILL_WAIT: Duration = Duration::from_millis(1500);
/// The most that is read from a pipe after its leader ended: no pipe holds more.
const LAST_BYTES: usize = 1024 * 1024;
/// A step of the run clock. Longer gaps than a step and a bit are time the machine was not running.
const TICK: Duration = Duration::from_secs(2);
/// Between two looks at what does not want to die.
const AGAIN: Duration = Duration::from_millis(20);
const READ: usize = 64 * 1024;

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; READ]);
}

/// Our ends of a process's pipes.
pub(crate) struct Ends {
    pub(crate) stdout: pipe::Receiver,
    /// None of its own for one with a terminal.
    pub(crate) stderr: Option<pipe::Receiver>,
    pub(crate) stdin: Option<pipe::Sender>,
}

/// Owns a process from its start until nothing of it is left.
pub(crate) async fn watch(agent: Arc<Agent>, proc: Arc<Proc>, mut runner: Runner, ends: Ends, mark: u64) {
    let (hurry, hurried) = tokio_watch::channel(false);
    let mut readers = [
        tokio::spawn(read(proc.clone(), ends.stdout, Which::Stdout, hurried.clone())),
        match ends.stderr {
            Some(stderr) => tokio::spawn(read(proc.clone(), stderr, Which::Stderr, hurried)),
            None => tokio::spawn(async {}),
        },
    ];
    let feeder = ends.stdin.map(|pipe| {
        let proc = proc.clone();
        tokio::spawn(async move { proc.stdin.carry(pipe, proc.pty).await })
    });

    let reply = {
        let next = runner.end();
        tokio::pin!(next);
        tokio::select! {
            // First: an end that came in time is not a timeout.
            biased;
            reply = &mut next => reply,
            () = run_out(proc.timeout_ms) => {
                proc.state.send_modify(|state| state.timed_out = true);
                kill_tree(&proc).await;
                next.await
            }
        }
    };
    let mut empty = false;
    let mut lost_runner = false;
    let end = match reply {
        Ok((end, nothing_left)) => {
            empty = nothing_left;
            Some(End::from_number(end))
        }
        Err(Lost { end }) => {
            lost_runner = true;
            let adopted = adopted_end(&agent, &proc, &runner, mark, end.is_some()).await;
            end.map(End::from_number).or(adopted)
        }
    };
    let short_of_memory = runner.memory_kills().unwrap_or_else(|| {
        // As a signal, or as a shell passes it on.
        let killed = matches!(end, Some(End::Signal(9) | End::Code(137)));
        u32::from(killed && memory::kernel_killed())
    });
    proc.state.send_modify(|state| {
        state.oom_kills = state.oom_kills.saturating_add(short_of_memory);
        // Killed because its time was up, or it just ended at that moment by itself.
        state.timed_out &= !matches!(end, Some(End::Code(_)));
        state.phase = Phase::Ended { end, at: now(), duration_ms: proc.started.elapsed().as_millis() as u64 };
        state.tree = !lost_runner && (!empty || !proc.helpers.borrow().is_empty());
        if empty {
            state.runner = None;
        }
    });
    proc.stdin.shut();
    if let Some(feeder) = feeder {
        feeder.abort();
    }

    if lost_runner {
        if proc.exec {
            kill_orphans(&agent).await;
            let _ = tokio::time::timeout(KILL_WAIT, end_helpers(&proc)).await;
        }
        finish(&agent, &proc, &mut readers, &hurry, Duration::ZERO, true).await;
        return;
    }
    let doomed = proc.exec || proc.state.borrow().timed_out;
    if doomed {
        if !empty {
            // The runner kills what is left of an exec, and whose time was up has been killed; output ends with it.
            match tokio::time::timeout(KILL_WAIT, runner.reply()).await {
                Ok(Ok(Reply::Empty)) => empty = true,
                Ok(_) => {
                    agent.reaper.runner_ended(runner.pid).await;
                    kill_orphans(&agent).await;
                    lost_runner = true;
                }
                Err(_) => {}
            }
        }
        let _ = tokio::time::timeout(KILL_WAIT, end_helpers(&proc)).await;
        let linger = if empty { LINGER } else { Duration::ZERO };
        finish(&agent, &proc, &mut readers, &hurry, linger, lost_runner).await;
    } else {
        finish(&agent, &proc, &mut readers, &hurry, LINGER, lost_runner).await;
    }
    if !empty && !lost_runner {
        // What it left lives on under its runner: listed, and killable, until the last one is gone.
        empty = matches!(runner.reply().await, Ok(Reply::Empty));
    }
    proc.state.send_modify(|state| state.runner = None);
    if empty {
        agent.pool.give_back(runner);
    }
    if proc.exec {
        end_helpers(&proc).await;
    } else {
        let mut helpers = proc.helpers.subscribe();
        let _ = helpers.wait_for(BTreeSet::is_empty).await;
    }
    proc.state.send_modify(|state| state.tree = false);
}

/// Kills what the tree had started under `sudo`, until nothing of that is left.
async fn end_helpers(proc: &Arc<Proc>) {
    let mut helpers = proc.helpers.subscribe();
    while !helpers.borrow_and_update().is_empty() {
        let roots = proc.roots();
        let _ =
            tokio::task::spawn_blocking(move || roots.into_iter().for_each(|root| tree::kill_below(root, &|_| false)))
                .await;
        let _ = tokio::time::timeout(AGAIN, helpers.changed()).await;
    }
}

/// Waits for the rest of the output, not for ever, and tells that the process is over.
async fn finish(
    agent: &Arc<Agent>,
    proc: &Arc<Proc>,
    readers: &mut [JoinHandle<()>; 2],
    hurry: &tokio_watch::Sender<bool>,
    linger: Duration,
    lost_runner: bool,
) {
    let [out, err] = readers;
    let both = async {
        let _ = (&mut *out).await;
        let _ = (&mut *err).await;
    };
    tokio::pin!(both);
    if tokio::time::timeout(linger, &mut both).await.is_err() {
        hurry.send_replace(true);
        both.await;
    }
    proc.output.close();
    if let Some(trace) = &proc.trace {
        trace.close(lost_runner);
    }
    proc.set_terminal(None);
    agent.table.ended(proc);
    proc.state.send_modify(|state| state.settled = true);
}

/// The runner is gone. Its processes are ours now: the leader's true end is still to be had, in nearly every case.
async fn adopted_end(agent: &Arc<Agent>, proc: &Arc<Proc>, runner: &Runner, mark: u64, known: bool) -> Option<End> {
    log!("the runner of process {} was killed", proc.id);
    agent.reaper.runner_ended(runner.pid).await;
    proc.state.send_modify(|state| state.runner = None);
    if known {
        return None;
    }
    let pid = proc.state.borrow().pid;
    let ended = agent.reaper.leader_ended(pid, mark);
    tokio::pin!(ended);
    tokio::select! {
        biased;
        end = &mut ended => end,
        // Counted anew: it runs a little longer, never shorter.
        () = run_out(proc.timeout_ms) => {
            proc.state.send_modify(|state| state.timed_out = true);
            kill_tree(proc).await;
            ended.await
        }
    }
}

/// Completes when the process has run for its time; time the machine stood still does not count.
async fn run_out(timeout_ms: u64) {
    if timeout_ms == 0 {
        return std::future::pending().await;
    }
    let mut left = Duration::from_millis(timeout_ms);
    while !left.is_zero() {
        let step = left.min(TICK);
        let before = Instant::now();
        tokio::time::sleep(step).await;
        let passed = before.elapsed();
        left = left.saturating_sub(if passed > step + TICK { step } else { passed });
    }
}

/// Ends the whole tree.
pub(crate) async fn kill_tree(proc: &Arc<Proc>) {
    const SIGKILL: i32 = 9;
    signal_tree(proc, SIGKILL).await;
}

/// Signals every process of the tree.
pub(crate) async fn signal_tree(proc: &Arc<Proc>, number: i32) {
    const SIGKILL: i32 = 9;
    let roots = proc.roots();
    let alone = {
        let state = proc.state.borrow();
        (state.runner.is_none() && matches!(state.phase, Phase::Running)).then_some(state.pid)
    };
    // A walk over /proc takes a while under a user-space kernel: not on the thread that serves everybody.
    let walk = tokio::task::spawn_blocking(move || {
        if let Some(leader) = alone {
            tree::signal(leader, number);
        }
        for root in roots.into_iter().chain(alone) {
            if number == SIGKILL {
                tree::kill_below(root, &|_| false);
            } else {
                tree::signal_below(root, number, &|_| false);
            }
        }
    });
    let _ = walk.await;
}

/// Kills what came to the agent from runners that were killed, but no leader that is still waited for.
pub(crate) async fn kill_orphans(agent: &Arc<Agent>) {
    let agent = agent.clone();
    let walk = tokio::task::spawn_blocking(move || {
        let kept = agent.reaper.kept();
        let own = rustix::process::getpid().as_raw_nonzero().get();
        tree::kill_below(own, &|pid| kept.contains(&pid) || agent.reaper.is_runner(pid));
    });
    let _ = walk.await;
}

async fn told_to_hurry(hurried: &mut tokio_watch::Receiver<bool>) {
    let _ = hurried.wait_for(|hurry| *hurry).await;
}

/// Reads one pipe to its end. Once hurried, takes what is there and ends; whatever comes later is thrown away.
async fn read(proc: Arc<Proc>, pipe: pipe::Receiver, which: Which, mut hurried: tokio_watch::Receiver<bool>) {
    let mut held: Vec<u8> = Vec::new();
    let pace = hurried.clone();
    let mut last = 0;
    loop {
        let hurry = *hurried.borrow();
        if !hurry {
            tokio::select! {
                biased;
                () = told_to_hurry(&mut hurried) => {}
                ready = pipe.readable() => if ready.is_err() { break },
                () = tokio::time::sleep(HOLD), if !held.is_empty() => {
                    proc.output.push(which, &held, &pace).await;
                    held.clear();
                    continue;
                }
            }
        }
        let got = SCRATCH.with_borrow_mut(|scratch| {
            // Asked once and for the last time, the pipe itself must answer: what tokio knows of it may be old.
            let read = if hurry {
                retry_on_intr(|| rustix::io::read(&pipe, &mut scratch[..]))?
            } else {
                pipe.try_read(scratch)?
            };
            let fresh = &scratch[..read];
            let data = if held.is_empty() { fresh.to_vec() } else { [&held[..], fresh].concat() };
            Ok::<_, std::io::Error>((read, data))
        });
        match got {
            Ok((0, _)) => break,
            Ok((read, mut data)) => {
                let hold = if proc.binary { 0 } else { unfinished(&data) };
                held = data.split_off(data.len() - hold);
                if hurry {
                    proc.output.push_now(which, &data);
                    last += read;
                    if last >= LAST_BYTES {
                        break;
                    }
                } else {
                    proc.output.push(which, &data, &pace).await;
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                if hurry {
                    break;
                }
            }
            Err(_) => break,
        }
    }
    proc.output.push_now(which, &held);
    if *hurried.borrow() {
        // Somebody else holds the other end: it must neither block nor be told of a broken pipe.
        tokio::spawn(async move {
            tokio::select! {
                () = discard(pipe) => {}
                () = tree_gone(&proc) => {}
            }
        });
    }
}

/// A terminal does not tell on every kernel that its last user is gone. A pipe does, and is not looked after by this.
async fn tree_gone(proc: &Proc) {
    if !proc.pty {
        return std::future::pending().await;
    }
    let mut state = proc.state.subscribe();
    let _ = state.wait_for(|state| state.settled && !state.tree).await;
}

async fn discard(pipe: pipe::Receiver) {
    while pipe.readable().await.is_ok() {
        let read = SCRATCH.with_borrow_mut(|scratch| pipe.try_read(scratch));
        match read {
            Ok(0) => return,
            Err(error) if error.kind() != std::io::ErrorKind::WouldBlock => return,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;
    use crate::process::output::{Output, Piece};
    use crate::process::stdin::Stdin;
    use crate::process::{Proc, State};

    fn proc() -> Arc<Proc> {
        Arc::new(Proc {
            id: "p".to_owned(),
            key: String::new(),
            command: String::new(),
            cwd: String::new(),
            user: 0,
            pty: false,
            binary: false,
            exec: true,
            timeout_ms: 0,
            started: std::time::Instant::now(),
            started_at: 0,
            output: Output::new(1024, true),
            stdin: Stdin::new(false),
            terminal: std::sync::Mutex::default(),
            state: tokio_watch::channel(State::default()).0,
            helpers: tokio_watch::channel(BTreeSet::new()).0,
            trace: None,
        })
    }

    /// The clock of this test moves only when it is told to, or when all is idle.
    #[tokio::test(start_paused = true)]
    async fn characters_are_not_cut_while_their_rest_may_come() {
        let (ours, mut theirs) = std::io::pipe().unwrap();
        let pipe = pipe::Receiver::from_owned_fd(ours.into()).unwrap();
        let (proc, (_hurry, hurried)) = (proc(), tokio_watch::channel(false));
        let reading = tokio::spawn(read(proc.clone(), pipe, Which::Stdout, hurried));
        for (written, told) in [(&b"a\xe2\x82"[..], 1), (b"\xac", 4)] {
            theirs.write_all(written).unwrap();
            while proc.output.extent().0 < told {
                tokio::task::yield_now().await;
            }
        }
        let reader = proc.output.attach(1);
        let Piece::Chunk { data, .. } = reader.look(1) else { panic!("nothing") };
        assert_eq!(&data[..], "€".as_bytes());
        // What does not become whole within its time comes as it is.
        theirs.write_all(b"\xe2").unwrap();
        while proc.output.extent().0 < 5 {
            tokio::time::sleep(HOLD).await;
        }
        drop(theirs);
        reading.await.unwrap();
    }

    /// A machine that stood still, or is short of time, hurries readers that were never told of their bytes.
    #[tokio::test]
    async fn a_hurried_reader_takes_what_nobody_has_told_it_of() {
        let (ours, theirs) = std::io::pipe().unwrap();
        let mut kept_open = theirs.try_clone().unwrap();
        let pipe = pipe::Receiver::from_owned_fd(ours.into()).unwrap();
        (&theirs).write_all(b"all of it").unwrap();
        let proc = proc();
        read(proc.clone(), pipe, Which::Stdout, tokio_watch::channel(true).1).await;
        assert_eq!(&proc.output.heads().stdout.0[..], b"all of it");
        kept_open.write_all(b"nobody waits for this").unwrap();
    }
}
