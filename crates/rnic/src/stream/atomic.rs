//! Executes atomic operations of the peer on local memory (RFC 7306 §5).

use crate::context::QpContext;
use crate::error::{Protocol, QpError, UNMAPPED};
use crate::memory::{Guard, Rights, Spans, Touch};
use ironwarp_wire::{AtomicOp, AtomicRequest, Cause, RemoteAddr};

/// Size of the operand of an atomic operation.
const WORD: usize = size_of::<u64>();

/// Checks the peer's access to the word that an Atomic Request names. Returns a guard and the address of the word.
pub(crate) fn find<'q>(
    qp: &'q QpContext,
    target: RemoteAddr,
    touch: &mut Touch,
) -> Result<(Guard<'q>, u64), QpError> {
    let mut spans = Spans::new();
    let guard =
        qp.admit_remote(target, WORD, Rights::REMOTE_ATOMIC, &mut spans, touch).map_err(QpError::Remote)?;
    match spans[..] {
        [span] if span.addr % WORD as u64 == 0 => Ok((guard, span.addr)),
        _ => Err(QpError::Protocol(Protocol::Misaligned { addr: target })),
    }
}

/// Executes a remote atomic operation and returns the original value.
pub(crate) fn serve(qp: &QpContext, request: &AtomicRequest, mut touch: Touch) -> Result<u64, QpError> {
    let (_guard, addr) = find(qp, request.target, &mut touch)?;
    let unmapped = |_| QpError::Unmapped { addr: request.target, len: WORD, remote: true };
    qp.device().host().update(addr, &|word| apply(request.op, word)).map_err(unmapped)
}

/// Returns the Terminate cause for an Atomic Request that failed.
pub(crate) const fn cause(error: &QpError) -> Cause {
    match error {
        QpError::Remote(denied) => denied.read_cause(),
        QpError::Protocol(rule) => rule.cause(),
        _ => UNMAPPED,
    }
}

/// Returns the value of a word after an operation.
const fn apply(op: AtomicOp, word: u64) -> u64 {
    match op {
        // `mask` has the top bit of each field. The bits below are added first, with the top bits cleared, so that no
        // carry can leave a field. The top bits are then added without carry, by XOR.
        AtomicOp::FetchAdd { add, mask } => (word & !mask).wrapping_add(add & !mask) ^ ((word ^ add) & mask),
        AtomicOp::CompareSwap { swap, swap_mask, compare, compare_mask } => {
            let equal = word & compare_mask == compare & compare_mask;
            if equal { word & !swap_mask | swap & swap_mask } else { word }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::apply;
    use ironwarp_wire::AtomicOp::{CompareSwap, FetchAdd};

    /// Adds as the RFC describes it: bit by bit, dropping the carry out of each field.
    fn add_by_fields(word: u64, add: u64, mask: u64) -> u64 {
        let (mut sum, mut carry) = (0, 0);
        for bit in 0..64 {
            let ones = (word >> bit & 1) + (add >> bit & 1) + carry;
            sum |= (ones & 1) << bit;
            carry = if mask >> bit & 1 == 1 { 0 } else { ones >> 1 };
        }
        sum
    }

    #[test]
    fn fetch_and_add_keeps_carries_inside_fields() {
        let words = [0, 1, 0xff, 0xffff_ffff, u64::MAX, 0x0123_4567_89ab_cdef, 1 << 63];
        for (word, add) in words.iter().flat_map(|word| words.iter().map(move |add| (*word, *add))) {
            assert_eq!(apply(FetchAdd { add, mask: 0 }, word), word.wrapping_add(add));
            for mask in [1 << 63, 1 << 31, 0x8080_8080_8080_8080, u64::MAX, 0x8000_0000_8000_0001] {
                let expected = add_by_fields(word, add, mask);
                assert_eq!(apply(FetchAdd { add, mask }, word), expected, "{word:x} + {add:x} & {mask:x}");
            }
        }
    }

    #[test]
    fn compare_and_swap_looks_at_and_changes_what_its_masks_say() {
        let op =
            |compare, compare_mask, swap, swap_mask| CompareSwap { swap, swap_mask, compare, compare_mask };
        assert_eq!(apply(op(5, u64::MAX, 9, u64::MAX), 5), 9);
        assert_eq!(apply(op(5, u64::MAX, 9, u64::MAX), 6), 6);
        assert_eq!(apply(op(0xab00, 0xff00, 0x1234, 0x00ff), 0xabcd), 0xab34);
        assert_eq!(apply(op(0xac00, 0xff00, 0x1234, 0x00ff), 0xabcd), 0xabcd);
        assert_eq!(apply(op(0, 0, 0x77, 0xff), 0xabcd), 0xab77, "no bit compared: always equal");
    }
}
