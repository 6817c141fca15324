//! Another size: the machine stops, keeps its disk, and starts again with the new size. Where a disk can grow under a
//! machine that runs, that alone needs no restart.

use axum::extract::{Path, State as Extract};
use axum::response::Response;
use runtime_api::error::ErrorBody;
use runtime_api::sandbox::{ResizeSandbox, Sandbox};
use runtime_model::{Event, Shape, State, limits};
use runtime_proto::node::HostFacts;
use runtime_store::{Operation, SandboxRow};
use serde_json::json;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::change::{Step, apply};
use super::create::{memory_beyond, no_room, started_again};
use super::live::{Live, is_settled, not_found};
use super::record::live_record;
use crate::AppState;
use crate::call::Call;
use crate::error::{ApiError, Kind};
use crate::fields::{Fields, boolean, int};
use crate::idempotency::Answer;

pub(super) fn router() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(resize))
}

/// Give a sandbox another size. What is left out stays; a disk only grows. `restart` says that its memory may go: it
/// stops, keeps its disk, and starts again.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/~resize", tag = "sandboxes", params(("id" = String, Path)),
    request_body = ResizeSandbox, responses(
    (status = 200, body = Sandbox), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody),
    (status = 409, body = ErrorBody)))]
async fn resize(Extract(app): Extract<AppState>, Path(id): Path<String>, call: Call) -> Response {
    app.answer_once(call, |app, call| async move {
        let mut fields = call.fields()?;
        let restart = fields.need("restart", boolean);
        let wanted = Wanted::read(&mut fields);
        fields.finish()?;
        let live = app.reach(&call.caller, &id).await?;
        live.touch();
        let wait = call.wait.unwrap_or_default();
        if !is_settled(live.row()?.state) {
            live.settled(wait).await;
        }
        let facts = app.node().facts();
        let row = app.change(&live, |row| step(row, &wanted, restart, &facts)).await?;
        // Also where nothing was left to change: the server may have ended before the driver was asked the last time.
        if wanted.disk_mib.is_some() && facts.grows_disk && matches!(row.state, State::Running | State::Paused) {
            app.node().set_disk_limit(live.id, row.shape.disk_mib).await?;
        }
        app.nudge(&live);
        let row = live.settled(wait).await.ok_or_else(not_found)?;
        no_room(&live, &row)?;
        Answer::json(&live_record(&live, &row))
    })
    .await
}

struct Wanted {
    vcpu: Option<u32>,
    memory_mib: Option<u64>,
    disk_mib: Option<u64>,
}

impl Wanted {
    fn read(fields: &mut Fields) -> Self {
        let given = ["vcpu", "memoryMiB", "diskMiB"].into_iter().any(|name| fields.has(name));
        if !given {
            fields.wrong("vcpu", "is needed, or memoryMiB, or diskMiB");
        }
        Self {
            vcpu: fields.opt("vcpu", int(limits::VCPU)),
            memory_mib: fields.opt("memoryMiB", int(limits::MEMORY_MIB)),
            disk_mib: fields.opt("diskMiB", int(limits::DISK_MIB)),
        }
    }

    /// The size that the sandbox will have.
    fn of(&self, row: &SandboxRow, host_mib: u64) -> Result<Shape, ApiError> {
        let has = row.shape;
        let vcpu = self.vcpu.unwrap_or(has.vcpu);
        let whole = vcpu * 1000;
        let shape = Shape {
            vcpu,
            memory_mib: self.memory_mib.unwrap_or(has.memory_mib),
            disk_mib: self.disk_mib.unwrap_or(has.disk_mib),
            cpu_floor_millis: if row.cpu_reserved { whole } else { has.cpu_floor_millis.min(whole) },
        };
        if shape.disk_mib < has.disk_mib {
            let text = format!("The disk has {} MiB, and a disk only grows.", has.disk_mib);
            return Err(ApiError::new(Kind::DiskTooSmall, text).details(json!({ "field": "diskMiB" })));
        }
        match memory_beyond(shape, host_mib).filter(|_| self.memory_mib.is_some()) {
            Some(why) => Err(ApiError::wrong("memoryMiB", why)),
            None => Ok(shape),
        }
    }
}

fn step(row: &SandboxRow, wanted: &Wanted, restart: bool, facts: &HostFacts) -> Result<Step, ApiError> {
    let shape = wanted.of(row, facts.memory_mib)?;
    let stopped = row.state == State::Stopped;
    if shape == row.shape && !stopped {
        return Ok(Step::Stay);
    }
    if stopped {
        let Some(mut next) = started_again(row, facts.engine)? else { return Ok(Step::Stay) };
        next.shape = shape;
        return Ok(Step::save(next));
    }
    let only_disk = shape == Shape { disk_mib: shape.disk_mib, ..row.shape };
    if only_disk && facts.grows_disk && matches!(row.state, State::Running | State::Paused) {
        return Ok(Step::save(SandboxRow { shape, ..row.clone() }));
    }
    if !restart {
        let text = if only_disk {
            "The disk of this sandbox cannot grow while it runs."
        } else {
            "Processors and memory of a sandbox change only when it starts."
        };
        let hint = "Ask again with restart: true. What is in its memory is lost, its disk is kept.";
        return Err(ApiError::new(Kind::ResizeNeedsRestart, text).hint(hint));
    }
    // Before it is stopped: what could not start again is left as it is.
    super::create::same_engine(row, facts.engine)?;
    let Some(mut next) = apply(row, Event::Stop)? else {
        return Err(ApiError::new(Kind::SandboxNotReady, "The sandbox is being stopped."));
    };
    next.shape = shape;
    next.reason = None;
    next.operation = Some(Operation::Resize);
    Ok(Step::save(next))
}

impl AppState {
    /// The machine is ended, and in one step with that its row says that it starts again.
    pub(super) async fn stop_to_start(&self, live: &Live) -> Result<(), ApiError> {
        let id = live.id;
        self.node().stop(id).await.map_err(|error| ApiError::internal(format!("stopping sandbox {id}"), error))?;
        let disk_kept = self.has_disk(id).await?;
        let step = |row: &SandboxRow| {
            // Stopped meanwhile by somebody who does not want it back.
            if row.state != State::Stopping || row.operation != Some(Operation::Resize) {
                return Ok(Step::Stay);
            }
            let Some(mut ended) = apply(row, Event::Ended)? else { return Ok(Step::Stay) };
            ended.disk_kept = disk_kept;
            if !disk_kept {
                return Ok(Step::save(ended));
            }
            let Some(mut next) = apply(&ended, Event::Restart)? else { return Ok(Step::Stay) };
            next.operation = Some(Operation::StartKept);
            Ok(Step::save(next))
        };
        match self.change(live, step).await {
            Err(error) if error.kind() != Kind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_rows::row;

    fn facts(grows_disk: bool) -> HostFacts {
        HostFacts {
            engine: Box::leak(row().engine.into_boxed_str()),
            emulated: false,
            cores: 4,
            memory_mib: 8192,
            image: String::new(),
            pauses: true,
            grows_disk,
        }
    }

    fn wanted(vcpu: Option<u32>, memory_mib: Option<u64>, disk_mib: Option<u64>) -> Wanted {
        Wanted { vcpu, memory_mib, disk_mib }
    }

    fn running() -> SandboxRow {
        SandboxRow { state: State::Running, operation: None, ..row() }
    }

    fn saved(step: Result<Step, ApiError>) -> SandboxRow {
        match step.unwrap() {
            Step::Save(row) => *row,
            Step::Stay => panic!("nothing was changed"),
        }
    }

    fn refused(step: Result<Step, ApiError>) -> Kind {
        step.err().expect("a refusal").kind()
    }

    #[test]
    fn a_disk_alone_grows_under_a_machine_that_runs() {
        let row = running();
        let larger = wanted(None, None, Some(row.shape.disk_mib + 1024));
        let next = saved(step(&row, &larger, false, &facts(true)));
        assert_eq!((next.state, next.shape.disk_mib), (State::Running, row.shape.disk_mib + 1024));
        assert_eq!(refused(step(&row, &larger, false, &facts(false))), Kind::ResizeNeedsRestart);
        let next = saved(step(&row, &larger, true, &facts(false)));
        assert_eq!((next.state, next.operation), (State::Stopping, Some(Operation::Resize)));
    }

    #[test]
    fn what_starts_anew_needs_the_word() {
        let row = running();
        let other = wanted(Some(row.shape.vcpu + 1), None, None);
        assert_eq!(refused(step(&row, &other, false, &facts(true))), Kind::ResizeNeedsRestart);
        for state in [State::Starting, State::Running, State::Pausing, State::Paused, State::Resuming] {
            let next = saved(step(&SandboxRow { state, ..row.clone() }, &other, true, &facts(true)));
            assert_eq!((next.state, next.shape.vcpu), (State::Stopping, row.shape.vcpu + 1), "{state:?}");
        }
        let stopping = SandboxRow { state: State::Stopping, ..row.clone() };
        assert_eq!(refused(step(&stopping, &other, true, &facts(true))), Kind::SandboxNotReady);
        let stopped = SandboxRow { state: State::Stopped, disk_kept: true, ..row.clone() };
        let next = saved(step(&stopped, &other, false, &facts(true)));
        assert_eq!((next.state, next.operation), (State::Starting, Some(Operation::StartKept)));
        let gone = SandboxRow { disk_kept: false, ..stopped };
        assert_eq!(refused(step(&gone, &other, true, &facts(true))), Kind::DiskGone);
    }

    #[test]
    fn sizes_that_cannot_be_change_nothing() {
        let row = running();
        let smaller = wanted(None, None, Some(row.shape.disk_mib - 1));
        assert_eq!(refused(step(&row, &smaller, true, &facts(true))), Kind::DiskTooSmall);
        let huge = wanted(None, Some(8193), None);
        assert_eq!(refused(step(&row, &huge, true, &facts(true))), Kind::InvalidRequest);
        let same = wanted(Some(row.shape.vcpu), None, None);
        assert!(matches!(step(&row, &same, true, &facts(true)), Ok(Step::Stay)));
    }

    #[test]
    fn the_share_of_a_processor_goes_with_the_size() {
        let reserved = SandboxRow { cpu_reserved: true, ..running() };
        let next = saved(step(&reserved, &wanted(Some(4), None, None), true, &facts(true)));
        assert_eq!(next.shape.cpu_floor_millis, 4000);
        let shape = Shape { vcpu: 4, cpu_floor_millis: 3000, ..running().shape };
        let shared = SandboxRow { shape, ..running() };
        let next = saved(step(&shared, &wanted(Some(2), None, None), true, &facts(true)));
        assert_eq!(next.shape.cpu_floor_millis, 2000);
    }
}
