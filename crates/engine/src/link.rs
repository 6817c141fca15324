//! The link to one sandbox's agent: greets, moves frames, and greets again whenever the stream broke.
//!
//! The agent keeps all state, so a link may break and come back at any moment; whoever asks waits a little for that. An
//! agent that breaks the protocol is greeted again too, since a torn stream looks the same, but only so often: then the
//! link gives up, and the sandbox with it.
//!
//! What the agent opens by itself are connections out of the sandbox: they go to the host's egress as they come.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use runtime_model::SandboxId;
use runtime_proto::channel::{Channel, ChannelError, Config, Ended, Opened, Opener, Side, Stream};
use runtime_proto::egress::Egress;
use runtime_proto::guest::{Hello, MAX_CALL, MAX_FLOWS, Request, Want, decode_call, encode};
use runtime_proto::handshake::{self, HandshakeError};
use runtime_proto::{PROTOCOL, PROTOCOL_MIN};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::driver::{Dial, Identity, Reader, Writer};
use crate::host_state::chain;

/// How long an asker waits for a link that is being made.
const ASK_PATIENCE: Duration = Duration::from_secs(5);
/// One greeting. An agent that is stopped by its memory limit answers late; it is greeted again.
const GREET_LIMIT: Duration = Duration::from_secs(20);
const REDIAL: Duration = Duration::from_secs(1);
/// Breaches of the protocol without a quiet time between them until the link gives up.
const MAX_BREACHES: u32 = 5;
const QUIET: Duration = Duration::from_secs(60);
/// Between two lines in the log about one link.
const LOG_PAUSE: Duration = Duration::from_secs(10);
/// Every process may be followed by more than one reader; each stream holds at most its window.
const MAX_STREAMS: usize = 4096;
/// Connections of a guest that may wait to be looked at.
const MAX_WAITING: usize = 256;

#[derive(Debug, thiserror::Error)]
pub(crate) enum LinkError {
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

    /// Has the agent write out what it has begun to write, and then nothing more until it is greeted again. One that
    /// does not answer is silent anyway.
    pub(crate) async fn quiesce(&self, patience: Duration) {
        let attachment = self.attachment.borrow().clone();
        if let Attachment::Up(opener) = attachment {
            let _ = tokio::time::timeout(patience, opener.quiesce()).await;
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
    egress: Arc<dyn Egress>,
    attachment: watch::Sender<Attachment>,
}

impl Link {
    pub(crate) fn new(
        id: SandboxId,
        identity: Identity,
        dialer: Arc<dyn Dial>,
        egress: Arc<dyn Egress>,
    ) -> (Self, Asker) {
        let (sender, receiver) = watch::channel(Attachment::Waiting);
        (Self { id, identity, dialer, egress, attachment: sender }, Asker { attachment: receiver })
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
        let (mut breaches, mut logged) = (Breaches::default(), None);
        let mut may_log = move || {
            let due = logged.is_none_or(|last: Instant| last.elapsed() >= LOG_PAUSE);
            if due {
                logged = Some(Instant::now());
            }
            due
        };
        loop {
            let (mut reader, mut writer) = match self.dialer.dial() {
                Ok(pipe) => pipe,
                Err(error) => {
                    // A host without descriptors, say: no reason to give up a sandbox.
                    if may_log() {
                        tracing::error!(sandbox = %self.id, error = chain(&error), "the sandbox cannot be dialled");
                    }
                    tokio::time::sleep(REDIAL).await;
                    continue;
                }
            };
            let attached = Instant::now();
            let cause = match self.attach(&mut reader, &mut writer).await? {
                Broken::Breach(why) => {
                    if breaches.count(attached.elapsed()) >= MAX_BREACHES {
                        return Err(LinkError::Breaches(why.to_owned()));
                    }
                    why
                }
                Broken::Silence => "its agent did not answer a greeting",
            };
            self.attachment.send_replace(Attachment::Waiting);
            if may_log() {
                tracing::warn!(sandbox = %self.id, cause, "the link to the sandbox broke; greeting its agent again");
            }
            tokio::time::sleep(REDIAL).await;
        }
    }

    /// One attachment, from greeting to end.
    async fn attach(&self, reader: &mut Reader, writer: &mut Writer) -> Result<Broken, LinkError> {
        let hello = self.hello()?;
        let greeted = tokio::time::timeout(GREET_LIMIT, handshake::greet(reader, writer, &hello)).await;
        let (welcome, mut unread) = match greeted {
            Ok(Ok(greeted)) => greeted,
            Ok(Err(error @ HandshakeError::Version { .. })) => return Err(LinkError::Version(error)),
            Ok(Err(HandshakeError::Invalid(why))) => return Ok(Broken::Breach(why)),
            Ok(Err(HandshakeError::Closed | HandshakeError::Io(_))) | Err(_) => return Ok(Broken::Silence),
        };
        tracing::debug!(sandbox = %self.id, agent = welcome.agent_version, boot = welcome.boot, "attached");
        let config = Config {
            side: Side::Host,
            epoch: hello.epoch,
            max_open: MAX_CALL,
            max_streams: MAX_STREAMS + MAX_FLOWS,
            max_flows: MAX_FLOWS,
            max_incoming: MAX_WAITING,
        };
        let (opener, incoming, pump) = Channel::new(config).into_parts();
        self.attachment.send_replace(Attachment::Up(opener));
        let ended = tokio::select! {
            ended = pump.run(reader, writer, &mut unread) => ended,
            never = self.let_out(incoming) => match never {},
        };
        Ok(Broken::Breach(match ended {
            Ended::Violation(why) => why,
            // An agent ends with its sandbox, whose end is told otherwise.
            Ended::Closed => "its agent closed the link",
            Ended::NewHello => "its agent behaves as if it were greeted",
        }))
    }

    /// Hands over what the agent opens. What is not understood is refused by being dropped: an agent newer than we are.
    async fn let_out(&self, mut incoming: mpsc::Receiver<Opened>) -> std::convert::Infallible {
        while let Some(Opened { first, stream }) = incoming.recv().await {
            if let Ok(call) = decode_call(first)
                && let Some(Want::Flow(flow)) = call.want
            {
                self.egress.serve(self.id, flow, stream);
            }
        }
        std::future::pending().await
    }

    fn hello(&self) -> Result<Hello, LinkError> {
        let mut random = [0; 16 + 32 + 4];
        rustix::rand::getrandom(&mut random[..], rustix::rand::GetRandomFlags::empty())
            .map_err(|e| LinkError::Random(e.into()))?;
        let (nonce, rest) = random.split_at(16);
        let (entropy, epoch) = rest.split_at(32);
        let epoch = epoch.iter().fold(0, |number, byte| number << 8 | u32::from(*byte));
        Ok(Hello {
            nonce: Bytes::copy_from_slice(nonce),
            protocol_min: PROTOCOL_MIN,
            protocol_max: PROTOCOL,
            sandbox_id: self.id.to_string(),
            generation: self.identity.generation,
            host_time: handshake::wall_clock_ns(),
            entropy: Bytes::copy_from_slice(entropy),
            hostname: self.identity.hostname.clone(),
            max_user_processes: self.identity.max_user_processes,
            epoch,
            way_out: self.egress.armed(self.id).map(|rules| rules.network.allows_anything()),
        })
    }
}

/// How an attachment ended.
enum Broken {
    Breach(&'static str),
    Silence,
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
    use bytes::BytesMut;
    use newtype_uuid::GenericUuid;
    use runtime_proto::guest::{Ask, Event, Nothing, Tell, Welcome};
    use runtime_proto::node::GuestStream;
    use tokio::io::{AsyncWriteExt, DuplexStream};
    use tokio::sync::mpsc;

    use super::*;
    use crate::driver::DriverError;
    use crate::no_way_out::NoWayOut;

    /// Every dialling hands the other end to the test.
    struct Dialer(mpsc::Sender<DuplexStream>);

    impl Dial for Dialer {
        fn dial(&self) -> Result<(Reader, Writer), DriverError> {
            let (ours, theirs) = tokio::io::duplex(256 * 1024);
            self.0.try_send(theirs).unwrap();
            let (reader, writer) = tokio::io::split(ours);
            Ok((Box::new(reader), Box::new(writer)))
        }
    }

    fn link() -> (Link, Asker, mpsc::Receiver<DuplexStream>) {
        let (sender, dialled) = mpsc::channel(64);
        let identity = Identity { hostname: "box".to_owned(), generation: 1, max_user_processes: 1, memory_bytes: 1 };
        let id = SandboxId::from_untyped_uuid(uuid::Uuid::from_u128(1));
        let (link, asker) = Link::new(id, identity, Arc::new(Dialer(sender)), Arc::new(NoWayOut));
        (link, asker, dialled)
    }

    async fn welcome(pipe: &mut DuplexStream) -> Hello {
        let hello = handshake::await_hello(pipe, &mut BytesMut::new()).await.unwrap();
        let answer = Welcome { nonce: hello.nonce.clone(), protocol: PROTOCOL, ..Welcome::default() };
        handshake::welcome(pipe, &answer).await.unwrap();
        hello
    }

    #[tokio::test]
    async fn an_agent_that_keeps_breaking_the_protocol_is_given_up() {
        // A frame of four gigabytes; the beginning of another greeting; nothing, and the pipe closes.
        let lies: [&[u8]; 3] = [&[0xff; 16], &[0; 16], &[]];
        futures_util::future::join_all(lies.map(is_given_up)).await;
    }

    async fn is_given_up(lie: &[u8]) {
        let (link, asker, mut dialled) = link();
        let mut greeted = 0;
        let liar = async {
            while let Some(mut pipe) = dialled.recv().await {
                welcome(&mut pipe).await;
                greeted += 1;
                pipe.write_all(lie).await.unwrap();
            }
        };
        let error = tokio::select! {
            error = link.run() => error,
            () = liar => panic!("the link stopped dialling"),
        };
        assert!(matches!(error, LinkError::Breaches(_)), "{error}");
        assert_eq!(greeted, MAX_BREACHES);
        let asked = asker.ask(Request::new(Ask::GetActivity(Nothing {}))).await;
        assert!(matches!(asked, Err(AskError::Gone)));
    }

    #[tokio::test]
    async fn who_asks_while_the_link_is_down_is_served_by_the_next() {
        let (link, asker, mut dialled) = link();
        let link = tokio::spawn(link.run());
        let agent = tokio::spawn(async move {
            // The first goes away after the greeting; the second stays and answers.
            welcome(&mut dialled.recv().await.unwrap()).await;
            let mut pipe = dialled.recv().await.unwrap();
            let hello = welcome(&mut pipe).await;
            let config = Config {
                side: Side::Agent,
                epoch: hello.epoch,
                max_open: 64 * 1024,
                max_streams: 4,
                max_flows: 4,
                max_incoming: 4,
            };
            let (_opener, mut incoming, pump) = Channel::new(config).into_parts();
            let serve = async {
                let opened = incoming.recv().await.unwrap();
                opened.stream.send(encode(&Event::new(Tell::Done(Nothing {})))).await.unwrap();
                opened.stream.finish().await.unwrap();
                std::future::pending::<()>().await;
            };
            let (mut reader, mut writer) = tokio::io::split(pipe);
            let mut unread = BytesMut::new();
            tokio::select! {
                () = serve => {}
                _ = pump.run(&mut reader, &mut writer, &mut unread) => {}
            }
        });
        let answer = async {
            // One that was on the way when the first went is told so, and asks again.
            loop {
                let stream = asker.ask(Request::new(Ask::GetActivity(Nothing {}))).await.unwrap();
                if let Ok(tell) = GuestStream::new(stream).only().await {
                    return tell;
                }
            }
        };
        assert_eq!(tokio::time::timeout(Duration::from_secs(120), answer).await.unwrap(), Tell::Done(Nothing {}));
        link.abort();
        agent.abort();
    }

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
