//! Answers that come late, twice, or not at all.

use serde_json::json;

use crate::player::{Answer, Player};
use crate::process::ran;
use crate::sandboxes::{ID, sandbox};

#[test]
fn a_cut_answer_is_asked_for_again_with_the_same_key() {
    let player = Player::start(|_, before| {
        if before == 0 { Answer::bytes(200, "{\"id\":").then_cut() } else { Answer::json(200, &sandbox(ID, "running")) }
    });
    let ran = ran(&player, &["sandboxes", "create"]);
    assert_eq!((ran.code, ran.out), (0, format!("{ID}\n")), "{}", ran.err);
    let asked = player.asked();
    assert_eq!(asked.len(), 2);
    assert_eq!(asked[0].header("idempotency-key"), asked[1].header("idempotency-key"));
    assert_eq!(asked[0].body, asked[1].body);
}

#[test]
fn a_late_failure_is_a_failure() {
    let player = Player::start(|_, _| {
        let error = json!({"error": {"code": "name_taken", "status": 409, "message": "taken", "requestId": "req_2"}});
        Answer::bytes(200, format!("  \n {error}")).header("runtime-late-answer", "true")
    });
    let ran = ran(&player, &["sandboxes", "create", "--name", "worker"]);
    assert_eq!(ran.code, 1);
    assert!(ran.err.contains("Error [name_taken]: taken"), "{}", ran.err);
    assert_eq!(player.asked().len(), 1);
}

#[test]
fn a_late_success_is_a_success() {
    let player = Player::start(|_, _| {
        Answer::bytes(200, format!("\n\n{}", sandbox(ID, "running"))).header("runtime-late-answer", "true")
    });
    assert_eq!(ran(&player, &["sandboxes", "create"]).code, 0);
}

#[test]
fn waiting_for_room_is_said_once_per_reason() {
    let player = Player::start(|_, before| {
        let full = |code: &str| {
            let error = json!({"code": code, "status": 409, "message": "the host is full", "retryAfterMs": 1});
            Answer::json(409, &json!({ "error": error }))
        };
        match before {
            0 | 1 => full("no_capacity"),
            2 => full("account_share_full"),
            _ => Answer::json(200, &sandbox(ID, "running")),
        }
    });
    let ran = ran(&player, &["sandboxes", "create"]);
    assert_eq!(ran.code, 0);
    let lines: Vec<&str> = ran.err.lines().take(2).collect();
    assert_eq!(
        lines,
        ["Waiting for room [no_capacity]: the host is full", "Waiting for room [account_share_full]: the host is full"]
    );
    assert_eq!(ran.err.matches("Waiting").count(), 2);
    let asked = player.asked();
    assert!(asked.iter().all(|request| request.header("idempotency-key") == asked[0].header("idempotency-key")));
}

#[test]
fn a_feature_that_is_off_is_asked_for_once() {
    let player = Player::start(|_, _| Answer::refusal(501, "network_rules_unavailable"));
    let ran = ran(&player, &["sandboxes", "create", "--allow", "example.com"]);
    assert_eq!((ran.code, player.asked().len()), (1, 1));
    assert_eq!(ran.err, "Error [network_rules_unavailable]: no\nRequest: req_1\n");
}

#[test]
fn an_answer_of_another_program_is_named() {
    let player = Player::start(|_, _| Answer::bytes(200, "<html>"));
    let ran = ran(&player, &["whoami"]);
    assert!(ran.err.contains("Error [invalid_answer]") && ran.err.contains("RUNTIME_API_URL"), "{}", ran.err);
}

#[test]
fn a_server_fault_invites_a_report_and_a_mistake_does_not() {
    let fault = Player::start(|_, _| Answer::refusal(500, "internal_error"));
    assert!(ran(&fault, &["limits"]).err.contains("report"));
    let mistake = Player::start(|_, _| Answer::refusal(403, "forbidden"));
    assert!(!ran(&mistake, &["limits"]).err.contains("report"));
}
