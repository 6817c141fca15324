//! What was decided about one sandbox: the newest decisions, each with the bytes it let through so far.
//!
//! The guest sets the pace of the entries and most of their words, so both are bounded: so many entries, so long a text.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use runtime_proto::egress::{Decision, DecisionPage, Verdict};
use runtime_proto::guest::Flow;

use crate::judge::{Destination, Permit, Refusal};

/// Decisions kept for a sandbox.
pub(crate) const KEPT: usize = 1000;
const MAX_TEXT: usize = 256;

/// Bytes of one connection or request; shared with whoever moves them.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) sent: AtomicU64,
    pub(crate) received: AtomicU64,
    /// 0 = still open.
    ended: AtomicU64,
}

impl Counters {
    pub(crate) fn end(&self) {
        let _ = self.ended.compare_exchange(0, now(), Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// An allowed connection: when this is dropped it is over.
#[derive(Debug)]
pub(crate) struct Open(pub(crate) Arc<Counters>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// What is known of a connection before it is judged.
#[derive(Debug, Clone)]
pub(crate) struct Asked<'a> {
    pub(crate) flow: &'a Flow,
    pub(crate) method: &'a str,
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) version: u64,
}

impl<'a> Asked<'a> {
    pub(crate) fn new(flow: &'a Flow, method: &'a str, to: &Destination, version: u64) -> Self {
        Self { flow, method, host: to.host.to_string(), port: to.port, version }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Ledger(Mutex<Book>);

#[derive(Debug, Default)]
struct Book {
    last: u64,
    entries: VecDeque<(Decision, Arc<Counters>)>,
}

impl Ledger {
    pub(crate) fn allowed(&self, asked: &Asked<'_>, permit: &Permit, address: IpAddr) -> Open {
        let rule = permit.rule().map(str::to_owned);
        let counters = self.enter(asked, Verdict::Allowed, permit.as_str(), rule, Some(address));
        Open(counters)
    }

    pub(crate) fn refused(&self, asked: &Asked<'_>, refusal: &Refusal) {
        let reason = refusal.reason.as_str();
        self.enter(asked, Verdict::Refused, reason, refusal.rule.clone(), refusal.address).end();
    }

    fn enter(
        &self,
        asked: &Asked<'_>,
        verdict: Verdict,
        reason: &'static str,
        rule: Option<String>,
        address: Option<IpAddr>,
    ) -> Arc<Counters> {
        let counters = Arc::new(Counters::default());
        let mut book = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        book.last += 1;
        let decision = Decision {
            number: book.last,
            at: now(),
            verdict,
            reason: reason.to_owned(),
            rule: rule.map(|rule| cut(&rule)),
            method: cut(asked.method),
            host: cut(&asked.host),
            port: asked.port,
            address,
            version: asked.version,
            sent: 0,
            received: 0,
            ended: None,
            pid: asked.flow.pid,
            program: cut(&asked.flow.program),
            process_id: cut(&asked.flow.process_id),
        };
        if book.entries.len() >= KEPT {
            book.entries.pop_front();
        }
        book.entries.push_back((decision, counters.clone()));
        counters
    }

    pub(crate) fn page(&self, before: Option<u64>, limit: usize) -> DecisionPage {
        let book = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut older =
            book.entries.iter().rev().filter(|(entry, _)| before.is_none_or(|before| entry.number < before));
        let decisions = older.by_ref().take(limit).map(shown).collect();
        DecisionPage { decisions, more: older.next().is_some(), total: book.last }
    }
}

fn shown((decision, counters): &(Decision, Arc<Counters>)) -> Decision {
    Decision {
        sent: counters.sent.load(Ordering::Relaxed),
        received: counters.received.load(Ordering::Relaxed),
        ended: Some(counters.ended.load(Ordering::Relaxed)).filter(|at| *at > 0),
        ..decision.clone()
    }
}

/// Printable and not too long.
fn cut(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(MAX_TEXT).collect()
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::Reason;

    #[test]
    fn the_newest_are_kept_and_pages_go_back() {
        let ledger = Ledger::default();
        let flow = Flow { pid: 7, program: format!("a\n{}", "x".repeat(9999)), ..Flow::default() };
        for port in 1..=1200 {
            let asked = Asked { flow: &flow, method: "CONNECT", host: "a.example".to_owned(), port, version: 3 };
            ledger.refused(&asked, &Refusal::new(Reason::Denied));
        }
        let page = ledger.page(None, 10);
        assert_eq!((page.total, page.more, page.decisions.len()), (1200, true, 10));
        assert_eq!((page.decisions[0].number, page.decisions[9].number), (1200, 1191));
        assert!(page.decisions[0].program.len() == MAX_TEXT && page.decisions[0].ended.is_some());
        let rest = ledger.page(Some(1191), 5000);
        assert_eq!((rest.decisions.len(), rest.more), (KEPT - 10, false));
        assert_eq!(rest.decisions.last().map(|entry| entry.number), Some(201));
    }

    #[test]
    fn bytes_are_seen_while_they_flow_and_the_end_when_it_comes() {
        let ledger = Ledger::default();
        let flow = Flow::default();
        let asked = Asked { flow: &flow, method: "GET", host: "a.example".to_owned(), port: 80, version: 1 };
        let open = ledger.allowed(&asked, &Permit::Allow("*.example".to_owned()), [9, 9, 9, 9].into());
        open.0.sent.fetch_add(5, Ordering::Relaxed);
        let seen = ledger.page(None, 1).decisions.remove(0);
        assert_eq!((seen.sent, seen.ended, seen.rule.as_deref()), (5, None, Some("*.example")));
        drop(open);
        assert!(ledger.page(None, 1).decisions[0].ended.is_some());
    }
}
