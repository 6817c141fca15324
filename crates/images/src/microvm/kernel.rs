//! Taking the kernel out of the file its package brings: a loader with the packed kernel inside it. The uncompressed
//! one starts sooner, and one of the machines we start takes no other.

use super::lz4::{self, Lz4Error};

/// Offsets in the file, by the boot protocol of the x86 kernel.
const SETUP_SECTORS: usize = 0x1f1;
const MAGIC: usize = 0x202;
const PAYLOAD_OFFSET: usize = 0x248;
const PAYLOAD_LENGTH: usize = 0x24c;
const SECTOR: usize = 512;
/// No kernel is larger.
const MAX_IMAGE: usize = 512 << 20;

#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    #[error("it is not a kernel with a loader")]
    NoLoader,
    #[error("it is packed in a way this version does not read (only LZ4)")]
    Packing,
    #[error("its packed part is damaged")]
    Damaged(#[source] Lz4Error),
    #[error("what was in it is no x86-64 program")]
    NoProgram,
}

pub fn unpack(file: &[u8]) -> Result<Vec<u8>, KernelError> {
    if file.get(MAGIC..MAGIC + 4) != Some(b"HdrS") {
        return Err(KernelError::NoLoader);
    }
    let sectors = match file.get(SETUP_SECTORS) {
        Some(0) | None => 4,
        Some(count) => usize::from(*count),
    };
    let (offset, length) =
        number(file, PAYLOAD_OFFSET).zip(number(file, PAYLOAD_LENGTH)).ok_or(KernelError::NoLoader)?;
    let start = (sectors + 1) * SECTOR + offset;
    let payload = file.get(start..start.saturating_add(length)).ok_or(KernelError::NoLoader)?;
    if !lz4::is_packed(payload) {
        return Err(KernelError::Packing);
    }
    // Behind the packed part stands the size of the whole.
    let (packed, _) = payload.split_at(payload.len().saturating_sub(4));
    let image = lz4::unpack(packed, MAX_IMAGE).map_err(KernelError::Damaged)?;
    // ELF, 64 bits, little endian.
    if image.get(..6) != Some(b"\x7fELF\x02\x01") {
        return Err(KernelError::NoProgram);
    }
    Ok(image)
}

fn number(file: &[u8], at: usize) -> Option<usize> {
    let bytes: [u8; 4] = file.get(at..at + 4)?.try_into().ok()?;
    usize::try_from(u32::from_le_bytes(bytes)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loader(payload: &[u8]) -> Vec<u8> {
        let mut file = vec![0; 0x400];
        file[SETUP_SECTORS] = 1;
        file[MAGIC..MAGIC + 4].copy_from_slice(b"HdrS");
        file[PAYLOAD_LENGTH..PAYLOAD_LENGTH + 4].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        file.extend_from_slice(payload);
        file
    }

    #[test]
    fn a_packed_kernel_comes_out_whole_and_a_damaged_one_does_not() {
        let program = [&b"\x7fELF\x02\x01"[..], &[9; 100_000]].concat();
        let payload = [lz4::pack(&program), (program.len() as u32).to_le_bytes().to_vec()].concat();
        assert_eq!(unpack(&loader(&payload)).unwrap(), program);
        assert!(matches!(unpack(b""), Err(KernelError::NoLoader)));
        assert!(matches!(unpack(&loader(b"\xfd7zXZ")), Err(KernelError::Packing)));
        assert!(matches!(unpack(&loader(&payload[..payload.len() / 2])), Err(KernelError::Damaged(_))));
        let other = [lz4::pack(b"text"), vec![4, 0, 0, 0]].concat();
        assert!(matches!(unpack(&loader(&other)), Err(KernelError::NoProgram)));
    }
}
