//! The states of a connection, and whether its socket is in a poll set.
//!
//! ```text
//!  handshake (cm)                   disconnect, or the stream ended
//!       │ done     added to its set    ┌──────────────────────┐
//!       ▼                 │            │                      ▼
//!   Starting ─────────────┴──────▶ Streaming             Draining ───────┐ both directions closed,
//!       │                              │                                  │ aborted, or the peer took too long
//!       └──────────────────────────────┴──────────────────────────────────┴──▶ Closed
//! ```
//!
//! | state | socket | device's queue pair | timers |
//! |---|---|---|---|
//! | `Starting` | in no poll set | connected; the thread that starts the connection may drive it | none |
//! | `Streaming` | in the poll set of its completion queue | moves messages | nudge, first message, awaited receive |
//! | `Draining` | in the poll set, once the connection was started | sends the posted requests, then closes | close; hang-up, if the program hung up |
//! | `Closed` | in no poll set, and closed | released | pending ones do nothing |
//!
//! Between two calls a stream is plain data: any thread can continue it. So a connection in its set can be moved to
//! another lane at any time, in the middle of a message too. Everything that takes a connection out of its set goes
//! through [`Lifecycle`].
//!
//! A connection is *frozen* while it moves to another function (requirement X2, `docs/functions.md`): it is in no set, but not
//! closed, and nothing may act on its socket, which another process may own by then. It stays in its state.

/// The state of a connection. `Connection::state` (`connection.rs`) protects it by a lock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lifecycle {
    state: State,
    /// The socket is in a poll set.
    in_set: bool,
    /// The connection is frozen.
    is_frozen: bool,
}

/// The states in the diagram above.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Starting,
    Streaming,
    Draining,
    Closed,
}

impl Lifecycle {
    /// Returns the state of a new connection, which is in no poll set.
    pub(super) fn new() -> Self {
        Self { state: State::Starting, in_set: false, is_frozen: false }
    }

    /// Returns whether the socket is in a poll set.
    pub(super) fn is_in_set(self) -> bool {
        self.in_set
    }

    /// Returns whether the connection is closed.
    pub(super) fn is_closed(self) -> bool {
        self.state == State::Closed
    }

    /// Returns whether the connection is frozen.
    pub(super) fn is_frozen(self) -> bool {
        self.is_frozen
    }

    /// Returns whether the thread that starts the connection has done so: its socket was added to a poll set, or is closed.
    pub(super) fn is_started(self) -> bool {
        self.in_set || self.is_frozen || self.is_closed()
    }

    /// Records that the connection is frozen, which must be [started](Self::is_started): the thread that starts it would add
    /// its socket to a poll set. Returns whether the socket was in one: the caller has to remove it.
    pub(super) fn freeze(&mut self) -> bool {
        debug_assert!(self.is_started());
        self.is_frozen = true;
        std::mem::take(&mut self.in_set)
    }

    /// Records that the connection, which is new, is frozen: it continues one that was frozen elsewhere.
    pub(super) fn begin_frozen(&mut self) {
        self.is_frozen = true;
    }

    /// Records that the connection is not frozen any more.
    pub(super) fn thaw(&mut self) {
        self.is_frozen = false;
    }

    /// Records that the socket is about to be added to its poll set. Returns false, and records nothing, if the
    /// connection is closed or frozen.
    pub(super) fn enter_set(&mut self) -> bool {
        if self.is_frozen {
            return false;
        }
        // The program may have disconnected already: then the connection stays in `Draining`.
        if self.state == State::Starting {
            self.state = State::Streaming;
        }
        self.in_set = !self.is_closed();
        self.in_set
    }

    /// Records that the stream ended, or that the program disconnects. Returns false if the connection was draining or
    /// closed before.
    pub(super) fn begin_draining(&mut self) -> bool {
        let drains = matches!(self.state, State::Starting | State::Streaming);
        if drains {
            self.state = State::Draining;
        }
        drains
    }

    /// Records that the connection is closed. Returns whether the socket was in a poll set: the caller has to remove
    /// it.
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
        let mut lifecycle = Lifecycle::new();
        assert!(!lifecycle.close());
        assert!(!lifecycle.enter_set() && !lifecycle.is_in_set());
    }

    #[test]
    fn a_frozen_connection_is_in_no_set_until_it_is_thawed() {
        let mut lifecycle = Lifecycle::new();
        assert!(!lifecycle.is_started(), "the thread that starts it would add it to a set later");
        assert!(lifecycle.enter_set() && lifecycle.is_started() && lifecycle.freeze());
        assert!(!lifecycle.enter_set() && !lifecycle.is_in_set() && lifecycle.is_frozen());
        lifecycle.thaw();
        assert!(lifecycle.enter_set() && !lifecycle.is_frozen());
    }

    #[test]
    fn a_connection_drains_once_and_stays_in_its_set_until_it_is_closed() {
        let mut lifecycle = Lifecycle::new();
        assert!(lifecycle.begin_draining(), "the program may close it before it is in its set");
        assert!(lifecycle.enter_set() && lifecycle.is_in_set());
        assert!(!lifecycle.begin_draining());
        assert!(lifecycle.close() && !lifecycle.close() && lifecycle.is_closed());
    }
}
