//! Message push (requirement X5): the data of a small message lies in its work request, so that descriptor and data are handed over
//! together, by one copy and one doorbell. Longer data is copied as well when the request is made, to a place of its own.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// So many bytes fit into a request without making it longer: it has room for two scatter/gather elements.
const PUSHED: usize = 30;

/// Bytes that were copied when the request was made: they need no region, and where they came from is free for reuse at once.
#[derive(Clone)]
pub struct Pushed(Form);

#[derive(Clone)]
enum Form {
    /// The first so many of these.
    Here([u8; PUSHED], u8),
    Apart(Arc<[u8]>),
}

// A send queue holds very many.
const _: () = assert!(size_of::<super::Data>() <= 40);

impl From<&[u8]> for Pushed {
    #[inline]
    fn from(bytes: &[u8]) -> Self {
        let mut here = [0; PUSHED];
        match here.get_mut(..bytes.len()) {
            Some(place) => {
                place.copy_from_slice(bytes);
                #[expect(clippy::cast_possible_truncation, reason = "at most PUSHED")]
                Self(Form::Here(here, bytes.len() as u8))
            }
            None => Self(Form::Apart(bytes.into())),
        }
    }
}

impl From<Vec<u8>> for Pushed {
    fn from(bytes: Vec<u8>) -> Self {
        if bytes.len() <= PUSHED { bytes.as_slice().into() } else { Self(Form::Apart(bytes.into())) }
    }
}

impl Deref for Pushed {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.0 {
            Form::Here(bytes, len) => &bytes[..usize::from(*len)],
            Form::Apart(bytes) => bytes,
        }
    }
}

impl fmt::Debug for Pushed {
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
            let (copied, moved) = (Pushed::from(&bytes[..len]), Pushed::from(bytes[..len].to_vec()));
            assert_eq!((&*copied, &*moved), (&bytes[..len], &bytes[..len]));
            assert_eq!(matches!(copied.0, Form::Here(..)), len <= PUSHED, "{len}");
        }
    }
}
