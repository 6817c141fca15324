//! `runtime serve`: one process with the server and the engine, until it is told to stop.

use std::future::Future;
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use runtime_cli::{Answer, GuardsWhen, Listen, ServeArgs};
use runtime_egress::{Keeper, KeeperOptions, Settings};
use runtime_engine::prepare::{self, EngineChoice, Lock};
use runtime_engine::{Engine, EngineConfig};
use runtime_server::{AppState, Config, Guards, reconcile};
use runtime_service::logs::{self, LogOptions};
use runtime_service::signals::{Signal, Signals};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::task::{JoinError, JoinHandle};
use tokio_util::sync::CancellationToken;

/// What the reconciler gets to finish its round.
const GRACE: Duration = Duration::from_secs(10);
const SERVER: &str = "server";
const RECONCILER: &str = "reconciler";
/// However few files may be open.
const LEAST_CONNECTIONS: usize = 32;

pub(crate) fn run(args: &ServeArgs, json: bool) -> ExitCode {
    let served = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")
        .and_then(|runtime| runtime.block_on(async { Served::start(args, json).await?.until_told().await }));
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => runtime_cli::fail(error, json),
    }
}

/// A running server and what it must let go of, in this order.
struct Served {
    signals: Signals,
    stop: CancellationToken,
    app: AppState,
    server: JoinHandle<()>,
    reconciler: JoinHandle<()>,
    engine: Arc<Engine>,
    egress: Keeper,
    _lock: Lock,
}

impl Served {
    async fn start(args: &ServeArgs, json: bool) -> Result<Self> {
        logs::init(&LogOptions::default()).context("logs")?;
        let signals = Signals::catch().context("signals")?;
        let choice: EngineChoice = args.engine.as_str().parse().context("engine")?;
        let descriptors = raise_descriptors();
        let data_dir = prepare::data_dir(&args.data.path())?;
        choice.resolve(&data_dir)?;
        // Before anything is mounted or made: a second server touches nothing of the first.
        let lock = Lock::acquire(&data_dir.join("lock"))
            .with_context(|| format!("another server owns the data directory {}", data_dir.display()))?;
        let host = prepare::open(&data_dir, choice)?;
        let egress = Keeper::start(KeeperOptions {
            // Whatever path it was started by: one without rights may not walk there.
            program: "/proc/self/exe".into(),
            settings: Settings { public: args.treat_as_public.clone() },
            as_nobody: rustix::process::geteuid().is_root(),
        });
        let engine = EngineConfig { egress: Arc::new(egress.clone()), ..EngineConfig::new(host, crate::AGENT)? };
        let engine = Arc::new(Engine::open(engine).await?);

        let listener = bind(&args.listen).await?;
        let address = listener.local_addr().context("the listening address")?;
        let config = Config { public_url: args.public_url.clone(), ..config(args.guards, address, descriptors) };
        let app = AppState::open(&data_dir, engine.clone(), config).await?;

        let stop = CancellationToken::new();
        let reconciler = reconcile::start(app.clone(), stop.child_token()).await;
        let server = tokio::spawn(runtime_server::serve(listener, app.clone(), stop.child_token()));
        let url = format!("http://{address}");
        write_address(&data_dir.join("address"), &url)?;
        let listening = Answer::new(format!("listening on {url}"), json!({ "url": url }));
        if let Err(error) = listening.print(json) {
            // Whoever started it no longer reads; those who use it do not depend on that line.
            tracing::warn!(%error, url, "the address could not be printed");
        }
        Ok(Self { signals, stop, app, server, reconciler, engine, egress, _lock: lock })
    }

    async fn until_told(mut self) -> Result<()> {
        let store_ended = self.app.store_ended();
        let ended = first_end(self.signals.next(), &mut self.server, &mut self.reconciler, store_ended).await;
        match &ended {
            End::Told(signal) => tracing::info!(signal = signal.name(), "stopping; the sandboxes go on"),
            End::Lost(what, cause) => {
                tracing::error!(task = what, cause, "a task that must keep running has ended; stopping")
            }
        }
        self.stop.cancel();
        // The outcome of the lost one was taken; a task is not asked twice.
        let lost = |name: &str| matches!(&ended, End::Lost(what, _) if *what == name);
        let rest = async {
            let server = lost(SERVER) || (&mut self.server).await.is_ok();
            let reconciler = lost(RECONCILER) || (&mut self.reconciler).await.is_ok();
            server && reconciler
        };
        let drained = tokio::select! {
            whole = rest => whole,
            // A second signal, or the grace time: what is left is taken up by the next start.
            _ = self.signals.next() => false,
            () = tokio::time::sleep(GRACE * 2) => false,
        };
        self.engine.close().await;
        self.egress.close().await;
        match ended {
            End::Lost(what, cause) => Err(anyhow!("the {what} has ended, which must keep running: {cause}")),
            End::Told(_) if drained => Ok(()),
            End::Told(_) => Err(anyhow!("stopped before all was put away; the next start takes it up")),
        }
    }
}

/// Why the program ends.
#[derive(Debug, PartialEq, Eq)]
enum End {
    Told(Signal),
    /// Something without which it makes no sense, and why.
    Lost(&'static str, String),
}

/// Waits for a signal, or for the end of anything that must not end before one.
async fn first_end(
    signal: impl Future<Output = Signal>,
    server: &mut JoinHandle<()>,
    reconciler: &mut JoinHandle<()>,
    store: impl Future<Output = ()>,
) -> End {
    let cause = |ended: Result<(), JoinError>| ended.err().map_or_else(|| "it returned".to_owned(), |e| e.to_string());
    tokio::select! {
        signal = signal => End::Told(signal),
        ended = server => End::Lost(SERVER, cause(ended)),
        ended = reconciler => End::Lost(RECONCILER, cause(ended)),
        () = store => End::Lost("database writer", "it takes no more changes".to_owned()),
    }
}

fn config(guards: GuardsWhen, address: SocketAddr, descriptors: Option<u64>) -> Config {
    let mut config = Config::for_listener(address);
    match guards {
        GuardsWhen::Auto => {}
        GuardsWhen::On => config.guards = Some(Guards::default()),
        GuardsWhen::Off => config.guards = None,
    }
    if let Some(descriptors) = descriptors {
        // Half is for the sandboxes, the store and what else is open.
        let share = usize::try_from(descriptors / 2).unwrap_or(usize::MAX).max(LEAST_CONNECTIONS);
        config.max_connections = config.max_connections.min(share);
    }
    config
}

/// Raises the soft limit of open files to the hard one; what holds then, `None` without a limit.
fn raise_descriptors() -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return limit.current;
    }
    match setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }) {
        Ok(()) => limit.maximum,
        Err(error) => {
            tracing::warn!(%error, limit = limit.current, "the limit of open files could not be raised");
            limit.current
        }
    }
}

async fn bind(listen: &Listen) -> Result<TcpListener> {
    TcpListener::bind((listen.host.as_str(), listen.port)).await.with_context(|| {
        format!("cannot listen on {listen}; free the port or choose another: runtime serve --listen 127.0.0.1:0")
    })
}

/// A reader sees the whole address or the former one.
fn write_address(path: &Path, url: &str) -> Result<()> {
    let partial = path.with_extension("new");
    let write = || {
        let mut file =
            std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o644).open(&partial)?;
        writeln!(file, "{url}")?;
        std::fs::rename(&partial, path)
    };
    write().with_context(|| format!("write the address to {}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    #[tokio::test]
    async fn only_a_signal_is_a_good_end() {
        let lives = || tokio::spawn(pending::<()>());
        let dies = || tokio::spawn(async { panic!("on purpose") });
        let told = first_end(async { Signal::Terminate }, &mut lives(), &mut lives(), pending()).await;
        assert_eq!(told, End::Told(Signal::Terminate));
        let lost = |end: End| match end {
            End::Lost(what, cause) => (what, cause),
            End::Told(signal) => panic!("nobody sent {signal:?}"),
        };
        let (what, cause) = lost(first_end(pending(), &mut dies(), &mut lives(), pending()).await);
        assert!(what == SERVER && cause.contains("panicked"), "{cause}");
        assert_eq!(lost(first_end(pending(), &mut lives(), &mut dies(), pending()).await).0, RECONCILER);
        assert_eq!(lost(first_end(pending(), &mut lives(), &mut lives(), async {}).await).0, "database writer");
    }

    #[test]
    fn guards_hold_where_they_are_asked_for() {
        let (loopback, open) = ("127.0.0.1:1".parse().expect("an address"), "0.0.0.0:1".parse().expect("an address"));
        for (guards, address, hold) in [
            (GuardsWhen::Auto, loopback, false),
            (GuardsWhen::Auto, open, true),
            (GuardsWhen::On, loopback, true),
            (GuardsWhen::Off, open, false),
        ] {
            assert_eq!(config(guards, address, None).guards.is_some(), hold, "{guards:?} at {address}");
        }
    }

    #[test]
    fn connections_leave_files_for_the_sandboxes() {
        let address = "127.0.0.1:1".parse().expect("an address");
        let most = |descriptors| config(GuardsWhen::Auto, address, descriptors).max_connections;
        assert_eq!(most(Some(1024)), 512);
        assert_eq!(most(Some(10)), LEAST_CONNECTIONS);
        assert_eq!(most(None), Config::default().max_connections);
        assert_eq!(most(Some(1 << 20)), Config::default().max_connections);
    }

    #[test]
    fn the_soft_limit_becomes_the_hard_one() {
        let raised = raise_descriptors();
        let limit = getrlimit(Resource::Nofile);
        assert_eq!((raised, limit.current), (limit.maximum, limit.maximum));
    }
}
