//! The limits of a shared server: how fast and how much at once a key, the organization and an address may ask.
//! Off unless configured. What is over a limit waits a little for its turn before it is refused.

use std::collections::HashMap;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use runtime_model::CredentialId;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use crate::Caller;
use crate::config::Guards;
use crate::error::{ApiError, Kind};

/// Idle entries of a table are dropped when it grows past this.
const TABLE: usize = 1024;

pub(crate) struct Gate {
    limits: Guards,
    rate: DefaultKeyedRateLimiter<CredentialId>,
    keys: Mutex<HashMap<CredentialId, Arc<InFlight>>>,
    org: Arc<InFlight>,
    addresses: Mutex<HashMap<IpAddr, Arc<Address>>>,
}

/// Requests under way, with a limit that may change between them.
#[derive(Default)]
struct InFlight {
    count: Mutex<usize>,
    left: Notify,
}

struct Address {
    places: Arc<Semaphore>,
    /// A valid key was seen: it may open more.
    known: AtomicBool,
    extra: usize,
}

/// A connection's place among those of its address.
pub(crate) struct AddressPlace {
    address: Arc<Address>,
    _permit: Option<OwnedSemaphorePermit>,
}

/// A request's place; given back when it is dropped.
pub(crate) struct Turn {
    _key: Place,
    _org: Place,
}

struct Place(Arc<InFlight>);

impl Drop for Place {
    fn drop(&mut self) {
        *self.0.count.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.0.left.notify_one();
    }
}

impl InFlight {
    async fn enter(self: &Arc<Self>, limit: usize) -> Place {
        loop {
            let left = self.left.notified();
            tokio::pin!(left);
            // In the queue before the look: a place given back in between wakes this wait.
            left.as_mut().enable();
            {
                let mut count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
                if *count < limit {
                    *count += 1;
                    return Place(self.clone());
                }
            }
            left.await;
        }
    }
}

impl Gate {
    pub(crate) fn new(limits: Guards) -> Self {
        let rate = RateLimiter::keyed(Quota::per_second(limits.key_rate).allow_burst(limits.key_burst));
        Self { limits, rate, keys: Mutex::default(), org: Arc::default(), addresses: Mutex::default() }
    }

    /// A request's turn, or the refusal after waiting for one.
    pub(crate) async fn turn(&self, caller: &Caller, sandboxes: usize) -> Result<Turn, ApiError> {
        let key = self.key(caller.credential);
        let limits = &self.limits;
        let org_limit =
            (limits.org_in_flight + limits.org_in_flight_per_sandbox * sandboxes).min(limits.org_in_flight_most);
        let wait = async {
            self.rate.until_key_ready(&caller.credential).await;
            let key = key.enter(limits.key_in_flight).await;
            let org = self.org.enter(org_limit).await;
            Turn { _key: key, _org: org }
        };
        tokio::time::timeout(limits.turn_wait, wait).await.map_err(|_| {
            ApiError::new(Kind::RateLimited, "Too many requests at once.")
                .hint("Send fewer at a time, or more slowly.")
                .retry_after(Duration::from_secs(1))
        })
    }

    fn key(&self, id: CredentialId) -> Arc<InFlight> {
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        if keys.len() > TABLE {
            keys.retain(|_, in_flight| Arc::strong_count(in_flight) > 1);
            self.rate.retain_recent();
        }
        keys.entry(id).or_default().clone()
    }

    pub(crate) async fn address_place(&self, address: IpAddr) -> Arc<AddressPlace> {
        let address = {
            let mut addresses = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
            if addresses.len() > TABLE {
                addresses.retain(|_, address| Arc::strong_count(address) > 1);
            }
            let limits = &self.limits;
            let fresh = || {
                Arc::new(Address {
                    places: Arc::new(Semaphore::new(limits.address_connections)),
                    known: AtomicBool::new(false),
                    extra: limits.address_connections_with_key.saturating_sub(limits.address_connections),
                })
            };
            addresses.entry(address).or_insert_with(fresh).clone()
        };
        // The semaphore is never closed.
        let permit = address.places.clone().acquire_owned().await.ok();
        Arc::new(AddressPlace { address, _permit: permit })
    }
}

impl AddressPlace {
    /// A valid key came from here.
    pub(crate) fn has_key(&self) {
        if !self.address.known.swap(true, Ordering::Relaxed) {
            self.address.places.add_permits(self.address.extra);
        }
    }
}

/// A body that keeps its request's turn until it ends.
pub(crate) struct Holding {
    body: Body,
    _turn: Turn,
}

impl Holding {
    pub(crate) fn new(body: Body, turn: Turn) -> Self {
        Self { body, _turn: turn }
    }
}

impl HttpBody for Holding {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
