//! Ports of a sandbox on this machine: each connection here becomes one there, all over one tunnel.

use std::net::IpAddr;
use std::sync::Arc;

use anyhow::Context as _;
use runtime_service::signals::Signals;
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::tunnel::{Connection, Tunnel};
use super::{Context, Outcome};
use crate::args::sandboxes::{Forward, ForwardArgs};
use crate::failure::Failure;
use crate::printer::{Printer, plain};

pub(super) async fn forward(context: &Context, args: ForwardArgs) -> Outcome {
    let sandbox = context.client.resolve(&args.sandbox).await?;
    let address: IpAddr = args.address;
    // What cannot be listened on here is told before anything is opened there.
    let mut listeners = Vec::new();
    for Forward { local, remote } in &args.ports {
        let listener = TcpListener::bind((address, *local))
            .await
            .with_context(|| format!("cannot listen on {address} port {local}"))?;
        let local = listener.local_addr().context("cannot read the local address")?;
        listeners.push((listener, local, *remote));
    }
    let mut signals = Signals::catch().context("cannot watch for Ctrl-C")?;
    let mut tasks = JoinSet::new();
    let tunnel = Tunnel::reach(context, &sandbox, &mut tasks).await?;
    if context.printer.json {
        let open = listeners.iter().map(|(_, local, remote)| json!({ "local": local.to_string(), "port": remote }));
        context.printer.value(&open.collect())?;
    } else {
        for (_, local, remote) in &listeners {
            context.printer.line(&format!("{local} -> {remote}"))?;
        }
    }
    for (listener, _, remote) in listeners {
        tasks.spawn(accept(tunnel.clone(), listener, remote, context.printer));
    }
    tokio::select! {
        biased;
        signal = signals.next() => Ok(signal.exit_code()),
        ended = tasks.join_next() => match ended {
            Some(Ok(Err(failure))) => Err(failure),
            _ => Err(anyhow::anyhow!("the tunnel was closed").into()),
        },
    }
}

async fn accept(tunnel: Arc<Tunnel>, listener: TcpListener, port: u16, printer: Printer) -> Result<(), Failure> {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let (socket, _) = accepted.context("cannot accept a connection")?;
                let tunnel = tunnel.clone();
                connections.spawn(async move {
                    if let Err(Some(why)) = carry(&tunnel, socket, port).await {
                        printer.talk(&format!("A connection to port {port} ended: {}.", plain(&why)));
                    }
                });
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

/// One connection to its end. An error with words is worth telling.
async fn carry(tunnel: &Arc<Tunnel>, mut socket: TcpStream, port: u16) -> Result<(), Option<String>> {
    let _ = socket.set_nodelay(true);
    let connection = match Connection::open(tunnel, &format!("tcp {port}")).await {
        Err(Some(why)) if why == "closed" => return Err(Some("nothing listens on it in the sandbox".to_owned())),
        other => other?,
    };
    let (reader, writer) = socket.split();
    connection.carry(reader, writer).await
}
