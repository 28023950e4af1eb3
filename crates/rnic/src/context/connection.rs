//! The state of a queue pair's connection: a state machine in one atomic byte. The diagram shows which flags each step
//! adds (+) and removes (−).
//!
//! ```text
//!                   Connect
//!   (empty) ───────────────────▶ LINKED ────────────────────────────────┐
//!                                  │ Disconnect      │ PeerClosed       │ CloseSend, CloseReceive, CloseBoth
//!                                  ▼                 ▼                  ▼
//!                               +CLOSING     +PEER_CLOSED,       +SEND_CLOSED, +RECEIVE_CLOSED
//!                                  │         +JUST_CLOSED               │
//!                                  │                 │ PeerForgotten    │
//!                                  │                 ▼                  │
//!                                  │           −JUST_CLOSED             │
//!                                  └────────┬────────┴──────────────────┘
//!                                           │ Release
//!                                           ▼
//!                                        −LINKED
//! ```
//!
//! | step | taken by | when |
//! |---|---|---|
//! | `Connect` | `Qp::connect` | startup has ended and both halves are in place |
//! | `Disconnect` | `Qp::disconnect` | the program closes; posted requests are still sent |
//! | `PeerClosed` | the rx half | the peer closed, and the manually connected queue pair stays |
//! | `PeerForgotten` | the engine's timer | some time after `PeerClosed`: empty Writes no longer succeed |
//! | `CloseSend` | the tx half | the last byte was handed to the link |
//! | `CloseReceive` | the rx half | the end of the peer's bytes was reached |
//! | `CloseBoth` | either half | the connection was lost, or a half panicked |
//! | `Release` | `Qp::release`, `Qp::reset` | the link is dropped |
//!
//! The end of the *stream* is not part of this: that is the verbs state [`Error`](crate::state::State::Error), which a
//! program can also reach without a connection. A stream that has failed keeps its link until the Terminate is sent and
//! the peer has closed.
//!
//! A connection that is frozen, to be moved to another function, has no state of its own here: both halves and the queues
//! were taken out of the queue pair (`qp/frozen.rs`), and go back, or elsewhere, as they were.

use std::sync::atomic::{AtomicU8, Ordering};

bitflags::bitflags! {
    /// The state of a connection at one moment.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(crate) struct Connection: u8 {
        /// There is a link.
        const LINKED = 1;
        /// This end is disconnecting: posted requests are still sent, and no more can be posted.
        const CLOSING = 1 << 1;
        /// The peer closed the connection of a manually connected queue pair, which stays but sends nothing more.
        const PEER_CLOSED = 1 << 2;
        /// The peer closed a moment ago: empty Writes still succeed (`QpContext::retire_empty_writes`).
        const JUST_CLOSED = 1 << 3;
        /// Nothing more will be sent.
        const SEND_CLOSED = 1 << 4;
        /// Nothing more will be received.
        const RECEIVE_CLOSED = 1 << 5;
        /// Both directions are closed.
        const CLOSED = Self::SEND_CLOSED.bits() | Self::RECEIVE_CLOSED.bits();
    }
}

/// A step of the state machine: see the table above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Connect,
    Disconnect,
    PeerClosed,
    PeerForgotten,
    CloseSend,
    CloseReceive,
    CloseBoth,
    Release,
}

impl Connection {
    /// Returns the state after a step. `None` if the step cannot be taken from this state.
    const fn after(self, step: Step) -> Option<Self> {
        match step {
            Step::Connect => Some(self.union(Self::LINKED)),
            Step::Disconnect if self.contains(Self::LINKED) && !self.contains(Self::CLOSING) => {
                Some(self.union(Self::CLOSING))
            }
            Step::PeerClosed if !self.contains(Self::CLOSING) => {
                Some(self.union(Self::PEER_CLOSED).union(Self::JUST_CLOSED))
            }
            Step::Disconnect | Step::PeerClosed => None,
            Step::PeerForgotten => Some(self.difference(Self::JUST_CLOSED)),
            Step::CloseSend => Some(self.union(Self::SEND_CLOSED)),
            Step::CloseReceive => Some(self.union(Self::RECEIVE_CLOSED)),
            Step::CloseBoth => Some(self.union(Self::CLOSED)),
            Step::Release => Some(self.difference(Self::LINKED)),
        }
    }
}

/// The connection of a queue pair, as threads share it.
#[derive(Debug, Default)]
pub(crate) struct SharedConnection(AtomicU8);

impl SharedConnection {
    /// Returns the current state.
    #[inline]
    pub(crate) fn get(&self) -> Connection {
        Connection::from_bits_retain(self.0.load(Ordering::Acquire))
    }

    /// Returns the flags, to be [restored](Self::restore).
    pub(super) fn bits(&self) -> u8 {
        self.get().bits()
    }

    /// Sets the flags of a connection that moved here (requirement X2). Flags that are not known are dropped.
    pub(super) fn restore(&self, bits: u8) {
        self.0.store(Connection::from_bits_truncate(bits).bits(), Ordering::Release);
    }

    /// Whether all flags of `state` are set.
    #[inline]
    pub(crate) fn is(&self, state: Connection) -> bool {
        self.get().contains(state)
    }

    /// Takes a step. Returns whether this step set the last missing flag of `state`, which is true for one thread only.
    pub(crate) fn step_reaches(&self, step: Step, state: Connection) -> bool {
        self.step(step).is_some_and(|before| {
            let after = before.after(step).unwrap_or(before);
            !before.contains(state) && after.contains(state)
        })
    }

    /// Takes a step, and returns the state before it. `None` if the step cannot be taken.
    pub(crate) fn step(&self, step: Step) -> Option<Connection> {
        let next = |bits| Connection::from_bits_retain(bits).after(step).map(|state| state.bits());
        let before = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, next);
        before.ok().map(Connection::from_bits_retain)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Takes these steps from the start, all of which must be possible. Returns the state after them.
    fn after(steps: &[Step]) -> Connection {
        let connection = SharedConnection::default();
        for step in steps {
            assert!(connection.step(*step).is_some(), "{step:?} of {steps:?}");
        }
        connection.get()
    }

    #[test]
    fn a_connection_is_disconnected_once_and_only_while_linked() {
        let connection = SharedConnection::default();
        assert_eq!(connection.step(Step::Disconnect), None);
        connection.step(Step::Connect);
        assert_eq!(connection.step(Step::Disconnect), Some(Connection::LINKED));
        assert_eq!(connection.step(Step::Disconnect), None);
        assert_eq!(connection.step(Step::PeerClosed), None, "this end is closing");
    }

    #[test]
    fn a_release_keeps_how_the_connection_ended() {
        let ended =
            after(&[Step::Connect, Step::PeerClosed, Step::CloseSend, Step::CloseReceive, Step::Release]);
        assert_eq!(ended, Connection::CLOSED | Connection::PEER_CLOSED | Connection::JUST_CLOSED);
        let forgotten = after(&[Step::Connect, Step::PeerClosed, Step::Release, Step::PeerForgotten]);
        assert_eq!(forgotten, Connection::PEER_CLOSED);
    }
}
