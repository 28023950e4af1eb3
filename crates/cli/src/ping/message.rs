//! The contents of messages, and checks of completions, which client and server share.

use crate::say::Failure;
use ironwarp::completion::{Completion, RequestError};
use std::time::Duration;

/// How long to wait for a message or a close of the peer.
pub(super) const TIMEOUT: Duration = Duration::from_secs(10);

/// Returns the byte at `index` of the message of ping `seq`. Adjacent bytes differ, and so do messages of consecutive
/// pings.
pub(super) fn expected_byte(seq: u64, index: usize) -> u8 {
    let mixed = (index as u64).wrapping_add(seq << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed.to_be_bytes()[0]
}

/// Returns the message of ping `seq`.
pub(super) fn message_bytes(seq: u64, len: usize) -> Vec<u8> {
    (0..len).map(|index| expected_byte(seq, index)).collect()
}

/// Returns the completion if the request succeeded. The error is the cause of the failure, without the details of the
/// request.
pub(super) fn check_success(completion: Completion) -> Result<Completion, Failure> {
    completion.success().map_err(|RequestError(failed)| match &failed.cause {
        Some(cause) => cause.to_string().into(),
        None => failed.status.to_string().into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_neighbouring_pings_differ_in_most_bytes() {
        let differ = (0..1000).filter(|&index| expected_byte(1, index) != expected_byte(2, index)).count();
        assert!(differ > 900, "{differ} of 1000");
    }
}
