//! The life of a queue pair's connection: one state machine, in one atomic byte.
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
//! | `Disconnect` | `Qp::disconnect` | the program closes; what was posted is still sent |
//! | `PeerClosed` | the rx half | the peer closed a manually connected queue pair, which goes on without it |
//! | `PeerForgotten` | the engine's timer | an empty Write no longer succeeds for a peer that has left |
//! | `CloseSend` | the tx half | the last byte was handed to the link |
//! | `CloseReceive` | the rx half | the end of the peer's bytes was reached |
//! | `CloseBoth` | either half | the connection was lost, or a half panicked |
//! | `Release` | `Qp::release`, `Qp::reset` | the link is dropped |
//!
//! The end of the *stream* is not part of this: it is the verbs state [`Error`](crate::state::State::Error), which a program
//! can also reach without a connection. A stream that has failed keeps its link until the peer has been told.
//!
//! Two bits are free for a connection that is handed over: one that is frozen (both halves keep their state, and neither is
//! driven), and one whose link is being changed. Both apply to `LINKED` without `CLOSING`, and end with a step back to it. A half
//! that is `None` cannot stand for them: it means that there is no stream.

use std::sync::atomic::{AtomicU8, Ordering};

bitflags::bitflags! {
    /// The state of a connection at one moment.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(crate) struct Connection: u8 {
        /// There is a link.
        const LINKED = 1;
        /// This end is disconnecting: what was posted is still sent, and nothing more can be posted.
        const CLOSING = 1 << 1;
        /// The peer closed, and the queue pair goes on without it: nothing more is sent.
        const PEER_CLOSED = 1 << 2;
        /// The peer closed a moment ago.
        const JUST_CLOSED = 1 << 3;
        /// Nothing more will be sent.
        const SEND_CLOSED = 1 << 4;
        /// Nothing more will be received.
        const RECEIVE_CLOSED = 1 << 5;
        /// Both directions are closed.
        const CLOSED = Self::SEND_CLOSED.bits() | Self::RECEIVE_CLOSED.bits();
    }
}

/// A step in the life of a connection.
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
    /// The state after a step. `None` if the step cannot be taken from this state.
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
    #[inline]
    pub(crate) fn get(&self) -> Connection {
        Connection::from_bits_retain(self.0.load(Ordering::Acquire))
    }

    #[inline]
    pub(crate) fn is(&self, state: Connection) -> bool {
        self.get().contains(state)
    }

    /// Takes a step, and returns whether it was the one that reached `state`.
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
        assert_eq!(connection.step(Step::PeerClosed), None, "this end closes as well");
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
