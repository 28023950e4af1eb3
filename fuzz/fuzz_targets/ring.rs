//! Two rings in shared memory, with both of their ends. The input is a script of operations, and of writes of a hostile process to the
//! memory. There must be no panic and no access outside the data of a ring, and an error must last. Until the first write of the
//! hostile process, every byte must arrive as it was sent.
#![no_main]
#![allow(clippy::unwrap_used, reason = "a fuzz target: every panic is a finding")]

use ironwarp_shm::layout::{HEAD, HEADER, ROOM_WANTED, SLEEPING, TAIL, control_offset, data_offset};
use ironwarp_shm::{
    Corrupt, Front, Heap, MAX_RECORD, RING_LEN, Reader, SEGMENT_LEN, Segment, Side, Sleep, Watch, Writer,
    open,
};
use libfuzzer_sys::fuzz_target;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;

/// Words of a control page.
const WORDS: [usize; 4] = [HEAD, TAIL, ROOM_WANTED, SLEEPING];

fuzz_target!(|script: &[u8]| {
    let segment = Arc::new(Heap::new());
    let mut ends = [Side::Creator, Side::Joiner].map(|side| End::open(&segment, side));
    let mut sent = [Sent::default(), Sent::default()];
    let mut honest = true;
    let mut script = Script(script);
    while let Some([what, a, b]) = script.take() {
        let (side, number) = (usize::from(what >> 7), usize::from(u16::from_be_bytes([a, b])));
        if what % 8 == 7 {
            honest = false;
            scribble(&segment, &mut script, what >> 3, number);
            continue;
        }
        let end = &mut ends[side];
        if end.operate(what, number, &mut sent, honest).is_err() {
            assert!(!honest, "an honest peer is accused");
            end.assert_corrupt();
        }
    }
});

struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (front, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*front)
    }
}

/// Writes to a control word or to the data: the next 8 bytes of the script, or the value that is there, changed a little.
fn scribble(segment: &Heap, script: &mut Script<'_>, how: u8, number: usize) {
    let offset = match how & 1 {
        0 => control_offset(number & 1) + WORDS[number >> 1 & 3],
        _ => data_offset(number & 1) + (number >> 1) * HEADER % RING_LEN,
    };
    let mut word = [0; 8];
    segment.read(offset, &mut word);
    let near = u64::from_ne_bytes(word).wrapping_add_signed(i64::try_from(number >> 4).unwrap() - 2048);
    let word = match how & 2 {
        0 => near.to_ne_bytes(),
        _ => script.take().unwrap_or([0xff; 8]),
    };
    segment.write(offset, &word);
}

/// What was sent in one direction.
#[derive(Default)]
struct Sent {
    finished: VecDeque<(Front, u8)>,
    published: VecDeque<(Front, u8)>,
    count: u8,
}

/// One end, and the place of its data.
struct End {
    segment: Arc<Heap>,
    writer: Writer,
    reader: Reader,
    watch: Watch,
    /// The ring that it writes; it reads the other one.
    ring: usize,
    /// Whether finished records wait to be published.
    unpublished: bool,
}

impl End {
    fn open(segment: &Arc<Heap>, side: Side) -> Self {
        let (writer, reader, watch) = open(segment.clone(), side);
        let ring = usize::from(side == Side::Joiner);
        Self { segment: Arc::clone(segment), writer, reader, watch, ring, unpublished: false }
    }

    fn operate(
        &mut self,
        what: u8,
        number: usize,
        sent: &mut [Sent; 2],
        honest: bool,
    ) -> Result<(), Corrupt> {
        let [one, two] = sent;
        let (outgoing, incoming) = if self.ring == 0 { (one, two) } else { (two, one) };
        match what % 8 {
            0 | 1 => self.put(number, outgoing, what & 8 != 0)?,
            2 => {
                let _: bool = self.writer.publish();
                self.unpublished = false;
                outgoing.published.append(&mut outgoing.finished);
            }
            3 | 4 => self.take(number, incoming, what & 8 != 0, honest)?,
            5 => {
                let _: bool = self.reader.release();
            }
            _ => self.wait(incoming, honest)?,
        }
        Ok(())
    }

    /// Appends a record whose bytes are all the same.
    fn put(&mut self, wanted: usize, sent: &mut Sent, directly: bool) -> Result<(), Corrupt> {
        let Some(mut record) = self.writer.begin(wanted)? else { return Ok(()) };
        let room = record.room();
        assert!(room <= wanted.min(MAX_RECORD));
        sent.count = sent.count.wrapping_add(1);
        if directly {
            let (segment, ring) = (&self.segment, self.ring);
            let Ok(()) = record.put_with(room, |at, offset, len| {
                let offset = inside(segment, ring, at.addr(), offset, len);
                segment.write(offset, &vec![sent.count; len]);
                Ok::<(), Infallible>(())
            });
        } else {
            record.put(&vec![sent.count; room]);
        }
        record.finish(wanted.try_into().unwrap(), sent.count & 0xf);
        self.unpublished = true;
        let front = Front { channel: wanted.try_into().unwrap(), kind: sent.count & 0xf, left: room };
        sent.finished.push_back((front, sent.count));
        Ok(())
    }

    /// Takes a part of the front record; the rest if `number` is odd.
    fn take(&mut self, number: usize, sent: &mut Sent, directly: bool, honest: bool) -> Result<(), Corrupt> {
        let front = self.reader.front()?;
        if honest {
            assert_eq!(front, sent.published.front().map(|(front, _)| *front));
        }
        let Some(front) = front else { return Ok(()) };
        assert!(front.left <= MAX_RECORD && front.kind <= 0xf);
        let len = if number & 1 == 0 { number.min(front.left) } else { front.left };
        let mut bytes = Vec::with_capacity(len);
        if directly {
            let (segment, ring) = (&self.segment, 1 - self.ring);
            let Ok(()) = self.reader.take_with(len, |at, offset, len| {
                let offset = inside(segment, ring, at.addr(), offset, len);
                let start = bytes.len();
                bytes.resize(start + len, 0);
                segment.read(offset, &mut bytes[start..]);
                Ok::<(), Infallible>(())
            });
        } else {
            bytes.resize(len, 0);
            assert_eq!(self.reader.take(&mut bytes), len);
        }
        assert_eq!(bytes.len(), len);
        if honest {
            let (front, byte) = sent.published.front_mut().unwrap();
            assert!(bytes.iter().all(|it| it == byte));
            front.left -= len;
            if front.left == 0 {
                sent.published.pop_front();
            }
        }
        Ok(())
    }

    /// Asks the watch, sleeps, and asks for room.
    fn wait(&mut self, sent: &Sent, honest: bool) -> Result<(), Corrupt> {
        let news = self.watch.has_news();
        assert!(!honest || news != sent.published.is_empty());
        let _: bool = self.watch.has_room_news() | self.watch.peer_wants_room();
        if self.watch.sleep() != Sleep::News {
            assert!(!news, "nobody writes meanwhile");
            self.watch.wake();
        }
        if !self.unpublished && self.writer.await_room()? {
            assert!(self.writer.begin(MAX_RECORD)?.is_some());
        }
        Ok(())
    }

    /// One of the two rings is corrupt, and stays so.
    fn assert_corrupt(&mut self) {
        let writes = self.writer.begin(0).map(|_| ()).is_err();
        let reads = self.reader.front().is_err();
        assert!(writes || reads);
    }
}

/// Asserts that a piece is within the data of a ring. Returns its offset.
fn inside(segment: &Heap, ring: usize, at: usize, offset: u64, len: usize) -> usize {
    let offset = usize::try_from(offset).unwrap();
    assert_eq!(at, segment.base().addr().get() + offset);
    assert!(len > 0 && offset >= data_offset(ring) && offset + len <= data_offset(ring) + RING_LEN);
    assert!(offset + len <= SEGMENT_LEN);
    offset
}
