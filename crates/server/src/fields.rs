//! Reading what a caller sent, field by field, and naming everything that is wrong at once.
//!
//! ```ignore
//! let mut fields = Fields::body(&bytes)?;
//! let path = fields.need("path", text(1..=4096));
//! let depth = fields.opt("depth", int(0..=64)).unwrap_or(1);
//! fields.finish()?; // every wrong and every unknown field, or nothing
//! ```
//!
//! A rule is a function from a value to a typed one or to issues. In a query every value is text: numbers and booleans
//! are read from it, a repeated name is a list.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use crate::error::{ApiError, Issue};

/// Fields that are named when a body has more unknown ones than anyone reads.
const MOST_ISSUES: usize = 100;

/// A value under a rule.
#[derive(Clone, Copy)]
pub struct Given<'a> {
    pub value: &'a Value,
    /// From a query: text stands for numbers and booleans.
    pub text: bool,
}

pub type Checked<T> = Result<T, Vec<Issue>>;

fn refuse<T>(message: impl Into<String>) -> Checked<T> {
    Err(vec![Issue::new("", message)])
}

fn under<T>(name: &str, checked: Checked<T>) -> Checked<T> {
    checked.map_err(|issues| issues.into_iter().map(|issue| nest(name, issue)).collect())
}

fn nest(name: &str, issue: Issue) -> Issue {
    let path = match issue.path.as_str() {
        "" => name.to_owned(),
        rest if rest.starts_with('[') => format!("{name}{rest}"),
        rest => format!("{name}.{rest}"),
    };
    Issue { path, ..issue }
}

/// The named values of one body, query or inner object.
pub struct Fields {
    values: Map<String, Value>,
    text: bool,
    issues: Vec<Issue>,
}

impl Fields {
    /// A JSON body; an empty one is an empty object.
    pub fn body(bytes: &[u8]) -> Result<Self, ApiError> {
        if bytes.iter().all(u8::is_ascii_whitespace) {
            return Ok(Self::object(Map::new()));
        }
        match serde_json::from_slice(bytes) {
            Ok(Value::Object(values)) => Ok(Self::object(values)),
            Ok(_) => Err(ApiError::wrong("body", "must be a JSON object")),
            Err(error) => Err(ApiError::wrong("body", format!("is not valid JSON ({error})"))),
        }
    }

    /// A form-urlencoded query.
    pub fn query(query: &str) -> Result<Self, ApiError> {
        let mut values = Map::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let (Some(name), Some(value)) = (form_decode(name), form_decode(value)) else {
                return Err(ApiError::wrong("query", "is not percent-encoded UTF-8"));
            };
            match values.get_mut(&name) {
                None => {
                    values.insert(name, Value::String(value));
                }
                Some(Value::Array(list)) => list.push(Value::String(value)),
                Some(first) => {
                    let earlier = first.take();
                    *first = Value::Array(vec![earlier, Value::String(value)]);
                }
            }
        }
        Ok(Self { values, text: true, issues: Vec::new() })
    }

    /// What was given, by name.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.values.keys().map(String::as_str)
    }

    #[must_use]
    pub fn object(values: Map<String, Value>) -> Self {
        Self { values, text: false, issues: Vec::new() }
    }

    fn apply<T>(&mut self, name: &str, value: &Value, rule: impl Fn(Given<'_>) -> Checked<T>) -> Option<T> {
        match under(name, rule(Given { value, text: self.text })) {
            Ok(value) => Some(value),
            Err(issues) => {
                self.issues.extend(issues);
                None
            }
        }
    }

    /// Absent and null are the same.
    pub fn opt<T>(&mut self, name: &str, rule: impl Fn(Given<'_>) -> Checked<T>) -> Option<T> {
        match self.values.remove(name)? {
            Value::Null => None,
            value => self.apply(name, &value, rule),
        }
    }

    /// Absent is `None`, null is `Some(None)`.
    pub fn nullable<T>(&mut self, name: &str, rule: impl Fn(Given<'_>) -> Checked<T>) -> Option<Option<T>> {
        match self.values.remove(name)? {
            Value::Null => Some(None),
            value => self.apply(name, &value, rule).map(Some),
        }
    }

    /// Must be there; null is `None`.
    pub fn need_nullable<T>(&mut self, name: &str, rule: impl Fn(Given<'_>) -> Checked<T>) -> Option<T> {
        match self.values.remove(name) {
            None => {
                self.wrong(name, "is required");
                None
            }
            Some(Value::Null) => None,
            Some(value) => self.apply(name, &value, rule),
        }
    }

    /// Must be there. The default stands in for a wrong one until [`finish`](Self::finish) refuses.
    pub fn need<T: Default>(&mut self, name: &str, rule: impl Fn(Given<'_>) -> Checked<T>) -> T {
        match self.values.remove(name) {
            None | Some(Value::Null) => {
                self.wrong(name, "is required");
                T::default()
            }
            Some(value) => self.apply(name, &value, rule).unwrap_or_default(),
        }
    }

    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.values.get(name).is_some_and(|value| !value.is_null())
    }

    /// Adds an issue found by the caller, for rules over several fields.
    pub fn wrong(&mut self, path: &str, message: impl Into<String>) {
        self.issues.push(Issue::new(path, message));
    }

    /// Accepted whatever it holds, and not used.
    pub fn ignore(&mut self, name: &str) {
        self.values.remove(name);
    }

    fn all_issues(mut self) -> Vec<Issue> {
        for name in self.values.keys().take(MOST_ISSUES) {
            let shown: String = name.chars().take(128).collect();
            self.issues.push(Issue::new(shown, "is not a known field"));
        }
        self.issues
    }

    /// Refuses if anything was wrong or is left over.
    pub fn finish(self) -> Result<(), ApiError> {
        let issues = self.all_issues();
        if issues.is_empty() { Ok(()) } else { Err(ApiError::invalid(issues)) }
    }

    /// The same inside a rule for an inner object.
    pub fn checked<T>(self, value: T) -> Checked<T> {
        let issues = self.all_issues();
        if issues.is_empty() { Ok(value) } else { Err(issues) }
    }
}

/// Text of so many characters, without NUL.
pub fn text(length: RangeInclusive<usize>) -> impl Fn(Given<'_>) -> Checked<String> {
    move |given| {
        let Value::String(text) = given.value else {
            return refuse(if given.value.is_array() && given.text {
                "is given more than once"
            } else {
                "must be text"
            });
        };
        if text.contains('\0') {
            return refuse("must not contain a NUL");
        }
        // Bytes bound characters from above: short text is never counted.
        let fits = text.len() <= *length.end() || text.chars().count() <= *length.end();
        if !fits {
            return refuse(format!("must have at most {} characters", length.end()));
        }
        if text.chars().take(*length.start()).count() < *length.start() {
            return refuse(if *length.start() == 1 {
                "must not be empty".to_owned()
            } else {
                format!("must have at least {} characters", length.start())
            });
        }
        Ok(text.clone())
    }
}

/// Text on one line: no control characters.
pub fn line(length: RangeInclusive<usize>) -> impl Fn(Given<'_>) -> Checked<String> {
    let inner = text(length);
    move |given| {
        let text = inner(given)?;
        if text.chars().any(char::is_control) { refuse("must not contain control characters") } else { Ok(text) }
    }
}

/// An absolute path in a sandbox.
pub fn absolute_path() -> impl Fn(Given<'_>) -> Checked<String> {
    let inner = text(1..=4096);
    move |given| {
        let path = inner(given)?;
        if path.starts_with('/') { Ok(path) } else { refuse("must be an absolute path") }
    }
}

/// A whole number in a range; `1.0` is not one.
pub fn int<T>(range: RangeInclusive<T>) -> impl Fn(Given<'_>) -> Checked<T>
where
    T: Copy + PartialOrd + std::fmt::Display + TryFrom<i64>,
{
    move |given| {
        let number = match given.value {
            Value::Number(number) => number.as_i64(),
            Value::String(text) if given.text => text.parse().ok(),
            _ => None,
        };
        let is_number = match given.value {
            Value::Number(number) => number.is_i64() || number.is_u64(),
            _ => number.is_some(),
        };
        if !is_number {
            return refuse("must be a whole number");
        }
        match number.and_then(|number| T::try_from(number).ok()) {
            Some(number) if range.contains(&number) => Ok(number),
            _ => refuse(format!("must be from {} to {}", range.start(), range.end())),
        }
    }
}

pub fn boolean(given: Given<'_>) -> Checked<bool> {
    match given.value {
        Value::Bool(value) => Ok(*value),
        Value::String(text) if given.text && text == "true" => Ok(true),
        Value::String(text) if given.text && text == "false" => Ok(false),
        _ => refuse("must be true or false"),
    }
}

/// One of these words, each standing for a value.
pub fn one_of<T: Copy>(words: &'static [(&'static str, T)]) -> impl Fn(Given<'_>) -> Checked<T> {
    move |given| {
        let found = given.value.as_str().and_then(|text| words.iter().find(|(word, _)| *word == text));
        match found {
            Some((_, value)) => Ok(*value),
            None => {
                let known: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
                refuse(format!("must be one of {}", known.join(", ")))
            }
        }
    }
}

/// A list of so many items; in a query a single value is a list of one.
pub fn list<T>(
    count: RangeInclusive<usize>,
    rule: impl Fn(Given<'_>) -> Checked<T>,
) -> impl Fn(Given<'_>) -> Checked<Vec<T>> {
    move |given| {
        let single;
        let items: &[Value] = match given.value {
            Value::Array(items) => items,
            Value::String(_) if given.text => {
                single = [given.value.clone()];
                &single
            }
            _ => return refuse("must be a list"),
        };
        if !count.contains(&items.len()) {
            return refuse(format!("must have {} to {} items", count.start(), count.end()));
        }
        let (mut good, mut issues) = (Vec::with_capacity(items.len()), Vec::new());
        for (index, value) in items.iter().enumerate() {
            match under(&format!("[{index}]"), rule(Given { value, text: given.text })) {
                Ok(item) => good.push(item),
                Err(wrong) => issues.extend(wrong),
            }
        }
        if issues.is_empty() { Ok(good) } else { Err(issues) }
    }
}

/// Names to values; `most` bounds their number.
pub fn map<T>(
    most: usize,
    key: impl Fn(&str) -> Result<(), String>,
    rule: impl Fn(Given<'_>) -> Checked<T>,
) -> impl Fn(Given<'_>) -> Checked<BTreeMap<String, T>> {
    move |given| {
        let Value::Object(entries) = given.value else {
            return refuse("must be an object of names to values");
        };
        if entries.len() > most {
            return refuse(format!("must have at most {most} entries"));
        }
        let (mut good, mut issues) = (BTreeMap::new(), Vec::new());
        for (name, value) in entries {
            let shown: String = name.chars().take(128).collect();
            if let Err(message) = key(name) {
                issues.push(Issue::new(shown, message));
                continue;
            }
            match under(&shown, rule(Given { value, text: false })) {
                Ok(value) => {
                    good.insert(name.clone(), value);
                }
                Err(wrong) => issues.extend(wrong),
            }
        }
        if issues.is_empty() { Ok(good) } else { Err(issues) }
    }
}

/// An inner object, read by the same means.
pub fn object<T>(read: impl Fn(Fields) -> Checked<T>) -> impl Fn(Given<'_>) -> Checked<T> {
    move |given| match given.value {
        Value::Object(values) => read(Fields::object(values.clone())),
        _ => refuse("must be an object"),
    }
}

/// `+` is a space, `%XX` a byte; `None` unless the whole is UTF-8.
#[must_use]
pub fn form_decode(text: &str) -> Option<String> {
    decode(text, true)
}

/// The same for a path segment, where `+` is itself.
#[must_use]
pub fn path_decode(text: &str) -> Option<String> {
    decode(text, false)
}

fn decode(text: &str, plus_is_space: bool) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let high = char::from(rest.next()?).to_digit(16)?;
                let low = char::from(rest.next()?).to_digit(16)?;
                u8::try_from(high * 16 + low).ok()?
            }
            b'+' if plus_is_space => b' ',
            other => other,
        });
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_form_is_decoded_once_and_only_if_it_is_text() {
        for (form, text) in [
            ("a+b", Some("a b")),
            ("a%2Bb", Some("a+b")),
            ("%C3%A4", Some("ä")),
            ("%", None),
            ("%4", None),
            ("%zz", None),
            ("%ff", None),
            ("%2541", Some("%41")),
        ] {
            assert_eq!(form_decode(form).as_deref(), text, "{form}");
        }
        assert_eq!(path_decode("a+b").as_deref(), Some("a+b"));
    }

    #[test]
    fn a_query_reads_numbers_and_lists_from_text() {
        let mut query = Fields::query("n=5&flag=true&one=a&many=a&many=b&last").unwrap();
        assert_eq!(query.opt("n", int(0..=9)), Some(5));
        assert_eq!(query.opt("flag", boolean), Some(true));
        assert_eq!(query.opt("one", list(0..=9, text(0..=9))), Some(vec!["a".to_owned()]));
        assert_eq!(query.opt("many", list(0..=9, text(0..=9))), Some(vec!["a".to_owned(), "b".to_owned()]));
        assert_eq!(query.opt("last", text(0..=9)), Some(String::new()));
        query.finish().unwrap();
        // A body's text is no number.
        let mut body = Fields::body(br#"{"n": "5", "flag": "true"}"#).unwrap();
        assert_eq!((body.opt("n", int(0..=9)), body.opt("flag", boolean)), (None, None));
        assert!(body.finish().is_err());
    }

    #[test]
    fn numbers_are_whole_and_in_their_range() {
        for (json, ok) in [
            ("1", true),
            ("9", true),
            ("0", false),
            ("10", false),
            ("1.0", false),
            ("1e0", false),
            ("-1", false),
            ("18446744073709551615", false),
            ("1e400", false),
            ("true", false),
        ] {
            let read = Fields::body(format!(r#"{{"n":{json}}}"#).as_bytes()).and_then(|mut fields| {
                let number = fields.opt("n", int(1..=9_u8));
                fields.finish().map(|()| number)
            });
            assert_eq!(read.is_ok(), ok, "{json}: {read:?}");
        }
    }

    proptest! {
        #[test]
        fn nothing_a_client_sends_stops_the_reader(bytes in proptest::collection::vec(any::<u8>(), 0..256), query in ".{0,64}") {
            if let Ok(mut fields) = Fields::body(&bytes) {
                fields.opt("a", text(1..=4));
                let _ = fields.finish();
            }
            if let Ok(mut fields) = Fields::query(&query) {
                fields.opt("a", int(1..=4_u32));
                let _ = fields.finish();
            }
        }
    }
}
