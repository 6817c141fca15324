//! Commands about sandboxes, whole.

use serde_json::{Value, json};

use crate::player::{Answer, Player};
use crate::process::ran;

pub(crate) const ID: &str = "8a1f9c2e-0d1b-4c3a-9e8f-7a6b5c4d3e2f";
const OTHER: &str = "8a1f9c2e-0d1b-4c3a-9e8f-7a6b5c4d3e30";

pub(crate) fn sandbox(id: &str, state: &str) -> Value {
    json!({"id": id, "name": "worker", "state": state, "labels": {"team": "web"}, "vcpu": 2, "memoryMiB": 4096,
        "diskMiB": 4096, "diskKept": state == "stopped", "createdAt": "2026-11-01T10:00:00.000Z", "timeoutSeconds": 0,
        "idlePauseSeconds": 300, "autoWake": true, "persistent": false, "onTimeout": "pause", "chargedMicros": 0})
}

fn page(data: &[Value], next: Option<&str>) -> Answer {
    Answer::json(200, &json!({"data": data, "nextCursor": next}))
}

#[test]
fn create_sends_what_was_asked_for_and_prints_the_id() {
    let player = Player::start(|_, _| Answer::json(200, &sandbox(ID, "running")));
    let ran = ran(
        &player,
        &[
            "sandboxes",
            "create",
            "--name",
            "worker",
            "--label",
            "team=web",
            "--env",
            "A=b=c",
            "--memory=512",
            "--vcpu",
            "1",
            "--disk",
            "4096",
            "--timeout",
            "60",
            "--on-timeout",
            "stop",
            "--max-total-cost",
            "0.25",
            "--allow",
            "example.com",
            "--no-auto-wake",
            "--cpu",
            "reserved",
            "--volume",
            "v1:/data:snapshot",
            "--trial",
        ],
    );
    assert_eq!((ran.code, ran.out.as_str()), (0, format!("{ID}\n").as_str()), "{}", ran.err);
    let asked = player.asked();
    assert_eq!(asked.len(), 1);
    assert_eq!(asked[0].what, "POST /v1/sandboxes");
    assert_eq!(asked[0].header("prefer"), "wait=60");
    assert_eq!(asked[0].header("authorization"), "Bearer rtcloud_test");
    assert!(asked[0].header("x-runtime-client").starts_with("runtime-cli/"));
    assert_eq!(asked[0].header("idempotency-key").len(), 36);
    assert_eq!(
        asked[0].body,
        json!({"name": "worker", "labels": {"team": "web"}, "env": {"A": "b=c"}, "memoryMiB": 512, "vcpu": 1, "diskMiB": 4096,
            "timeoutSeconds": 60, "onLeaseEnd": "stop", "maxTotalCostMicros": 250_000, "cpu": "reserved",
            "network": {"internet": true, "allow": ["example.com"]}, "autoWake": false,
            "volumes": [{"volumeId": "v1", "path": "/data", "mode": "snapshot"}]})
    );
}

#[test]
fn a_create_that_does_not_come_up_is_a_failure() {
    let player = Player::start(|asked, _| match asked.what.as_str() {
        "POST /v1/sandboxes" => Answer::json(200, &sandbox(ID, "starting")),
        _ => {
            let mut stopped = sandbox(ID, "stopped");
            stopped["stopReason"] = "startup_failed".into();
            Answer::json(200, &stopped)
        }
    });
    let ran = ran(&player, &["sandboxes", "create"]);
    assert_eq!((ran.code, ran.out.as_str()), (1, ""));
    assert!(ran.err.contains("Error [start_failed]") && ran.err.contains("startup_failed"), "{}", ran.err);
    assert_eq!(player.whats()[1], format!("GET /v1/sandboxes/{ID}?waitFor=running&timeoutSeconds=60"));
}

#[test]
fn a_name_is_looked_up_and_an_id_is_not() {
    let player = Player::start(|asked, _| {
        if asked.what.contains("name=worker") {
            page(&[sandbox(ID, "running")], None)
        } else if asked.what.contains("name=twin") {
            page(&[sandbox(ID, "running"), sandbox(OTHER, "running")], None)
        } else if asked.what.contains("name=") {
            page(&[], None)
        } else {
            Answer::json(200, &sandbox(ID, "running"))
        }
    });
    assert_eq!(ran(&player, &["sandboxes", "get", ID]).code, 0);
    assert_eq!(player.whats(), [format!("GET /v1/sandboxes/{ID}")]);
    let named = ran(&player, &["sandboxes", "get", "worker"]);
    assert!(named.out.contains("state        running") && named.out.contains("charged      $0.0000"), "{}", named.out);
    assert_eq!(
        player.whats()[1..],
        ["GET /v1/sandboxes?name=worker&limit=2".to_owned(), format!("GET /v1/sandboxes/{ID}")]
    );
    let nobody = ran(&player, &["sandboxes", "rm", "a b/c"]);
    assert_eq!(nobody.code, 1);
    assert!(nobody.err.contains("Error [sandbox_not_found]"), "{}", nobody.err);
    assert!(ran(&player, &["sandboxes", "rm", "twin"]).err.contains("Error [ambiguous_name]"));
    assert_eq!(
        player.whats()[3..],
        ["GET /v1/sandboxes?name=a%20b%2Fc&limit=2", "GET /v1/sandboxes?name=twin&limit=2"]
    );
}

#[test]
fn a_list_has_every_page_and_says_what_it_hides() {
    let play = || {
        Player::start(|asked, _| {
            if asked.what.contains("cursor=next") {
                let mut gone = sandbox(OTHER, "stopped");
                gone["diskKept"] = false.into();
                page(&[gone, sandbox(OTHER, "stopped")], None)
            } else {
                page(&[sandbox(ID, "running")], Some("next"))
            }
        })
    };
    let player = play();
    let shown = ran(&player, &["sandboxes", "ls", "--state", "running", "--state", "stopped", "--label", "a=b=c"]);
    assert_eq!(
        shown.out,
        format!(
            "ID                                    NAME    STATE    VCPU  MEMORY    CREATED\n\
             {ID}  worker  running  2     4096 MiB  2026-11-01T10:00:00.000Z\n\
             {OTHER}  worker  stopped  2     4096 MiB  2026-11-01T10:00:00.000Z\n"
        )
    );
    assert_eq!(shown.err, "1 stopped sandbox is not shown; see them with --all.\n");
    let first = "GET /v1/sandboxes?limit=100&state=running&state=stopped&label=a%3Ab%3Dc&includeStopped=true";
    assert_eq!(player.whats(), [first.to_owned(), format!("{first}&cursor=next")]);
    let all = ran(&play(), &["sandboxes", "ls", "--all", "--json"]);
    let all: Vec<Value> = serde_json::from_str(&all.out).expect("one JSON value");
    assert_eq!(all.len(), 3);
}

#[test]
fn an_empty_list_is_a_friendly_line() {
    let player = Player::start(|_, _| page(&[], None));
    let shown = ran(&player, &["sandboxes", "ls"]);
    assert_eq!((shown.code, shown.out.as_str()), (0, ""));
    assert!(shown.err.contains("No sandboxes."), "{}", shown.err);
    assert_eq!(ran(&player, &["sandboxes", "ls", "--json"]).out, "[]\n");
}

#[test]
fn one_that_cannot_be_stopped_keeps_no_other_from_stopping() {
    let player = Player::start(|asked, _| {
        if asked.what.starts_with("GET") {
            page(&[sandbox(ID, "running"), sandbox(OTHER, "running")], None)
        } else if asked.what.contains(OTHER) {
            Answer::json(200, &sandbox(OTHER, "stopped"))
        } else {
            Answer::refusal(409, "sandbox_in_use")
        }
    });
    let ran = ran(&player, &["sandboxes", "stop", "--label", "team=web", "--label", "stage=test"]);
    assert_eq!((ran.code, ran.out), (1, format!("{OTHER} stopped\n")));
    assert_eq!(ran.err, format!("{ID} was not stopped [sandbox_in_use]: no\n"));
    assert_eq!(player.whats()[0], "GET /v1/sandboxes?limit=100&label=team%3Aweb&label=stage%3Atest");
}

#[test]
fn an_update_sends_only_what_was_named() {
    let player = Player::start(|_, _| Answer::json(200, &sandbox(ID, "running")));
    let line = [
        "sandboxes",
        "update",
        ID,
        "--env",
        "A=1",
        "--unset-env",
        "B",
        "--auto-wake",
        "off",
        "--max-total-cost",
        "none",
        "--idle-pause",
        "0",
    ];
    let updated = ran(&player, &line);
    assert_eq!(updated.out, format!("{ID} updated\n"), "{}", updated.err);
    let asked = player.asked();
    assert_eq!(asked[0].what, format!("POST /v1/sandboxes/{ID}:update"));
    assert_eq!(
        asked[0].body,
        json!({"env": {"A": "1", "B": null}, "autoWake": false, "maxTotalCostMicros": null, "idlePauseSeconds": 0})
    );
    let nothing = ran(&player, &["sandboxes", "update", ID]);
    assert_eq!(nothing.code, 1);
    assert!(nothing.err.starts_with("Error: there is nothing to change\nHint: "), "{}", nothing.err);
    assert_eq!(player.asked().len(), 1, "nothing was sent");
}

#[test]
fn a_refusal_reads_in_the_words_that_were_typed() {
    let player = Player::start(|_, _| {
        Answer::json(
            400,
            &json!({"error": {"code": "invalid_request", "status": 400, "message": "2 fields are wrong", "requestId": "req_7",
                "hint": "See the limits.", "details": {"issues": [
                    {"path": "memoryMiB", "message": "must be at most 65536"},
                    {"path": "maxTotalCostMicros", "message": "must be at least 10000"}]}}}),
        )
    });
    let human = ran(&player, &["sandboxes", "create", "--memory", "99999"]);
    assert_eq!(human.code, 1);
    assert_eq!(
        human.err,
        "Error [invalid_request]: --memory must be at most 65536\n--max-total-cost must be at least $0.0100\n\
         Hint: See the limits.\nRequest: req_7\n"
    );
    let json = ran(&player, &["sandboxes", "create", "--json"]);
    assert_eq!(json.out, "");
    let error: Value = serde_json::from_str(&json.err).expect("one JSON value");
    assert_eq!((&error["error"]["code"], &error["error"]["status"]), (&json!("invalid_request"), &json!(400)));
    assert_eq!(error["error"]["requestId"], "req_7");
    assert!(error["error"]["idempotencyKey"].is_string() && error["error"]["details"].is_object());
}

#[test]
fn mistakes_send_nothing() {
    let player = Player::start(|_, _| Answer::refusal(500, "internal_error"));
    for line in [
        &["sandboxes", "create", "--nmae", "x"][..],
        &["sandboxes", "spawn", ID],
        &["run", "--", "ls"],
        &["sandboxes", "exec", ID],
        &["volumes", "ls"],
        &["sandboxes", "create", "--help"],
    ] {
        let ran = ran(&player, line);
        assert_eq!(ran.code, i32::from(!line.contains(&"--help")), "{line:?}: {}", ran.err);
    }
    let json = ran(&player, &["sandboxes", "create", "--json", "--nmae", "x"]);
    let error: Value = serde_json::from_str(&json.err).expect("one JSON value");
    assert_eq!(error["error"]["code"], "cli_error");
    assert!(player.asked().is_empty(), "{:?}", player.whats());
}

#[test]
fn a_file_that_comes_short_is_a_failure() {
    let player = Player::start(|asked, _| {
        let promised = if asked.what.contains("short") { "10" } else { "5" };
        let digest = if asked.what.contains("other") { "00" } else { DIGEST };
        Answer::bytes(200, "hello").header("x-content-length", promised).header("x-content-sha256", digest)
    });
    let whole = ran(&player, &["sandboxes", "cat", ID, "/a b"]);
    assert_eq!((whole.code, whole.out.as_str()), (0, "hello"), "{}", whole.err);
    assert_eq!(player.whats(), [format!("GET /v1/sandboxes/{ID}/files/content?path=%2Fa%20b")]);
    for path in ["/short", "/other"] {
        let short = ran(&player, &["sandboxes", "cat", ID, path]);
        assert_eq!(short.code, 1);
        assert!(short.err.contains("Error [download_incomplete]"), "{}", short.err);
    }
}

const DIGEST: &str = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";

#[test]
fn no_server_says_how_to_start_one() {
    let player = Player::start(|_, _| Answer::refusal(401, "unauthorized"));
    let ran = ran(&player, &[]);
    assert_eq!(ran.code, 0);
    assert!(ran.out.contains("does not know the key") && ran.out.contains("runtime up"), "{}", ran.out);
}
