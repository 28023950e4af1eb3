//! The checksum of IP, TCP and UDP (RFC 1071): a sum in ones' complement.

/// A sum that is not folded to 16 bits yet. A frame of 64 KiB is far from its limit.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sum(u64);

impl Sum {
    /// Adds a number. Numbers of more than 16 bits count as several words.
    pub(super) fn add(self, number: u64) -> Self {
        Self(self.0 + (number >> 32) + (number & 0xffff_ffff))
    }

    /// Adds the negative of a number.
    pub(super) fn subtract(self, number: u64) -> Self {
        self.add(u64::from(!Self::default().add(number).fold()))
    }

    /// Adds bytes, as big-endian words. An odd last byte is the upper half of a word.
    pub(super) fn add_bytes(self, bytes: &[u8]) -> Self {
        let (words, rest) = bytes.as_chunks::<4>();
        let sum: u64 = words.iter().map(|word| u64::from(u32::from_be_bytes(*word))).sum();
        let mut last = [0; 4];
        last[..rest.len()].copy_from_slice(rest);
        Self(self.0 + sum).add(u64::from(u32::from_be_bytes(last)))
    }

    /// Returns the checksum.
    pub(super) fn finish(self) -> u16 {
        !self.fold()
    }

    #[expect(clippy::cast_possible_truncation, reason = "the loop ends when it fits")]
    fn fold(self) -> u16 {
        let mut sum = self.0;
        while sum > 0xffff {
            sum = (sum >> 16) + (sum & 0xffff);
        }
        sum as u16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_of_the_rfc() {
        // The example of RFC 1071, section 3.
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(Sum::default().add_bytes(&bytes).finish(), !0xddf2);
        assert_eq!(Sum::default().add_bytes(&bytes[..3]).finish(), !0xf201);
        assert_eq!(Sum::default().add(70_000).subtract(70_000).add(5).finish(), !5);
        assert_eq!(Sum::default().add(u64::MAX).subtract(u64::MAX).finish(), 0, "the other zero");
    }
}
