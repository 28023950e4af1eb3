//! A network of datagrams, which loses, duplicates, delays, reorders and damages them.

use crate::clock::Clock;
use crate::lock;
use crate::trace::Trace;
use ironwarp_rnic::datagram::{Arrived, DatagramLink, SendTo, Sent};
use ironwarp_rnic::fault::Rng;
use ironwarp_rnic::gid::Gid;
use ironwarp_wire::private::Datagram;
use std::collections::{BTreeMap, VecDeque};
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The port of the first queue pair.
const FIRST_PORT: u16 = 5000;

/// How often the network does what, in percent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) loss: u64,
    pub(super) duplicates: u64,
    pub(super) damage: u64,
    /// The sender finds no room.
    pub(super) full: u64,
    /// A datagram arrives much later than others.
    pub(super) late: u64,
}

/// What happens next.
#[derive(Clone, Debug)]
pub(super) enum Event {
    /// A datagram arrives at a node.
    Arrival { node: usize },
    /// The timer of a node expires.
    Timer { node: usize },
    /// A node has room to send.
    Room { node: usize },
    /// A node is to be driven.
    Schedule { node: usize },
}

/// A network, shared by its nodes.
#[derive(Debug)]
pub(super) struct Network {
    clock: Clock,
    trace: Trace,
    plan: Plan,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    rng: Rng,
    /// Number of events so far.
    count: u64,
    /// Events by time, and then by the order in which they were caused, with the datagram that arrives.
    events: BTreeMap<(Duration, u64), (Event, Option<Packet>)>,
    /// Datagrams that have arrived at each node.
    inboxes: Vec<VecDeque<Packet>>,
}

#[derive(Clone, Debug)]
struct Packet {
    from: usize,
    bytes: Vec<u8>,
}

/// The link of one node.
#[derive(Debug)]
pub(super) struct NodeLink {
    pub(super) network: Arc<Network>,
    pub(super) node: usize,
}

/// Returns the address of a node.
pub(super) fn gid_of(node: usize) -> Gid {
    let last = u8::try_from(node + 1).expect("few nodes");
    Gid::from(std::net::IpAddr::V4(Ipv4Addr::new(10, 0, 0, last)))
}

/// Returns the UDP port of a node.
pub(super) fn port_of(node: usize) -> u16 {
    FIRST_PORT + u16::try_from(node).expect("few nodes")
}

impl Network {
    /// Creates a network of this many nodes.
    pub(super) fn new(clock: &Clock, trace: &Trace, plan: Plan, rng: Rng, nodes: usize) -> Arc<Self> {
        let inboxes = vec![VecDeque::new(); nodes];
        let state = Mutex::new(State { rng, count: 0, events: BTreeMap::new(), inboxes });
        Arc::new(Self { clock: clock.clone(), trace: trace.clone(), plan, state })
    }

    /// Advances the time to the next event, and returns it. `None` if nothing is on its way.
    pub(super) fn next(&self) -> Option<Event> {
        let mut state = lock(&self.state);
        let ((time, _), (event, packet)) = state.events.pop_first()?;
        self.clock.advance_to(time);
        if let (Event::Arrival { node }, Some(packet)) = (&event, packet) {
            state.inboxes[*node].push_back(packet);
        }
        Some(event)
    }

    /// Discards what has arrived at a node, whose process ends.
    pub(super) fn discard(&self, node: usize) {
        lock(&self.state).inboxes[node].clear();
    }

    /// Causes an event after some time.
    fn cause(&self, state: &mut State, after: Duration, event: Event, packet: Option<Packet>) {
        state.count += 1;
        state.events.insert((self.clock.now() + after, state.count), (event, packet));
    }
}

impl State {
    /// Returns true in this many percent of all cases.
    fn hits(&mut self, percent: u64) -> bool {
        self.rng.below(100) < percent
    }

    /// Returns how long a datagram is on its way.
    fn delay(&mut self, plan: Plan) -> Duration {
        let most = if self.hits(plan.late) { 4_000_000 } else { 300 };
        Duration::from_micros(10 + self.rng.below(most))
    }
}

impl DatagramLink for NodeLink {
    fn has_path(&self, _: Gid, _: Gid) -> bool {
        true
    }

    fn send(&self, from: Gid, to: SendTo, bytes: &[u8]) -> Sent {
        let node = usize::from(to.port - FIRST_PORT);
        assert_eq!((from, to.gid), (gid_of(self.node), gid_of(node)));
        let (header, _) = Datagram::parse(bytes).expect("a valid datagram");
        let Network { plan, trace, .. } = &*self.network;
        let mut state = lock(&self.network.state);
        if state.hits(plan.full) {
            self.network.cause(&mut state, Duration::from_micros(20), Event::Room { node: self.node }, None);
            return Sent::Full;
        }
        let lost = state.hits(plan.loss);
        trace.note(self.node, format_args!("{} {header}", if lost { "loses" } else { "sends" }));
        let copies = u64::from(!lost) + u64::from(state.hits(plan.duplicates));
        for _ in 0..copies {
            let mut bytes = bytes.to_vec();
            if state.hits(plan.damage) {
                let bit = usize::try_from(state.rng.below(bytes.len() as u64 * 8)).expect("a short datagram");
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
            let after = state.delay(*plan);
            let packet = Packet { from: self.node, bytes };
            self.network.cause(&mut state, after, Event::Arrival { node }, Some(packet));
        }
        Sent::Taken
    }

    fn recv(&self, into: &mut [u8]) -> Option<Arrived> {
        let Packet { from, bytes } = lock(&self.network.state).inboxes[self.node].pop_front()?;
        into[..bytes.len()].copy_from_slice(&bytes);
        Some(Arrived { from: gid_of(from), port: port_of(from), to: gid_of(self.node), len: bytes.len() })
    }

    fn schedule(&self) {
        let mut state = lock(&self.network.state);
        self.network.cause(&mut state, Duration::ZERO, Event::Schedule { node: self.node }, None);
    }

    fn now(&self) -> Duration {
        self.network.clock.now()
    }

    fn schedule_after(&self, after: Duration) {
        let mut state = lock(&self.network.state);
        self.network.cause(&mut state, after, Event::Timer { node: self.node }, None);
    }
}
