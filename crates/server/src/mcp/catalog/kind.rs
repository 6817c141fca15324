//! What an argument may be: told to a model as a schema, and checked.

use serde_json::{Value, json};

#[derive(Clone, Copy)]
pub(in super::super) enum Kind {
    Text,
    /// From, to.
    Int(u64, u64),
    /// The same, where null says something else than nothing.
    IntOrNull(u64, u64),
    Bool,
    TextMap,
    Texts,
    TextOrTexts,
    Object,
    Objects,
    OneOf(&'static [&'static str]),
}

impl Kind {
    pub(super) fn schema(self, about: &str) -> Value {
        let mut schema = match self {
            Self::Text => json!({ "type": "string" }),
            Self::Int(from, u64::MAX) => json!({ "type": "integer", "minimum": from }),
            Self::Int(from, to) => json!({ "type": "integer", "minimum": from, "maximum": to }),
            Self::IntOrNull(from, u64::MAX) => json!({ "type": ["integer", "null"], "minimum": from }),
            Self::IntOrNull(from, to) => json!({ "type": ["integer", "null"], "minimum": from, "maximum": to }),
            Self::Bool => json!({ "type": "boolean" }),
            Self::TextMap => json!({ "type": "object", "additionalProperties": { "type": "string" } }),
            Self::Texts => json!({ "type": "array", "items": { "type": "string" } }),
            Self::TextOrTexts => json!({ "type": ["string", "array"], "items": { "type": "string" } }),
            Self::Object => json!({ "type": "object" }),
            Self::Objects => json!({ "type": "array", "items": { "type": "object" } }),
            Self::OneOf(words) => json!({ "type": "string", "enum": words }),
        };
        schema["description"] = json!(about);
        schema
    }

    /// What is wrong with a value; a null was left out before.
    pub(in super::super) fn refuse(self, value: &Value) -> Option<String> {
        let texts = |value: &Value| value.as_array().is_some_and(|list| list.iter().all(Value::is_string));
        let integer = |from: u64, to: u64| match value.as_u64() {
            Some(number) if (from..=to).contains(&number) => None,
            _ if to == u64::MAX => Some(format!("must be a whole number, at least {from}")),
            _ => Some(format!("must be a whole number from {from} to {to}")),
        };
        let unless = |fits: bool, what: &str| (!fits).then(|| format!("must be {what}"));
        match self {
            Self::Text => unless(value.is_string(), "text"),
            Self::Int(from, to) => integer(from, to),
            Self::IntOrNull(from, to) => {
                if value.is_null() {
                    None
                } else {
                    integer(from, to)
                }
            }
            Self::Bool => unless(value.is_boolean(), "true or false"),
            Self::TextMap => unless(
                value.as_object().is_some_and(|map| map.values().all(Value::is_string)),
                "an object whose values are text",
            ),
            Self::Texts => unless(texts(value), "a list of texts"),
            Self::TextOrTexts => unless(value.is_string() || texts(value), "text or a list of texts"),
            Self::Object => unless(value.is_object(), "an object"),
            Self::Objects => {
                unless(value.as_array().is_some_and(|list| list.iter().all(Value::is_object)), "a list of objects")
            }
            Self::OneOf(words) => unless(
                value.as_str().is_some_and(|word| words.contains(&word)),
                &format!("one of {}", words.join(", ")),
            ),
        }
    }

    pub(in super::super) fn takes_null(self) -> bool {
        matches!(self, Self::IntOrNull(..))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_checked_by_kind() {
        for (kind, good, bad) in [
            (Kind::Text, json!("a"), json!(1)),
            (Kind::Int(1, 5), json!(5), json!(6)),
            (Kind::Int(0, 5), json!(0), json!(-1)),
            (Kind::Int(0, 5), json!(1), json!(1.5)),
            (Kind::IntOrNull(1, 5), json!(null), json!("1")),
            (Kind::TextMap, json!({"a": "b"}), json!({"a": 1})),
            (Kind::TextOrTexts, json!(["a"]), json!([1])),
            (Kind::Objects, json!([{}]), json!({})),
            (Kind::OneOf(&["a", "b"]), json!("b"), json!("c")),
        ] {
            assert_eq!(kind.refuse(&good), None, "{good}");
            assert!(kind.refuse(&bad).is_some_and(|why| why.starts_with("must be ")), "{bad}");
        }
    }
}
