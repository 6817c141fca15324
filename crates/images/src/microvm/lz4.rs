//! LZ4 in the framing that the kernel uses, its "legacy" one: a magic number, then blocks of at most 8 MiB, each with
//! its packed length before it.

const MAGIC: [u8; 4] = [0x02, 0x21, 0x4c, 0x18];
const BLOCK: usize = 8 << 20;
/// What an incompressible block may grow to.
const MAX_PACKED: usize = BLOCK + BLOCK / 255 + 16;
const MIN_MATCH: usize = 4;
/// The last bytes of a block are never a match, and none begins this close to the end: decoders rely on it.
const LAST_LITERALS: usize = 5;
const LAST_MATCH: usize = 12;
const MAX_DISTANCE: usize = 65_535;
const HASH_BITS: u32 = 16;

#[derive(Debug, thiserror::Error)]
pub enum Lz4Error {
    #[error("it does not begin as it should")]
    Magic,
    #[error("it ends in the middle")]
    Short,
    #[error("it points to before its beginning")]
    Distance,
    #[error("it is larger than the limit")]
    Large,
}

#[must_use]
pub fn is_packed(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC)
}

/// Unpacks to at most `limit` bytes.
pub fn unpack(packed: &[u8], limit: usize) -> Result<Vec<u8>, Lz4Error> {
    let mut rest = packed.strip_prefix(&MAGIC).ok_or(Lz4Error::Magic)?;
    let mut out = Vec::new();
    while let Some((length, after)) = rest.split_first_chunk::<4>() {
        if *length == MAGIC {
            // Another archive behind the first.
            rest = after;
            continue;
        }
        let length = u32::from_le_bytes(*length) as usize;
        if length == 0 {
            break;
        }
        if length > MAX_PACKED {
            return Err(Lz4Error::Large);
        }
        let block = after.get(..length).ok_or(Lz4Error::Short)?;
        unpack_block(block, &mut out, limit)?;
        rest = &after[length..];
    }
    Ok(out)
}

fn unpack_block(block: &[u8], out: &mut Vec<u8>, limit: usize) -> Result<(), Lz4Error> {
    let begin = out.len();
    let limit = limit.min(begin + BLOCK);
    let mut input = block;
    while let Some((token, after)) = input.split_first() {
        input = after;
        let literals = length(usize::from(token >> 4), &mut input)?;
        if out.len().saturating_add(literals) > limit {
            return Err(Lz4Error::Large);
        }
        out.extend_from_slice(input.get(..literals).ok_or(Lz4Error::Short)?);
        input = &input[literals..];
        if input.is_empty() {
            return Ok(());
        }
        let (distance, after) = input.split_first_chunk::<2>().ok_or(Lz4Error::Short)?;
        input = after;
        let distance = usize::from(u16::from_le_bytes(*distance));
        let matched = length(usize::from(token & 15), &mut input)?.saturating_add(MIN_MATCH);
        if distance == 0 || distance > out.len() - begin {
            return Err(Lz4Error::Distance);
        }
        if out.len().saturating_add(matched) > limit {
            return Err(Lz4Error::Large);
        }
        // A match may reach into what it makes: copied in pieces no longer than the distance.
        let from = out.len() - distance;
        let mut left = matched;
        while left > 0 {
            let piece = left.min(out.len() - from);
            out.extend_from_within(from..from + piece);
            left -= piece;
        }
    }
    Ok(())
}

/// A length of four bits, continued in further bytes when they are all set.
fn length(first: usize, input: &mut &[u8]) -> Result<usize, Lz4Error> {
    let mut total = first;
    if first == 15 {
        loop {
            let (byte, after) = input.split_first().ok_or(Lz4Error::Short)?;
            *input = after;
            total = total.saturating_add(usize::from(*byte));
            if *byte != 255 {
                break;
            }
        }
    }
    Ok(total)
}

/// Packs quickly rather than tightly.
#[must_use]
pub fn pack(plain: &[u8]) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    for block in plain.chunks(BLOCK) {
        let packed = pack_block(block);
        out.extend_from_slice(&u32::try_from(packed.len()).unwrap_or(u32::MAX).to_le_bytes());
        out.extend_from_slice(&packed);
    }
    out
}

fn pack_block(block: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(block.len() / 2);
    // Where four bytes were last seen, plus one.
    let mut seen = vec![0_usize; 1 << HASH_BITS];
    let (mut at, mut literals_from) = (0, 0);
    while at + LAST_MATCH < block.len() {
        let slot = hash(&block[at..at + MIN_MATCH]);
        let candidate = std::mem::replace(&mut seen[slot], at + 1);
        let Some(before) = candidate.checked_sub(1).filter(|before| {
            at - before <= MAX_DISTANCE && block[*before..*before + MIN_MATCH] == block[at..at + MIN_MATCH]
        }) else {
            at += 1;
            continue;
        };
        let most = block.len() - LAST_LITERALS - at;
        let matched = (MIN_MATCH..most).find(|n| block[before + n] != block[at + n]).unwrap_or(most);
        sequence(&mut out, &block[literals_from..at], Some((at - before, matched)));
        at += matched;
        literals_from = at;
    }
    sequence(&mut out, &block[literals_from..], None);
    out
}

fn sequence(out: &mut Vec<u8>, literals: &[u8], found: Option<(usize, usize)>) {
    let matched = found.map_or(0, |(_, length)| length - MIN_MATCH);
    let nibble = |length: usize| u8::try_from(length.min(15)).unwrap_or(15);
    out.push(nibble(literals.len()) << 4 | nibble(matched));
    continued(out, literals.len());
    out.extend_from_slice(literals);
    if let Some((distance, _)) = found {
        // At most 65,535 by the search.
        out.extend_from_slice(&(distance as u16).to_le_bytes());
        continued(out, matched);
    }
}

fn continued(out: &mut Vec<u8>, length: usize) {
    if let Some(mut left) = length.checked_sub(15) {
        while left >= 255 {
            out.push(255);
            left -= 255;
        }
        out.push(left as u8);
    }
}

fn hash(four: &[u8]) -> usize {
    let word = four.iter().fold(0_u32, |word, byte| word << 8 | u32::from(*byte));
    (word.wrapping_mul(2_654_435_761) >> (32 - HASH_BITS)) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same numbers every time, of every kind: runs, noise, repeats far and near.
    fn sample(length: usize) -> Vec<u8> {
        let mut state = 7_u32;
        let mut out: Vec<u8> = Vec::with_capacity(length);
        while out.len() < length {
            state = state.wrapping_mul(1_103_515_245).wrapping_add(12_345);
            match state >> 30 {
                0 => out.extend(std::iter::repeat_n((state >> 8) as u8, (state >> 20) as usize & 0x1ff)),
                1 if out.len() > 70_000 => out.extend_from_within(out.len() - 70_000..out.len() - 69_000),
                2 if out.len() > 300 => out.extend_from_within(out.len() - 300..out.len() - 10),
                _ => out.extend(state.to_le_bytes()),
            }
        }
        out.truncate(length);
        out
    }

    #[test]
    fn what_goes_in_comes_out() {
        for length in [0, 1, 4, 11, 12, 13, 14, 300, 70_000, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 17] {
            let plain = sample(length);
            let packed = pack(&plain);
            assert_eq!(unpack(&packed, plain.len()).unwrap(), plain, "{length}");
            if length > 1000 {
                assert!(packed.len() < plain.len(), "{length} became {}", packed.len());
            }
        }
    }

    #[test]
    fn no_damaged_input_panics_or_grows_past_the_limit() {
        let plain = sample(3000);
        let packed = pack(&plain);
        for cut in 0..packed.len() {
            let _ = unpack(&packed[..cut], 4096);
            let mut bad = packed.clone();
            bad[cut] ^= 0x55;
            if let Ok(out) = unpack(&bad, 4096) {
                assert!(out.len() <= 4096);
            }
        }
        assert!(matches!(unpack(&packed, 100), Err(Lz4Error::Large)));
        assert!(matches!(unpack(b"\x02\x21\x4c\x18\x03\0\0\0\x00\x01\x00", 100), Err(Lz4Error::Distance)));
    }
}
