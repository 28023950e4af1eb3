//! The hosts of a unit, connections that may become hosts, and what is known about them.

use crate::channel::Channel;
use crate::endpoint::{Endpoint, lock};
use crate::status::{HostReport, Report};
use crate::switch::{Place, Switch};
use ironwarp_io_unit::auth::Registry;
use ironwarp_io_unit::message::{HostName, Join, Mac, Status};
use ironwarp_io_unit::session::{Channel as SessionChannel, Session};
use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Names a member or a stranger.
pub(crate) type Id = u64;

/// A host that is attached, or a connection that may become one.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) id: Id,
    pub(crate) endpoint: Endpoint,
    pub(crate) peer: SocketAddr,
    /// Its name and the number of its session, once it is attached.
    host: Mutex<Option<(HostName, u64)>>,
    /// Frames of this host that were dropped because they break a rule, and frames that it could not take.
    refused: AtomicU64,
    missed: AtomicU64,
    /// Time of the next request that shows whether the host is still there.
    keepalive: Mutex<Duration>,
}

impl Member {
    pub(crate) fn new(id: Id, endpoint: Endpoint, peer: SocketAddr) -> Self {
        let (host, keepalive) = (Mutex::new(None), Mutex::new(Duration::ZERO));
        Self { id, endpoint, peer, host, refused: AtomicU64::new(0), missed: AtomicU64::new(0), keepalive }
    }

    pub(crate) fn host(&self) -> Option<(HostName, u64)> {
        lock(&self.host).clone()
    }

    pub(crate) fn set_host(&self, name: HostName, session: u64) {
        *lock(&self.host) = Some((name, session));
    }

    fn number(&self) -> Option<u64> {
        lock(&self.host).as_ref().map(|(_, number)| *number)
    }

    /// Returns the MTU of the host, and the addresses that it may send from.
    pub(crate) fn rules(&self) -> (u32, Vec<Mac>) {
        self.endpoint.query(|session| (session.link().map_or(0, |(_, mtu)| mtu), session.macs().to_vec()))
    }

    /// Returns whether the host is attached and has this offload.
    pub(crate) fn takes(&self, offload: u32) -> bool {
        self.endpoint.query(|session| session.link().is_some_and(|(offloads, _)| offloads & offload != 0))
    }

    pub(crate) fn count_refused(&self) {
        self.refused.fetch_add(1, Relaxed);
    }

    pub(crate) fn count_missed(&self) {
        self.missed.fetch_add(1, Relaxed);
    }

    /// Returns whether it is time for the next request, and sets the time of the one after it.
    pub(crate) fn keepalive_due(&self, now: Duration, interval: Duration) -> bool {
        let mut next = lock(&self.keepalive);
        let due = now >= *next;
        if due {
            *next = now + interval;
        }
        due
    }

    /// Ties a data channel to the session, whose actions then use it.
    pub(crate) fn join(&self, context: u64, join: &Join, channel: Channel) -> Result<(), Status> {
        // The reply is sent on the data channel: it must be there when the session acts.
        let mut channel = Some(channel);
        self.endpoint.call(|session| {
            session.join(context, join)?;
            channel.take().into_iter().for_each(|channel| self.endpoint.set_data(channel));
            Ok(())
        })
    }

    fn report(&self) -> Option<HostReport> {
        let (name, session) = self.host()?;
        let counters = self.endpoint.query(Session::statistics);
        Some(HostReport {
            name: name.to_string(),
            session,
            peer: self.peer,
            pools: counters.pools,
            frames_in: counters.frames_received,
            bytes_in: counters.bytes_received,
            frames_out: counters.frames_sent,
            bytes_out: counters.bytes_sent,
            drops: self.missed.load(Relaxed),
            refused: self.refused.load(Relaxed),
            stalls: counters.stalls,
        })
    }
}

/// A data channel that has not proved to belong to its session.
#[derive(Debug)]
pub(crate) struct Stranger {
    pub(crate) channel: Channel,
    pub(crate) member: Id,
    pub(crate) deadline: Duration,
}

/// All of them.
#[derive(Debug)]
pub(crate) struct Members {
    pub(crate) registry: Registry,
    pub(crate) switch: Switch,
    members: BTreeMap<Id, Arc<Member>>,
    strangers: BTreeMap<Id, Stranger>,
    /// Members whose sessions have ended, with the deadlines for closing their connections.
    closing: Vec<(Arc<Member>, Duration)>,
    /// The member or stranger of each completion queue, by its number.
    queues: HashMap<u32, (Id, SessionChannel)>,
    last_id: Id,
}

impl Members {
    pub(crate) fn new(registry: Registry) -> Self {
        Self {
            registry,
            switch: Switch::default(),
            members: BTreeMap::new(),
            strangers: BTreeMap::new(),
            closing: Vec::new(),
            queues: HashMap::new(),
            last_id: 0,
        }
    }

    pub(crate) fn add(&mut self, queue: u32, create: impl FnOnce(Id) -> Member) -> Id {
        self.last_id += 1;
        self.queues.insert(queue, (self.last_id, SessionChannel::Control));
        self.members.insert(self.last_id, Arc::new(create(self.last_id)));
        self.last_id
    }

    pub(crate) fn add_stranger(&mut self, stranger: Stranger) -> Id {
        self.last_id += 1;
        self.queues.insert(stranger.channel.cq.id(), (self.last_id, SessionChannel::Data));
        self.strangers.insert(self.last_id, stranger);
        self.last_id
    }

    /// Notes that the completion queue of a data channel belongs to a member.
    pub(crate) fn add_queue(&mut self, queue: u32, member: Id) {
        self.queues.insert(queue, (member, SessionChannel::Data));
    }

    pub(crate) fn member(&self, id: Id) -> Option<Arc<Member>> {
        self.members.get(&id).cloned()
    }

    pub(crate) fn stranger(&self, id: Id) -> Option<&Stranger> {
        self.strangers.get(&id)
    }

    pub(crate) fn of_queue(&self, queue: u32) -> Option<(Id, SessionChannel)> {
        self.queues.get(&queue).copied()
    }

    pub(crate) fn of_session(&self, number: u64) -> Option<Arc<Member>> {
        self.members.values().find(|member| member.number() == Some(number)).cloned()
    }

    /// Returns all hosts that are attached but the one at `place`.
    pub(crate) fn others(&self, place: Place) -> Vec<Arc<Member>> {
        let others = self.members.values().filter(|member| Place::Host(member.id) != place);
        others.filter(|member| member.number().is_some()).cloned().collect()
    }

    /// Returns whether a host is the only one that is attached.
    pub(crate) fn is_only(&self, id: Id) -> bool {
        let mut attached = self.members.values().filter(|member| member.number().is_some());
        attached.next().is_some_and(|member| member.id == id) && attached.next().is_none()
    }

    /// Number of connections that have not proved to be a host.
    pub(crate) fn strangers(&self) -> usize {
        let unknown = self.members.values().filter(|member| member.number().is_none()).count();
        unknown + self.strangers.len()
    }

    pub(crate) fn remove_stranger(&mut self, id: Id) -> Option<Stranger> {
        let stranger = self.strangers.remove(&id)?;
        self.queues.remove(&stranger.channel.cq.id());
        Some(stranger)
    }

    /// Forgets a member whose session has ended, and drops it when its connections are closed, at the latest at `deadline`.
    pub(crate) fn remove(&mut self, member: &Arc<Member>, deadline: Duration) {
        if self.members.remove(&member.id).is_none() {
            return;
        }
        if let Some((name, number)) = member.host() {
            self.registry.detach(&name, number);
        }
        self.switch.forget(member.id);
        self.strangers.retain(|_, stranger| stranger.member != member.id);
        self.closing.push((Arc::clone(member), deadline));
        self.forget_queues();
    }

    /// Drops what has had its time, and returns the members.
    pub(crate) fn tick(&mut self, now: Duration) -> Vec<Arc<Member>> {
        self.strangers.retain(|_, stranger| now < stranger.deadline);
        self.forget_queues();
        self.closing.retain(|(member, deadline)| now < *deadline && !member.endpoint.is_closed());
        self.members.values().cloned().collect()
    }

    pub(crate) fn report(&self, tags: usize) -> Report {
        Report {
            hosts: self.members.values().filter_map(|member| member.report()).collect(),
            strangers: self.strangers(),
            closing: self.closing.len(),
            tags,
        }
    }

    fn forget_queues(&mut self) {
        let known = |id: &Id| self.members.contains_key(id) || self.strangers.contains_key(id);
        self.queues.retain(|_, (id, _)| known(id));
    }
}
