//! The result of parsing a byte stream that may be incomplete.

/// Result of parsing the front of a byte stream: the value, or the number of bytes needed to continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parse<T> {
    /// At least this many bytes, counted from the start of the value, are needed. Always more than were given, and
    /// never more than the header has: a caller that reads up to this many bytes reads no payload.
    Need(usize),
    /// The complete value.
    Done(T),
}
