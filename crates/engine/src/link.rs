//! The link to one sandbox's agent: greets, moves frames, and greets again whenever the stream broke.
//!
//! The agent keeps all state, so a link may break and come back at any moment; whoever asks waits a little for that. An
//! agent that breaks the protocol is greeted again too, since a torn stream looks the same, but only so often: then the
//! link gives up, and the sandbox with it.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use runtime_model::SandboxId;
use runtime_proto::channel::{Channel, ChannelError, Config, Ended, Opener, Side, Stream};
use runtime_proto::guest::{Hello, Request, encode};
use runtime_proto::handshake::{self, HandshakeError};
use runtime_proto::{PROTOCOL, PROTOCOL_MIN};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::driver::{Dial, DriverError, Identity, Reader, Writer};

/// How long an asker waits for a link that is being made.
const ASK_PATIENCE: Duration = Duration::from_secs(5);
/// One greeting. An agent that is stopped by its memory limit answers late; it is greeted again.
const GREET_LIMIT: Duration = Duration::from_secs(20);
/// Breaches of the protocol without a quiet time between them until the link gives up.
const MAX_BREACHES: u32 = 5;
const QUIET: Duration = Duration::from_secs(60);
/// The longest message with which a guest may open a stream.
const MAX_OPEN: usize = 64 * 1024;
/// Every process may be followed by more than one reader; each stream holds at most its window.
const MAX_STREAMS: usize = 4096;

#[derive(Debug, thiserror::Error)]
pub(crate) enum LinkError {
    #[error(transparent)]
    Dial(#[from] DriverError),
    #[error("the agent broke the protocol {MAX_BREACHES} times, the last time by this: {0}")]
    Breaches(String),
    #[error("the agent speaks no protocol that this server speaks")]
    Version(#[source] HandshakeError),
    #[error("no random bytes")]
    Random(#[source] std::io::Error),
}

#[derive(Clone)]
enum Attachment {
    Waiting,
    Up(Opener),
    Gone,
}

/// Asks through the link; cheap to clone.
#[derive(Clone)]
pub(crate) struct Asker {
    attachment: watch::Receiver<Attachment>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum AskError {
    #[error("its agent does not answer")]
    Silent,
    #[error("it has ended")]
    Gone,
    #[error(transparent)]
    Channel(ChannelError),
}

impl Asker {
    pub(crate) async fn ask(&self, request: Request) -> Result<Stream, AskError> {
        let message = encode(&request);
        let end = Instant::now() + ASK_PATIENCE;
        let mut attachment = self.attachment.clone();
        loop {
            let opener = next_opener(&mut attachment, end).await?;
            match opener.open(message.clone()).await {
                Ok(stream) => return Ok(stream),
                // Nothing was sent whole: it cannot have run, and is asked on the next attachment.
                Err(ChannelError::Closed) => {
                    let changed = tokio::time::timeout_at(end, attachment.changed()).await;
                    changed.map_err(|_| AskError::Silent)?.map_err(|_| AskError::Gone)?;
                }
                Err(error) => return Err(AskError::Channel(error)),
            }
        }
    }

    /// Waits until the agent has answered a greeting.
    pub(crate) async fn up(&self, patience: Duration) -> Result<(), AskError> {
        next_opener(&mut self.attachment.clone(), Instant::now() + patience).await.map(drop)
    }
}

async fn next_opener(attachment: &mut watch::Receiver<Attachment>, end: Instant) -> Result<Opener, AskError> {
    loop {
        match &*attachment.borrow_and_update() {
            Attachment::Up(opener) if !opener.is_closed() => return Ok(opener.clone()),
            Attachment::Gone => return Err(AskError::Gone),
            Attachment::Up(_) | Attachment::Waiting => {}
        }
        match tokio::time::timeout_at(end, attachment.changed()).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return Err(AskError::Gone),
            Err(_) => return Err(AskError::Silent),
        }
    }
}

/// Keeps the link up; it ends only by giving up. The future must be polled for anything to happen.
pub(crate) struct Link {
    id: SandboxId,
    identity: Identity,
    dialer: Arc<dyn Dial>,
    attachment: watch::Sender<Attachment>,
}

impl Link {
    pub(crate) fn new(id: SandboxId, identity: Identity, dialer: Arc<dyn Dial>) -> (Self, Asker) {
        let (sender, receiver) = watch::channel(Attachment::Waiting);
        (Self { id, identity, dialer, attachment: sender }, Asker { attachment: receiver })
    }

    pub(crate) async fn run(self) -> LinkError {
        let error = match self.keep().await {
            Ok(never) => match never {},
            Err(error) => error,
        };
        self.attachment.send_replace(Attachment::Gone);
        error
    }

    async fn keep(&self) -> Result<std::convert::Infallible, LinkError> {
        let (mut reader, mut writer) = self.dialer.dial()?;
        let mut breaches = Breaches::default();
        loop {
            let attached = Instant::now();
            let cause = match self.attach(&mut reader, &mut writer).await? {
                Ended::Violation(why) => {
                    if breaches.count(attached.elapsed()) >= MAX_BREACHES {
                        return Err(LinkError::Breaches(why.to_owned()));
                    }
                    why
                }
                Ended::Closed => "it closed",
                Ended::NewHello => "it was greeted by another",
            };
            self.attachment.send_replace(Attachment::Waiting);
            tracing::warn!(sandbox = %self.id, cause, "the link to the sandbox broke; greeting its agent again");
            if let Ok((new_reader, new_writer)) = self.dialer.dial() {
                (reader, writer) = (new_reader, new_writer);
            }
        }
    }

    /// One attachment, from greeting to end.
    async fn attach(&self, reader: &mut Reader, writer: &mut Writer) -> Result<Ended, LinkError> {
        let hello = self.hello()?;
        let greeted = tokio::time::timeout(GREET_LIMIT, handshake::greet(reader, writer, &hello)).await;
        let (welcome, mut unread) = match greeted {
            Ok(Ok(greeted)) => greeted,
            Ok(Err(error @ HandshakeError::Version { .. })) => return Err(LinkError::Version(error)),
            Ok(Err(HandshakeError::Invalid(why))) => return Ok(Ended::Violation(why)),
            Ok(Err(HandshakeError::Closed | HandshakeError::Io(_))) | Err(_) => return Ok(Ended::Closed),
        };
        tracing::debug!(sandbox = %self.id, agent = welcome.agent_version, boot = welcome.boot, "attached");
        let config = Config { side: Side::Host, epoch: hello.epoch, max_open: MAX_OPEN, max_streams: MAX_STREAMS };
        let (opener, incoming, pump) = Channel::new(config).into_parts();
        // Nothing is served to a guest yet: streams that it opens are refused.
        drop(incoming);
        self.attachment.send_replace(Attachment::Up(opener));
        Ok(pump.run(reader, writer, &mut unread).await)
    }

    fn hello(&self) -> Result<Hello, LinkError> {
        let mut random = [0; 16 + 32 + 4];
        rustix::rand::getrandom(&mut random[..], rustix::rand::GetRandomFlags::empty())
            .map_err(|e| LinkError::Random(e.into()))?;
        let (nonce, rest) = random.split_at(16);
        let (entropy, epoch) = rest.split_at(32);
        let epoch = epoch.iter().fold(0, |number, byte| number << 8 | u32::from(*byte));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok(Hello {
            nonce: Bytes::copy_from_slice(nonce),
            protocol_min: PROTOCOL_MIN,
            protocol_max: PROTOCOL,
            sandbox_id: self.id.to_string(),
            generation: self.identity.generation,
            host_time: u64::try_from(now.as_nanos()).unwrap_or(u64::MAX),
            entropy: Bytes::copy_from_slice(entropy),
            hostname: self.identity.hostname.clone(),
            max_user_processes: self.identity.max_user_processes,
            epoch,
        })
    }
}

/// Counts what comes in quick succession.
#[derive(Default)]
struct Breaches(u32);

impl Breaches {
    fn count(&mut self, since_the_last: Duration) -> u32 {
        self.0 = if since_the_last >= QUIET { 1 } else { self.0 + 1 };
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn breaches_are_forgiven_after_a_quiet_time() {
        let mut breaches = Breaches::default();
        for expected in 1..MAX_BREACHES {
            assert_eq!(breaches.count(Duration::from_secs(1)), expected);
        }
        assert_eq!(breaches.count(QUIET), 1);
        assert_eq!(breaches.count(Duration::ZERO), 2);
    }
}
