//! Two threads, one for each end, that send each other a long stream and verify every byte. They sleep whenever they
//! have nothing to do, so a lost bell hangs the test.

use super::{End, ends, pattern_at};
use crate::{MAX_RECORD, Sleep};
use std::sync::{Condvar, Mutex};
use std::thread;

/// Bytes in each direction.
const TOTAL: usize = if cfg!(miri) { 600 << 10 } else { 12 << 20 };

/// What an eventfd does.
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
        let rung = self.rung.lock().unwrap();
        *self.changed.wait_while(rung, |rung| !*rung).unwrap() = false;
    }
}

struct Peer<'a> {
    end: End,
    bell: &'a Bell,
    of_other: &'a Bell,
    sent: usize,
    received: usize,
    /// State of a generator of lengths.
    random: u64,
}

impl Peer<'_> {
    fn run(mut self, limit: usize) {
        while self.sent < TOTAL || self.received < TOTAL {
            let progress = self.send(limit) | self.receive(limit);
            if !progress && self.may_sleep() {
                self.bell.wait();
                self.end.watch.wake();
            }
        }
    }

    /// Lengths below `limit`, of all magnitudes.
    fn length(&mut self, limit: usize) -> usize {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let bits = self.random >> 33;
        usize::try_from(bits >> (bits % 16)).unwrap() % limit
    }

    /// Sends a few records. Returns whether there was room.
    fn send(&mut self, limit: usize) -> bool {
        let mut progress = false;
        for _ in 0..4 {
            let wanted = self.length(limit).min(TOTAL - self.sent);
            let Some(mut record) = self.end.writer.begin(wanted).unwrap() else { break };
            let bytes: Vec<u8> = (self.sent..).take(record.room()).map(pattern_at).collect();
            record.put(&bytes);
            record.finish(u32::try_from(self.sent).unwrap(), 1);
            self.sent += bytes.len();
            progress |= !bytes.is_empty();
        }
        self.of_other.ring_if(self.end.writer.publish());
        progress
    }

    /// Receives what there is. Returns whether there was something.
    fn receive(&mut self, limit: usize) -> bool {
        let mut progress = false;
        while let Some(front) = self.end.reader.front().unwrap() {
            let at = u32::try_from(self.received).unwrap();
            assert!(front.channel <= at && at as usize <= front.channel as usize + MAX_RECORD);
            let mut into = vec![0; self.length(limit)];
            let taken = self.end.reader.take(&mut into);
            let wrong = (0..taken).find(|at| into[*at] != pattern_at(self.received + at));
            assert_eq!(wrong.map(|wrong| self.received + wrong), None, "wrong byte");
            self.received += taken;
            progress = true;
        }
        self.of_other.ring_if(self.end.reader.release());
        progress
    }

    /// Declares that we sleep, and whether we wait for room.
    fn may_sleep(&mut self) -> bool {
        if self.sent < TOTAL && self.end.writer.await_room().unwrap() {
            return false;
        }
        match self.end.watch.sleep() {
            Sleep::News => false,
            Sleep::Asleep { peer_wants_room } => {
                self.of_other.ring_if(peer_wants_room);
                true
            }
        }
    }
}

fn stream(limits: [usize; 2]) {
    let (_, creator, joiner) = ends();
    let bells = [Bell::default(), Bell::default()];
    let peer = |end, bell, of_other, random| Peer { end, bell, of_other, sent: 0, received: 0, random };
    thread::scope(|scope| {
        scope.spawn(|| peer(creator, &bells[0], &bells[1], 1).run(limits[0]));
        scope.spawn(|| peer(joiner, &bells[1], &bells[0], 2).run(limits[1]));
    });
}

#[test]
fn streams_arrive_unharmed() {
    stream([MAX_RECORD + 1; 2]);
}

#[test]
fn streams_of_different_lengths_arrive_unharmed() {
    stream([3000, MAX_RECORD + 1]);
}
