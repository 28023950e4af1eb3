//! The ciphers of the tags of simulated adapters. Their keys are fixed, so that runs are reproducible.

use ironwarp_rnic::memory::TagCipher;
use std::sync::{Arc, LazyLock};

/// Returns the cipher for the tags of adapter 0 or 1. The two adapters have different keys, like real adapters.
pub fn tag_cipher(number: usize) -> Arc<TagCipher> {
    static CIPHERS: LazyLock<[Arc<TagCipher>; 2]> =
        LazyLock::new(|| [1, 2].map(|byte| TagCipher::new([byte; 16])));
    Arc::clone(&CIPHERS[number])
}
