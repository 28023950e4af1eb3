//! Sessions at tgtd, and data to write.

use ironwarp::Adapter;
use ironwarp_iscsi::{DigestPolicy, Options, Session};
use ironwarp_testkit::tgtd::{NAME, Tgtd};
use std::time::Duration;

/// Longer than any command takes on a busy machine.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// Options of a session with these digests, or without any.
pub(crate) fn options(digest: DigestPolicy) -> Options {
    Options::new("iqn.2026-01.example.ironwarp:test", NAME).header_digest(digest).data_digest(digest)
}

/// Makes the target accept digests.
pub(crate) fn enable_digests(target: &mut Tgtd) {
    target.set("HeaderDigest", "CRC32C");
    target.set("DataDigest", "CRC32C");
}

pub(crate) fn connect(target: &Tgtd, options: &Options) -> Session {
    Session::connect(&Adapter::new().unwrap(), target.addr().into(), options).unwrap()
}

/// Returns `len` bytes: adjacent ones differ, and so do those of different seeds.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
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
