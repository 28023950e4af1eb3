//! Tags that cannot be guessed (RFC 5042 §6.1): a keyed permutation between the slots of the table and the
//! indices in tags.
//!
//! Slots are used in order, so that the table stays dense. The indices that peers see do not reveal this order.
//!
//! **The permutation** is a balanced Feistel network over all 24 bits, with six rounds. Feistel networks are
//! weak on small domains, so the choice matters. The round functions have no structure to exploit: each is a
//! table of 4,096 values of 12 bits, generated with SipHash-2-4 from a 128-bit key. For six rounds of random
//! functions, no generic attack is known that needs fewer than 2²⁴ observed pairs, which is all indices there
//! are (Patarin, *Generic attacks on Feistel schemes*, 2001); four rounds would fall to 2¹². A round costs
//! one load and one exclusive-or, no multiplication. The tables take 48 KiB per adapter, of which the lookup
//! of one tag reads six values.
//!
//! **The instance** of a slot starts at a random value, generated with the same key.
//!
//! **Limits.** A tag has 32 bits. A peer that guesses G times among R valid tags succeeds with a probability
//! of about G·R/2³². Each wrong guess ends a stream, so G is bounded by how fast the peer can connect. A peer
//! that has seen a tag can compute all other tags of the same entry with [`next_tag`](super::next_tag). Tags
//! therefore do not replace protection domains, rights and windows bound to one stream.

use crate::siphash::{Key, bytes_of, key_of, siphash};
use std::fmt;
use std::sync::Arc;

/// Number of bits of an index: 24, processed as two halves.
pub(super) const INDEX_BITS: u32 = u32::BITS - super::INSTANCE_BITS;
const HALF_BITS: u32 = INDEX_BITS / 2;
const HALF_MASK: u32 = (1 << HALF_BITS) - 1;
const HALF_VALUES: usize = HALF_MASK as usize + 1;
const ROUNDS: usize = 6;

/// Upper halves of SipHash inputs, which keep the uses of the key apart. The rounds use 0 to 5.
const FIRST_INSTANCE_INPUT: u64 = ROUNDS as u64;
const REUSE_INPUT: u64 = ROUNDS as u64 + 1;

/// The secret permutation from which the tags of an adapter are derived, so that peers cannot guess them.
///
/// The same key gives the same tags, so that a simulated run can be repeated. An adapter on a network needs a
/// random key.
pub struct TagCipher {
    /// The round functions as tables. Allocated on the heap directly, because program threads may have small stacks.
    rounds: Box<[[u16; HALF_VALUES]; ROUNDS]>,
    /// The SipHash key.
    key: Key,
}

impl TagCipher {
    /// Returns the key, which moves with the table (requirement X2).
    pub(super) fn key(&self) -> [u8; 16] {
        bytes_of(self.key)
    }

    /// Derives the permutation from a key. Takes about 0.1 ms; share the result if several tables use one
    /// key.
    pub fn new(key: [u8; 16]) -> Arc<Self> {
        let key = key_of(key);
        let tables = vec![[0; HALF_VALUES]; ROUNDS].into_boxed_slice();
        let mut rounds: Box<[_; ROUNDS]> = tables.try_into().expect("one table per round");
        for (round, table) in (0..).zip(rounds.iter_mut()) {
            for (at, values) in (0..).zip(table.as_chunks_mut::<4>().0) {
                let random = siphash(key, &[round << 32 | at]);
                *values = std::array::from_fn(|n| low_half(random >> (16 * n)));
            }
        }
        Arc::new(Self { rounds, key })
    }

    /// Returns the slot of an index. On the data path, hence unrolled.
    #[inline]
    pub(super) fn slot(&self, index: u32) -> u32 {
        let [a, b, c, d, e, f] = &*self.rounds;
        let (mut high, mut low) = (index >> HALF_BITS & HALF_MASK, index & HALF_MASK);
        low ^= look_up(f, high);
        high ^= look_up(e, low);
        low ^= look_up(d, high);
        high ^= look_up(c, low);
        low ^= look_up(b, high);
        high ^= look_up(a, low);
        high << HALF_BITS | low
    }

    /// Returns the index of a slot: the inverse of [`slot`](Self::slot).
    pub(super) fn index(&self, slot: u32) -> u32 {
        let (mut high, mut low) = (slot >> HALF_BITS & HALF_MASK, slot & HALF_MASK);
        for [even, odd] in self.rounds.as_chunks::<2>().0 {
            high ^= look_up(even, low);
            low ^= look_up(odd, high);
        }
        high << HALF_BITS | low
    }

    /// Returns the first instance of the entry in a slot.
    pub(super) fn first_instance(&self, slot: u32) -> u8 {
        siphash(self.key, &[FIRST_INSTANCE_INPUT << 32 | u64::from(slot)]).to_le_bytes()[0]
    }

    /// Returns the `n`th random choice: a number below `choices`, or zero if `choices` is zero.
    pub(super) fn choose(&self, n: u32, choices: usize) -> usize {
        let random = siphash(self.key, &[REUSE_INPUT << 32 | u64::from(n)]) >> 32;
        // Uniform up to one part in 2³² / choices.
        usize::try_from((random * choices as u64) >> 32).unwrap_or(0)
    }
}

/// Applies a round function to a half.
#[inline]
fn look_up(table: &[u16; HALF_VALUES], at: u32) -> u32 {
    u32::from(table[(at & HALF_MASK) as usize])
}

/// Returns the low 12 bits: the size of a half.
#[expect(clippy::cast_possible_truncation, reason = "only the low bits are used")]
fn low_half(random: u64) -> u16 {
    random as u16 & HALF_MASK as u16
}

/// Omits the key and the tables derived from it, which are secret.
impl fmt::Debug for TagCipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TagCipher").finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Covers all 2²⁴ indices, so that the tags of a small table may be anywhere.
    #[test]
    fn every_index_has_one_slot_and_every_slot_one_index() {
        let cipher = TagCipher::new([7; 16]);
        let mut seen = vec![0_u64; 1 << (INDEX_BITS - 6)];
        for slot in 0..1 << INDEX_BITS {
            let index = cipher.index(slot);
            assert_eq!(cipher.slot(index), slot);
            let (word, bit) = ((index >> 6) as usize, 1 << (index & 63));
            assert_eq!(seen[word] & bit, 0, "index {index:#x} has two slots");
            seen[word] |= bit;
        }
        assert!(seen.iter().all(|&word| word == u64::MAX));
    }

    /// Changing one bit of the slot, or the key, changes half of the bits of the index, within statistical
    /// error.
    #[test]
    fn neighbours_share_half_of_their_bits() {
        let (cipher, other) = (TagCipher::new([7; 16]), TagCipher::new([6; 16]));
        let slots = 4096;
        let distance = |index: &dyn Fn(u32) -> u32| -> f64 {
            let changed: u32 = (0..slots).map(|slot| (cipher.index(slot) ^ index(slot)).count_ones()).sum();
            f64::from(changed) / f64::from(slots * INDEX_BITS)
        };
        for bit in 0..INDEX_BITS {
            let share = distance(&|slot| cipher.index(slot ^ 1 << bit));
            assert!((0.48..0.52).contains(&share), "bit {bit}: {share}");
        }
        let share = distance(&|slot| other.index(slot));
        assert!((0.48..0.52).contains(&share), "another key: {share}");
    }
}
