//! Hosts that attach with a valid key and then break the rules: each harms its own session only.

use crate::agent::is_agent;
use crate::client::{Channel, Client, ELEMENTS, LIMIT, SENDS};
use crate::load::{Stream, goes_on, is_load, start};
use crate::network::{CLIENTS, Network};
use ironwarp::memory::Tag;
use ironwarp::prelude::*;
use ironwarp_io_unit::message::{
    Function, Immediate, Indication, Join, Mac, Message, PoolEntry, Reply, Request, UpdateEntry,
};
use ironwarp_testkit::child::{Partner, in_network};
use ironwarp_testkit::wait::until;
use std::net::SocketAddr;
use std::time::Duration;

/// Rate of the stream between hosts that behave, in Mbit/s.
const RATE: u64 = 20;
/// Bytes of the stream that arrive during each attack.
const PROGRESS: u64 = 64 << 10;
/// Set in a FlushRequest if its receiver owns the pool.
const YOURS: u32 = 1 << 31;
/// Control messages that a unit lets pile up.
const MAX_CONTROL: usize = 64;
/// Connections that a unit takes from strangers.
const MAX_STRANGERS: usize = 64;
const ALL: Mac = Mac([0xff; 6]);

/// What is there during an attack.
struct Scene {
    network: Network,
    adapter: Adapter,
    address: SocketAddr,
}

/// What becomes of the session of the client.
enum Outcome {
    /// The unit ends it, for this reason.
    Ends(&'static str),
    GoesOn,
}
use Outcome::{Ends, GoesOn};

type Attack = (&'static str, fn(&mut Client, &Scene), Outcome);

/// Runs attacks while two hosts exchange a stream, and checks that they go on and that nothing is left.
fn run(test: &str, attacks: &[Attack]) {
    let network = Network::start(2);
    let nobody = network.unit_line();
    let hosts = [1, 2].map(|number| network.attach(number, &[]));
    let [left, right] = &network.containers[..] else { unreachable!("two containers") };
    let mut stream = Stream::start(test, left, right, RATE);
    // Frames for the client, which are too long for a SendData.
    left.ip(&format!("neigh replace 10.5.0.66 lladdr {} dev iw0 nud permanent", CLIENTS[0].1));
    let mut flood = start(test, left);
    flood.tell("flood 10.5.0.66:9 1");
    let address = network.address.parse().unwrap();
    let mut scene = Scene { network, adapter: Adapter::new().unwrap(), address };
    for (name, attack, outcome) in attacks {
        let mut client = Client::attach(&scene.adapter, address, 0);
        let session = client.join.session;
        attack(&mut client, &scene);
        goes_on(&mut stream.receiver, PROGRESS);
        let expected = match outcome {
            Ends(reason) => reason,
            GoesOn => {
                assert!(client.is_answered(), "{name}: the session goes on");
                "connection lost"
            }
        };
        if matches!(outcome, GoesOn) {
            drop(client);
        }
        let why = scene.network.unit.as_mut().unwrap().wait_for("host hostile left session ");
        assert!(why.starts_with(&format!("{session}: ")) && why.contains(expected), "{name}: {why}");
    }
    assert_eq!(["left", "right"].map(|name| scene.network.field(name, "session")), [1, 2]);
    assert_eq!(["left", "right"].map(|name| scene.network.field(name, "refused")), [0, 0]);
    // Both may have been granted further pools on a busy machine: without them, nothing is left.
    drop((flood, stream));
    hosts.into_iter().for_each(Partner::kill);
    until(|| scene.network.unit_line() == nobody);
}

fn indicate(client: &Client, pool: u32, element: u32, len: u32) {
    let (tag, offset) = client.element(0, 0);
    let immediate = Immediate::new(Indication { pool, element, len }).unwrap();
    client.write(&client.frame(client.mac, ALL, 60), tag, offset, immediate.0);
}

#[test]
fn a_host_that_breaks_a_rule_for_pools_ends_its_own_session_only() {
    let test = "hostile::a_host_that_breaks_a_rule_for_pools_ends_its_own_session_only";
    if is_agent() || is_load() || !in_network(test) {
        return;
    }
    let attacks: &[Attack] = &[
        ("unknown pool", |client, _| indicate(client, 200, 0, 72), Ends("unknown pool 200")),
        ("unknown element", |client, _| indicate(client, 1, 64, 72), Ends("element 64 out of range")),
        ("frame longer than its element", |client, _| indicate(client, 0, 0, 2049), Ends("length 2049")),
        ("empty frame", |client, _| indicate(client, 0, 0, 0), Ends("invalid frame length 0")),
        (
            "element used twice",
            |client, _| (0..2).for_each(|_| indicate(client, 0, 7, 72)),
            Ends("element 7 of pool 0 was used twice"),
        ),
        (
            "indication on the control channel",
            |client, _| {
                let indication = Indication { pool: 0, element: 0, len: 72 };
                client.control.send(0, &Message::Indicate(indication));
            },
            Ends("unexpected BufferRDMAIndicate on the Control channel"),
        ),
        (
            "indication with 32-bit values",
            |client, _| {
                let indication = Indication { pool: u32::MAX, element: u32::MAX, len: u32::MAX };
                client.data.send(0, &Message::Indicate(indication));
            },
            Ends("unknown pool 4294967295"),
        ),
        (
            "Update of an unknown pool",
            |client, _| client.control.say(0, &Message::Update(vec![UpdateEntry::new(9, 0)])),
            Ends("unknown pool 9"),
        ),
        (
            "Update of an element twice",
            |client, _| {
                client.advertise(client.pool(0));
                let element = written(client);
                let entry = UpdateEntry::new(0, element);
                client.control.send(0, &Message::Update(vec![entry, entry]));
            },
            Ends("which was not consumed"),
        ),
        (
            "flush of an unknown pool",
            |client, _| client.control.say(5, &Message::FlushRequest(vec![YOURS | 9])),
            Ends("BufferPoolFlushRequest: unknown pool 9"),
        ),
        (
            "flush of one pool twice",
            |client, _| client.control.say(5, &Message::FlushRequest(vec![YOURS, YOURS])),
            Ends("BufferPoolFlushRequest: "),
        ),
        (
            "one index for two pools",
            |client, _| {
                client.advertise(client.pool(0));
                client.advertise(client.pool(0));
            },
            Ends("pool 0 was advertised twice"),
        ),
        (
            "pools without end",
            |client, _| (0..257).for_each(|index| client.advertise(client.pool(index))),
            Ends("too many pools"),
        ),
        (
            "pool with elements of one byte",
            |client, _| client.advertise(PoolEntry { element_size: 1, ..client.pool(0) }),
            Ends("invalid element size 1"),
        ),
        (
            "pool beyond the address space",
            |client, _| client.advertise(PoolEntry { offset: u64::MAX - 5, ..client.pool(0) }),
            Ends("exceeds the address space"),
        ),
    ];
    run(test, attacks);
}

/// Returns the element that the unit has written a frame to.
fn written(client: &Client) -> u32 {
    loop {
        if let Err(immediate) = client.data.next() {
            return Immediate(immediate).indication().element;
        }
    }
}

#[test]
fn a_host_reaches_no_memory_but_its_own_pools() {
    let test = "hostile::a_host_reaches_no_memory_but_its_own_pools";
    if is_agent() || is_load() || !in_network(test) {
        return;
    }
    let attacks: &[Attack] = &[
        (
            "Write to the pool of another session",
            |client, scene| {
                let victim = Client::attach(&scene.adapter, scene.address, 1);
                let (tag, offset) = victim.element(0, 0);
                client.write(&[7; 64], tag, offset, 64);
                assert_ne!(client.data.failure(), Status::Success);
                assert!(victim.is_answered(), "its session goes on");
                assert_eq!(scene.network.field("victim", "session"), victim.join.session);
            },
            Ends("connection lost"),
        ),
        (
            "Write behind the pool",
            |client, _| {
                let (tag, offset) = client.element(0, 256);
                client.write(&[7; 64], tag, offset, 64);
                assert_ne!(client.data.failure(), Status::Success);
            },
            Ends("connection lost"),
        ),
        (
            "Write before the pool",
            |client, _| {
                let (tag, offset) = client.element(0, 0);
                client.write(&[7; 64], tag, offset.wrapping_sub(32), 64);
                assert_ne!(client.data.failure(), Status::Success);
            },
            Ends("connection lost"),
        ),
        (
            "Read of a pool of the unit",
            |client, _| {
                let (tag, offset) = client.element(0, 0);
                let from = RemoteAddr { tag: Tag(tag), offset };
                let into = [client.memory.slice(..64).unwrap()];
                client.data.qp.post_send(WorkRequest::read(0, &into, from)).unwrap();
                assert_ne!(client.data.failure(), Status::Success);
            },
            Ends("connection lost"),
        ),
        (
            "Write through the control channel",
            |client, _| {
                let (tag, offset) = client.element(0, 0);
                let to = RemoteAddr { tag: Tag(tag), offset };
                client.control.qp.post_send(WorkRequest::write_inline(0, &[7; 64], to)).unwrap();
                assert_ne!(client.control.failure(), Status::Success);
            },
            Ends("connection lost"),
        ),
        (
            "pool with a tag that does not exist",
            |client, _| client.advertise(PoolEntry { tag: 0xdead_beef, ..client.pool(0) }),
            Ends("connection lost"),
        ),
        (
            "message longer than its receive",
            |client, _| client.data.say(0, &Message::SendData(&[0; 5000])),
            Ends("connection lost"),
        ),
    ];
    run(test, attacks);
}

#[test]
fn a_host_that_asks_for_too_much_disturbs_nobody() {
    let test = "hostile::a_host_that_asks_for_too_much_disturbs_nobody";
    if is_agent() || is_load() || !in_network(test) {
        return;
    }
    let attacks: &[Attack] = &[
        (
            "control channel that is not read",
            |client, _| {
                client.control.reads = false;
                // Answers to the first of them use up all receives.
                let request = Message::Request(Request::Statistics);
                let sent = (0..SENDS).take_while(|_| client.control.send(6, &request)).count();
                assert!(sent > MAX_CONTROL, "{sent} requests");
            },
            Ends("64 control messages are outstanding"),
        ),
        (
            "PoolGet without end",
            |client, scene| {
                let get = Message::PoolGet { element_size: 65_000, count: u32::MAX };
                assert!((0..3000).all(|_| client.control.send(0, &get)));
                assert!(client.is_answered());
                assert_eq!(scene.network.field("hostile", "pools"), 8);
            },
            GoesOn,
        ),
        (
            "PoolGet and flush without end",
            |client, scene| {
                let get = Message::PoolGet { element_size: 65_000, count: 1 };
                assert!((0..6).all(|_| client.control.send(0, &get)));
                (0..6).for_each(|_| client.next_pool());
                let most = scene.network.field("hostile", "pools");
                for pool in std::mem::take(&mut client.pools) {
                    client.control.send(5, &Message::FlushRequest(vec![YOURS | pool.index]));
                    client.control.find(|message| (message == Message::FlushReply).then_some(()));
                    assert!((0..200).all(|_| client.control.send(0, &get)));
                }
                assert!(client.is_answered());
                assert!(scene.network.field("hostile", "pools") < most, "the allowance is used up");
            },
            GoesOn,
        ),
        (
            "advertise and flush without end",
            |client, _| {
                for _ in 0..500 {
                    client.advertise(client.pool(3));
                    client.control.send(5, &Message::FlushRequest(vec![3]));
                    client.control.find(|message| (message == Message::FlushReply).then_some(()));
                }
            },
            GoesOn,
        ),
        (
            "elements that are not returned",
            |client, scene| {
                client.advertise(client.pool(0));
                until(|| scene.network.field("hostile", "drops") > 10);
                assert!(scene.network.field("hostile", "stalls") > 0);
                let consumed: Vec<u32> = (0..ELEMENTS).map(|_| written(client)).collect();
                assert_eq!(consumed.len(), ELEMENTS as usize, "each was used once");
            },
            GoesOn,
        ),
        ("silent connections", silent_connections, GoesOn),
    ];
    run(test, attacks);
}

/// Connections that never say who they are.
fn silent_connections(client: &mut Client, scene: &Scene) {
    let connect = || Channel::connect(&scene.adapter, &client.domain, scene.address, &[0]);
    let silent: Vec<_> = (0..MAX_STRANGERS + 8).map(|_| connect()).collect();
    // The rest was refused; or the first ones were closed again, if the machine is busy.
    let open = silent.iter().flatten().filter(|channel| !channel.qp.wait_closed(Duration::ZERO)).count();
    assert!(open <= MAX_STRANGERS, "{open} connections");
    assert!(!scene.network.unit_line().contains(" strangers=0 "), "{}", scene.network.unit_line());
    assert!(client.is_answered(), "whoever is attached goes on");
}

#[test]
fn a_host_cannot_pose_as_another_or_send_frames_that_break_a_rule() {
    let test = "hostile::a_host_cannot_pose_as_another_or_send_frames_that_break_a_rule";
    if is_agent() || is_load() || !in_network(test) {
        return;
    }
    let attacks: &[Attack] = &[
        ("Join of another session", join_of_another, GoesOn),
        ("frames that break a rule", refused_frames, GoesOn),
        (
            "message on the wrong channel",
            |client, _| client.control.say(0, &Message::SendData(&[0; 80])),
            Ends("unexpected SendData on the Control channel"),
        ),
        (
            "function that does not exist",
            |client, _| {
                let mut message = Message::FlushReply.encode(0);
                message[..2].copy_from_slice(&77u16.to_be_bytes());
                assert_ne!(Function::BufferPoolFlushReply as u16, 77);
                client.control.post(WorkRequest::send_inline(0, &message));
            },
            Ends("malformed message"),
        ),
        (
            "reply that nobody has asked for",
            |client, _| client.control.say(1 << 40, &Message::Reply(Reply::SetMac)),
            Ends("which answers no request"),
        ),
        (
            "frame inside of a message that is too long for it",
            |client, _| client.data.say(0, &Message::SendData(&[0; 257])),
            Ends("connection lost"),
        ),
        (
            "address of another host",
            |client, _| {
                client.control.send(7, &Message::Request(Request::SetMac(Mac([2, 0, 0, 0, 0, 0x67]))));
                client
                    .control
                    .find(|message| matches!(message, Message::Reply(Reply::Failed { .. })).then_some(()));
            },
            GoesOn,
        ),
    ];
    run(test, attacks);
}

/// Data channels for the session of another host, and a second one for its own.
fn join_of_another(client: &mut Client, scene: &Scene) {
    let other = scene.network.field("left", "session");
    for session in [other, client.join.session] {
        let hello = [&[1], &session.to_be_bytes()[..]].concat();
        let data = Channel::connect(&scene.adapter, &client.domain, scene.address, &hello).unwrap();
        data.send(3, &Message::Request(Request::Join(Join { session, ..client.join })));
        assert!(data.qp.wait_closed(LIMIT), "it is closed");
    }
}

/// Frames with the address of another host, and with virtio headers that name ranges outside of the frame.
fn refused_frames(client: &mut Client, scene: &Scene) {
    client.control.say(8, &Message::Request(Request::Mtu(1500)));
    client.control.find(|message| (message == Message::Reply(Reply::Mtu(1500))).then_some(()));
    let own = client.frame(client.mac, ALL, 60);
    let with_header = |header: [u8; 10], len: usize| {
        let mut frame = client.frame(client.mac, ALL, len);
        frame[..10].copy_from_slice(&header);
        frame
    };
    let frames = [
        client.frame(Mac([2, 0, 0, 0, 0, 0x67]), ALL, 60),
        client.frame(ALL, ALL, 60),
        own[..25].to_vec(),                                 // no room for its addresses
        with_header([0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0], 60), // unknown flag
        with_header([1, 0, 0, 0, 0, 0, 50, 0, 9, 0], 60),   // checksum outside
        with_header([1, 0, 0, 0, 0, 0, 255, 255, 255, 255], 60),
        with_header([0, 3, 0, 0, 8, 0, 0, 0, 0, 0], 200), // unknown segmentation
        with_header([1, 1, 54, 0, 0, 0, 34, 0, 16, 0], 200), // segments of no bytes
        with_header([1, 1, 255, 255, 8, 0, 34, 0, 16, 0], 200), // headers longer than the frame
        client.frame(client.mac, ALL, 1900),              // longer than the MTU of the LAN
    ];
    for (count, frame) in (1u64..).zip(&frames) {
        let element = u32::try_from(count).unwrap();
        let (tag, offset) = client.element(0, element);
        let len = u32::try_from(frame.len()).unwrap();
        let immediate = Immediate::new(Indication { pool: 0, element, len }).unwrap();
        client.write(frame, tag, offset, immediate.0);
        until(|| scene.network.field("hostile", "refused") >= count);
    }
    assert_eq!(scene.network.field("hostile", "refused"), frames.len() as u64);
    client.data.send(0, &Message::SendData(&own));
    until(|| scene.network.field("hostile", "frames_in") == frames.len() as u64 + 1);
    assert_eq!(scene.network.field("hostile", "refused"), frames.len() as u64, "this one is allowed");
}
