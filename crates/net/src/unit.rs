//! The program of a unit: accepts hosts, and forwards frames between them and to the LAN.
//!
//! Threads: one processes the completions of all hosts, one accepts connections, one answers at the status socket, and one
//! reads frames of the LAN.

use crate::arrived::Arrived;
use crate::channel::{Channel, Failure, Hello, Io, Kind};
use crate::endpoint::{Endpoint, Event, lock, settings};
use crate::keys::nonce;
use crate::members::{Id, Member, Members, Stranger};
use crate::port::Port;
use crate::ring::{Ring, Space};
use crate::status;
use crate::switch::{Place, Target};
use ironwarp::WaitError;
use ironwarp::completion::{Opcode, Status as CompletionStatus};
use ironwarp::connection::{AcceptOptions, Incoming, Listener};
use ironwarp_io_unit::auth::Registry;
use ironwarp_io_unit::frame::{ALL_OFFLOADS, CHECKSUM, Checked, MAX_FRAME, check};
use ironwarp_io_unit::message::{Attach, Nonce, Request, Status};
use ironwarp_io_unit::session::{Channel as SessionChannel, Reason, Session, join_request};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::os::unix::net::UnixListener;
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::Duration;

/// Maximum number of connections that have not proved to be a host.
const MAX_STRANGERS: usize = 64;
/// Time limit for a data channel to join its session, and for connections to close.
const LIMIT: Duration = Duration::from_secs(5);
/// Interval of the sessions' timers.
const TICK: Duration = Duration::from_secs(1);
/// Interval of the requests that show whether a host is still there.
const KEEPALIVE: Duration = Duration::from_secs(5);

/// A unit and its hosts.
pub(crate) struct Unit {
    io: Io,
    listener: Listener,
    mtu: u32,
    /// The LAN beyond the hosts, and its offloads.
    lan: Option<(Port, u32)>,
    members: Mutex<Members>,
}

/// The receivers of a frame, and the offload that they need.
struct Route {
    hosts: Vec<Arc<Member>>,
    lan: bool,
    offload: u32,
}

impl Unit {
    pub(crate) fn open(
        at: SocketAddr,
        registry: Registry,
        mtu: u32,
        lan: Option<Port>,
    ) -> Result<Self, Failure> {
        let io = Io::open()?;
        let listener = io.adapter.listen(at)?;
        let lan = match lan {
            Some(port) => {
                let offloads = port.enable_offloads()?;
                port.set_carrier(true)?;
                Some((port, offloads))
            }
            None => None,
        };
        Ok(Self { io, listener, mtu, lan, members: Mutex::new(Members::new(registry)) })
    }

    pub(crate) fn local_addr(&self) -> Result<SocketAddr, Failure> {
        Ok(self.listener.local_addr()?)
    }

    /// Serves hosts. Returns only if a system call fails.
    pub(crate) fn run(self: &Arc<Self>, status: Option<UnixListener>) -> Result<(), Failure> {
        let unit = Arc::clone(self);
        thread::spawn(move || unit.accept_hosts());
        if let Some(status) = status {
            let unit = Arc::clone(self);
            thread::spawn(move || unit.answer(&status));
        }
        if self.lan.is_some() {
            let unit = Arc::clone(self);
            thread::spawn(move || unit.read_lan());
        }
        self.serve_hosts()
    }

    /// Processes the completions of all hosts.
    fn serve_hosts(&self) -> Result<(), Failure> {
        let mut ready = BTreeSet::new();
        let mut next_tick = TICK;
        loop {
            if ready.is_empty() {
                match self.io.handler.wait(next_tick.saturating_sub(self.io.now())) {
                    Ok(event) => ready.extend(lock(&self.members).of_queue(event.cq)),
                    Err(WaitError::TimedOut) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            while let Some(event) = self.io.handler.try_next() {
                ready.extend(lock(&self.members).of_queue(event.cq));
            }
            for (id, channel) in std::mem::take(&mut ready) {
                if self.serve(id, channel) {
                    ready.insert((id, channel));
                }
            }
            let now = self.io.now();
            if now >= next_tick {
                next_tick = now + TICK;
                ready.extend(self.tick(now).into_iter().map(|id| (id, SessionChannel::Control)));
            }
        }
    }

    /// Processes completions of a channel, and events of its member, or lets a stranger join. Returns whether there may be more.
    fn serve(&self, id: Id, channel: SessionChannel) -> bool {
        let member = lock(&self.members).member(id);
        let Some(member) = member else { return self.join(id) };
        let (mut events, mut done) = (Vec::new(), Vec::new());
        let busy = member.endpoint.pump(channel, &mut events);
        for event in events.drain(..) {
            self.handle(&member, event, &mut done);
        }
        member.endpoint.release(&mut done);
        busy
    }

    fn handle(&self, member: &Arc<Member>, event: Event, done: &mut Vec<Arrived>) {
        match event {
            Event::Frame(mut frame) => {
                self.forward(member, &mut frame);
                done.push(frame);
            }
            Event::Authenticate { attach, nonce } => self.authenticate(member, &attach, nonce),
            Event::Up => {
                if let Some((name, number)) = member.host() {
                    println!("host {name} attached from {} as session {number}", member.peer);
                }
            }
            Event::Ended(reason) => self.remove(member, &reason),
            Event::ConnectData => {}
        }
    }

    fn authenticate(&self, member: &Arc<Member>, attach: &Attach, nonce: Nonce) {
        let mut members = lock(&self.members);
        let admission = if attach.offloads & CHECKSUM == 0 {
            Err(Status::OutOfRange)
        } else {
            members.registry.attach(attach, nonce)
        };
        match admission {
            Ok(admission) => {
                let replaced = admission.replaced.and_then(|number| members.of_session(number));
                member.set_host(attach.name.clone(), admission.session);
                drop(members);
                member.endpoint.call(|session| session.admit(admission));
                if let Some(old) = replaced {
                    old.endpoint.call(|session| session.end(Reason::Replaced));
                    self.serve(old.id, SessionChannel::Control);
                }
            }
            Err(status) => member.endpoint.call(|session| session.refuse(status)),
        }
    }

    /// Forwards a frame of a host, if it may send it.
    fn forward(&self, member: &Member, frame: &mut Arrived) {
        let Some(route) = self.route(member, frame) else {
            member.count_refused();
            return;
        };
        for host in &route.hosts {
            deliver(host, frame, route.offload);
        }
        if let Some((port, offloads)) = self.lan.as_ref().filter(|_| route.lan)
            && offloads & route.offload != 0
        {
            port.write(frame);
        }
    }

    /// Finds the receivers of a frame. Returns `None` if the frame breaks a rule.
    fn route(&self, member: &Member, frame: &mut Arrived) -> Option<Route> {
        let head = frame.fix_head()?;
        let (mtu, macs) = member.rules();
        let checked = check(&head, frame.len(), mtu).ok()?;
        let allowed = macs.contains(&checked.from);
        allowed.then(|| self.find(Place::Host(member.id), &checked))
    }

    fn find(&self, at: Place, checked: &Checked) -> Route {
        let offload = checked.offload;
        let mut members = lock(&self.members);
        match members.switch.forward(at, checked.from, checked.to) {
            Target::Nobody => Route { hosts: Vec::new(), lan: false, offload },
            Target::One(Place::Lan) => Route { hosts: Vec::new(), lan: true, offload },
            Target::One(Place::Host(id)) => {
                Route { hosts: members.member(id).into_iter().collect(), lan: false, offload }
            }
            Target::Others => Route { hosts: members.others(at), lan: at != Place::Lan, offload },
        }
    }

    fn read_lan(&self) {
        let Some((port, _)) = &self.lan else { return };
        if let Err(error) = self.try_read_lan(port) {
            eprintln!("ironwarp-net: the LAN is gone: {error}");
            std::process::exit(1);
        }
    }

    /// Reads frames of the LAN, into memory for the host that got the last one: so only a frame for another host is copied.
    fn try_read_lan(&self, port: &Port) -> Result<(), Failure> {
        let mut spare = Ring::new(&self.io.adapter.protection_domain())?;
        // Does not keep a host that is gone.
        let mut last: Weak<Member> = Weak::new();
        loop {
            let mut frames = 0;
            if let Some(host) = last.upgrade() {
                if lock(&self.members).is_only(host.id) {
                    // No other host is held up.
                    host.endpoint.wait_for_room(TICK);
                }
                let mut batch = host.endpoint.batch();
                while let Some(space) = batch.space() {
                    let Some(len) = port.read(&space)? else { break };
                    frames += 1;
                    let (own, only) = self.deliver_from_lan(&space, len, Some(&host));
                    if own {
                        // There is room. If the session has ended meanwhile, the frame is lost, as on a LAN.
                        let _ = batch.add(&space, len);
                    }
                    last = only.map_or(last, |only| Arc::downgrade(&only));
                }
            }
            if frames == 0 {
                let space = spare.space(MAX_FRAME).ok_or("no memory for a frame")?;
                match port.read(&space)? {
                    Some(len) => {
                        let (_, only) = self.deliver_from_lan(&space, len, None);
                        last = only.map_or(last, |only| Arc::downgrade(&only));
                    }
                    None => drop(port.wait(None)?),
                }
            }
        }
    }

    /// Delivers a frame of the LAN to all its receivers but `last`. Returns whether `last` is one, and the only receiver.
    fn deliver_from_lan(
        &self,
        space: &Space,
        len: usize,
        last: Option<&Member>,
    ) -> (bool, Option<Arc<Member>>) {
        let mut frame = Arrived::in_memory(&space.memory, space.at, len, None);
        let checked = frame.fix_head().and_then(|head| check(&head, len, self.mtu).ok());
        let Some(checked) = checked else { return (false, None) };
        let Route { hosts, offload, .. } = self.find(Place::Lan, &checked);
        let mut own = false;
        for host in &hosts {
            match last {
                Some(last) if last.id == host.id && host.takes(offload) => own = true,
                _ => deliver(host, &frame, offload),
            }
        }
        let only = if hosts.len() == 1 { hosts.into_iter().next() } else { None };
        (own, only)
    }

    fn accept_hosts(&self) {
        loop {
            let Ok(incoming) = self.listener.accept(None) else { return };
            let peer = incoming.peer_addr();
            match self.accept(incoming) {
                // From now on, the handler tells of its completions.
                Ok(id) => while self.serve(id, SessionChannel::Control) {},
                Err(error) => eprintln!("failed to accept a connection from {peer}: {error}"),
            }
        }
    }

    fn accept(&self, incoming: Incoming) -> Result<Id, Failure> {
        let mut members = lock(&self.members);
        if members.strangers() >= MAX_STRANGERS {
            incoming.reject(&[])?;
            return Err(format!("{MAX_STRANGERS} connections have not attached yet").into());
        }
        match Hello::decode(incoming.private_data()) {
            Some(Hello::Control) => self.accept_control(&mut members, incoming),
            Some(Hello::Data { session }) => self.accept_data(&mut members, incoming, session),
            None => {
                incoming.reject(&[])?;
                Err("its private data names no channel".into())
            }
        }
    }

    fn accept_control(&self, members: &mut Members, incoming: Incoming) -> Result<Id, Failure> {
        let domain = self.io.adapter.protection_domain();
        let control = Channel::new(&self.io, &domain, Kind::Control)?;
        let session = Session::unit(settings(ALL_OFFLOADS, self.mtu), nonce()?, self.io.now())?;
        let peer = incoming.peer_addr();
        incoming.start_accept(&control.qp, &accept_options())?;
        let queue = control.cq.id();
        let endpoint = Endpoint::new(session, control, domain);
        Ok(members.add(queue, |id| Member::new(id, endpoint, peer)))
    }

    fn accept_data(&self, members: &mut Members, incoming: Incoming, number: u64) -> Result<Id, Failure> {
        let Some(member) = members.of_session(number) else {
            incoming.reject(&[])?;
            return Err(format!("session {number} does not exist").into());
        };
        let channel = member.endpoint.data_channel(&self.io)?;
        incoming.start_accept(&channel.qp, &accept_options())?;
        let deadline = self.io.now() + LIMIT;
        Ok(members.add_stranger(Stranger { channel, member: member.id, deadline }))
    }

    /// Lets a data channel join its session, if its first message proves that it may. Returns whether there may be more to do.
    fn join(&self, id: Id) -> bool {
        let mut members = lock(&self.members);
        let Some(stranger) = members.stranger(id) else { return false };
        let completion = match stranger.channel.cq.poll_one() {
            Ok(Some(completion)) => completion,
            Ok(None) => return stranger.channel.arm(),
            Err(_) => {
                members.remove_stranger(id);
                return false;
            }
        };
        let Some(Stranger { channel, member, .. }) = members.remove_stranger(id) else { return false };
        let member = members.member(member);
        drop(members);
        let joined = completion.status == CompletionStatus::Success && completion.opcode == Opcode::Receive;
        let Some(first) = channel.received(&completion).ok().filter(|_| joined) else { return false };
        let Ok((context, join)) = join_request(&first) else { return false };
        let (queue, posted) = (channel.cq.id(), channel.post_again(completion.wr_id));
        let Some(member) = member.filter(|_| posted.is_ok()) else { return false };
        if let Err(status) = member.join(context, &join, channel) {
            eprintln!("a data channel from {} was refused: {status}", member.peer);
            return false;
        }
        lock(&self.members).add_queue(queue, member.id);
        while self.serve(member.id, SessionChannel::Data) {}
        false
    }

    /// Forgets a host whose session has ended. Its memory is deregistered after its connections are closed.
    fn remove(&self, member: &Arc<Member>, reason: &Reason) {
        match member.host() {
            Some((name, number)) => println!("host {name} left session {number}: {reason}"),
            None => println!("connection from {} ended: {reason}", member.peer),
        }
        lock(&self.members).remove(member, self.io.now() + LIMIT);
    }

    /// Returns the members, which may have events to process.
    fn tick(&self, now: Duration) -> Vec<Id> {
        let all = lock(&self.members).tick(now);
        for member in &all {
            member.endpoint.call(|session| session.tick(now));
            if member.host().is_some() && member.keepalive_due(now, KEEPALIVE) {
                // Refused until the host is attached, and after the end.
                let _ = member.endpoint.call(|session| session.request(&Request::Statistics));
            }
        }
        all.iter().map(|member| member.id).collect()
    }

    /// Answers each connection to the status socket with a line about the unit, and one for each host.
    fn answer(&self, status: &UnixListener) {
        loop {
            let Ok((stream, _)) = status.accept() else {
                thread::sleep(TICK); // no free descriptor
                continue;
            };
            let tags = self.io.adapter.tag_usage().entries;
            let report = lock(&self.members).report(tags);
            status::send(&stream, &report);
        }
    }
}

/// Neither end may read from the other: both push (requirement P9).
fn accept_options() -> AcceptOptions {
    AcceptOptions::new().ird(0).ord(0)
}

/// Sends a frame to a host. The memory of its session, its pools and the send queue are the bounded queue: a frame that does not
/// fit is dropped, so that a slow host never holds up another.
fn deliver(host: &Member, frame: &Arrived, offload: u32) {
    if !host.takes(offload) || host.endpoint.forward(frame).is_err() {
        host.count_missed();
    }
}
