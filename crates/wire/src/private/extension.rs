//! How the private protocol is extended: all private headers begin with a common prologue, and extensions follow their
//! fixed fields. A receiver skips what it may ignore and rejects what it must understand, so a new feature needs a bit or
//! an extension, but never a new version.
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

/// Version of the private protocol: of hellos, CM headers, datagrams and capability signals.
pub const VERSION: u8 = 2;

/// Set in the type of an extension, or the kind of a signal, that must be understood.
pub(super) const MUST_UNDERSTAND: u8 = 0x80;

const PADDING: u8 = 0;
const WORD: usize = 4;

/// Why a private header or signal was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unreadable {
    /// It does not begin with the magic number: not from Ironwarp.
    #[error("the peer is not Ironwarp, or is an older release: run the same release on both ends")]
    Foreign,
    /// The peer uses another version of the protocol.
    #[error(
        "the peer uses version {0} of Ironwarp's private protocol, this end uses {VERSION}: run the same release on both ends"
    )]
    Version(u8),
    /// Unknown must-understand bits.
    #[error(
        "the peer requires feature bits {0:#06x}, which this release does not support: run the same release on both ends"
    )]
    Bits(u16),
    /// An unknown must-understand extension, or an unknown kind of message.
    #[error(
        "the peer requires extension {0:#04x}, which this release does not support: run the same release on both ends"
    )]
    Extension(u8),
    /// Inconsistent lengths, or a field out of range.
    #[error("malformed Ironwarp header")]
    Malformed,
}

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

/// What headers with the same magic number have in common. Their fixed fields form a raw struct that begins with a [`Prologue`].
pub(super) struct Format {
    pub(super) magic: [u8; 4],
    /// The defined must-understand bits.
    pub(super) must: u16,
}

/// A header with a valid prologue.
pub(super) struct Parsed<'a, T> {
    pub(super) fixed: &'a T,
    pub(super) extensions: Extensions<'a>,
    /// The bytes after the header.
    pub(super) rest: &'a [u8],
}

/// Iterates over the extensions of a header.
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

    pub(super) fn parse<'a, T>(&self, bytes: &'a [u8]) -> Result<Parsed<'a, T>, Unreadable>
    where
        T: FromBytes + KnownLayout + Immutable + Unaligned,
    {
        let behind_magic = bytes.strip_prefix(&self.magic).ok_or(Unreadable::Foreign)?;
        match behind_magic.first() {
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

impl<'a> Iterator for Extensions<'a> {
    type Item = Result<(u8, &'a [u8]), Unreadable>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let (&kind, behind) = self.0.split_first()?;
            self.0 = behind;
            if kind == PADDING {
                continue;
            }
            let value = behind.split_first().and_then(|(&len, behind)| behind.split_at_checked(len.into()));
            let Some((value, behind)) = value else {
                self.0 = &[];
                return Some(Err(Unreadable::Malformed));
            };
            self.0 = behind;
            return Some(Ok((kind, value)));
        }
    }
}

/// Returns the value of an extension of fixed length.
pub(super) fn to_array<const N: usize>(value: &[u8]) -> Result<[u8; N], Unreadable> {
    value.try_into().map_err(|_| Unreadable::Malformed)
}

/// Rejects an unknown extension if it must be understood.
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
    /// Begins with the fixed fields. `N` is a multiple of 4 with room for them and all extensions.
    pub(super) fn new(fixed: &(impl IntoBytes + Immutable)) -> Self {
        let fixed = fixed.as_bytes();
        let mut bytes = [0; N];
        bytes[..fixed.len()].copy_from_slice(fixed);
        Self { bytes, len: fixed.len() }
    }

    pub(super) fn add_extension(mut self, kind: u8, value: Option<&[u8]>) -> Self {
        let Some(value) = value else { return self };
        let at = self.len;
        #[expect(clippy::cast_possible_truncation, reason = "values of at most 16 bytes")]
        self.bytes[at..at + 2].copy_from_slice(&[kind, value.len() as u8]);
        self.bytes[at + 2..at + 2 + value.len()].copy_from_slice(value);
        self.len = (at + 2 + value.len()).next_multiple_of(WORD); // zero bytes are padding
        #[expect(clippy::cast_possible_truncation, reason = "headers of at most 1020 bytes")]
        let words = (self.len / WORD) as u8;
        self.bytes[core::mem::offset_of!(Prologue, words)] = words;
        self
    }
}

impl<const N: usize> Deref for Emitted<N> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}
