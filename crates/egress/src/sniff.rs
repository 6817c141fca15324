//! Reads from the first bytes of a connection which host they are meant for: the server name of a TLS hello, the host of
//! an HTTP request.
//!
//! The bytes are the guest's, and so is their cut: a hello may come in many pieces and many records. Nothing is passed on
//! before it is known, nothing is kept beyond [`LIMIT`], and what is neither of the two is [`Sniff::Other`]. What begins
//! like one of the two and then is not is [`Sniff::Broken`], since another reader might understand it otherwise.

use runtime_model::network::Host;

/// The most that is read before the question must be answered.
pub const LIMIT: usize = 32 * 1024;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sniff {
    /// Not enough yet.
    More,
    /// A TLS hello, with the name in it.
    Tls(Option<Host>),
    /// The head of an HTTP/1 request, with its host.
    Http(Option<Host>),
    /// Neither; it says nothing of a host.
    Other,
    /// It cannot be read, or not in one way only.
    Broken(&'static str),
}

/// Looks at all bytes so far.
#[must_use]
pub fn sniff(bytes: &[u8]) -> Sniff {
    let found = match bytes.first() {
        None => Sniff::More,
        Some(0x16) => tls(bytes),
        Some(_) => http(bytes),
    };
    match found {
        Sniff::More if bytes.len() >= LIMIT => Sniff::Broken("its first message is too long"),
        other => other,
    }
}

/// A reader that cannot run past its end.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(head)
    }

    /// A number of so many bytes, the highest first.
    fn number(&mut self, bytes: usize) -> Option<usize> {
        Some(self.take(bytes)?.iter().fold(0, |number, byte| number << 8 | usize::from(*byte)))
    }

    /// Bytes behind their length.
    fn block(&mut self, length_bytes: usize) -> Option<Reader<'a>> {
        let length = self.number(length_bytes)?;
        self.take(length).map(Reader)
    }
}

const HANDSHAKE: usize = 0x16;
const CLIENT_HELLO: u8 = 1;
const SERVER_NAME: usize = 0;
const HOST_NAME: usize = 0;
/// A record of plain text is no longer.
const MAX_RECORD: usize = 1 << 14;

fn tls(bytes: &[u8]) -> Sniff {
    let mut records = Reader(bytes);
    let mut hello: Vec<u8> = Vec::new();
    loop {
        if let Some((head, _)) = hello.split_first_chunk::<4>() {
            if head[0] != CLIENT_HELLO {
                return Sniff::Broken("the first message of TLS is no hello");
            }
            let length = usize::from(head[1]) << 16 | usize::from(head[2]) << 8 | usize::from(head[3]);
            if length > LIMIT {
                return Sniff::Broken("the hello of TLS is too long");
            }
            if let Some(body) = hello.get(4..4 + length) {
                return match server_name(body) {
                    Some(name) => name,
                    None => Sniff::Broken("the hello of TLS does not read"),
                };
            }
        }
        let Some(kind) = records.number(1) else { return Sniff::More };
        if kind != HANDSHAKE {
            return Sniff::Broken("the hello of TLS is interrupted");
        }
        let Some(version) = records.number(2) else { return Sniff::More };
        if version >> 8 != 3 {
            // No TLS at all, unless this was to be its second record.
            return if hello.is_empty() { Sniff::Other } else { Sniff::Broken("a record of TLS does not read") };
        }
        let Some(length) = records.number(2) else { return Sniff::More };
        if length == 0 || length > MAX_RECORD {
            return Sniff::Broken("a record of TLS has a wrong length");
        }
        let part = &records.0[..length.min(records.0.len())];
        hello.extend_from_slice(part);
        if part.len() < length {
            // What is there of an unfinished record may already be the whole hello; it is waited for all the same.
            return Sniff::More;
        }
        records.take(length);
    }
}

/// `None`: it does not read.
fn server_name(hello: &[u8]) -> Option<Sniff> {
    let mut hello = Reader(hello);
    hello.take(2 + 32)?;
    hello.block(1)?;
    hello.block(2)?;
    hello.block(1)?;
    if hello.0.is_empty() {
        return Some(Sniff::Tls(None));
    }
    let mut extensions = hello.block(2)?;
    if !hello.0.is_empty() {
        return None;
    }
    let mut found = None;
    while !extensions.0.is_empty() {
        let kind = extensions.number(2)?;
        let mut body = extensions.block(2)?;
        if kind != SERVER_NAME {
            continue;
        }
        // Two of them, or two names in one: each reader may take another.
        if found.is_some() {
            return Some(Sniff::Broken("the hello of TLS names two servers"));
        }
        let mut names = body.block(2)?;
        if names.number(1)? != HOST_NAME {
            return None;
        }
        let name = names.block(2)?;
        if !names.0.is_empty() || !body.0.is_empty() {
            return Some(Sniff::Broken("the hello of TLS names two servers"));
        }
        let name = std::str::from_utf8(name.0).ok()?;
        found = Some(name.parse::<Host>().ok()?);
    }
    Some(Sniff::Tls(found))
}

/// Methods whose first line is at least looked at; another word may be any protocol.
const METHODS: [&str; 10] =
    ["GET ", "HEAD ", "POST ", "PUT ", "DELETE ", "PATCH ", "OPTIONS ", "TRACE ", "CONNECT ", "PRI "];

fn http(bytes: &[u8]) -> Sniff {
    let begins = |method: &&&str| {
        let length = bytes.len().min(method.len());
        bytes[..length] == method.as_bytes()[..length]
    };
    let Some(method) = METHODS.iter().find(begins) else { return Sniff::Other };
    if bytes.len() < method.len() {
        return Sniff::More;
    }
    // HTTP/2 without TLS: its hosts are inside of what only a reader of HTTP/2 reads.
    if *method == "PRI " {
        return Sniff::Broken("it is HTTP/2 without TLS");
    }
    // A first line that is whole and is none of HTTP's: other protocols have such words too, and wait for an answer.
    if let Some(end) = bytes.windows(2).position(|end| end == b"\r\n")
        && let Err(why) = target_of(&bytes[..end])
    {
        return Sniff::Broken(why);
    }
    let Some(end) = bytes.windows(4).position(|end| end == b"\r\n\r\n") else {
        // A lone line feed ends a line for some readers and not for others.
        let bare = bytes.iter().enumerate().any(|(at, byte)| *byte == b'\n' && (at == 0 || bytes[at - 1] != b'\r'));
        return if bare { Sniff::Broken("a line of HTTP ends without a carriage return") } else { Sniff::More };
    };
    host_of(&bytes[..end]).unwrap_or_else(Sniff::Broken)
}

fn host_of(head: &[u8]) -> Result<Sniff, &'static str> {
    let head = std::str::from_utf8(head).map_err(|_| "the head of HTTP is no text")?;
    let mut lines = head.split("\r\n");
    let target = target_of(lines.next().unwrap_or_default().as_bytes())?;
    let mut found = None;
    if let Some((_, rest)) = target.split_once("://") {
        found = Some(authority(rest.split(['/', '?', '#']).next().unwrap_or_default())?);
    }
    for line in lines {
        if line.contains(['\r', '\n', '\0']) || line.starts_with([' ', '\t']) {
            return Err("a header of HTTP does not read");
        }
        let (name, value) = line.split_once(':').ok_or("a header of HTTP does not read")?;
        if name.ends_with([' ', '\t']) {
            return Err("a header of HTTP does not read");
        }
        if name.eq_ignore_ascii_case("host") {
            let host = authority(value.trim_matches([' ', '\t']))?;
            if found.as_ref().is_some_and(|known| *known != host) {
                return Err("a request of HTTP names two hosts");
            }
            found = Some(host);
        }
    }
    Ok(Sniff::Http(found))
}

/// What the first line of a request asks for.
fn target_of(line: &[u8]) -> Result<&str, &'static str> {
    let wrong = "the first line of HTTP does not read";
    let mut words = std::str::from_utf8(line).map_err(|_| wrong)?.split(' ');
    match (words.next(), words.next(), words.next(), words.next()) {
        (Some(_), Some(target), Some(version), None) if version.starts_with("HTTP/1.") => Ok(target),
        _ => Err(wrong),
    }
}

/// The host of `host[:port]`.
fn authority(text: &str) -> Result<Host, &'static str> {
    let wrong = "the host of HTTP does not read";
    let host = match text.rfind(':') {
        Some(at) if text[at + 1..].bytes().all(|byte| byte.is_ascii_digit()) && !text[..at].ends_with(':') => {
            let inside = text.starts_with('[') && !text[..at].ends_with(']');
            if inside { text } else { &text[..at] }
        }
        _ => text,
    };
    host.parse().map_err(|_| wrong)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn extension(kind: u16, body: &[u8]) -> Vec<u8> {
        [&kind.to_be_bytes()[..], &(body.len() as u16).to_be_bytes(), body].concat()
    }

    fn names(list: &[&str]) -> Vec<u8> {
        let each: Vec<u8> = list
            .iter()
            .flat_map(|name| [&[0][..], &(name.len() as u16).to_be_bytes(), name.as_bytes()].concat())
            .collect();
        [&(each.len() as u16).to_be_bytes()[..], &each].concat()
    }

    fn hello(extensions: &[Vec<u8>]) -> Vec<u8> {
        let extensions = extensions.concat();
        let mut body = [&[3, 3][..], &[7; 32], &[0], &[0, 2, 0x13, 1], &[1, 0]].concat();
        body.extend((extensions.len() as u16).to_be_bytes());
        body.extend(extensions);
        [&[1, 0][..], &(body.len() as u16).to_be_bytes(), &body].concat()
    }

    /// In records of at most so many bytes.
    fn records(hello: &[u8], most: usize) -> Vec<u8> {
        hello
            .chunks(most)
            .flat_map(|part| [&[0x16, 3, 1][..], &(part.len() as u16).to_be_bytes(), part].concat())
            .collect()
    }

    fn named(name: &str) -> Vec<u8> {
        hello(&[extension(0x0a0a, &[1, 2]), extension(0, &names(&[name])), extension(16, b"\0\x03\x02h2")])
    }

    fn host(text: &str) -> Option<Host> {
        Some(text.parse().unwrap())
    }

    #[test]
    fn the_name_of_a_hello_however_it_is_cut() {
        let whole = named("A.Example.com");
        for most in [1, 2, 3, 5, 40, 16_000] {
            let wire = records(&whole, most);
            for cut in 0..wire.len() {
                assert_eq!(sniff(&wire[..cut]), Sniff::More, "records of {most}, cut at {cut}");
            }
            assert_eq!(sniff(&wire), Sniff::Tls(host("a.example.com")), "records of {most}");
            assert_eq!(sniff(&[&wire[..], b"more"].concat()), Sniff::Tls(host("a.example.com")));
        }
        assert_eq!(sniff(&records(&hello(&[]), 999)), Sniff::Tls(None));
    }

    #[test]
    fn a_hello_that_reads_in_two_ways_is_broken() {
        let broken = |hello: &[u8]| matches!(sniff(&records(hello, 9999)), Sniff::Broken(_));
        assert!(broken(&hello(&[extension(0, &names(&["a.example", "b.example"]))])));
        assert!(broken(&hello(&[extension(0, &names(&["a.example"])), extension(0, &names(&["b.example"]))])));
        assert!(broken(&hello(&[extension(0, &[names(&["a.example"]), vec![1]].concat())])));
        for name in ["", "a..b", "a\0b", "a/b", "127.1", "\u{e4}.example"] {
            assert!(broken(&named(name)), "{name:?}");
        }
        let mut lying = named("a.example");
        lying.extend([0; 8]);
        let length = lying.len() - 4;
        lying[2..4].copy_from_slice(&(length as u16).to_be_bytes());
        assert!(broken(&lying));
        // Another message first, another record in between, a record of nothing, a hello of sixteen megabytes.
        assert!(matches!(sniff(&[0x16, 3, 1, 0, 4, 2, 0, 0, 0]), Sniff::Broken(_)));
        assert!(matches!(sniff(&[0x16, 3, 1, 0, 1, 1, 0x17, 3, 3]), Sniff::Broken(_)));
        assert!(matches!(sniff(&[0x16, 3, 1, 0, 0]), Sniff::Broken(_)));
        assert!(matches!(sniff(&[0x16, 3, 1, 0, 4, 1, 0xff, 0xff, 0xff]), Sniff::Broken(_)));
        assert!(matches!(sniff(&[0x16, 3, 1, 0xff, 0xff]), Sniff::Broken(_)));
    }

    #[test]
    fn the_host_of_a_request() {
        for (text, expected) in [
            ("GET / HTTP/1.1\r\nHost: A.example\r\n\r\n", Sniff::Http(host("a.example"))),
            ("GET / HTTP/1.1\r\nX: y\r\nhOST:a.example:8080\r\n\r\nbody", Sniff::Http(host("a.example"))),
            ("GET / HTTP/1.1\r\nHost: [2001:db8::1]:80\r\n\r\n", Sniff::Http(host("2001:db8::1"))),
            ("GET / HTTP/1.1\r\nHost: [2001:db8::1]\r\n\r\n", Sniff::Http(host("2001:db8::1"))),
            ("GET / HTTP/1.0\r\n\r\n", Sniff::Http(None)),
            ("GET http://b.example/ HTTP/1.1\r\nHost: b.example\r\n\r\n", Sniff::Http(host("b.example"))),
            ("GET / HTTP/1.1\r\nHost: a.exa", Sniff::More),
            ("GE", Sniff::More),
            ("SSH-2.0-x\r\n", Sniff::Other),
            ("\0\0\0", Sniff::Other),
            ("HELLO there\r\n\r\n", Sniff::Other),
        ] {
            assert_eq!(sniff(text.as_bytes()), expected, "{text:?}");
        }
        for text in [
            "GET / HTTP/1.1\r\nHost: a.example\r\nHost: b.example\r\n\r\n",
            "GET http://a.example/ HTTP/1.1\r\nHost: b.example\r\n\r\n",
            "GET http://a.example@b.example/ HTTP/1.1\r\n\r\n",
            "GET / HTTP/1.1\nHost: a.example\n\n",
            "GET / HTTP/1.1\r\nHost: a.example\nHost: b.example\r\n\r\n",
            "GET / HTTP/1.1\r\n Host: a.example\r\n\r\n",
            "GET / HTTP/1.1\r\nHost : a.example\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a.example b.example\r\n\r\n",
            "GET /\r\nHost: a.example\r\n\r\n",
            // Not waited for: who says so waits for an answer.
            "GET key\r\n",
            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        ] {
            assert!(matches!(sniff(text.as_bytes()), Sniff::Broken(_)), "{text:?}: {:?}", sniff(text.as_bytes()));
        }
    }

    #[test]
    fn nothing_is_waited_for_without_end() {
        let endless = [b"GET / HTTP/1.1\r\nX: ".to_vec(), vec![b'x'; LIMIT]].concat();
        assert!(matches!(sniff(&endless), Sniff::Broken(_)));
    }

    proptest! {
        #[test]
        fn no_bytes_stop_the_reader(bytes in proptest::collection::vec(any::<u8>(), 0..512)) {
            let _ = sniff(&bytes);
            let _ = sniff(&[&[0x16, 3, 1][..], &bytes].concat());
            let _ = sniff(&records(&[&[1, 0, 0][..], &bytes].concat(), 100));
            let _ = sniff(&[&b"GET / HTTP/1.1\r\nHost:"[..], &bytes, b"\r\n\r\n"].concat());
        }

        /// A changed byte gives another answer or none, never a panic, and a prefix never gives a name that the whole does not.
        #[test]
        fn a_hello_with_a_changed_byte(at in 0..120_usize, byte in any::<u8>(), most in 1..200_usize) {
            let mut hello = named("a.example.com");
            let place = at % hello.len();
            hello[place] = byte;
            let wire = records(&hello, most);
            let whole = sniff(&wire);
            for cut in 0..wire.len() {
                match sniff(&wire[..cut]) {
                    Sniff::More => {}
                    early => prop_assert_eq!(&early, &whole),
                }
            }
        }

        #[test]
        fn whatever_stands_around_it_the_name_is_found(
            name in "[a-z]{1,20}(\\.[a-z0-9-]{1,20}){0,4}\\.[a-z]{2,6}",
            before in proptest::collection::vec((1..0xffff_u16, proptest::collection::vec(any::<u8>(), 0..64)), 0..6),
        ) {
            let mut extensions: Vec<Vec<u8>> = before.iter().map(|(kind, body)| extension(*kind, body)).collect();
            extensions.push(extension(0, &names(&[&name])));
            prop_assert_eq!(sniff(&records(&hello(&extensions), 9999)), Sniff::Tls(host(&name)));
        }
    }
}
