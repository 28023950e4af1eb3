//! A session of a host and a unit whose peer is hostile (docs/io-unit.md). The host attaches with a real key, and from then on
//! the fuzzer sends messages and immediate data to both ends, completes requests, releases frames and lets time pass. No input
//! panics, every message costs a bounded number of actions, pools and elements stay within their limits, and an end that
//! has ended stays ended and frees everything.
#![no_main]

use ironwarp_io_unit::auth::{Key, Registry};
use ironwarp_io_unit::message::{
    HostName, Indication, Mac, Message, Mode, Nonce, PoolEntry, Request, UpdateEntry,
};
use ironwarp_io_unit::pool::{MAX_POOLS, Shape};
use ironwarp_io_unit::session::{Action, Channel, Config, Frame, Identity, Reason, Session, join_request};
use libfuzzer_sys::fuzz_target;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

const START: Duration = Duration::from_secs(1);
const MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);
const COUNT: u32 = 4;
const MAX_OWN: usize = 3;
/// Maximum number of actions that one event causes: the elements of all pools to post, and some messages.
const MAX_ACTIONS: usize = MAX_OWN * COUNT as usize + 8;

/// One end, with a driver that does what it is told.
struct End {
    session: Session,
    outbox: VecDeque<(Channel, Vec<u8>)>,
    /// Pools that are registered, with their number of elements.
    pools: BTreeMap<u32, u32>,
    held: Vec<(u32, u32)>,
    ended: bool,
    /// Number of pools that were ever registered.
    registered: usize,
}

impl End {
    fn new(session: Session) -> Self {
        let (outbox, pools, held) = (VecDeque::new(), BTreeMap::new(), Vec::new());
        Self { session, outbox, pools, held, ended: false, registered: 0 }
    }

    /// Executes the actions of one event.
    fn act(&mut self, registry: &mut Registry) {
        let mut count = 0;
        while let Some(action) = self.session.next_action() {
            count += 1;
            assert!(count <= MAX_ACTIONS, "one event causes more than {MAX_ACTIONS} actions");
            let cleanup = matches!(action, Action::DeregisterPool { .. });
            assert!(!self.ended || cleanup, "after the end: {action:?}");
            match action {
                Action::Post { channel, message } => self.outbox.push_back((channel, message)),
                Action::RegisterPool { pool, count, .. } => {
                    self.registered += 1;
                    assert!(self.pools.insert(pool, count).is_none(), "pool {pool} is registered twice");
                    assert!(self.pools.len() <= MAX_OWN, "{} pools", self.pools.len());
                    self.session.pool_registered(pool, pool + 1, 0);
                }
                Action::DeregisterPool { pool } => {
                    assert!(self.pools.remove(&pool).is_some(), "pool {pool} is registered");
                    assert!(self.held.iter().all(|held| held.0 != pool), "pool {pool} holds frames");
                }
                Action::Deliver(Frame::Element { pool, element, offset, len }) => {
                    assert!(
                        element < self.pools[&pool] && offset.checked_add(len).is_some_and(|end| end <= 2048)
                    );
                    assert!(!self.held.contains(&(pool, element)), "an element holds two frames");
                    self.held.push((pool, element));
                }
                Action::Authenticate { attach, nonce } => match registry.attach(&attach, nonce) {
                    Ok(admission) => self.session.admit(admission),
                    Err(status) => self.session.refuse(status),
                },
                Action::ConnectData => self.session.data_connected(),
                Action::Disconnect(reason) => {
                    assert!(!reason.to_string().is_empty());
                    self.ended = true;
                }
                Action::SendFrame { .. }
                | Action::Write { .. }
                | Action::PostReceive { .. }
                | Action::Deliver(Frame::Inline(_))
                | Action::Up
                | Action::Resume
                | Action::Answer { .. }
                | Action::SetMac(_) => {}
            }
        }
        assert_eq!(self.ended, self.session.reason().is_some());
        let statistics = self.session.statistics();
        assert!(statistics.pools <= (MAX_OWN + MAX_POOLS) as u64, "{statistics:?}");
        assert_eq!(self.session.held(), self.held.len() as u64);
    }
}

/// Attaches a host to a unit, and lets both exchange pools.
fn attach(mode: Mode, registry: &mut Registry) -> [End; 2] {
    let shape = Shape { count: COUNT, element_size: 2048 };
    let config = Config { pools: vec![shape], max_pools: MAX_OWN, send_queue: 16, ..Config::default() };
    let key = Key::new(&[7; 32]).expect("a key of 32 bytes");
    let name = HostName::new("left").expect("a short name");
    registry.add(name.clone(), key.clone(), [MAC]).expect("the first host");
    let identity = Identity { name, macs: vec![MAC], key, mode, nonce: Nonce([1; 16]) };
    let mut host = End::new(Session::host(config.clone(), identity, START).expect("valid settings"));
    let mut unit = End::new(Session::unit(config, Nonce([2; 16]), START).expect("valid settings"));
    loop {
        host.act(registry);
        unit.act(registry);
        let (from, to) = if host.outbox.is_empty() { (&mut unit, &mut host) } else { (&mut host, &mut unit) };
        let Some((channel, bytes)) = from.outbox.pop_front() else { break };
        from.session.completed(channel);
        match join_request(&bytes) {
            Ok((context, join)) => to.session.join(context, &join).expect("the right proof"),
            Err(_) => to.session.receive(channel, &bytes),
        }
    }
    assert!(host.session.max_frame().is_some() && unit.session.max_frame().is_some(), "both are open");
    [host, unit]
}

/// A message that is nearly right, out of the bytes of the input.
fn message(kind: u8, a: u8, b: u8, c: u8) -> Vec<u8> {
    let (pool, element, wide) = (u32::from(a), u32::from(b), u32::from(c));
    let entry = PoolEntry {
        index: pool,
        count: element,
        element_size: wide << 4,
        tag: 1,
        offset: u64::from(c) << 57,
        context: 0,
    };
    // References with the upper bit of the byte set belong to the receiver.
    let reference = |byte: u8| u32::from(byte & 0x7f) | u32::from(byte & 0x80) << 24;
    let frame = vec![0; usize::from(a) + usize::from(b)];
    let message = match kind % 10 {
        0 => Message::Pools(vec![entry]),
        1 => Message::PoolGet { element_size: pool << 4, count: element },
        2 => Message::Update(vec![UpdateEntry::new(pool, element)]),
        3 => Message::FlushRequest(vec![reference(a)]),
        4 => Message::FlushRequest(vec![reference(a), reference(b)]),
        5 => Message::FlushReply,
        6 => Message::SendData(&frame),
        7 => Message::Indicate(Indication { pool, element, len: wide << 4 }),
        8 => Message::Request(Request::Statistics),
        _ => Message::Request(if a == 0 { Request::Detach } else { Request::Mtu(pool << 3) }),
    };
    message.encode(c.into())
}

/// Passes one event of the input to an end. Returns the rest of the input.
fn event<'i>(end: &mut End, now: &mut Duration, which: u8, input: &'i [u8]) -> &'i [u8] {
    let channel = if which & 0x40 == 0 { Channel::Control } else { Channel::Data };
    let session = &mut end.session;
    let take = |len: usize| input.split_at(len.min(input.len()));
    match which & 0x1f {
        0..=9 => {
            let ([a, b, c], rest) =
                input.split_first_chunk().map_or(([0; 3], [].as_slice()), |(n, rest)| (*n, rest));
            session.receive(channel, &message(which & 0x1f, a, b, c));
            return rest;
        }
        10 => {
            let (bytes, rest) = take(64);
            session.receive(channel, bytes);
            return rest;
        }
        11 => {
            let (value, rest) =
                input.split_first_chunk().map_or(([0; 4], [].as_slice()), |(n, rest)| (*n, rest));
            session.immediate(u32::from_be_bytes(value));
            return rest;
        }
        12 => {
            // Pool, element and length that are nearly right.
            let ([a, b], rest) =
                input.split_first_chunk().map_or(([0; 2], [].as_slice()), |(n, rest)| (*n, rest));
            session.immediate(u32::from(a & 3) << 24 | u32::from(a >> 4) << 16 | u32::from(b) << 4);
            return rest;
        }
        13..=15 => session.completed(channel),
        16..=18 => {
            if let Some((pool, element)) = end.held.pop() {
                session.release(pool, element).expect("the frame is held");
            }
        }
        19 => drop(session.release(which.into(), 0)),
        20 => {
            *now += Duration::from_millis(300);
            session.tick(*now);
        }
        21..=24 => drop(session.send(1, u32::from(which) * 70)),
        25 => drop(session.ready(2048)),
        26 => drop(session.own_pools().first().map(|pool| session.flush(*pool))),
        27 => drop(session.peer_pools().first().map(|pool| session.give_back(*pool))),
        28 => drop(session.request(&Request::Statistics)),
        29 if which & 0x40 != 0 => session.detach(),
        30 if which & 0x40 != 0 => session.disconnected(),
        31 if which & 0x40 != 0 => session.end(Reason::Shutdown),
        _ => {}
    }
    input
}

// The first byte is the mode. Then events follow: a byte that selects the end and the event, and what the event needs.
fuzz_target!(|input: &[u8]| {
    let [mode, input @ ..] = input else { return };
    let mode = if mode % 4 == 0 { Mode::Send } else { Mode::Rdma };
    let mut registry = Registry::new();
    let mut ends = attach(mode, &mut registry);
    let (mut now, mut rest) = (START, input);
    while let [which, input @ ..] = rest {
        let end = &mut ends[usize::from(which >> 7)];
        let reason = end.session.reason().cloned();
        rest = event(end, &mut now, *which, input);
        if let Some(reason) = reason {
            assert_eq!(end.session.reason(), Some(&reason), "the end is final");
        }
        end.act(&mut registry);
        end.outbox.clear();
    }
    let seconds = usize::try_from(now.as_secs()).expect("few");
    for end in &mut ends {
        assert!(end.registered <= 1 + MAX_OWN + seconds, "{} pools in {now:?}", end.registered);
        end.session.end(Reason::Shutdown);
        while let Some((pool, element)) = end.held.pop() {
            end.session.release(pool, element).expect("the frame is held");
        }
        end.act(&mut registry);
        assert!(end.pools.is_empty(), "pools are left: {:?}", end.pools);
        assert_eq!(end.session.statistics().pools, 0);
    }
});
