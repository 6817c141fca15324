//! The word that was probably meant.

/// The candidate that `typed` begins, or that is one slip away (two in a longer word). The nearest wins; among equals the
/// first.
pub(crate) fn likely<'a>(typed: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let slips = if typed.chars().count() > 5 { 2 } else { 1 };
    candidates
        .filter(|candidate| *candidate != typed)
        .filter_map(|candidate| {
            let distance = strsim::osa_distance(typed, candidate);
            let begins = typed.len() >= 2 && candidate.starts_with(typed);
            (begins || distance <= slips).then_some((if begins { 0 } else { distance }, candidate))
        })
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::likely;

    #[test]
    fn a_beginning_or_a_slip() {
        let words = ["name", "memory", "max-total-cost", "no-wait", "label"];
        let find = |typed| likely(typed, words.into_iter());
        assert_eq!(find("mem"), Some("memory"));
        assert_eq!(find("memroy"), Some("memory"));
        assert_eq!(find("lable"), Some("label"));
        assert_eq!(find("nmae"), Some("name"));
        assert_eq!(find("max-total-kosts"), Some("max-total-cost"));
        assert_eq!(find("nxxe"), None, "two slips are too many for a short word");
        assert_eq!(find("m"), None);
        assert_eq!(find("network"), None);
    }
}
