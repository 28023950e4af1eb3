//! The states of a queue pair, and the transitions between them.
//!
//! ```text
//!  Reset ──▶ Init ──▶ ReadyToReceive ──▶ ReadyToSend ◀──▶ Drained
//!    ▲                                      │   ▲
//!    │                          a datagram  ▼   │
//!    │                                   SendError
//!    └── from every state       Error ◀── from every state
//! ```
//!
//! Besides, Init, ReadyToSend and Drained may be set again, which leaves the state as it is. Only the device sets
//! SendError.
//!
//! A program that connects a queue pair manually moves it through these states. The connection manager does so for
//! other queue pairs.

use std::fmt;

/// The state of a queue pair (RESET, INIT, RTR, RTS, SQD, SQE and ERR of the verbs).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum State {
    /// New, or reset: no request can be posted.
    Reset,
    /// Receives can be posted, but no message is received.
    Init,
    /// Messages are received, but none is sent.
    ReadyToReceive,
    /// Messages are received and sent.
    ReadyToSend,
    /// Requests can be posted, but none is started (SQD), so that attributes of an idle send queue can be changed.
    Drained,
    /// A request on a datagram queue pair failed (SQE): requests on the send queue are flushed, and receives
    /// continue.
    SendError,
    /// The queue pair has failed: all requests and receives are flushed.
    Error,
}

impl State {
    /// All states.
    pub const ALL: [Self; 7] = [
        Self::Reset,
        Self::Init,
        Self::ReadyToReceive,
        Self::ReadyToSend,
        Self::Drained,
        Self::SendError,
        Self::Error,
    ];

    /// Returns whether a program may move a queue pair from this state to `to`. Some transitions to the same state are
    /// allowed, to change attributes.
    ///
    /// ```
    /// # use ironwarp_rnic::state::State;
    /// assert!(State::Reset.may_become(State::Init));
    /// assert!(!State::Reset.may_become(State::ReadyToSend));
    /// ```
    pub const fn may_become(self, to: Self) -> bool {
        match to {
            Self::Reset | Self::Error => true,
            Self::Init => matches!(self, Self::Reset | Self::Init),
            Self::ReadyToReceive => matches!(self, Self::Init),
            Self::ReadyToSend => {
                matches!(self, Self::ReadyToReceive | Self::ReadyToSend | Self::Drained | Self::SendError)
            }
            Self::Drained => matches!(self, Self::ReadyToSend | Self::Drained),
            Self::SendError => false, // entered only when a request fails
        }
    }

    /// Returns the state whose discriminant is `bits`.
    pub(crate) const fn from_bits(bits: u8) -> Self {
        match bits {
            0 => Self::Reset,
            1 => Self::Init,
            2 => Self::ReadyToReceive,
            3 => Self::ReadyToSend,
            4 => Self::Drained,
            5 => Self::SendError,
            _ => Self::Error,
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reset => "reset",
            Self::Init => "init",
            Self::ReadyToReceive => "ready to receive",
            Self::ReadyToSend => "ready to send",
            Self::Drained => "send queue drained",
            Self::SendError => "send queue error",
            Self::Error => "error",
        })
    }
}

/// A transition that is not allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot move a queue pair from state \"{from}\" to \"{to}\"")]
pub struct IllegalTransition {
    /// The current state.
    pub from: State,
    /// The requested state.
    pub to: State,
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::State::{self, *};

    /// The table of the verbs, row by row: a state, and its successors.
    const TABLE: [(State, &[State]); 7] = [
        (Reset, &[Reset, Init, Error]),
        (Init, &[Reset, Init, ReadyToReceive, Error]),
        (ReadyToReceive, &[Reset, ReadyToSend, Error]),
        (ReadyToSend, &[Reset, ReadyToSend, Drained, Error]),
        (Drained, &[Reset, ReadyToSend, Drained, Error]),
        (SendError, &[Reset, ReadyToSend, Error]),
        (Error, &[Reset, Error]),
    ];

    #[test]
    fn every_transition_is_legal_or_not_as_the_verbs_have_it() {
        for (from, legal) in TABLE {
            for to in State::ALL {
                assert_eq!(from.may_become(to), legal.contains(&to), "{from} to {to}");
            }
            assert_eq!(State::from_bits(from as u8), from);
        }
    }
}
