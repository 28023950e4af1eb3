//! `vendor_err` of a completion: the fault that the device found, in one number (`ironwarp_rnic::error::VendorError`).

use super::{Explanation, whose};
use ironwarp::{Cause, Check};
use ironwarp_rnic::error::VendorError;
use ironwarp_wire::{MpaFault, Protection, TaggedBuffer, UntaggedBuffer};

type Lines = &'static [&'static str];

pub(super) fn by_number(number: u32) -> Option<Explanation> {
    let error = VendorError::from_u32(number)?;
    let (causes, look) = hints(error);
    Some(Explanation {
        title: format!("{number:#010x}, vendor_err: {}", kind(error)),
        what: error.to_string(),
        whose: whose(error.culprit()),
        causes,
        look,
    })
}

fn kind(error: VendorError) -> &'static str {
    match error {
        VendorError::Local(_) | VendorError::Unmapped { remote: false } => "memory of a request",
        VendorError::Remote(_) | VendorError::Unmapped { remote: true } => "memory that the peer named",
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

const THERE: Lines = &[
    "the line that Ironwarp wrote at the other end (IRONWARP_LOG=warn): it names tag, range and right",
    "ibv_reg_mr there: address, length, access; and how rkey and address came here",
];
const HERE: Lines = &["the line that Ironwarp wrote to the standard error: it names tag, range and right"];
const WIRE: Lines = &["the wire: `ironwarp run --pcap FILE`, then `ironwarp-pcap show` or Wireshark"];
const PEER: Lines = &["what the program at the other end says, and whether it still runs"];
const CREATED: Lines = &["the sizes that queues were created with"];

fn hints(error: VendorError) -> (Lines, Lines) {
    match error {
        VendorError::Local(check) => (of_check(check), HERE),
        VendorError::Remote(check) => (of_check(check), THERE),
        VendorError::Terminated(cause) => (of_cause(cause), THERE),
        VendorError::Violation(cause) | VendorError::Protocol(cause) => (of_cause(cause), WIRE),
        VendorError::Unmapped { .. } | VendorError::HalfSent => {
            (&["munmap, or free of a large block, while it is registered and in use"], HERE)
        }
        VendorError::Register => {
            (&["a range, right or domain that the region cannot have", "no room for more"], HERE)
        }
        VendorError::Lost(_) | VendorError::CutShort => (
            &["the program at the other end crashed or was killed", "`cut` among the faults", "a firewall"],
            PEER,
        ),
        VendorError::Unreachable => (
            &[
                "wrong GID or number of the queue pair",
                "the other end never got ready, or ended",
                "a firewall",
            ],
            &["`ironwarp devices` at both ends", "`timeout` and `retry_cnt` of ibv_modify_qp"],
        ),
        VendorError::TimedOut => (&["the other end is stopped, or the network lost it"], PEER),
        VendorError::NotReady => (
            &["the program at the other end posts its receives too late, or too few"],
            &["`rnr_retry` and `min_rnr_timer` of ibv_modify_qp; 7 means for ever"],
        ),
        VendorError::NoImmediate => (
            &["the peer is no Ironwarp, and iWARP has no such message"],
            &["IBV_WR_RDMA_WRITE_WITH_IMM, which is standard"],
        ),
        VendorError::DatagramTooLong => (&["a UD message of more than 4096 bytes"], CREATED),
        VendorError::Overrun => {
            (&["the completion queue is smaller than all that can complete before it is polled"], CREATED)
        }
        VendorError::Stopped => (
            &[
                "asynchronous events that nobody took",
                "the program closed descriptors that are not its own, as by closefrom",
            ],
            &["ibv_get_async_event: is it called?", "the line that Ironwarp wrote to the standard error"],
        ),
        VendorError::Bug => (
            &["a mistake in Ironwarp, never in this program: please report it"],
            &["the panic on the standard error: it names file and line"],
        ),
        VendorError::OtherRelease => (
            &["the two ends run releases of Ironwarp whose private protocols differ"],
            &["`ironwarp --version` at both ends; run the same release"],
        ),
        // An end as it should be.
        _ => (&[], &[]),
    }
}

fn of_check(check: Check) -> Lines {
    match check {
        Check::Valid | Check::Instance => {
            &["the key is wrong or old: the memory was deregistered, or registered anew"]
        }
        Check::Range | Check::Wrap => &["the address or length goes beyond what was registered"],
        Check::Right => &["the access flags of ibv_reg_mr lack the right, such as IBV_ACCESS_REMOTE_WRITE"],
        Check::QueuePair => &["qp_access_flags of ibv_modify_qp lack the right"],
        Check::Domain => &["queue pair and region are of different protection domains"],
        Check::Stream => &["a window that is bound to another queue pair"],
        Check::Bind => &["the region was registered without IBV_ACCESS_MW_BIND"],
        Check::Kind => &["a window where a region is needed, or the other way round"],
        Check::Touched => &["memory for one message got a second one"],
        Check::Idle => &["a registration by work request of memory that is valid"],
        Check::Invalidate => &["a region that was registered by call cannot be invalidated by message"],
        Check::Windows => &["windows are still bound to the region"],
        Check::Pending => {
            &["the peer was told of a region before its registration by a control queue was done"]
        }
        _ => &[],
    }
}

fn of_cause(cause: Cause) -> Lines {
    match cause {
        Cause::Protection(Protection::Tag) | Cause::TaggedBuffer(TaggedBuffer::Tag) => of_check(Check::Valid),
        Cause::Protection(Protection::Bounds | Protection::Wrap)
        | Cause::TaggedBuffer(TaggedBuffer::Bounds | TaggedBuffer::Wrap) => of_check(Check::Range),
        Cause::Protection(Protection::Access) => {
            &["the memory, or the queue pair there, lacks the right, such as IBV_ACCESS_REMOTE_WRITE"]
        }
        Cause::Protection(Protection::Stream) | Cause::TaggedBuffer(TaggedBuffer::Stream) => {
            of_check(Check::Domain)
        }
        Cause::Protection(Protection::Invalidate) => of_check(Check::Invalidate),
        Cause::Protection(Protection::Unspecified) => {
            &["memory that is registered there was unmapped by the program there"]
        }
        Cause::UntaggedBuffer(UntaggedBuffer::TooLong) => {
            &["the message is longer than the receive that it got"]
        }
        Cause::UntaggedBuffer(UntaggedBuffer::NoBuffer) => {
            &["no receive was posted for the message, or more Reads at once than were agreed"]
        }
        Cause::Mpa(MpaFault::Crc) => {
            &["bytes were changed on the way: a broken network adapter, a middlebox"]
        }
        Cause::Mpa(MpaFault::InsufficientIrd) => {
            &["more Reads at once than the other end can hold (initiator_depth)"]
        }
        _ => &["two implementations that disagree on the protocol"],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminate_is_decoded() {
        let explanation = by_number(0x4907_0102).expect("it is there");
        assert_eq!(explanation.what, "the peer ended the stream: RDMAP: access rights violation (0/1/02)");
        assert_eq!(explanation.title, "0x49070102, vendor_err: Terminate of the peer");
        assert_eq!(explanation.whose, "this program's");
        assert!(explanation.causes[0].contains("IBV_ACCESS_REMOTE_WRITE"));
    }

    #[test]
    fn numbers_of_other_adapters_are_not() {
        for number in [0, 1, 0x81, 0x4900_0000, 0x4a01_0001] {
            assert_eq!(by_number(number), None, "{number:#x}");
        }
    }
}
