//! Sessions at tgtd.

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
