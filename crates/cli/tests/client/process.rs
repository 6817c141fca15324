//! Runs the command line in a child process.

use std::io::Write;
use std::process::{Child, Command, ExitCode, Stdio};

use crate::player::Player;

const WORDS: &str = "RUNTIME_TEST_WORDS";
/// What stands before the program's own output: the test harness has greeted by then.
const BEGIN: &str = "==== the program ====";

/// In a child: the program. Otherwise a test that has nothing to say.
#[test]
#[expect(clippy::disallowed_methods, reason = "the only way to hand words to a test binary")]
fn the_program() {
    let Ok(words) = std::env::var(WORDS) else { return };
    let words: Vec<String> = serde_json::from_str(&words).expect("words");
    println!("{BEGIN}");
    let code = match runtime_cli::parse_from(&words) {
        runtime_cli::Parsed::Client(command) => runtime_cli::run(command),
        runtime_cli::Parsed::Done(code) => code,
        runtime_cli::Parsed::Local { .. } => panic!("not a client's command"),
    };
    // The code cannot be read back; its text form holds it.
    let code: i32 = if code == ExitCode::SUCCESS {
        0
    } else {
        format!("{code:?}").chars().filter(char::is_ascii_digit).collect::<String>().parse().expect("a number")
    };
    std::process::exit(code);
}

/// What a command line came to.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

pub(crate) fn start(player: &Player, words: &[&str], input: Stdio) -> Child {
    Command::new(std::env::current_exe().expect("this program"))
        .args(["process::the_program", "--exact", "--nocapture", "--quiet"])
        .env(WORDS, serde_json::to_string(words).expect("words"))
        .env("RUNTIME_API_URL", player.url())
        .env("RUNTIME_API_KEY", "rtcloud_test")
        // Nothing of the machine that tests may show through, and a loopback server needs no proxy.
        .env("HOME", "/nonexistent")
        .env("HTTP_PROXY", "http://127.0.0.1:1")
        .env("http_proxy", "http://127.0.0.1:1")
        .env_remove("XDG_DATA_HOME")
        .stdin(input)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program")
}

pub(crate) fn end(child: Child) -> Ran {
    let output = child.wait_with_output().expect("the program's end");
    let out = String::from_utf8(output.stdout).expect("text");
    let (_, out) = out.split_once(&format!("{BEGIN}\n")).expect("the program began");
    Ran {
        code: output.status.code().expect("a code"),
        out: out.to_owned(),
        err: String::from_utf8(output.stderr).expect("text"),
    }
}

pub(crate) fn ran(player: &Player, words: &[&str]) -> Ran {
    end(start(player, words, Stdio::null()))
}

pub(crate) fn ran_with_input(player: &Player, words: &[&str], input: &[u8]) -> Ran {
    let (reader, mut writer) = std::io::pipe().expect("a pipe");
    // Its beginning is there before the program is: a pipe that says nothing for a moment is no input.
    let (first, rest) = input.split_at(input.len().min(4096));
    writer.write_all(first).expect("the input");
    let child = start(player, words, reader.into());
    writer.write_all(rest).expect("the input");
    drop(writer);
    end(child)
}
