//! What a caller wants to run: every field checked, then turned into the agent's words.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use chrono::{DateTime, Utc};
use runtime_api::exec::CommandUser;
use runtime_proto::guest;
use runtime_store::{SandboxRow, UserKind};
use serde_json::{Value, json};

use super::convert;
use crate::error::{ApiError, Issue, Kind};
use crate::fields::{Checked, Fields, Given, absolute_path, boolean, int, list, one_of};
use crate::sandboxes::{check_env, env_map};
use crate::{AppState, Caller};

/// Text of a command line, which the agent takes apart for the kernel.
pub(super) const COMMAND_BYTES: usize = 1024 * 1024;
/// Text of one argument: what the kernel takes (MAX_ARG_STRLEN: 32 pages, the closing NUL among it).
const ARGUMENT_BYTES: usize = 128 * 1024 - 1;
const ARGUMENTS: usize = 4096;
/// All arguments together, so that the whole request stays within what an agent accepts.
const ALL_ARGUMENTS_BYTES: usize = 2 * 1024 * 1024;
const ENV_VARS: usize = 64;
const ENV_BYTES: usize = 128 * 1024;
/// Input given with the command.
pub(crate) const STDIN_BYTES: usize = 1024 * 1024;
const DEFAULT_TIMEOUT_MS: u64 = 60_000;
const LONGEST_TIMEOUT_MS: u64 = 86_400_000;

pub(crate) const USERS: &[(&str, CommandUser)] = &[("sandbox", CommandUser::Sandbox), ("root", CommandUser::Root)];

/// A command as asked for, every field within its limits.
#[derive(Debug, Default)]
pub(crate) struct Wanted {
    shell: Option<String>,
    argv: Vec<String>,
    cwd: String,
    user: Option<CommandUser>,
    env: BTreeMap<String, String>,
    pub(crate) stdin: Option<Bytes>,
    timeout_ms: Option<u64>,
    pub(crate) trace_files: bool,
}

/// What the sandbox lends to its commands.
#[derive(Debug, Clone)]
pub(crate) struct Surroundings {
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) user: CommandUser,
    pub(crate) ends_at: Option<DateTime<Utc>>,
    /// All the time it was given; 0: without end.
    pub(crate) whole_ms: u64,
}

impl Surroundings {
    pub(crate) fn of(row: &SandboxRow) -> Self {
        Self {
            env: row.env.0.clone(),
            user: match row.user {
                UserKind::Sandbox => CommandUser::Sandbox,
                UserKind::Root => CommandUser::Root,
            },
            ends_at: row.ends_at.and_then(DateTime::from_timestamp_millis),
            whole_ms: u64::from(row.timeout_seconds) * 1000,
        }
    }
}

impl Wanted {
    /// Reads the fields that exec and processes share. The caller reads its own, then calls [`Fields::finish`], then
    /// [`Wanted::check`].
    pub(crate) fn read(fields: &mut Fields) -> Self {
        let (has_command, has_argv) = (fields.has("command"), fields.has("argv"));
        match (has_command, has_argv) {
            (false, false) => fields.wrong("command", "is required, or argv"),
            (true, true) => fields.wrong("argv", "must not be given together with command"),
            _ => {}
        }
        if fields.has("stdin") && fields.has("stdinBase64") {
            fields.wrong("stdinBase64", "must not be given together with stdin");
        }
        let stdin = fields.opt("stdin", plain_input);
        let encoded = fields.opt("stdinBase64", base64_input);
        let argv = fields.opt("argv", list(1..=ARGUMENTS, program_text(ARGUMENT_BYTES))).unwrap_or_default();
        if argv.first().is_some_and(String::is_empty) {
            fields.wrong("argv[0]", "must not be empty");
        }
        if argv.iter().map(String::len).sum::<usize>() > ALL_ARGUMENTS_BYTES {
            fields.wrong("argv", format!("must have at most {ALL_ARGUMENTS_BYTES} bytes in all"));
        }
        Self {
            shell: fields.opt("command", program_text(COMMAND_BYTES)),
            argv,
            cwd: fields.opt("cwd", absolute_path()).unwrap_or_default(),
            user: fields.opt("user", one_of(USERS)),
            env: fields.opt("env", env_map).unwrap_or_default(),
            stdin: stdin.or(encoded),
            timeout_ms: fields.opt("timeoutMs", int(1..=LONGEST_TIMEOUT_MS)),
            trace_files: fields.opt("traceFiles", boolean).unwrap_or(false),
        }
    }

    /// A shell line for a terminal.
    pub(crate) fn line(shell: String, cwd: Option<String>, user: Option<CommandUser>) -> Self {
        Self { shell: Some(shell), cwd: cwd.unwrap_or_default(), user, ..Self::default() }
    }

    /// What is refused under codes of its own, after the fields themselves were found right.
    pub(crate) fn check(&self) -> Result<(), ApiError> {
        check_env(&self.env, ENV_VARS, ENV_BYTES)
    }

    /// Refuses a time that the sandbox does not have, before anything wakes it.
    pub(crate) async fn check_time(&self, app: &AppState, caller: &Caller, id: &str) -> Result<(), ApiError> {
        if self.timeout_ms.is_none_or(|wanted| wanted == LONGEST_TIMEOUT_MS) {
            return Ok(());
        }
        let row = app.reach(caller, id).await?.row()?;
        self.exec_timeout_ms(&Surroundings::of(&row), Utc::now()).map(drop)
    }

    /// For an exec: a minute if nothing is said, and never refused for that.
    pub(crate) fn exec_timeout_ms(&self, around: &Surroundings, now: DateTime<Utc>) -> Result<u64, ApiError> {
        let wanted = self.timeout_ms.unwrap_or(DEFAULT_TIMEOUT_MS);
        match left_ms(around, now) {
            Some(left) if self.is_explicit(around) && wanted > left => Err(too_short(wanted, left)),
            Some(left) => Ok(wanted.min(left.max(1))),
            None => Ok(wanted),
        }
    }

    /// For a process: none (0) if nothing is said.
    pub(crate) fn process_timeout_ms(&self, around: &Surroundings, now: DateTime<Utc>) -> Result<u64, ApiError> {
        match (self.timeout_ms, left_ms(around, now)) {
            (Some(wanted), Some(left)) if self.is_explicit(around) && wanted > left => Err(too_short(wanted, left)),
            (wanted, _) => Ok(wanted.unwrap_or(0)),
        }
    }

    /// A day is what clients send when they mean no limit: it is not held against a sandbox that ends sooner. Nor is the
    /// very time that the sandbox was given: who gives both the same means "as long as it lives", and is always late by
    /// the time that the start took.
    fn is_explicit(&self, around: &Surroundings) -> bool {
        self.timeout_ms.is_some_and(|wanted| wanted != LONGEST_TIMEOUT_MS && wanted != around.whole_ms)
    }

    /// The agent's words. `key` makes a second asking find the first process.
    pub(crate) fn into_command(
        self,
        around: &Surroundings,
        timeout_ms: u64,
        key: String,
        process_id: String,
    ) -> guest::Command {
        let mut env = around.env.clone();
        env.extend(self.env);
        guest::Command {
            shell: self.shell,
            argv: self.argv,
            cwd: self.cwd,
            user: convert::user(self.user.unwrap_or(around.user)) as i32,
            env: env.into_iter().map(|(name, value)| guest::EnvVar { name, value }).collect(),
            timeout_ms,
            key,
            process_id,
            trace_files: self.trace_files,
        }
    }
}

fn left_ms(around: &Surroundings, now: DateTime<Utc>) -> Option<u64> {
    around.ends_at.map(|end| u64::try_from((end - now).num_milliseconds()).unwrap_or(0))
}

fn too_short(wanted: u64, left: u64) -> ApiError {
    let seconds = left / 1000;
    ApiError::new(
        Kind::TimeLimitTooShort,
        format!("timeoutMs asks for {wanted} ms, but the sandbox reaches its time limit in {seconds} s."),
    )
    .hint("Ask for less, leave timeoutMs out, or extend the sandbox first.")
    .details(json!({ "secondsLeft": seconds }))
}

fn issue<T>(message: impl Into<String>) -> Checked<T> {
    Err(vec![Issue::new("", message)])
}

fn any_text(given: Given<'_>) -> Checked<String> {
    match given.value {
        Value::String(text) => Ok(text.clone()),
        _ => issue("must be text"),
    }
}

pub(super) fn program_text(most: usize) -> impl Fn(Given<'_>) -> Checked<String> {
    move |given| {
        let text = any_text(given)?;
        if text.contains('\0') {
            return issue("must not contain a NUL");
        }
        if text.len() > most {
            return issue(format!("must have at most {most} bytes"));
        }
        Ok(text)
    }
}

pub(crate) fn plain_input(given: Given<'_>) -> Checked<Bytes> {
    within(any_text(given)?.into_bytes())
}

pub(crate) fn base64_input(given: Given<'_>) -> Checked<Bytes> {
    let text = any_text(given)?;
    // Refused before it is decoded: four letters carry three bytes.
    if text.len() / 4 > STDIN_BYTES / 3 + 1 {
        return within(vec![0; STDIN_BYTES + 1]);
    }
    match STANDARD.decode(text.as_bytes()) {
        Ok(bytes) => within(bytes),
        Err(_) => issue("must be base64"),
    }
}

fn within(bytes: Vec<u8>) -> Checked<Bytes> {
    if bytes.len() > STDIN_BYTES {
        return issue(format!("must have at most {STDIN_BYTES} bytes"));
    }
    Ok(bytes.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use chrono::TimeDelta;

    fn read(body: Value) -> Result<Wanted, ApiError> {
        let mut fields = Fields::body(body.to_string().as_bytes())?;
        let wanted = Wanted::read(&mut fields);
        fields.finish()?;
        wanted.check()?;
        Ok(wanted)
    }

    fn around(ends_at: Option<DateTime<Utc>>) -> Surroundings {
        let env = BTreeMap::from([("A".to_owned(), "box".to_owned()), ("B".to_owned(), "box".to_owned())]);
        Surroundings { env, user: CommandUser::Root, ends_at, whole_ms: 15_000 }
    }

    fn refused(body: Value) -> (Kind, String) {
        let error = read(body).expect_err("accepted");
        (error.kind(), error.envelope("r")["error"].to_string())
    }

    #[test]
    fn every_wrong_field_is_named_at_once() {
        let (kind, text) = refused(json!({
            "command": "x", "argv": [""], "cwd": "rel", "user": "me", "env": {"A": 1}, "timeoutMs": 0,
            "stdin": 4, "stdinBase64": "!", "no": 1,
        }));
        assert_eq!(kind, Kind::InvalidRequest);
        for path in ["argv", "argv[0]", "cwd", "user", "env.A", "timeoutMs", "stdin", "stdinBase64", "no"] {
            assert!(text.contains(&format!("\"path\":\"{path}\"")), "{path} is not named in {text}");
        }
    }

    #[test]
    fn what_is_refused_and_under_which_code() {
        let many: BTreeMap<String, String> = (0..65).map(|n| (format!("V{n}"), String::new())).collect();
        let heavy: BTreeMap<String, String> = (0..5).map(|n| (format!("V{n}"), "x".repeat(30_000))).collect();
        for (body, kind) in [
            (json!({}), Kind::InvalidRequest),
            (json!({"command": null}), Kind::InvalidRequest),
            (json!({"argv": []}), Kind::InvalidRequest),
            (json!({"argv": ["a\0"]}), Kind::InvalidRequest),
            (json!({"command": "a\0b"}), Kind::InvalidRequest),
            (json!({"command": "a", "cwd": "/a\0"}), Kind::InvalidRequest),
            (json!({"command": "a", "timeoutMs": 86_400_001_u64}), Kind::InvalidRequest),
            (json!({"command": "a", "timeoutMs": 1.5}), Kind::InvalidRequest),
            (json!({"command": "a", "stdin": "x".repeat(STDIN_BYTES + 1)}), Kind::InvalidRequest),
            (json!({"command": "a", "stdinBase64": "A".repeat(2 << 20)}), Kind::InvalidRequest),
            (json!({"command": "a".repeat(COMMAND_BYTES + 1)}), Kind::InvalidRequest),
            (json!({"argv": ["x", "x".repeat(ARGUMENT_BYTES + 1)]}), Kind::InvalidRequest),
            (json!({"argv": vec!["x".repeat(ARGUMENT_BYTES); 17]}), Kind::InvalidRequest),
            (json!({"command": "a", "env": {"1A": "x"}}), Kind::InvalidEnv),
            (json!({"command": "a", "env": {"": "x"}}), Kind::InvalidEnv),
            (json!({"command": "a", "env": {"A=B": "x"}}), Kind::InvalidEnv),
            (json!({"command": "a", "env": {"A": "x\0"}}), Kind::InvalidEnv),
            (json!({"command": "a", "env": many}), Kind::EnvTooLarge),
            (json!({"command": "a", "env": heavy}), Kind::EnvTooLarge),
            (json!({"command": "a", "traceFiles": "yes"}), Kind::InvalidRequest),
        ] {
            let short: String = body.to_string().chars().take(80).collect();
            assert_eq!(refused(body).0, kind, "{short}");
        }
    }

    #[test]
    fn what_clients_send_is_taken() {
        let env: BTreeMap<String, String> = (0..60).map(|n| (format!("V{n}"), "x".repeat(1_900))).collect();
        read(json!({"command": "a".repeat(128 * 1024), "env": env})).unwrap();
        read(json!({"argv": vec!["x".repeat(16_000); 100], "stdin": "a\0b"})).unwrap();
        read(json!({"command": "a", "stdinBase64": STANDARD.encode(vec![7; 768 * 1024]), "traceFiles": false}))
            .unwrap();
        let wanted = read(json!({"command": "", "stdin": "x".repeat(STDIN_BYTES)})).unwrap();
        assert_eq!(wanted.stdin.unwrap().len(), STDIN_BYTES);
    }

    #[test]
    fn the_time_a_command_gets() {
        let now = Utc::now();
        let limited = around(Some(now + TimeDelta::seconds(10)));
        let free = around(None);
        let exec = |ms: Option<u64>, around: &Surroundings| {
            let wanted = Wanted { timeout_ms: ms, ..Wanted::default() };
            wanted.exec_timeout_ms(around, now).map_err(|error| error.kind())
        };
        assert_eq!(exec(None, &free), Ok(60_000));
        assert_eq!(exec(None, &limited), Ok(10_000));
        assert_eq!(exec(Some(9_000), &limited), Ok(9_000));
        assert_eq!(exec(Some(11_000), &limited), Err(Kind::TimeLimitTooShort));
        assert_eq!(exec(Some(86_400_000), &limited), Ok(10_000));
        assert_eq!(exec(Some(15_000), &limited), Ok(10_000));
        assert_eq!(exec(Some(14_999), &limited), Err(Kind::TimeLimitTooShort));
        assert_eq!(exec(Some(86_400_000), &free), Ok(86_400_000));
        assert_eq!(exec(None, &around(Some(now - TimeDelta::seconds(1)))), Ok(1));
        let process = |ms: Option<u64>| {
            let wanted = Wanted { timeout_ms: ms, ..Wanted::default() };
            wanted.process_timeout_ms(&limited, now).map_err(|error| error.kind())
        };
        assert_eq!(process(None), Ok(0));
        assert_eq!(process(Some(11_000)), Err(Kind::TimeLimitTooShort));
        assert_eq!(process(Some(86_400_000)), Ok(86_400_000));
        assert_eq!(process(Some(15_000)), Ok(15_000));
    }

    #[test]
    fn the_commands_own_variables_and_user_win() {
        let wanted = read(json!({"command": "x", "user": "sandbox", "env": {"B": "own"}})).unwrap();
        let command = wanted.into_command(&around(None), 5, "k".to_owned(), "p".to_owned());
        let env: Vec<(&str, &str)> = command.env.iter().map(|v| (v.name.as_str(), v.value.as_str())).collect();
        assert_eq!(env, [("A", "box"), ("B", "own")]);
        assert_eq!(command.user, guest::User::Sandbox as i32);
        let command =
            read(json!({"argv": ["x"]})).unwrap().into_command(&around(None), 5, String::new(), String::new());
        assert_eq!((command.user, command.shell, command.cwd.as_str()), (guest::User::Root as i32, None, ""));
    }
}
