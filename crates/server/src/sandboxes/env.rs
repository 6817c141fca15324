//! Rules for environment variables.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::error::{ApiError, Issue, Kind};
use crate::fields::{Checked, Given};

/// Names and values, bounded in number and in bytes over all of them.
pub fn check_env(env: &BTreeMap<String, String>, most: usize, most_bytes: usize) -> Result<(), ApiError> {
    for (name, value) in env {
        if !is_name(name) {
            let shown: String = name.chars().take(128).collect();
            return Err(invalid(&shown, "is not a variable name: letters, digits and _, not starting with a digit"));
        }
        if value.contains('\0') {
            return Err(invalid(name, "has a NUL in its value"));
        }
    }
    let bytes: usize = env.iter().map(|(name, value)| name.len() + value.len()).sum();
    if env.len() > most || bytes > most_bytes {
        return Err(ApiError::new(
            Kind::EnvTooLarge,
            format!(
                "The environment is too large: at most {most} variables and {most_bytes} bytes of names and values."
            ),
        ));
    }
    Ok(())
}

fn invalid(name: &str, message: &str) -> ApiError {
    ApiError::new(Kind::InvalidEnv, format!("The environment variable {name} {message}."))
        .details(json!({ "name": name }))
}

fn is_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|first| first.is_ascii_alphabetic() || first == b'_')
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// The map as it came; [`check_env`] judges its words, with codes of their own.
pub(crate) fn env_map(given: Given<'_>) -> Checked<BTreeMap<String, String>> {
    let changes = env_changes(given)?;
    let nulls: Vec<Issue> =
        changes.iter().filter(|(_, value)| value.is_none()).map(|(name, _)| Issue::new(name, "must be text")).collect();
    if !nulls.is_empty() {
        return Err(nulls);
    }
    Ok(changes.into_iter().filter_map(|(name, value)| Some((name, value?))).collect())
}

/// The same where null removes a variable.
pub(crate) fn env_changes(given: Given<'_>) -> Checked<BTreeMap<String, Option<String>>> {
    let Value::Object(entries) = given.value else {
        return Err(vec![Issue::new("", "must be an object of names to values")]);
    };
    let (mut good, mut issues) = (BTreeMap::new(), Vec::new());
    for (name, value) in entries {
        match value {
            Value::String(text) => {
                good.insert(name.clone(), Some(text.clone()));
            }
            Value::Null => {
                good.insert(name.clone(), None);
            }
            _ => issues.push(Issue::new(name.chars().take(128).collect::<String>(), "must be text")),
        }
    }
    if issues.is_empty() { Ok(good) } else { Err(issues) }
}
