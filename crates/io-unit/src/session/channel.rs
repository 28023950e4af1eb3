//! The two channels of a session.

/// One of the two connections of a session (requirement P5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Channel {
    /// Channel 0: configuration and buffer messages.
    Control,
    /// Channel 1: frames.
    Data,
}
