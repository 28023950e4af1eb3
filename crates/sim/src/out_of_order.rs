//! Simulates segments that arrive out of order at one-touch memory (requirement M10). No TCP socket delivers out of
//! order, and so no stream of the device does, but the device's memory table must not depend on that.
//!
//! Two peers write to the same memory over streams that lose, repeat and reorder segments within a window and beyond
//! it. The device's memory table decides on each segment, and a model of the decision table predicts the result.

use crate::arena::Arena;
use crate::tags::tag_cipher;
use ironwarp_rnic::config::DeviceConfig;
use ironwarp_rnic::device::Device;
use ironwarp_rnic::fault::Rng;
use ironwarp_rnic::host::{Host, Span};
use ironwarp_rnic::memory::{
    Binding, Check, Domain, Memory, Position, Rights, Scope, Spans, Stream, Touch, Verdict, decide,
};
use ironwarp_wire::{RemoteAddr, Tag};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Length of each piece of memory, in bytes.
const PIECE_LEN: usize = 64;
/// Number of pieces of memory.
const PIECES: usize = 6;
/// Number of Writes of each peer.
const MESSAGES: usize = 8;
/// How far beyond the first missing byte a receiver accepts segments, in bytes.
const WINDOW: u64 = 60;
/// Maximum number of arrivals of a run. Dropped segments are sent again.
const MAX_ARRIVALS: u64 = 100_000;

/// A row of the decision table: last, one-touch, touched by another message, position.
pub type Row = (bool, bool, bool, u8);

/// Returns all possible rows: memory that is not one-touch is never touched.
pub fn all_rows() -> Vec<Row> {
    let flags = [(false, false), (true, false), (true, true)];
    let mut rows = Vec::new();
    for last in [false, true] {
        for (one_touch, touched) in flags {
            rows.extend([0, 1, 2].map(|position| (last, one_touch, touched, position)));
        }
    }
    rows
}

/// Runs one seed, and counts in `rows` the rows that it covered. Panics if a check fails.
pub fn run(seed: u64, rows: &mut BTreeMap<Row, u64>) {
    let mut scene = Scene::new(seed);
    for arrivals in 0.. {
        assert!(arrivals < MAX_ARRIVALS, "no progress");
        let open: Vec<_> = (0..2).filter(|&peer| scene.peers[peer].is_open()).collect();
        if open.is_empty() {
            break;
        }
        let peer = open[scene.random_below(open.len())];
        let segment = scene.random_segment(peer);
        scene.receive_segment(peer, segment, rows);
        if scene.random_below(40) == 0 {
            scene.deregister_random();
        }
        scene.check_model();
    }
}

/// A device with memory, and the two peers that write to it.
struct Scene {
    rng: Rng,
    arena: Arc<Arena>,
    device: Arc<Device>,
    pieces: Vec<Piece>,
    peers: [Peer; 2],
}

/// Memory that peers may write, and its model.
struct Piece {
    tag: Tag,
    span: Span,
    /// If the piece is a window, the region that the window is bound to.
    region: Option<Tag>,
    one_touch: bool,
    /// Whether the tag is valid.
    valid: bool,
    /// The message that touched the piece, by peer and number.
    owner: Option<(usize, usize)>,
    /// The expected contents.
    bytes: Vec<u8>,
}

/// A peer and its stream, as seen by the receiver.
struct Peer {
    stream: Stream,
    messages: Vec<Message>,
    segments: Vec<Segment>,
    /// Position of the first byte of the stream that has not arrived.
    expected: u64,
    /// Whether the stream was terminated.
    terminated: bool,
}

/// A Write of a peer.
struct Message {
    /// Index of the piece that it writes to.
    piece: usize,
    touch: Touch,
    /// If the last segment arrived early, the position in the stream up to which all bytes must arrive before the
    /// message ends.
    ends_at: Option<u64>,
}

/// A segment of a message.
#[derive(Clone)]
struct Segment {
    /// Index of the message.
    message: usize,
    /// Position of the first byte in the stream.
    begin: u64,
    /// Position after the last byte.
    end: u64,
    /// Offset in the piece.
    at: usize,
    bytes: Vec<u8>,
    /// Whether this is the last segment of its message.
    last: bool,
    /// Whether the receiver has accepted the segment.
    arrived: bool,
}

impl Peer {
    /// Returns whether the stream was not terminated and segments are missing.
    fn is_open(&self) -> bool {
        !self.terminated && self.segments.iter().any(|segment| !segment.arrived)
    }

    /// Returns the position of a segment relative to the receive window.
    fn position(&self, segment: &Segment) -> Position {
        match segment {
            it if it.begin <= self.expected => Position::InOrder,
            it if it.end <= self.expected + WINDOW => Position::Within,
            _ => Position::Outside,
        }
    }

    /// Marks a segment as accepted, and advances the position of the first missing byte.
    fn advance(&mut self, index: usize) {
        self.segments[index].arrived = true;
        while let Some(next) = self.segments.iter().find(|it| it.arrived && it.begin == self.expected) {
            self.expected = next.end;
        }
    }
}

impl Scene {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::stream(seed, 2);
        let arena = Arena::new(0);
        let device = Device::new(DeviceConfig::default(), arena.clone(), tag_cipher(0));
        let domain = device.allocate_domain();
        let pieces = (0..PIECES).map(|_| Piece::random(&mut rng, &arena, &device, domain)).collect();
        let peers = [0, 1].map(|number| Peer::random(&mut rng, Stream { domain, qp: number }));
        Self { rng, arena, device, pieces, peers }
    }

    /// Returns a random number less than `limit`.
    fn random_below(&mut self, limit: usize) -> usize {
        usize::try_from(self.rng.below(limit as u64)).expect("a small number")
    }

    /// Returns the index of a random segment: usually near the next missing one, sometimes any other, even one that has
    /// arrived.
    fn random_segment(&mut self, peer: usize) -> usize {
        let some = self.random_below(self.peers[peer].segments.len());
        let missing: Vec<_> =
            self.peers[peer].segments.iter().enumerate().filter(|(_, it)| !it.arrived).collect();
        let near = missing[0].0;
        match self.rng.below(4) {
            0 => some,
            1 => near,
            _ => (near + some % 4).min(self.peers[peer].segments.len() - 1),
        }
    }

    /// Delivers a segment to the device, and checks that the memory table does what the model predicts.
    fn receive_segment(&mut self, peer: usize, index: usize, rows: &mut BTreeMap<Row, u64>) {
        let segment = self.peers[peer].segments[index].clone();
        if segment.arrived {
            return; // the transport drops a repeated segment
        }
        let position = self.peers[peer].position(&segment);
        let me = (peer, segment.message);
        let piece = &mut self.pieces[self.peers[peer].messages[segment.message].piece];
        let touched = piece.owner.is_some_and(|owner| owner != me);
        *rows.entry((segment.last, piece.one_touch, touched, position as u8)).or_default() += 1;

        // Ownership is checked before the decision table: no segment of a second message is placed, not even its last
        // one.
        let verdict = decide(segment.last, piece.one_touch, touched, position);
        let expected = match verdict {
            _ if !piece.valid => Err(Check::Valid),
            Verdict::Drop => return, // the peer will send it again
            _ if touched => Err(Check::Touched),
            _ => Ok(()),
        };
        piece.valid &= verdict != Verdict::InvalidateAndTerminate;

        let (device, stream) = (Arc::clone(&self.device), self.peers[peer].stream);
        let message = &mut self.peers[peer].messages[segment.message];
        message.touch.start_segment_at(segment.last, position);
        let (mut spans, addr) = (Spans::new(), RemoteAddr { tag: piece.tag, offset: segment.at as u64 });
        let (table, len, need) = (device.table(), segment.bytes.len(), Rights::REMOTE_WRITE);
        let found = table.admit_remote(stream, addr, len, need, &mut spans, &mut message.touch);
        assert_eq!(found.as_ref().map(|_| ()).map_err(|denied| denied.check), expected, "{verdict:?}");
        let Ok(guard) = found else {
            self.peers[peer].terminated = true; // the peer receives a Terminate
            return;
        };
        self.arena.scatter(&segment.bytes, &spans).expect("mapped memory");
        drop(guard);
        piece.bytes[segment.at..][..len].copy_from_slice(&segment.bytes);
        if piece.one_touch {
            piece.owner = Some(me);
        }
        assert_eq!(message.touch.is_complete(), verdict == Verdict::PlaceAndInvalidate);
        if verdict == Verdict::PlaceAndInvalidate {
            table.end_touch(message.touch);
            piece.valid = false;
        }
        if verdict == Verdict::PlaceAndTouch {
            message.ends_at = Some(segment.end);
        }
        if position != Position::Outside {
            self.peers[peer].advance(index);
            self.end_messages(peer);
        }
    }

    /// Ends messages whose last segment arrived early, once all bytes before it have arrived.
    fn end_messages(&mut self, peer: usize) {
        let Peer { messages, expected, .. } = &mut self.peers[peer];
        for message in messages {
            if message.ends_at.take_if(|end| *end <= *expected).is_some() {
                message.touch.start_segment_at(true, Position::InOrder);
                assert!(message.touch.is_complete());
                self.device.table().end_touch(message.touch);
                self.pieces[message.piece].valid = false;
            }
        }
    }

    /// Deregisters a random piece, even if a message has touched it.
    fn deregister_random(&mut self) {
        let some = self.random_below(PIECES);
        let piece = &mut self.pieces[some];
        let table = self.device.table();
        if piece.valid && table.look_up(piece.tag).is_some() {
            table.deregister(piece.tag).expect("a registered piece");
            piece.valid = false;
        }
    }

    /// Compares the table and the memory with the model.
    fn check_model(&self) {
        for piece in &self.pieces {
            let info = self.device.table().look_up(piece.tag);
            assert_eq!(info.is_some_and(|info| info.valid), piece.valid, "{info:?}");
            if piece.valid {
                assert_eq!(info.map(|info| info.touched), Some(piece.owner.is_some()), "{info:?}");
            }
            assert_eq!(self.arena.read(piece.span), piece.bytes);
            if let Some(region) = piece.region {
                assert!(self.device.table().look_up(region).is_some_and(|info| info.valid));
            }
        }
    }
}

impl Piece {
    /// Creates a random piece: a region, or a window bound to a region. Three in four are one-touch.
    fn random(rng: &mut Rng, arena: &Arena, device: &Device, domain: Domain) -> Self {
        let (one_touch, span) = (rng.below(4) > 0, arena.alloc(PIECE_LEN));
        let whole = Rights::LOCAL_READ | Rights::LOCAL_WRITE;
        let memory = |rights| Memory::direct(span.addr, PIECE_LEN as u64, rights).expect("no wrap");
        let (valid, owner, bytes) = (true, None, vec![0; PIECE_LEN]);
        if rng.below(2) == 0 {
            let memory = Memory { one_touch, start: 0, ..memory(whole | Rights::REMOTE_WRITE) };
            let tag = device.register(domain, memory).expect("mapped memory");
            return Self { tag, span, region: None, one_touch, valid, owner, bytes };
        }
        let region = device.register(domain, memory(whole | Rights::BIND)).expect("mapped memory");
        let window = device.table().allocate_window(domain).expect("a free tag");
        let binding = Binding {
            region,
            at: span.addr,
            len: PIECE_LEN as u64,
            rights: Rights::REMOTE_WRITE,
            one_touch,
            zero_based: true,
            scope: Scope::Domain,
        };
        let tag = device.table().bind(Stream { domain, qp: 0 }, window, binding).expect("a valid binding");
        Self { tag, span, region: Some(region), one_touch, valid, owner, bytes }
    }
}

impl Peer {
    /// Plans Writes to random pieces, some of which are written twice, in segments of random lengths.
    fn random(rng: &mut Rng, stream: Stream) -> Self {
        let (mut messages, mut segments, mut begin) = (Vec::new(), Vec::new(), 0);
        for message in 0..MESSAGES {
            let piece = usize::try_from(rng.below(PIECES as u64)).expect("an index");
            messages.push(Message { piece, touch: Touch::default(), ends_at: None });
            let (mut at, len) = (0, rng.part_of(PIECE_LEN));
            while at < len {
                let bytes: Vec<u8> =
                    (0..rng.part_of(len - at)).map(|_| rng.next().to_le_bytes()[0]).collect();
                let end = begin + bytes.len() as u64;
                let last = at + bytes.len() == len;
                let n = bytes.len();
                segments.push(Segment { message, begin, end, at, bytes, last, arrived: false });
                (at, begin) = (at + n, end);
            }
        }
        Self { stream, messages, segments, expected: 0, terminated: false }
    }
}
