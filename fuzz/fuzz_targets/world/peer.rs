//! The peer, which sends what the script says. It counts sequence numbers correctly, unless the script says otherwise.

use super::host::{FOREIGN, GONE, PAGE, READABLE, RECEIVES, REGIONS, SINK, TAGS, WORDS, WRITABLE};
use ironwarp_wire::mpa::FpduWriter;
use ironwarp_wire::private::{Capabilities, Route, SendImmediate, Signal};
use ironwarp_wire::{
    AtomicOp, AtomicRequest, AtomicResponse, Cause, Header, Immediate, ImmediateData, Offender, ReadRequest,
    RemoteAddr, Send, SendWord, Tag, Tagged, Terminate,
};

/// The bytes of the input, followed by zeros.
pub(crate) struct Script<'a>(pub(crate) &'a [u8]);

impl Script<'_> {
    pub(crate) fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn word(&mut self) -> u32 {
        u32::from_be_bytes([self.byte(), self.byte(), self.byte(), self.byte()])
    }

    /// Returns a number near one of these values.
    fn near(&mut self, values: &[u64]) -> u64 {
        let choice = self.byte();
        let value = values[usize::from(choice) % values.len()];
        value.wrapping_add_signed(i64::from(self.byte() as i8))
    }
}

pub(crate) struct Peer {
    pub(crate) writer: FpduWriter,
    /// The next message sequence numbers of Sends, of requests, and of Atomic Responses.
    pub(crate) msn: [u32; 3],
    /// The identifier of the device's next atomic operation, which counts its requests.
    pub(crate) ids: u32,
    /// The responses that the device waits for.
    pub(crate) due: Vec<Due>,
    pub(crate) tags: [Tag; TAGS],
}

pub(crate) enum Due {
    Read(RemoteAddr, u32),
    Atomic,
}

pub(crate) const SIGNAL: u8 = 10;

impl Peer {
    fn addr(&mut self, script: &mut Script<'_>) -> RemoteAddr {
        let choice = usize::from(script.byte());
        let tag = match choice % 12 {
            9 => Tag(0),
            10 => Tag(0x1234_5678),
            // The window after it was bound.
            11 => Tag(self.tags[REGIONS].0 + 1),
            index => self.tags[index],
        };
        let pages = [WRITABLE, READABLE, RECEIVES, SINK, FOREIGN, GONE, WORDS, WRITABLE + PAGE, u64::MAX, 0];
        RemoteAddr { tag, offset: script.near(&pages) }
    }

    /// Returns the next number of a queue, or the one after it.
    fn next(&mut self, queue: usize, flags: u8, last: bool) -> u32 {
        let msn = self.msn[queue].wrapping_add(u32::from(flags & 0x1c == 0x1c));
        self.msn[queue] = self.msn[queue].wrapping_add(u32::from(last));
        msn
    }

    fn send(&mut self, script: &mut Script<'_>, flags: u8) -> Send {
        let last = flags & 1 == 0;
        let msn = self.next(0, flags, last);
        let offset = u32::from(script.byte()) * u32::from(flags & 0x20 != 0);
        let word = match flags & 0x40 {
            0 => SendWord::Srq(u32::from(flags >> 7)),
            _ => SendWord::Invalidate(self.addr(script).tag),
        };
        Send { msn, last, offset, solicited: flags & 0x80 != 0, word }
    }

    pub(crate) fn header(&mut self, script: &mut Script<'_>, what: u8, flags: u8, len: usize) -> Header {
        let last = flags & 1 == 0;
        match what {
            0 | 1 => Header::Write(Tagged { last, addr: self.addr(script) }),
            2 | 3 => Header::Send(self.send(script, flags)),
            4 => {
                let send = self.send(script, flags);
                let first = send.offset == 0;
                Header::SendImmediate(SendImmediate { send, immediate: first.then(|| ImmediateData::new(7)) })
            }
            5 => {
                let msn = self.next(0, flags, true);
                let (solicited, srq) = (flags & 0x80 != 0, u32::from(flags >> 7));
                Header::Immediate(Immediate { msn, solicited, srq, data: ImmediateData::new(5) })
            }
            6 => {
                let msn = self.next(1, flags, true);
                let (sink, source) = (self.addr(script), self.addr(script));
                Header::ReadRequest(ReadRequest { msn, sink, len: script.word() % 8192, source })
            }
            7 => {
                let (msn, target) = (self.next(1, flags, true), self.addr(script));
                let op = match flags & 1 {
                    0 => AtomicOp::FetchAdd { add: script.word().into(), mask: script.byte().into() },
                    _ => AtomicOp::CompareSwap { swap: 1, swap_mask: u64::MAX, compare: 2, compare_mask: 0 },
                };
                Header::AtomicRequest(AtomicRequest { msn, id: script.byte().into(), target, op })
            }
            8 | 9 => self.answer(script, flags, len),
            SIGNAL => match flags & 7 {
                0 => Signal::Capabilities(Capabilities::from_bits_truncate(script.byte().into())).to_header(),
                1 => Signal::NotReady(script.byte().into()).to_header(),
                2 => Signal::Offer { part: script.byte() % 5, data: [flags; 6] }.to_header(),
                3 => {
                    Signal::Switch(if flags & 8 == 0 { Route::SharedMemory } else { Route::Tcp }).to_header()
                }
                4 => Signal::Leave.to_header(),
                5 => Signal::Left.to_header(),
                _ => Signal::Acknowledged(script.byte().into()).to_header(),
            },
            _ => Header::Terminate(Terminate {
                cause: Cause::from_wire(script.byte() & 3, script.byte() & 3, script.byte()),
                offender: Offender::default(),
            }),
        }
    }

    /// Returns a response that is due, or an unsolicited one.
    fn answer(&mut self, script: &mut Script<'_>, flags: u8, len: usize) -> Header {
        let last = flags & 1 == 0;
        match self.due.first_mut() {
            Some(Due::Read(addr, left)) if flags & 0x10 == 0 => {
                let at = *addr;
                addr.offset += len as u64;
                *left = left.saturating_sub(len as u32);
                if last {
                    self.due.remove(0);
                    self.ids += 1;
                }
                Header::ReadResponse(Tagged { last, addr: at })
            }
            Some(Due::Atomic) if flags & 0x10 == 0 => {
                self.due.remove(0);
                let id = self.ids + u32::from(flags & 0x1c == 0x1c);
                self.ids += 1;
                let msn = self.next(2, flags, true);
                Header::AtomicResponse(AtomicResponse { msn, id, original: script.word().into() })
            }
            _ if flags & 0x20 != 0 => {
                let (msn, id) = (self.next(2, flags, true), script.byte().into());
                Header::AtomicResponse(AtomicResponse { msn, id, original: 0 })
            }
            _ => Header::ReadResponse(Tagged { last, addr: self.addr(script) }),
        }
    }
}
