//! An answer's object, as it came.

use serde_json::Value;

/// A JSON object of the contract with tolerant readers: a field that is missing or of another type reads as absent.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Record(pub Value);

impl Record {
    /// The id, or nothing for an object without one.
    #[must_use]
    pub fn id(&self) -> &str {
        self.text("id").unwrap_or_default()
    }

    #[must_use]
    pub fn text(&self, field: &str) -> Option<&str> {
        self.0.get(field).and_then(Value::as_str)
    }

    #[must_use]
    pub fn int(&self, field: &str) -> Option<i64> {
        self.0.get(field).and_then(Value::as_i64)
    }

    #[must_use]
    pub fn flag(&self, field: &str) -> Option<bool> {
        self.0.get(field).and_then(Value::as_bool)
    }

    /// The records of a list answer.
    #[must_use]
    pub fn data(self) -> Vec<Record> {
        match self.0 {
            Value::Object(mut object) => match object.remove("data") {
                Some(Value::Array(items)) => items.into_iter().map(Record).collect(),
                _ => Vec::new(),
            },
            _ => Vec::new(),
        }
    }
}
