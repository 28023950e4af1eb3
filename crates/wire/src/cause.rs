//! The causes for which a stream is terminated: layer, type and code of a Terminate (RFC 5040 figure 9, RFC 5041 §7.2,
//! RFC 5044 §8, RFC 6581 §8). There is one enum of codes for each layer and type.

use core::fmt;

/// The cause of a Terminate. The numbers are layer and type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Cause {
    /// RDMAP, local catastrophic error (0/0). There is no code.
    LocalCatastrophic,
    /// RDMAP, remote protection error (0/1): the memory access is not allowed.
    Protection(Protection),
    /// RDMAP, remote operation error (0/2): the message is invalid.
    Operation(Operation),
    /// DDP, local catastrophic error (1/0/00).
    DdpCatastrophic,
    /// DDP, tagged buffer error (1/1).
    TaggedBuffer(TaggedBuffer),
    /// DDP, untagged buffer error (1/2).
    UntaggedBuffer(UntaggedBuffer),
    /// MPA error (2/0).
    Mpa(MpaFault),
    /// An error that no RFC defines.
    Other {
        /// The layer, four bits.
        layer: u8,
        /// The type, four bits.
        kind: u8,
        /// The code, eight bits.
        code: u8,
    },
}

/// Defines an enum of error codes, each with the RFC's description.
macro_rules! codes {
    ($(#[$doc:meta])* $name:ident { $($(#[$row:meta])* $variant:ident = $code:literal $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
        pub enum $name { $($(#[$row])* #[doc = $text] $variant = $code,)* }

        impl $name {
            /// All codes.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// Returns the error with this code. `None` if the RFCs do not define the code.
            const fn from_code(code: u8) -> Option<Self> {
                match code { $($code => Some(Self::$variant),)* _ => None }
            }

            /// Returns the description.
            const fn text(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }
        }
    };
}

codes! {
    /// Codes of [`Cause::Protection`].
    Protection {
        Tag = 0x00 "invalid STag",
        Bounds = 0x01 "base or bounds violation",
        Access = 0x02 "access rights violation",
        Stream = 0x03 "STag not associated with the stream",
        Wrap = 0x04 "tagged offset wraps",
        Invalidate = 0x09 "STag cannot be invalidated",
        Unspecified = 0xff "unspecified protection error",
    }
}

codes! {
    /// Codes of [`Cause::Operation`].
    Operation {
        Version = 0x05 "invalid RDMAP version",
        Opcode = 0x06 "unexpected opcode",
        StreamCatastrophic = 0x07 "catastrophic error, localised to the stream",
        GlobalCatastrophic = 0x08 "catastrophic error, global",
        Invalidate = 0x09 "STag cannot be invalidated",
        Unspecified = 0xff "unspecified operation error",
    }
}

codes! {
    /// Codes of [`Cause::TaggedBuffer`].
    TaggedBuffer {
        Tag = 0x00 "invalid STag",
        Bounds = 0x01 "base or bounds violation",
        Stream = 0x02 "STag not associated with the stream",
        Wrap = 0x03 "tagged offset wraps",
        Version = 0x04 "invalid DDP version",
    }
}

codes! {
    /// Codes of [`Cause::UntaggedBuffer`].
    UntaggedBuffer {
        Queue = 0x01 "invalid queue number",
        NoBuffer = 0x02 "no buffer for this message",
        Sequence = 0x03 "message sequence number out of range",
        Offset = 0x04 "invalid message offset",
        TooLong = 0x05 "message too long for the buffer",
        Version = 0x06 "invalid DDP version",
    }
}

codes! {
    /// Codes of [`Cause::Mpa`].
    MpaFault {
        ConnectionLost = 0x01 "TCP connection closed, terminated or lost",
        Crc = 0x02 "CRC mismatch",
        Length = 0x03 "marker and length do not agree",
        Startup = 0x04 "invalid MPA Request or Reply frame",
        LocalCatastrophic = 0x05 "local catastrophic error",
        InsufficientIrd = 0x06 "insufficient IRD resources",
        NoRtr = 0x07 "no matching RTR option",
    }
}

impl Cause {
    /// Converts layer, type and code to a cause.
    ///
    /// The Chelsio and Intel drivers report MPA errors as type 3 instead of 0; both are accepted.
    ///
    /// ```
    /// # use ironwarp_wire::{Cause, Protection};
    /// assert_eq!(Cause::from_wire(0, 1, 2), Cause::Protection(Protection::Access));
    /// assert_eq!(Cause::from_wire(9, 9, 9), Cause::Other { layer: 9, kind: 9, code: 9 });
    /// ```
    pub fn from_wire(layer: u8, kind: u8, code: u8) -> Self {
        let known = match (layer, kind) {
            (0, 0) => Some(Self::LocalCatastrophic),
            (0, 1) => Protection::from_code(code).map(Self::Protection),
            (0, 2) => Operation::from_code(code).map(Self::Operation),
            (1, 0) if code == 0 => Some(Self::DdpCatastrophic),
            (1, 1) => TaggedBuffer::from_code(code).map(Self::TaggedBuffer),
            (1, 2) => UntaggedBuffer::from_code(code).map(Self::UntaggedBuffer),
            (2, 0 | 3) => MpaFault::from_code(code).map(Self::Mpa),
            _ => None,
        };
        known.unwrap_or(Self::Other { layer: layer & 0xf, kind: kind & 0xf, code })
    }

    /// Returns layer, type and code.
    pub const fn to_wire(self) -> (u8, u8, u8) {
        match self {
            Self::LocalCatastrophic => (0, 0, 0),
            Self::Protection(code) => (0, 1, code as u8),
            Self::Operation(code) => (0, 2, code as u8),
            Self::DdpCatastrophic => (1, 0, 0),
            Self::TaggedBuffer(code) => (1, 1, code as u8),
            Self::UntaggedBuffer(code) => (1, 2, code as u8),
            Self::Mpa(code) => (2, 0, code as u8),
            Self::Other { layer, kind, code } => (layer & 0xf, kind & 0xf, code),
        }
    }

    /// Returns whether a Terminate with this cause includes the header of the offending segment (RFC 5040 figure 10).
    pub const fn names_segment(self) -> bool {
        matches!(
            self,
            Self::Protection(_)
                | Self::Operation(_)
                | Self::DdpCatastrophic
                | Self::TaggedBuffer(_)
                | Self::UntaggedBuffer(_)
        )
    }

    /// Returns whether a Terminate with this cause also includes the offending Read Request (RFC 5040 figure 10).
    pub const fn names_read_request(self) -> bool {
        matches!(self, Self::Protection(_))
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::LocalCatastrophic | Self::DdpCatastrophic => "local catastrophic error",
            Self::Protection(code) => code.text(),
            Self::Operation(code) => code.text(),
            Self::TaggedBuffer(code) => code.text(),
            Self::UntaggedBuffer(code) => code.text(),
            Self::Mpa(code) => code.text(),
            Self::Other { .. } => "unknown error",
        };
        let (layer, kind, code) = self.to_wire();
        let name = match layer {
            0 => "RDMAP",
            1 => "DDP",
            2 => "MPA",
            _ => "unknown layer",
        };
        write!(f, "{name}: {text} ({layer}/{kind}/{code:02x})")
    }
}
