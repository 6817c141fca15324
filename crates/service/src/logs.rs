//! Logs go to stderr, as text for a person or as one JSON object per line for a collector.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};

/// How lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    #[default]
    Text,
    Json,
}

/// What to log and how.
#[derive(Debug, Clone, Default)]
pub struct LogOptions {
    /// Directives such as `info` or `warn,runtime_engine=debug`; `info` when nothing is given.
    pub filter: Option<String>,
    pub format: Format,
}

#[derive(Debug, thiserror::Error)]
pub enum LogError {
    #[error("cannot read the log filter {filter:?}")]
    Filter {
        filter: String,
        #[source]
        source: ParseError,
    },
    #[error("logs were already set up in this process")]
    Twice(#[source] TryInitError),
}

/// Installs the process's one subscriber.
pub fn init(options: &LogOptions) -> Result<(), LogError> {
    let directives = options.filter.as_deref().unwrap_or("info");
    let filter = EnvFilter::builder()
        .parse(directives)
        .map_err(|source| LogError::Filter { filter: directives.to_owned(), source })?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match options.format {
        Format::Text => builder.with_ansi(std::io::stderr().is_terminal()).finish().try_init(),
        Format::Json => builder.json().flatten_event(true).finish().try_init(),
    }
    .map_err(LogError::Twice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_that_cannot_be_read_is_named() {
        let options = LogOptions { filter: Some("runtime=loudly".into()), format: Format::Text };
        let error = init(&options).expect_err("not a level");
        assert_eq!(error.to_string(), "cannot read the log filter \"runtime=loudly\"");
    }
}
