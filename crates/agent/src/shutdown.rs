//! The end of a machine: everybody is asked to stop, then made to, and the disks are written.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::serve::{Answer, done};
use crate::{Agent, tree};

const SIGTERM: i32 = 15;
const LOOK: Duration = Duration::from_millis(20);

pub(crate) async fn run(agent: &Arc<Agent>, grace: Duration) -> Answer {
    let until = Instant::now() + grace.min(Duration::from_secs(60));
    let own = rustix::process::getpid().as_raw_nonzero().get();
    if !grace.is_zero() {
        let _ = walk(agent, move |runners| {
            for pid in tree::below(own, &|_| false) {
                if !runners(pid) {
                    tree::signal(pid, SIGTERM);
                }
            }
        })
        .await;
        while Instant::now() < until && walk(agent, move |runners| count(own, runners)).await.unwrap_or(0) > 0 {
            tokio::time::sleep(LOOK).await;
        }
    }
    let _ = walk(agent, move |runners| {
        // Runners stay: they tell how their commands ended.
        for _ in 0..20 {
            for runner in tree::below(own, &|_| false).into_iter().filter(|pid| runners(*pid)) {
                tree::kill_below(runner, &|_| false);
            }
            tree::kill_below(own, runners);
            if count(own, runners) == 0 {
                break;
            }
            std::thread::sleep(LOOK);
        }
        rustix::fs::sync();
    })
    .await;
    Ok(done())
}

fn count(own: i32, runners: &dyn Fn(i32) -> bool) -> usize {
    let below = tree::below(own, &|_| false).into_iter();
    below.filter(|pid| !runners(*pid) && tree::stat(*pid).is_some_and(|stat| stat.state != 'Z')).count()
}

async fn walk<T: Send + 'static>(
    agent: &Arc<Agent>,
    work: impl FnOnce(&dyn Fn(i32) -> bool) -> T + Send + 'static,
) -> Option<T> {
    let agent = agent.clone();
    tokio::task::spawn_blocking(move || work(&|pid| agent.reaper.is_runner(pid))).await.ok()
}
