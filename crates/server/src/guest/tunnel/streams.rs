//! Which connection a frame is for, and what a client may not do.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::carrier::Carrier;
use super::credit::{Inbox, Taken};
use super::outbox::{Out, Outbox};
use super::target::Target;
use super::{HEAD, target};
use crate::guest::gateway::Guest;
use crate::guest::sockets::TunnelPlace;

/// Connections through all tunnels of a sandbox: each may hold a channel's window in memory.
const MOST_STREAMS: usize = 512;
/// Of these, logins over SSH: each is three processes of the sandbox.
const MOST_LOGINS: usize = 64;
/// Bytes a client may have sent that nobody took yet.
const CREDIT: u64 = 1024 * 1024;
/// A target's text.
const MAX_TARGET: usize = 16 * 1024;

struct Connection {
    inbox: Arc<Inbox>,
    abort: CancellationToken,
}

/// All connections of one tunnel.
pub(super) struct Streams {
    guest: Guest,
    place: TunnelPlace,
    out: Out,
    taken: Arc<Taken>,
    /// Bytes of data the client sent, whatever became of them.
    sent: u64,
    streams: HashMap<u32, Connection>,
    carriers: JoinSet<u32>,
}

impl Streams {
    /// With what is to be written to the client.
    pub(super) fn new(guest: Guest, place: TunnelPlace) -> (Self, Outbox) {
        let taken = Arc::<Taken>::default();
        let (out, outbox) = Outbox::new(taken.clone());
        (Self { guest, place, out, taken, sent: 0, streams: HashMap::new(), carriers: JoinSet::new() }, outbox)
    }

    /// Returns when a connection has ended; its number is free then. Cancel-safe; without connections it waits for ever.
    pub(super) async fn ended(&mut self) {
        match self.carriers.join_next().await {
            Some(Ok(number)) => drop(self.streams.remove(&number)),
            Some(Err(_)) => {}
            None => std::future::pending().await,
        }
    }

    /// Each carrier lets its connection go.
    pub(super) async fn shut(mut self) {
        self.carriers.shutdown().await;
    }

    /// Takes a frame of the client; what it says breaks the tunnel if it may not.
    pub(super) fn take(&mut self, frame: Bytes) -> Result<(), &'static str> {
        let Some((head, _)) = frame.split_first_chunk::<HEAD>() else { return Err("a frame is too short") };
        let [kind, number @ ..] = *head;
        let number = u32::from_be_bytes(number);
        let payload = frame.slice(HEAD..);
        match kind {
            b'o' => self.connect(number, &payload),
            b'd' => self.data(number, payload),
            b'e' => {
                if let Some(connection) = self.streams.get(&number) {
                    connection.inbox.end();
                }
                Ok(())
            }
            b'c' => {
                if let Some(connection) = self.streams.get(&number) {
                    connection.abort.cancel();
                }
                Ok(())
            }
            // A kind of a newer client.
            _ => Ok(()),
        }
    }

    fn connect(&mut self, number: u32, target: &[u8]) -> Result<(), &'static str> {
        if number == 0 || self.streams.contains_key(&number) {
            return Err("a connection has the number of another");
        }
        if target.len() > MAX_TARGET {
            return Err("a target is too long");
        }
        // Refusals that the client does not take wait as well.
        if self.streams.len() >= 2 * MOST_STREAMS {
            return Err("more connections were asked for than there are answers taken");
        }
        let mut connection = self.place.connection(MOST_STREAMS);
        let to = match &mut connection {
            Some(connection) => target::read(target).and_then(|target| match target {
                Target::Login(_) if !connection.logs_in(MOST_LOGINS) => Err("too many logins are open at this sandbox"),
                target => Ok(target),
            }),
            None => Err("too many connections are open at this sandbox"),
        };
        let inbox = Arc::new(Inbox::new(self.taken.clone()));
        let abort = CancellationToken::new();
        self.streams.insert(number, Connection { inbox: inbox.clone(), abort: abort.clone() });
        let carrier = Carrier::new(self.guest.clone(), number, connection, inbox, self.out.clone());
        self.carriers.spawn(async move {
            tokio::select! {
                biased;
                // The client wants nothing more of it.
                () = abort.cancelled() => {}
                () = carrier.carry(to) => {}
            }
            number
        });
        Ok(())
    }

    fn data(&mut self, number: u32, data: Bytes) -> Result<(), &'static str> {
        self.sent += data.len() as u64;
        if self.sent - self.taken.bytes() > CREDIT {
            return Err("more was sent than there is credit for");
        }
        match self.streams.get(&number) {
            Some(connection) => connection.inbox.push(&data),
            // Of a connection that has ended: nobody takes it, and its credit must not be lost.
            None => self.taken.add(data.len()),
        }
        Ok(())
    }
}
