//! The keys behind the tags of simulated adapters: fixed, so that a run can be repeated.

use ironwarp_rnic::memory::TagCipher;
use std::sync::{Arc, LazyLock};

/// What the tags of the adapter with this number follow from. The two ends of a run have different ones, as in life.
pub fn tag_cipher(number: usize) -> Arc<TagCipher> {
    static CIPHERS: LazyLock<[Arc<TagCipher>; 2]> =
        LazyLock::new(|| [1, 2].map(|byte| TagCipher::new([byte; 16])));
    Arc::clone(&CIPHERS[number])
}
