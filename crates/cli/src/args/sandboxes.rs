//! The verbs of the sandbox product.

use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand, ValueEnum};
use runtime_model::State;

use super::files::{CpArgs, FilesArgs, WatchArgs};
use super::previews::{PreviewArgs, UnshareArgs};
use super::sessions::SessionVerb;
use super::ssh::SshArgs;
pub use super::values::Forward;
use super::values::{
    Limit, OnOff, VolumeAt, dollars, dollars_or_none, env_name, env_pair, forward, integer, pair, volume,
};

#[derive(Debug, Subcommand)]
pub enum SandboxVerb {
    /// Create a sandbox and print its id.
    #[command(after_help = "\
Waits until the sandbox is running, and for room when there is none.

Examples:
  runtime sandboxes create
  runtime sandboxes create --name worker --vcpu 4 --memory 8192 --label team=web
  runtime sandboxes create --name worker --get-or-create
  runtime sandboxes create --timeout 3600 --on-timeout stop --env MODE=test")]
    Create(Box<CreateArgs>),

    /// Run a command in a sandbox of its own, and delete the sandbox afterwards.
    #[command(after_help = "\
Everything after `--` is the command: one word is a shell line, several are a program and its arguments. What is piped in
is the command's input. The exit code is the command's; 124 means that it ran into --timeout.

Examples:
  runtime sandboxes run -- python3 -c 'print(6 * 7)'
  runtime sandboxes run --timeout 60 -- 'git clone https://example.com/x && make -C x'
  cat data.csv | runtime sandboxes run -- wc -l
  runtime sandboxes run --keep --name debug -- make test")]
    Run(Box<RunArgs>),

    /// Run a command in a sandbox, with its output as it comes.
    #[command(after_help = "\
Everything after `--` is the command: one word is a shell line, several are a program and its arguments. What is piped in \
(up to 1 MiB) is the command's input. Ctrl-C ends the command. The exit code is the command's, 124 for a timeout, 128 and \
the signal's number for a killed one.

Examples:
  runtime sandboxes exec worker -- ls -la
  runtime sandboxes exec worker -- 'cd src && make'
  runtime sandboxes exec worker --env MODE=test --cwd /workspace/src --timeout 600 -- make test
  echo hello | runtime sandboxes exec worker -- tr a-z A-Z")]
    Exec(ExecArgs),

    /// List sandboxes, oldest first.
    #[command(
        visible_alias = "list",
        after_help = "\
Examples:
  runtime sandboxes ls
  runtime sandboxes ls --state running --label team=web
  runtime sandboxes ls --json | jq -r '.[].id'"
    )]
    Ls(LsArgs),

    /// Show one sandbox.
    Get(OneArgs),

    /// Stop a sandbox, or all that carry some labels; their disks are kept.
    #[command(after_help = "\
Examples:
  runtime sandboxes stop worker
  runtime sandboxes stop --label team=web --label stage=test     every label must match")]
    Stop(StopArgs),

    /// Start a stopped sandbox again with the disk it had.
    Restart(OneArgs),

    /// Have a sandbox stand still with its memory and its processes.
    Pause(OneArgs),

    /// Have a paused sandbox go on where it stood.
    Wake(WakeArgs),

    /// Keep what a sandbox is as a snapshot, and print its id.
    #[command(after_help = "\
The sandbox stands still while it is taken and goes on after it. A snapshot outlives its sandbox.

Examples:
  id=$(runtime sandboxes snapshot worker)
  runtime sandboxes snapshot worker --name ready --mode disk --retention 30
  runtime sandboxes create --snapshot \"$id\"")]
    Snapshot(SnapshotArgs),

    /// Make copies of a sandbox that go on where it stands, and print their ids.
    #[command(after_help = "\
A copy has the memory, the processes and the files of its source, and a name, an id and randomness of its own.

Examples:
  runtime sandboxes fork worker
  runtime sandboxes fork worker --count 4 --name try     try, try-1, try-2 and try-3")]
    Fork(ForkArgs),

    /// Move the end of a sandbox's time limit.
    #[command(after_help = "\
Examples:
  runtime sandboxes extend worker 600     ten minutes more, at most a day from now")]
    Extend(ExtendArgs),

    /// Change a sandbox's settings.
    #[command(after_help = "\
What is not named stays as it is. --label replaces all labels.

Examples:
  runtime sandboxes update worker --name builder --idle-pause 600
  runtime sandboxes update worker --env MODE=live --unset-env DEBUG
  runtime sandboxes update worker --max-total-cost none")]
    Update(UpdateArgs),

    /// Give a sandbox more or less memory and processors, or a larger disk.
    #[command(after_help = "\
--restart says that it may be stopped and started again for that: what is in its memory is lost, its disk is kept.
On gVisor a disk alone grows without.

Examples:
  runtime sandboxes resize worker --memory 8192 --vcpu 4 --restart
  runtime sandboxes resize worker --disk 20480")]
    Resize(ResizeArgs),

    /// Delete a sandbox with everything in it.
    #[command(visible_alias = "delete")]
    Rm(OneArgs),

    /// Print a file of a sandbox.
    #[command(after_help = "\
Examples:
  runtime sandboxes cat worker /workspace/report.txt
  runtime sandboxes cat worker /workspace/plot.png > plot.png")]
    Cat(CatArgs),

    /// List the files of a sandbox.
    #[command(after_help = "\
A line is the kind (d directory, l link, - file, ? other), the size and the path.

Examples:
  runtime sandboxes files worker
  runtime sandboxes files worker /etc --depth 2
  runtime sandboxes files worker --glob '**/*.py'")]
    Files(FilesArgs),

    /// Copy a file or a folder into a sandbox, or out of one.
    #[command(after_help = "\
Exactly one side is in a sandbox: SANDBOX:/absolute/path. A target that ends with / or is a directory takes the copy inside,
under the name of the source. Modes are kept. A file appears whole or not at all.

Examples:
  runtime sandboxes cp data.csv worker:/workspace/
  runtime sandboxes cp -r ./src worker:/workspace/src
  runtime sandboxes cp -r worker:/workspace/out ./results")]
    Cp(CpArgs),

    /// Open a terminal in a sandbox.
    #[command(after_help = "\
The exit code is the shell's. What is piped in is typed, and then the end of input.

Examples:
  runtime sandboxes shell worker
  runtime sandboxes shell worker --command python3
  echo 'ls -la' | runtime sandboxes shell worker")]
    Shell(ShellArgs),

    /// Start a process that lives on, and print its id.
    #[command(after_help = "\
Everything after `--` is the command: one word is a shell line, several are a program and its arguments.

Examples:
  runtime sandboxes spawn worker -- python3 -m http.server 8000
  runtime sandboxes spawn worker --pty -- top")]
    Spawn(SpawnArgs),

    /// List a sandbox's processes, and those that ended lately.
    Ps(OneArgs),

    /// Print what a process has said.
    #[command(after_help = "\
The last MiB of a process's output is kept.

Examples:
  runtime sandboxes logs worker 0198c0de-0000-7000-8000-000000000000
  runtime sandboxes logs worker 0198c0de-0000-7000-8000-000000000000 -f")]
    Logs(LogsArgs),

    /// Send a signal to a process and all that it started.
    Kill(KillArgs),

    /// Tell what happens to the files below a path, until Ctrl-C.
    #[command(after_help = "\
A pattern with a slash is for the path below PATH, one without for each name.

Examples:
  runtime sandboxes watch worker /workspace --recursive
  runtime sandboxes watch worker /workspace --recursive --include '*.py' --exclude node_modules --json")]
    Watch(WatchArgs),

    /// Reach ports of a sandbox on this machine, until Ctrl-C.
    #[command(after_help = "\
PORT is the same here and there; LOCAL:REMOTE names both, and 0 takes any that is free here.

Examples:
  runtime sandboxes port-forward worker 8000
  runtime sandboxes port-forward worker 5433:5432 8080:80")]
    PortForward(ForwardArgs),

    /// Log in to a sandbox with this machine's OpenSSH, or run a command in it that way.
    #[command(after_help = "\
`ssh` runs OpenSSH with a key made for this connection. The exit code is the command's, or 255 if there was none. \
`ssh config --install` has scp, rsync, git and editors reach sandboxes as NAME.runtime.

Examples:
  runtime sandboxes ssh worker
  runtime sandboxes ssh worker -- 'cd src && make'
  tar c . | runtime sandboxes ssh worker -- tar x -C /workspace/src
  runtime sandboxes ssh config --install && scp data.csv worker.runtime:")]
    Ssh(SshArgs),

    /// Show what a sandbox may reach, or replace it.
    #[command(after_help = "\
With any option, all rules are replaced by those named. A place is a name, *.DOMAIN for all below a domain, an address \
or a range of addresses. --deny wins; with --allow, nothing else is reachable but what --connect adds.

Examples:
  runtime sandboxes network worker
  runtime sandboxes network worker --allow pypi.org --allow '*.pythonhosted.org'
  runtime sandboxes network worker --deny tracker.example.com
  runtime sandboxes network worker --no-internet
  runtime sandboxes network worker --internet")]
    Network(NetworkArgs),

    /// Show what was decided about a sandbox's connections.
    #[command(after_help = "\
Examples:
  runtime sandboxes network-log worker
  runtime sandboxes network-log worker --refused --limit 20")]
    NetworkLog(NetworkLogArgs),

    /// Give a port of a sandbox a web address, and print it.
    #[command(after_help = "\
What is printed opens the page: with a token in it unless --public is given. On a port that has an address already, \
--public or its absence changes who may see it. A visit wakes a paused sandbox and counts as use of it.

`preview rotate` ends every token of before, cuts what is open by them, and prints the new address.

Examples:
  runtime sandboxes preview worker 3000
  runtime sandboxes preview worker 3000 --ttl 3600
  runtime sandboxes preview worker 3000 --public
  runtime sandboxes preview rotate worker 3000
  curl \"$(runtime sandboxes preview worker 3000)\"")]
    Preview(PreviewArgs),

    /// List the ports of a sandbox that have a web address.
    Previews(OneArgs),

    /// Take a port's web address away, and cut what is open there.
    Unshare(UnshareArgs),

    /// Give a web page a way into one sandbox, without a key.
    #[command(
        alias = "sessions",
        after_help = "\
Examples:
  runtime sandboxes session create worker --origin https://app.example.com
  runtime sandboxes session ls worker
  runtime sandboxes session revoke worker ID"
    )]
    Session {
        #[command(subcommand)]
        verb: SessionVerb,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Cpu {
    Shared,
    Reserved,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum AtEnd {
    Pause,
    Stop,
    Delete,
}

/// What a new sandbox is like; shared by `create` and `run`.
#[derive(Debug, Args)]
pub struct NewSandbox {
    /// A name of its own, usable wherever an id is.
    #[arg(long)]
    pub name: Option<String>,

    /// A label; repeatable.
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = pair)]
    pub labels: Vec<(String, String)>,

    /// A variable for every command in it; repeatable.
    #[arg(long = "env", value_name = "NAME=VALUE", value_parser = env_pair)]
    pub env: Vec<(String, String)>,

    /// Where it runs.
    #[arg(long)]
    pub region: Option<String>,

    /// Processor cores.
    #[arg(long, value_name = "CORES", value_parser = integer)]
    pub vcpu: Option<u64>,

    /// Memory.
    #[arg(long, value_name = "MIB", value_parser = integer)]
    pub memory: Option<u64>,

    /// Disk.
    #[arg(long, value_name = "MIB", value_parser = integer)]
    pub disk: Option<u64>,

    /// Whether its cores are its own.
    #[arg(long, value_enum)]
    pub cpu: Option<Cpu>,

    /// Thousandths of a core that stay its own when the host is busy.
    #[arg(long, value_name = "MILLIS", value_parser = integer)]
    pub cpu_floor: Option<u64>,

    /// What happens at the end of its time.
    #[arg(long, value_enum)]
    pub on_timeout: Option<AtEnd>,

    /// Pause after this much idle time; 0 never.
    #[arg(long, value_name = "SECONDS", value_parser = integer)]
    pub idle_pause: Option<u64>,

    /// Old name of a spending limit.
    #[arg(long, value_name = "USD", value_parser = dollars, hide = true)]
    pub max_cost: Option<u64>,

    /// Stop once it has cost this much.
    #[arg(long, value_name = "USD", value_parser = dollars)]
    pub max_total_cost: Option<u64>,

    /// A place it may reach; repeatable.
    #[arg(long, value_name = "HOST")]
    pub allow: Vec<String>,

    /// A place it may not reach; repeatable.
    #[arg(long, value_name = "HOST")]
    pub deny: Vec<String>,

    /// One port of a host beside what is allowed; repeatable.
    #[arg(long, value_name = "HOST:PORT")]
    pub connect: Vec<String>,

    /// No way out to the internet.
    #[arg(long)]
    pub no_internet: bool,

    /// The image to start from: an id, name, name:tag or name@version.
    #[arg(long)]
    pub image: Option<String>,

    /// The snapshot to start from.
    #[arg(long, value_name = "ID", conflicts_with = "image")]
    pub snapshot: Option<String>,

    /// A volume to attach; repeatable.
    #[arg(long = "volume", value_name = "ID:/PATH[:snapshot]", value_parser = volume)]
    pub volumes: Vec<VolumeAt>,

    /// A request to it does not wake it.
    #[arg(long)]
    pub no_auto_wake: bool,

    /// No time limit and no idle pause.
    #[arg(long)]
    pub persistent: bool,

    /// Take the sandbox that holds the name, if there is one.
    #[arg(long, requires = "name")]
    pub get_or_create: bool,

    /// Accepted for old scripts.
    #[arg(long, hide = true)]
    pub trial: bool,

    /// Accepted for old scripts.
    #[arg(long, hide = true)]
    pub paid: bool,
}

#[derive(Debug, Args)]
pub struct CreateArgs {
    #[command(flatten)]
    pub new: NewSandbox,

    /// Its time limit; 0 for none.
    #[arg(long, value_name = "SECONDS", value_parser = integer)]
    pub timeout: Option<u64>,

    /// Print the id at once, before it is running.
    #[arg(long)]
    pub no_wait: bool,
}

#[derive(Debug, Args)]
pub struct RunArgs {
    /// Leave the sandbox running afterwards.
    #[arg(long)]
    pub keep: bool,

    /// End the command after this long.
    #[arg(long, value_name = "SECONDS", value_parser = integer)]
    pub timeout: Option<u64>,

    /// Where the command starts.
    #[arg(long, value_name = "DIR")]
    pub cwd: Option<String>,

    #[command(flatten)]
    pub new: NewSandbox,

    #[command(flatten)]
    pub command: CommandWords,
}

#[derive(Debug, Args)]
pub struct ExecArgs {
    /// The sandbox: its id or name.
    pub sandbox: String,

    /// Where the command starts.
    #[arg(long, value_name = "DIR")]
    pub cwd: Option<String>,

    /// A variable for this command; repeatable.
    #[arg(long = "env", value_name = "NAME=VALUE", value_parser = env_pair)]
    pub env: Vec<(String, String)>,

    /// End the command after this long.
    #[arg(long, value_name = "SECONDS", value_parser = integer)]
    pub timeout: Option<u64>,

    #[command(flatten)]
    pub command: CommandWords,
}

/// A command, with or without `--` before it.
#[derive(Debug, Args)]
pub struct CommandWords {
    /// The command; without `--`, options in it are taken for this program's.
    #[arg(value_name = "COMMAND", hide = true)]
    pub words: Vec<String>,

    /// The command, word for word.
    #[arg(last = true, value_name = "COMMAND")]
    pub verbatim: Vec<String>,
}

impl CommandWords {
    /// All words of the command.
    #[must_use]
    pub fn all(&self) -> Vec<String> {
        self.words.iter().chain(&self.verbatim).cloned().collect()
    }
}

#[derive(Debug, Args)]
pub struct LsArgs {
    /// Also those that are stopped with nothing left to restart.
    #[arg(long)]
    pub all: bool,

    /// Only those with this label; repeatable, every one must match.
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = pair)]
    pub labels: Vec<(String, String)>,

    /// Only those in this state; repeatable, one must match.
    #[arg(long = "state", value_name = "STATE", value_parser = PossibleValuesParser::new(State::ALL.map(State::as_str)))]
    pub states: Vec<String>,
}

#[derive(Debug, Args)]
pub struct OneArgs {
    /// The sandbox: its id or name.
    pub sandbox: String,
}

#[derive(Debug, Args)]
pub struct StopArgs {
    /// The sandbox: its id or name.
    #[arg(required_unless_present = "labels", conflicts_with = "labels")]
    pub sandbox: Option<String>,

    /// Every sandbox with this label; repeatable, every one must match.
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = pair)]
    pub labels: Vec<(String, String)>,
}

#[derive(Debug, Args)]
pub struct WakeArgs {
    /// The sandbox: its id or name.
    pub sandbox: String,

    /// Its time limit from now on, in seconds; its own if not given.
    #[arg(long, value_name = "SECONDS")]
    pub timeout: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// Disk, memory and processes.
    Memory,
    /// The disk alone.
    Disk,
}

#[derive(Debug, Args)]
pub struct SnapshotArgs {
    /// The sandbox: its id or name.
    pub sandbox: String,

    /// A name for the snapshot.
    #[arg(long)]
    pub name: Option<String>,

    /// A label of the snapshot; repeatable. Those of the sandbox if there is none.
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = pair)]
    pub labels: Vec<(String, String)>,

    /// How long to keep it; a year if not given.
    #[arg(long, value_name = "DAYS", value_parser = integer)]
    pub retention: Option<u64>,

    /// What to keep.
    #[arg(long, value_enum, default_value_t = Mode::Memory)]
    pub mode: Mode,
}

#[derive(Debug, Args)]
pub struct ForkArgs {
    /// The sandbox: its id or name.
    pub sandbox: String,

    /// How many copies.
    #[arg(long, default_value_t = 1, value_parser = integer)]
    pub count: u64,

    /// A name for the first copy; the others get a number behind it.
    #[arg(long)]
    pub name: Option<String>,

    /// A label of the copies; repeatable. Those of the sandbox if there is none.
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = pair)]
    pub labels: Vec<(String, String)>,

    /// Keep the snapshot that they are made from.
    #[arg(long)]
    pub keep_snapshot: bool,
}

#[derive(Debug, Args)]
pub struct ExtendArgs {
    /// The sandbox: its id or name.
    pub sandbox: String,

    /// By how many seconds.
    #[arg(value_name = "SECONDS")]
    pub seconds: u64,
}

#[derive(Debug, Args)]
#[group(id = "size", required = true, multiple = true, args = ["vcpu", "memory", "disk"])]
pub struct ResizeArgs {
    /// The sandbox: its id or name.
    pub sandbox: String,

    /// Processors.
    #[arg(long, value_name = "COUNT")]
    pub vcpu: Option<u32>,

    /// Memory in MiB.
    #[arg(long, value_name = "MIB")]
    pub memory: Option<u64>,

    /// Disk in MiB; it only grows.
    #[arg(long, value_name = "MIB")]
    pub disk: Option<u64>,

    /// Stop it and start it again, where that is needed.
    #[arg(long)]
    pub restart: bool,
}

#[derive(Debug, Args)]
pub struct UpdateArgs {
    /// The sandbox: its id or name.
    pub sandbox: String,

    /// A new name.
    #[arg(long)]
    pub name: Option<String>,

    /// The labels it shall have; repeatable, replaces all.
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = pair)]
    pub labels: Vec<(String, String)>,

    /// Set a variable for later commands; repeatable.
    #[arg(long = "env", value_name = "NAME=VALUE", value_parser = env_pair)]
    pub env: Vec<(String, String)>,

    /// Take a variable away; repeatable.
    #[arg(long = "unset-env", value_name = "NAME", value_parser = env_name)]
    pub unset_env: Vec<String>,

    /// Pause after this much idle time; 0 never.
    #[arg(long, value_name = "SECONDS", value_parser = integer)]
    pub idle_pause: Option<u64>,

    /// Whether a request wakes it.
    #[arg(long, value_enum)]
    pub auto_wake: Option<OnOff>,

    /// Whether it stays without time limit and idle pause.
    #[arg(long, value_enum)]
    pub persistent: Option<OnOff>,

    /// Stop once it has cost this much, or none.
    #[arg(long, value_name = "USD", value_parser = dollars_or_none)]
    pub max_total_cost: Option<Limit>,
}

#[derive(Debug, Args)]
pub struct CatArgs {
    /// The sandbox: its id or name.
    pub sandbox: String,

    /// The file, from / on.
    pub path: String,
}

#[derive(Debug, Args)]
pub struct NetworkArgs {
    /// The sandbox: its id or name.
    pub sandbox: String,

    /// Every public place.
    #[arg(long, conflicts_with = "no_internet")]
    pub internet: bool,

    /// No way out; with --allow, no other than that.
    #[arg(long)]
    pub no_internet: bool,

    /// A place it may reach; repeatable.
    #[arg(long, value_name = "PLACE")]
    pub allow: Vec<String>,

    /// A place it may not reach; repeatable.
    #[arg(long, value_name = "PLACE")]
    pub deny: Vec<String>,

    /// One port of a host beside what is allowed; repeatable.
    #[arg(long, value_name = "HOST:PORT")]
    pub connect: Vec<String>,
}

#[derive(Debug, Args)]
pub struct NetworkLogArgs {
    /// The sandbox: its id or name.
    pub sandbox: String,

    /// How many, counted from the newest.
    #[arg(long, default_value_t = 50, value_parser = integer)]
    pub limit: u64,

    /// Only what was refused.
    #[arg(long)]
    pub refused: bool,
}

#[derive(Debug, Args)]
pub struct ShellArgs {
    /// The sandbox: its id or name.
    pub sandbox: String,

    /// What runs in the terminal; `bash -l` if left out.
    #[arg(long)]
    pub command: Option<String>,
}

#[derive(Debug, Args)]
pub struct SpawnArgs {
    /// The sandbox: its id or name.
    pub sandbox: String,

    /// Give it a terminal of 120 by 40.
    #[arg(long)]
    pub pty: bool,

    /// Where the command starts.
    #[arg(long, value_name = "DIR")]
    pub cwd: Option<String>,

    /// A variable for this command; repeatable.
    #[arg(long = "env", value_name = "NAME=VALUE", value_parser = env_pair)]
    pub env: Vec<(String, String)>,

    /// The command, word for word.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

#[derive(Debug, Args)]
pub struct LogsArgs {
    /// The sandbox: its id or name.
    pub sandbox: String,

    /// The process's id.
    pub process: String,

    /// Stay with it until it ends.
    #[arg(short, long)]
    pub follow: bool,
}

#[derive(Debug, Args)]
pub struct KillArgs {
    /// The sandbox: its id or name.
    pub sandbox: String,

    /// The process's id.
    pub process: String,

    /// Which signal.
    #[arg(long, default_value = "SIGTERM", value_parser = PossibleValuesParser::new(SIGNALS))]
    pub signal: String,
}

/// What the API sends.
const SIGNALS: [&str; 7] = ["SIGTERM", "SIGKILL", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"];

#[derive(Debug, Args)]
pub struct ForwardArgs {
    /// The sandbox: its id or name.
    pub sandbox: String,

    /// PORT, or LOCAL:REMOTE; repeatable.
    #[arg(required = true, value_name = "PORT", value_parser = forward)]
    pub ports: Vec<Forward>,

    /// Where to listen here.
    #[arg(long, default_value = "127.0.0.1")]
    pub address: std::net::IpAddr,
}
