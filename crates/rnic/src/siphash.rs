//! SipHash-2-4 (Aumasson and Bernstein, 2012), a keyed hash: whoever does not know the key cannot predict its values.

/// A key, as two words.
pub(crate) type Key = [u64; 2];

/// Returns the key with these bytes.
pub(crate) fn key_of(bytes: [u8; 16]) -> Key {
    let [a, b, c, d, e, f, g, h, rest @ ..] = bytes;
    [u64::from_le_bytes([a, b, c, d, e, f, g, h]), u64::from_le_bytes(rest)]
}

/// Returns the bytes of a key.
pub(crate) fn bytes_of(key: Key) -> [u8; 16] {
    let mut bytes = [0; 16];
    let (low, high) = bytes.split_at_mut(8);
    low.copy_from_slice(&key[0].to_le_bytes());
    high.copy_from_slice(&key[1].to_le_bytes());
    bytes
}

/// Returns the hash of the bytes of `words`, each in little-endian order.
pub(crate) fn siphash(key: Key, words: &[u64]) -> u64 {
    let mut v = [
        key[0] ^ 0x736f_6d65_7073_6575,
        key[1] ^ 0x646f_7261_6e64_6f6d,
        key[0] ^ 0x6c79_6765_6e65_7261,
        key[1] ^ 0x7465_6462_7974_6573,
    ];
    // The last block is the padding: the length of the input in bytes, modulo 256, in its top byte.
    let padding = (words.len() as u64 * 8) << 56;
    for block in words.iter().copied().chain([padding]) {
        v[3] ^= block;
        sip_rounds(&mut v, 2);
        v[0] ^= block;
    }
    v[2] ^= 0xff;
    sip_rounds(&mut v, 4);
    v[0] ^ v[1] ^ v[2] ^ v[3]
}

/// Applies the SipRound permutation `rounds` times.
fn sip_rounds([a, b, c, d]: &mut [u64; 4], rounds: usize) {
    for _ in 0..rounds {
        *a = a.wrapping_add(*b);
        *b = b.rotate_left(13) ^ *a;
        *a = a.rotate_left(32);
        *c = c.wrapping_add(*d);
        *d = d.rotate_left(16) ^ *c;
        *a = a.wrapping_add(*d);
        *d = d.rotate_left(21) ^ *a;
        *c = c.wrapping_add(*b);
        *b = b.rotate_left(17) ^ *c;
        *c = c.rotate_left(32);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// The test vectors of the reference implementation for inputs of 0, 8 and 16 bytes.
    #[test]
    fn siphash_is_as_published() {
        let key = key_of(std::array::from_fn(|at| u8::try_from(at).expect("less than 16")));
        assert_eq!(key, [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908]);
        assert_eq!(siphash(key, &[]), 0x726f_db47_dd0e_0e31);
        assert_eq!(siphash(key, &key[..1]), 0x93f5_f579_9a93_2462);
        assert_eq!(siphash(key, &key), 0x3f2a_cc7f_57c2_9bdb);
    }
}
