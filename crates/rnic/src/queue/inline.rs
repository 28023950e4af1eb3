//! Inline data (requirement X5): the payload of a message, copied when its work request is created. Up to 30 bytes are
//! stored in the request itself; longer data gets an allocation of its own.

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
    /// Stored in an allocation, which all clones of the request share.
    Allocated(Arc<[u8]>),
}

impl From<&[u8]> for InlineData {
    #[inline]
    fn from(bytes: &[u8]) -> Self {
        let mut embedded = [0; MAX_EMBEDDED];
        match embedded.get_mut(..bytes.len()) {
            Some(used) => {
                used.copy_from_slice(bytes);
                #[expect(clippy::cast_possible_truncation, reason = "at most MAX_EMBEDDED")]
                Self(Form::Embedded(embedded, bytes.len() as u8))
            }
            None => Self(Form::Allocated(bytes.into())),
        }
    }
}

impl From<Vec<u8>> for InlineData {
    /// Stores short data in the request, like the conversion from a slice.
    fn from(bytes: Vec<u8>) -> Self {
        if bytes.len() <= MAX_EMBEDDED {
            bytes.as_slice().into()
        } else {
            Self(Form::Allocated(bytes.into()))
        }
    }
}

impl Deref for InlineData {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.0 {
            Form::Embedded(bytes, len) => &bytes[..usize::from(*len)],
            Form::Allocated(bytes) => bytes,
        }
    }
}

// Not derived: prints the bytes in use, in whichever form they are stored.
impl fmt::Debug for InlineData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
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
}
