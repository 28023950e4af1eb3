//! Explains the `vendor_err` of a completion, which encodes the cause (`ironwarp_rnic::error::VendorError`).

use super::explanation::{Explanation, at_fault};
use ironwarp::memory::Check;
use ironwarp::protocol::Cause;
use ironwarp_rnic::error::VendorError;
use ironwarp_wire::{MpaFault, Protection, TaggedBuffer, UntaggedBuffer};

/// Lines of an explanation.
type Lines = &'static [&'static str];

/// Returns the explanation of a `vendor_err`; `None` if the number is not one of Ironwarp's.
pub(super) fn by_number(number: u32) -> Option<Explanation> {
    let error = VendorError::from_u32(number)?;
    let (causes, look) = hints(error);
    Some(Explanation {
        title: format!("{number:#010x}, vendor_err: {}", kind(error)),
        what: error.to_string(),
        at_fault: at_fault(error.origin()),
        causes,
        look,
    })
}

/// Returns the kind of an error, for the title.
fn kind(error: VendorError) -> &'static str {
    match error {
        VendorError::Local(_) | VendorError::Unmapped { remote: false } => "memory of a request",
        VendorError::Remote(_) | VendorError::Unmapped { remote: true } => "memory that the peer accessed",
        VendorError::Violation(_) | VendorError::Protocol(_) => "protocol",
        VendorError::Terminated(_) => "Terminate of the peer",
        VendorError::Lost(_) | VendorError::Unreachable | VendorError::TimedOut => "connection lost",
        VendorError::CutShort | VendorError::Closed | VendorError::Disconnected => "connection closed",
        VendorError::NotReady => "receiver not ready",
        VendorError::Register => "registration",
        VendorError::Moved => "state of the queue pair",
        _ => "other",
    }
}

const PEER_LOG: Lines = &[
    "the line that Ironwarp wrote at the other end (IRONWARP_LOG=warn): it names tag, range and rights",
    "ibv_reg_mr there: address, length, access; and how rkey and address were exchanged",
];
const LOG: Lines = &["the line that Ironwarp wrote to standard error: it names tag, range and rights"];
const CAPTURE: Lines = &["the traffic: `ironwarp run --pcap FILE`, then `ironwarp-pcap show` or Wireshark"];
const PEER_STATE: Lines = &["the output of the program at the other end, and whether it still runs"];
const SIZES: Lines = &["the sizes of the queues at creation"];

/// Returns typical causes of an error, and where to look next.
fn hints(error: VendorError) -> (Lines, Lines) {
    match error {
        VendorError::Local(check) => (causes_of_check(check), LOG),
        VendorError::Remote(check) => (causes_of_check(check), PEER_LOG),
        VendorError::Terminated(cause) => (causes_of_terminate(cause), PEER_LOG),
        VendorError::Violation(cause) | VendorError::Protocol(cause) => (causes_of_terminate(cause), CAPTURE),
        VendorError::Unmapped { .. } | VendorError::HalfSent => {
            (&["munmap, or free of a large block, while the memory is registered and in use"], LOG)
        }
        VendorError::Register => (
            &[
                "a range, rights or domain that are invalid for the region",
                "no free entry in the memory table",
            ],
            LOG,
        ),
        VendorError::Lost(_) | VendorError::CutShort => (
            &["the program at the other end crashed or was killed", "the injected fault `cut`", "a firewall"],
            PEER_STATE,
        ),
        VendorError::Unreachable => (
            &["wrong GID or queue pair number", "the other end never became ready, or exited", "a firewall"],
            &["`ironwarp devices` on both ends", "`timeout` and `retry_cnt` of ibv_modify_qp"],
        ),
        VendorError::TimedOut => (&["the other end is stopped, or the network has failed"], PEER_STATE),
        VendorError::NotReady => (
            &["the program at the other end posts receives too late, or too few of them"],
            &["`rnr_retry` and `min_rnr_timer` of ibv_modify_qp; 7 means forever"],
        ),
        VendorError::NoImmediate => (
            &[
                "the peer is not Ironwarp, and iWARP has no such message",
                "IRONWARP_SEND_IMMEDIATE or IRONWARP_PRIVATE is off at one end",
            ],
            &["IBV_WR_RDMA_WRITE_WITH_IMM, which every peer supports"],
        ),
        VendorError::DatagramTooLong => (&["a UD message of more than 4096 bytes"], SIZES),
        VendorError::SessionLost => (
            &[
                "the program at the other end was started again",
                "it receives from more senders than it can remember",
            ],
            PEER_STATE,
        ),
        VendorError::ReceiveFailed => {
            (&["a receive at the other end without room for the 40-byte GRH and the message"], SIZES)
        }
        VendorError::HandedOver => {
            (&["the program handed its adapter over to another process, where the connection goes on"], &[])
        }
        VendorError::Overrun => (
            &[
                "the completion queue is smaller than the number of requests that can complete before it is polled",
            ],
            SIZES,
        ),
        VendorError::Stopped => (
            &[
                "asynchronous events that the program did not take",
                "the program closed descriptors that it does not own, for example with closefrom",
            ],
            &["ibv_get_async_event: is it called?", "the line that Ironwarp wrote to standard error"],
        ),
        VendorError::Bug => (
            &["a bug in Ironwarp, not in this program: please report it"],
            &["the panic message on standard error: it names file and line"],
        ),
        VendorError::OtherRelease => (
            &["the two ends run releases of Ironwarp with different private protocols"],
            &["`ironwarp --version` on both ends: run the same release"],
        ),
        // A regular end.
        _ => (&[], &[]),
    }
}

/// Returns typical causes of a failed check of memory access.
fn causes_of_check(check: Check) -> Lines {
    match check {
        Check::Valid | Check::Instance => {
            &["the key is wrong or outdated: the memory was deregistered, or registered again"]
        }
        Check::Range | Check::Wrap => &["the address or length is outside the registered memory"],
        Check::Right => &["the access flags of ibv_reg_mr lack the right, such as IBV_ACCESS_REMOTE_WRITE"],
        Check::QueuePair => &["qp_access_flags of ibv_modify_qp lack the right"],
        Check::Domain => &["queue pair and region belong to different protection domains"],
        Check::Stream => &["a window that is bound to another queue pair"],
        Check::Bind => &["the region was registered without IBV_ACCESS_MW_BIND"],
        Check::Kind => &["a window where a region is needed, or the other way round"],
        Check::Touched => &["memory for a single message received a second one"],
        Check::Idle => &["a registration by work request of memory that is already valid"],
        Check::Invalidate => &["a region registered by a call cannot be invalidated by a message"],
        Check::Windows => &["windows are still bound to the region"],
        Check::Pending => &["the peer used a region before its registration by a control queue was complete"],
        Check::InstancesUsed => {
            &["the program has used up all tags of the adapter, after four billion registrations"]
        }
        _ => &[],
    }
}

/// Returns typical causes of a protocol violation, by the cause that a Terminate carries.
fn causes_of_terminate(cause: Cause) -> Lines {
    match cause {
        Cause::Protection(Protection::Tag) | Cause::TaggedBuffer(TaggedBuffer::Tag) => {
            causes_of_check(Check::Valid)
        }
        Cause::Protection(Protection::Bounds | Protection::Wrap)
        | Cause::TaggedBuffer(TaggedBuffer::Bounds | TaggedBuffer::Wrap) => causes_of_check(Check::Range),
        Cause::Protection(Protection::Access) => {
            &["the memory, or the queue pair there, lacks the right, such as IBV_ACCESS_REMOTE_WRITE"]
        }
        Cause::Protection(Protection::Stream) | Cause::TaggedBuffer(TaggedBuffer::Stream) => {
            causes_of_check(Check::Domain)
        }
        Cause::Protection(Protection::Invalidate) => causes_of_check(Check::Invalidate),
        Cause::Protection(Protection::Unspecified) => {
            &["the program at the other end unmapped memory that is registered"]
        }
        Cause::UntaggedBuffer(UntaggedBuffer::TooLong) => &["the message is longer than its receive"],
        Cause::UntaggedBuffer(UntaggedBuffer::NoBuffer) => {
            &["no receive was posted for the message, or more Reads are outstanding than negotiated"]
        }
        Cause::Mpa(MpaFault::Crc) => &["corrupted in transit: a faulty network adapter, or a middlebox"],
        Cause::Mpa(MpaFault::InsufficientIrd) => {
            &["more outstanding Reads than the other end can hold (initiator_depth)"]
        }
        _ => &["two implementations that disagree about the protocol"],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminate_is_decoded() {
        let explanation = by_number(0x4907_0102).expect("known code");
        assert_eq!(explanation.what, "the peer ended the stream: RDMAP: access rights violation (0/1/02)");
        assert_eq!(explanation.title, "0x49070102, vendor_err: Terminate of the peer");
        assert_eq!(explanation.at_fault, "this program");
        assert!(explanation.causes[0].contains("IBV_ACCESS_REMOTE_WRITE"));
    }

    #[test]
    fn numbers_of_other_adapters_are_unknown() {
        for number in [0, 1, 0x81, 0x4900_0000, 0x4a01_0001] {
            assert_eq!(by_number(number), None, "{number:#x}");
        }
    }
}
