//! Reading the server's log: an error line that no test announced fails the test.

/// The lines that say a person must look, less those that contain one of `expected`.
pub(crate) fn unexpected(log: &str, expected: &[String]) -> Vec<String> {
    log.lines()
        .map(plain)
        .filter(|line| is_error(line) && !expected.iter().any(|text| line.contains(text.as_str())))
        .collect()
}

fn is_error(line: &str) -> bool {
    line.contains("panicked at")
        || line.contains("\"level\":\"ERROR\"")
        || line.split_whitespace().take(3).any(|word| word == "ERROR")
}

/// Without colours.
fn plain(line: &str) -> String {
    let mut text = String::with_capacity(line.len());
    let mut rest = line.chars();
    while let Some(one) = rest.next() {
        if one == '\u{1b}' {
            for skipped in rest.by_ref() {
                if skipped.is_ascii_alphabetic() {
                    break;
                }
            }
        } else {
            text.push(one);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_told_from_talk_about_errors() {
        let log = "2026-01-01T00:00:00Z  INFO serve: no ERROR here\n\
                   \u{1b}[2m2026-01-01T00:00:00Z\u{1b}[0m \u{1b}[31mERROR\u{1b}[0m engine: create: disk is gone\n\
                   {\"timestamp\":\"x\",\"level\":\"ERROR\",\"message\":\"y\"}\n\
                   thread 'main' panicked at src/lib.rs:1\n";
        assert_eq!(unexpected(log, &[]).len(), 3);
        assert_eq!(unexpected(log, &["disk is gone".to_owned()]).len(), 2);
    }
}
