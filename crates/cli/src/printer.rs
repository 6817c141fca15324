//! The one way out: results on stdout, talk on stderr, and neither can put a terminal into a strange mode.

use std::io::{self, Write};

use serde_json::Value;

/// Prints for a person, or JSON for a program.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Printer {
    pub(crate) json: bool,
}

impl Printer {
    /// The result, for a person.
    pub(crate) fn line(self, text: &str) -> io::Result<()> {
        let mut out = io::stdout().lock();
        writeln!(out, "{text}")?;
        out.flush()
    }

    /// The result, for a program.
    pub(crate) fn value(self, value: &Value) -> io::Result<()> {
        self.line(&value.to_string())
    }

    /// Talk. A stderr that is gone is no reason to fail.
    pub(crate) fn talk(self, text: &str) {
        let _ = writeln!(io::stderr().lock(), "{text}");
    }

    /// Talk that only a person wants.
    pub(crate) fn hint(self, text: &str) {
        if !self.json {
            self.talk(text);
        }
    }
}

/// Text from elsewhere for one line of a terminal: whatever would move the cursor or change a colour is shown, not done.
pub(crate) fn plain(text: &str) -> String {
    text.chars()
        .flat_map(|c| {
            let shown: Box<dyn Iterator<Item = char>> = if c.is_control() || is_direction(c) {
                Box::new(c.escape_unicode())
            } else {
                Box::new(std::iter::once(c))
            };
            shown
        })
        .collect()
}

/// As [`plain`], but lines stay lines.
pub(crate) fn plain_lines(text: &str) -> String {
    text.lines().map(plain).collect::<Vec<_>>().join("\n")
}

/// Marks that reorder the text around them.
fn is_direction(c: char) -> bool {
    matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Rows under upper-case headers, columns two blanks apart, nothing trailing.
#[must_use]
pub fn table(headers: &[&str], rows: &[Vec<String>]) -> String {
    let rows: Vec<Vec<String>> = rows.iter().map(|row| row.iter().map(|cell| plain(cell)).collect()).collect();
    let header: Vec<String> = headers.iter().map(|header| header.to_uppercase()).collect();
    let mut widths = vec![0; headers.len()];
    for row in std::iter::once(&header).chain(&rows) {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let lines: Vec<String> = std::iter::once(&header)
        .chain(&rows)
        .map(|row| {
            let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
            cells.join("  ").trim_end().to_owned()
        })
        .collect();
    lines.join("\n")
}

/// One fact per line, the words in one column.
#[must_use]
pub fn facts(facts: &[(String, String)]) -> String {
    let facts: Vec<(String, String)> = facts.iter().map(|(name, value)| (plain(name), plain(value))).collect();
    let width = facts.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    let lines: Vec<String> =
        facts.iter().map(|(name, value)| format!("{name:<width$}  {value}").trim_end().to_owned()).collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns() {
        let rows = vec![
            vec!["1".into(), "long name".into(), String::new()],
            vec!["22".into(), "x".into(), "y\u{1b}[2J".into()],
        ];
        assert_eq!(
            table(&["id", "name", "state"], &rows),
            "ID  NAME       STATE\n1   long name\n22  x          y\\u{1b}[2J"
        );
    }

    #[test]
    fn facts_line_up() {
        let list = [("id".to_owned(), "1".to_owned()), ("stop\treason".to_owned(), "-\u{7}".to_owned())];
        assert_eq!(facts(&list), "id               1\nstop\\u{9}reason  -\\u{7}");
    }

    #[test]
    fn nothing_moves_the_cursor() {
        assert_eq!(plain("a\r\u{1b}]0;x\u{7}\u{202e}b"), "a\\u{d}\\u{1b}]0;x\\u{7}\\u{202e}b");
        assert_eq!(plain_lines("a\nb\tc"), "a\nb\\u{9}c");
        assert_eq!(plain("größe 🚀"), "größe 🚀");
    }
}
