//! The package sources this machine is configured with.
//!
//! The project names no place to download from: the base image and the host's own packages come from the Debian
//! sources that the machine's administrator set up, whichever mirror that is. Both formats apt knows are read: one
//! line per source (`sources.list`, `*.list`) and paragraphs (`*.sources`).

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The Debian release the base image and the host packages are taken from.
pub const RELEASE: &str = "bookworm";

/// Longer files are no configuration.
const MAX_FILE: u64 = 1 << 20;

#[derive(Debug, thiserror::Error)]
pub enum AptError {
    #[error("package sources: cannot read {path}")]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(
        "package sources: no Debian 12 ({RELEASE}) source with component `main` is configured below {root}; \
         add one to {root}/sources.list.d"
    )]
    NoDebian { root: PathBuf },
}

/// One binary source: where, which suites, which components.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    pub uris: Vec<String>,
    pub suites: Vec<String>,
    pub components: Vec<String>,
    /// The path of a key ring; none means the system's.
    pub signed_by: Option<String>,
    pub trusted: bool,
    /// The key stands in the file itself, as third parties do it.
    embedded_key: bool,
}

impl Source {
    /// As lines of a `sources.list`.
    pub fn lines(&self) -> Vec<String> {
        let mut options = Vec::new();
        options.extend(self.signed_by.as_ref().map(|path| format!("signed-by={path}")));
        options.extend(self.trusted.then(|| "trusted=yes".to_owned()));
        let options = if options.is_empty() { String::new() } else { format!("[{}] ", options.join(" ")) };
        let components = self.components.join(" ");
        let mut lines = Vec::new();
        for uri in &self.uris {
            for suite in &self.suites {
                lines.push(format!("deb {options}{uri} {suite} {components}"));
            }
        }
        lines
    }

    /// Is this Debian's own archive, or a mirror of it? A third party's source may use Debian's suite names, but
    /// brings a key of its own.
    fn is_debian(&self) -> bool {
        let own_key = self.signed_by.as_ref().is_some_and(|path| !path.contains("debian-archive"));
        !self.embedded_key && !own_key && self.components.iter().any(|c| c == "main")
    }

    fn with_suites(&self, suites: Vec<String>) -> Self {
        Self { suites, components: vec!["main".into()], ..self.clone() }
    }
}

/// Every binary source configured below `root` (`/etc/apt`).
pub fn configured(root: &Path) -> Result<Vec<Source>, AptError> {
    let mut files = vec![root.join("sources.list")];
    if let Ok(entries) = fs::read_dir(root.join("sources.list.d")) {
        files.extend(entries.flatten().map(|entry| entry.path()));
    }
    files.sort();
    let mut sources = Vec::new();
    for path in files {
        let parse = match path.extension().and_then(|e| e.to_str()) {
            Some("list") => parse_lines,
            Some("sources") => parse_paragraphs,
            _ => continue,
        };
        match read(&path) {
            Ok(text) => sources.extend(parse(&text)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(source) => return Err(AptError::Read { path, source }),
        }
    }
    Ok(sources)
}

/// The sources of plain Debian 12 with its updates and security fixes.
pub fn debian(root: &Path) -> Result<Vec<Source>, AptError> {
    let wanted = [RELEASE.to_owned(), format!("{RELEASE}-updates"), format!("{RELEASE}-security")];
    let found: Vec<Source> = configured(root)?
        .iter()
        .filter(|source| source.is_debian())
        .map(|source| source.with_suites(source.suites.iter().filter(|s| wanted.contains(s)).cloned().collect()))
        .filter(|source| !source.suites.is_empty())
        .collect();
    if found.iter().any(|source| source.suites.iter().any(|s| s == RELEASE)) {
        Ok(found)
    } else {
        Err(AptError::NoDebian { root: root.to_owned() })
    }
}

/// The same, and Debian's backports beside it: the configured ones, or else those of the same mirror.
pub fn debian_with_backports(root: &Path) -> Result<Vec<Source>, AptError> {
    let backports = format!("{RELEASE}-backports");
    let mut sources = debian(root)?;
    let present = configured(root)?.into_iter().find(|s| s.is_debian() && s.suites.contains(&backports));
    let from = match present {
        Some(source) => source,
        None => sources
            .iter()
            .find(|source| source.suites.iter().any(|s| s == RELEASE))
            .cloned()
            .ok_or_else(|| AptError::NoDebian { root: root.to_owned() })?,
    };
    sources.push(from.with_suites(vec![backports]));
    Ok(sources)
}

fn read(path: &Path) -> io::Result<String> {
    if fs::metadata(path)?.len() > MAX_FILE {
        return Err(io::Error::from(io::ErrorKind::FileTooLarge));
    }
    Ok(String::from_utf8_lossy(&fs::read(path)?).into_owned())
}

/// `deb [option=value ...] URI SUITE COMPONENT...`
fn parse_lines(text: &str) -> Vec<Source> {
    text.lines().filter_map(|line| parse_line(line.split('#').next().unwrap_or_default().trim())).collect()
}

fn parse_line(line: &str) -> Option<Source> {
    let rest = line.strip_prefix("deb").filter(|rest| rest.starts_with([' ', '\t']))?.trim_start();
    let (options, rest) = match rest.strip_prefix('[') {
        Some(inner) => inner.split_once(']')?,
        None => ("", rest),
    };
    let mut words = rest.split_whitespace().map(str::to_owned);
    let (uri, suite) = (words.next()?, words.next()?);
    let option = |name: &str| {
        options.split_whitespace().find_map(|o| o.split_once('=').filter(|(n, _)| n.eq_ignore_ascii_case(name)))
    };
    usable(Source {
        uris: vec![uri],
        suites: vec![suite],
        components: words.collect(),
        signed_by: option("signed-by").map(|(_, path)| path.to_owned()),
        trusted: option("trusted").is_some_and(|(_, v)| v == "yes"),
        embedded_key: false,
    })
}

fn parse_paragraphs(text: &str) -> Vec<Source> {
    let mut sources = Vec::new();
    let mut fields: Vec<(String, String)> = Vec::new();
    for line in text.lines().chain([""]) {
        if line.starts_with('#') {
            continue;
        }
        if line.trim().is_empty() {
            sources.extend(paragraph(&fields));
            fields.clear();
        } else if line.starts_with([' ', '\t']) {
            if let Some((_, value)) = fields.last_mut() {
                value.push('\n');
                value.push_str(line.trim());
            }
        } else if let Some((name, value)) = line.split_once(':') {
            fields.push((name.trim().to_ascii_lowercase(), value.trim().to_owned()));
        }
    }
    sources
}

fn paragraph(fields: &[(String, String)]) -> Option<Source> {
    let field = |name: &str| fields.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str());
    let words =
        |name: &str| -> Vec<String> { field(name).unwrap_or_default().split_whitespace().map(str::to_owned).collect() };
    if !words("types").iter().any(|t| t == "deb") || field("enabled").is_some_and(|e| e.eq_ignore_ascii_case("no")) {
        return None;
    }
    let key = field("signed-by").filter(|key| !key.is_empty());
    let embedded_key = key.is_some_and(|key| key.contains("BEGIN PGP"));
    usable(Source {
        uris: words("uris"),
        suites: words("suites"),
        components: words("components"),
        signed_by: key.filter(|_| !embedded_key).map(|key| key.split_whitespace().collect::<Vec<_>>().join(",")),
        trusted: field("trusted").is_some_and(|t| t.eq_ignore_ascii_case("yes")),
        embedded_key,
    })
}

/// A disc in a drive is no source to build from.
fn usable(mut source: Source) -> Option<Source> {
    source.uris.retain(|uri| !uri.starts_with("cdrom:"));
    (!source.uris.is_empty() && !source.suites.is_empty()).then_some(source)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("sources.list.d")).unwrap();
        for (name, text) in files {
            fs::write(dir.path().join(name), text).unwrap();
        }
        dir
    }

    fn lines(sources: &[Source]) -> Vec<String> {
        sources.iter().flat_map(Source::lines).collect()
    }

    #[test]
    fn one_line_sources_with_strangers_beside_them() {
        let dir = tree(&[
            (
                "sources.list",
                "# deb http://old.example/debian bookworm main\n\
                 deb http://mirror.example/debian bookworm main contrib # the mirror\n\
                 deb-src http://mirror.example/debian bookworm main\n\
                 deb cdrom:[Debian]/ bookworm main\n\
                 deb\t[ arch=amd64 signed-by=/usr/share/keyrings/debian-archive-keyring.gpg ] http://sec.example/s bookworm-security main\n",
            ),
            ("sources.list.d/other.list", "deb [signed-by=/k/vendor.gpg] http://vendor.example bookworm main\n"),
            ("sources.list.d/stable.list", "deb http://vendor.example bookworm stable\n"),
            ("sources.list.d/notes.save", "deb http://saved.example bookworm main\n"),
        ]);
        assert_eq!(
            lines(&debian(dir.path()).unwrap()),
            [
                "deb http://mirror.example/debian bookworm main",
                "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://sec.example/s bookworm-security main",
            ]
        );
        assert_eq!(
            lines(&debian_with_backports(dir.path()).unwrap()).last().unwrap(),
            "deb http://mirror.example/debian bookworm-backports main"
        );
    }

    #[test]
    fn paragraph_sources() {
        let dir = tree(&[
            (
                "sources.list.d/debian.sources",
                "Types: deb deb-src\n# a remark\nURIs: http://mirror.example/debian\nSuites: bookworm bookworm-updates\n  bookworm-backports\n\
                 Components: main\nSigned-By: /usr/share/keyrings/debian-archive-keyring.gpg\n\n\
                 Types: deb\nURIs: http://off.example\nSuites: bookworm\nComponents: main\nEnabled: no\n\n",
            ),
            (
                "sources.list.d/vendor.sources",
                "Types: deb\nURIs: http://vendor.example\nSuites: bookworm\nComponents: main\nSigned-By:\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n abc\n",
            ),
        ]);
        let key = "[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]";
        assert_eq!(
            lines(&debian(dir.path()).unwrap()),
            [
                format!("deb {key} http://mirror.example/debian bookworm main"),
                format!("deb {key} http://mirror.example/debian bookworm-updates main"),
            ]
        );
        assert_eq!(
            lines(&debian_with_backports(dir.path()).unwrap()).last().unwrap(),
            &format!("deb {key} http://mirror.example/debian bookworm-backports main")
        );
    }

    #[test]
    fn without_debian_the_error_says_what_to_add() {
        let dir = tree(&[("sources.list", "deb http://mirror.example/debian trixie main\n deb\n[\ndeb [x\n")]);
        let error = debian(dir.path()).unwrap_err();
        assert!(error.to_string().contains("no Debian 12 (bookworm) source"), "{error}");
    }
}
