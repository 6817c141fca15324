//! Who the key is, and what it may use.

use serde_json::Value;

use super::{Context, Outcome};
use crate::args::values::show_dollars;
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
    let mut list = Vec::new();
    flatten("", &limits.0, &mut list);
    if list.is_empty() {
        list.push(("limits".into(), "none".into()));
    }
    context.printer.line(&facts(&list))?;
    Ok(0)
}

/// Every value of a record as a fact, named by the words that lead to it.
fn flatten(name: &str, value: &Value, list: &mut Vec<(String, String)>) {
    let text = match value {
        Value::Object(object) => {
            for (field, value) in object {
                let words = words(field);
                flatten(&if name.is_empty() { words } else { format!("{name} {words}") }, value, list);
            }
            return;
        }
        Value::Number(number) => match number.as_i64() {
            Some(micros) if name.ends_with(" micros") => {
                list.push((name.trim_end_matches(" micros").to_owned(), show_dollars(micros)));
                return;
            }
            _ => number.to_string(),
        },
        Value::Null => "none".into(),
        Value::Bool(flag) => if *flag { "yes" } else { "no" }.into(),
        Value::String(text) => text.clone(),
        Value::Array(items) => items
            .iter()
            .map(|item| item.as_str().map_or_else(|| item.to_string(), str::to_owned))
            .collect::<Vec<_>>()
            .join(", "),
    };
    list.push((name.to_owned(), text));
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
    use super::*;

    #[test]
    fn any_record_reads_as_facts() {
        let mut list = Vec::new();
        let record = serde_json::json!({
            "dailyLimitMicros": 2_500_000, "memoryMiB": {"max": 65536}, "regions": ["a", "b"], "free": null, "readOnly": false
        });
        flatten("", &record, &mut list);
        list.sort();
        let list: Vec<(&str, &str)> = list.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(
            list,
            [
                ("daily limit", "$2.50"),
                ("free", "none"),
                ("memory mib max", "65536"),
                ("read only", "no"),
                ("regions", "a, b")
            ]
        );
    }
}
