//! What the sshd of one login proves itself with: made here, so that the client can be told of it by the server it trusts,
//! and used once.

use aws_lc_rs::encoding::AsBigEndian;
use aws_lc_rs::error::Unspecified;
use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use secrecy::SecretString;

const TYPE: &[u8] = b"ssh-ed25519";
const MAGIC: &[u8] = b"openssh-key-v1\0";
/// An unencrypted key is padded to this.
const BLOCK: usize = 8;
const LINE: usize = 70;

pub(super) struct HostKey {
    /// A file of OpenSSH's own format.
    pub(super) private: SecretString,
    /// Its type, a blank, its base64.
    pub(super) public: String,
}

impl HostKey {
    pub(super) fn generate() -> Result<Self, Unspecified> {
        let pair = Ed25519KeyPair::generate()?;
        let seed = pair.seed()?.as_be_bytes()?;
        let public = pair.public_key().as_ref();
        let blob = [&field(TYPE)[..], &field(public)].concat();
        Ok(Self {
            public: format!("ssh-ed25519 {}", STANDARD.encode(&blob)),
            private: private_file(&blob, seed.as_ref(), public).into(),
        })
    }
}

/// One field: its length, its bytes.
fn field(bytes: &[u8]) -> Vec<u8> {
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    [&length.to_be_bytes(), bytes].concat()
}

/// See OpenSSH's `PROTOCOL.key`: what is known to all, then what would be encrypted if there were a passphrase.
fn private_file(blob: &[u8], seed: &[u8], public: &[u8]) -> String {
    let one = 1_u32.to_be_bytes();
    let mut inner = Vec::new();
    // Twice the same, by which a reader knows that a passphrase was right.
    inner.extend([one, one].concat());
    inner.extend(blob);
    inner.extend(field(&[seed, public].concat()));
    inner.extend(field(b""));
    inner.extend((1_u8..).take(inner.len().next_multiple_of(BLOCK) - inner.len()));
    let file = [MAGIC, &field(b"none"), &field(b"none"), &field(b""), &one, &field(blob), &field(&inner)].concat();
    let mut text = String::from("-----BEGIN OPENSSH PRIVATE KEY-----\n");
    for (at, letter) in STANDARD.encode(file).chars().enumerate() {
        if at > 0 && at % LINE == 0 {
            text.push('\n');
        }
        text.push(letter);
    }
    text.push_str("\n-----END OPENSSH PRIVATE KEY-----\n");
    text
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret;

    use super::*;

    fn take(rest: &mut &[u8]) -> Vec<u8> {
        let (length, after) = rest.split_first_chunk::<4>().unwrap();
        let (bytes, after) = after.split_at(u32::from_be_bytes(*length) as usize);
        *rest = after;
        bytes.to_vec()
    }

    /// That OpenSSH reads it is for the tests with a sandbox; this is its layout, field by field.
    #[test]
    fn the_file_holds_the_pair_and_no_two_are_the_same() {
        let key = HostKey::generate().unwrap();
        let text = key.private.expose_secret();
        let body = text.strip_prefix("-----BEGIN OPENSSH PRIVATE KEY-----\n").unwrap();
        let body = body.strip_suffix("\n-----END OPENSSH PRIVATE KEY-----\n").unwrap();
        assert!(body.lines().all(|line| line.len() <= LINE));
        let file = STANDARD.decode(body.replace('\n', "")).unwrap();
        let mut rest = file.strip_prefix(MAGIC).unwrap();
        assert_eq!([take(&mut rest), take(&mut rest), take(&mut rest)], [&b"none"[..], b"none", b""]);
        rest = rest.strip_prefix(&1_u32.to_be_bytes()).unwrap();
        let blob = take(&mut rest);
        assert_eq!(format!("ssh-ed25519 {}", STANDARD.encode(&blob)), key.public);
        let inner = take(&mut rest);
        assert!(rest.is_empty() && inner.len().is_multiple_of(BLOCK) && inner[..4] == inner[4..8]);
        let mut inner = inner[8..].strip_prefix(&blob[..]).unwrap();
        let pair = take(&mut inner);
        let again = Ed25519KeyPair::from_seed_and_public_key(&pair[..32], &pair[32..]).unwrap();
        assert_eq!(blob[blob.len() - 32..], again.public_key().as_ref()[..]);
        assert_eq!(take(&mut inner), b"");
        assert!(inner.iter().zip(1..).all(|(byte, number)| *byte == number) && inner.len() < BLOCK);

        assert_ne!(HostKey::generate().unwrap().public, key.public);
    }
}
