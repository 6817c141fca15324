//! Values of options: read from text exactly, or refused with the reason.

/// The largest integer that every JSON reader keeps.
const MAX_INTEGER: u64 = 1 << 53;

/// Digits only: no sign, no exponent, no blank.
pub fn integer(text: &str) -> Result<u64, String> {
    let wrong = || format!("must be a whole number up to {MAX_INTEGER}, digits only");
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(wrong());
    }
    text.parse().ok().filter(|number| *number <= MAX_INTEGER).ok_or_else(wrong)
}

/// A name or an id: a variable that was never set must not pass for one.
pub fn word(text: &str) -> Result<String, String> {
    if text.trim().is_empty() { Err("needs a value".into()) } else { Ok(text.to_owned()) }
}

/// A port here and the one there that it leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forward {
    /// 0: any that is free.
    pub local: u16,
    pub remote: u16,
}

/// `PORT` or `LOCAL:REMOTE`.
pub fn forward(text: &str) -> Result<Forward, String> {
    let wrong = || "must be PORT or LOCAL:REMOTE, each from 1 to 65535 (LOCAL may be 0)".to_owned();
    let port = |text: &str| integer(text).ok().and_then(|port| u16::try_from(port).ok()).ok_or_else(wrong);
    let (local, remote) = match text.split_once(':') {
        Some((local, remote)) => (port(local)?, port(remote)?),
        None => (port(text)?, port(text)?),
    };
    if remote == 0 { Err(wrong()) } else { Ok(Forward { local, remote }) }
}

/// `http` or `https`, a host, perhaps a port; a slash at the end is not part of it.
pub fn public_url(text: &str) -> Result<String, String> {
    let text = text.trim_end_matches('/');
    let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    match rest {
        Some(rest) if !rest.is_empty() && !rest.contains(['/', '?', '#', '@', ' ']) => Ok(text.to_owned()),
        _ => Err("must be http://HOST[:PORT] or https://HOST[:PORT]".to_owned()),
    }
}

/// `KEY=VALUE`; the value may be empty and may hold more signs.
pub fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("must be KEY=VALUE".into()),
    }
}

/// `NAME=VALUE` with a name that a shell can hold.
pub fn env_pair(text: &str) -> Result<(String, String), String> {
    let (name, value) = pair(text).map_err(|_| "must be NAME=VALUE".to_owned())?;
    env_name(&name)?;
    Ok((name, value))
}

pub fn env_name(text: &str) -> Result<String, String> {
    let mut bytes = text.bytes();
    let begins = bytes.next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_');
    if begins && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
        Ok(text.to_owned())
    } else {
        Err("must begin with a letter or _ and hold only letters, digits and _".into())
    }
}

/// Dollars as microdollars, by integer arithmetic: a float would move the last cent.
pub fn dollars(text: &str) -> Result<u64, String> {
    let wrong = || "must be dollars with at most six decimals, such as 5 or 0.25".to_owned();
    let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(part) || part.len() > 6 {
        return Err(wrong());
    }
    let micros: u64 = format!("{part:0<6}").parse().map_err(|_| wrong())?;
    let whole: u64 = whole.parse().map_err(|_| wrong())?;
    whole
        .checked_mul(1_000_000)
        .and_then(|whole| whole.checked_add(micros))
        .filter(|micros| *micros <= MAX_INTEGER)
        .ok_or_else(|| "is too large".to_owned())
}

/// As [`dollars`], or `none` for no limit.
pub fn dollars_or_none(text: &str) -> Result<Limit, String> {
    if text == "none" {
        return Ok(Limit(None));
    }
    dollars(text).map(|micros| Limit(Some(micros))).map_err(|error| format!("{error}, or none"))
}

/// A spending limit that may be taken away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit(pub Option<u64>);

/// A switch that is set to a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum OnOff {
    On,
    Off,
}

impl OnOff {
    #[must_use]
    pub fn is_on(self) -> bool {
        self == Self::On
    }
}

/// `ID:/PATH` or `ID:/PATH:snapshot`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeAt {
    pub id: String,
    pub path: String,
    pub snapshot: bool,
}

pub fn volume(text: &str) -> Result<VolumeAt, String> {
    let wrong = || "must be ID:/PATH or ID:/PATH:snapshot".to_owned();
    let (id, path) = text.split_once(':').ok_or_else(wrong)?;
    let (path, snapshot) = match path.strip_suffix(":snapshot") {
        Some(path) => (path, true),
        None => (path, false),
    };
    if id.is_empty() || !path.starts_with('/') {
        return Err(wrong());
    }
    Ok(VolumeAt { id: id.to_owned(), path: path.to_owned(), snapshot })
}

/// Milliseconds for a person, exactly.
#[must_use]
pub fn show_seconds(ms: u64) -> String {
    let (whole, part) = (ms / 1000, ms % 1000);
    if part == 0 { whole.to_string() } else { format!("{whole}.{part:03}").trim_end_matches('0').to_owned() }
}

/// Microdollars for a person: cents from a dollar up, finer below.
#[must_use]
pub fn show_dollars(micros: i64) -> String {
    let sign = if micros < 0 { "-" } else { "" };
    let amount = micros.unsigned_abs();
    let places = match amount {
        1_000_000.. => 2,
        0 | 100.. => 4,
        _ => 6,
    };
    // Rounded half up to the last place shown.
    let unit = 10_u64.pow(6 - places);
    let rounded = amount.saturating_add(unit / 2) / unit;
    let scale = 10_u64.pow(places);
    format!("{sign}${}.{:0width$}", rounded / scale, rounded % scale, width = places as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports() {
        assert_eq!(forward("80"), Ok(Forward { local: 80, remote: 80 }));
        assert_eq!(forward("0:5432"), Ok(Forward { local: 0, remote: 5432 }));
        for wrong in ["", "0", "1:0", "70000", "1:70000", "a", "1:2:3", "-1", "+1", ":1", "1:"] {
            assert!(forward(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn whole_numbers_are_digits() {
        assert_eq!(integer("0"), Ok(0));
        assert_eq!(integer("9007199254740992"), Ok(1 << 53));
        for text in ["", "-1", "+1", "1e3", "1.0", " 1", "0x10", "9007199254740993", "99999999999999999999"] {
            assert!(integer(text).is_err(), "{text}");
        }
    }

    #[test]
    fn blank_is_no_word() {
        assert_eq!(word("a b"), Ok("a b".into()));
        assert!(word("").is_err() && word(" \t").is_err());
    }

    #[test]
    fn dollars_are_exact() {
        for (text, micros) in [("5", 5_000_000), ("0.25", 250_000), ("0.000001", 1), ("1.10", 1_100_000), ("0", 0)] {
            assert_eq!(dollars(text), Ok(micros), "{text}");
        }
        for text in ["", ".5", "1.", "1.0000001", "-1", "$1", "1,5", "1e2", "99999999999999"] {
            assert!(dollars(text).is_err(), "{text}");
        }
        assert_eq!(dollars_or_none("none"), Ok(Limit(None)));
    }

    #[test]
    fn dollars_for_a_person() {
        for (micros, text) in [
            (0, "$0.0000"),
            (1, "$0.000001"),
            (99, "$0.000099"),
            (100, "$0.0001"),
            (123_456, "$0.1235"),
            (999_999, "$1.0000"),
            (1_000_000, "$1.00"),
            (12_345_678, "$12.35"),
            (-2_500_000, "-$2.50"),
        ] {
            assert_eq!(show_dollars(micros), text);
        }
        assert!(show_dollars(i64::MIN).starts_with("-$"));
    }

    #[test]
    fn seconds_for_a_person() {
        for (ms, text) in [(0, "0"), (1, "0.001"), (1500, "1.5"), (86_400_000, "86400")] {
            assert_eq!(show_seconds(ms), text);
        }
    }

    #[test]
    fn pairs() {
        assert_eq!(pair("a=b=c"), Ok(("a".into(), "b=c".into())));
        assert_eq!(pair("a="), Ok(("a".into(), String::new())));
        assert!(pair("=b").is_err() && pair("ab").is_err());
        assert!(env_pair("1A=b").is_err() && env_pair("A-B=c").is_err());
        assert_eq!(env_pair("_A1=x"), Ok(("_A1".into(), "x".into())));
    }

    #[test]
    fn volumes() {
        let at = volume("v1:/data:snapshot").expect("fine");
        assert_eq!((at.id.as_str(), at.path.as_str(), at.snapshot), ("v1", "/data", true));
        assert!(!volume("v1:/data").expect("fine").snapshot);
        assert!(volume("v1:data").is_err() && volume("/data").is_err());
    }
}
