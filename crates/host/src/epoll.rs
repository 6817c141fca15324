//! Events of descriptors that are watched, and of no others.
//!
//! An event carries what it was registered with, which in this program is an address. Under gVisor (`runsc` 20240729) a
//! machine that comes back from its saved memory looks at every registration that is still referred to anywhere, those
//! that were taken back among them, and tells of these too. What lay at such an address is freed: the agent then waited
//! for ever for a lock made of old bytes, and each wake from that memory met the same.
//!
//! So this program's `epoll_ctl` and `epoll_wait` stand before those of the C library. Once [`only_watched`] was called, a
//! registration is given a number that is never used again, and an event whose number is not of a registration that
//! stands is dropped.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use libc::{c_int, epoll_event};

static ON: AtomicBool = AtomicBool::new(false);
static WATCHED: Mutex<Option<Watched>> = Mutex::new(None);

/// From now on; to be called before the first registration.
pub fn only_watched() {
    *WATCHED.lock().unwrap_or_else(PoisonError::into_inner) = Some(Watched::default());
    ON.store(true, Ordering::Release);
}

#[derive(Default)]
struct Watched {
    last: u64,
    /// The number of what is watched where.
    numbers: HashMap<(c_int, c_int), u64>,
    /// What was registered under each number.
    data: HashMap<u64, u64>,
}

impl Watched {
    /// The number to register with in place of the data.
    fn fresh(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    fn put(&mut self, place: (c_int, c_int), number: u64, data: u64) {
        if let Some(old) = self.numbers.insert(place, number) {
            self.data.remove(&old);
        }
        self.data.insert(number, data);
    }

    fn take(&mut self, place: (c_int, c_int)) {
        if let Some(old) = self.numbers.remove(&place) {
            self.data.remove(&old);
        }
    }

    /// Moves the events of what is watched to the front, with their data; how many they are.
    fn keep(&self, events: &mut [epoll_event]) -> usize {
        let mut kept = 0;
        for at in 0..events.len() {
            let event = events[at];
            if let Some(data) = self.data.get(&{ event.u64 }) {
                events[kept] = epoll_event { events: event.events, u64: *data };
                kept += 1;
            }
        }
        kept
    }
}

fn control(epoll: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    // SAFETY: the arguments are the caller's, who promises for the library's function what the kernel wants.
    let result = unsafe { libc::syscall(libc::SYS_epoll_ctl, epoll, operation, fd, event) };
    c_int::try_from(result).unwrap_or(-1)
}

/// In place of the C library's.
///
/// # Safety
/// As for the library's: `event` is null or points to an event.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_ctl(epoll: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    if !ON.load(Ordering::Acquire) {
        return control(epoll, operation, fd, event);
    }
    let mut watched = WATCHED.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(watched) = watched.as_mut() else { return control(epoll, operation, fd, event) };
    let place = (epoll, fd);
    if operation == libc::EPOLL_CTL_DEL || event.is_null() {
        watched.take(place);
        return control(epoll, operation, fd, event);
    }
    // SAFETY: it is not null, and the caller promises that it is an event then.
    let wanted = unsafe { event.read() };
    let number = watched.fresh();
    let mut numbered = epoll_event { events: wanted.events, u64: number };
    let result = control(epoll, operation, fd, &raw mut numbered);
    if result == 0 {
        watched.put(place, number, wanted.u64);
    }
    result
}

/// In place of the C library's.
///
/// # Safety
/// As for the library's: `events` points to room for `most` events.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_wait(epoll: c_int, events: *mut epoll_event, most: c_int, wait_ms: c_int) -> c_int {
    // SAFETY: as above; without a set of signals the call is `epoll_wait`.
    let result = unsafe {
        libc::syscall(libc::SYS_epoll_pwait, epoll, events, most, wait_ms, std::ptr::null::<libc::sigset_t>(), 8_usize)
    };
    let count = c_int::try_from(result).unwrap_or(-1);
    let Ok(told) = usize::try_from(count) else { return count };
    if told == 0 || !ON.load(Ordering::Acquire) {
        return count;
    }
    // SAFETY: the kernel has written so many, at most as many as there is room for.
    let told = unsafe { std::slice::from_raw_parts_mut(events, told) };
    let watched = WATCHED.lock().unwrap_or_else(PoisonError::into_inner);
    let kept = watched.as_ref().map_or(told.len(), |watched| watched.keep(told));
    c_int::try_from(kept).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_of_what_is_not_watched_any_more_is_dropped() {
        let mut watched = Watched::default();
        let (first, second) = (watched.fresh(), watched.fresh());
        watched.put((3, 10), first, 0xaaaa);
        watched.put((3, 11), second, 0xbbbb);
        let told = |numbers: &[u64]| numbers.iter().map(|u64| epoll_event { events: 1, u64: *u64 }).collect::<Vec<_>>();
        let kept = |watched: &Watched, numbers: &[u64]| {
            let mut events = told(numbers);
            let count = watched.keep(&mut events);
            events[..count].iter().map(|event| event.u64).collect::<Vec<_>>()
        };
        assert_eq!(kept(&watched, &[first, second]), [0xaaaa, 0xbbbb]);
        watched.take((3, 10));
        assert_eq!(kept(&watched, &[first, second, 77]), [0xbbbb]);
        // The same place and the same address again: still not the one of before.
        let third = watched.fresh();
        watched.put((3, 10), third, 0xaaaa);
        assert_eq!(kept(&watched, &[first, third]), [0xaaaa]);
        // Changed in place: the number of before is none.
        let fourth = watched.fresh();
        watched.put((3, 11), fourth, 0xcccc);
        assert_eq!(kept(&watched, &[second, fourth]), [0xcccc]);
        assert_eq!(watched.data.len(), 2);
    }
}
