//! Streams of messages of mixed sizes in both directions at once, with every byte verified.

use super::common::{End, Random, TIMEOUT, check, pattern};
use ironwarp_rnic::queue::{Completion, Opcode, Operation, Status};
use ironwarp_wire::RemoteAddr;
use std::collections::VecDeque;

/// Immediate data of the last message.
const LAST: u32 = 0x1a57;
/// Length of the memory that the peer reads.
const CONSTANT: usize = 20_000;
/// Identifier of Reads.
const READ: u64 = u64::MAX;

/// The messages that one end sends: their sizes and contents.
#[derive(Clone, Copy)]
pub(crate) struct Messages {
    pub(crate) seed: u64,
    /// Maximum length.
    pub(crate) max: usize,
}

impl Messages {
    /// Returns the length of a message: many are short, and some have the maximum length.
    fn len(&self, number: u64) -> usize {
        let mut random = Random(self.seed ^ number.wrapping_mul(0x9e37_79b9));
        random.below(64);
        let limit =
            [64, 300, 5_000, 70_000, self.max][usize::try_from(random.below(5)).unwrap()].min(self.max);
        match random.below(8) {
            0 => limit,
            _ => usize::try_from(random.below(limit as u64 + 1)).unwrap(),
        }
    }

    fn seed_of(&self, number: u64) -> u64 {
        self.seed << 32 ^ number
    }
}

/// Where in the memory of an end a stream has its buffers.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(crate) at: usize,
    /// Number of sends, and of receives, that are posted at a time.
    pub(crate) slots: usize,
    /// Length of a buffer.
    pub(crate) max: usize,
}

impl Place {
    /// Number of bytes that the buffers need.
    pub(crate) const fn len(&self) -> usize {
        2 * self.slots * self.max + 2 * CONSTANT
    }

    fn source(&self, number: u64) -> usize {
        self.at + self.slot(number) * self.max
    }

    fn sink(&self, number: u64) -> usize {
        self.at + (self.slots + self.slot(number)) * self.max
    }

    fn slot(&self, number: u64) -> usize {
        usize::try_from(number).unwrap() % self.slots
    }

    /// The memory that the peer reads.
    pub(crate) const fn constant(&self) -> usize {
        self.at + 2 * self.slots * self.max
    }

    /// Where this end reads to.
    const fn read_sink(&self) -> usize {
        self.constant() + CONSTANT
    }
}

/// One end of a stream.
pub(crate) struct Stream<'a> {
    end: &'a End,
    place: Place,
    own: Messages,
    others: Messages,
    /// The memory of the peer that is read.
    constant: Option<RemoteAddr>,
    sent: u64,
    /// Sends that are not complete.
    outstanding: VecDeque<u64>,
    reading: bool,
    pub(crate) reads: u64,
    pub(crate) received: u64,
    last_sent: bool,
    last_received: bool,
}

impl<'a> Stream<'a> {
    /// Prepares the memory and posts the receives. `own` are the messages that this end sends.
    pub(crate) fn new(end: &'a End, place: Place, own: Messages, others: Messages) -> Self {
        assert!(own.max.max(others.max) <= place.max);
        end.host.memory.write(place.constant(), &pattern(own.seed, CONSTANT));
        for number in 0..place.slots as u64 {
            end.receive(number, place.sink(number), place.max);
        }
        let (constant, outstanding) = (None, VecDeque::new());
        let (sent, received, reads) = (0, 0, 0);
        let (reading, last_sent, last_received) = (false, false, false);
        Self {
            end,
            place,
            own,
            others,
            constant,
            sent,
            outstanding,
            reading,
            reads,
            received,
            last_sent,
            last_received,
        }
    }

    /// Also reads this memory of the peer, the [constant](Place::constant) of its place, all the time.
    pub(crate) fn reading(mut self, constant: RemoteAddr) -> Self {
        self.constant = Some(constant);
        self
    }

    /// Sends until `more`, which gets the number of messages sent, returns false, and receives until the peer has sent its
    /// last message. Returns the first completion that fails.
    pub(crate) fn run(&mut self, more: impl Fn(u64) -> bool) -> Result<(), Completion> {
        while !(self.last_sent && self.last_received && self.outstanding.is_empty() && !self.reading) {
            while self.outstanding.len() < self.place.slots && !self.last_sent {
                self.send(!more(self.sent));
            }
            if let Some(constant) = self.constant.filter(|_| !self.reading && !self.last_sent) {
                self.read(constant);
            }
            let stuck = |stream: &Self| {
                format!(
                    "stuck: sent {}, {} outstanding, last {}, received {}, last {}, reading {}, routes {:?}",
                    stream.sent,
                    stream.outstanding.len(),
                    stream.last_sent,
                    stream.received,
                    stream.last_received,
                    stream.reading,
                    stream.end.routes(),
                )
            };
            let completion = self.end.next_within(TIMEOUT).unwrap_or_else(|| panic!("{}", stuck(self)));
            self.handle(completion)?;
        }
        Ok(())
    }

    /// Sends the next message. What cannot be posted any more is not sent: a completion reports why.
    fn send(&mut self, last: bool) {
        let (number, len) = (self.sent, self.own.len(self.sent));
        let at = self.place.source(number);
        self.end.host.memory.write(at, &pattern(self.own.seed_of(number), len));
        let mut request = self.end.request(number, Operation::Send { invalidate: None }, at, len);
        request.immediate = last.then_some(LAST);
        let _ = self.end.pair.post_send([request]);
        self.outstanding.push_back(number);
        self.sent += 1;
        self.last_sent |= last;
    }

    fn read(&mut self, from: RemoteAddr) {
        let _ = self.end.pair.post_send([self.end.request(
            READ,
            Operation::Read(from),
            self.place.read_sink(),
            CONSTANT,
        )]);
        self.reading = true;
    }

    fn handle(&mut self, completion: Completion) -> Result<(), Completion> {
        if completion.status != Status::Success {
            return Err(completion);
        }
        match completion.opcode {
            Opcode::Send => {
                assert_eq!(Some(completion.wr_id), self.outstanding.pop_front(), "sends complete in order");
            }
            Opcode::Read => {
                let found = self.end.host.memory.read(self.place.read_sink(), CONSTANT);
                check(&found, self.others.seed, "what was read");
                self.reading = false;
                self.reads += 1;
            }
            Opcode::Receive => self.check(&completion),
            _ => panic!("{completion:?}"),
        }
        Ok(())
    }

    /// Checks a message, and posts its receive again.
    fn check(&mut self, completion: &Completion) {
        let number = self.received;
        let slot = self.place.slot(number) as u64;
        assert_eq!(completion.wr_id, slot, "message {number}: receives complete in order");
        assert_eq!(completion.byte_len as usize, self.others.len(number), "length of message {number}");
        let found = self.end.host.memory.read(self.place.sink(number), completion.byte_len as usize);
        check(&found, self.others.seed_of(number), &format!("message {number}"));
        self.received += 1;
        self.last_received |= completion.immediate == Some(LAST);
        if !self.last_received {
            self.end.receive(slot, self.place.sink(number), self.place.max);
        }
    }
}

/// Streams between two ends of this process, on two threads, until `more` returns false. Returns the number of messages
/// that both have received, and of Reads.
pub(crate) fn stream_between(
    client: &End,
    server: &End,
    place: Place,
    more: impl Fn(u64) -> bool + Sync,
) -> (u64, u64) {
    let messages = |seed| Messages { seed, max: place.max };
    let constant = |of: &End| of.remote_addr(place.constant());
    let near = Stream::new(client, place, messages(3), messages(4)).reading(constant(server));
    let far = Stream::new(server, place, messages(4), messages(3)).reading(constant(client));
    std::thread::scope(|scope| {
        let threads = [near, far].map(|mut stream| {
            let more = &more;
            scope.spawn(move || {
                stream.run(more).unwrap_or_else(|failed| panic!("{failed:?}"));
                (stream.received, stream.reads)
            })
        });
        let [near, far] = threads.map(|thread| thread.join().unwrap());
        (near.0 + far.0, near.1 + far.1)
    })
}
