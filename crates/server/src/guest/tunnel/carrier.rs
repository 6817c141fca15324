//! One connection of a tunnel: opened in the sandbox, bytes both ways, its end told.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use runtime_proto::channel::Sender;
use runtime_proto::guest::{Ask, Connect, EnvVar, ErrorCode, Input, Output, Ssh, Tell, encode};
use runtime_proto::node::{AskError, GuestStream};
use secrecy::ExposeSecret;
use tokio::sync::oneshot;

use super::credit::Inbox;
use super::host_key::HostKey;
use super::outbox::{Gone, Out};
use super::target::{Login, Target};
use crate::error::ApiError;
use crate::guest::gateway::{Asked, Guest};
use crate::guest::sockets::ConnectionPlace;

/// Nothing follows an `o` sooner than this after the socket took it: clients register the connection after they read it,
/// and drop what comes before.
const AFTER_OPEN: Duration = Duration::from_millis(25);

/// One connection, from its opening to its end.
pub(super) struct Carrier {
    guest: Guest,
    number: u32,
    _place: Option<ConnectionPlace>,
    inbox: Arc<Inbox>,
    out: Out,
}

/// The socket is gone, or why the connection ended.
enum Broken {
    Gone,
    Because(String),
}

impl From<Gone> for Broken {
    fn from(Gone: Gone) -> Self {
        Self::Gone
    }
}

impl Drop for Carrier {
    fn drop(&mut self) {
        self.inbox.close();
    }
}

impl Carrier {
    pub(super) fn new(guest: Guest, number: u32, place: Option<ConnectionPlace>, inbox: Arc<Inbox>, out: Out) -> Self {
        Self { guest, number, _place: place, inbox, out }
    }

    pub(super) async fn carry(self, to: Result<Target, &'static str>) {
        let carried = match to {
            Ok(Target::Port(port)) => self.connected(port).await,
            Ok(Target::Login(login)) => self.logged_in(login).await,
            Err(why) => Err(Broken::Because(why.to_owned())),
        };
        let reason = match carried {
            Ok(()) => "done".to_owned(),
            Err(Broken::Because(reason)) => reason,
            Err(Broken::Gone) => return,
        };
        // To a client that is gone there is nothing to say.
        let _ = self.out.send(b'c', self.number, reason.as_bytes()).await;
    }

    async fn connected(&self, port: u16) -> Result<(), Broken> {
        let mut stream = self.opened(Ask::Connect(Connect { port: port.into() }), "closed").await?;
        let opened = self.out.tell(b'o', self.number, b"").await?;
        let sender = stream.sender();
        tokio::try_join!(self.send_out(opened, &mut stream), send_in(&sender, &self.inbox))?;
        Ok(())
    }

    /// With a host key of its own, so that the client may know whom it speaks with.
    async fn logged_in(&self, login: Login) -> Result<(), Broken> {
        let host_key = HostKey::generate().map_err(|_| Broken::Because("no host key could be made".to_owned()))?;
        let env = self.guest.around().env.into_iter().map(|(name, value)| EnvVar { name, value }).collect();
        let ask = Ssh { key: login.key, host_key: host_key.private.expose_secret().to_owned(), env };
        let mut stream = self.opened(Ask::Ssh(ask), "no-sshd").await?;
        let opened = self.out.tell(b'o', self.number, b"").await?;
        if login.tells_host_key {
            self.out.send(b'k', self.number, host_key.public.as_bytes()).await?;
        }
        let sender = stream.sender();
        let inward = async {
            send_in(&sender, &self.inbox).await?;
            std::future::pending::<Result<(), Broken>>().await
        };
        tokio::select! {
            // Once sshd has ended nobody takes what the client still has.
            ended = self.send_out(opened, &mut stream) => ended,
            broken = inward => broken,
        }
    }

    /// Opens a stream whose first answer says that it is open. `missing`: the reason where there is nothing to open it to.
    async fn opened(&self, ask: Ask, missing: &str) -> Result<GuestStream, Broken> {
        let mut stream = self.guest.open(ask).await.map_err(|error| Broken::Because(error.kind().code().to_owned()))?;
        match stream.only().await {
            Ok(Tell::Done(_)) => Ok(stream),
            Ok(_) => Err(Broken::Because(AskError::Unexpected.to_string())),
            Err(error) => Err(Broken::Because(refused(error, missing))),
        }
    }

    async fn send_out(&self, opened: oneshot::Receiver<()>, stream: &mut GuestStream) -> Result<(), Broken> {
        opened.await.map_err(|_| Broken::Gone)?;
        tokio::time::sleep(AFTER_OPEN).await;
        loop {
            let (kind, data, last) = match stream.next().await {
                Ok(Some(Tell::Chunk(chunk))) => {
                    // Only sshd has something to say beside its bytes.
                    let kind = if chunk.stream == Output::Stderr as i32 { b'l' } else { b'd' };
                    (kind, chunk.data, false)
                }
                Ok(None) => (b'e', Bytes::new(), true),
                Ok(Some(_)) => return Err(Broken::Because(AskError::Unexpected.to_string())),
                Err(_) => return Err(Broken::Because("reset".to_owned())),
            };
            self.out.send(kind, self.number, &data).await?;
            if last {
                return Ok(());
            }
        }
    }
}

fn refused(error: AskError, missing: &str) -> String {
    let asked = Asked::from(error);
    match asked.guest_code() {
        Some(ErrorCode::ConnectionRefused | ErrorCode::FileNotFound) => missing.to_owned(),
        _ => ApiError::from(asked).kind().code().to_owned(),
    }
}

async fn send_in(sender: &Sender, inbox: &Inbox) -> Result<(), Broken> {
    let reset = |_| Broken::Because("reset".to_owned());
    while let Some(data) = inbox.next().await {
        let mut owed = inbox.owed(data.len());
        let length = data.len();
        sender.send(encode(&Input { data })).await.map_err(reset)?;
        owed.pay(length);
    }
    sender.finish().await.map_err(reset)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use axum::extract::ws::Message;
    use futures_util::SinkExt;
    use runtime_proto::guest::Nothing;
    use tokio::time::Instant;

    use super::super::credit::Taken;
    use super::super::outbox::Outbox;
    use super::*;
    use crate::guest::scripted::{Scripted, guest, script};

    #[tokio::test(start_paused = true)]
    async fn what_a_server_says_at_once_comes_a_moment_after_the_socket_took_the_opening() {
        let node = Scripted::new(vec![script(|agent| async move {
            agent.tell(Tell::Done(Nothing {})).await;
            agent.chunk(Output::Stdout, 0, b"220 hello").await;
            agent.end().await;
        })]);
        let taken = Arc::<Taken>::default();
        let (out, outbox) = Outbox::new(taken.clone());
        let inbox = Arc::new(Inbox::new(taken));
        inbox.end();
        let carrier = Carrier::new(guest(&node), 7, None, inbox, out);

        // A socket that is slow to take anything.
        let slow = Duration::from_secs(3);
        let took = Arc::new(Mutex::new(Vec::new()));
        let sink = futures_util::sink::drain().with(|message: Message| {
            let took = took.clone();
            async move {
                tokio::time::sleep(slow).await;
                took.lock().unwrap().push((Instant::now(), message.clone().into_data()[0]));
                Ok::<_, std::convert::Infallible>(message)
            }
        });
        let _ = tokio::join!(carrier.carry(Ok(Target::Port(80))), outbox.write(Box::pin(sink)));
        let took = took.lock().unwrap();
        let kinds: Vec<u8> = took.iter().map(|(_, kind)| *kind).collect();
        assert_eq!(kinds, *b"odec");
        assert_eq!(took[1].0 - took[0].0, AFTER_OPEN + slow);
    }
}
