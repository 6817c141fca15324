//! `deny` can be lifted by an attribute. Outside the one room that may hold `unsafe`, no source file has it.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::room;
use super::table::UNSAFE;
use crate::workspace::Package;

/// Attributes of this package's sources that would permit `unsafe`, by file and line.
pub(super) fn permitted(root: &Path, package: &Package) -> Result<Vec<String>> {
    if room(&package.name) == UNSAFE {
        return Ok(Vec::new());
    }
    let mut wrong = Vec::new();
    for file in sources(&root.join(package.folder(root)))? {
        let text = fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
        for line in lifted(&text) {
            let file = file.strip_prefix(root).unwrap_or(&file);
            wrong.push(format!("{}:{line}: permits unsafe code; it belongs to crates/{UNSAFE}", file.display()));
        }
    }
    Ok(wrong)
}

/// The lines on which an attribute that lifts the ban begins. Attributes may span lines, so the text up to the closing
/// bracket is read as one.
fn lifted(text: &str) -> Vec<usize> {
    let mut lines = Vec::new();
    for (start, _) in text.match_indices('#') {
        let rest = &text[start..];
        if !rest.starts_with("#[") && !rest.starts_with("#![") {
            continue;
        }
        let attribute: String = rest[..rest.find(']').unwrap_or(rest.len())].split_whitespace().collect();
        let lifts = ["allow(", "expect(", "warn("].iter().any(|level| attribute.contains(level));
        if lifts && attribute.contains(concat!("unsafe", "_code")) {
            lines.push(text[..start].matches('\n').count() + 1);
        }
    }
    lines
}

fn sources(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut open = vec![folder.to_owned()];
    while let Some(folder) = open.pop() {
        let entries = fs::read_dir(&folder).with_context(|| format!("listing {}", folder.display()))?;
        for entry in entries {
            let entry = entry.with_context(|| format!("listing {}", folder.display()))?;
            let kind = entry.file_type().with_context(|| format!("looking at {}", entry.path().display()))?;
            let path = entry.path();
            if kind.is_dir() && path.file_name().is_none_or(|name| name != "target") {
                open.push(path);
            } else if kind.is_file() && path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Put together here, so that this file does not hold what it looks for.
    fn attribute(level: &str) -> String {
        format!("fn a() {{}}\n\n#[{level}(\n    {},\n    reason = \"x\"\n)]\nfn b() {{}}\n", concat!("unsafe", "_code"))
    }

    #[test]
    fn an_attribute_that_lifts_the_ban_is_found() {
        assert_eq!(lifted(&attribute("allow")), [3]);
        assert_eq!(lifted(&attribute("expect")), [3]);
        assert_eq!(lifted(&attribute("allow").replace("#[", "#![")), [3]);
        assert_eq!(lifted(&attribute("forbid")), [0; 0]);
    }

    #[test]
    fn other_attributes_are_left_alone() {
        assert_eq!(lifted("#[allow(dead_code)]\nfn a() {}\n#[derive(Debug)]\nstruct B;"), [0; 0]);
        assert_eq!(lifted("#["), [0; 0]);
    }
}
