//! What went wrong in a hand-over, and who owns the function now.

use super::message::{Malformed, Role, cut_reason};
use std::fmt;
use std::io;
use std::ops::RangeInclusive;
use std::time::Duration;

/// A hand-over that failed.
#[derive(Debug)]
pub struct HandOverError {
    pub failure: Failure,
    /// Who owns the function now, as far as this process can know.
    pub owner: Owner,
}

/// The owner of a function. There is never more than one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The process that has offered the function, or wanted to. It keeps running.
    Source,
    /// The process that the function was offered to.
    Target,
    /// Nobody: the source has died before its function could be taken over.
    Nobody,
}

/// The reason for which one end refuses, for the log of the other end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refusal(pub String);

impl Refusal {
    /// Returns the refusal for the reason of a lower layer.
    pub(super) fn of(error: impl std::error::Error) -> Self {
        Self(error.to_string())
    }
}

/// Why a hand-over failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    #[error("failed to {doing}: {error}")]
    System { doing: &'static str, error: io::Error },
    #[error("not a connected Unix socket of type SEQPACKET")]
    SocketType,
    #[error("the other process belongs to user {theirs}, this one to user {own}: run both as one user")]
    OtherUser { theirs: u32, own: u32 },
    #[error("both processes are the {0:?} of the hand-over: one must call the other function")]
    SameRole(Role),
    #[error("no common version of snapshots: this process has {own:?}, the other one {theirs:?}")]
    NoCommonVersion { own: RangeInclusive<u16>, theirs: RangeInclusive<u16> },
    #[error("{have} descriptors exceed the target's limit of {limit}: raise RLIMIT_NOFILE there")]
    TooManyDescriptors { have: usize, limit: u32 },
    #[error("received {have} of {need} descriptors with a {message}: raise RLIMIT_NOFILE")]
    Descriptors { have: usize, need: usize, message: &'static str },
    #[error("name of a descriptor has {have} bytes, which exceeds the maximum of {max}")]
    NameTooLong { have: usize, max: usize },
    #[error("{len} bytes of snapshot and program exceed the target's limit of {limit}")]
    StateTooLong { len: u64, limit: u64 },
    #[error("the memfd with the snapshot is not sealed, or has not the length {len}")]
    NotSealed { len: u64 },
    #[error("timed out after {after:?} while waiting for {awaited}")]
    TimedOut { awaited: &'static str, after: Duration },
    #[error("the other process closed the socket while this one was waiting for {awaited}")]
    Ended { awaited: &'static str },
    #[error("malformed message: {0}")]
    Malformed(#[from] Malformed),
    #[error("unexpected {got} while waiting for {awaited}")]
    Unexpected { got: &'static str, awaited: &'static str },
    #[error("the other process refused: {0}")]
    Refused(Refusal),
    #[error("refused: {0}")]
    Declined(#[from] Refusal),
    #[error("the source took its offer back: {0}")]
    Revoked(Refusal),
    #[error("the source took no notice of the answer within {0:?}")]
    Undecided(Duration),
    #[error("failed to freeze the function: {0}")]
    Freeze(Box<dyn std::error::Error + Send + Sync>),
    #[error("the other host has a different cluster key, or none: set the same key on both hosts")]
    OtherKey,
    #[error("no cluster key is set: both hosts need the same one (IRONWARP_KEY_FILE)")]
    NoKey,
    #[error("the target was told to go on, and has not confirmed that it does ({0}): check there")]
    Unconfirmed(Box<Failure>),
}

impl Failure {
    /// Returns what the other end is told.
    pub(super) fn reason(&self) -> String {
        match self {
            Self::Declined(refusal) => refusal.to_string(),
            other => other.to_string(),
        }
    }

    /// Returns what the other end is told, cut to the maximum length of a reason.
    pub(super) fn short_reason(&self) -> String {
        cut_reason(&self.reason()).to_owned()
    }

    /// Returns a function that turns the error of a system call into a failure.
    pub(super) fn system<E: Into<io::Error>>(doing: &'static str) -> impl Fn(E) -> Self {
        move |error| Self::System { doing, error: error.into() }
    }
}

impl fmt::Display for HandOverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.failure, self.owner)
    }
}

impl std::error::Error for HandOverError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.failure)
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Source => "the source still owns the function",
            Self::Target => "the target owns the function",
            Self::Nobody => "the source is dead, and nobody owns the function",
        })
    }
}
