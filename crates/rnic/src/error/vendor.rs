//! A fault as one number, for `vendor_err` in completions of the C verbs: the kind of fault, and what of its details fits.
//! The drop-in writes it, `ironwarp explain` reads it; this is the one place that knows its form.
//!
//! ```text
//!  31     24 23     16 15                 0
//! +---------+---------+--------------------+
//! |  0x49   |  kind   |       detail       |   0x49 is "I": other adapters use small numbers
//! +---------+---------+--------------------+
//! ```
//!
//! The detail of a Terminate, and of what is answered by one, is that Terminate's layer, type and code (RFC 5040 §4.8) as
//! they are on the wire. Numbers are never given another meaning: people keep logs.

use super::{Culprit, Fault};
use crate::memory::Check;
use ironwarp_wire::Cause;
use std::fmt;

/// What a `vendor_err` tells of a [`Fault`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum VendorError {
    /// [`Fault::Local`], and the check that failed.
    Local(Check),
    /// [`Fault::Remote`], and the check that failed.
    Remote(Check),
    /// [`Fault::Unmapped`].
    Unmapped {
        /// Whether the peer wanted to reach it.
        remote: bool,
    },
    /// [`Fault::Register`].
    Register,
    /// [`Fault::Violation`], and what answers it.
    Violation(Cause),
    /// [`Fault::Protocol`], and what answers it.
    Protocol(Cause),
    /// [`Fault::Terminated`], and why.
    Terminated(Cause),
    /// [`Fault::Lost`], and the operating system's number for it.
    Lost(u16),
    /// [`Fault::HalfSent`].
    HalfSent,
    /// [`Fault::Unreachable`].
    Unreachable,
    /// [`Fault::Moved`].
    Moved,
    /// [`Fault::NotReady`].
    NotReady,
    /// [`Fault::CutShort`].
    CutShort,
    /// [`Fault::Closed`].
    Closed,
    /// [`Fault::Disconnected`].
    Disconnected,
    /// [`Fault::NoImmediate`].
    NoImmediate,
    /// [`Fault::DatagramTooLong`].
    DatagramTooLong,
    /// [`Fault::Overrun`].
    Overrun,
    /// [`Fault::Stopped`].
    Stopped,
    /// [`Fault::TimedOut`].
    TimedOut,
    /// [`Fault::OtherRelease`].
    OtherRelease,
    /// [`Fault::Bug`].
    Bug,
}

/// The first byte.
const MARK: u32 = 0x49 << 24;

/// The checks by their numbers. New ones come at the end.
const CHECKS: [Check; 15] = [
    Check::Valid,
    Check::Kind,
    Check::Domain,
    Check::Stream,
    Check::Instance,
    Check::Wrap,
    Check::Range,
    Check::Right,
    Check::Bind,
    Check::QueuePair,
    Check::Touched,
    Check::Idle,
    Check::Invalidate,
    Check::Windows,
    Check::Pending,
];

impl VendorError {
    /// What is kept of a fault.
    pub const fn of(fault: &Fault) -> Self {
        match fault {
            Fault::Local(denied) => Self::Local(denied.check),
            Fault::Remote(denied) => Self::Remote(denied.check),
            Fault::Unmapped { remote, .. } => Self::Unmapped { remote: *remote },
            Fault::Register { .. } => Self::Register,
            Fault::Violation(violation) => Self::Violation(violation.cause()),
            Fault::Protocol(protocol) => Self::Protocol(protocol.cause()),
            Fault::Terminated(terminate) => Self::Terminated(terminate.cause),
            #[expect(clippy::cast_possible_truncation, reason = "Linux has no larger ones than 4095")]
            Fault::Lost(errno) => Self::Lost(errno.cast_unsigned() as u16),
            Fault::HalfSent => Self::HalfSent,
            Fault::Unreachable => Self::Unreachable,
            Fault::Moved => Self::Moved,
            Fault::NotReady => Self::NotReady,
            Fault::CutShort => Self::CutShort,
            Fault::Closed => Self::Closed,
            Fault::Disconnected => Self::Disconnected,
            Fault::NoImmediate => Self::NoImmediate,
            Fault::DatagramTooLong { .. } => Self::DatagramTooLong,
            Fault::Overrun(_) => Self::Overrun,
            Fault::Stopped => Self::Stopped,
            Fault::TimedOut(_) => Self::TimedOut,
            Fault::OtherRelease(_) => Self::OtherRelease,
            Fault::Bug(_) => Self::Bug,
        }
    }

    /// The number.
    pub const fn to_u32(self) -> u32 {
        let (kind, detail): (u8, u16) = match self {
            Self::Local(check) => (1, check as u16 + 1),
            Self::Remote(check) => (2, check as u16 + 1),
            Self::Unmapped { remote } => (3, remote as u16),
            Self::Register => (4, 0),
            Self::Violation(cause) => (5, on_wire(cause)),
            Self::Protocol(cause) => (6, on_wire(cause)),
            Self::Terminated(cause) => (7, on_wire(cause)),
            Self::Lost(errno) => (8, errno),
            Self::HalfSent => (9, 0),
            Self::Unreachable => (10, 0),
            Self::Moved => (11, 0),
            Self::NotReady => (12, 0),
            Self::CutShort => (13, 0),
            Self::Closed => (14, 0),
            Self::Disconnected => (15, 0),
            Self::NoImmediate => (16, 0),
            Self::DatagramTooLong => (17, 0),
            Self::Overrun => (18, 0),
            Self::Stopped => (19, 0),
            Self::TimedOut => (20, 0),
            Self::OtherRelease => (21, 0),
            Self::Bug => (22, 0),
        };
        MARK | (kind as u32) << 16 | detail as u32
    }

    /// From the number; `None` if it is another adapter's, or of a later version.
    pub fn from_u32(number: u32) -> Option<Self> {
        let [mark, kind, high, low] = number.to_be_bytes();
        let detail = u16::from_be_bytes([high, low]);
        let check = || CHECKS.get(usize::from(detail).checked_sub(1)?).copied();
        let cause = Cause::from_wire(high >> 4, high & 0xf, low);
        let found = match kind {
            1 => Self::Local(check()?),
            2 => Self::Remote(check()?),
            3 => Self::Unmapped { remote: detail == 1 },
            4 => Self::Register,
            5 => Self::Violation(cause),
            6 => Self::Protocol(cause),
            7 => Self::Terminated(cause),
            8 => Self::Lost(detail),
            9 => Self::HalfSent,
            10 => Self::Unreachable,
            11 => Self::Moved,
            12 => Self::NotReady,
            13 => Self::CutShort,
            14 => Self::Closed,
            15 => Self::Disconnected,
            16 => Self::NoImmediate,
            17 => Self::DatagramTooLong,
            18 => Self::Overrun,
            19 => Self::Stopped,
            20 => Self::TimedOut,
            21 => Self::OtherRelease,
            22 => Self::Bug,
            _ => return None,
        };
        // A kind without details has none, and a cause has one form.
        (u32::from(mark) << 24 == MARK && found.to_u32() == number).then_some(found)
    }

    /// Whose mistake it is.
    pub const fn culprit(self) -> Culprit {
        match self {
            // The end that says so failed for reasons of its own.
            Self::Terminated(Cause::LocalCatastrophic | Cause::DdpCatastrophic)
            | Self::Remote(_)
            | Self::Violation(_)
            | Self::Protocol(_)
            | Self::OtherRelease
            | Self::CutShort
            | Self::NotReady => Culprit::Peer,
            Self::Local(_)
            | Self::Register
            | Self::Overrun
            | Self::Stopped
            | Self::Unmapped { .. }
            | Self::HalfSent
            | Self::NoImmediate
            | Self::DatagramTooLong
            | Self::Terminated(_) => Culprit::Program, // a Terminate complains of what this end did
            Self::Lost(_) | Self::TimedOut | Self::Unreachable => Culprit::Network,
            Self::Closed | Self::Disconnected | Self::Moved => Culprit::Nobody,
            Self::Bug => Culprit::Adapter,
        }
    }
}

/// Layer, type and code, as a Terminate carries them.
const fn on_wire(cause: Cause) -> u16 {
    let (layer, kind, code) = cause.to_wire();
    u16::from_be_bytes([layer << 4 | kind, code])
}

impl fmt::Display for VendorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local(check) => write!(f, "this request may not use this memory: {check}"),
            Self::Remote(check) => write!(f, "the peer may not use this memory: {check}"),
            Self::Unmapped { remote: false } => {
                f.write_str("the program unmapped or write-protected memory that it registered")
            }
            Self::Unmapped { remote: true } => {
                f.write_str("the peer wanted memory that the program registered, and has unmapped since")
            }
            Self::Register => f.write_str("a registration by work request failed"),
            Self::Violation(cause) | Self::Protocol(cause) => {
                write!(f, "the peer broke the protocol, and was told: {cause}")
            }
            Self::Terminated(cause) => write!(f, "the peer ended the stream: {cause}"),
            Self::Lost(errno) => {
                let error = std::io::Error::from_raw_os_error((*errno).into());
                write!(f, "the connection was lost: {error}")
            }
            Self::HalfSent => Fault::HalfSent.fmt(f),
            Self::Unreachable => Fault::Unreachable.fmt(f),
            Self::Moved => Fault::Moved.fmt(f),
            Self::NotReady => Fault::NotReady.fmt(f),
            Self::CutShort => Fault::CutShort.fmt(f),
            Self::Closed => Fault::Closed.fmt(f),
            Self::Disconnected => Fault::Disconnected.fmt(f),
            Self::NoImmediate => Fault::NoImmediate.fmt(f),
            Self::DatagramTooLong => f.write_str("a datagram was longer than one can be"),
            Self::Overrun => f.write_str("a completion queue overflowed"),
            Self::Stopped => Fault::Stopped.fmt(f),
            Self::TimedOut => f.write_str("something had to happen within a time, and did not"),
            Self::OtherRelease => f.write_str("the peer runs another release of Ironwarp"),
            Self::Bug => f.write_str("a bug in Ironwarp: it panicked while it served the connection"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Protocol;
    use ironwarp_wire::{
        MpaFault, Offender, Operation, Protection, TaggedBuffer, Terminate, UntaggedBuffer, Violation,
    };

    fn causes() -> Vec<Cause> {
        let mut all = vec![
            Cause::LocalCatastrophic,
            Cause::DdpCatastrophic,
            Cause::Other { layer: 15, kind: 14, code: 0xfe },
        ];
        all.extend(Protection::ALL.iter().map(|it| Cause::Protection(*it)));
        all.extend(Operation::ALL.iter().map(|it| Cause::Operation(*it)));
        all.extend(TaggedBuffer::ALL.iter().map(|it| Cause::TaggedBuffer(*it)));
        all.extend(UntaggedBuffer::ALL.iter().map(|it| Cause::UntaggedBuffer(*it)));
        all.extend(MpaFault::ALL.iter().map(|it| Cause::Mpa(*it)));
        all
    }

    fn all() -> Vec<VendorError> {
        use VendorError::*;
        let mut all = vec![
            Unmapped { remote: false },
            Unmapped { remote: true },
            Register,
            HalfSent,
            Unreachable,
            Moved,
            NotReady,
            CutShort,
            Closed,
            Disconnected,
            NoImmediate,
            DatagramTooLong,
            Overrun,
            Stopped,
            TimedOut,
            OtherRelease,
            Bug,
        ];
        all.extend(CHECKS.into_iter().flat_map(|check| [Local(check), Remote(check)]));
        all.extend(causes().into_iter().flat_map(|it| [Violation(it), Protocol(it), Terminated(it)]));
        all.extend((0..=u16::MAX).map(Lost));
        all
    }

    #[test]
    fn every_number_is_read_as_it_was_written_and_stands_for_one_thing() {
        let mut seen = std::collections::HashSet::new();
        for error in all() {
            let number = error.to_u32();
            assert_eq!(VendorError::from_u32(number), Some(error), "{number:#x}");
            assert!(seen.insert(number), "{number:#x} stands for {error:?} and something else");
        }
        for kind in 0..=u8::MAX {
            let known = seen.iter().any(|number| number.to_be_bytes()[1] == kind);
            let read = (0..=u16::MAX).any(|detail| {
                VendorError::from_u32(MARK | u32::from(kind) << 16 | u32::from(detail)).is_some()
            });
            assert_eq!(known, read, "all kinds are in this test: {kind}");
        }
    }

    #[test]
    fn other_numbers_are_nothing() {
        for number in
            [0, 1, 0x49, 0xff, 0x81, 0x4900_0000, 0x4901_0000, 0x4901_0010, 0x4903_0002, 0x4904_0001]
        {
            assert_eq!(VendorError::from_u32(number), None, "{number:#x}");
        }
        let another_adapters = VendorError::Closed.to_u32() ^ 0x0100_0000;
        assert_eq!(VendorError::from_u32(another_adapters), None);
        // Some drivers' form of an MPA error: nothing here makes it.
        assert_eq!(VendorError::from_u32(0x4907_2302), None);
    }

    /// Written down in logs: these do not change.
    #[test]
    fn numbers_that_people_have_seen() {
        let access = Cause::Protection(Protection::Access);
        assert_eq!(VendorError::Terminated(access).to_u32(), 0x4907_0102);
        assert_eq!(VendorError::Local(Check::Right).to_u32(), 0x4901_0008);
        assert_eq!(VendorError::Lost(104).to_u32(), 0x4908_0068);
        assert_eq!(VendorError::TimedOut.to_u32(), 0x4914_0000);
        for (number, check) in (0..).zip(CHECKS) {
            assert_eq!(check as u16, number, "{check:?}");
        }
    }

    #[test]
    fn faults_have_numbers() {
        let terminate =
            Terminate { cause: Cause::TaggedBuffer(TaggedBuffer::Bounds), offender: Offender::default() };
        for (fault, number) in [
            (Fault::Terminated(terminate), 0x4907_1101),
            (Fault::Violation(Violation::Revision(9)), 0x4905_2004),
            (Fault::Protocol(Protocol::NoReceive), 0x4906_1202),
            (Fault::Lost(104), 0x4908_0068),
            (Fault::Overrun(7), 0x4912_0000),
            (Fault::Closed, 0x490e_0000),
        ] {
            assert_eq!(fault.vendor_err(), number, "{fault}");
            assert_eq!(VendorError::from_u32(number).map(VendorError::culprit), Some(fault.culprit()));
        }
    }

    #[test]
    fn each_says_something_of_its_own() {
        let mut seen = std::collections::HashMap::new();
        for error in all().into_iter().filter(|error| !matches!(error, VendorError::Lost(2..))) {
            let text = error.to_string();
            assert!(!text.is_empty() && !text.contains('\n'), "{error:?}");
            if let Some(other) = seen.insert(text, error) {
                // Both are answered with the same Terminate, and are the peer's.
                assert!(matches!(other, VendorError::Violation(_)), "{error:?} and {other:?}");
            }
        }
    }
}
