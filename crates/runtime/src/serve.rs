//! `runtime serve`: one process with the server and the engine, until it is told to stop.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use runtime_cli::{Listen, ServeArgs};
use runtime_engine::prepare::{self, EngineChoice, Lock};
use runtime_engine::{Engine, EngineConfig};
use runtime_server::{AppState, Config, reconcile};
use runtime_service::logs::{self, LogOptions};
use runtime_service::signals::Signals;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// A start that was refused: nothing was changed, something must be fixed first.
const REFUSED: u8 = 78;
/// What the reconciler gets to finish its round.
const GRACE: Duration = Duration::from_secs(10);

pub(crate) fn run(args: &ServeArgs) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return crate::fail(&error.into()),
    };
    runtime.block_on(async {
        match Served::start(args).await {
            Ok(served) => served.until_told().await,
            Err(error) => {
                crate::fail(&error);
                ExitCode::from(REFUSED)
            }
        }
    })
}

/// A running server and what it must let go of, in this order.
struct Served {
    signals: Signals,
    stop: CancellationToken,
    server: tokio::task::JoinHandle<()>,
    reconciler: tokio::task::JoinHandle<()>,
    engine: Arc<Engine>,
    _lock: Lock,
}

impl Served {
    async fn start(args: &ServeArgs) -> Result<Self> {
        logs::init(&LogOptions::default()).context("logs")?;
        let signals = Signals::catch().context("signals")?;
        let choice: EngineChoice = args.engine.as_str().parse().context("engine")?;
        choice.resolve()?;
        let data_dir = args.data.path();
        let host = prepare::open(&data_dir)?;
        let lock = Lock::acquire(&host.data_dir.join("lock"))
            .with_context(|| format!("another server owns the data directory {}", data_dir.display()))?;
        let data_dir = host.data_dir.clone();
        let engine = Arc::new(Engine::open(EngineConfig::new(host, crate::AGENT)?).await?);

        let listener = bind(&args.listen).await?;
        let address = listener.local_addr().context("the listening address")?;
        let app = AppState::open(&data_dir, engine.clone(), Config::for_listener(address)).await?;

        let stop = CancellationToken::new();
        let reconciler = reconcile::start(app.clone(), stop.child_token());
        let server = tokio::spawn(runtime_server::serve(listener, app, stop.child_token()));
        let url = format!("http://{address}");
        write_address(&data_dir.join("address"), &url)?;
        println!("listening on {url}");
        Ok(Self { signals, stop, server, reconciler, engine, _lock: lock })
    }

    async fn until_told(mut self) -> ExitCode {
        tokio::select! {
            signal = self.signals.next() => {
                tracing::info!(signal = signal.name(), "stopping; the sandboxes go on");
            }
            // It ends by itself only when it panicked.
            _ = &mut self.server => tracing::error!("the server's task ended"),
        }
        self.stop.cancel();
        let rest = async {
            if !self.server.is_finished() {
                (&mut self.server).await.ok();
            }
            (&mut self.reconciler).await.ok();
        };
        let drained = tokio::select! {
            () = rest => true,
            // A second signal, or the grace time: what is left is taken up by the next start.
            _ = self.signals.next() => false,
            () = tokio::time::sleep(GRACE * 2) => false,
        };
        self.engine.close().await;
        if drained { ExitCode::SUCCESS } else { ExitCode::FAILURE }
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
