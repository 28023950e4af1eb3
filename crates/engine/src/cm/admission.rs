//! Limits the handshakes that peers begin, and selects the ones to evict when there are too many.
//!
//! A peer that begins a connection may be a stranger. So the number of such handshakes is bounded (RFC 5042 §6.4.1),
//! and so is the duration of each (§6.4.2):
//!
//! | stage | waits for | at most | for at most |
//! |---|---|---|---|
//! | [`Stage::Greeting`] | the peer: its Request, or room for the Reply | [`Limits::greeting`] on a lane, [`Limits::per_party`] of one party | the setting `startup` |
//! | [`Stage::Deciding`] | the program's decision | the listener's backlog, and [`Limits::deciding`] | six times `startup` |
//!
//! When a limit is exceeded, the oldest handshake of the party with the most handshakes is evicted. So a flood evicts
//! its own handshakes. A handshake of another party is not affected, and an honest handshake of the same party succeeds
//! if its Request arrives before the flood has begun as many newer handshakes as the limit allows.

use crate::sys::sock_diag::socket_owner;
use crate::sys::tcp::descriptor_limit;
use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

#[cfg(test)]
mod tests;

/// The party that a handshake is charged to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Party {
    /// A user of this host; `None` if the kernel does not know which. Not an address: any user can connect from all of
    /// 127.0.0.0/8.
    User(Option<u32>),
    /// An address of another host. The last 64 bits of an IPv6 address are zero here: a host can use all addresses of
    /// its prefix.
    Host(IpAddr),
}

impl Party {
    /// Returns the party of a connection from `peer` to `local`.
    pub(crate) fn new(peer: SocketAddr, local: SocketAddr, same_host: bool) -> Self {
        if same_host {
            return Self::User(socket_owner(peer, local).ok().flatten());
        }
        Self::Host(match peer.ip().to_canonical() {
            IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64).into(),
            v4 => v4,
        })
    }
}

/// Maximum numbers of handshakes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// In [`Stage::Greeting`] on a lane.
    pub(crate) greeting: usize,
    /// In [`Stage::Greeting`] on a lane, of one party.
    pub(crate) per_party: usize,
    /// In [`Stage::Deciding`] at a listener, if its backlog is not smaller.
    pub(crate) deciding: usize,
    /// The first descriptor that is reserved: from this number on, descriptors are not used for handshakes that a peer
    /// begins, because the program may need them.
    first_reserved: u64,
}

impl Limits {
    /// Returns the limits for a process that may have this number of descriptors. Handshakes may use a share of them;
    /// beyond 4096 descriptors the limits stay constant, to bound memory.
    pub(crate) fn new(descriptors: u64) -> Self {
        let fraction = |divisor: u64, max: usize| {
            usize::try_from(descriptors / divisor).map_or(max, |descriptors| descriptors.clamp(8, max))
        };
        let reserve = (descriptors / 32).clamp(8, 32);
        Self {
            greeting: fraction(4, 1024),
            per_party: fraction(8, 512),
            deciding: fraction(2, 1024),
            first_reserved: descriptors.saturating_sub(reserve),
        }
    }

    /// Returns the limits for the number of descriptors that the process may have now.
    pub(crate) fn now() -> Self {
        Self::new(descriptor_limit())
    }

    /// Returns whether a new descriptor is one of the last that the process may have. The kernel assigns the lowest
    /// free number, so a high number means that those below it are in use. An approximation: a low number may be the
    /// last one, if the program has just freed it.
    pub(crate) fn is_reserved(&self, fd: RawFd) -> bool {
        u64::try_from(fd).is_ok_and(|fd| fd >= self.first_reserved)
    }
}

/// Whom a handshake waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The peer.
    Greeting,
    /// The program.
    Deciding,
}

/// The handshakes of a lane that peers began, by token. Tokens increase, so the lowest is the oldest.
#[derive(Debug, Default)]
pub(crate) struct Admission {
    entries: HashMap<u64, Entry>,
    /// The handshakes in [`Stage::Greeting`].
    greeting: ByParty,
    /// The handshakes in [`Stage::Deciding`], by the token of the listener.
    deciding: HashMap<u64, ByParty>,
    /// Deadline and token of each handshake, the earliest first.
    deadlines: BTreeSet<(Instant, u64)>,
}

/// A handshake that a peer began.
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// The token of the listener that accepted the connection.
    listener: u64,
    party: Party,
    stage: Stage,
    deadline: Instant,
}

impl Admission {
    /// Adds a handshake.
    pub(crate) fn admit(&mut self, token: u64, listener: u64, party: Party, stage: Stage, deadline: Instant) {
        self.insert(token, Entry { listener, party, stage, deadline });
    }

    /// Updates the stage and the deadline of a handshake. Returns whether one of them changed; false if the handshake
    /// is unknown.
    pub(crate) fn update(&mut self, token: u64, stage: Stage, deadline: Instant) -> bool {
        let Some(&entry) = self.entries.get(&token) else { return false };
        if (entry.stage, entry.deadline) == (stage, deadline) {
            return false;
        }
        self.take(token);
        self.insert(token, Entry { stage, deadline, ..entry });
        true
    }

    /// Removes a handshake that has ended or is evicted.
    pub(crate) fn remove(&mut self, token: u64) {
        self.take(token);
    }

    /// Returns the number of handshakes.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the handshake to evict if the stage of `newest`, which reached the stage last, exceeds a limit; `None`
    /// if there is room for all. `backlog` is that of the listener.
    pub(crate) fn find_excess(&self, newest: u64, limits: &Limits, backlog: usize) -> Option<u64> {
        let entry = self.entries.get(&newest)?;
        match entry.stage {
            Stage::Greeting if self.greeting.len_of(entry.party) > limits.per_party => {
                self.greeting.oldest_of(entry.party)
            }
            Stage::Greeting if self.greeting.len > limits.greeting => self.greeting.oldest_of_largest(),
            Stage::Deciding => {
                let deciding = self.deciding.get(&entry.listener)?; // contains `newest`
                if deciding.len > backlog.min(limits.deciding) { deciding.oldest_of_largest() } else { None }
            }
            Stage::Greeting => None,
        }
    }

    /// Returns the handshake to evict if a descriptor is needed: preferably one that waits for its peer, not for the
    /// program.
    pub(crate) fn find_for_descriptor(&self) -> Option<u64> {
        let largest = || self.deciding.values().filter_map(|by_party| by_party.ranks.last()).max();
        self.greeting.oldest_of_largest().or_else(|| largest().map(|(_, Reverse(oldest), _)| *oldest))
    }

    /// Returns a handshake whose deadline is over.
    pub(crate) fn find_overdue(&self, now: Instant) -> Option<u64> {
        self.deadlines.first().filter(|(deadline, _)| *deadline <= now).map(|(_, token)| *token)
    }

    /// Returns the time until the next deadline; `None` if there are no handshakes.
    pub(crate) fn time_to_next_deadline(&self, now: Instant) -> Option<Duration> {
        self.deadlines.first().map(|(deadline, _)| deadline.saturating_duration_since(now))
    }

    /// Adds a handshake to all indices.
    fn insert(&mut self, token: u64, entry: Entry) {
        self.entries.insert(token, entry);
        self.deadlines.insert((entry.deadline, token));
        let by_party = match entry.stage {
            Stage::Greeting => &mut self.greeting,
            Stage::Deciding => self.deciding.entry(entry.listener).or_default(),
        };
        by_party.insert(token, entry.party);
    }

    /// Removes a handshake from all indices, and returns it if it was there.
    fn take(&mut self, token: u64) -> Option<Entry> {
        let entry = self.entries.remove(&token)?;
        self.deadlines.remove(&(entry.deadline, token));
        match entry.stage {
            Stage::Greeting => self.greeting.remove(token, entry.party),
            Stage::Deciding => {
                let deciding = self.deciding.get_mut(&entry.listener)?; // contains the handshake
                deciding.remove(token, entry.party);
                if deciding.len == 0 {
                    self.deciding.remove(&entry.listener);
                }
            }
        }
        Some(entry)
    }
}

/// The handshakes of one stage, by party.
#[derive(Debug, Default)]
struct ByParty {
    /// The tokens of each party, which has at least one.
    parties: HashMap<Party, BTreeSet<u64>>,
    /// For each party its number of handshakes and its oldest token. The party with the most handshakes is last; among
    /// equal ones, that with the oldest handshake.
    ranks: BTreeSet<(usize, Reverse<u64>, Party)>,
    /// Number of handshakes of all parties.
    len: usize,
}

impl ByParty {
    /// Adds a handshake of a party.
    fn insert(&mut self, token: u64, party: Party) {
        self.change(party, |members| members.insert(token));
        self.len += 1;
    }

    /// Removes a handshake of a party, which must be present.
    fn remove(&mut self, token: u64, party: Party) {
        self.change(party, |members| members.remove(&token));
        self.len -= 1;
    }

    /// Changes the tokens of a party by `change`, whose result is ignored, and updates its rank.
    fn change(&mut self, party: Party, change: impl FnOnce(&mut BTreeSet<u64>) -> bool) {
        let members = self.parties.entry(party).or_default();
        if let Some(&oldest) = members.first() {
            self.ranks.remove(&(members.len(), Reverse(oldest), party));
        }
        change(members);
        match members.first() {
            Some(&oldest) => {
                self.ranks.insert((members.len(), Reverse(oldest), party));
            }
            None => {
                self.parties.remove(&party);
            }
        }
    }

    /// Returns the number of handshakes of a party.
    fn len_of(&self, party: Party) -> usize {
        self.parties.get(&party).map_or(0, BTreeSet::len)
    }

    /// Returns the oldest handshake of a party.
    fn oldest_of(&self, party: Party) -> Option<u64> {
        self.parties.get(&party)?.first().copied()
    }

    /// Returns the oldest handshake of the party with the most handshakes.
    fn oldest_of_largest(&self) -> Option<u64> {
        self.ranks.last().map(|(_, Reverse(oldest), _)| *oldest)
    }
}
