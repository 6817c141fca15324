//! Rules that create and update share.

use std::collections::BTreeMap;

use runtime_model::limits;
use runtime_store::{OnLimit, UserKind};

use crate::error::Issue;
use crate::fields::{Checked, Fields, Given, int, line, map, one_of, text};

pub(crate) const DAY: u32 = 86_400;

pub(crate) fn name(given: Given<'_>) -> Checked<String> {
    line(1..=limits::NAME_TEXT)(given)
}

pub(crate) fn labels(given: Given<'_>) -> Checked<BTreeMap<String, String>> {
    let key = |key: &str| {
        let length = key.chars().count();
        if length == 0 || length > limits::LABEL_TEXT || key.chars().any(char::is_control) {
            return Err(format!("is not a label: 1 to {} characters, no control characters", limits::LABEL_TEXT));
        }
        Ok(())
    };
    map(limits::LABELS, key, text(0..=limits::LABEL_TEXT))(given)
}

pub(crate) fn user(given: Given<'_>) -> Checked<UserKind> {
    one_of(&[("sandbox", UserKind::Sandbox), ("root", UserKind::Root)])(given)
}

/// 0, or a day at most; what is too short is raised, not refused.
pub(crate) fn idle_seconds(given: Given<'_>) -> Checked<u32> {
    let seconds = int(0..=*limits::IDLE_SECONDS.end())(given)?;
    Ok(if seconds == 0 { 0 } else { seconds.max(*limits::IDLE_SECONDS.start()) })
}

pub(crate) fn timeout_seconds(given: Given<'_>) -> Checked<u32> {
    let range = limits::TIME_LIMIT_SECONDS;
    match int(0..=u32::MAX)(given) {
        Ok(0) => Ok(0),
        Ok(seconds) if range.contains(&seconds) => Ok(seconds),
        Ok(_) => Err(vec![Issue::new("", format!("must be 0 or from {} to {}", range.start(), range.end()))]),
        Err(issues) => Err(issues),
    }
}

pub(crate) fn money(given: Given<'_>) -> Checked<i64> {
    int(0..=i64::MAX)(given)
}

/// `onTimeout` or its older name; both at once must agree.
pub(crate) fn on_limit(fields: &mut Fields) -> Option<OnLimit> {
    let rule = one_of(&[("pause", OnLimit::Pause), ("stop", OnLimit::Stop), ("delete", OnLimit::Delete)]);
    let newer = fields.opt("onTimeout", &rule);
    let older = fields.opt("onLeaseEnd", &rule);
    if let (Some(newer), Some(older)) = (newer, older)
        && newer != older
    {
        fields.wrong("onLeaseEnd", "differs from onTimeout, which is the same setting");
    }
    newer.or(older)
}
