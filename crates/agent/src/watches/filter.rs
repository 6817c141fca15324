//! Which paths a watch is about.

use std::path::Path;

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use runtime_proto::guest::{ErrorCode, GuestError, StartWatch};

const MOST_PATTERNS: usize = 100;
const MAX_PATTERN: usize = 4096;
/// Names of our own half-made files: who watches sees the file when it has its name.
const OURS: [&str; 3] = [".runtime-move-", ".runtime-upload-", ".runtime-write-"];

/// Paths are relative to what is watched.
pub(super) struct Filter {
    include: Option<Patterns>,
    exclude: Option<Patterns>,
}

struct Patterns {
    paths: GlobSet,
    names: GlobSet,
}

impl Filter {
    pub(super) fn new(wanted: &StartWatch) -> Result<Self, GuestError> {
        Ok(Self { include: patterns(&wanted.include)?, exclude: patterns(&wanted.exclude)? })
    }

    /// It may be looked into.
    pub(super) fn enters(&self, path: &Path) -> bool {
        let ours = path.file_name().and_then(|name| name.to_str());
        !ours.is_some_and(|name| OURS.iter().any(|prefix| name.starts_with(prefix)))
            && !self.exclude.as_ref().is_some_and(|exclude| exclude.matches(path))
    }

    /// It is told of.
    pub(super) fn shows(&self, path: &Path) -> bool {
        self.enters(path) && self.include.as_ref().is_none_or(|include| include.matches(path))
    }
}

impl Patterns {
    fn matches(&self, path: &Path) -> bool {
        self.paths.is_match(path) || path.file_name().is_some_and(|name| self.names.is_match(Path::new(name)))
    }
}

fn patterns(texts: &[String]) -> Result<Option<Patterns>, GuestError> {
    let invalid = |why: String| GuestError::new(ErrorCode::Invalid, format!("a pattern is not valid: {why}"));
    if texts.is_empty() {
        return Ok(None);
    }
    if texts.len() > MOST_PATTERNS || texts.iter().any(|text| text.is_empty() || text.len() > MAX_PATTERN) {
        return Err(invalid(format!("there are more than {MOST_PATTERNS}, or one is empty or too long")));
    }
    let (mut paths, mut names) = (GlobSetBuilder::new(), GlobSetBuilder::new());
    for text in texts {
        let glob =
            GlobBuilder::new(text).literal_separator(true).build().map_err(|error| invalid(error.to_string()))?;
        if text.contains('/') {
            paths.add(glob)
        } else {
            names.add(glob)
        };
    }
    let build = |set: GlobSetBuilder| set.build().map_err(|error| invalid(error.to_string()));
    Ok(Some(Patterns { paths: build(paths)?, names: build(names)? }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_for_paths_or_for_names() {
        let list = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        let wanted = StartWatch {
            include: list(&["*.py", "docs/**"]),
            exclude: list(&["node_modules", "build/*.py"]),
            ..StartWatch::default()
        };
        let filter = Filter::new(&wanted).unwrap();
        for (path, enters, shows) in [
            ("a.py", true, true),
            ("deep/down/a.py", true, true),
            ("a.txt", true, false),
            ("docs/x/y.txt", true, true),
            ("deep/node_modules", false, false),
            ("build/a.py", false, false),
            ("build/b/a.py", true, true),
            (".runtime-write-7.py", false, false),
        ] {
            assert_eq!((filter.enters(Path::new(path)), filter.shows(Path::new(path))), (enters, shows), "{path}");
        }
        for wrong in ["[", "", "{a"] {
            assert!(Filter::new(&StartWatch { include: list(&[wrong]), ..StartWatch::default() }).is_err(), "{wrong}");
        }
    }
}
