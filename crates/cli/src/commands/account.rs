//! Who the key is, and what it may use.

use serde_json::Value;

use super::show::micros;
use super::{Context, Outcome};
use crate::args::values::{show_dollars, show_seconds};
use crate::printer::facts;

pub(super) async fn whoami(context: &Context) -> Outcome {
    let me = context.client.me().await?;
    if context.printer.json {
        context.printer.value(&me.0)?;
        return Ok(0);
    }
    let text = |field: &str| me.text(field).unwrap_or("-").to_owned();
    let organization = me.text("orgName").map_or_else(|| text("orgId"), |name| format!("{name} ({})", text("orgId")));
    context.printer.line(&facts(&[
        ("organization".into(), organization),
        ("role".into(), text("role")),
        ("principal".into(), text("principalId")),
        ("key".into(), text("credentialId")),
        ("api".into(), format!("{} ({})", context.client.origin().as_str(), text("apiVersion"))),
    ]))?;
    Ok(0)
}

pub(super) async fn limits(context: &Context) -> Outcome {
    let limits = context.client.limits().await?;
    if context.printer.json {
        context.printer.value(&limits.0)?;
        return Ok(0);
    }
    context.printer.line(&facts(&about(&limits.0)))?;
    Ok(0)
}

/// What people ask first comes first; what this version knows nothing of comes last, but it comes.
const ORDER: [(&str, &str); 5] = [
    ("access", "access"),
    ("daily", "daily"),
    ("trial", "free time"),
    // Its rows have names of their own.
    ("account", "account"),
    ("credit", "credit"),
];

fn about(limits: &Value) -> Vec<(String, String)> {
    let mut list = Vec::new();
    for (field, name) in ORDER {
        if let Some(value) = limits.get(field) {
            flatten(name, value, &mut list);
        }
    }
    for (field, value) in limits.as_object().into_iter().flatten() {
        if ORDER.iter().all(|(known, _)| known != field) {
            flatten(&words(field), value, &mut list);
        }
    }
    if list.is_empty() {
        list.push(("limits".into(), "none".into()));
    }
    list
}

/// Every value of a record as a fact, named by the words that lead to it.
fn flatten(name: &str, value: &Value, list: &mut Vec<(String, String)>) {
    match value {
        Value::Object(object) => {
            for (field, value) in object {
                flatten(&format!("{name} {}", words(field)), value, list);
            }
        }
        Value::Array(items) if items.iter().any(|item| item.is_object() || item.is_array()) => {
            for (at, item) in items.iter().enumerate() {
                match usage(item) {
                    Some(fact) => list.push(fact),
                    None => flatten(&format!("{name} {}", at + 1), item, list),
                }
            }
        }
        simple => list.push(fact(name, simple)),
    }
}

/// A row of what is in use, such as `Memory of the host  512 of 65536 MiB`.
fn usage(row: &Value) -> Option<(String, String)> {
    let label = row.get("label")?.as_str()?;
    let used = row.get("used")?.as_u64()?;
    let unit = match row.get("unit").and_then(Value::as_str) {
        Some("count") | None => String::new(),
        Some("mib") => " MiB".into(),
        Some(other) => format!(" {other}"),
    };
    let text = match row.get("max")? {
        Value::Null => format!("{used}{unit}, no limit"),
        max => format!("{used} of {}{unit}", max.as_u64()?),
    };
    Some((label.to_owned(), text))
}

/// One value, in dollars or seconds where it is money or time.
fn fact(name: &str, value: &Value) -> (String, String) {
    let in_unit = |unit: &str, show: &dyn Fn(&Value) -> Option<String>| {
        let name = name.strip_suffix(unit)?;
        let text = if value.is_null() { Some(text(value)) } else { show(value) };
        Some((name.to_owned(), text?))
    };
    in_unit(" micros", &|value| micros(value).map(show_dollars))
        .or_else(|| in_unit(" ms", &|value| value.as_u64().map(|ms| format!("{} s", show_seconds(ms)))))
        .unwrap_or_else(|| (name.to_owned(), text(value)))
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => "none".into(),
        Value::Bool(flag) => if *flag { "yes" } else { "no" }.into(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => text.clone(),
        Value::Array(items) if items.is_empty() => "none".into(),
        Value::Array(items) => items.iter().map(text).collect::<Vec<_>>().join(", "),
        Value::Object(fields) => fields.values().map(text).collect::<Vec<_>>().join(", "),
    }
}

/// `dailyLimitMicros` as `daily limit micros`.
fn words(field: &str) -> String {
    let mut out = String::new();
    let mut before_lower = false;
    // A unit is one word.
    for c in field.replace("MiB", "Mib").chars() {
        if c.is_uppercase() && before_lower {
            out.push(' ');
        }
        before_lower = c.is_lowercase() || c.is_ascii_digit();
        out.extend(c.to_lowercase());
    }
    out
}

#[cfg(test)]
mod tests {
    use runtime_api::account::{AccountLimit, Credit, DailyLimit, Limits};

    use super::*;

    fn read(limits: &Value) -> String {
        facts(&about(limits))
    }

    #[test]
    fn the_limits_of_the_api_read_as_facts_in_dollars() {
        let row = |label: &str, unit: &str, max, used| AccountLimit {
            limit: "sandbox.x".into(),
            label: label.into(),
            unit: unit.into(),
            max,
            used,
        };
        let limits = Limits {
            access: "full".into(),
            daily: DailyLimit {
                limit_micros: Some("2500000".into()),
                used_micros: "0".into(),
                remaining_micros: None,
                window: "24h".into(),
            },
            trial: None,
            account: vec![row("Sandboxes at once", "count", None, 3), row("Memory", "mib", Some(65536), 512)],
            credit: Credit {
                available_micros: "12345678".into(),
                daily_pace_micros: "99".into(),
                runway_days: None,
                low_below_days: 7,
                state: "ok".into(),
                added_by: "owner".into(),
            },
        };
        insta::assert_snapshot!(read(&serde_json::to_value(limits).expect("JSON")), @r"
        access                 full
        daily limit            $2.50
        daily remaining        none
        daily used             $0.0000
        daily window           24h
        free time              none
        Sandboxes at once      3, no limit
        Memory                 512 of 65536 MiB
        credit added by        owner
        credit available       $12.35
        credit daily pace      $0.000099
        credit low below days  7
        credit runway days     none
        credit state           ok
        ");
    }

    #[test]
    fn whatever_else_comes_is_facts_and_never_json() {
        let record = serde_json::json!({
            "trial": {"usedMs": 5500, "availableMs": null},
            "dailyLimitMicros": 2_500_000, "hugeMicros": "99999999999999999999", "memoryMiB": {"max": 65536},
            "regions": ["a", "b"], "nothing": [], "readOnly": false, "rows": [{"label": "x", "left": 1}, [2, [3]]]
        });
        let text = read(&record);
        assert!(!text.contains(['{', '[', '"']), "{text}");
        insta::assert_snapshot!(text, @r"
        free time available  none
        free time used       5.5 s
        daily limit          $2.50
        huge micros          99999999999999999999
        memory mib max       65536
        nothing              none
        read only            no
        regions              a, b
        rows 1 label         x
        rows 1 left          1
        rows 2 1             2
        rows 2 2             3
        ");
        assert_eq!(read(&serde_json::json!({})), "limits  none");
    }
}
