//! The records in a ring: data, which is bytes of a stream, and others, which [`Control`] reads and writes.
//!
//! | record | channel | payload | meaning |
//! |---|---|---|---|
//! | data | the receiver's | bytes of a stream | |
//! | attach | 0 | token, the sender's channel | asks for a channel for the connection that this token was offered on |
//! | accept | the receiver's | the sender's channel | the answer: the connection has a channel |
//! | refuse | the receiver's | | the answer: there is no such offer |
//! | credit | the receiver's | number of bytes | the receiver may send this many bytes in all |
//! | close | 0 | | the sender has no channel left, and asks for none: a receiver without channels closes the carrier |

use crate::sys::segment::{Fault, MappedSegment};
use ironwarp_rnic::host::Span;
use ironwarp_rnic::link::Piece;
use ironwarp_shm::{Reader, Record};

/// The kinds of records.
pub(super) const DATA: u8 = 0;
const ATTACH: u8 = 1;
const ACCEPT: u8 = 2;
const REFUSE: u8 = 3;
const CREDIT: u8 = 4;
const CLOSE: u8 = 5;
/// Length of the longest payload of a record that is not data.
pub(super) const MAX_CONTROL: usize = 20;

/// The secret of an offer. Only the two ends of the TCP connection that it was sent on know it.
pub(crate) type Token = [u8; 16];

/// A record that is not data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Control {
    Attach { token: Token, reply: u32 },
    Accept { channel: u32, reply: u32 },
    Refuse { channel: u32 },
    Credit { channel: u32, granted: u64 },
    Close,
}

impl Control {
    /// Writes the payload of the record. Returns its channel and its kind.
    pub(super) fn write(self, record: &mut Record<'_>) -> (u32, u8) {
        match self {
            Self::Attach { token, reply } => {
                record.put(&token);
                record.put(&reply.to_ne_bytes());
                (0, ATTACH)
            }
            Self::Accept { channel, reply } => {
                record.put(&reply.to_ne_bytes());
                (channel, ACCEPT)
            }
            Self::Refuse { channel } => (channel, REFUSE),
            Self::Credit { channel, granted } => {
                record.put(&granted.to_ne_bytes());
                (channel, CREDIT)
            }
            Self::Close => (0, CLOSE),
        }
    }

    /// Reads the record at the front, and removes it. Returns `None` if it is not one that is defined.
    pub(super) fn read(reader: &mut Reader) -> Option<Self> {
        let front = reader.front().ok()??;
        let mut payload = [0; MAX_CONTROL];
        let len = reader.take(&mut payload);
        if front.left > MAX_CONTROL {
            reader.skip();
            return None;
        }
        let payload = &payload[..len];
        let word = |at: usize| Some(u32::from_ne_bytes(payload.get(at..at + 4)?.try_into().ok()?));
        let channel = front.channel;
        match (front.kind, len) {
            (ATTACH, 20) => Some(Self::Attach { token: payload[..16].try_into().ok()?, reply: word(16)? }),
            (ACCEPT, 4) => Some(Self::Accept { channel, reply: word(0)? }),
            (REFUSE, 0) => Some(Self::Refuse { channel }),
            (CREDIT, 8) => {
                Some(Self::Credit { channel, granted: u64::from_ne_bytes(payload.try_into().ok()?) })
            }
            (CLOSE, 0) => Some(Self::Close),
            _ => None,
        }
    }
}

/// The bytes that a send has not written yet.
pub(crate) struct Rest<'a> {
    pieces: &'a [Piece<'a>],
    /// Number of bytes of the first piece that were written.
    done: usize,
    /// Number of bytes to write.
    len: usize,
}

impl<'a> Rest<'a> {
    pub(super) fn new(pieces: &'a [Piece<'a>]) -> Self {
        let len = match pieces {
            [one] => one.len(), // as of a small message
            _ => pieces.iter().map(Piece::len).sum(),
        };
        Self { pieces, done: 0, len }
    }

    /// Returns the number of bytes that are left.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Fills a record with up to `wanted` bytes. Fails if memory of the program is not mapped: the record then ends before
    /// it.
    pub(super) fn fill(
        &mut self,
        record: &mut Record<'_>,
        wanted: usize,
        segment: &MappedSegment,
    ) -> Result<(), Fault> {
        let mut wanted = wanted.min(record.room());
        while let [first, rest @ ..] = self.pieces
            && wanted > 0
        {
            let len = (first.len() - self.done).min(wanted);
            match first {
                Piece::Own(bytes) => record.put(&bytes[self.done..self.done + len]),
                Piece::Host(span) => {
                    let mut at = span.addr.saturating_add(self.done as u64);
                    record.put_with(len, |to, _, len| {
                        let part = Span { addr: at, len, held: span.held };
                        at = at.saturating_add(len as u64);
                        segment.copy_in(part, to)
                    })?;
                }
            }
            (self.done, self.len, wanted) = (self.done + len, self.len - len, wanted - len);
            if self.done == first.len() {
                (self.pieces, self.done) = (rest, 0);
            }
        }
        Ok(())
    }
}
