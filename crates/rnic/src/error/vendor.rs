//! The encoding of an error as one number, for `vendor_err` in completions of the C verbs: the kind of error, and as
//! much detail as fits. The drop-in encodes the number, `ironwarp explain` decodes it.
//!
//! ```text
//!  31     24 23     16 15                 0
//! +---------+---------+--------------------+
//! |  0x49   |  kind   |       detail       |   0x49 is "I": other adapters use small numbers
//! +---------+---------+--------------------+
//! ```
//!
//! For a Terminate, and for errors that are answered with one, the detail is layer, type and code of the
//! Terminate (RFC 5040 §4.8), as on the wire. Numbers never change their meaning, because they appear in logs.

use super::{ErrorOrigin, QpError};
use crate::memory::Check;
use ironwarp_wire::Cause;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// The part of a [`QpError`] that a `vendor_err` contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum VendorError {
    /// [`QpError::Local`], and the check that failed.
    Local(Check),
    /// [`QpError::Remote`], and the check that failed.
    Remote(Check),
    /// [`QpError::Unmapped`].
    Unmapped {
        /// Whether the access was made for the peer.
        remote: bool,
    },
    /// [`QpError::Register`].
    Register,
    /// [`QpError::Violation`], and the cause of the Terminate.
    Violation(Cause),
    /// [`QpError::Protocol`], and the cause of the Terminate.
    Protocol(Cause),
    /// [`QpError::Terminated`], and the cause.
    Terminated(Cause),
    /// [`QpError::Lost`], and the errno.
    Lost(u16),
    /// [`QpError::HalfSent`].
    HalfSent,
    /// [`QpError::Unreachable`].
    Unreachable,
    /// [`QpError::Moved`].
    Moved,
    /// [`QpError::NotReady`].
    NotReady,
    /// [`QpError::CutShort`].
    CutShort,
    /// [`QpError::Closed`].
    Closed,
    /// [`QpError::Disconnected`].
    Disconnected,
    /// [`QpError::NoImmediate`].
    NoImmediate,
    /// [`QpError::DatagramTooLong`].
    DatagramTooLong,
    /// [`QpError::Overrun`].
    Overrun,
    /// [`QpError::Stopped`].
    Stopped,
    /// [`QpError::TimedOut`].
    TimedOut,
    /// [`QpError::OtherRelease`].
    OtherRelease,
    /// [`QpError::Bug`].
    Bug,
    /// [`QpError::SessionLost`].
    SessionLost,
    /// [`QpError::ReceiveFailed`].
    ReceiveFailed,
    /// [`QpError::HandedOver`].
    HandedOver,
    /// [`QpError::Iscsi`].
    Iscsi,
}

/// The top byte of all numbers of Ironwarp.
const MARK: u32 = 0x49 << 24;

/// All checks, in the order of their numbers.
const CHECKS: [Check; 16] = [
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
    Check::InstancesUsed,
];

impl QpError {
    /// Returns the party that caused the error.
    pub fn origin(&self) -> ErrorOrigin {
        VendorError::of(self).origin()
    }

    /// Returns the error as a number, for `vendor_err` in completions of C programs. `ironwarp explain` decodes it.
    pub fn vendor_err(&self) -> u32 {
        VendorError::of(self).to_u32()
    }
}

/// Of an error that moves to another function (requirement X2), the number and the text do.
impl Serialize for QpError {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        (self.vendor_err(), self.to_string()).serialize(to)
    }
}

impl<'de> Deserialize<'de> for QpError {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let (number, text) = <(u32, &str)>::deserialize(from)?;
        Ok(Self::BeforeMove { number, text: text.into() })
    }
}

impl VendorError {
    /// Returns the part of an error that the number contains.
    pub fn of(error: &QpError) -> Self {
        match error {
            QpError::Local(denied) => Self::Local(denied.check),
            QpError::Remote(denied) => Self::Remote(denied.check),
            QpError::Unmapped { remote, .. } => Self::Unmapped { remote: *remote },
            QpError::Register { .. } => Self::Register,
            QpError::Violation(violation) => Self::Violation(violation.cause()),
            QpError::Protocol(protocol) => Self::Protocol(protocol.cause()),
            QpError::Terminated(terminate) => Self::Terminated(terminate.cause),
            #[expect(clippy::cast_possible_truncation, reason = "Linux has no larger ones than 4095")]
            QpError::Lost(errno) => Self::Lost(errno.cast_unsigned() as u16),
            QpError::HalfSent => Self::HalfSent,
            QpError::Unreachable => Self::Unreachable,
            QpError::Moved => Self::Moved,
            QpError::NotReady => Self::NotReady,
            QpError::CutShort => Self::CutShort,
            QpError::Closed => Self::Closed,
            QpError::Disconnected => Self::Disconnected,
            QpError::NoImmediate => Self::NoImmediate,
            QpError::DatagramTooLong { .. } => Self::DatagramTooLong,
            QpError::Overrun(_) => Self::Overrun,
            QpError::Stopped => Self::Stopped,
            QpError::TimedOut(_) => Self::TimedOut,
            QpError::OtherRelease(_) => Self::OtherRelease,
            QpError::Bug(_) => Self::Bug,
            QpError::SessionLost => Self::SessionLost,
            QpError::ReceiveFailed => Self::ReceiveFailed,
            QpError::HandedOver => Self::HandedOver,
            QpError::Iscsi(_) => Self::Iscsi,
            QpError::BeforeMove { number, .. } => Self::from_u32(*number).unwrap_or(Self::Moved),
        }
    }

    /// Encodes the number.
    pub const fn to_u32(self) -> u32 {
        let (kind, detail): (u8, u16) = match self {
            Self::Local(check) => (1, check as u16 + 1),
            Self::Remote(check) => (2, check as u16 + 1),
            Self::Unmapped { remote } => (3, remote as u16),
            Self::Register => (4, 0),
            Self::Violation(cause) => (5, encode_cause(cause)),
            Self::Protocol(cause) => (6, encode_cause(cause)),
            Self::Terminated(cause) => (7, encode_cause(cause)),
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
            Self::SessionLost => (23, 0),
            Self::ReceiveFailed => (24, 0),
            Self::HandedOver => (25, 0),
            Self::Iscsi => (26, 0),
        };
        MARK | (kind as u32) << 16 | detail as u32
    }

    /// Decodes a number. `None` if the number is from another adapter or a later version of Ironwarp.
    pub fn from_u32(number: u32) -> Option<Self> {
        let [mark, kind, high, low] = number.to_be_bytes();
        let detail = u16::from_be_bytes([high, low]);
        let check = || CHECKS.get(usize::from(detail).checked_sub(1)?).copied();
        let cause = Cause::from_wire(high >> 4, high & 0xf, low); // as in `encode_cause`; used for kinds 5 to 7
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
            23 => Self::SessionLost,
            24 => Self::ReceiveFailed,
            25 => Self::HandedOver,
            26 => Self::Iscsi,
            _ => return None,
        };
        // Encode again to reject other details: nonzero where the kind has none, or another encoding of a cause.
        (u32::from(mark) << 24 == MARK && found.to_u32() == number).then_some(found)
    }

    /// Returns the party that caused the error.
    pub const fn origin(self) -> ErrorOrigin {
        match self {
            // With these causes, the peer reports a failure of its own.
            Self::Terminated(Cause::LocalCatastrophic | Cause::DdpCatastrophic)
            | Self::Remote(_)
            | Self::Violation(_)
            | Self::Protocol(_)
            | Self::OtherRelease
            | Self::CutShort
            | Self::SessionLost
            | Self::ReceiveFailed
            | Self::Iscsi
            | Self::NotReady => ErrorOrigin::Peer,
            Self::Local(_)
            | Self::Register
            | Self::Overrun
            | Self::Stopped
            | Self::Unmapped { .. }
            | Self::HalfSent
            | Self::NoImmediate
            | Self::DatagramTooLong
            | Self::Terminated(_) => ErrorOrigin::Program, // other causes blame a message of this end
            Self::Lost(_) | Self::TimedOut | Self::Unreachable => ErrorOrigin::Network,
            Self::Closed | Self::Disconnected | Self::Moved | Self::HandedOver => ErrorOrigin::Nobody,
            Self::Bug => ErrorOrigin::Adapter,
        }
    }
}

/// Encodes a cause as in a Terminate: layer, type and code.
const fn encode_cause(cause: Cause) -> u16 {
    let (layer, kind, code) = cause.to_wire();
    u16::from_be_bytes([layer << 4 | kind, code])
}

impl fmt::Display for VendorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local(check) => write!(f, "the request may not access this memory: {check}"),
            Self::Remote(check) => write!(f, "the peer may not access this memory: {check}"),
            Self::Unmapped { remote: false } => {
                f.write_str("registered memory was unmapped or write-protected by the program")
            }
            Self::Unmapped { remote: true } => {
                f.write_str("the peer accessed registered memory that the program has unmapped")
            }
            Self::Register => f.write_str("a registration by work request failed"),
            Self::Violation(cause) | Self::Protocol(cause) => {
                write!(f, "protocol violation by the peer, answered with: {cause}")
            }
            Self::Terminated(cause) => write!(f, "the peer ended the stream: {cause}"),
            Self::Lost(errno) => {
                let error = std::io::Error::from_raw_os_error((*errno).into());
                write!(f, "the connection was lost: {error}")
            }
            Self::HalfSent => QpError::HalfSent.fmt(f),
            Self::Unreachable => QpError::Unreachable.fmt(f),
            Self::Moved => QpError::Moved.fmt(f),
            Self::NotReady => QpError::NotReady.fmt(f),
            Self::CutShort => QpError::CutShort.fmt(f),
            Self::Closed => QpError::Closed.fmt(f),
            Self::Disconnected => QpError::Disconnected.fmt(f),
            Self::NoImmediate => QpError::NoImmediate.fmt(f),
            Self::DatagramTooLong => f.write_str("a datagram exceeded the maximum length"),
            Self::Overrun => f.write_str("a completion queue overflowed"),
            Self::Stopped => QpError::Stopped.fmt(f),
            Self::TimedOut => f.write_str("a step of the connection timed out"),
            Self::OtherRelease => f.write_str("the peer runs another release of Ironwarp"),
            Self::Bug => f.write_str("a bug in Ironwarp: a panic while serving the connection"),
            Self::SessionLost => QpError::SessionLost.fmt(f),
            Self::ReceiveFailed => QpError::ReceiveFailed.fmt(f),
            Self::HandedOver => QpError::HandedOver.fmt(f),
            Self::Iscsi => f.write_str("the iSCSI target violated the protocol"),
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

    /// Returns all causes.
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

    /// Returns all values, with all details.
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
            SessionLost,
            ReceiveFailed,
            HandedOver,
            Iscsi,
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
            [0, 1, 0x49, 0xff, 0x81, 0x4900_0000, 0x4901_0000, 0x4901_0011, 0x4903_0002, 0x4904_0001]
        {
            assert_eq!(VendorError::from_u32(number), None, "{number:#x}");
        }
        let another_adapters = VendorError::Closed.to_u32() ^ 0x0100_0000;
        assert_eq!(VendorError::from_u32(another_adapters), None);
        // The form in which some drivers report an MPA error. Ironwarp never encodes it.
        assert_eq!(VendorError::from_u32(0x4907_2302), None);
    }

    /// Numbers must not change, because they appear in logs.
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
        for (error, number) in [
            (QpError::Terminated(terminate), 0x4907_1101),
            (QpError::Violation(Violation::Revision(9)), 0x4905_2004),
            (QpError::Protocol(Protocol::NoReceive), 0x4906_1202),
            (QpError::Lost(104), 0x4908_0068),
            (QpError::Overrun(7), 0x4912_0000),
            (QpError::Closed, 0x490e_0000),
        ] {
            assert_eq!(error.vendor_err(), number, "{error}");
            assert_eq!(VendorError::from_u32(number).map(VendorError::origin), Some(error.origin()));
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
