//! Which files a command, and all that it starts, opens and makes.
//!
//! The command's runner traces it ([`follow`]) and notes each path once, in a file in memory that the agent made and
//! that the runners of its whole tree write to ([`record`]). The agent reads it when the command has ended. What a guest
//! does to a runner costs it the trace, and the trace says that it is not whole.

pub(crate) mod attend;
mod follow;
pub(crate) mod record;
pub(crate) mod requests;

use std::sync::OnceLock;

use runtime_proto::guest::{DATA_STEP, Traced};

use record::Record;

/// The trace of one process.
pub(crate) struct Trace {
    pub(crate) record: Record,
    found: OnceLock<Found>,
}

/// What a trace found, sorted.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) read: Vec<String>,
    pub(crate) written: Vec<String>,
    /// There was more.
    pub(crate) truncated: bool,
}

impl Trace {
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self { record: Record::new()?, found: OnceLock::new() })
    }

    /// The process has ended: what was noted until now is what it did. `cut` if its runner was lost.
    pub(crate) fn close(&self, cut: bool) {
        let _ = self.found.set(self.record.take(cut));
    }

    /// Nothing before its end.
    pub(crate) fn found(&self) -> Option<&Found> {
        self.found.get()
    }

    /// Memory held, for the bound over all ended processes.
    pub(crate) fn weight(&self) -> usize {
        self.found().map_or(0, |found| {
            let paths = found.read.iter().chain(&found.written);
            paths.map(|path| path.len() + size_of::<String>()).sum::<usize>()
        })
    }
}

impl Found {
    /// As messages that fit their frames; at least one.
    pub(crate) fn messages(&self) -> Vec<Traced> {
        let mut out = vec![Traced { truncated: self.truncated, ..Traced::default() }];
        let mut room = DATA_STEP;
        let all = self.read.iter().map(|path| (path, true)).chain(self.written.iter().map(|path| (path, false)));
        for (path, read) in all {
            let cost = path.len() + 8;
            if cost > room {
                out.push(Traced::default());
                room = DATA_STEP;
            }
            room = room.saturating_sub(cost);
            if let Some(last) = out.last_mut() {
                if read { last.read.push(path.clone()) } else { last.written.push(path.clone()) }
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message;

    #[test]
    fn many_paths_travel_in_messages_that_fit() {
        let path = |n: usize| format!("/{}/{n}", "p".repeat(200));
        let found =
            Found { read: (0..1000).map(path).collect(), written: (0..500).map(path).collect(), truncated: true };
        let messages = found.messages();
        assert!(messages.len() > 4);
        assert!(messages.iter().all(|message| message.encoded_len() < DATA_STEP + 1024));
        let read: Vec<String> = messages.iter().flat_map(|message| message.read.clone()).collect();
        let written: Vec<String> = messages.iter().flat_map(|message| message.written.clone()).collect();
        assert_eq!((read, written), (found.read, found.written));
        assert_eq!(messages.iter().filter(|message| message.truncated).count(), 1);
        assert_eq!(Found::default().messages().len(), 1);
    }
}
