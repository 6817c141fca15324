//! The surface of the guest protocol is frozen in `guest.surface`: an old agent in a saved machine still speaks it.
//!
//! A change here is right only if it adds. Then write the file anew: `UPDATE_SURFACE=1 cargo nextest run -p runtime-proto`.

use std::fmt::Write as _;

/// Every message, field and tag in the order of the source.
fn surface(source: &str) -> String {
    let mut out = String::new();
    let mut attribute = None;
    for line in source.lines().map(str::trim) {
        if let Some(rest) = line.strip_prefix("pub struct ").or_else(|| line.strip_prefix("pub enum ")) {
            writeln!(out, "{}", rest.trim_end_matches(['{', '}', ' '])).unwrap();
        } else if let Some(rest) = line.strip_prefix("#[prost(") {
            attribute = Some(rest.trim_end_matches(")]").to_owned());
        } else if let Some(attribute) = attribute.take_if(|_| !line.starts_with('#') && !line.starts_with("//")) {
            writeln!(out, "  {} [{attribute}]", line.trim_end_matches(',')).unwrap();
        } else if let Some((name, value)) = line.trim_end_matches(',').split_once(" = ")
            && value.parse::<i32>().is_ok()
            && name.chars().all(char::is_alphanumeric)
        {
            writeln!(out, "  {name} = {value}").unwrap();
        }
    }
    out
}

#[test]
fn the_guest_protocol_only_grows() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/guest.surface");
    let now = surface(concat!(
        include_str!("../src/guest.rs"),
        include_str!("../src/guest/command.rs"),
        include_str!("../src/guest/watch.rs")
    ));
    #[expect(clippy::disallowed_methods, reason = "the one switch of this test")]
    let update = std::env::var_os("UPDATE_SURFACE").is_some();
    if update {
        std::fs::write(path, &now).unwrap();
    }
    let frozen = std::fs::read_to_string(path).unwrap_or_default();
    for line in frozen.lines() {
        // The list of a oneof's tags grows with it.
        if !line.contains("oneof = ") {
            assert!(now.lines().any(|l| l == line), "changed or removed: {line}");
        }
    }
    let grown: Vec<&str> = now.lines().filter(|line| !frozen.lines().any(|old| old == *line)).collect();
    assert!(now == frozen, "the surface grew: write it anew (see the module's doc): {grown:?}");
}
