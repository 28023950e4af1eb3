//! DDP headers (RFC 5041 §4): the part of a segment's header that determines where the payload is placed.
//!
//! A [`DdpHeader`] keeps all bits, reserved ones included, and interprets only the T bit. A Terminate contains the
//! offending header in this form. [`Header`](crate::Header) is the checked and typed form.

use crate::{RemoteAddr, Tag};
use zerocopy::byteorder::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The T bit of the control byte: the segment is tagged.
pub(crate) const TAGGED: u8 = 0x80;
/// The L bit: the last segment of its message.
pub(crate) const LAST: u8 = 0x40;
/// The DV bits, which must be 1.
pub(crate) const VERSION_MASK: u8 = 0x03;
/// The only DDP version.
pub(crate) const VERSION: u8 = 1;

/// Length of a tagged header in bytes.
pub const TAGGED_LEN: usize = size_of::<RawTagged>();
/// Length of an untagged header in bytes.
pub const UNTAGGED_LEN: usize = size_of::<RawUntagged>();
const _: () = assert!(TAGGED_LEN == 14 && UNTAGGED_LEN == 18);

/// A DDP header with every bit as it is on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum DdpHeader {
    /// The header of a tagged segment, whose payload goes to memory that the receiver advertised.
    Tagged(DdpTagged),
    /// The header of an untagged segment, whose payload goes to the buffer that the receiver has for this queue and
    /// sequence number.
    Untagged(DdpUntagged),
}

/// The fields of a tagged DDP header (RFC 5041 figure 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct DdpTagged {
    /// T, L, reserved, DV.
    pub control: u8,
    /// RDMAP's control byte.
    pub ulp_control: u8,
    /// Where the payload goes: STag and Tagged Offset.
    pub addr: RemoteAddr,
}

/// The fields of an untagged DDP header (RFC 5041 figure 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct DdpUntagged {
    /// T, L, reserved, DV.
    pub control: u8,
    /// RDMAP's control byte.
    pub ulp_control: u8,
    /// RDMAP's word: a tag to invalidate, the number of a shared receive queue, or zero.
    pub ulp_word: u32,
    /// Queue number (QN).
    pub queue: u32,
    /// Message sequence number (MSN).
    pub msn: u32,
    /// Message offset (MO): position of the payload in the message, in bytes.
    pub offset: u32,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawTagged {
    control: u8,
    ulp_control: u8,
    tag: U32,
    offset: U64,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawUntagged {
    control: u8,
    ulp_control: u8,
    ulp_word: U32,
    queue: U32,
    msn: U32,
    offset: U32,
}

/// Returns the length of the header that begins with this control byte.
pub(crate) const fn header_len(control: u8) -> usize {
    if control & TAGGED != 0 { TAGGED_LEN } else { UNTAGGED_LEN }
}

impl DdpHeader {
    /// Parses the header at the front of `bytes`. Returns `None` if the header is incomplete.
    ///
    /// ```
    /// # use ironwarp_wire::ddp::DdpHeader;
    /// let header = DdpHeader::parse(&[0xc1, 0x40, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 9]);
    /// let Some(DdpHeader::Tagged(header)) = header else { panic!("the T bit is set") };
    /// assert_eq!((header.addr.tag.0, header.addr.offset), (7, 9));
    /// assert_eq!(DdpHeader::parse(&[0xc1]), None);
    /// ```
    #[inline]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        if bytes.first()? & TAGGED != 0 {
            let (raw, _) = RawTagged::ref_from_prefix(bytes).ok()?;
            Some(Self::Tagged(DdpTagged {
                control: raw.control,
                ulp_control: raw.ulp_control,
                addr: RemoteAddr { tag: Tag(raw.tag.get()), offset: raw.offset.get() },
            }))
        } else {
            let (raw, _) = RawUntagged::ref_from_prefix(bytes).ok()?;
            Some(Self::Untagged(DdpUntagged {
                control: raw.control,
                ulp_control: raw.ulp_control,
                ulp_word: raw.ulp_word.get(),
                queue: raw.queue.get(),
                msn: raw.msn.get(),
                offset: raw.offset.get(),
            }))
        }
    }

    /// Returns the length of the header in bytes.
    #[inline]
    pub const fn encoded_len(&self) -> usize {
        match self {
            Self::Tagged(_) => TAGGED_LEN,
            Self::Untagged(_) => UNTAGGED_LEN,
        }
    }

    /// Writes the header to the front of `out` and returns its length. Returns `None`, and writes nothing, if `out` is
    /// too short.
    ///
    /// ```
    /// # use ironwarp_wire::ddp::DdpHeader;
    /// let bytes = [0xc1, 0x40, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 9];
    /// let mut out = [0; 14];
    /// assert_eq!(DdpHeader::parse(&bytes).unwrap().emit(&mut out), Some(14));
    /// assert_eq!(out, bytes);
    /// ```
    #[inline]
    pub fn emit(&self, out: &mut [u8]) -> Option<usize> {
        match self {
            Self::Tagged(header) => {
                let raw = RawTagged {
                    control: header.control,
                    ulp_control: header.ulp_control,
                    tag: header.addr.tag.0.into(),
                    offset: header.addr.offset.into(),
                };
                raw.write_to_prefix(out).ok()?;
                Some(TAGGED_LEN)
            }
            Self::Untagged(header) => {
                let raw = RawUntagged {
                    control: header.control,
                    ulp_control: header.ulp_control,
                    ulp_word: header.ulp_word.into(),
                    queue: header.queue.into(),
                    msn: header.msn.into(),
                    offset: header.offset.into(),
                };
                raw.write_to_prefix(out).ok()?;
                Some(UNTAGGED_LEN)
            }
        }
    }
}
