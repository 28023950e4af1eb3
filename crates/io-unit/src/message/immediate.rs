//! The immediate data of a Write: which element it consumed (requirement P7).

use super::buffer::Indication;

/// Immediate data: pool 8 bits, element 8 bits, length 16 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Immediate(pub u32);

impl Immediate {
    /// Encodes an indication, unless it needs a BufferRDMAIndicate.
    pub fn new(indication: Indication) -> Option<Self> {
        let pool = u8::try_from(indication.pool).ok()?;
        let element = u8::try_from(indication.element).ok()?;
        let len = u16::try_from(indication.len).ok()?;
        Some(Self(u32::from(pool) << 24 | u32::from(element) << 16 | u32::from(len)))
    }

    /// Decodes the indication. Every value is one.
    pub fn indication(self) -> Indication {
        Indication { pool: self.0 >> 24, element: self.0 >> 16 & 0xff, len: self.0 & 0xffff }
    }
}
