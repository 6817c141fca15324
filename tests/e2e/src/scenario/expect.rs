//! What `expect` means in a scenario: see `sdk/scenarios/README.md`.

use regex::Regex;
use serde_json::Value;

/// Every place where a value is not what was expected. `earlier` finds a value of an earlier result.
pub(super) fn differences(got: Option<&Value>, wanted: &Value, earlier: &dyn Fn(&str) -> Value) -> Vec<String> {
    let mut found = Vec::new();
    compare(got, wanted, "result", earlier, &mut found);
    found
}

fn compare(got: Option<&Value>, wanted: &Value, place: &str, earlier: &dyn Fn(&str) -> Value, found: &mut Vec<String>) {
    let shown = || got.map_or_else(|| "absent".to_owned(), |got| got.to_string().chars().take(300).collect());
    match wanted {
        Value::Object(fields) => {
            if let Some((name, value)) = fields.iter().find(|(name, _)| name.starts_with('$')) {
                if !rule(name, value, got, earlier) {
                    found.push(format!("{place} is {}, which {name} {value} does not match", shown()));
                }
                return;
            }
            if !got.is_some_and(Value::is_object) {
                found.push(format!("{place} is {}, and no object", shown()));
                return;
            }
            for (name, value) in fields {
                compare(got.and_then(|got| got.get(name)), value, &format!("{place}.{name}"), earlier, found);
            }
        }
        Value::Array(items) => match got.and_then(Value::as_array) {
            Some(have) if have.len() == items.len() => {
                for (at, (have, item)) in have.iter().zip(items).enumerate() {
                    compare(Some(have), item, &format!("{place}[{at}]"), earlier, found);
                }
            }
            _ => found.push(format!("{place} is {}, not a list of {}", shown(), items.len())),
        },
        // What is not there is null to whoever reads it.
        _ if got.unwrap_or(&Value::Null) == wanted => {}
        _ => found.push(format!("{place} is {}, not {wanted}", shown())),
    }
}

fn rule(name: &str, value: &Value, got: Option<&Value>, earlier: &dyn Fn(&str) -> Value) -> bool {
    let matches = |got: &Value, value: &Value| differences(Some(got), value, earlier).is_empty();
    match (name, got) {
        ("$absent", got) => got.is_none_or(Value::is_null),
        ("$not", got) => !differences(got, value, earlier).is_empty(),
        (_, None) => false,
        ("$from", Some(got)) => *got == earlier(value.as_str().unwrap_or_default()),
        ("$type", Some(got)) => kind(got) == value,
        ("$length", Some(got)) => length(got) == value.as_u64(),
        ("$matches", Some(got)) => {
            let pattern = Regex::new(value.as_str().unwrap_or_default()).expect("a regular expression");
            got.as_str().is_some_and(|text| pattern.is_match(text))
        }
        ("$contains", Some(Value::Array(items))) => items.iter().any(|item| matches(item, value)),
        ("$contains", Some(Value::String(text))) => value.as_str().is_some_and(|part| text.contains(part)),
        _ => panic!("nobody knows the rule {name} for such a value"),
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn length(value: &Value) -> Option<u64> {
    let length = match value {
        Value::String(text) => text.chars().count(),
        Value::Array(items) => items.len(),
        _ => return None,
    };
    u64::try_from(length).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn each_rule_matches_what_it_says_and_nothing_else() {
        let earlier = |_: &str| json!("id");
        let same = |got: Value, wanted: Value| differences(Some(&got), &wanted, &earlier).is_empty();
        for (got, good, bad) in [
            (json!({"a": 1, "b": 2}), json!({"a": 1}), json!({"a": 2})),
            (
                json!({"a": null}),
                json!({"a": {"$absent": true}, "c": {"$absent": true}}),
                json!({"a": {"$type": "string"}}),
            ),
            (json!([1, 2]), json!([1, {"$type": "number"}]), json!([1])),
            (json!("abc"), json!({"$matches": "^a"}), json!({"$matches": "^b"})),
            (json!("grün"), json!({"$length": 4}), json!({"$length": 5})),
            (json!([{"id": "x"}]), json!({"$contains": {"id": "x"}}), json!({"$contains": {"id": "y"}})),
            (json!("id"), json!({"$from": "box.id"}), json!({"$not": {"$from": "box.id"}})),
            (json!(true), json!(true), json!(1)),
        ] {
            assert!(same(got.clone(), good.clone()), "{got} {good}");
            assert!(!same(got.clone(), bad.clone()), "{got} {bad}");
        }
    }
}
