//! The life of a connection.
//!
//! ```text
//!  handshake (cm)                   disconnect, or the stream ended
//!       │ done          in its set     ┌──────────────────────┐
//!       ▼                 │            │                      ▼
//!   Starting ─────────────┴──────▶ Streaming             Draining ───────┐ both directions closed,
//!       │                              │                                  │ cut, or the peer took too long
//!       └──────────────────────────────┴──────────────────────────────────┴──▶ Closed
//! ```
//!
//! | state | socket | device's queue pair | timers |
//! |---|---|---|---|
//! | `Starting` | in no poll set | connected, may be driven by the thread that starts it | none |
//! | `Streaming` | in the poll set of its completion queue | moves messages | nudge, first word, awaited receive |
//! | `Draining` | in the poll set, once it was started | sends what was posted, then closes | close; hang-up, if the program asked for it |
//! | `Closed` | in no poll set, and closed | released | those left do nothing |
//!
//! Between two calls a stream is plain data, and whoever drives it finds it where the last call left it. So a connection in its set can
//! be moved to another lane at any time, in the middle of a message too. A state in which it is in no set and yet not closed, to hand it to
//! another process (frozen) or to replace its link, goes beside `Streaming` and `Draining`, and returns to the one it came
//! from: everything that takes a connection out of its set goes through [`Life`].

/// Where a connection is in its life. Protected by the lock of its place (`connection.rs`).
#[derive(Clone, Copy, Debug)]
pub(super) struct Life {
    state: State,
    /// The socket is in a poll set.
    in_set: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Starting,
    Streaming,
    Draining,
    Closed,
}

impl Life {
    pub(super) fn new() -> Self {
        Self { state: State::Starting, in_set: false }
    }

    /// Whether the socket is in a poll set.
    pub(super) fn is_in_set(self) -> bool {
        self.in_set
    }

    pub(super) fn is_closed(self) -> bool {
        self.state == State::Closed
    }

    /// The socket is about to be added to its poll set. Returns false if the connection was closed before.
    pub(super) fn enter(&mut self) -> bool {
        if self.state == State::Starting {
            self.state = State::Streaming; // or it drains already
        }
        self.in_set = !self.is_closed();
        self.in_set
    }

    /// The stream ended, or the program closes it. Returns false if it was draining or closed before.
    pub(super) fn drain(&mut self) -> bool {
        let drains = matches!(self.state, State::Starting | State::Streaming);
        if drains {
            self.state = State::Draining;
        }
        drains
    }

    /// The connection is closed. Returns whether the socket was in a poll set.
    pub(super) fn close(&mut self) -> bool {
        self.state = State::Closed;
        std::mem::take(&mut self.in_set)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_was_closed_first_never_enters_its_set() {
        let mut life = Life::new();
        assert!(!life.close());
        assert!(!life.enter() && !life.is_in_set());
    }

    #[test]
    fn a_connection_drains_once_and_stays_in_its_set_until_it_is_closed() {
        let mut life = Life::new();
        assert!(life.drain(), "the program may close it before it is in its set");
        assert!(life.enter() && life.is_in_set());
        assert!(!life.drain());
        assert!(life.close() && !life.close() && life.is_closed());
    }
}
