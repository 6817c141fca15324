//! Reads the typed words before clap does, so that what is refused is refused before any request and in our words:
//! options nobody knows (with the likely one), a value that is missing, verbs that do not exist, moved, or are not in this
//! version. Asking for help wins over every mistake. What is left goes to clap in one spelling.

use clap::{Arg, ArgAction, Command};

use crate::likely::likely;
use crate::vocabulary::{MOVED_UNDER_SANDBOXES, NOT_BUILT, NOT_BUILT_SANDBOX_VERBS};

/// What the words amount to.
#[derive(Debug)]
pub(crate) enum Scanned {
    /// Nothing was typed.
    Overview,
    Version,
    /// Help for a command, by its path below the program.
    Help(Vec<String>),
    /// Words for clap, the program's name first.
    Words(Vec<String>),
    Refused(UsageError),
}

/// A mistake in what was typed; nothing was sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct UsageError {
    pub message: String,
    pub hint: Option<String>,
}

impl UsageError {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), hint: None }
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

/// Whether the answer, and a mistake, shall be JSON: the last `--json` before `--` decides.
pub(crate) fn wants_json(words: &[String]) -> bool {
    words
        .iter()
        .take_while(|word| *word != "--")
        .filter_map(|word| match word.as_str() {
            "--json" | "--json=true" => Some(true),
            "--json=false" => Some(false),
            _ => None,
        })
        .last()
        .unwrap_or(false)
}

/// `words` without the program's name.
pub(crate) fn scan(words: &[String], tree: &Command) -> Scanned {
    let before = words.iter().position(|word| word == "--").unwrap_or(words.len());
    let mut scan = Scan { command: tree, path: Vec::new(), out: vec!["runtime".into()], mistake: None, settled: false };
    let help = scan.read(&words[..before]);
    match (help, scan.mistake) {
        (Asked::Help(path), None | Some(_)) => return Scanned::Help(path),
        (_, Some(mistake)) => return Scanned::Refused(mistake),
        (Asked::Version, None) => return Scanned::Version,
        (Asked::Nothing, None) => {}
    }
    if scan.path.is_empty() {
        if before == words.len() {
            return Scanned::Overview;
        }
        return Scanned::Refused(UsageError::new("a command line cannot begin with `--`").hint("See: runtime help"));
    }
    if scan.command.has_subcommands() && !takes_words(scan.command) {
        let verbs: Vec<&str> = scan.command.get_subcommands().map(Command::get_name).collect();
        let name = full_name(&scan.path);
        return Scanned::Refused(
            UsageError::new(format!("`{name}` needs a verb: {}", verbs.join(", "))).hint(format!("See: {name} help")),
        );
    }
    scan.out.extend_from_slice(&words[before..]);
    Scanned::Words(scan.out)
}

/// What was asked for besides running a command.
enum Asked {
    Nothing,
    Help(Vec<String>),
    Version,
}

struct Scan<'a> {
    command: &'a Command,
    path: Vec<String>,
    out: Vec<String>,
    /// The first one; reading goes on, since help may still be asked for.
    mistake: Option<UsageError>,
    /// A word was none of the verbs, where it need not be one: no verb follows.
    settled: bool,
}

impl Scan<'_> {
    fn read(&mut self, words: &[String]) -> Asked {
        let mut asked = Asked::Nothing;
        let mut rest = words.iter();
        while let Some(word) = rest.next() {
            if word == "--help" || word == "-h" {
                // Verbs that follow still say whose help is meant.
                asked = Asked::Help(Vec::new());
            } else if self.path.is_empty() && (word == "--version" || word == "-V") {
                if !matches!(asked, Asked::Help(_)) {
                    asked = Asked::Version;
                }
            } else if let Some(option) = word.strip_prefix("--") {
                self.option(option, &mut rest);
            } else if let Some(long) = find_short(self.command, word) {
                self.option(long, &mut rest);
            } else if is_short_option(word) {
                self.mistake(unknown_option(word, self.command, &self.path));
            } else if self.command.has_subcommands() && !self.settled {
                if word == "help" {
                    asked = Asked::Help(Vec::new());
                } else if takes_words(self.command) && !self.command.get_subcommands().any(|sub| has_name(sub, word)) {
                    self.settled = true;
                    self.out.push(word.clone());
                } else {
                    self.verb(word);
                }
            } else {
                self.out.push(word.clone());
            }
        }
        match asked {
            // Help for a word that does not exist must not read as if it did.
            Asked::Help(_) if self.mistake.is_some() && self.command.has_subcommands() && self.path.is_empty() => {
                Asked::Nothing
            }
            Asked::Help(_) => Asked::Help(self.path.clone()),
            other => other,
        }
    }

    fn mistake(&mut self, mistake: UsageError) {
        self.mistake.get_or_insert(mistake);
    }

    fn verb(&mut self, word: &str) {
        if let Some(command) = self.command.get_subcommands().find(|sub| has_name(sub, word)) {
            self.command = command;
            self.path.push(command.get_name().to_owned());
            self.out.push(command.get_name().to_owned());
            return;
        }
        let mistake = no_such_word(word, self.command, &self.path);
        self.mistake(mistake);
    }

    /// One `--name`, `--name value` or `--name=value`, written on as clap takes it.
    fn option<'w>(&mut self, option: &str, rest: &mut (impl Iterator<Item = &'w String> + Clone)) {
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (option, None),
        };
        let Some(arg) = find_long(self.command, name) else {
            let mistake = unknown_option(&format!("--{name}"), self.command, &self.path);
            return self.mistake(mistake);
        };
        if matches!(arg.get_action(), ArgAction::SetTrue) {
            match value {
                None | Some("true") => self.out.push(format!("--{name}")),
                // As if it had never been typed: the last one wins.
                Some("false") => self.out.retain(|word| *word != format!("--{name}")),
                Some(other) => self.mistake(UsageError::new(format!("--{name} takes true or false, not {other:?}"))),
            }
            return;
        }
        let value = match value {
            Some(value) => value,
            None => match rest.clone().next().filter(|next| !looks_like_option(next)) {
                Some(next) => {
                    rest.next();
                    next
                }
                None => {
                    let form =
                        arg.get_value_names().and_then(|names| names.first()).map_or("VALUE", |name| name.as_str());
                    return self.mistake(
                        UsageError::new(format!("--{name} needs a value"))
                            .hint(format!("Write --{name} {form}, or --{name}={form} if it begins with a dash.")),
                    );
                }
            },
        };
        self.out.push(format!("--{name}={value}"));
    }
}

/// A command with verbs that means something without one.
fn takes_words(command: &Command) -> bool {
    command.get_positionals().next().is_some()
}

fn has_name(command: &Command, word: &str) -> bool {
    command.get_name() == word || command.get_all_aliases().any(|alias| alias == word)
}

fn find_long<'a>(command: &'a Command, name: &str) -> Option<&'a Arg> {
    command.get_arguments().find(|arg| arg.get_long() == Some(name))
}

/// The long name of a `-x` that takes no value.
fn find_short<'a>(command: &'a Command, word: &str) -> Option<&'a str> {
    let mut letters = word.strip_prefix('-')?.chars();
    let letter = letters.next().filter(|_| letters.as_str().is_empty())?;
    let arg = command.get_arguments().find(|arg| arg.get_short() == Some(letter))?;
    arg.get_long().filter(|_| matches!(arg.get_action(), ArgAction::SetTrue))
}

/// `-x`; a lone dash and `-5` are words.
fn is_short_option(word: &str) -> bool {
    let mut chars = word.chars();
    chars.next() == Some('-') && chars.next().is_some_and(|second| !second.is_ascii_digit())
}

fn looks_like_option(word: &str) -> bool {
    word.starts_with("--") || is_short_option(word)
}

pub(crate) fn full_name(path: &[String]) -> String {
    std::iter::once("runtime").chain(path.iter().map(String::as_str)).collect::<Vec<_>>().join(" ")
}

fn unknown_option(typed: &str, command: &Command, path: &[String]) -> UsageError {
    let name = full_name(path);
    let known: Vec<&str> = command.get_arguments().filter(|arg| !arg.is_hide_set()).filter_map(Arg::get_long).collect();
    let list = known.iter().map(|long| format!("--{long}")).collect::<Vec<_>>().join(", ");
    let guess = typed.strip_prefix("--").and_then(|typed| likely(typed, known.iter().copied()));
    let runs_commands = command.get_positionals().any(Arg::is_last_set);
    let command_options = if runs_commands { " Options of the command to run go after `--`." } else { "" };
    let guess = guess.map(|long| format!("Did you mean --{long}? ")).unwrap_or_default();
    UsageError::new(format!("`{name}` has no option {typed}"))
        .hint(format!("{guess}Its options: {list}.{command_options}"))
}

fn no_such_word(word: &str, command: &Command, path: &[String]) -> UsageError {
    let version = crate::args::VERSION;
    let at_top = path.is_empty();
    let in_sandboxes = path.first().is_some_and(|first| first == "sandboxes");
    let typed = full_name(&[path, &[word.to_owned()]].concat());
    if at_top && MOVED_UNDER_SANDBOXES.contains(&word) {
        return UsageError::new(format!("`{typed}` is a verb of the sandbox product"))
            .hint(format!("Write: runtime sandboxes {word}"));
    }
    let not_built = if at_top { NOT_BUILT } else { NOT_BUILT_SANDBOX_VERBS };
    if (at_top || in_sandboxes) && not_built.contains(&word) {
        return UsageError::new(format!("`{typed}` is not in this version ({version}); nothing was sent"))
            .hint(format!("What there is: {} help", full_name(path)));
    }
    let names =
        command.get_subcommands().flat_map(|sub| std::iter::once(sub.get_name()).chain(sub.get_visible_aliases()));
    let guess =
        likely(word, names).map(|name| format!("Did you mean `{}`? ", full_name(&[path, &[name.to_owned()]].concat())));
    let kind = if at_top { "command" } else { "verb" };
    UsageError::new(format!("there is no {kind} `{typed}`")).hint(format!(
        "{}See: {} help",
        guess.unwrap_or_default(),
        full_name(path)
    ))
}
