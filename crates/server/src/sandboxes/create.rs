//! `POST /v1/sandboxes`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State as Extract;
use axum::response::Response;
use runtime_api::error::ErrorBody;
use runtime_api::sandbox::{CreateSandbox, Sandbox};
use runtime_model::network::Network;
use runtime_model::{Event, SandboxId, Shape, State, limits};
use runtime_proto::node::NodeError;
use runtime_store::{Env, OnLimit, Operation, Outcome, Replay, SandboxRow, UserKind};
use serde_json::json;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::change::{Step, apply, name_taken};
use super::copy;
use super::env::{check_env, env_map};
use super::fields as rules;
use super::live::Live;
use super::network;
use super::pause::{Wake, woken};
use super::record::live_record;
use crate::call::Call;
use crate::clock::now_ms;
use crate::error::{ApiError, Kind};
use crate::fields::{Checked, Fields, boolean, int, line, list, object, one_of, text};
use crate::idempotency::{Answer, Keep};
use crate::{AppState, Caller};

pub(super) fn router() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(create))
}

/// A sandbox that goes and comes under the same name: how often to look again.
const NAME_ATTEMPTS: usize = 100;

/// Make a sandbox, or with `getOrCreate` find the one of that name.
///
/// `Prefer: wait=N` waits until it runs.
#[utoipa::path(post, path = "/v1/sandboxes", tag = "sandboxes", request_body = CreateSandbox, responses(
    (status = 200, body = Sandbox), (status = 400, body = ErrorBody), (status = 409, body = ErrorBody)))]
async fn create(Extract(app): Extract<AppState>, call: Call) -> Response {
    app.answer_once(call, |app, call| async move {
        let mut wanted = Wanted::read(&app, &call)?;
        if wanted.refused.is_none()
            && let Some(snapshot) = wanted.snapshot.take()
        {
            wanted.refused = copy::begin(&app, &call.caller, &snapshot, &wanted.given, &mut wanted.row).await.err();
        }
        if wanted.get_or_create {
            get_or_create(&app, &call, wanted).await
        } else {
            only_create(&app, &call, wanted).await
        }
    })
    .await
}

/// A create that was checked.
struct Wanted {
    row: SandboxRow,
    get_or_create: bool,
    /// The snapshot it is to be a copy of, and what was said about its size and labels besides.
    snapshot: Option<String>,
    given: copy::Given,
    /// Well said, but not to be had here. Of no account where the name leads to a sandbox that is there.
    refused: Option<ApiError>,
}

impl Wanted {
    fn read(app: &AppState, call: &Call) -> Result<Self, ApiError> {
        let facts = app.node().facts();
        let mut fields = call.fields()?;
        let named = fields.has("name");
        let name = fields.opt("name", rules::name);
        let get_or_create = fields.opt("getOrCreate", boolean).unwrap_or_default();
        if get_or_create && !named {
            fields.wrong("getOrCreate", "needs a name");
        }
        let labels = fields.opt("labels", rules::labels);
        let env: BTreeMap<String, String> = fields.opt("env", env_map).unwrap_or_default();
        let user = fields.opt("user", rules::user).unwrap_or(UserKind::Sandbox);
        fields.opt("funding", one_of(&[("trial", ()), ("paid", ())]));
        fields.opt("pausable", boolean);
        let region = fields.opt("region", line(1..=64));
        let (shape, cpu_reserved, mut given) = shape(&mut fields);
        given.labels = labels.is_some();
        let too_large = memory_beyond(shape, facts.memory_mib);
        let of_a_snapshot = fields.has("snapshot");
        if let Some(why) = too_large.as_ref().filter(|_| !get_or_create && !of_a_snapshot) {
            fields.wrong("memoryMiB", why);
        }
        let timeout = fields.opt("timeoutSeconds", rules::timeout_seconds);
        let on_limit = rules::on_limit(&mut fields).unwrap_or(OnLimit::Pause);
        let idle = fields.opt("idlePauseSeconds", rules::idle_seconds);
        let auto_wake = fields.opt("autoWake", boolean).unwrap_or(true);
        let persistent = fields.opt("persistent", boolean).unwrap_or_default();
        let max_total_cost_micros = fields.opt("maxTotalCostMicros", rules::money);
        fields.opt("maxCostMicros", rules::money);
        let network = fields.opt("network", object(network::inner)).unwrap_or_else(Network::open);
        let image = fields.opt("image", line(1..=512));
        let snapshot = fields.opt("snapshot", line(1..=128));
        if image.is_some() && snapshot.is_some() {
            fields.wrong("snapshot", "cannot be given with image");
        }
        fields.opt("spreadFrom", list(1..=16, line(1..=64)));
        let volumes = fields.opt("volumes", list(0..=4, object(volume))).unwrap_or_default();
        let tailscale = fields.opt("tailscale", object(tailscale));
        let secrets = fields.opt("secrets", list(0..=256, line(1..=128)));
        fields.finish()?;

        let to_be_had = || {
            check_env(&env, limits::ENV_VARS, limits::ENV_BYTES)?;
            if let Some(why) = too_large.filter(|_| !of_a_snapshot) {
                return Err(ApiError::wrong("memoryMiB", why));
            }
            if let Some(region) = region.filter(|region| *region != app.config().region) {
                return Err(ApiError::new(Kind::InvalidRegion, format!("There is no region {region} here."))
                    .details(json!({ "field": "region", "available": [app.config().region] })));
            }
            if let Some(image) = image {
                return Err(ApiError::new(Kind::ImageNotFound, format!("There is no image {image}."))
                    .hint("Leave `image` out for the base image."));
            }
            if !volumes.is_empty() {
                return Err(unavailable(Kind::Unavailable, "Volumes"));
            }
            if tailscale.is_some() {
                return Err(unavailable(Kind::NetworkUnavailable, "Tailscale"));
            }
            if secrets.as_ref().is_some_and(|names| !names.is_empty()) {
                return Err(unavailable(Kind::SecretsUnavailable, "Egress secrets"));
            }
            Ok(())
        };
        let refused = to_be_had().err();
        let now = now_ms();
        let idle_default = if persistent { 0 } else { limits::DEFAULT_IDLE_SECONDS };
        let row = SandboxRow {
            id: SandboxId::new_v4(),
            credential: call.caller.credential,
            name,
            labels: labels.unwrap_or_default(),
            env: Env(env),
            user,
            region: app.config().region.clone(),
            shape,
            cpu_reserved,
            timeout_seconds: timeout.unwrap_or_default(),
            on_limit,
            idle_seconds: idle.unwrap_or(idle_default),
            auto_wake,
            persistent,
            max_total_cost_micros,
            image: None,
            snapshot: None,
            secrets,
            network,
            network_version: 1,
            network_updated_at: None,
            engine: facts.engine.to_owned(),
            state: State::Starting,
            reason: None,
            operation: Some(Operation::StartNew),
            generation: 1,
            created_at: now,
            ready_at: None,
            last_active_at: Some(now),
            ends_at: None,
            ended_at: None,
            paused_at: None,
            retention_days: None,
            disk_kept: false,
            memory_restored: None,
            charged_micros: 0,
            held_micros: 0,
        };
        Ok(Self { row, get_or_create, snapshot, given, refused })
    }
}

fn unavailable(kind: Kind, what: &str) -> ApiError {
    ApiError::new(kind, format!("{what} cannot be used on this server yet."))
        .hint("This version of the server does not have it; leave the field out.")
}

pub(super) fn memory_beyond(shape: Shape, host_mib: u64) -> Option<String> {
    // What nobody asked for is not refused: a small host runs the default on what it has.
    let asked = shape.memory_mib != limits::DEFAULT_MEMORY_MIB;
    (asked && shape.memory_mib > host_mib).then(|| format!("is more than the {host_mib} MiB this host has"))
}

fn shape(fields: &mut Fields) -> (Shape, bool, copy::Given) {
    let given = copy::Given {
        vcpu: fields.opt("vcpu", int(limits::VCPU)),
        memory_mib: fields.opt("memoryMiB", int(limits::MEMORY_MIB)),
        disk_mib: fields.opt("diskMiB", int(limits::DISK_MIB)),
        labels: false,
    };
    let vcpu = given.vcpu.unwrap_or(limits::DEFAULT_VCPU);
    let memory_mib = given.memory_mib.unwrap_or(limits::DEFAULT_MEMORY_MIB);
    let disk_mib = given.disk_mib.unwrap_or(limits::DEFAULT_DISK_MIB);
    let reserved = fields.opt("cpu", one_of(&[("shared", false), ("reserved", true)])).unwrap_or_default();
    let whole = vcpu * 1000;
    let floor = fields.opt("cpuFloorMillis", int(0..=16_000_u32));
    if floor.is_some_and(|floor| floor > whole) {
        fields.wrong("cpuFloorMillis", format!("is more than the {whole} of its vcpu"));
    }
    let cpu_floor_millis = if reserved { whole } else { floor.unwrap_or(limits::DEFAULT_CPU_FLOOR_MILLIS) };
    (Shape { vcpu, memory_mib, disk_mib, cpu_floor_millis }, reserved, given)
}

fn volume(mut fields: Fields) -> Checked<()> {
    fields.need("volumeId", line(1..=128));
    fields.need("path", crate::fields::absolute_path());
    fields.opt("mode", one_of(&[("rw", ()), ("snapshot", ())]));
    fields.checked(())
}

fn tailscale(mut fields: Fields) -> Checked<()> {
    fields.need("authKeySecret", text(1..=256));
    fields.opt("hostname", line(1..=128));
    fields.opt("tags", list(0..=64, line(1..=128)));
    fields.checked(())
}

async fn only_create(app: &AppState, call: &Call, wanted: Wanted) -> Result<Answer, ApiError> {
    if let Some(refused) = wanted.refused {
        return Err(refused);
    }
    match try_create(app, call, &wanted).await? {
        Tried::Made(answer) => Ok(answer),
        Tried::Held(holder) => {
            let holder = app.live(holder).await?.and_then(|live| live.peek());
            let known = holder.filter(|row| call.caller.reaches(row.credential));
            Err(name_taken(wanted.row.name.as_deref(), known.as_deref()))
        }
    }
}

async fn get_or_create(app: &AppState, call: &Call, mut wanted: Wanted) -> Result<Answer, ApiError> {
    let name = wanted.row.name.clone().unwrap_or_default();
    for _ in 0..NAME_ATTEMPTS {
        let held = app.store().name_holder(&name).await;
        let holder = match held.map_err(|error| ApiError::internal(format!("looking up the name {name}"), error))? {
            Some(holder) => holder,
            None if wanted.refused.is_some() => break,
            None => match try_create(app, call, &wanted).await? {
                Tried::Made(answer) => return Ok(answer),
                Tried::Held(holder) => holder,
            },
        };
        if let Some(answer) = reuse(app, &call.caller, call.wait, &name, holder).await? {
            return Ok(answer);
        }
        // The holder went away while we looked: the name is free, or someone else's.
        wanted.row.id = SandboxId::new_v4();
    }
    let changing = || ApiError::new(Kind::Busy, "The name keeps changing hands; nothing was done.");
    Err(wanted.refused.unwrap_or_else(changing))
}

enum Tried {
    Made(Answer),
    Held(SandboxId),
}

/// A machine that stands ready and may become the sandbox. Where it is not known whether it did, it is removed: a row that
/// was written all the same has another made.
struct Spare<'a> {
    app: &'a AppState,
    id: Option<SandboxId>,
}

impl<'a> Spare<'a> {
    fn take(app: &'a AppState, row: &SandboxRow) -> Self {
        let id = row.snapshot.is_none().then(|| app.node().take_spare(&row.shape)).flatten();
        Self { app, id }
    }

    fn became_a_sandbox(&mut self) {
        self.id = None;
    }

    fn give_back(&mut self) {
        if let Some(id) = self.id.take() {
            self.app.node().give_back(id);
        }
    }
}

impl Drop for Spare<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            let app = self.app.clone();
            self.app.tasks().spawn(async move {
                if let Err(error) = app.node().remove(id).await {
                    tracing::warn!(spare = %id, error = &error as &dyn std::error::Error, "a spare was not removed");
                }
            });
        }
    }
}

async fn try_create(app: &AppState, call: &Call, wanted: &Wanted) -> Result<Tried, ApiError> {
    let mut row = wanted.row.clone();
    let mut spare = Spare::take(app, &row);
    row.id = spare.id.unwrap_or(row.id);
    let id = row.id;
    let key = app.key_record(call, Replay::Sandbox(id));
    let scope = key.as_ref().map(|key| (key.scope.clone(), key.key.clone()));
    let made = app.store().create_sandbox(row.clone(), key).await;
    let made = made.map_err(|error| ApiError::internal(format!("creating sandbox {id}"), error))?;
    if matches!(made, Outcome::Done) {
        spare.became_a_sandbox();
    } else {
        spare.give_back();
    }
    match made {
        Outcome::Done => {}
        Outcome::NameHeld(holder) => return Ok(Tried::Held(holder)),
        Outcome::KeyUsed(held) => {
            return Ok(Tried::Made(Answer::ready(app.replay(&held).await?, Keep::Done)));
        }
        Outcome::Moved => return Err(ApiError::new(Kind::Busy, "The sandbox could not be made; nothing was done.")),
    }
    let live = app.sandboxes().get_or_insert(id, Some(row.clone()));
    app.nudge(&live);
    let waited = live.settled(call.wait.unwrap_or_default()).await;
    if let Some(Err(refusal)) = waited.as_ref().map(|row| no_room(&live, row)) {
        // As if it had never been: the caller asks again with the same key.
        let undone = app.store().uncreate_sandbox(id, scope).await;
        undone.map_err(|error| ApiError::internal(format!("undoing the create of sandbox {id}"), error))?;
        live.publish_gone();
        app.sandboxes().remove(id);
        return Err(refusal);
    }
    // Deleted by someone while it started: what it was.
    let row = waited.unwrap_or_else(|| Arc::new(row));
    Ok(Tried::Made(Answer::json(&live_record(&live, &row))?.keep(Keep::Done)))
}

/// A start that found no room, told as such to the one who waited for it.
pub(super) fn no_room(live: &Live, row: &SandboxRow) -> Result<(), ApiError> {
    match live.start_error() {
        Some(error @ NodeError::NoRoom(_)) if row.state == State::Stopped => Err(error.into()),
        _ => Ok(()),
    }
}

/// The holder of the name, running if it can; `None` if it is gone.
async fn reuse(
    app: &AppState,
    caller: &Caller,
    wait: Option<Duration>,
    name: &str,
    holder: SandboxId,
) -> Result<Option<Answer>, ApiError> {
    let Some(live) = app.live(holder).await? else { return Ok(None) };
    let Some(row) = live.peek() else { return Ok(None) };
    if !caller.reaches(row.credential) {
        return Err(name_taken(Some(name), None));
    }
    live.touch();
    let wait = wait.unwrap_or_default();
    if row.state == State::Stopping && live.settled(wait.max(STOP_WAIT)).await.is_none() {
        return Ok(None);
    }
    let paused = live.peek().is_some_and(|row| matches!(row.state, State::Pausing | State::Paused));
    let started = if paused { app.wake_up(&live, Wake::Call).await } else { app.start_again(&live).await };
    match started {
        Ok(()) => {}
        // It moved on between the look and the deed: look again.
        Err(error) if matches!(error.kind(), Kind::NotPaused | Kind::NotRunning | Kind::SandboxNotReady) => {
            return Ok(None);
        }
        // Its disk went, or it was deleted, and the name with it.
        Err(error) if matches!(error.kind(), Kind::DiskGone | Kind::NotFound) => return Ok(None),
        Err(error) => return Err(error),
    }
    let Some(row) = live.settled(wait).await else { return Ok(None) };
    no_room(&live, &row)?;
    woken(&live, &row)?;
    if !row.holds_name() || row.name.as_deref() != Some(name) {
        return Ok(None);
    }
    Ok(Some(Answer::json(&Sandbox { reused: Some(true), ..live_record(&live, &row) })?))
}

/// A sandbox keeps its engine.
pub(crate) fn other_engine(row: &SandboxRow, engine: &str) -> ApiError {
    let text = format!("This sandbox was made on the engine {}; this server runs {engine}.", row.engine);
    ApiError::new(Kind::EngineMismatch, text)
}

pub(super) fn same_engine(row: &SandboxRow, engine: &str) -> Result<(), ApiError> {
    if row.engine == engine { Ok(()) } else { Err(other_engine(row, engine)) }
}

/// The row of a sandbox that starts again from its disk; `None` where it runs, or is on its way.
pub(super) fn started_again(row: &SandboxRow, engine: &str) -> Result<Option<SandboxRow>, ApiError> {
    let Some(mut next) = apply(row, Event::Restart)? else { return Ok(None) };
    if !row.disk_kept {
        return Err(ApiError::new(Kind::DiskGone, "The disk of this sandbox is gone; it cannot start again."));
    }
    same_engine(row, engine)?;
    next.operation = Some(Operation::StartKept);
    Ok(Some(next))
}

/// A stop takes no longer than this; then its sandbox can start again.
const STOP_WAIT: Duration = Duration::from_secs(30);

impl AppState {
    /// Restarts a stopped sandbox; leaves one that runs, or is on its way, as it is.
    pub(crate) async fn start_again(&self, live: &Arc<Live>) -> Result<(), ApiError> {
        let engine = self.node().facts().engine;
        let row = self.change(live, |row| Ok(started_again(row, engine)?.map_or(Step::Stay, Step::save))).await?;
        if row.state == State::Starting {
            self.nudge(live);
        }
        Ok(())
    }
}
