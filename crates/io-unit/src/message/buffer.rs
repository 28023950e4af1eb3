//! Entries of the messages that manage buffers (requirements P6 and P7).

use super::reader::{Malformed, Reader};

/// Number of elements that one bitmap covers.
pub const WINDOW: u32 = 256;
const BITMAP: usize = WINDOW as usize / 8;

/// A pool that its owner advertises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolEntry {
    /// Index of the pool, chosen by its owner.
    pub index: u32,
    /// Number of elements.
    pub count: u32,
    /// Size of each element, in bytes.
    pub element_size: u32,
    /// Tag of the registered memory; 0 in Send mode.
    pub tag: u32,
    /// Offset of element 0 within the tag; 0 in Send mode.
    pub offset: u64,
    /// Has no meaning to the receiver.
    pub context: u64,
}

impl PoolEntry {
    pub(super) const LEN: usize = 32;

    pub(super) fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            index: reader.u32("pool")?,
            count: reader.u32("element count")?,
            element_size: reader.u32("element size")?,
            tag: reader.u32("tag")?,
            offset: reader.u64("offset")?,
            context: reader.u64("context of a pool")?,
        })
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        for field in [self.index, self.count, self.element_size, self.tag] {
            out.extend(field.to_be_bytes());
        }
        out.extend(self.offset.to_be_bytes());
        out.extend(self.context.to_be_bytes());
    }
}

/// Elements of a pool that are free again: up to 256, from `first`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpdateEntry {
    /// Index of the pool.
    pub pool: u32,
    /// Element of the first bit: a multiple of [`WINDOW`].
    pub first: u32,
    bitmap: [u8; BITMAP],
}

impl UpdateEntry {
    /// Length of an encoded entry.
    pub const LEN: usize = 8 + BITMAP;

    /// Creates an entry for one element and those that [`Self::add`] adds.
    pub fn new(pool: u32, element: u32) -> Self {
        let mut entry = Self { pool, first: element - element % WINDOW, bitmap: [0; BITMAP] };
        assert!(entry.add(element), "the window was made for it");
        entry
    }

    /// Adds an element. Returns false if it is outside of the window of this entry.
    pub fn add(&mut self, element: u32) -> bool {
        let Some(bit) = element.checked_sub(self.first).filter(|bit| *bit < WINDOW) else { return false };
        self.bitmap[bit as usize / 8] |= 0x80 >> (bit % 8);
        true
    }

    /// Returns the elements in ascending order.
    pub fn elements(&self) -> impl Iterator<Item = u32> + '_ {
        let set = |bit: &u32| self.bitmap[*bit as usize / 8] & 0x80 >> (bit % 8) != 0;
        (0..WINDOW).filter(set).map(|bit| self.first + bit)
    }

    pub(super) fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let entry = Self {
            pool: reader.u32("pool")?,
            first: reader.u32("first element")?,
            bitmap: reader.array("bitmap")?,
        };
        if !entry.first.is_multiple_of(WINDOW) {
            return Err(Malformed::Value { field: "first element", value: entry.first.into() });
        }
        if entry.bitmap == [0; BITMAP] {
            return Err(Malformed::Empty { entry: "element" });
        }
        Ok(entry)
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.pool.to_be_bytes());
        out.extend(self.first.to_be_bytes());
        out.extend(self.bitmap);
    }
}

/// The element that a Write has consumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Indication {
    /// Index of the pool.
    pub pool: u32,
    /// Element in the pool.
    pub element: u32,
    /// Length of the frame.
    pub len: u32,
}

impl Indication {
    pub(super) fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self { pool: reader.u32("pool")?, element: reader.u32("element")?, len: reader.u32("length")? })
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        for field in [self.pool, self.element, self.len] {
            out.extend(field.to_be_bytes());
        }
    }
}
