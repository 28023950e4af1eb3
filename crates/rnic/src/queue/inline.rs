//! Inline data (requirement X5): the payload of a message, copied when its work request is created. Up to 30 bytes are
//! stored in the request itself. Longer data goes to a slot of the send queue, or else to an allocation of its own.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::VecDeque;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// Maximum number of bytes stored in the request itself. They take no more room than the two scatter/gather elements
/// that a request can hold instead.
const MAX_EMBEDDED: usize = 30;

/// Bytes that were copied when the request was created. They need no region, and their source can be reused at
/// once.
#[derive(Clone)]
pub struct InlineData(Form);

/// Where the bytes are stored.
#[derive(Clone)]
enum Form {
    /// Stored in the request: the bytes, and how many of them are used.
    Embedded([u8; MAX_EMBEDDED], u8),
    /// Stored in a slot or an allocation, which all clones of the request share: the bytes, and how many of them are
    /// used.
    Shared(Arc<[u8]>, usize),
}

impl InlineData {
    /// Stores `len` bytes, which `write` writes, in the request itself. Fails if they are too many, and returns `write`.
    #[inline]
    pub(crate) fn embed<W: FnOnce(&mut [u8])>(len: usize, write: W) -> Result<Self, W> {
        let mut embedded = [0; MAX_EMBEDDED];
        let Some(used) = embedded.get_mut(..len) else { return Err(write) };
        write(used);
        #[expect(clippy::cast_possible_truncation, reason = "at most MAX_EMBEDDED")]
        Ok(Self(Form::Embedded(embedded, len as u8)))
    }

    /// Stores `len` bytes, which `write` writes, in an allocation of their own, unless they fit into the request itself.
    pub fn allocate(len: usize, write: impl FnOnce(&mut [u8])) -> Self {
        Self::embed(len, write).unwrap_or_else(|write| {
            let mut bytes = vec![0; len];
            write(&mut bytes);
            Self(Form::Shared(bytes.into(), len))
        })
    }
}

impl From<&[u8]> for InlineData {
    #[inline]
    fn from(bytes: &[u8]) -> Self {
        let embedded = Self::embed(bytes.len(), |to| to.copy_from_slice(bytes));
        embedded.unwrap_or_else(|_| Self(Form::Shared(bytes.into(), bytes.len())))
    }
}

impl From<Vec<u8>> for InlineData {
    /// Stores short data in the request, like the conversion from a slice.
    fn from(bytes: Vec<u8>) -> Self {
        let embedded = Self::embed(bytes.len(), |to| to.copy_from_slice(&bytes));
        let len = bytes.len();
        embedded.ok().unwrap_or_else(|| Self(Form::Shared(bytes.into(), len)))
    }
}

impl Deref for InlineData {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.0 {
            Form::Embedded(bytes, len) => &bytes[..usize::from(*len)],
            Form::Shared(bytes, len) => &bytes[..*len],
        }
    }
}

// Not derived: where the bytes are stored does not matter.
impl Serialize for InlineData {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_bytes(self)
    }
}

impl<'de> Deserialize<'de> for InlineData {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        <&[u8]>::deserialize(from).map(Self::from)
    }
}

// Not derived: prints the bytes in use, in whichever form they are stored.
impl fmt::Debug for InlineData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// The memory of a send queue for inline data that does not fit into its requests. A queue allocates each slot when it
/// first needs one more, and uses it for many requests, one after the other.
#[derive(Default)]
pub(super) struct InlineSlots {
    /// The slots, in the order in which they were last used.
    slots: VecDeque<Arc<[u8]>>,
}

// Not derived: omits the bytes, which belong to the program.
impl fmt::Debug for InlineSlots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InlineSlots").field("slots", &self.slots.len()).finish()
    }
}

impl InlineSlots {
    /// Stores `len` bytes, which `write` writes, in a slot that no request uses, or else in a new slot of `size` bytes.
    /// Fails, and returns `write`, if they are too long for a slot, or if there are `max` slots in use.
    pub(super) fn store<W: FnOnce(&mut [u8])>(
        &mut self,
        len: usize,
        (size, max): (usize, usize),
        write: W,
    ) -> Result<InlineData, W> {
        if len > size {
            return Err(write);
        }
        let mut slot = match self.take_free(len) {
            Some(slot) => slot,
            None if self.slots.len() < max => vec![0; size].into(),
            None => return Err(write),
        };
        match Arc::get_mut(&mut slot) {
            Some(bytes) => write(&mut bytes[..len]),
            None => return Err(write), // never: nobody else has the slot
        }
        self.slots.push_back(Arc::clone(&slot));
        Ok(InlineData(Form::Shared(slot, len)))
    }

    /// Removes a slot for `len` bytes that no request uses. Requests complete in order, so that the slot used first is free first, but the
    /// last one is free again if its request could not be posted.
    fn take_free(&mut self, len: usize) -> Option<Arc<[u8]>> {
        let is_free = |slot: &mut Arc<[u8]>| Arc::get_mut(slot).is_some_and(|bytes| bytes.len() >= len);
        if self.slots.front_mut().is_some_and(is_free) {
            self.slots.pop_front()
        } else if self.slots.back_mut().is_some_and(is_free) {
            self.slots.pop_back()
        } else {
            None
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_any_length_are_what_they_were() {
        let bytes: Vec<u8> = (0..100).collect();
        for len in 0..=bytes.len() {
            let (copied, moved) = (InlineData::from(&bytes[..len]), InlineData::from(bytes[..len].to_vec()));
            assert_eq!((&*copied, &*moved), (&bytes[..len], &bytes[..len]));
            assert_eq!(matches!(copied.0, Form::Embedded(..)), len <= MAX_EMBEDDED, "{len}");
        }
    }

    /// Stores bytes in a slot of 100 bytes, of which there are at most three.
    fn store(slots: &mut InlineSlots, bytes: &[u8]) -> Option<InlineData> {
        slots.store(bytes.len(), (100, 3), |to| to.copy_from_slice(bytes)).ok()
    }

    #[test]
    fn slots_are_reused_in_order_and_never_while_a_request_has_them() {
        let mut slots = InlineSlots::default();
        let mut posted = VecDeque::new();
        for round in 0..100_u8 {
            let bytes = vec![round; 31 + usize::from(round % 60)];
            posted.push_back((store(&mut slots, &bytes).unwrap(), bytes));
            assert!(posted.iter().all(|(data, bytes)| **data == bytes[..]), "{round}");
            if posted.len() == 3 {
                assert!(store(&mut slots, &[0; 40]).is_none(), "all are in use");
                posted.pop_front();
            }
        }
        assert_eq!(slots.slots.len(), 3);
        assert!(store(&mut slots, &[0; 101]).is_none(), "too long for a slot");
    }

    /// A request that could not be posted returns its slot, although older requests have theirs.
    #[test]
    fn the_slot_of_a_request_that_was_not_posted_is_free() {
        let mut slots = InlineSlots::default();
        let posted = store(&mut slots, &[1; 50]).unwrap();
        for round in 0..100 {
            assert_eq!(store(&mut slots, &[round; 60]).as_deref(), Some(&[round; 60][..]));
        }
        assert_eq!((slots.slots.len(), &*posted), (2, &[1; 50][..]));
    }
}
