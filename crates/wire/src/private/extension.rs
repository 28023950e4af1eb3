//! The common form of all private headers, which allows extensions: a prologue, the fixed fields of the header, and
//! extensions. Each bit and each extension is marked either as "may be ignored" or as "must be understood". A receiver
//! ignores unknown bits and extensions of the first kind, and rejects a header with unknown ones of the second. A new
//! feature therefore needs a new bit or extension, not a new version.
//!
//! ```text
//!   0       1       2       3
//!  ┌───────┬───────┬───────┬───────┐
//!  │ magic                         │
//!  ├───────┬───────┬───────────────┤
//!  │version│ words │ must bits     │   words: length of prologue, fixed fields and extensions, in 4-byte units
//!  ├───────┴───────┼───────┬───────┤
//!  │ may bits      │ kind  │ zero  │   unknown must bits are rejected, unknown may bits ignored
//!  └───────────────┴───────┴───────┘
//! ```
//!
//! An extension is a type (1 byte; 0x80 set: must be understood), the length of its value (1 byte) and the value. Type 0
//! is one byte of padding, with no length.

use core::ops::Deref;
use zerocopy::byteorder::big_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The version of the private protocol, in hellos, CM headers, datagrams and capability signals.
pub const VERSION: u8 = 2;

/// The bit that is set in the type of an extension, or the kind of a signal, that must be understood.
pub(super) const MUST_UNDERSTAND: u8 = 0x80;

/// The type of one byte of padding.
const PADDING: u8 = 0;
/// The unit of the length in the prologue, in bytes.
const WORD: usize = 4;

/// Why a private header or signal was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unreadable {
    /// The header does not begin with the magic number, so it is not from Ironwarp.
    #[error("the peer is not Ironwarp, or is an older release: run the same release on both ends")]
    Foreign,
    /// The peer uses another version of the protocol.
    #[error(
        "the peer uses version {0} of Ironwarp's private protocol, this end uses {VERSION}: run the same release on both ends"
    )]
    Version(u8),
    /// Must-understand bits are set that this release does not define.
    #[error(
        "the peer requires feature bits {0:#06x}, which this release does not support: run the same release on both ends"
    )]
    Bits(u16),
    /// A must-understand extension, or the kind of the message, is unknown to this release.
    #[error(
        "the peer requires extension {0:#04x}, which this release does not support: run the same release on both ends"
    )]
    Extension(u8),
    /// The datagram has no CRC, so that damage to it would not be noticed.
    #[error("the peer sends datagrams without a CRC: run the same release on both ends")]
    Unchecked,
    /// The length or the CRC of a datagram is wrong.
    #[error("damaged datagram")]
    Damaged,
    /// Lengths are inconsistent, or a field is out of range.
    #[error("malformed Ironwarp header")]
    Malformed,
}

/// The first fields of every private header, as in the figure above.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct Prologue {
    magic: [u8; 4],
    version: u8,
    words: u8,
    pub(super) must: U16,
    pub(super) may: U16,
    pub(super) kind: u8,
    zero: u8,
}

/// A kind of private header, identified by its magic number. The fixed fields of such a header form a raw struct that
/// begins with a [`Prologue`].
pub(super) struct Format {
    pub(super) magic: [u8; 4],
    /// The defined must-understand bits.
    pub(super) must: u16,
}

/// A received header with a valid prologue and the fixed fields `T`.
pub(super) struct Parsed<'a, T> {
    pub(super) fixed: &'a T,
    pub(super) extensions: Extensions<'a>,
    /// The bytes after the header.
    pub(super) rest: &'a [u8],
}

/// Iterates over the extensions of a header: type and value of each.
pub(super) struct Extensions<'a>(&'a [u8]);

impl Format {
    /// Returns the prologue of a header without extensions, whose fixed fields are those of `T`.
    pub(super) const fn prologue<T>(&self, kind: u8, must: u16, may: u16) -> Prologue {
        const { assert!(size_of::<T>().is_multiple_of(WORD) && size_of::<T>() / WORD <= u8::MAX as usize) };
        Prologue {
            magic: self.magic,
            version: VERSION,
            #[expect(clippy::cast_possible_truncation, reason = "asserted above")]
            words: (size_of::<T>() / WORD) as u8,
            must: U16::new(must),
            may: U16::new(may),
            kind,
            zero: 0,
        }
    }

    /// Parses the header at the front of `bytes`: checks magic number, version, lengths and must-understand bits.
    pub(super) fn parse<'a, T>(&self, bytes: &'a [u8]) -> Result<Parsed<'a, T>, Unreadable>
    where
        T: FromBytes + KnownLayout + Immutable + Unaligned,
    {
        let after_magic = bytes.strip_prefix(&self.magic).ok_or(Unreadable::Foreign)?;
        match after_magic.first() {
            Some(&VERSION) => {}
            Some(&version) => return Err(Unreadable::Version(version)),
            None => return Err(Unreadable::Malformed),
        }
        let (prologue, _) = Prologue::ref_from_prefix(bytes).map_err(|_| Unreadable::Malformed)?;
        let (header, rest) =
            bytes.split_at_checked(usize::from(prologue.words) * WORD).ok_or(Unreadable::Malformed)?;
        let (fixed, extensions) = T::ref_from_prefix(header).map_err(|_| Unreadable::Malformed)?;
        match prologue.must.get() & !self.must {
            0 => Ok(Parsed { fixed, extensions: Extensions(extensions), rest }),
            unknown => Err(Unreadable::Bits(unknown)),
        }
    }
}

impl Extensions<'_> {
    /// Returns the number of bytes after the last extension that was returned.
    pub(super) fn remaining(&self) -> usize {
        self.0.len()
    }
}

impl<'a> Iterator for Extensions<'a> {
    type Item = Result<(u8, &'a [u8]), Unreadable>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let (&kind, after) = self.0.split_first()?;
            self.0 = after;
            if kind == PADDING {
                continue;
            }
            let value = after.split_first().and_then(|(&len, after)| after.split_at_checked(len.into()));
            let Some((value, after)) = value else {
                self.0 = &[];
                return Some(Err(Unreadable::Malformed));
            };
            self.0 = after;
            return Some(Ok((kind, value)));
        }
    }
}

/// Converts the value of an extension to an array, if it has that length.
pub(super) fn to_array<const N: usize>(value: &[u8]) -> Result<[u8; N], Unreadable> {
    value.try_into().map_err(|_| Unreadable::Malformed)
}

/// Returns an error if an unknown extension of this type must be understood.
pub(super) fn reject_if_required(kind: u8) -> Result<(), Unreadable> {
    if kind & MUST_UNDERSTAND == 0 { Ok(()) } else { Err(Unreadable::Extension(kind)) }
}

/// An encoded header of at most `N` bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Emitted<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> Emitted<N> {
    /// Creates an encoded header without extensions. `N` must be a multiple of 4, with room for the fixed fields and all
    /// extensions to be added.
    pub(super) fn new(fixed: &(impl IntoBytes + Immutable)) -> Self {
        let fixed = fixed.as_bytes();
        let mut bytes = [0; N];
        bytes[..fixed.len()].copy_from_slice(fixed);
        Self { bytes, len: fixed.len() }
    }

    /// Appends an extension, unless its value is `None`.
    pub(super) fn add_extension(mut self, kind: u8, value: Option<&[u8]>) -> Self {
        let Some(value) = value else { return self };
        let at = self.len;
        #[expect(clippy::cast_possible_truncation, reason = "values of at most 16 bytes")]
        self.bytes[at..at + 2].copy_from_slice(&[kind, value.len() as u8]);
        self.bytes[at + 2..at + 2 + value.len()].copy_from_slice(value);
        self.len = (at + 2 + value.len()).next_multiple_of(WORD); // padded with zero bytes, which are extensions of type 0
        #[expect(clippy::cast_possible_truncation, reason = "headers of at most 1020 bytes")]
        let words = (self.len / WORD) as u8;
        self.bytes[core::mem::offset_of!(Prologue, words)] = words;
        self
    }

    /// Replaces bytes of the header.
    pub(super) fn set<const LEN: usize>(&mut self, at: usize, value: [u8; LEN]) {
        self.bytes[at..at + LEN].copy_from_slice(&value);
    }
}

impl<const N: usize> Deref for Emitted<N> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}
