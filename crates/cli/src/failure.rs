//! What a command can end with other than success, and how it is said.

use std::io;

use runtime_api::client::ClientError;
use serde_json::{Value, json};

use crate::args::values::{show_dollars, show_seconds};
use crate::printer::{Printer, plain_lines};
use crate::scan::UsageError;

/// A command's failure. Exit code 1, whatever it is.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error(transparent)]
    Api(#[from] ClientError),
    #[error(transparent)]
    Usage(#[from] UsageError),
    #[error("cannot write the output")]
    Output(#[from] io::Error),
    #[error("{0:#}")]
    Other(#[from] anyhow::Error),
    /// Everything was said already.
    #[error("failed")]
    Said,
}

/// The program reading our output has gone: what it wanted, it has.
pub(crate) const READER_GONE: u8 = 141;

impl Failure {
    /// Says it on stderr; gives the exit code.
    pub(crate) fn tell(&self, printer: Printer) -> u8 {
        match self {
            Self::Said => return 1,
            Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => return READER_GONE,
            _ if printer.json => printer.talk(&self.json().to_string()),
            Self::Api(error) => printer.talk(&human(error)),
            Self::Usage(error) => tell_usage(printer, error),
            Self::Output(error) => printer.talk(&format!("Error: cannot write the output: {error}")),
            Self::Other(error) => printer.talk(&format!("Error: {}", plain_lines(&format!("{error:#}")))),
        }
        1
    }

    fn json(&self) -> Value {
        match self {
            Self::Api(error) => error_json(error),
            Self::Usage(error) => {
                let mut message = error.message.clone();
                if let Some(hint) = &error.hint {
                    message = format!("{message}. {hint}");
                }
                json!({"error": {"code": "cli_error", "message": message}})
            }
            Self::Output(error) => {
                json!({"error": {"code": "cli_error", "message": format!("cannot write the output: {error}")}})
            }
            other => json!({"error": {"code": "cli_error", "message": other.to_string()}}),
        }
    }
}

fn tell_usage(printer: Printer, error: &UsageError) {
    printer.talk(&format!("Error: {}", plain_lines(&error.message)));
    if let Some(hint) = &error.hint {
        printer.talk(&format!("Hint: {}", plain_lines(hint)));
    }
}

/// The error as the JSON that goes to stderr, or into a list of failures.
pub(crate) fn error_json(error: &ClientError) -> Value {
    let mut body = json!({"code": error.code, "status": error.status, "message": message(error)});
    let mut set = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            body[name] = value;
        }
    };
    set("hint", hint(error).map(Value::from));
    set("requestId", error.request_id.clone().map(Value::from));
    set("idempotencyKey", error.idempotency_key.clone().map(Value::from));
    set("details", error.details.clone());
    json!({ "error": body })
}

fn human(error: &ClientError) -> String {
    let mut lines = vec![format!("Error [{}]: {}", error.code, message(error))];
    if let Some(cause) = cause(error) {
        lines.push(format!("Cause: {cause}"));
    }
    if let Some(hint) = hint(error) {
        lines.push(format!("Hint: {hint}"));
    }
    if let Some(id) = &error.request_id {
        lines.push(format!("Request: {id}"));
    }
    if error.status >= 500 && error.status != 501 {
        lines.push(
            "This is the server's fault, not yours. Its log says more under that request id; please report it.".into(),
        );
    }
    plain_lines(&lines.join("\n"))
}

/// The innermost reason: the layers between repeat one another.
fn cause(error: &ClientError) -> Option<String> {
    let mut cause = std::error::Error::source(error)?;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    Some(cause.to_string())
}

fn hint(error: &ClientError) -> Option<String> {
    if let Some(hint) = &error.hint {
        return Some(hint.clone());
    }
    match error.code.as_str() {
        "connection_error" if error.never_opened => {
            Some("Is the server running? Start it with `runtime serve`, or everything with `runtime up`.".into())
        }
        "unauthorized" => Some("The server does not know this key. Check RUNTIME_API_KEY.".into()),
        _ => None,
    }
}

/// The server's words with the options a person typed in place of the fields that were sent.
fn message(error: &ClientError) -> String {
    let issues = error.details.as_ref().and_then(|details| details.get("issues")).and_then(Value::as_array);
    let Some(issues) = issues.filter(|issues| error.code == "invalid_request" && !issues.is_empty()) else {
        return error.message.clone();
    };
    issues.iter().map(issue).collect::<Vec<_>>().join("\n")
}

fn issue(issue: &Value) -> String {
    let path = match issue.get("path") {
        Some(Value::String(path)) => path.clone(),
        Some(Value::Array(parts)) => {
            let part = |part: &Value| part.as_str().map_or_else(|| part.to_string(), str::to_owned);
            parts.iter().map(part).collect::<Vec<_>>().join(".")
        }
        _ => String::new(),
    };
    let text = issue.get("message").and_then(Value::as_str).unwrap_or("is not accepted");
    let text = match path.as_str() {
        path if path.ends_with("Micros") => in_dollars(text),
        path if path.ends_with("Ms") => in_seconds(text),
        _ => text.to_owned(),
    };
    let name = option_name(&path);
    if name.is_empty() { text } else { format!("{name} {text}") }
}

/// The option that a field of a request came from.
fn option_name(path: &str) -> String {
    // `env.A`, `argv[0]`, `argv.0`.
    let (field, rest) = match path.find(['.', '[']) {
        Some(at) => (&path[..at], Some(path[at + 1..].trim_end_matches(']'))),
        None => (path, None),
    };
    let option = match field {
        "name" => "--name",
        "labels" => "--label",
        "env" => "--env",
        "region" => "--region",
        "vcpu" => "--vcpu",
        "memoryMiB" => "--memory",
        "diskMiB" => "--disk",
        "cpu" => "--cpu",
        "cpuFloorMillis" => "--cpu-floor",
        "timeoutSeconds" | "timeoutMs" => "--timeout",
        "ttlSeconds" => "--ttl",
        "origins" => "--origin",
        "port" => "the port",
        "visibility" => "--public",
        "onLeaseEnd" | "onTimeout" => "--on-timeout",
        "idlePauseSeconds" => "--idle-pause",
        "maxCostMicros" => "--max-cost",
        "maxTotalCostMicros" => "--max-total-cost",
        "autoWake" => "--auto-wake",
        "persistent" => "--persistent",
        "getOrCreate" => "--get-or-create",
        "image" => "--image",
        "snapshot" => "--snapshot",
        "volumes" => "--volume",
        "cwd" => "--cwd",
        "label" => "--label",
        "state" => "--state",
        "depth" => "--depth",
        "glob" => "--glob",
        "path" => "the path",
        "hidden" => "--hidden",
        "command" | "argv" => "the command",
        "stdin" | "stdinBase64" => "the input",
        "network" => {
            return match rest.and_then(|rest| rest.split(['.', '[']).next()) {
                Some("allow") => "--allow".into(),
                Some("deny") => "--deny".into(),
                Some("connect") => "--connect".into(),
                _ => "--no-internet".into(),
            };
        }
        _ => return path.to_owned(),
    };
    match rest {
        // Whose label or variable it was; a position in a list says nothing to a person.
        Some(rest) if rest.split(['.', ']']).next().is_none_or(|at| at.parse::<u64>().is_err()) => {
            format!("{option} {rest}")
        }
        _ => option.to_owned(),
    }
}

/// A text about microdollars, in dollars.
fn in_dollars(text: &str) -> String {
    let micros = |micros: u64| i64::try_from(micros).map_or_else(|_| micros.to_string(), show_dollars);
    with_numbers(text, micros).replace("microdollars", "dollars")
}

/// A text about milliseconds, in the seconds that the option takes. It takes whole ones: what is shorter is the first.
fn in_seconds(text: &str) -> String {
    let seconds = |ms: u64| show_seconds(if ms == 0 { 0 } else { ms.max(1000) });
    let text = with_numbers(text, seconds);
    if text.contains("milliseconds") { text.replace("milliseconds", "seconds") } else { format!("{text} (seconds)") }
}

/// Every whole number of a text, as `show` writes it.
fn with_numbers(text: &str, show: impl Fn(u64) -> String) -> String {
    let mut out = String::new();
    let mut digits = String::new();
    for c in text.chars().chain(std::iter::once('\n')) {
        if c.is_ascii_digit() {
            digits.push(c);
            continue;
        }
        if !digits.is_empty() {
            out.push_str(&digits.parse().map_or_else(|_| digits.clone(), &show));
            digits.clear();
        }
        out.push(c);
    }
    out.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_read_as_the_options_that_were_typed() {
        for (path, option) in [
            ("memoryMiB", "--memory"),
            ("timeoutMs", "--timeout"),
            ("ttlSeconds", "--ttl"),
            ("origins[0]", "--origin"),
            ("port", "the port"),
            ("labels.team", "--label team"),
            ("volumes.0", "--volume"),
            ("network.allow.2", "--allow"),
            ("argv.0", "the command"),
            ("argv[0]", "the command"),
            ("env.A", "--env A"),
            ("volumes[1].path", "--volume"),
            ("network.deny[0]", "--deny"),
            ("somethingNew", "somethingNew"),
        ] {
            assert_eq!(option_name(path), option);
        }
        assert_eq!(
            issue(&json!({"path": ["maxTotalCostMicros"], "message": "must be at least 10000"})),
            "--max-total-cost must be at least $0.0100"
        );
        assert_eq!(
            issue(&json!({"path": "timeoutMs", "message": "must be from 1 to 86400000"})),
            "--timeout must be from 1 to 86400 (seconds)"
        );
        assert_eq!(
            issue(&json!({"path": "waitMs", "message": "at most 1500 milliseconds"})),
            "waitMs at most 1.5 seconds"
        );
        assert_eq!(issue(&json!({"message": "the body is empty"})), "the body is empty");
    }
}
