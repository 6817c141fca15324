//! `runtime-agent`: the first process of every sandbox. It speaks with the host over its standard input and output,
//! runs commands, keeps their output, and reaches files; the guest may do anything to itself, and this lives on.
//!
//! One binary, four roles by name: the agent, `runtime-runner` (the parent of one command, [`runner`]), `sudo` (inside
//! a sandbox without setuid, [`sudo`]) and `init` (of a machine with a kernel of its own, [`stage1`]).

mod archive;
mod connect;
mod files;
mod groups;
mod identity;
mod log;
mod memory;
mod order;
mod pool;
mod port;
mod process;
mod reaper;
mod runner;
mod serve;
mod setup;
mod shutdown;
mod ssh;
mod stage1;
mod sudo;
mod trace;
mod tree;
mod uploads;
mod users;
mod watches;
mod way_out;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use runtime_host::vsock;
use runtime_proto::guest::TEMPLATE_GENERATION;
use rustix::process::{getpid, set_child_subreaper};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::unix::pipe;
use tokio::signal::unix::{SignalKind, signal};

use crate::groups::Groups;
use crate::log::log;
use crate::pool::Pool;
use crate::port::{Door, Port};
use crate::process::table::Table;
use crate::reaper::Reaper;
use crate::uploads::Uploads;
use crate::watches::Watches;
use crate::way_out::WayOut;

/// Processes of the sandbox user, if the host does not say.
const DEFAULT_USER_PROCESSES: u64 = 1024;
/// Processes of root beyond the runners and the limit: the agent itself, and some air.
const ROOT_SPARE: u64 = 8;
/// How long a closed input is left alone before it is tried again.
const RETRY: Duration = Duration::from_millis(200);
/// The first few times.
const RETRY_SOON: Duration = Duration::from_millis(4);
const SOON: u32 = 50;

/// All that outlives an attachment.
pub(crate) struct Agent {
    pub(crate) table: Table,
    pub(crate) pool: Arc<Pool>,
    pub(crate) uploads: Uploads,
    pub(crate) watches: Watches,
    pub(crate) reaper: Arc<Reaper>,
    /// Random, new at every start.
    pub(crate) boot: String,
    pub(crate) way_out: WayOut,
    max_user_processes: AtomicU64,
    /// Of the last host's hello.
    generation: AtomicU64,
}

impl Agent {
    /// RLIMIT_NPROC of a command. Root's counts the agent and its runners too, and binds only where the kernel lets it.
    pub(crate) fn process_limit(&self, uid: u32) -> u64 {
        let limit = self.max_user_processes.load(Ordering::Relaxed);
        if uid == 0 { limit + self.reaper.runners() as u64 + ROOT_SPARE } else { limit }
    }

    /// A copy of a template does not show what ran in that.
    pub(crate) fn is_now(&self, generation: u64) {
        let before = self.generation.swap(generation, Ordering::Relaxed);
        if before == TEMPLATE_GENERATION && generation != TEMPLATE_GENERATION {
            self.table.forget_ended();
        }
    }

    pub(crate) fn set_max_user_processes(&self, limit: u64) {
        let limit = if limit == 0 { DEFAULT_USER_PROCESSES } else { limit };
        self.max_user_processes.store(limit, Ordering::Relaxed);
    }
}

fn main() -> ExitCode {
    let name = std::env::args_os().next().unwrap_or_default();
    let name = std::path::Path::new(&name).file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if stage1::is_wanted(name) {
        return stage1::main();
    }
    tree::prepare();
    match name {
        "runtime-runner" => match runner::inherited_socket() {
            Some(socket) => runner::main(socket),
            None => ExitCode::FAILURE,
        },

        "sudo" => sudo::client::main(),
        _ => agent(),
    }
}

fn agent() -> ExitCode {
    runtime_host::frugal::few_memory_pools();
    runtime_host::epoll::only_watched();
    setup::prepare();
    let runtime = match tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(32)
        .thread_stack_size(256 * 1024)
        .thread_keep_alive(Duration::from_secs(60))
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            log!("starting failed: {error}");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(live()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            log!("starting failed: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn live() -> std::io::Result<()> {
    set_child_subreaper(Some(getpid()))?;
    let reaper = Arc::new(Reaper::default());
    // Only a whole machine of our own has groups that are ours to make.
    let groups = if getpid().is_init() { Groups::open() } else { None };
    let agent = Arc::new(Agent {
        table: Table::default(),
        pool: Arc::new(Pool::new(reaper.clone(), groups)?),
        uploads: Uploads::default(),
        watches: Watches::default(),
        reaper,
        boot: identity::random_name(),
        way_out: WayOut::default(),
        max_user_processes: AtomicU64::new(DEFAULT_USER_PROCESSES),
        generation: AtomicU64::new(0),
    });
    let mut children = signal(SignalKind::child())?;
    tokio::spawn({
        let agent = agent.clone();
        async move {
            agent.pool.refill().await;
            while children.recv().await.is_some() {
                if agent.reaper.collect() {
                    agent.pool.refill().await;
                }
            }
        }
    });
    tokio::spawn({
        let agent = agent.clone();
        async move { agent.uploads.watch().await }
    });
    if getpid().is_init() {
        tokio::spawn(sudo::server::serve(agent.clone()));
        tokio::spawn(way_out::serve(agent.clone()));
    }
    let (stdin, stdout) = setup::channel()?;
    if vsock::is_listener(&stdin) {
        keep_answering(&agent, &Door::new(stdin)?).await
    } else if stage1::is_device(&stdin) {
        keep_serving(&agent, Port::new(stdin)?, Port::new(stdout)?).await
    } else {
        let reader = pipe::Receiver::from_owned_fd_unchecked(stdin)?;
        keep_serving(&agent, reader, pipe::Sender::from_owned_fd_unchecked(stdout)?).await
    }
}

/// Where the host comes by a connection of its own each time. A machine that was restored finds its connection gone, and
/// the host at the door again.
async fn keep_answering(agent: &Arc<Agent>, door: &Door) -> std::io::Result<()> {
    loop {
        match door.open().await {
            Ok((mut reader, mut writer)) => serve::serve(agent, &mut reader, &mut writer).await,
            // No descriptor left, say: the host tries again, and so do we.
            Err(error) => {
                log!("taking a connection failed: {error}");
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

async fn keep_serving<R, W>(agent: &Arc<Agent>, mut reader: R, mut writer: W) -> std::io::Result<()>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let mut closed: u32 = 0;
    loop {
        let began = tokio::time::Instant::now();
        serve::serve(agent, &mut reader, &mut writer).await;
        // A host that has just gone is often back at once; one that stays away is not worth the processor.
        closed = if began.elapsed() > RETRY { 0 } else { closed.saturating_add(1) };
        if !getpid().is_init() {
            // Not the first process: then the one who started us is done with us.
            let _ = shutdown::run(agent, Duration::ZERO).await;
            return Ok(());
        }
        tokio::time::sleep(if closed < SOON { RETRY_SOON } else { RETRY }).await;
    }
}
