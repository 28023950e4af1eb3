//! Limits on handshakes that peers begin, and which one is evicted when there are too many.
//!
//! A peer that begins a connection may be anyone, so the cost of all such handshakes is bounded (RFC 5042 §6.4.1), and so is the time of each
//! (§6.4.2):
//!
//! | stage | waits for | at most | for at most |
//! |---|---|---|---|
//! | [`Stage::Greeting`] | the peer: its Request, or room for the Reply | [`Limits::greeting`] on a lane, [`Limits::each`] of one party | the setting `startup` |
//! | [`Stage::Deciding`] | the program's decision | the listener's backlog, and [`Limits::deciding`] | six times as long |
//!
//! Over a limit the oldest handshake of the party with the most is evicted. So a flood evicts itself: a new handshake of another party is not
//! touched, and one of the same party only needs to send its Request before as many others as the limit allows have come after it.

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
    /// A user of this host; `None` if the kernel does not know which. Addresses mean nothing here: any user can use 127.0.0.0/8.
    User(Option<u32>),
    /// An address of another host. Of an IPv6 address the first 64 bits count, since a host has all addresses behind them.
    Host(IpAddr),
}

impl Party {
    /// The party of a connection from `peer` to `local`.
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
    /// In [`Stage::Greeting`], of one party.
    pub(crate) each: usize,
    /// In [`Stage::Deciding`] at a listener with a larger backlog.
    pub(crate) deciding: usize,
    /// Descriptors from this number on are not used for handshakes that a peer begins: the program may need them.
    reserved: u64,
}

impl Limits {
    /// Limits for a process that may have this number of descriptors. The adapter takes a part of them; beyond 4096, memory is the limit.
    pub(crate) fn new(descriptors: u64) -> Self {
        let of = |share: u64, most: usize| {
            usize::try_from(descriptors / share).map_or(most, |descriptors| descriptors.clamp(8, most))
        };
        let reserve = (descriptors / 32).clamp(8, 32);
        Self {
            greeting: of(4, 1024),
            each: of(8, 512),
            deciding: of(2, 1024),
            reserved: descriptors.saturating_sub(reserve),
        }
    }

    /// Limits for the current number of descriptors that the process may have.
    pub(crate) fn now() -> Self {
        Self::new(descriptor_limit())
    }

    /// Whether this descriptor is one of the last. The kernel assigns the lowest free number, so all below it are in use. A number that the
    /// program has just freed is not recognised, although it may be the last one.
    pub(crate) fn is_reserved(&self, fd: RawFd) -> bool {
        u64::try_from(fd).is_ok_and(|fd| fd >= self.reserved)
    }
}

/// What a handshake waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The peer.
    Greeting,
    /// The program.
    Deciding,
}

/// The handshakes of a lane that peers began, by token. Tokens count up, so the lowest is the oldest.
#[derive(Debug, Default)]
pub(crate) struct Admission {
    entries: HashMap<u64, Entry>,
    greeting: Crowd,
    /// By the token of the listener.
    deciding: HashMap<u64, Crowd>,
    deadlines: BTreeSet<(Instant, u64)>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    listener: u64,
    party: Party,
    stage: Stage,
    deadline: Instant,
}

impl Admission {
    /// Adds a handshake that waits until the deadline.
    pub(crate) fn admit(&mut self, token: u64, listener: u64, party: Party, stage: Stage, deadline: Instant) {
        self.insert(token, Entry { listener, party, stage, deadline });
    }

    /// Updates a handshake that may have reached another stage. Returns whether it has.
    pub(crate) fn update(&mut self, token: u64, stage: Stage, deadline: Instant) -> bool {
        let same = |entry: &Entry| (entry.stage, entry.deadline) == (stage, deadline);
        if self.entries.get(&token).is_none_or(same) {
            return false;
        }
        if let Some(entry) = self.remove(token) {
            self.insert(token, Entry { stage, deadline, ..entry });
        }
        true
    }

    /// Removes a handshake that is done, or closed.
    pub(crate) fn forget(&mut self, token: u64) {
        self.remove(token);
    }

    /// Number of handshakes.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The handshake to evict because this one came to its stage last; `None` if there is room for all.
    pub(crate) fn excess(&self, because_of: u64, limits: &Limits, backlog: usize) -> Option<u64> {
        let entry = self.entries.get(&because_of)?;
        match entry.stage {
            Stage::Greeting if self.greeting.len_of(entry.party) > limits.each => {
                self.greeting.oldest_of(entry.party)
            }
            Stage::Greeting if self.greeting.len > limits.greeting => self.greeting.oldest_of_largest(),
            Stage::Deciding => {
                let crowd = self.deciding.get(&entry.listener)?;
                (crowd.len > backlog.min(limits.deciding)).then(|| crowd.oldest_of_largest())?
            }
            Stage::Greeting => None,
        }
    }

    /// The handshake to evict if a descriptor is needed. Those whose Request has not come go first.
    pub(crate) fn least_missed(&self) -> Option<u64> {
        let largest = || self.deciding.values().filter_map(|crowd| crowd.ranks.last()).max();
        self.greeting.oldest_of_largest().or_else(|| largest().map(|(_, Reverse(oldest), _)| *oldest))
    }

    /// A handshake whose deadline is over.
    pub(crate) fn overdue(&self, now: Instant) -> Option<u64> {
        self.deadlines.first().filter(|(deadline, _)| *deadline <= now).map(|(_, token)| *token)
    }

    /// Time until the next deadline.
    pub(crate) fn next(&self, now: Instant) -> Option<Duration> {
        self.deadlines.first().map(|(deadline, _)| deadline.saturating_duration_since(now))
    }

    fn insert(&mut self, token: u64, entry: Entry) {
        self.entries.insert(token, entry);
        self.deadlines.insert((entry.deadline, token));
        let crowd = match entry.stage {
            Stage::Greeting => &mut self.greeting,
            Stage::Deciding => self.deciding.entry(entry.listener).or_default(),
        };
        crowd.insert(token, entry.party);
    }

    fn remove(&mut self, token: u64) -> Option<Entry> {
        let entry = self.entries.remove(&token)?;
        self.deadlines.remove(&(entry.deadline, token));
        match entry.stage {
            Stage::Greeting => self.greeting.remove(token, entry.party),
            Stage::Deciding => {
                let crowd = self.deciding.get_mut(&entry.listener)?;
                crowd.remove(token, entry.party);
                if crowd.len == 0 {
                    self.deciding.remove(&entry.listener);
                }
            }
        }
        Some(entry)
    }
}

/// Handshakes by party.
#[derive(Debug, Default)]
struct Crowd {
    parties: HashMap<Party, BTreeSet<u64>>,
    /// Number of handshakes of each party, and its oldest: the largest is last, and among equals the one with the oldest of all.
    ranks: BTreeSet<(usize, Reverse<u64>, Party)>,
    len: usize,
}

impl Crowd {
    fn insert(&mut self, token: u64, party: Party) {
        self.change(party, |members| members.insert(token));
        self.len += 1;
    }

    fn remove(&mut self, token: u64, party: Party) {
        self.change(party, |members| members.remove(&token));
        self.len -= 1;
    }

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

    fn len_of(&self, party: Party) -> usize {
        self.parties.get(&party).map_or(0, BTreeSet::len)
    }

    fn oldest_of(&self, party: Party) -> Option<u64> {
        self.parties.get(&party)?.first().copied()
    }

    fn oldest_of_largest(&self) -> Option<u64> {
        self.ranks.last().map(|(_, Reverse(oldest), _)| *oldest)
    }
}
