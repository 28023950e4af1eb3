//! Revocation is final: when deregistration, re-registration, invalidation or unbinding returns, peers can no
//! longer change or read a byte of the memory, whatever is in flight at that moment.
//!
//! In each round, peers flood a tag with Writes, Reads and atomic operations. In the middle of that the tag
//! is revoked, and the memory is filled with a canary. The flood continues until the victim has ended all of
//! these streams. Meanwhile the canary must not change, and no response may contain a byte of it.

use crate::common::peer::{Peer, Received, StartupSettings};
use crate::common::victim::Victim;
use crate::common::{TIMEOUT, add, read, write};
use ironwarp_engine::config::Config;
use ironwarp_engine::{CompletionQueue, QueuePair};
use ironwarp_rnic::memory::{Binding, Bytes, Memory, Reregistration, Rights, Scope, Stream, Translation};
use ironwarp_rnic::qp::Completes;
use ironwarp_testkit::long_form;
use ironwarp_testkit::mapping::Mapping;
use ironwarp_wire::{Header, Tag};
use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Number of rounds, in the short and the long form of the tests.
const ROUNDS: [usize; 2] = [200, 1000];
/// Size of the memory. Large enough for payload that goes directly from and to the socket.
const PAGES: usize = 16;
const LEN: usize = PAGES * 4096;
/// The payload of Writes, the initial contents, and the contents after the revocation.
const STORM: u8 = 0x55;
const BEFORE: u8 = 0x11;
const CANARY: u8 = 0xca;

const REMOTE: Rights = Rights::REMOTE;
const ALL: Rights = Rights::LOCAL_READ.union(Rights::LOCAL_WRITE).union(REMOTE).union(Rights::BIND);

/// A peer that floods the tag.
struct Stormer {
    peer: Peer,
    pair: Arc<QueuePair>,
}

/// The victim and the memory that is attacked.
struct Target {
    victim: Victim,
    cq: Arc<CompletionQueue>,
    memory: Mapping,
}

impl Target {
    fn new() -> Self {
        // The peers decide whether to use CRCs.
        let victim = Victim::with(Config::default().crc(false));
        let cq = victim.engine.create_cq(64).unwrap();
        Self { victim, cq, memory: Mapping::new(PAGES) }
    }

    fn stormer(&self, crc: bool) -> Stormer {
        let pair = self.victim.queue_pair_on(&self.cq, Completes::WhenSent, 0);
        let mut peer = self.victim.connected(&pair, StartupSettings { crc, ..StartupSettings::default() });
        peer.open();
        Stormer { peer, pair }
    }

    fn register(&self) -> Tag {
        let memory = Memory::direct(self.memory.addr(0), LEN as u64, ALL).unwrap();
        self.victim.engine.device().register(self.victim.domain, memory).unwrap()
    }

    fn window(&self, region: Tag, stream: Stream) -> Tag {
        let table = self.victim.engine.device().table();
        let window = table.allocate_window(self.victim.domain).unwrap();
        let (at, len) = (self.memory.addr(0), LEN as u64);
        let binding = Binding {
            region,
            at,
            len,
            rights: REMOTE,
            one_touch: false,
            zero_based: false,
            scope: Scope::Domain,
        };
        table.bind(stream, window, binding).unwrap()
    }

    /// Runs one round: `grant` returns the tag to attack, `revoke` revokes it.
    fn round(&self, round: usize, grant: impl FnOnce() -> Tag, revoke: impl FnOnce(Tag)) {
        self.memory.fill(0, LEN, BEFORE);
        // Two peers write, one reads and one adds; with and without CRC, small and large.
        let crc = round.is_multiple_of(2);
        let mut storm = [self.stormer(true), self.stormer(crc), self.stormer(!crc), self.stormer(crc)];
        let tag = grant();
        let bursts = [
            self.writes(&mut storm[0], tag, 512),
            self.writes(&mut storm[1], tag, 40_000),
            (1..=8).flat_map(|msn| storm[2].peer.frame(&self.read(msn, tag), &[])).collect(),
            (1..=24).flat_map(|msn| storm[3].peer.frame(&self.add(msn, tag), &[])).collect(),
        ];
        for (stormer, burst) in storm.iter_mut().zip(&bursts) {
            stormer.peer.send_bytes(burst);
        }
        // Revoke the tag when the flood has reached a certain offset, which differs in each round.
        self.hit_at(round * 7919 % LEN);
        revoke(tag);
        self.memory.fill(0, LEN, CANARY);
        assert!(
            self.memory.holds_only(0, LEN, CANARY),
            "round {round}: changed immediately after the revocation"
        );
        let [first, second, third, fourth] = &mut storm;
        for writer in [first, second] {
            let burst = self.writes(writer, tag, 512);
            writer.peer.send_bytes(&burst);
        }
        let last = third.peer.frame(&self.read(9, tag), &[]);
        third.peer.send_bytes(&last);
        let last = fourth.peer.frame(&self.add(25, tag), &[]);
        fourth.peer.send_bytes(&last);
        for stormer in &mut storm {
            self.storm_ends(stormer, round);
        }
        assert!(self.memory.holds_only(0, LEN, CANARY), "round {round}: changed later");
    }

    /// Waits until the victim has ended this stream, and checks that nothing was changed or sent until then.
    fn storm_ends(&self, stormer: &mut Stormer, round: usize) {
        loop {
            match stormer.peer.receive_next() {
                Received::Message(Header::ReadResponse(_), payload, _) => {
                    assert!(
                        !payload.contains(&CANARY),
                        "round {round}: bytes were sent after the revocation"
                    );
                }
                Received::Message(Header::AtomicResponse(response), ..) => {
                    assert_ne!(
                        response.original,
                        u64::from_ne_bytes([CANARY; 8]),
                        "round {round}: a word was sent after the revocation"
                    );
                }
                Received::Message(..) => {}
                Received::Silence => panic!("round {round}: the stream was not ended"),
                Received::End | Received::Reset => break,
            }
            assert!(self.memory.holds_only(0, LEN, CANARY), "round {round}: changed");
        }
        stormer.peer.finish();
        assert!(stormer.pair.wait_closed(TIMEOUT), "round {round}");
        let error = stormer.pair.qp().error().cloned().expect("the stream has ended");
        assert!(matches!(*error, ironwarp_rnic::error::QpError::Remote(_)), "round {round}: {error}");
    }

    /// Consecutive Writes that cover all of the memory.
    fn writes(&self, stormer: &mut Stormer, tag: Tag, len: usize) -> Vec<u8> {
        let payload = vec![STORM; len];
        let places = (0..LEN).step_by(len).map(|at| (at, len.min(LEN - at)));
        places
            .flat_map(|(at, len)| stormer.peer.frame(&write(tag, self.memory.addr(at)), &payload[..len]))
            .collect()
    }

    fn read(&self, msn: u32, tag: Tag) -> Header {
        read(msn, tag, self.memory.addr(0), u32::try_from(LEN).unwrap())
    }

    /// An atomic operation on a word of its own, far from the others.
    fn add(&self, msn: u32, tag: Tag) -> Header {
        add(msn, tag, self.memory.addr(msn as usize * 2048))
    }

    fn hit_at(&self, at: usize) {
        let deadline = Instant::now() + TIMEOUT;
        while !self.memory.holds_only(at, 1, STORM) {
            assert!(Instant::now() < deadline, "the flood did not reach the offset");
        }
    }

    fn over(self, begin: Instant) {
        let fared = self.victim.assert_survives();
        println!("{} rounds in {:?}; the neighbour: {fared:?}", rounds(), begin.elapsed());
        assert!(begin.elapsed() < Duration::from_secs(120));
    }
}

fn rounds() -> usize {
    ROUNDS[usize::from(long_form::is_requested())]
}

#[test]
fn deregistration_is_final() {
    let (target, begin) = (Target::new(), Instant::now());
    for round in 0..rounds() {
        let revoke = |tag| target.victim.engine.device().table().deregister(tag).unwrap();
        target.round(round, || target.register(), revoke);
    }
    target.over(begin);
}

/// For a region that alternates: it gets the memory and all rights, and then other rights, other memory or
/// another domain.
#[test]
fn reregistration_is_final() {
    let (target, begin) = (Target::new(), Instant::now());
    let device = target.victim.engine.device();
    let other = device.allocate_domain();
    let aside = Mapping::new(PAGES);
    aside.fill(0, LEN, BEFORE);
    let bytes = |memory: &Mapping| {
        // Use the same offsets, so that only the tag keeps peers from the new memory.
        let translation = Translation::direct(memory.addr(0), LEN as u64).unwrap().into();
        Some(Bytes { start: target.memory.addr(0), len: LEN as u64, translation })
    };
    let tag = Cell::new(target.register());
    let becomes = |to| {
        tag.set(device.reregister(tag.get(), to).unwrap());
        tag.get()
    };
    let nothing = Reregistration::default();
    for round in 0..rounds() {
        let (domain, rights) = (Some(target.victim.domain), Some(ALL));
        let grant =
            || becomes(Reregistration { domain, rights, bytes: bytes(&target.memory), keep_tag: false });
        let revoke = |_| {
            becomes(match round % 3 {
                0 => Reregistration { rights: Some(Rights::LOCAL_READ), ..nothing.clone() },
                1 => Reregistration { bytes: bytes(&aside), ..nothing.clone() },
                _ => Reregistration { domain: Some(other), ..nothing.clone() },
            });
        };
        target.round(round, grant, revoke);
        assert!(aside.holds_only(0, LEN, BEFORE), "round {round}: a peer reached the other memory");
    }
    target.over(begin);
}

/// For a region that was registered by send-queue request, whose tag stays allocated.
#[test]
fn invalidation_is_final() {
    let (target, begin) = (Target::new(), Instant::now());
    let device = target.victim.engine.device();
    let stream = Stream { domain: target.victim.domain, qp: 0 };
    let mut tag = device.table().allocate(target.victim.domain).unwrap();
    for round in 0..rounds() {
        let memory = Memory::direct(target.memory.addr(0), LEN as u64, ALL).unwrap();
        let grant = || {
            device.table().fill(device.host(), stream, tag, memory).unwrap();
            tag
        };
        target.round(round, grant, |tag| device.table().invalidate(stream, tag).unwrap());
        tag = ironwarp_rnic::memory::next_tag(tag);
    }
    target.over(begin);
}

/// For a window that is unbound, bound again, or deallocated, while its region stays registered.
#[test]
fn unbinding_is_final() {
    let (target, begin) = (Target::new(), Instant::now());
    let table = target.victim.engine.device().table();
    let stream = Stream { domain: target.victim.domain, qp: 0 };
    let region = target.register();
    let nothing = Binding {
        region,
        at: 0,
        len: 0,
        rights: Rights::empty(),
        one_touch: false,
        zero_based: false,
        scope: Scope::Domain,
    };
    // After binding it again, peers can access its first byte under another tag.
    let anew = Binding { at: target.memory.addr(0), len: 1, rights: REMOTE, ..nothing };
    for round in 0..rounds() {
        let grant = || target.window(region, stream);
        let revoke = |window| match round % 3 {
            0 => table.deregister(window).unwrap(),
            1 => table.deregister(table.bind(stream, window, nothing).unwrap()).unwrap(),
            _ => {
                table.bind(stream, window, anew).unwrap();
            }
        };
        target.round(round, grant, revoke);
    }
    target.over(begin);
}
