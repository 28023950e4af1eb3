//! Inline data (requirement X5): the data of a small message is stored in its work request, so that both are
//! passed on with one copy and one doorbell. Longer data is copied to a separate allocation when the request is
//! created.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// Number of bytes that fit into a request without making it larger: it has room for two scatter/gather elements.
const MAX_EMBEDDED: usize = 30;

/// Bytes that were copied when the request was created. They need no region, and their source can be reused at
/// once.
#[derive(Clone)]
pub struct InlineData(Form);

#[derive(Clone)]
enum Form {
    /// The bytes, and how many of them are used.
    Here([u8; MAX_EMBEDDED], u8),
    Apart(Arc<[u8]>),
}

impl From<&[u8]> for InlineData {
    #[inline]
    fn from(bytes: &[u8]) -> Self {
        let mut here = [0; MAX_EMBEDDED];
        match here.get_mut(..bytes.len()) {
            Some(place) => {
                place.copy_from_slice(bytes);
                #[expect(clippy::cast_possible_truncation, reason = "at most MAX_EMBEDDED")]
                Self(Form::Here(here, bytes.len() as u8))
            }
            None => Self(Form::Apart(bytes.into())),
        }
    }
}

impl From<Vec<u8>> for InlineData {
    fn from(bytes: Vec<u8>) -> Self {
        if bytes.len() <= MAX_EMBEDDED { bytes.as_slice().into() } else { Self(Form::Apart(bytes.into())) }
    }
}

impl Deref for InlineData {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.0 {
            Form::Here(bytes, len) => &bytes[..usize::from(*len)],
            Form::Apart(bytes) => bytes,
        }
    }
}

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
            assert_eq!(matches!(copied.0, Form::Here(..)), len <= MAX_EMBEDDED, "{len}");
        }
    }
}
