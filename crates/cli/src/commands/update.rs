//! Change a sandbox's settings.

use serde_json::{Map, Value};

use super::{Context, Outcome};
use crate::args::sandboxes::UpdateArgs;
use crate::args::values::OnOff;
use crate::printer::plain;
use crate::scan::UsageError;

/// Refuses an update of nothing.
pub(super) fn needs_something(args: &UpdateArgs) -> Result<(), UsageError> {
    if settings(args).is_empty() {
        return Err(UsageError::new("there is nothing to change").hint(
            "Name a setting, such as --name, --label, --env or --idle-pause. See: runtime sandboxes update --help",
        ));
    }
    Ok(())
}

pub(super) async fn update(context: &Context, args: UpdateArgs) -> Outcome {
    let id = context.client.resolve(&args.sandbox).await?;
    let record = context.client.update_sandbox(&id, &Value::Object(settings(&args))).await?;
    if context.printer.json {
        context.printer.value(&record.0)?;
    } else {
        context.printer.line(&format!("{} updated", plain(&args.sandbox)))?;
    }
    Ok(0)
}

fn settings(args: &UpdateArgs) -> Map<String, Value> {
    let mut settings = Map::new();
    let mut set = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            settings.insert(name.into(), value);
        }
    };
    let map = |pairs: &[(String, String)]| -> Map<String, Value> {
        pairs.iter().map(|(key, value)| (key.clone(), value.as_str().into())).collect()
    };
    set("name", args.name.clone().map(Value::from));
    set("labels", (!args.labels.is_empty()).then(|| Value::Object(map(&args.labels))));
    let mut env = map(&args.env);
    // Null takes a variable away, even one that is set in the same breath.
    env.extend(args.unset_env.iter().map(|name| (name.clone(), Value::Null)));
    set("env", (!env.is_empty()).then_some(Value::Object(env)));
    set("idlePauseSeconds", args.idle_pause.map(Value::from));
    set("autoWake", args.auto_wake.map(OnOff::is_on).map(Value::from));
    set("persistent", args.persistent.map(OnOff::is_on).map(Value::from));
    set("maxTotalCostMicros", args.max_total_cost.map(|limit| limit.0.map_or(Value::Null, Value::from)));
    settings
}
