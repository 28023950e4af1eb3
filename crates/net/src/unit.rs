//! The program of a unit: accepts hosts, and forwards frames between them. Needs no privilege.

use crate::channel::{Channel, Failure, Hello, Io, Kind};
use crate::endpoint::{Clock, Endpoint, Event, nonce, settings};
use crate::frame::{ALL_OFFLOADS, CHECKSUM, Checked, check};
use crate::switch::{Switch, Target};
use ironwarp::completion::{Opcode, Status as CompletionStatus};
use ironwarp::connection::{AcceptOptions, Incoming, Listener};
use ironwarp_io_unit::auth::Registry;
use ironwarp_io_unit::message::{Attach, HostName, Mode, Nonce, Request, Status};
use ironwarp_io_unit::session::{Frame, Reason, Session, join_request};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::net::UnixListener;
use std::time::Duration;

/// Maximum number of connections that have not proved to be a host.
const MAX_STRANGERS: usize = 64;
/// Time limit for a data channel to join its session, and for connections to close.
const LIMIT: Duration = Duration::from_secs(5);
/// Interval of the sessions' timers.
const TICK: Duration = Duration::from_secs(1);
/// Interval of the requests that show whether a host is still there.
const KEEPALIVE: Duration = Duration::from_secs(5);
/// Completions of one host that are processed before the next host has its turn.
const BURST: usize = 64;

/// Names an endpoint or a data channel that has not joined.
type Id = u64;

/// A host that is attached, or a connection that may become one.
struct Member {
    endpoint: Endpoint,
    peer: SocketAddr,
    /// Its name and the number of its session, once it is attached.
    host: Option<(HostName, u64)>,
    /// Frames of this host that were dropped because they break a rule, and frames that it could not take.
    refused: u64,
    missed: u64,
    keepalive: Duration,
}

/// A data channel that has not proved to belong to its session.
struct Stranger {
    channel: Channel,
    member: Id,
    deadline: Duration,
}

/// A unit and its hosts.
pub(crate) struct Unit {
    io: Io,
    listener: Listener,
    status: Option<UnixListener>,
    registry: Registry,
    mtu: u32,
    switch: Switch,
    members: BTreeMap<Id, Member>,
    strangers: BTreeMap<Id, Stranger>,
    /// Endpoints whose sessions have ended, with the deadlines for closing their connections.
    closing: Vec<(Endpoint, Duration)>,
    /// The member or stranger of each completion queue, by its number.
    queues: HashMap<u32, Id>,
    /// Members and strangers that may have completions or events to process.
    ready: BTreeSet<Id>,
    last_id: Id,
    clock: Clock,
    next_tick: Duration,
    frame: Vec<u8>,
}

impl Unit {
    pub(crate) fn open(
        at: SocketAddr,
        registry: Registry,
        mtu: u32,
        status: Option<UnixListener>,
    ) -> Result<Self, Failure> {
        let io = Io::open()?;
        let listener = io.adapter.listen(at)?;
        Ok(Self {
            io,
            listener,
            status,
            registry,
            mtu,
            switch: Switch::default(),
            members: BTreeMap::new(),
            strangers: BTreeMap::new(),
            closing: Vec::new(),
            queues: HashMap::new(),
            ready: BTreeSet::new(),
            last_id: 0,
            clock: Clock::start(),
            next_tick: TICK,
            frame: Vec::new(),
        })
    }

    pub(crate) fn local_addr(&self) -> Result<SocketAddr, Failure> {
        Ok(self.listener.local_addr()?)
    }

    /// Serves hosts. Returns only if a system call fails.
    pub(crate) fn run(&mut self) -> Result<(), Failure> {
        loop {
            self.wait()?;
            while let Some(event) = self.io.handler.try_next() {
                self.ready.extend(self.queues.get(&event.cq));
            }
            while let Ok(incoming) = self.listener.accept(Duration::ZERO) {
                let peer = incoming.peer_addr();
                if let Err(error) = self.accept(incoming) {
                    eprintln!("failed to accept a connection from {peer}: {error}");
                }
            }
            for id in std::mem::take(&mut self.ready) {
                self.serve(id);
            }
            self.tick();
            self.report();
        }
    }

    fn wait(&self) -> Result<(), Failure> {
        let left = if self.ready.is_empty() {
            self.next_tick.saturating_sub(self.clock.now())
        } else {
            Duration::ZERO
        };
        let timeout = Timespec::try_from(left)?;
        let mut descriptors =
            vec![PollFd::new(&self.io.handler, PollFlags::IN), PollFd::new(&self.listener, PollFlags::IN)];
        descriptors.extend(self.status.as_ref().map(|status| PollFd::new(status, PollFlags::IN)));
        match poll(&mut descriptors, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn accept(&mut self, incoming: Incoming) -> Result<(), Failure> {
        let unknown = self.members.values().filter(|member| member.host.is_none()).count();
        if unknown + self.strangers.len() >= MAX_STRANGERS {
            incoming.reject(&[])?;
            return Err(format!("{MAX_STRANGERS} connections have not attached yet").into());
        }
        let id = self.last_id + 1;
        match Hello::decode(incoming.private_data()) {
            Some(Hello::Control) => self.accept_control(id, incoming)?,
            Some(Hello::Data { session }) => self.accept_data(id, incoming, session)?,
            None => {
                incoming.reject(&[])?;
                return Err("its private data names no channel".into());
            }
        }
        self.last_id = id;
        self.ready.insert(id);
        Ok(())
    }

    fn accept_control(&mut self, id: Id, incoming: Incoming) -> Result<(), Failure> {
        let domain = self.io.adapter.protection_domain();
        let control = Channel::new(&self.io, &domain, Kind::Control)?;
        let session = Session::unit(settings(ALL_OFFLOADS, self.mtu), nonce()?, self.clock.now())?;
        let peer = incoming.peer_addr();
        incoming.start_accept(&control.qp, &AcceptOptions::new())?;
        self.queues.insert(control.cq.id(), id);
        let endpoint = Endpoint::new(session, control, domain);
        let keepalive = self.clock.now() + KEEPALIVE;
        self.members.insert(id, Member { endpoint, peer, host: None, refused: 0, missed: 0, keepalive });
        Ok(())
    }

    fn accept_data(&mut self, id: Id, incoming: Incoming, number: u64) -> Result<(), Failure> {
        let Some((member, found)) = self.members.iter().find(|(_, member)| member.number() == Some(number))
        else {
            incoming.reject(&[])?;
            return Err(format!("session {number} does not exist").into());
        };
        let channel = found.endpoint.data_channel(&self.io)?;
        incoming.start_accept(&channel.qp, &AcceptOptions::new())?;
        self.queues.insert(channel.cq.id(), id);
        let deadline = self.clock.now() + LIMIT;
        self.strangers.insert(id, Stranger { channel, member: *member, deadline });
        Ok(())
    }

    /// Processes completions and events of a member or stranger.
    fn serve(&mut self, id: Id) {
        if self.strangers.contains_key(&id) {
            self.join(id);
            return;
        }
        for _ in 0..BURST {
            let Some(member) = self.members.get_mut(&id) else { return };
            let busy = member.endpoint.step();
            self.handle_events(id);
            let Some(member) = self.members.get(&id) else { return };
            if !busy {
                if member.endpoint.arm() {
                    self.ready.insert(id);
                }
                return;
            }
        }
        self.ready.insert(id);
    }

    fn handle_events(&mut self, id: Id) {
        while let Some(event) = self.members.get_mut(&id).and_then(|member| member.endpoint.next_event()) {
            match event {
                Event::Frame(frame) => self.forward(id, frame),
                Event::Authenticate { attach, nonce } => self.authenticate(id, &attach, nonce),
                Event::Up => {
                    if let Some(Member { host: Some((name, number)), peer, .. }) = self.members.get(&id) {
                        println!("host {name} attached from {peer} as session {number}");
                    }
                }
                Event::Ended(reason) => self.remove(id, &reason),
                Event::Resume | Event::ConnectData => {}
            }
        }
    }

    fn authenticate(&mut self, id: Id, attach: &Attach, nonce: Nonce) {
        let supported = attach.mode == Mode::Rdma && attach.offloads & CHECKSUM != 0;
        let admission = if supported { self.registry.attach(attach, nonce) } else { Err(Status::OutOfRange) };
        let Some(member) = self.members.get_mut(&id) else { return };
        match admission {
            Ok(admission) => {
                let replaced = admission.replaced;
                member.host = Some((attach.name.clone(), admission.session));
                member.endpoint.call(|session| session.admit(admission));
                let old = |(_, member): &(&Id, &Member)| replaced.is_some() && member.number() == replaced;
                if let Some(old) = self.members.iter().find(old).map(|(id, _)| *id) {
                    self.end(old, Reason::Replaced);
                }
            }
            Err(status) => member.endpoint.call(|session| session.refuse(status)),
        }
    }

    /// Lets a data channel join its session, if its first message proves that it may.
    fn join(&mut self, id: Id) {
        let Some(stranger) = self.strangers.get(&id) else { return };
        let completion = match stranger.channel.cq.poll_one() {
            Ok(Some(completion)) => completion,
            Ok(None) => {
                if stranger.channel.arm() {
                    self.ready.insert(id);
                }
                return;
            }
            Err(_) => return drop(self.strangers.remove(&id)),
        };
        let Some(Stranger { channel, member, .. }) = self.strangers.remove(&id) else { return };
        self.queues.remove(&channel.cq.id());
        let joined = completion.status == CompletionStatus::Success && completion.opcode == Opcode::Receive;
        let Some(first) = channel.received(&completion).ok().filter(|_| joined) else { return };
        let Ok((context, join)) = join_request(&first) else { return };
        let (queue, posted) = (channel.cq.id(), channel.post_receive(completion.wr_id));
        let Some(found) = self.members.get_mut(&member).filter(|_| posted.is_ok()) else { return };
        if let Err(status) = found.join(context, &join, channel) {
            eprintln!("a data channel from {} was refused: {status}", found.peer);
            return;
        }
        self.queues.insert(queue, member);
        self.ready.insert(member);
    }

    /// Forwards a frame of a host.
    fn forward(&mut self, id: Id, frame: Frame) {
        let Some(member) = self.members.get_mut(&id) else { return };
        if member.endpoint.take(frame, &mut self.frame).is_err() {
            return self.end(id, Reason::Shutdown);
        }
        let session = &member.endpoint.session;
        let mtu = session.link().map_or(0, |(_, mtu)| mtu);
        let checked = check(&self.frame, mtu).ok().filter(|checked| session.macs().contains(&checked.from));
        let Some(Checked { to, from, offload }) = checked else {
            member.refused += 1;
            return;
        };
        match self.switch.forward(id, from, to) {
            Target::Nobody => {}
            Target::Host(to) => self.deliver(to, offload),
            Target::Others => {
                let others: Vec<Id> = self.members.keys().copied().filter(|other| *other != id).collect();
                others.into_iter().for_each(|other| self.deliver(other, offload));
            }
        }
    }

    /// Sends the current frame to a host. The pools of the host and the send queue are the bounded queue: a frame that does
    /// not fit is dropped, so that a slow host never holds up another.
    fn deliver(&mut self, to: Id, offload: u32) {
        let Some(member) = self.members.get_mut(&to).filter(|member| member.host.is_some()) else { return };
        let offloads = member.endpoint.session.link().map_or(0, |(offloads, _)| offloads);
        if offloads & offload == 0 || member.endpoint.send(&self.frame).is_err() {
            member.missed += 1;
        }
        self.ready.insert(to);
    }

    fn end(&mut self, id: Id, reason: Reason) {
        if let Some(member) = self.members.get_mut(&id) {
            member.endpoint.call(|session| session.end(reason));
            self.ready.insert(id);
        }
    }

    /// Forgets a host whose session has ended. Its memory is deregistered after its connections are closed.
    fn remove(&mut self, id: Id, reason: &Reason) {
        let Some(member) = self.members.remove(&id) else { return };
        match &member.host {
            Some((name, number)) => {
                println!("host {name} left session {number}: {reason}");
                self.registry.detach(name, *number);
            }
            None => println!("connection from {} ended: {reason}", member.peer),
        }
        self.switch.forget(id);
        self.strangers.retain(|_, stranger| stranger.member != id);
        self.closing.push((member.endpoint, self.clock.now() + LIMIT));
        self.forget_queues();
    }

    fn forget_queues(&mut self) {
        let known = |id: &Id| self.members.contains_key(id) || self.strangers.contains_key(id);
        self.queues.retain(|_, id| known(id));
    }

    fn tick(&mut self) {
        let now = self.clock.now();
        if now < self.next_tick {
            return;
        }
        self.next_tick = now + TICK;
        for (id, member) in &mut self.members {
            member.endpoint.call(|session| session.tick(now));
            if member.host.is_some() && now >= member.keepalive {
                member.keepalive = now + KEEPALIVE;
                // Refused until the host is attached, and after the end.
                let _ = member.endpoint.call(|session| session.request(&Request::Statistics));
            }
            self.ready.insert(*id);
        }
        self.strangers.retain(|_, stranger| now < stranger.deadline);
        self.forget_queues();
        self.closing.retain(|(endpoint, deadline)| now < *deadline && !endpoint.is_closed());
    }

    /// Answers each connection to the status socket with a line for each host.
    fn report(&self) {
        let Some(status) = &self.status else { return };
        while let Ok((mut stream, _)) = status.accept() {
            let lines: String = self.members.values().filter_map(Member::status).collect();
            // A reader that does not read gets what fits into the socket: it must not hold up the hosts.
            let _ = stream.set_nonblocking(true).and_then(|()| stream.write_all(lines.as_bytes()));
        }
    }
}

impl Member {
    fn number(&self) -> Option<u64> {
        self.host.as_ref().map(|(_, number)| *number)
    }

    /// Ties a data channel to the session, whose actions then use it.
    fn join(
        &mut self,
        context: u64,
        join: &ironwarp_io_unit::message::Join,
        channel: Channel,
    ) -> Result<(), Status> {
        self.endpoint.session.join(context, join)?;
        self.endpoint.set_data(channel);
        self.endpoint.call(|_| ());
        Ok(())
    }

    /// Returns a line about the host, if it is one.
    fn status(&self) -> Option<String> {
        let (name, number) = self.host.as_ref()?;
        let counters = self.endpoint.session.statistics();
        Some(format!(
            "{name} session={number} peer={} pools={} frames_in={} bytes_in={} frames_out={} bytes_out={} \
             drops={} refused={} stalls={}\n",
            self.peer,
            counters.pools,
            counters.frames_received,
            counters.bytes_received,
            counters.frames_sent,
            counters.bytes_sent,
            self.missed,
            self.refused,
            counters.stalls,
        ))
    }
}
