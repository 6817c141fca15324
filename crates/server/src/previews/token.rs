//! Tokens of private previews. Nothing of them is stored: a token says until when it holds, and for which session if it
//! was read through one, under a code made with the preview's own key. Another key, and none of before holds.

use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use runtime_model::SessionId;
use runtime_store::PreviewRow;

const TIME: usize = 8;
const SESSION: usize = 16;
const CODE: usize = 32;

/// A token that holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Claims {
    /// Seconds since 1970.
    pub(super) ends_at: i64,
    /// With which it ends.
    pub(super) session: Option<SessionId>,
}

/// Until when a token holds that is asked for now, all in seconds. It lasts at least as long as asked and at most one step
/// more, so that whoever asks again within a step gets the same token. `last` is never passed.
pub(super) fn end(now: i64, lifetime: i64, last: Option<i64>) -> i64 {
    let step = (lifetime / 24).clamp(1, 3600);
    let end = (now + lifetime).div_euclid(step) * step + step;
    last.map_or(end, |last| end.min(last))
}

fn code(row: &PreviewRow, body: &[u8]) -> hmac::Tag {
    let mut mac = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, &row.secret));
    mac.update(b"preview 1");
    mac.update(row.id.as_bytes());
    mac.update(&row.port.to_be_bytes());
    mac.update(body);
    mac.sign()
}

pub(super) fn make(row: &PreviewRow, claims: Claims) -> String {
    let mut token = [0; TIME + SESSION + CODE];
    token[..TIME].copy_from_slice(&claims.ends_at.to_be_bytes());
    if let Some(session) = claims.session {
        token[TIME..TIME + SESSION].copy_from_slice(&session.into_bytes());
    }
    let code = code(row, &token[..TIME + SESSION]);
    token[TIME + SESSION..].copy_from_slice(code.as_ref());
    URL_SAFE_NO_PAD.encode(token)
}

/// `None`: it never held, or no longer.
pub(super) fn read(row: &PreviewRow, text: &str, now: i64) -> Option<Claims> {
    // The length first: nothing long is decoded for a stranger.
    if text.len() > 128 {
        return None;
    }
    let token: [u8; TIME + SESSION + CODE] = URL_SAFE_NO_PAD.decode(text).ok()?.try_into().ok()?;
    let (body, said) = token.split_at(TIME + SESSION);
    let same = aws_lc_rs::constant_time::verify_slices_are_equal(code(row, body).as_ref(), said).is_ok();
    let ends_at = i64::from_be_bytes(body[..TIME].try_into().ok()?);
    let session: [u8; SESSION] = body[TIME..].try_into().ok()?;
    let session = (session != [0; SESSION]).then(|| SessionId::from_bytes(session));
    (same && ends_at > now).then_some(Claims { ends_at, session })
}

#[cfg(test)]
mod tests {
    use runtime_model::SandboxId;

    use super::*;

    fn row() -> PreviewRow {
        PreviewRow {
            sandbox: SandboxId::new_v4(),
            port: 3000,
            id: uuid::Uuid::new_v4(),
            public: false,
            embed_origins: None,
            secret: [7; 32],
            created_at: 0,
        }
    }

    #[test]
    fn a_token_holds_for_its_preview_until_its_end() {
        let row = row();
        for session in [None, Some(SessionId::new_v4())] {
            let claims = Claims { ends_at: 1000, session };
            let token = make(&row, claims);
            assert_eq!(read(&row, &token, 999), Some(claims));
            assert_eq!(read(&row, &token, 1000), None);
            for other in [
                PreviewRow { port: 3001, ..row.clone() },
                PreviewRow { secret: [8; 32], ..row.clone() },
                PreviewRow { id: uuid::Uuid::new_v4(), ..row.clone() },
            ] {
                assert_eq!(read(&other, &token, 0), None);
            }
            for at in 0..token.len() {
                let mut wrong = token.clone().into_bytes();
                wrong[at] = if wrong[at] == b'A' { b'B' } else { b'A' };
                let wrong = String::from_utf8(wrong).unwrap();
                assert!(read(&row, &wrong, 0).is_none_or(|read| read == claims), "{wrong}");
            }
        }
        for text in ["", "x", &"A".repeat(75), &"A".repeat(100_000)] {
            assert_eq!(read(&row, text, 0), None);
        }
    }

    #[test]
    fn within_a_step_the_same_is_told() {
        for lifetime in [60, 3600, 86_400, 604_800] {
            let step = (lifetime / 24).clamp(1, 3600);
            for now in [0, 1, 59, 3599, 3600, 1_795_990_000] {
                let end = end(now, lifetime, None);
                assert!((now + lifetime..=now + lifetime + step).contains(&end), "{now} {lifetime}");
            }
            assert_eq!(end(step * 10, lifetime, None), end(step * 11 - 1, lifetime, None));
            assert_eq!(end(0, lifetime, Some(30)), 30);
        }
    }
}
