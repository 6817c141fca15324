//! Run a command in a sandbox that is there.

use anyhow::Context as _;
use runtime_service::signals::Signals;
use serde_json::Value;

use super::command::{self, Ended};
use super::{Context, Outcome, input};
use crate::args::sandboxes::ExecArgs;

pub(super) async fn exec(context: &Context, args: ExecArgs) -> Outcome {
    let mut body = command::body(&args.command.all(), args.timeout, context.printer);
    if let Some(cwd) = args.cwd {
        body["cwd"] = cwd.into();
    }
    if !args.env.is_empty() {
        body["env"] = Value::Object(args.env.into_iter().map(|(name, value)| (name, value.into())).collect());
    }
    input::attach(&mut body)?;
    let sandbox = context.client.resolve(&args.sandbox).await?;
    let mut signals = Signals::catch().context("cannot watch for Ctrl-C")?;
    match command::follow(&context.client, &sandbox, body, context.printer, &mut signals).await? {
        Ended::Signal(signal) => Ok(signal.exit_code()),
        Ended::Command { code, result } => {
            if context.printer.json {
                context.printer.value(&result)?;
            }
            Ok(code)
        }
    }
}
