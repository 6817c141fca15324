//! A client as thin as can be, so that what is measured is the server: one kept connection, no retries.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use anyhow::{Context, Result, bail};
use serde_json::Value;

pub struct Api {
    address: String,
    key: String,
}

pub struct Connection<'a> {
    api: &'a Api,
    stream: BufReader<TcpStream>,
}

impl Api {
    pub fn new(url: &str, key: &str) -> Result<Self> {
        let address = url.strip_prefix("http://").context("the benchmark speaks plain http to the local machine")?;
        Ok(Self { address: address.trim_end_matches('/').to_owned(), key: key.to_owned() })
    }

    pub fn connect(&self) -> Result<Connection<'_>> {
        let stream = TcpStream::connect(&self.address).with_context(|| format!("connect to {}", self.address))?;
        stream.set_nodelay(true)?;
        Ok(Connection { api: self, stream: BufReader::new(stream) })
    }
}

impl Connection<'_> {
    /// One call; an answer that is not a success is an error with its text.
    pub fn call(&mut self, method: &str, path: &str, body: Option<&Value>) -> Result<Value> {
        let body = body.map(Value::to_string).unwrap_or_default();
        let wait = if path == "/v1/sandboxes" && method == "POST" { "Prefer: wait=60\r\n" } else { "" };
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\nContent-Type: application/json\r\n{wait}Content-Length: {}\r\n\r\n{body}",
            self.api.address,
            self.api.key,
            body.len()
        );
        self.stream.get_mut().write_all(head.as_bytes())?;
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        let status: u16 = line.split(' ').nth(1).and_then(|s| s.parse().ok()).context("no status line")?;
        let mut length = 0;
        let mut chunked = false;
        loop {
            line.clear();
            self.stream.read_line(&mut line)?;
            let header = line.trim().to_ascii_lowercase();
            if header.is_empty() {
                break;
            }
            if let Some(value) = header.strip_prefix("content-length:") {
                length = value.trim().parse()?;
            }
            chunked |= header == "transfer-encoding: chunked";
        }
        if chunked {
            bail!("{method} {path}: the answer came late (chunked); the benchmark expects a prompt one");
        }
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body)?;
        if status >= 300 {
            bail!("{method} {path}: {status} {}", String::from_utf8_lossy(&body));
        }
        Ok(serde_json::from_slice(&body)?)
    }
}
