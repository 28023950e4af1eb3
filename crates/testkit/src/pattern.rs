//! Bytes to send and to compare.

/// Returns `len` bytes: adjacent ones differ, and so do those of different seeds.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut word = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}
