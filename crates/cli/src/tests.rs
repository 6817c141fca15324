//! What the words mean, and what a mistake reads like.

use clap::CommandFactory;

use super::*;
use crate::args::sandboxes::SandboxVerb;
use crate::args::ssh::SshVerb;

fn words(line: &[&str]) -> Vec<String> {
    line.iter().map(|word| (*word).to_owned()).collect()
}

fn meant(line: &[&str]) -> Meant {
    parse_words(&words(line)).unwrap_or_else(|mistake| panic!("{line:?}: {mistake}"))
}

fn verb(line: &[&str]) -> SandboxVerb {
    match meant(line) {
        Meant::Client(ClientCommand { verb: ClientVerb::Sandboxes(verb), .. }) => verb,
        other => panic!("{line:?} means {other:?}"),
    }
}

fn local(line: &[&str]) -> Local {
    match meant(line) {
        Meant::Local(local) => local,
        other => panic!("{line:?} means {other:?}"),
    }
}

fn shown_help(line: &[&str]) -> String {
    match meant(line) {
        Meant::Help(text) => text,
        other => panic!("{line:?} means {other:?}"),
    }
}

/// The mistake as a person sees it.
fn mistake(line: &[&str]) -> String {
    let mistake = parse_words(&words(line)).expect_err("a mistake");
    format!("{}\n{}", mistake.message, mistake.hint.unwrap_or_default())
}

#[test]
fn the_tree_is_sound() {
    Cli::command().debug_assert();
    args::tree().debug_assert();
}

#[test]
fn options_take_their_value_either_way_and_the_last_wins() {
    let line = [
        "sbx",
        "create",
        "--memory",
        "512",
        "--memory=1024",
        "--label=a=b",
        "--label",
        "c=d",
        "--json",
        "--env",
        "X=-1",
    ];
    let SandboxVerb::Create(create) = verb(&line) else { panic!("create") };
    assert_eq!(create.new.memory, Some(1024));
    assert_eq!(create.new.labels, [("a".into(), "b".into()), ("c".into(), "d".into())]);
    assert_eq!(create.new.env, [("X".into(), "-1".into())]);
}

#[test]
fn a_letter_stands_for_its_flag() {
    let SandboxVerb::Cp(cp) = verb(&["sandboxes", "cp", "-r", "a", "w:/b"]) else { panic!("cp") };
    assert!(cp.recursive && cp.from == "a" && cp.to == "w:/b");
    let SandboxVerb::Logs(logs) = verb(&["sandboxes", "logs", "w", "p", "-f"]) else { panic!("logs") };
    assert!(logs.follow);
    assert!(mistake(&["sandboxes", "cp", "-x", "a", "w:/b"]).contains("no option -x"));
    assert!(mistake(&["sandboxes", "cp", "-rf", "a", "w:/b"]).contains("no option -rf"));
    let SandboxVerb::PortForward(forward) = verb(&["sandboxes", "port-forward", "w", "80", "0:5432"]) else {
        panic!("port-forward")
    };
    assert_eq!(forward.ports.len(), 2);
    assert!(mistake(&["sandboxes", "port-forward", "w", "x"]).contains("PORT"));
    assert!(mistake(&["sandboxes", "kill", "w", "p", "--signal", "KILL"]).contains("SIGKILL"));
    assert!(mistake(&["sandboxes", "spawn", "w"]).contains("COMMAND"));
}

#[test]
fn a_preview_is_shared_or_its_token_replaced() {
    let preview = |line: &[&str]| match verb(&[&["sandboxes", "preview"], line].concat()) {
        SandboxVerb::Preview(args) => args,
        other => panic!("{other:?}"),
    };
    let wrong = |line: &[&str]| preview(line).wanted().expect_err("a mistake").message;
    use crate::args::previews::Wanted::{Rotate, Share};
    assert_eq!(preview(&["w", "80"]).wanted(), Ok(Share { sandbox: "w", port: 80 }));
    assert_eq!(preview(&["rotate", "w", "80"]).wanted(), Ok(Rotate { sandbox: "w", port: 80 }));
    // A sandbox may be called so.
    assert_eq!(preview(&["rotate", "80"]).wanted(), Ok(Share { sandbox: "rotate", port: 80 }));
    assert!(wrong(&["w", "http"]).contains("1 to 65535"));
    assert!(wrong(&["rotate", "w", "0"]).contains("1 to 65535"));
    assert!(wrong(&["w", "80", "81"]).contains("\"81\" is one word too many"));
    assert!(wrong(&["rotate", "w", "80", "--ttl", "60"]).contains("nothing else"));
    assert!(mistake(&["sandboxes", "preview", "w", "80", "--public", "--ttl", "60"]).contains("exclude"));
    assert!(mistake(&["sandboxes", "preview", "w"]).contains("<PORT> is missing"));
    assert!(mistake(&["sandboxes", "unshare", "w", "x"]).contains("must be a port"));
    assert!(mistake(&["preview", "w", "80"]).contains("sandbox product"));
    let Local::Serve(serve) = local(&["serve", "--preview-domain", "box.example", "--preview-listen", "[::1]:0"])
    else {
        panic!("serve")
    };
    assert_eq!(serve.preview_domain.as_deref(), Some("https://box.example"));
    assert_eq!(serve.preview_listen.map(|listen| listen.to_string()).as_deref(), Some("[::1]:0"));
    assert!(mistake(&["serve", "--preview-domain", "*.box.example"]).contains("DOMAIN"));
}

#[test]
fn ssh_takes_a_sandbox_or_a_verb() {
    let ssh = |line: &[&str]| match verb(&[&["sandboxes", "ssh"], line].concat()) {
        SandboxVerb::Ssh(args) => args,
        other => panic!("{other:?}"),
    };
    let plain = ssh(&["worker"]);
    assert_eq!((plain.sandbox.as_deref(), plain.command.len(), plain.verb.is_none()), (Some("worker"), 0, true));
    let line = ssh(&["worker.runtime", "--", "ls", "-la", "config"]);
    assert_eq!((line.sandbox.as_deref(), line.command), (Some("worker.runtime"), words(&["ls", "-la", "config"])));
    assert!(ssh(&[]).verb.is_none() && ssh(&[]).sandbox.is_none());
    assert!(matches!(ssh(&["config", "--install"]).verb, Some(SshVerb::Config(args)) if args.install));
    let proxy = ssh(&["proxy", "--key", "/k", "worker.runtime", "Worker.runtime"]);
    assert!(matches!(proxy.verb, Some(SshVerb::Proxy(args)) if args.host == "worker.runtime" && args.typed.is_some()));
    // A command needs its dashes, and what has the name of a verb is that.
    assert!(mistake(&["sandboxes", "ssh", "worker", "ls"]).contains("ls"));
    assert!(mistake(&["sandboxes", "ssh", "worker", "-L", "1"]).contains("no option -L"));
    assert!(mistake(&["sandboxes", "ssh", "proxy"]).contains("HOST"));
    assert!(mistake(&["ssh", "worker"]).contains("runtime sandboxes ssh"));
    assert!(shown_help(&["sandboxes", "ssh", "config", "--help"]).contains("scp -r"));
    assert!(shown_help(&["sandboxes", "ssh", "help"]).contains("NAME.runtime"));
}

#[test]
fn flags_take_true_and_false_and_the_last_wins() {
    let no_wait = |line: &[&str]| match verb(line) {
        SandboxVerb::Create(create) => create.no_wait,
        other => panic!("{other:?}"),
    };
    assert!(no_wait(&["sandboxes", "create", "--no-wait"]));
    assert!(no_wait(&["sandboxes", "create", "--no-wait=false", "--no-wait=true"]));
    assert!(!no_wait(&["sandboxes", "create", "--no-wait", "--no-wait=false"]));
    assert_eq!(mistake(&["sandboxes", "create", "--no-wait=yes"]), "--no-wait takes true or false, not \"yes\"\n");
}

#[test]
fn a_command_may_stand_with_or_without_dashes() {
    let command = |line: &[&str]| match verb(line) {
        SandboxVerb::Exec(exec) => (exec.sandbox, exec.command.all()),
        other => panic!("{other:?}"),
    };
    assert_eq!(
        command(&["sandbox", "exec", "box", "--", "ls", "-la", "--json"]),
        ("box".into(), words(&["ls", "-la", "--json"]))
    );
    assert_eq!(command(&["sandbox", "exec", "box", "head", "-5", "x"]), ("box".into(), words(&["head", "-5", "x"])));
    assert_eq!(command(&["sandbox", "exec", "--cwd", "/x", "box", "--", "--"]), ("box".into(), words(&["--"])));
    let SandboxVerb::Run(run) = verb(&["sandboxes", "run", "--timeout=5", "--", "make test"]) else { panic!("run") };
    assert_eq!((run.timeout, run.command.all()), (Some(5), words(&["make test"])));
    let SandboxVerb::Run(run) = verb(&["sandboxes", "run", "echo", "hi", "--keep"]) else { panic!("run") };
    assert!(run.keep);
    assert_eq!(run.command.all(), words(&["echo", "hi"]));
}

#[test]
fn only_json_before_the_dashes_is_ours() {
    assert!(scan::wants_json(&words(&["sandboxes", "ls", "--json"])));
    assert!(!scan::wants_json(&words(&["sandboxes", "exec", "b", "--", "jq", "--json"])));
    assert!(!scan::wants_json(&words(&["--json", "sandboxes", "ls", "--json=false"])));
}

#[test]
fn mistakes_name_what_was_probably_meant() {
    insta::assert_snapshot!(mistake(&["sandboxes", "update", "box", "--nmae", "x"]), @r"
    `runtime sandboxes update` has no option --nmae
    Did you mean --name? Its options: --name, --label, --env, --unset-env, --idle-pause, --auto-wake, --persistent, --max-total-cost, --help, --json.
    ");
    insta::assert_snapshot!(mistake(&["sandboxes", "get", "box", "--verbose"]), @r"
    `runtime sandboxes get` has no option --verbose
    Its options: --help, --json.
    ");
    insta::assert_snapshot!(mistake(&["sandboxes", "exec", "box", "ls", "-la"]), @r"
    `runtime sandboxes exec` has no option -la
    Its options: --cwd, --env, --timeout, --help, --json. Options of the command to run go after `--`.
    ");
    insta::assert_snapshot!(mistake(&["sandboxes", "create", "--name", "--memory", "5"]), @r"
    --name needs a value
    Write --name NAME, or --name=NAME if it begins with a dash.
    ");
    insta::assert_snapshot!(mistake(&["sandboxes", "crate"]), @r"
    there is no verb `runtime sandboxes crate`
    Did you mean `runtime sandboxes create`? See: runtime sandboxes help
    ");
    insta::assert_snapshot!(mistake(&["sandbxes", "ls"]), @r"
    there is no command `runtime sandbxes`
    Did you mean `runtime sandboxes`? See: runtime help
    ");
    insta::assert_snapshot!(mistake(&["sandboxes"]), @r"
    `runtime sandboxes` needs a verb: create, run, exec, ls, get, stop, restart, pause, wake, snapshot, fork, extend, update, resize, rm, cat, files, cp, shell, spawn, ps, logs, kill, watch, port-forward, ssh, network, network-log, preview, previews, unshare, session
    See: runtime sandboxes help
    ");
    insta::assert_snapshot!(mistake(&["--", "ls"]), @r"
    a command line cannot begin with `--`
    See: runtime help
    ");
}

#[test]
fn values_are_refused_with_the_reason() {
    insta::assert_snapshot!(mistake(&["sandboxes", "create", "--memory", "4GB"]), @r#"
    --memory must be a whole number up to 9007199254740992, digits only, not "4GB"
    See: runtime sandboxes create --help
    "#);
    insta::assert_snapshot!(mistake(&["sandboxes", "create", "--vcpu", "-5"]), @r#"
    --vcpu must be a whole number up to 9007199254740992, digits only, not "-5"
    See: runtime sandboxes create --help
    "#);
    insta::assert_snapshot!(mistake(&["sandboxes", "create", "--label", "team"]), @r#"
    --label must be KEY=VALUE, not "team"
    See: runtime sandboxes create --help
    "#);
    insta::assert_snapshot!(mistake(&["sandboxes", "create", "--cpu", "fast"]), @r#"
    --cpu is one of shared, reserved, not "fast"
    See: runtime sandboxes create --help
    "#);
    insta::assert_snapshot!(mistake(&["sandboxes", "create", "--image", "a", "--snapshot", "b"]), @r"
    --image and --snapshot exclude each other
    See: runtime sandboxes create --help
    ");
    insta::assert_snapshot!(mistake(&["sandboxes", "get"]), @r"
    <SANDBOX> is missing
    See: runtime sandboxes get --help
    ");
    insta::assert_snapshot!(mistake(&["sandboxes", "get", "a", "b"]), @r#"
    "b" is one word too many
    See: runtime sandboxes get --help
    "#);
    insta::assert_snapshot!(mistake(&["sandboxes", "stop"]), @r"
    <SANDBOX> is missing
    See: runtime sandboxes stop --help
    ");
    insta::assert_snapshot!(mistake(&["serve", "--listen", "8787"]), @r#"
    --listen must be HOST:PORT, such as 127.0.0.1:8787 or [::1]:8787, not "8787"
    See: runtime serve --help
    "#);
}

#[test]
fn nothing_is_no_value_where_a_name_is_meant() {
    insta::assert_snapshot!(mistake(&["keys", "create", "--name", ""]), @r#"
    --name needs a value, not ""
    See: runtime keys create --help
    "#);
    for line in [
        &["keys", "create", "--name= "][..],
        &["keys", "revoke", ""],
        &["sandboxes", "rm", ""],
        &["sandboxes", "exec", "", "--", "ls"],
        &["sandboxes", "update", "", "--name", "x"],
        &["sandboxes", "stop", ""],
        &["keys", "ls", "--data-dir", ""],
        &["setup", "--data-dir="],
    ] {
        assert!(mistake(line).contains(" needs a value, not "), "{line:?}: {}", mistake(line));
    }
}

#[test]
fn a_key_reads_all_or_changes_all_and_not_both() {
    insta::assert_snapshot!(mistake(&["keys", "create", "--read-only", "--account-wide"]), @r"
    --read-only and --account-wide exclude each other
    See: runtime keys create --help
    ");
    let help = shown_help(&["keys", "create", "--help"]);
    let text = help.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains("A read-only key reads the whole account"), "{help}");
    // An example that is refused teaches nothing.
    for line in help.lines().filter(|line| line.contains("runtime keys")) {
        let (_, line) = line.split_once("runtime ").expect("just seen");
        let line: Vec<&str> = line.trim_end_matches(')').split_whitespace().collect();
        assert!(line.contains(&"Usage:") || line.contains(&"[OPTIONS]") || matches!(meant(&line), Meant::Local(_)));
    }
}

#[test]
fn the_way_to_help_names_the_command_and_no_more() {
    for (line, command) in [
        (&["whoami", "x"][..], "whoami"),
        (&["serve", "extra"], "serve"),
        (&["completions", "xx"], "completions"),
        (&["--json", "sbx", "get", "a", "b"], "sandboxes get"),
        (&["sandboxes", "--json", "delete", "a", "b"], "sandboxes rm"),
        (&["sandboxes", "stop", "stop", "stop"], "sandboxes stop"),
        (&["keys", "ls", "ls"], "keys ls"),
    ] {
        let mistake = mistake(line);
        let hint = mistake.lines().last().expect("a hint");
        assert_eq!(hint, format!("See: runtime {command} --help"), "{line:?}");
        let words: Vec<&str> = command.split(' ').chain(["--help"]).collect();
        assert!(matches!(meant(&words), Meant::Help(_)), "{line:?}: {hint} leads nowhere");
    }
}

#[test]
fn what_moved_and_what_is_not_there_yet_is_said() {
    insta::assert_snapshot!(mistake(&["run", "--", "ls"]), @r"
    `runtime run` is a verb of the sandbox product
    Write: runtime sandboxes run
    ");
    insta::assert_snapshot!(mistake(&["exec", "box", "ls"]), @r"
    `runtime exec` is a verb of the sandbox product
    Write: runtime sandboxes exec
    ");
    insta::assert_snapshot!(mistake(&["sandboxes", "switch-image", "box"]), @r"
    `runtime sandboxes switch-image` is not in this version (0.1.0); nothing was sent
    What there is: runtime sandboxes help
    ");
    insta::assert_snapshot!(mistake(&["volumes", "ls"]), @r"
    `runtime volumes` is not in this version (0.1.0); nothing was sent
    What there is: runtime help
    ");
    insta::assert_snapshot!(mistake(&["login", "--help"]), @r"
    `runtime login` is not in this version (0.1.0); nothing was sent
    What there is: runtime help
    ");
}

#[test]
fn help_wins_over_every_mistake_and_is_found_everywhere() {
    let create = shown_help(&["sandboxes", "create", "--help"]);
    assert_eq!(shown_help(&["sbx", "create", "--bogus", "-h"]), create);
    assert_eq!(shown_help(&["sandboxes", "help", "create"]), create);
    assert_eq!(shown_help(&["help", "sandboxes", "create"]), create);
    assert_eq!(shown_help(&["--help", "sandboxes", "create"]), create);
    assert!(create.contains("Usage: runtime sandboxes create [OPTIONS]"), "{create}");
    assert!(!create.contains("--trial"), "{create}");
    assert!(matches!(verb(&["sandboxes", "run", "--", "ls", "--help"]), SandboxVerb::Run(_)));
    assert_eq!(shown_help(&["help"]), shown_help(&["--help"]));
}

#[test]
fn every_help_teaches() {
    fn walk(command: &clap::Command, path: &mut Vec<String>) {
        let text = help(&args::tree(), path);
        assert!(text.contains("Usage: runtime"), "{path:?}: {text}");
        assert!(command.get_about().is_some(), "{path:?} says nothing about itself");
        for sub in command.get_subcommands() {
            path.push(sub.get_name().to_owned());
            walk(sub, path);
            path.pop();
        }
    }
    walk(&args::tree(), &mut Vec::new());
    insta::assert_snapshot!(shown_help(&["--help"]), @r"
    Sandboxes for agents, on your own machine

    Usage: runtime [OPTIONS] [COMMAND]

    Commands:
      up           Prepare this machine, start a server and run a first command in a sandbox
      sandboxes    Create and use sandboxes [aliases: sandbox, sbx]
      snapshots    See, keep and delete snapshots [alias: snapshot]
      whoami       Show who the key belongs to
      limits       Show what the key may use
      mcp          Serve the sandbox tools to an AI host over stdin and stdout (Model Context Protocol)
      setup        Prepare this machine to run sandboxes; safe to run again
      serve        Run the server in the foreground until Ctrl-C; sandboxes go on without it
      doctor       Look at everything the server needs here, with the fix for what is missing
      keys         Manage the API keys of this machine's server
      completions  Print a completion script for a shell
      version      Show the version

    Options:
          --json  Print one JSON value on stdout, and errors as JSON on stderr (only before `--`)
      -h, --help  Print this help

    Examples:
      runtime up                                       from nothing to a first command
      runtime sandboxes run -- python3 -c 'print(1)'   one command in a sandbox of its own
      id=$(runtime sandboxes create --name worker)     a sandbox that stays
      runtime sandboxes exec worker -- make test       a command in it
      runtime sandboxes rm worker

    `runtime COMMAND --help` says more about a command. Client commands use RUNTIME_API_URL and
    RUNTIME_API_KEY; without them, the server of this machine and its owner key.

    Not in this version: login, images, volumes, jobs, secrets, networks and the other products of the
    contract.
    ");
    insta::assert_snapshot!(shown_help(&["sandboxes", "exec", "--help"]), @r"
    Run a command in a sandbox, with its output as it comes

    Usage: runtime sandboxes exec [OPTIONS] <SANDBOX> [-- <COMMAND>...]

    Arguments:
      <SANDBOX>     The sandbox: its id or name
      [COMMAND]...  The command, word for word

    Options:
          --cwd <DIR>          Where the command starts
          --json               Print one JSON value on stdout, and errors as JSON on stderr (only before
                               `--`)
          --env <NAME=VALUE>   A variable for this command; repeatable
          --timeout <SECONDS>  End the command after this long
      -h, --help               Print this help

    Everything after `--` is the command: one word is a shell line, several are a program and its
    arguments. What is piped in (up to 1 MiB) is the command's input. Ctrl-C ends the command. The exit
    code is the command's, 124 for a timeout, 128 and the signal's number for a killed one.

    Examples:
      runtime sandboxes exec worker -- ls -la
      runtime sandboxes exec worker -- 'cd src && make'
      runtime sandboxes exec worker --env MODE=test --cwd /workspace/src --timeout 600 -- make test
      echo hello | runtime sandboxes exec worker -- tr a-z A-Z
    ");
}

#[test]
fn no_words_and_the_version() {
    let client = |line: &[&str]| match meant(line) {
        Meant::Client(command) => command,
        other => panic!("{other:?}"),
    };
    assert!(matches!(client(&[]).verb, ClientVerb::Overview));
    assert!(matches!(client(&["--json"]), ClientCommand { json: true, verb: ClientVerb::Overview }));
    for line in [["--version"], ["-V"], ["version"]] {
        assert!(matches!(client(&line).verb, ClientVerb::Version));
    }
}

#[test]
fn the_words_that_others_rely_on() {
    let Local::Serve(serve) = local(&["serve"]) else { panic!("serve") };
    assert_eq!(
        (serve.listen.to_string().as_str(), serve.engine, serve.detached),
        ("127.0.0.1:8787", Engine::Auto, false)
    );
    let Local::Serve(serve) = local(&["serve", "--engine", "gvisor", "--data-dir", "/d", "--listen", "[::1]:0"]) else {
        panic!("serve")
    };
    assert_eq!((serve.engine, serve.data.path()), (Engine::Gvisor, "/d".into()));
    assert_eq!(serve.guards, GuardsWhen::Auto);
    let Local::Serve(serve) = local(&["serve", "--guards", "on"]) else { panic!("serve") };
    assert_eq!(serve.guards, GuardsWhen::On);
    let Local::Setup(setup) = local(&["setup", "--check", "--engine=firecracker"]) else { panic!("setup") };
    assert!(setup.check && setup.engine == Engine::Firecracker);
    let Local::Doctor(doctor) = local(&["doctor", "--engine", "qemu", "--listen", "[::1]:80", "--json"]) else {
        panic!("doctor")
    };
    assert_eq!((doctor.engine, doctor.listen.port), (Engine::Qemu, 80));
    let Local::Keys(KeysArgs::Create { name, read_only, account_wide, .. }) =
        local(&["keys", "create", "--name", "ci", "--read-only"])
    else {
        panic!("keys")
    };
    assert_eq!((name.as_deref(), read_only, account_wide), (Some("ci"), true, false));
    assert!(matches!(local(&["keys", "ls"]), Local::Keys(KeysArgs::Ls { .. })));
    assert!(matches!(local(&["keys", "revoke", "abc"]), Local::Keys(KeysArgs::Revoke { id, .. }) if id == "abc"));
}
