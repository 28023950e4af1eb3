//! What a receiver knows about the senders of acknowledged datagrams: a session for each, with a window of the last 64
//! sequence numbers, so that each datagram is placed at most once.
//!
//! Anybody can send datagrams, so nothing here grows with what arrives:
//!
//! - **No state without proof.** A sender has to return a cookie before the receiver stores anything about it. The cookie
//!   is a keyed hash of the addresses, the session and the time, so that the receiver need not remember it. Whoever
//!   forges a source address does not receive the cookie.
//! - **A bounded table.** A new sender replaces the one that was silent longest.
//!
//! # Why nothing is placed twice
//! A session is opened at most once, so a sequence number is new at most once. A session that has left the table can only
//! come back by a cookie, and [`evictions`](Senders::evictions), which is part of the hash, changes whenever a session of
//! the same class of senders leaves the table: all cookies from before are worthless. [`generation`](Senders::generation)
//! does the same for all senders when the table is cleared, and the key when the process is started again.

use crate::broken;
use crate::gid::Gid;
use crate::siphash::{Key, key_of, siphash};
use std::collections::BTreeMap;
use std::time::Duration;

/// Number of sequence numbers that a window covers. A sender has at most that many unanswered messages.
pub(super) const WINDOW: u32 = u64::BITS;

/// Maximum number of senders that a queue pair has sessions with.
pub const MAX_SENDERS: usize = 1024;

/// Number of classes of senders.
const CLASSES: usize = 64;

/// A cookie is valid in the period in which it was created, and in the next one.
const COOKIE_PERIOD: Duration = Duration::from_secs(16);

/// First words of hash inputs, which keep the uses of the key apart.
const CLASS_INPUT: u64 = 1;
const COOKIE_INPUT: u64 = 2;
pub(super) const SESSION_INPUT: u64 = 3;

/// A sender, as the network names it, and the local address that it sends to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::datagram) struct Peer {
    pub(in crate::datagram) gid: Gid,
    pub(in crate::datagram) port: u16,
    pub(in crate::datagram) to: Gid,
}

/// How a message ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::datagram) enum Outcome {
    /// The message was placed.
    Placed,
    /// Its receive failed.
    Rejected,
}

/// What to do with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::datagram) enum Verdict {
    /// Place it: it did not arrive before.
    New,
    /// Answer again: it ended like this before.
    Repeated(Outcome),
    /// Drop it: it is older than the window, so its sender does not wait for an answer any more.
    Stale,
    /// Refuse it: there is no such session.
    Unknown,
}

/// The answer to a sender that opens a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::datagram) enum Opening {
    /// The session is open.
    Opened,
    /// The sender has to return this cookie.
    Challenge(u64),
}

/// The open session of a sender.
#[derive(Debug)]
struct Session {
    number: u64,
    /// The highest sequence number that has ended.
    highest: u32,
    /// Which of the sequence numbers up to `highest` have ended: bit `n` stands for `highest - n`.
    ended: u64,
    /// Which of them have ended with [`Outcome::Rejected`].
    rejected: u64,
    /// When the session was last used, on the clock of [`Senders::uses`].
    used: u64,
}

/// The senders of a queue pair.
#[derive(Debug)]
pub(in crate::datagram) struct Senders {
    key: Key,
    /// Maximum number of sessions.
    capacity: usize,
    /// How often the table was cleared.
    generation: u64,
    /// How many sessions have left the table, for each class of senders.
    evictions: [u32; CLASSES],
    sessions: BTreeMap<Peer, Session>,
    /// How often sessions were used.
    uses: u64,
}

impl Senders {
    /// Creates an empty table for this many sessions. The key must be secret.
    pub(in crate::datagram) fn new(key: Key, capacity: usize) -> Self {
        let (generation, evictions, uses) = (0, [0; CLASSES], 0);
        Self { key, capacity: capacity.max(1), generation, evictions, sessions: BTreeMap::new(), uses }
    }

    /// Opens a session, if the sender has returned a valid cookie.
    pub(in crate::datagram) fn open(
        &mut self,
        now: Duration,
        peer: Peer,
        number: u64,
        cookie: u64,
    ) -> Opening {
        self.uses += 1;
        if let Some(session) = self.sessions.get_mut(&peer)
            && session.number == number
        {
            session.used = self.uses;
            return Opening::Opened;
        }
        let period = now.as_secs() / COOKIE_PERIOD.as_secs();
        let valid = |period| self.cookie(period, peer, number) == cookie;
        if !(valid(period) || period > 0 && valid(period - 1) || broken::is("cookie")) {
            return Opening::Challenge(self.cookie(period, peer, number));
        }
        self.make_room(peer);
        // All numbers before the first one count as ended.
        let session = Session { number, highest: u32::MAX, ended: u64::MAX, rejected: 0, used: self.uses };
        self.sessions.insert(peer, session);
        Opening::Opened
    }

    /// Returns what to do with a message.
    pub(in crate::datagram) fn check(&mut self, peer: Peer, session: u64, sequence: u32) -> Verdict {
        self.uses += 1;
        let Some(session) = self.sessions.get_mut(&peer).filter(|open| open.number == session) else {
            return Verdict::Unknown;
        };
        session.used = self.uses;
        session.check(sequence)
    }

    /// Records how a message ended that [`check`](Self::check) has found to be new.
    pub(in crate::datagram) fn record(&mut self, peer: Peer, sequence: u32, outcome: Outcome) {
        if let Some(session) = self.sessions.get_mut(&peer) {
            session.record(sequence, outcome);
        }
    }

    /// Forgets all sessions.
    pub(in crate::datagram) fn clear(&mut self) {
        self.sessions.clear();
        self.generation += 1;
    }

    /// Removes a session of this sender, or, if the table is full, the one that was not used for the longest time.
    fn make_room(&mut self, peer: Peer) {
        let evicted = if self.sessions.contains_key(&peer) {
            Some(peer)
        } else if self.sessions.len() >= self.capacity {
            self.sessions.iter().min_by_key(|(_, session)| session.used).map(|(peer, _)| *peer)
        } else {
            None
        };
        if let Some(evicted) = evicted {
            self.sessions.remove(&evicted);
            let class = self.class(evicted);
            if !broken::is("evicted") {
                self.evictions[class] = self.evictions[class].wrapping_add(1);
            }
        }
    }

    /// Returns the class of a sender. Senders cannot choose it, because they do not know the key.
    fn class(&self, peer: Peer) -> usize {
        let [a, b, c, d, e] = peer.words();
        let hash = siphash(self.key, &[CLASS_INPUT, a, b, c, d, e]);
        usize::from(hash.to_le_bytes()[0]) % CLASSES
    }

    /// Returns the cookie for a session that a sender wants to open in this period.
    fn cookie(&self, period: u64, peer: Peer, session: u64) -> u64 {
        let [a, b, c, d, e] = peer.words();
        let evictions = u64::from(self.evictions[self.class(peer)]);
        siphash(self.key, &[COOKIE_INPUT, a, b, c, d, e, session, period, evictions, self.generation])
    }

    /// Returns the number of open sessions.
    #[cfg(all(test, not(loom)))]
    pub(super) fn len(&self) -> usize {
        self.sessions.len()
    }
}

impl Peer {
    /// Returns the sender as input of a hash.
    fn words(&self) -> [u64; 5] {
        let [a, b] = key_of(self.gid.to_bytes());
        let [c, d] = key_of(self.to.to_bytes());
        [a, b, c, d, self.port.into()]
    }
}

impl Session {
    /// Returns what to do with a message.
    fn check(&self, sequence: u32) -> Verdict {
        // Numbers wrap around, so they are compared by their distance (RFC 1982).
        let ahead = sequence.wrapping_sub(self.highest).cast_signed();
        if ahead > 0 || broken::is("window") {
            return Verdict::New;
        }
        match ahead.unsigned_abs() {
            WINDOW.. => Verdict::Stale,
            behind if self.ended >> behind & 1 == 0 => Verdict::New,
            behind if self.rejected >> behind & 1 == 0 => Verdict::Repeated(Outcome::Placed),
            _ => Verdict::Repeated(Outcome::Rejected),
        }
    }

    /// Records how a message ended, and moves the window up to it.
    fn record(&mut self, sequence: u32, outcome: Outcome) {
        let ahead = sequence.wrapping_sub(self.highest).cast_signed();
        if ahead > 0 {
            let by = ahead.unsigned_abs();
            self.ended = self.ended.checked_shl(by).unwrap_or(0);
            self.rejected = self.rejected.checked_shl(by).unwrap_or(0);
            self.highest = sequence;
        }
        let bit = 1_u64.checked_shl(self.highest.wrapping_sub(sequence)).unwrap_or(0);
        self.ended |= bit;
        if outcome == Outcome::Rejected {
            self.rejected |= bit;
        }
    }
}
