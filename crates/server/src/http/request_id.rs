//! Names for requests: `req_` and 19 characters of lower-case base 32, 95 random bits.

use std::sync::Arc;

use crate::call::RequestId;

const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

impl RequestId {
    #[must_use]
    pub fn fresh() -> Self {
        let mut bits = uuid::Uuid::new_v4().as_u128();
        // The six fixed bits of a version 4 id sit above bit 62; fold the two halves so that none of them shows.
        bits ^= bits.rotate_left(61);
        let mut text = String::with_capacity(23);
        text.push_str("req_");
        for _ in 0..19 {
            text.push(char::from(ALPHABET[(bits & 31) as usize]));
            bits >>= 5;
        }
        Self(Arc::from(text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_have_their_form_and_differ() {
        let ids: std::collections::HashSet<Arc<str>> = (0..1000).map(|_| RequestId::fresh().0).collect();
        assert_eq!(ids.len(), 1000);
        for id in ids {
            let rest = id.strip_prefix("req_").unwrap();
            assert!(rest.len() == 19 && rest.bytes().all(|byte| ALPHABET.contains(&byte)), "{id}");
        }
    }
}
