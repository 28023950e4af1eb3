//! One-touch memory (requirement M10): what happens to a second remote message, and when the memory is
//! closed.

use crate::common::peer::{Peer, Received, StartupSettings};
use crate::common::victim::{AREA, Area, Attacked, RECEIVES, Victim};
use crate::common::{TIMEOUT, add, read, send, write};
use ironwarp_engine::config::Config;
use ironwarp_rnic::error::QpError;
use ironwarp_rnic::memory::{Binding, Check, Memory, Rights, Scope, Stream};
use ironwarp_testkit::mapping::Mapping;
use ironwarp_wire::private::{Capabilities, ReadV2Request};
use ironwarp_wire::{Cause, Header, Protection, RemoteAddr, Tag, Tagged, TaggedBuffer};
use std::time::Instant;

const TAG: Cause = Cause::TaggedBuffer(TaggedBuffer::Tag);

/// A segment of a Write before its last.
fn begins(tag: Tag, offset: u64) -> Header {
    Header::Write(Tagged { last: false, addr: RemoteAddr { tag, offset } })
}

impl Victim {
    /// Registers its open area again, as one-touch memory.
    fn once(&self) -> Tag {
        let rights = Rights::LOCAL_READ | Rights::LOCAL_WRITE | Rights::REMOTE;
        let memory = Memory::direct(self.open.addr, AREA as u64, rights).unwrap();
        let memory = Memory { one_touch: true, ..memory };
        self.engine.device().register(self.domain, memory).unwrap()
    }

    fn is_valid(&self, tag: Tag) -> bool {
        self.engine.device().table().look_up(tag).is_some_and(|info| info.valid)
    }

    /// Waits until a remote message has touched the memory.
    fn until_touched(&self, tag: Tag) {
        let deadline = Instant::now() + TIMEOUT;
        while !self.engine.device().table().look_up(tag).is_some_and(|info| info.touched) {
            assert!(Instant::now() < deadline, "the memory was not touched");
        }
    }
}

impl Attacked {
    /// Checks that the victim refuses this FPDU because the memory has been claimed by another message, or
    /// has served one.
    fn is_refused(&mut self, cause: Cause, fpdu: &[u8], check: Check) {
        let error = self.assert_terminated(cause, fpdu);
        assert!(matches!(&*error, QpError::Remote(denied) if denied.check == check), "{error}");
    }
}

fn answer(peer: &mut Peer) -> (bool, Vec<u8>) {
    match peer.receive_message() {
        Received::Message(Header::ReadResponse(response), payload, _) => (response.last, payload),
        other => panic!("expected a response, got {other:?}"),
    }
}

/// Small payload, and payload large enough to be placed directly; in one segment and in several.
#[test]
fn a_write_of_any_shape_is_placed_and_then_the_memory_is_closed() {
    for (crc, segments, len) in
        [(true, 1, 8), (true, 3, 1000), (false, 1, 8), (false, 1, 40_000), (false, 3, 40_000)]
    {
        let victim = Victim::with(Config::default().crc(false));
        let mut attacked =
            victim.connect_peer_with(StartupSettings { crc, ..StartupSettings::default() }, RECEIVES);
        attacked.peer.open();
        let mapping = Mapping::new(32);
        let memory =
            Memory::direct(mapping.addr(0), mapping.len() as u64, Rights::REMOTE_WRITE | Rights::LOCAL_WRITE);
        let memory = Memory { one_touch: true, ..memory.unwrap() };
        let tag = victim.engine.device().register(victim.domain, memory).unwrap();
        for segment in 0..segments {
            let at = mapping.addr(segment * len);
            let header = if segment + 1 < segments { begins(tag, at) } else { write(tag, at) };
            attacked.peer.send(&header, &vec![0xee; len]);
        }
        // When a later message is received, the Write is complete and the memory closed.
        attacked.assert_works(1);
        assert!(!victim.is_valid(tag));
        assert!(mapping.holds_only(0, segments * len, 0xee));
        attacked.peer.send(&write(tag, mapping.addr(0)), &vec![0xdd; len]);
        assert_eq!(attacked.peer.receive_terminate().cause, TAG);
        attacked.closed();
        let error = attacked.error(RECEIVES - 1);
        assert!(matches!(&*error, QpError::Remote(denied) if denied.check == Check::Valid), "{error}");
        assert!(mapping.holds_only(0, segments * len, 0xee));
        assert!(mapping.holds_only(segments * len, mapping.len() - segments * len, 0));
        victim.assert_untouched_except(&[(victim.private.at, 10)]);
        victim.assert_survives();
    }
}

/// A Write whose last segment is empty ends like any other.
#[test]
fn an_empty_last_segment_ends_it_as_well() {
    let victim = Victim::new();
    let mut attacked = victim.connect_peer();
    let tag = victim.once();
    attacked.peer.send(&begins(tag, victim.open.addr), &[0xee; 8]);
    attacked.peer.send(&write(tag, victim.open.addr + 8), &[]);
    attacked.assert_works(1);
    assert!(!victim.is_valid(tag));
    victim.assert_survives();
}

/// Empty messages name no memory, so they touch none.
#[test]
fn an_empty_message_does_not_touch() {
    let victim = Victim::new();
    let mut attacked = victim.connect_peer();
    let tag = victim.once();
    attacked.peer.send(&write(tag, victim.open.addr), &[]);
    attacked.peer.send(&read(1, tag, victim.open.addr, 0), &[]);
    assert_eq!(answer(&mut attacked.peer), (true, vec![]));
    attacked.assert_works(1);
    assert!(victim.is_valid(tag));
    victim.assert_survives();
}

/// A segment of another stream arrives in the middle of a Write: it is refused, and the Write continues.
#[test]
fn no_segment_of_another_message_gets_in() {
    let victim = Victim::new();
    let (mut first, mut second) = (victim.connect_peer(), victim.connect_peer());
    let tag = victim.once();
    first.peer.send(&begins(tag, victim.open.addr), &[0xee; 8]);
    victim.until_touched(tag);
    let fpdu = second.peer.send(&begins(tag, victim.open.addr + 100), &[0xdd; 8]);
    second.is_refused(TAG, &fpdu, Check::Touched);
    first.peer.send(&write(tag, victim.open.addr + 8), &[0xee; 8]);
    first.assert_works(1);
    assert!(!victim.is_valid(tag));
    assert!(victim.memory.holds_only(victim.open.at, 16, 0xee));
    victim.assert_untouched_except(&[(victim.open.at, 16), (victim.private.at, 10)]);
    victim.assert_survives();
}

/// A complete message of another stream arrives in the middle of a Write: it is refused, and the memory is
/// closed for both, as in the decision table.
#[test]
fn a_whole_second_message_closes_it() {
    let victim = Victim::new();
    let (mut first, mut second) = (victim.connect_peer(), victim.connect_peer());
    let tag = victim.once();
    first.peer.send(&begins(tag, victim.open.addr), &[0xee; 8]);
    victim.until_touched(tag);
    let fpdu = second.peer.send(&read(1, tag, victim.open.addr, 8), &[]);
    second.is_refused(Cause::Protection(Protection::Tag), &fpdu, Check::Touched);
    let fpdu = first.peer.send(&write(tag, victim.open.addr + 8), &[0xee; 8]);
    first.is_refused(TAG, &fpdu, Check::Valid);
    victim.assert_untouched_except(&[(victim.open.at, 8)]);
    victim.assert_survives();
}

/// A message that is never finished has touched the memory nevertheless.
#[test]
fn a_peer_that_goes_away_leaves_it_touched() {
    let victim = Victim::new();
    let (mut first, mut second) = (victim.connect_peer(), victim.connect_peer());
    let tag = victim.once();
    first.peer.send(&begins(tag, victim.open.addr), &[0xee; 8]);
    victim.until_touched(tag);
    first.peer.reset();
    assert!(first.pair.wait_closed(TIMEOUT));
    let fpdu = second.peer.send(&write(tag, victim.open.addr), &[0xdd; 8]);
    second.is_refused(TAG, &fpdu, Check::Touched);
    victim.assert_untouched_except(&[(victim.open.at, 8)]);
    victim.engine.device().table().deregister(tag).unwrap();
    victim.assert_survives();
}

/// The request touches the memory, and the whole response is read from it, however slowly the peer receives.
#[test]
fn a_read_is_answered_in_full_and_then_the_memory_is_closed() {
    for crc in [true, false] {
        let victim = Victim::with(Config::default().crc(false));
        let mut attacked =
            victim.connect_peer_with(StartupSettings { crc, ..StartupSettings::default() }, RECEIVES);
        attacked.peer.open();
        // Longer than the socket buffers: the same pages many times over.
        let span = ironwarp_rnic::host::Span::new(victim.open.addr, AREA);
        let spans = vec![span; (16 << 20) / AREA];
        let translation = ironwarp_rnic::memory::Translation::buffers(&spans).unwrap();
        let (start, len, rights) = (0, translation.len(), Rights::REMOTE_READ);
        let memory = Memory { start, len, rights, one_touch: true, translation: translation.into() };
        let tag = victim.engine.device().register(victim.domain, memory).unwrap();
        attacked.peer.send(&read(1, tag, 0, u32::try_from(len).unwrap()), &[]);
        // Compare piece by piece, because other tests measure the memory of this process.
        let expected = victim.memory.read(victim.open.at, AREA).repeat(2);
        let (mut last, mut payload) = answer(&mut attacked.peer);
        assert!(victim.is_valid(tag), "most of the response is still to be read from it");
        let mut done = 0;
        loop {
            for piece in payload.chunks(AREA) {
                assert!(piece == &expected[done % AREA..][..piece.len()], "after {done} bytes");
                done += piece.len();
            }
            if last {
                break;
            }
            (last, payload) = answer(&mut attacked.peer);
        }
        assert_eq!(done as u64, len);
        attacked.peer.send(&read(2, tag, 0, 8), &[]);
        assert_eq!(attacked.peer.receive_terminate().cause, Cause::Protection(Protection::Tag));
        attacked.closed();
        assert!(!victim.is_valid(tag));
        victim.assert_untouched();
        victim.assert_survives();
    }
}

/// Of two Reads that arrive together, the first is served. The second ends the stream, which may cut the
/// first response short, but is not answered.
#[test]
fn of_two_reads_one_is_served() {
    let victim = Victim::new();
    let mut attacked = victim.connect_peer();
    let tag = victim.once();
    let both = [read(1, tag, victim.open.addr, 64), read(2, tag, victim.open.addr, 64)];
    let burst: Vec<u8> = both.iter().flat_map(|header| attacked.peer.frame(header, &[])).collect();
    attacked.peer.send_bytes(&burst);
    let (messages, _) = attacked.peer.receive_until_end();
    let answers = messages.iter().filter(|(header, _)| matches!(header, Header::ReadResponse(_))).count();
    assert!(answers <= 1, "{messages:?}");
    let Some((Header::Terminate(terminate), _)) = messages.last() else { panic!("{messages:?}") };
    assert_eq!(terminate.cause, Cause::Protection(Protection::Tag));
    attacked.closed();
    assert!(!victim.is_valid(tag));
    victim.assert_untouched();
    victim.assert_survives();
}

/// After a one-touch window has served, its region can be deregistered before the next message of the peer is
/// delivered.
#[test]
fn after_serving_a_window_releases_its_region() {
    let victim = Victim::new();
    let mut attacked = victim.connect_peer();
    let table = victim.engine.device().table();
    let window = table.allocate_window(victim.domain).unwrap();
    let binding = Binding {
        region: victim.bindable.tag,
        at: victim.bindable.addr,
        len: 64,
        rights: Rights::REMOTE_WRITE,
        one_touch: true,
        zero_based: true,
        scope: Scope::Stream,
    };
    let stream = Stream { domain: victim.domain, qp: attacked.pair.qp().id() };
    let window = table.bind(stream, window, binding).unwrap();
    assert!(table.deregister(victim.bindable.tag).is_err());
    attacked.peer.send(&write(window, 0), b"once");
    attacked.peer.send(&send(1), b"done");
    assert_eq!(attacked.one().byte_len, 4);
    table.deregister(victim.bindable.tag).unwrap();
    attacked.peer.send(&write(window, 0), b"more");
    assert_eq!(attacked.peer.receive_terminate().cause, TAG);
    victim.assert_untouched_except(&[(victim.bindable.at, 4), (victim.private.at, 4)]);
    victim.assert_survives();
}

/// A second access in every row of the decision table that a stream can reach: of any kind, the last segment
/// of its message or not, to a region or a window, during the first message or after it. It is refused with
/// the cause for its kind, and the memory never serves again.
#[test]
fn a_second_access_is_terminated_in_every_row() {
    const READ: Cause = Cause::Protection(Protection::Tag);
    type Access = fn(Tag, u64) -> Header;
    let v2: Access = |tag, offset| {
        Header::ReadV2Request(ReadV2Request { msn: 1, len: 8, source: RemoteAddr { tag, offset } })
    };
    let seconds: [(Access, bool, Cause); 5] = [
        (begins, false, TAG),
        (write, true, TAG),
        (|tag, offset| read(1, tag, offset, 8), true, READ),
        (v2, true, READ),
        (|tag, offset| add(1, tag, offset), true, READ),
    ];
    for (window, ended) in [(false, false), (false, true), (true, false), (true, true)] {
        for (second, last, cause) in seconds {
            let victim = Victim::new();
            let (tag, area) = if window { victim.once_window() } else { (victim.once(), victim.open) };
            let mut first = victim.connect_peer();
            first.peer.send(&begins(tag, area.addr), &[0xee; 8]);
            victim.until_touched(tag);
            let rest = write(tag, area.addr + 8);
            if ended {
                first.peer.send(&rest, &[0xee; 8]);
                first.assert_works(1);
            }
            let check = if ended { Check::Valid } else { Check::Touched };
            victim.is_refused_once_more(second, (tag, area.addr), cause, check);
            if !ended && last {
                // The memory is closed for both.
                let fpdu = first.peer.send(&rest, &[0xee; 8]);
                first.is_refused(TAG, &fpdu, Check::Valid);
            } else if !ended {
                first.peer.send(&rest, &[0xee; 8]);
                first.assert_works(1);
            }
            assert!(!victim.is_valid(tag));
            for (third, _, cause) in seconds {
                victim.is_refused_once_more(third, (tag, area.addr), cause, Check::Valid);
            }
            let placed = if ended || !last { 16 } else { 8 };
            assert!(victim.memory.holds_only(area.at, placed, 0xee));
            victim.assert_untouched_except(&[(area.at, placed), (victim.private.at, 10)]);
            victim.assert_survives();
        }
    }
}

impl Victim {
    /// Binds a one-touch window to its bindable area, for any peer of the domain.
    fn once_window(&self) -> (Tag, Area) {
        let (table, area) = (self.engine.device().table(), self.bindable);
        let binding = Binding {
            region: area.tag,
            at: area.addr,
            len: AREA as u64,
            rights: Rights::REMOTE,
            one_touch: true,
            zero_based: false,
            scope: Scope::Domain,
        };
        let window = table.allocate_window(self.domain).unwrap();
        (table.bind(Stream { domain: self.domain, qp: 0 }, window, binding).unwrap(), area)
    }

    /// Checks that an access by another Ironwarp peer is refused.
    fn is_refused_once_more(
        &self,
        access: fn(Tag, u64) -> Header,
        (tag, at): (Tag, u64),
        cause: Cause,
        check: Check,
    ) {
        let mut attacked = self.connect_peer_with(StartupSettings::default(), RECEIVES);
        attacked.peer.open_as_ironwarp(Capabilities::all());
        let header = access(tag, at);
        let payload: &[u8] = if matches!(header, Header::Write(_)) { &[0xdd; 8] } else { &[] };
        let fpdu = attacked.peer.send(&header, payload);
        attacked.is_refused(cause, &fpdu, check);
    }
}
