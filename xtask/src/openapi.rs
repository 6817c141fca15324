//! `openapi/openapi.json`: what the built program says of itself, committed so that a change of the API shows in review.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::steps::output_of;
use crate::workspace::Workspace;

pub(crate) fn run(workspace: &Workspace, check: bool) -> Result<()> {
    let path = workspace.root.join("openapi/openapi.json");
    let document = output_of(Command::new(workspace.runtime_binary()).arg("openapi"))?;
    let document = canonical(&document).context("`runtime openapi` printed something that is not JSON")?;
    if check {
        let committed = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        if let Some(difference) = first_difference(&committed, &document) {
            bail!("{} is out of date; run `cargo xtask openapi` and commit it\n{difference}", path.display());
        }
        println!("    {} is what the program serves", path.display());
    } else {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
        }
        fs::write(&path, document).with_context(|| format!("writing {}", path.display()))?;
        println!("    wrote {}", path.display());
    }
    Ok(())
}

/// Sorted keys, two spaces, one newline at the end: the same bytes whatever order the program printed.
fn canonical(json: &[u8]) -> Result<String> {
    let mut value: serde_json::Value = serde_json::from_slice(json)?;
    value.sort_all_objects();
    Ok(serde_json::to_string_pretty(&value)? + "\n")
}

fn first_difference(committed: &str, fresh: &str) -> Option<String> {
    if committed == fresh {
        return None;
    }
    let (mut old, mut new) = (committed.lines(), fresh.lines());
    for line in 1.. {
        let (old, new) = (old.next(), new.next());
        if old != new {
            let end = "(end of file)";
            return Some(format!(
                "line {line}\n  committed: {}\n  program:   {}",
                old.unwrap_or(end),
                new.unwrap_or(end)
            ));
        }
        if old.is_none() {
            break;
        }
    }
    Some("they differ in line endings only".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_keys_does_not_matter() {
        assert_eq!(
            canonical(br#"{"b":{"d":1,"c":2},"a":3}"#).unwrap(),
            canonical(br#"{"a":3,"b":{"c":2,"d":1}}"#).unwrap()
        );
    }

    #[test]
    fn the_first_line_that_differs_is_shown() {
        assert_eq!(first_difference("a\nb\n", "a\nb\n"), None);
        let text = first_difference("a\nb\n", "a\nc\n").unwrap();
        assert!(text.starts_with("line 2\n  committed: b\n  program:   c"), "{text}");
        assert!(first_difference("a\n", "a\nb\n").unwrap().contains("(end of file)"));
        assert!(first_difference("a\r\n", "a\n").unwrap().contains("line endings"));
    }
}
