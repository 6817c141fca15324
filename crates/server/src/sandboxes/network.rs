//! What a sandbox may reach: reading and replacing the rules, and the record of what was decided by them.
//!
//! The row holds the rules; the node holds the sandbox to them. A change is written first and then applied, and answered
//! once both are done. A crash in between leaves a row that is ahead, which the reconciler applies.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Path, State as Extract};
use axum::response::Response;
use runtime_api::error::ErrorBody;
use runtime_api::network::{
    DecidedProcess, ListDecisions, NetworkDecision, NetworkDecisionPage, NetworkRules, SandboxNetwork,
};
use runtime_model::State;
use runtime_model::network::{FORBIDDEN_PORTS, MAX_ENTRIES, MAX_ENTRY, Network, WEB_PORTS};
use runtime_proto::egress::{Decision, Rules, Verdict};
use runtime_store::SandboxRow;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::change::Step;
use super::find::json_response;
use super::live::Live;
use crate::AppState;
use crate::call::Call;
use crate::clock::{now_ms, time};
use crate::error::{ApiError, Issue};
use crate::fields::{Checked, Fields, Given, boolean, int, line, list};
use crate::idempotency::Answer;

pub(super) fn router() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(get, put)).routes(routes!(decisions))
}

const DEFAULT_PAGE: usize = 50;
const MAX_PAGE: usize = 200;

/// The rules of a sandbox, and whether they are in force.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/network", tag = "network", params(("id" = String, Path)), responses(
    (status = 200, body = SandboxNetwork), (status = 404, body = ErrorBody)))]
async fn get(Extract(app): Extract<AppState>, Path(id): Path<String>, call: Call) -> Result<Response, ApiError> {
    call.no_query()?;
    let live = app.reach(&call.caller, &id).await?;
    Ok(json_response(Answer::json(&shown(&live, &*live.row()?))?))
}

/// Replace the rules. What is left out is emptied. Answered once they hold, for open connections too.
#[utoipa::path(put, path = "/v1/sandboxes/{id}/network", tag = "network", params(("id" = String, Path)),
    request_body = NetworkRules, responses(
    (status = 200, body = SandboxNetwork), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody)))]
async fn put(Extract(app): Extract<AppState>, Path(id): Path<String>, call: Call) -> Response {
    app.answer_once(call, |app, call| async move {
        call.no_query()?;
        let mut fields = call.fields()?;
        let network = read(&mut fields);
        fields.finish()?;
        let live = app.reach(&call.caller, &id).await?;
        live.touch();
        app.change(&live, |row| {
            let mut next = row.clone();
            Ok(if replace(&mut next, &network) { Step::save(next) } else { Step::Stay })
        })
        .await?;
        app.enforce(&live).await?;
        Answer::json(&shown(&live, &*live.row()?))
    })
    .await
}

/// What was decided about its connections, newest first. The last thousand are kept, until the server stops.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/network/decisions", tag = "network",
    params(("id" = String, Path), ListDecisions), responses(
    (status = 200, body = NetworkDecisionPage), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody)))]
async fn decisions(Extract(app): Extract<AppState>, Path(id): Path<String>, call: Call) -> Result<Response, ApiError> {
    let mut query = call.query()?;
    let limit = query.opt("limit", int(1..=MAX_PAGE as i64)).and_then(|limit| usize::try_from(limit).ok());
    let before = query.opt("cursor", |given| {
        let place = given.value.as_str().and_then(|text| text.parse::<u64>().ok());
        place.ok_or_else(|| vec![Issue::new("", "is not a cursor of this list")])
    });
    query.finish()?;
    let live = app.reach(&call.caller, &id).await?;
    let page = app.node().decisions(live.id, before, limit.unwrap_or(DEFAULT_PAGE)).await?;
    let next_cursor = page.decisions.last().filter(|_| page.more).map(|last| last.number.to_string());
    let data = page.decisions.into_iter().map(decision).collect();
    Ok(json_response(Answer::json(&NetworkDecisionPage { data, next_cursor, total: page.total })?))
}

/// A policy as a body or a part of one.
pub(super) fn read(fields: &mut Fields) -> Network {
    let internet = fields.need("internet", boolean);
    let allow = fields.opt("allow", list(0..=MAX_ENTRIES, entry)).unwrap_or_default();
    let deny = fields.opt("deny", list(0..=MAX_ENTRIES, entry)).unwrap_or_default();
    let connect = fields.opt("connect", list(0..=MAX_ENTRIES, entry)).unwrap_or_default();
    Network { internet, allow, deny, connect }.normalized()
}

/// The same as a rule for an inner object.
pub(super) fn inner(mut fields: Fields) -> Checked<Network> {
    let network = read(&mut fields);
    fields.checked(network)
}

fn entry<T: std::str::FromStr<Err: std::fmt::Display>>(given: Given<'_>) -> Checked<T> {
    let text = line(1..=MAX_ENTRY)(given)?;
    text.parse().map_err(|error: T::Err| vec![Issue::new("", error.to_string())])
}

/// False: it has these rules already.
pub(super) fn replace(row: &mut SandboxRow, network: &Network) -> bool {
    if row.network == *network {
        return false;
    }
    row.network.clone_from(network);
    row.network_version += 1;
    row.network_updated_at = Some(now_ms());
    true
}

/// As the node takes them.
pub(crate) fn rules(row: &SandboxRow) -> Rules {
    Rules { version: row.network_version, network: Arc::new(row.network.clone()) }
}

/// A machine is there that is held to rules; nothing else can be out of step with them.
fn is_held(row: &SandboxRow) -> bool {
    row.state == State::Running
}

fn shown(live: &Live, row: &SandboxRow) -> SandboxNetwork {
    let texts = |entries: &[runtime_model::network::Entry]| entries.iter().map(ToString::to_string).collect();
    let enforced_version = if is_held(row) { live.enforced().min(row.network_version) } else { row.network_version };
    SandboxNetwork {
        sandbox_id: row.id.to_string(),
        internet: row.network.internet,
        allow: texts(&row.network.allow),
        deny: texts(&row.network.deny),
        connect: row.network.connect.iter().map(ToString::to_string).collect(),
        version: row.network_version,
        enforced: enforced_version == row.network_version,
        enforced_version,
        ports: WEB_PORTS.to_vec(),
        open_ports: true,
        connect_allowed: true,
        connect_reason: "granted".to_owned(),
        forbidden_ports: FORBIDDEN_PORTS.to_vec(),
        updated_at: row.network_updated_at.map(time),
    }
}

fn decision(decision: Decision) -> NetworkDecision {
    let moment = |at: u64| time(i64::try_from(at).unwrap_or(i64::MAX));
    let Decision { pid, program, process_id, .. } = decision;
    NetworkDecision {
        number: decision.number,
        at: moment(decision.at),
        verdict: match decision.verdict {
            Verdict::Allowed => "allowed",
            Verdict::Refused => "refused",
        }
        .to_owned(),
        reason: decision.reason,
        rule: decision.rule,
        method: decision.method,
        host: decision.host,
        port: decision.port,
        address: decision.address.map(|ip: IpAddr| ip.to_string()),
        rules_version: decision.version,
        sent_bytes: decision.sent,
        received_bytes: decision.received,
        ended_at: decision.ended.map(moment),
        process: (pid > 0).then(|| DecidedProcess {
            pid,
            program,
            process_id: Some(process_id).filter(|id| !id.is_empty()),
        }),
    }
}

impl AppState {
    /// Has the node hold a running sandbox to the rules of its row.
    pub(crate) async fn enforce(&self, live: &Live) -> Result<(), ApiError> {
        let Some(row) = live.peek().filter(|row| is_held(row) && live.enforced() < row.network_version) else {
            return Ok(());
        };
        self.node().set_network(row.id, rules(&row)).await?;
        live.note_enforced(row.network_version);
        Ok(())
    }

    /// The same in a task of its own, one at a time for each sandbox.
    pub(crate) fn enforce_soon(&self, live: &Arc<Live>, row: &SandboxRow) {
        if live.enforced() >= row.network_version || !live.begin_enforcing() {
            return;
        }
        let (app, live) = (self.clone(), live.clone());
        self.tasks().spawn(async move {
            if let Err(error) = app.enforce(&live).await {
                let cause = error.cause().map_or_else(|| error.to_string(), str::to_owned);
                tracing::error!(sandbox = %live.id, cause, "its network rules are not in force; tried again soon");
            }
            live.end_enforcing();
        });
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn parsed(body: Value) -> Result<Network, Vec<String>> {
        let mut fields = Fields::body(body.to_string().as_bytes()).unwrap();
        let network = read(&mut fields);
        fields.checked(network).map_err(|issues| issues.into_iter().map(|issue| issue.path).collect())
    }

    #[test]
    fn every_wrong_entry_is_named() {
        let body = json!({
            "allow": ["a.example", "https://b.example", "*"], "deny": [7, "192.0.2.0/33"], "connect": ["a.example"], "x": 1,
        });
        let mut paths = parsed(body).unwrap_err();
        paths.sort_unstable();
        assert_eq!(paths, ["allow[1]", "allow[2]", "connect[0]", "deny[0]", "deny[1]", "internet", "x"]);
        let many: Vec<String> = (0..=MAX_ENTRIES).map(|n| format!("a{n}.example")).collect();
        assert_eq!(parsed(json!({"internet": true, "allow": many})).unwrap_err(), ["allow"]);
    }

    #[test]
    fn a_list_of_what_is_allowed_turns_the_internet_on_for_it() {
        let network = parsed(json!({"internet": false, "allow": ["A.example."]})).unwrap();
        assert!(network.internet);
        assert_eq!(network.allow[0].to_string(), "a.example");
        assert_eq!(parsed(json!({"internet": false, "allow": []})).unwrap(), Network::closed());
    }

    #[test]
    fn the_same_rules_again_are_no_change() {
        let mut row = crate::test_rows::row();
        assert!(!replace(&mut row, &Network::open()));
        assert!(replace(&mut row, &Network::closed()));
        assert_eq!((row.network_version, row.network_updated_at.is_some()), (2, true));
    }
}
