//! One connection of a tunnel: opened in the sandbox, bytes both ways, its end told.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::ws::Message;
use runtime_proto::channel::Sender;
use runtime_proto::guest::{Ask, Connect, ErrorCode, Input, Tell, encode};
use runtime_proto::node::{AskError, GuestStream};
use tokio::sync::mpsc;

use super::credit::Inbox;
use super::outbox::frame;
use crate::error::ApiError;
use crate::guest::gateway::{Asked, Guest};
use crate::guest::sockets::ConnectionPlace;

/// Nothing follows an `o` sooner: clients register the connection after they read it, and drop what comes before.
const AFTER_OPEN: Duration = Duration::from_millis(25);

/// One connection, from its opening to its end.
pub(super) struct Carrier {
    guest: Guest,
    number: u32,
    _place: Option<ConnectionPlace>,
    inbox: Arc<Inbox>,
    out: mpsc::Sender<Message>,
}

/// The socket is gone, or why the connection ended.
enum Broken {
    Gone,
    Because(String),
}

impl Drop for Carrier {
    fn drop(&mut self) {
        self.inbox.close();
    }
}

impl Carrier {
    pub(super) fn new(
        guest: Guest,
        number: u32,
        place: Option<ConnectionPlace>,
        inbox: Arc<Inbox>,
        out: mpsc::Sender<Message>,
    ) -> Self {
        Self { guest, number, _place: place, inbox, out }
    }

    pub(super) async fn carry(self, to: Result<u16, &'static str>) {
        let reason = match to {
            Ok(port) => match self.connected(port).await {
                Ok(()) => "done".to_owned(),
                Err(Broken::Because(reason)) => reason,
                Err(Broken::Gone) => return,
            },
            Err(why) => why.to_owned(),
        };
        // To a client that is gone there is nothing to say.
        let _ = self.out.send(frame(b'c', self.number, reason.as_bytes())).await;
    }

    async fn connected(&self, port: u16) -> Result<(), Broken> {
        let ask = Ask::Connect(Connect { port: port.into() });
        let mut stream = self.guest.open(ask).await.map_err(|error| Broken::Because(error.kind().code().to_owned()))?;
        match stream.only().await {
            Ok(Tell::Done(_)) => {}
            Ok(_) => return Err(Broken::Because(AskError::Unexpected.to_string())),
            Err(error) => return Err(Broken::Because(refused(error))),
        }
        let (number, out) = (self.number, self.out.clone());
        out.send(frame(b'o', number, b"")).await.map_err(|_| Broken::Gone)?;
        let sender = stream.sender();
        let outward = async {
            tokio::time::sleep(AFTER_OPEN).await;
            send_out(&mut stream, number, &out).await
        };
        tokio::try_join!(outward, send_in(&sender, &self.inbox))?;
        Ok(())
    }
}

fn refused(error: AskError) -> String {
    let asked = Asked::from(error);
    match asked.guest_code() {
        Some(ErrorCode::ConnectionRefused) => "closed".to_owned(),
        _ => ApiError::from(asked).kind().code().to_owned(),
    }
}

async fn send_out(stream: &mut GuestStream, number: u32, out: &mpsc::Sender<Message>) -> Result<(), Broken> {
    loop {
        let (message, last) = match stream.next().await {
            Ok(Some(Tell::Chunk(chunk))) => (frame(b'd', number, &chunk.data), false),
            Ok(None) => (frame(b'e', number, b""), true),
            Ok(Some(_)) => return Err(Broken::Because(AskError::Unexpected.to_string())),
            Err(_) => return Err(Broken::Because("reset".to_owned())),
        };
        out.send(message).await.map_err(|_| Broken::Gone)?;
        if last {
            return Ok(());
        }
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
