//! What an agent tells, in the words of the API. A guest may lie: no number or text from it may break the answer.

use chrono::{DateTime, SecondsFormat, Utc};
use runtime_api::exec::{CommandUser, ExitEvent, OutOfMemory, TracedFiles};
use runtime_api::file::{FileEntry, FileType};
use runtime_api::process::{OutputEncoding, ProcessInfo, ProcessState};
use runtime_proto::guest;

/// Characters of a command line that are shown.
const COMMAND_SHOWN: usize = 256;

pub(crate) fn user(user: CommandUser) -> guest::User {
    match user {
        CommandUser::Sandbox => guest::User::Sandbox,
        CommandUser::Root => guest::User::Root,
    }
}

pub(crate) fn process(process: guest::Process, memory_mib: u64) -> ProcessInfo {
    let state = state(&process);
    ProcessInfo {
        kind: "process".to_owned(),
        state,
        exit_code: if state == ProcessState::Running { None } else { exit_code(&process) },
        command: shown(process.command),
        cwd: process.cwd,
        user: match guest::User::try_from(process.user) {
            Ok(guest::User::Root) => CommandUser::Root,
            Ok(guest::User::Sandbox) | Err(_) => CommandUser::Sandbox,
        },
        pid: process.pid,
        pty: process.pty,
        stdin_open: process.stdin_open,
        stdin_offset: process.stdin_offset,
        output_encoding: if process.binary { OutputEncoding::Base64 } else { OutputEncoding::Utf8 },
        started_at: nanos(process.started_at),
        ended_at: process.ended_at.map(nanos),
        timeout_ms: (process.timeout_ms > 0).then_some(process.timeout_ms),
        output_bytes: process.output_bytes,
        first_offset: process.first_offset,
        out_of_memory: out_of_memory(process.oom_kills, memory_mib),
        replayed: false,
        id: process.id,
    }
}

/// The last event of a stream.
pub(crate) fn exit(process: &guest::Process, memory_mib: u64, files: Option<TracedFiles>) -> ExitEvent {
    let state = state(process);
    ExitEvent {
        exit_code: exit_code(process),
        state,
        timed_out: state == ProcessState::TimedOut,
        duration_ms: Some(process.duration_ms),
        out_of_memory: out_of_memory(process.oom_kills, memory_mib),
        files,
    }
}

pub(crate) fn state(process: &guest::Process) -> ProcessState {
    match guest::ProcessState::try_from(process.state) {
        Ok(guest::ProcessState::Running) => ProcessState::Running,
        Ok(guest::ProcessState::Exited) => ProcessState::Exited,
        Ok(guest::ProcessState::Killed) => ProcessState::Killed,
        Ok(guest::ProcessState::TimedOut) => ProcessState::TimedOut,
        Ok(guest::ProcessState::Unknown) | Err(_) => ProcessState::Unknown,
    }
}

/// A command whose time was up was killed, whatever its shell made of that.
pub(crate) fn exit_code(process: &guest::Process) -> Option<i32> {
    if state(process) == ProcessState::TimedOut { Some(-9) } else { process.exit_code }
}

pub(crate) fn out_of_memory(killed: u32, memory_mib: u64) -> Option<OutOfMemory> {
    (killed > 0).then(|| OutOfMemory {
        code: "out_of_memory".to_owned(),
        processes_killed: killed,
        memory_mib,
        message: format!(
            "The sandbox ran out of its {memory_mib} MiB of memory and {killed} of the command's processes were ended."
        ),
        hint: "Create the sandbox with a larger memoryMiB, or have the command use less.".to_owned(),
    })
}

pub(crate) fn file(file: guest::FileInfo) -> FileEntry {
    FileEntry {
        name: file.path.rsplit('/').find(|part| !part.is_empty()).unwrap_or("/").to_owned(),
        kind: match guest::FileKind::try_from(file.kind) {
            Ok(guest::FileKind::File) => FileType::File,
            Ok(guest::FileKind::Directory) => FileType::Directory,
            Ok(guest::FileKind::Symlink) => FileType::Symlink,
            Ok(guest::FileKind::Other) | Err(_) => FileType::Other,
        },
        size: file.size,
        mode: format!("{:04o}", file.mode & 0o7777),
        modified_at: moment(DateTime::from_timestamp_millis(file.mtime_ms)),
        mtime_ms: file.mtime_ms,
        uid: file.uid,
        gid: file.gid,
        owner: file.owner,
        group: file.group,
        symlink_target: file.symlink_target,
        path: file.path,
    }
}

fn nanos(since_epoch: u64) -> String {
    moment(Some(DateTime::from_timestamp_nanos(i64::try_from(since_epoch).unwrap_or(i64::MAX))))
}

/// Three digits of a second, always; a time no calendar has is the epoch.
fn moment(time: Option<DateTime<Utc>>) -> String {
    let in_calendar = |time: &DateTime<Utc>| (0..253_402_300_800).contains(&time.timestamp());
    time.filter(in_calendar).unwrap_or_default().to_rfc3339_opts(SecondsFormat::Millis, true)
}

fn shown(mut command: String) -> String {
    if let Some((end, _)) = command.char_indices().nth(COMMAND_SHOWN) {
        command.truncate(end);
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(state: guest::ProcessState, code: Option<i32>) -> guest::Process {
        guest::Process { id: "p".to_owned(), state: state as i32, exit_code: code, ..Default::default() }
    }

    #[test]
    fn ends_are_told_as_the_contract_says() {
        use guest::ProcessState as S;
        for (from, code, state, shown) in [
            (S::Exited, Some(3), ProcessState::Exited, Some(3)),
            (S::Exited, Some(-15), ProcessState::Exited, Some(-15)),
            (S::Killed, Some(-9), ProcessState::Killed, Some(-9)),
            (S::TimedOut, Some(-9), ProcessState::TimedOut, Some(-9)),
            (S::TimedOut, None, ProcessState::TimedOut, Some(-9)),
            (S::Running, Some(1), ProcessState::Running, None),
            (S::Unknown, None, ProcessState::Unknown, None),
        ] {
            let info = process(ended(from, code), 512);
            assert_eq!((info.state, info.exit_code), (state, shown), "{from:?} {code:?}");
            assert_eq!(exit(&ended(from, code), 512, None).timed_out, from == S::TimedOut);
        }
    }

    #[test]
    fn times_have_three_digits_and_survive_a_lying_guest() {
        let mut told = ended(guest::ProcessState::Exited, Some(0));
        told.started_at = 1_760_000_000_123_456_789;
        told.ended_at = Some(u64::MAX);
        let info = process(told, 1);
        assert_eq!(info.started_at, "2025-10-09T08:53:20.123Z");
        assert_eq!(info.ended_at.as_deref().map(str::len), Some(24));
        for mtime_ms in [i64::MIN, -1, 0, i64::MAX] {
            let entry = file(guest::FileInfo { mtime_ms, ..Default::default() });
            assert_eq!(entry.modified_at.len(), 24, "{mtime_ms}");
            assert_eq!(entry.mtime_ms, mtime_ms);
        }
    }

    #[test]
    fn a_long_command_is_cut_by_characters() {
        let mut told = ended(guest::ProcessState::Exited, Some(0));
        told.command = "é".repeat(300);
        assert_eq!(process(told, 1).command, "é".repeat(256));
    }

    #[test]
    fn names_and_modes_of_files() {
        for (path, name) in [("/", "/"), ("/a", "a"), ("/a/b.txt", "b.txt"), ("/a/", "a"), ("", "/")] {
            assert_eq!(file(guest::FileInfo { path: path.to_owned(), ..Default::default() }).name, name);
        }
        assert_eq!(file(guest::FileInfo { mode: 0o100_644, ..Default::default() }).mode, "0644");
        assert_eq!(file(guest::FileInfo { mode: 0o104_755, ..Default::default() }).mode, "4755");
    }

    #[test]
    fn out_of_memory_names_the_size() {
        assert_eq!(out_of_memory(0, 512), None);
        let told = out_of_memory(2, 512).unwrap();
        assert_eq!((told.code.as_str(), told.processes_killed, told.memory_mib), ("out_of_memory", 2, 512));
        assert!(told.message.contains("512 MiB"));
    }
}
