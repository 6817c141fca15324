//! The agent of one machine, spoken to without an engine: for tests of a driver alone.

use bytes::Bytes;
use runtime_engine::driver::{Booted, Identity, Reader, Writer};
use runtime_proto::channel::{Channel, Config, Opener, Side};
use runtime_proto::guest::{Ask, Command, Exec, Hello, Request, Tell, encode};
use runtime_proto::node::GuestStream;
use runtime_proto::{PROTOCOL, PROTOCOL_MIN, handshake};
use std::time::Duration;

pub struct Guest {
    opener: Opener,
    pump: tokio::task::JoinHandle<()>,
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.pump.abort();
    }
}

impl Guest {
    /// Greets the machine's agent as an engine does.
    pub async fn of(machine: &dyn Booted, name: &str) -> Self {
        let (reader, writer) = machine.dialer().dial().unwrap();
        Self::over(reader, writer, machine.identity(), name).await
    }

    /// The same over a stream of the caller's.
    pub async fn over(mut reader: Reader, mut writer: Writer, identity: &Identity, name: &str) -> Self {
        let random: Vec<u8> = [uuid::Uuid::new_v4(), uuid::Uuid::new_v4(), uuid::Uuid::new_v4()]
            .iter()
            .flat_map(|uuid| *uuid.as_bytes())
            .collect();
        let hello = Hello {
            nonce: Bytes::copy_from_slice(&random[..16]),
            protocol_min: PROTOCOL_MIN,
            protocol_max: PROTOCOL,
            sandbox_id: name.to_owned(),
            // As the engine does it: who is greeted anew looks at who and when it is.
            generation: u64::from_le_bytes(random[32..40].try_into().unwrap()),
            host_time: handshake::wall_clock_ns(),
            entropy: Bytes::copy_from_slice(&random[16..48]),
            hostname: identity.hostname.clone(),
            max_user_processes: identity.max_user_processes,
            epoch: u32::from_le_bytes(random[..4].try_into().unwrap()),
            way_out: None,
        };
        let greeted = handshake::greet(&mut reader, &mut writer, &hello);
        let (_, mut unread) = tokio::time::timeout(Duration::from_secs(60), greeted).await.unwrap().unwrap();
        let config = Config {
            side: Side::Host,
            epoch: hello.epoch,
            max_open: 65_536,
            max_streams: 64,
            max_flows: 0,
            max_incoming: 0,
        };
        let (opener, incoming, pump) = Channel::new(config).into_parts();
        drop(incoming);
        let pump = tokio::spawn(async move {
            pump.run(&mut reader, &mut writer, &mut unread).await;
        });
        Self { opener, pump }
    }

    /// Standard output of a command that must succeed, without the last newline.
    pub async fn sh(&self, shell: &str) -> String {
        let command = Command { shell: Some(shell.to_owned()), user: 0, timeout_ms: 60_000, ..Command::default() };
        let exec = Exec { command: Some(command), head_limit: 1 << 20, has_stdin: false };
        let message = encode(&Request::new(Ask::Exec(exec)));
        let mut stream = GuestStream::new(self.opener.open(message).await.unwrap());
        let mut out = Vec::new();
        loop {
            match stream.next().await.unwrap() {
                Some(Tell::Chunk(chunk)) => out.extend(chunk.data),
                Some(Tell::ExecDone(done)) => {
                    out.extend_from_slice(&done.stdout);
                    let code = done.process.and_then(|process| process.exit_code);
                    let said = String::from_utf8_lossy(&done.stderr);
                    assert_eq!(code, Some(0), "{shell}: {} {said}", String::from_utf8_lossy(&out));
                    return String::from_utf8_lossy(&out).trim_end().to_owned();
                }
                other => panic!("the agent answered {other:?}"),
            }
        }
    }
}
