//! Model checks of the rings with loom, which runs every interleaving of the threads and lets a relaxed load return
//! any value that the memory model allows. A lost bell is a deadlock, or a loop without end. Records are as long as the
//! parts of the ring whose accesses loom checks, so that 8 of them fill it.
//!
//! Each model says which lines it fails without.

use crate::end::{Side, end};
use crate::heap::Heap;
use crate::layout::{HEADER, MAX_RECORD, RING_LEN};
use crate::reader::Reader;
use crate::ring::Ring;
use crate::segment::Segment;
use crate::watch::{Sleep, Watch};
use crate::writer::Writer;
use loom::sync::{Condvar, Mutex};
use loom::thread;
use std::convert::Infallible;
use std::sync::Arc;

/// The number of records that fill the ring.
const FULL: u32 = (RING_LEN / MAX_RECORD) as u32;
const PAYLOAD: usize = MAX_RECORD - HEADER;

/// An eventfd.
#[derive(Default)]
struct Bell {
    rung: Mutex<bool>,
    changed: Condvar,
}

impl Bell {
    fn ring_if(&self, wanted: bool) {
        if wanted {
            *self.rung.lock().unwrap() = true;
            self.changed.notify_one();
        }
    }

    fn wait(&self) {
        let mut rung = self.rung.lock().unwrap();
        while !*rung {
            rung = self.changed.wait(rung).unwrap();
        }
        *rung = false;
    }
}

/// The process that writes. Its reader is of no interest.
struct Sender {
    writer: Writer,
    watch: Watch,
    bells: Arc<[Bell; 2]>,
}

/// The process that reads.
struct Receiver {
    reader: Reader,
    watch: Watch,
    bells: Arc<[Bell; 2]>,
    received: u32,
}

/// Runs a model. The memory is not part of it: what is in the data is the last that was written there.
fn model(check: impl Fn(Sender, Receiver) + Send + Sync + 'static) {
    let segment: Arc<dyn Segment> = Arc::new(Heap::new());
    loom::model(move || {
        let (rings, bells) = (Ring::both(&segment), Arc::new([Bell::default(), Bell::default()]));
        let (writer, _, watch) = end(rings.clone(), Side::Creator);
        let sender = Sender { writer, watch, bells: Arc::clone(&bells) };
        let (_, reader, watch) = end(rings, Side::Joiner);
        check(sender, Receiver { reader, watch, bells, received: 0 });
    });
}

impl Sender {
    /// Appends a record, if there is room.
    fn try_put(&mut self, channel: u32) -> bool {
        let Some(mut record) = self.writer.begin(PAYLOAD).unwrap() else { return false };
        assert_eq!(record.room(), PAYLOAD);
        record.put_with(PAYLOAD, |_, _, _| Ok::<(), Infallible>(())).unwrap();
        record.finish(channel, 0);
        true
    }

    fn publish(&mut self) {
        let sleeps = self.writer.publish();
        self.bells[1].ring_if(sleeps);
    }

    fn fill(&mut self) {
        (0..FULL).for_each(|channel| assert!(self.try_put(channel)));
        self.publish();
    }

    /// Sends a record; without room, waits for the bell.
    fn send(&mut self, channel: u32) {
        while !self.try_put(channel) {
            if !self.writer.await_room().unwrap() {
                self.bells[0].wait();
            }
        }
        self.publish();
    }

    /// Sends a record; without room, asks for it and polls.
    fn send_polling(&mut self, channel: u32) {
        while !self.try_put(channel) {
            if !self.writer.await_room().unwrap() {
                while !self.watch.has_room_news() {
                    thread::yield_now();
                }
            }
        }
        self.publish();
    }
}

impl Receiver {
    /// Reads the next record, which must be the next that was sent.
    fn read(&mut self) -> bool {
        let Some(front) = self.reader.front().unwrap() else { return false };
        assert_eq!((front.channel, front.left), (self.received, PAYLOAD));
        self.reader.skip();
        self.received += 1;
        true
    }

    fn release(&mut self) {
        let wanted = self.reader.release();
        self.bells[0].ring_if(wanted);
    }

    /// Reads all there is, and releases it at once.
    fn drain(&mut self) {
        while self.read() {}
        self.release();
    }

    /// Receives until `total` records have arrived; sleeps while there are none.
    fn receive(&mut self, total: u32) {
        self.drain();
        while self.received < total {
            if let Sleep::Asleep { peer_wants_room } = self.watch.sleep() {
                self.bells[0].ring_if(peer_wants_room);
                self.bells[1].wait();
            }
            self.drain();
        }
    }

    /// Receives until `total` records have arrived, without sleeping.
    fn receive_polling(&mut self, total: u32) {
        self.drain();
        while self.received < total {
            if self.watch.has_news() {
                self.drain();
            } else {
                self.bells[0].ring_if(self.watch.peer_wants_room());
                thread::yield_now();
            }
        }
    }
}

/// Fails without the fence in `Writer::publish`, without that in `Watch::sleep`, and without its look at the head
/// after it. Loom reports a race of data if the head is not stored with Release, or not loaded with Acquire.
#[test]
fn loom_no_record_is_left_while_the_reader_sleeps() {
    model(|mut sender, mut receiver| {
        let writing = thread::spawn(move || (0..2).for_each(|channel| sender.send(channel)));
        receiver.receive(2);
        writing.join().unwrap();
    });
}

/// The reader stops sleeping without a bell, polls, and sleeps again. Fails without the same lines, and if the reader
/// calls `Watch::wake` after it polled instead of before.
#[test]
fn loom_a_reader_may_wake_up_by_itself() {
    model(|mut sender, mut receiver| {
        let writing = thread::spawn(move || sender.send(0));
        if let Sleep::Asleep { .. } = receiver.watch.sleep() {
            receiver.watch.wake();
        }
        receiver.receive(1);
        writing.join().unwrap();
    });
}

/// Fails without the fence in `Writer::await_room`, without that in `Watch::sleep`, and without the call of
/// `peer_wants_room` after it: `Reader::release` alone misses requests. Loom reports a race of data if the tail is not
/// stored with Release, or not loaded with Acquire.
#[test]
fn loom_a_writer_that_waits_for_room_is_rung() {
    model(|mut sender, mut receiver| {
        sender.fill();
        let writing = thread::spawn(move || sender.send(FULL));
        receiver.receive(FULL + 1);
        writing.join().unwrap();
    });
}

/// The reader releases each record, which rings only from a quarter of the ring on. Fails without the same lines.
#[test]
fn loom_a_writer_is_rung_if_records_are_released_one_by_one() {
    model(|mut sender, mut receiver| {
        sender.fill();
        let writing = thread::spawn(move || sender.send(FULL));
        while receiver.read() {
            receiver.release();
        }
        receiver.receive(FULL + 1);
        writing.join().unwrap();
    });
}

/// One thread releases, and another one goes to sleep. Fails without the same lines.
#[test]
fn loom_a_writer_is_rung_if_the_reader_changes_hands() {
    model(|mut sender, receiver| {
        sender.fill();
        let receiver = Arc::new(Mutex::new(receiver));
        let first = Arc::clone(&receiver);
        let reading = thread::spawn(move || first.lock().unwrap().drain());
        let writing = thread::spawn(move || sender.send(FULL));
        receiver.lock().unwrap().receive(FULL + 1);
        reading.join().unwrap();
        writing.join().unwrap();
    });
}

/// Fails if a reader that polls does not call `Watch::peer_wants_room`.
#[test]
fn loom_a_writer_that_waits_for_room_is_rung_by_a_polling_reader() {
    model(|mut sender, mut receiver| {
        sender.fill();
        let writing = thread::spawn(move || sender.send(FULL));
        receiver.receive_polling(FULL + 1);
        writing.join().unwrap();
    });
}

/// Fails if `Writer::await_room` does not record the tail that it has seen.
#[test]
fn loom_a_writer_may_poll_for_room() {
    model(|mut sender, mut receiver| {
        sender.fill();
        let writing = thread::spawn(move || sender.send_polling(FULL));
        receiver.receive(FULL + 1);
        writing.join().unwrap();
    });
}
