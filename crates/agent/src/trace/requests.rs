//! The requests about traces.

use std::sync::Arc;

use runtime_proto::channel::Stream;
use runtime_proto::guest::{ErrorCode, GuestError, ProcessRef, Tell};

use crate::Agent;
use crate::serve::{Answer, done, tell};

/// The files of an ended process.
pub(crate) async fn get(agent: &Arc<Agent>, wanted: ProcessRef, stream: &Stream) -> Answer {
    let proc = agent.table.get(&wanted.process_id)?;
    proc.begun().await?;
    let Some(trace) = &proc.trace else {
        let message = format!("process {} was started without being traced", proc.id);
        return Err(GuestError::new(ErrorCode::NotTraced, message).into());
    };
    let Some(found) = trace.found() else {
        let message = format!("process {} has not ended", proc.id);
        return Err(GuestError::new(ErrorCode::StillRunning, message).into());
    };
    for message in found.messages() {
        tell(stream, Tell::Traced(message)).await?;
    }
    Ok(done())
}
