//! Connections that peers have begun and that are not streams yet: how many there may be, and which one goes when there are too many.
//! Before this: a lane accepted a connection; after: `setup.rs` reads its Request and asks the program.
//!
//! Whoever begins a connection is a stranger, so the cost of all such connections is bounded (RFC 5042 §6.4.1), and so is the time that
//! each has (§6.4.2):
//!
//! | stage | waits for | at most | for at most |
//! |---|---|---|---|
//! | [`Stage::Greeting`] | the peer: its Request, or room for the Reply | [`Limits::greeting`] on a lane, [`Limits::each`] of one party | the setting `startup` |
//! | [`Stage::Deciding`] | the program's decision | the listener's backlog, and [`Limits::deciding`] | six times as long |
//!
//! Over a limit the oldest connection of the party with the most has to go. So a flood evicts itself: a newcomer of another party is not
//! touched, and one of the same party only needs to send its Request before as many others as the limit allows have come after it.

use crate::sys::setup::descriptor_limit;
use crate::sys::sock_diag::socket_owner;
use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

#[cfg(test)]
mod tests;

/// Whom a connection is charged to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Party {
    /// A user of this host; `None` if the kernel does not say which. Its address means nothing: 127.0.0.0/8 is everybody's.
    User(Option<u32>),
    /// An address of another host. Of an IPv6 address the first 64 bits count, since a host has all addresses behind them.
    Host(IpAddr),
}

impl Party {
    /// Of a connection that came from `peer` to `local`.
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

/// How many connections may be in the making.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// In [`Stage::Greeting`] on a lane.
    pub(crate) greeting: usize,
    /// In that stage, of one party.
    pub(crate) each: usize,
    /// In [`Stage::Deciding`] at a listener with a larger backlog.
    pub(crate) deciding: usize,
    /// Descriptors from this number on are not for connections that a peer begins: the program may need them.
    reserved: u64,
}

impl Limits {
    /// Limits for a process that may have this number of descriptors. The numbers of descriptors are small, so the adapter takes a part of them;
    /// beyond 4096, memory is what counts.
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

    /// Under the limit that the process has right now.
    pub(crate) fn now() -> Self {
        Self::new(descriptor_limit())
    }

    /// Whether this descriptor is one of the last. The kernel hands out the lowest number that is free, so all below it are taken. One that
    /// the program has just closed is not recognised: it may be the last one, too.
    pub(crate) fn is_reserved(&self, fd: RawFd) -> bool {
        u64::try_from(fd).is_ok_and(|fd| fd >= self.reserved)
    }
}

/// What a connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The peer.
    Greeting,
    /// The program.
    Deciding,
}

/// The connections in the making of a lane, by their tokens. Tokens count up, so the lowest is the oldest.
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
    /// A connection was accepted, and waits until the deadline.
    pub(crate) fn admit(&mut self, token: u64, listener: u64, party: Party, stage: Stage, deadline: Instant) {
        self.insert(token, Entry { listener, party, stage, deadline });
    }

    /// A connection may have reached another stage. Returns whether it has.
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

    /// A connection is a stream now, or closed.
    pub(crate) fn forget(&mut self, token: u64) {
        self.remove(token);
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// One that has to go because of this connection, which came to its stage last; `None` if there is room for all.
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

    /// The one that is missed least if a descriptor is needed. Those that have not said what they want go first.
    pub(crate) fn least_missed(&self) -> Option<u64> {
        let largest = || self.deciding.values().filter_map(|crowd| crowd.ranks.last()).max();
        self.greeting.oldest_of_largest().or_else(|| largest().map(|(_, Reverse(oldest), _)| *oldest))
    }

    /// One that had its time.
    pub(crate) fn overdue(&self, now: Instant) -> Option<u64> {
        self.deadlines.first().filter(|(deadline, _)| *deadline <= now).map(|(_, token)| *token)
    }

    /// How long until the next one is overdue.
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

/// Connections by party.
#[derive(Debug, Default)]
struct Crowd {
    parties: HashMap<Party, BTreeSet<u64>>,
    /// How many each party has, and its oldest: the largest is last, and among equals the one with the oldest of all.
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
