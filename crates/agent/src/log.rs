//! Lines for people on standard error, which the host keeps as a file: few, and nothing secret.

use std::io::Write;
use std::sync::Mutex;
use std::time::{Duration, Instant};

const LINES_PER_SECOND: u32 = 20;

static WINDOW: Mutex<Option<(Instant, u32)>> = Mutex::new(None);

pub(crate) fn line(text: std::fmt::Arguments<'_>) {
    let Ok(mut window) = WINDOW.lock() else { return };
    let now = Instant::now();
    let (start, count) = match *window {
        Some((start, count)) if now - start < Duration::from_secs(1) => (start, count + 1),
        _ => (now, 1),
    };
    *window = Some((start, count));
    if count <= LINES_PER_SECOND {
        let _ = writeln!(std::io::stderr(), "agent: {text}");
    }
}

macro_rules! log {
    ($($part:tt)*) => { $crate::log::line(format_args!($($part)*)) };
}
pub(crate) use log;
