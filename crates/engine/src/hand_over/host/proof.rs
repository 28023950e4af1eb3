//! How each end of a move proves that it holds the cluster key, which itself never travels: HMAC-SHA256 over the nonces of both
//! ends, truncated to 128 bits. The mask of the key of the tag cipher is computed in the same way.

use super::super::message::Role;
use crate::config::ClusterKey;
use hmac::{Hmac, Mac};
use ironwarp_rnic::memory::KeyMask;
use sha2::Sha256;

/// Begins what the MAC of each use covers, so that none can take the place of another, or of a proof in docs/wire.md.
const SOURCE: &[u8] = b"ironwarp move: source";
const TARGET: &[u8] = b"ironwarp move: target";
const MASK: &[u8] = b"ironwarp move: tag key";

/// The key, and the nonces of both ends.
#[derive(Clone, Debug)]
pub(super) struct Session<'a> {
    pub(super) key: &'a ClusterKey,
    pub(super) source: [u8; 16],
    pub(super) target: [u8; 16],
}

impl Session<'_> {
    /// Returns the proof of one end.
    pub(super) fn proof(&self, by: Role) -> [u8; 16] {
        let whole = self.mac(use_of(by)).finalize().into_bytes();
        std::array::from_fn(|index| whole[index])
    }

    /// Returns whether a proof of one end is valid. The time it takes does not depend on which bytes are wrong.
    pub(super) fn verify(&self, by: Role, proof: &[u8; 16]) -> bool {
        self.mac(use_of(by)).verify_truncated_left(proof).is_ok()
    }

    /// Returns what hides the key of the tag cipher.
    pub(super) fn mask(&self) -> KeyMask {
        let whole = self.mac(MASK).finalize().into_bytes();
        KeyMask(std::array::from_fn(|index| whole[index]))
    }

    fn mac(&self, used_for: &[u8]) -> Hmac<Sha256> {
        let key = self.key.bytes().unwrap_or_default();
        let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
        [used_for, &self.source, &self.target].iter().for_each(|part| mac.update(part));
        mac
    }
}

fn use_of(by: Role) -> &'static [u8] {
    match by {
        Role::Source => SOURCE,
        Role::Target => TARGET,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_is_for_one_key_one_end_and_one_move() {
        let keys = [[1; 32], [2; 32]].map(|bytes| ClusterKey::new(&bytes).unwrap());
        let session = |key, source, target| Session { key, source: [source; 16], target: [target; 16] };
        let ours = session(&keys[0], 3, 4);
        let proof = ours.proof(Role::Source);
        assert!(ours.verify(Role::Source, &proof));
        assert!(!ours.verify(Role::Target, &proof), "sent back");
        for other in [session(&keys[1], 3, 4), session(&keys[0], 4, 3), session(&keys[0], 3, 5)] {
            assert!(!other.verify(Role::Source, &proof), "{other:?}");
            assert_ne!(other.mask().0, ours.mask().0);
        }
        assert_ne!(ours.mask().0, proof);
        // The inputs have different lengths only where the nonces begin, which are random.
        assert!(!MASK.starts_with(SOURCE) && !SOURCE.starts_with(TARGET));
    }
}
