//! The contents of messages and memory, the same as in the guest's `pattern.c`.

/// Byte i is the low byte of i times a factor, plus a summand.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pattern(usize, usize);

pub(crate) const WRITTEN: Pattern = Pattern(11, 1);
pub(crate) const HELD: Pattern = Pattern(13, 5);
pub(crate) const SAID: Pattern = Pattern(3, 80);
pub(crate) const WRITTEN_BY_SIW: Pattern = Pattern(7, 3);
pub(crate) const HELD_BY_SIW: Pattern = Pattern(17, 9);
pub(crate) const SAID_BY_SIW: Pattern = Pattern(5, 40);

impl Pattern {
    /// Returns `len` bytes from `from` on. The contents of successive messages differ: message 1 is message 0 plus one.
    pub(crate) fn bytes(self, from: usize, len: usize, message: u8) -> Vec<u8> {
        let Self(factor, summand) = self;
        (from..from + len).map(|i| (factor * i + summand).to_le_bytes()[0].wrapping_add(message)).collect()
    }

    /// Checks that the bytes are those from `from` on.
    pub(crate) fn verify(self, what: &str, bytes: &[u8], from: usize, message: u8) {
        let expected = self.bytes(from, bytes.len(), message);
        if let Some(i) = (0..bytes.len()).find(|&i| bytes[i] != expected[i]) {
            panic!("{what}: byte {} is {:#04x}, not {:#04x}", from + i, bytes[i], expected[i]);
        }
    }
}
