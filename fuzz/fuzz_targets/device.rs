//! The receive path of a device with live regions, windows and queue pairs, fed by a peer who means no good. The input is
//! a script: what the peer sends, well-formed or not, and what the program does meanwhile. No panic, and not one byte
//! outside of what the peer was granted changes.
#![no_main]
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    reason = "a fuzz target: every panic is a finding"
)]

use ironwarp_rnic::config::Config;
use ironwarp_rnic::connect::{Agreed, Depths, Role, Setup};
use ironwarp_rnic::device::Device;
use ironwarp_rnic::error::Fault;
use ironwarp_rnic::host::{Host, Span, Unmapped};
use ironwarp_rnic::link::{Link, LinkError, Piece};
use ironwarp_rnic::memory::{Domain, Memory, Rights};
use ironwarp_rnic::qp::{Attendant, Attributes, Completes, Qp, Ready, Receives, State};
use ironwarp_rnic::queue::{Cq, Data, Operation, ReceiveRequest, Sge, WorkRequest};
use ironwarp_wire::mpa::{FpduWriter, Framing, RtrSet};
use ironwarp_wire::private::{Capabilities, Signal};
use ironwarp_wire::{Cause, Header, Offender, Place, ReadRequest, Send, SendWord, Tag, Tagged, Terminate};
use libfuzzer_sys::fuzz_target;
use std::sync::{Arc, Mutex};

/// The program's memory: one page after another, nothing before, nothing behind.
const BASE: u64 = 0x10_0000;
const PAGE: u64 = 0x400;
const CANARY: u8 = 0xa5;
const UNTOUCHED: [u8; PAGE as usize] = [CANARY; PAGE as usize];
/// What each page is for.
const WRITABLE: u64 = BASE;
const READABLE: u64 = BASE + 2 * PAGE;
const RECEIVES: u64 = BASE + 4 * PAGE;
const SINK: u64 = BASE + 6 * PAGE;
const FOREIGN: u64 = BASE + 8 * PAGE;
const END: u64 = BASE + 9 * PAGE;
/// Registered, and not there.
const GONE: u64 = BASE + 100 * PAGE;

#[derive(Debug)]
struct Arena(Mutex<Vec<u8>>);

impl Arena {
    fn range(span: &Span) -> Result<std::ops::Range<usize>, Unmapped> {
        let start = span.addr.checked_sub(BASE).ok_or(Unmapped)? as usize;
        let end = start.checked_add(span.len).ok_or(Unmapped)?;
        if end > (END - BASE) as usize { Err(Unmapped) } else { Ok(start..end) }
    }
}

impl Host for Arena {
    fn gather(&self, from: &[Span], mut into: &mut [u8]) -> Result<(), Unmapped> {
        let memory = self.0.lock().unwrap();
        for span in from {
            let (front, rest) = into.split_at_mut(span.len);
            front.copy_from_slice(&memory[Self::range(span)?]);
            into = rest;
        }
        assert!(into.is_empty());
        Ok(())
    }

    fn scatter(&self, mut from: &[u8], to: &[Span]) -> Result<(), Unmapped> {
        let mut memory = self.0.lock().unwrap();
        for span in to {
            let (front, rest) = from.split_at(span.len);
            memory[Self::range(span)?].copy_from_slice(front);
            from = rest;
        }
        assert!(from.is_empty());
        Ok(())
    }

    fn is_mapped(&self, span: Span) -> bool {
        // It was, when it was registered.
        span.addr == GONE || Self::range(&span).is_ok()
    }
}

/// What the peer sent, and how much of it arrives at a time. What is sent to the peer vanishes.
#[derive(Debug)]
struct Wire {
    arena: Arc<Arena>,
    state: Mutex<(Vec<u8>, usize, usize)>,
}

impl Link for Wire {
    fn send(&self, pieces: &[Piece<'_>]) -> Result<usize, LinkError> {
        Ok(pieces.iter().map(Piece::len).sum())
    }

    fn recv(&self, host: &[Span], own: &mut [u8]) -> Result<usize, LinkError> {
        let mut state = self.state.lock().unwrap();
        let (bytes, at, chunk) = &mut *state;
        let room = own.len() + host.iter().map(|span| span.len).sum::<usize>();
        let n = room.min(*chunk).min(bytes.len() - *at);
        if n == 0 {
            return Err(LinkError::WouldBlock);
        }
        let mut data = &bytes[*at..*at + n];
        for span in host {
            let len = span.len.min(data.len());
            if self.arena.scatter(&data[..len], &[Span { len, ..*span }]).is_err() {
                return Err(LinkError::Unmapped);
            }
            data = &data[len..];
        }
        own[..data.len()].copy_from_slice(data);
        *at += n;
        Ok(n)
    }

    fn finish(&self) {}
    fn abort(&self) {}
    fn segment_size(&self) -> usize {
        1448
    }
}

#[derive(Debug)]
struct Nobody;
impl Attendant for Nobody {
    fn call_again(&self) {}
    fn opened(&self) {}
    fn peer_not_ready(&self, _: u64, _: std::time::Duration) {}
    fn ended(&self, _: &Arc<Fault>) {}
    fn closed(&self) {}
}

/// The bytes of the input, taken one after another; zero when they are used up.
struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn word(&mut self) -> u32 {
        u32::from_be_bytes([self.byte(), self.byte(), self.byte(), self.byte()])
    }

    /// A number near something that matters.
    fn near(&mut self, values: &[u64]) -> u64 {
        let choice = self.byte();
        let value = values[usize::from(choice) % values.len()];
        value.wrapping_add_signed(i64::from(self.byte() as i8))
    }
}

fuzz_target!(|bytes: &[u8]| {
    let mut script = Script(bytes);
    let options = script.byte();
    let arena = Arc::new(Arena(Mutex::new(vec![CANARY; (END - BASE) as usize])));
    let config = Config {
        tags: 64,
        strict_receive: options & 1 != 0,
        private: options & 2 == 0,
        park: 2048,
        ..Config::default()
    };
    let device = Device::new(config, Arc::<Arena>::clone(&arena));
    let (own, other) = (device.allocate_domain(), device.allocate_domain());
    let tag = |domain: Domain, addr, rights| {
        device.register(domain, Memory::direct(addr, PAGE, rights).unwrap()).unwrap()
    };
    let local = Rights::LOCAL_READ | Rights::LOCAL_WRITE;
    let tags = [
        tag(own, WRITABLE, local | Rights::REMOTE_WRITE),
        tag(own, READABLE, local | Rights::REMOTE_READ),
        tag(own, RECEIVES, local),
        tag(own, SINK, local),
        tag(other, FOREIGN, local | Rights::REMOTE_WRITE | Rights::REMOTE_READ),
        tag(own, GONE, local | Rights::REMOTE_WRITE | Rights::REMOTE_READ),
        Tag(0),
        Tag(0x1234_5678),
    ];

    let cq = Arc::new(Cq::new(1, 64));
    let completes = if options & 4 != 0 { Completes::WhenAcknowledged } else { Completes::WhenSent };
    let qp = Qp::new(
        1,
        &device,
        Attributes {
            domain: own,
            send_cq: Arc::clone(&cq),
            receive_cq: Arc::clone(&cq),
            send_depth: 8,
            max_sges: 2,
            completes,
            receives: Receives::Own(8),
            rights: Rights::REMOTE,
            by_hand: false,
        },
    );
    let framing = Framing { crc: options & 8 != 0, markers: options & 16 != 0 };
    let rtr = if options & 32 != 0 { RtrSet::WRITE | RtrSet::READ } else { RtrSet::empty() };
    let agreed = Agreed {
        role: if options & 64 != 0 { Role::Initiator { rtr: None } } else { Role::Responder { rtr } },
        setup: Setup::PeerToPeer,
        send: framing,
        receive: framing,
        ird: 2,
        ord: 2,
        peer: Depths::default(),
    };
    let chunk = 1 << (script.byte() % 13);
    let wire = Arc::new(Wire { arena: Arc::clone(&arena), state: Mutex::new((Vec::new(), 0, chunk)) });
    let link: Arc<dyn Link> = Arc::<Wire>::clone(&wire);
    qp.connect(&link, &agreed, Vec::new(), Arc::new(Nobody)).unwrap();

    let mut peer =
        Peer { writer: FpduWriter::new(framing), send_msn: 1, read_msn: 1, reads: Vec::new(), tags };
    // A few steps more once the stream is over, and what is left of the script is another one's.
    let mut over = 0;
    while !script.0.is_empty() && over < 4 {
        over += usize::from(qp.state() == State::Error);
        let mut sent = Vec::new();
        peer.act(&mut script, &qp, &device, &mut sent);
        wire.state.lock().unwrap().0.extend(sent);
        qp.drive(Ready { readable: true, writable: true });
        qp.poll();
        let _ = cq.poll(64, drop);
    }

    let memory = arena.0.lock().unwrap();
    let may_change = [WRITABLE, RECEIVES, SINK].map(|page| (page - BASE) as usize);
    for (page, bytes) in memory.chunks(PAGE as usize).enumerate() {
        if !may_change.contains(&(page * PAGE as usize)) {
            assert!(bytes == UNTOUCHED, "page {page} was reached");
        }
    }
});

struct Peer {
    writer: FpduWriter,
    send_msn: u32,
    read_msn: u32,
    /// Where answers to the device's Reads belong.
    reads: Vec<(Place, u32)>,
    tags: [Tag; 8],
}

impl Peer {
    fn place(&mut self, script: &mut Script<'_>) -> Place {
        let tag = self.tags[usize::from(script.byte()) % 8];
        let pages = [WRITABLE, READABLE, RECEIVES, SINK, FOREIGN, GONE, WRITABLE + PAGE, u64::MAX, 0];
        Place { tag, offset: script.near(&pages) }
    }

    fn act(&mut self, script: &mut Script<'_>, qp: &Qp, device: &Device, sent: &mut Vec<u8>) {
        let what = script.byte();
        let flags = script.byte();
        let last = flags & 1 == 0;
        let len = usize::from(script.byte()) * if flags & 2 != 0 { 17 } else { 1 };
        let header = match what % 12 {
            0 | 1 => Header::Write(Tagged { last, place: self.place(script) }),
            2 | 3 => {
                let msn = self.send_msn.wrapping_add(u32::from(flags & 0x1c == 0x1c));
                let offset = u32::from(script.byte()) * u32::from(flags & 0x20 != 0);
                self.send_msn = self.send_msn.wrapping_add(u32::from(last));
                let invalidate = flags & 0x40 != 0;
                let word =
                    if invalidate { SendWord::Invalidate(self.place(script).tag) } else { SendWord::NONE };
                Header::Send(Send { msn, last, offset, solicited: flags & 0x80 != 0, word })
            }
            4 => {
                let msn = self.read_msn.wrapping_add(u32::from(flags & 0x1c == 0x1c));
                self.read_msn = self.read_msn.wrapping_add(1);
                let (sink, source) = (self.place(script), self.place(script));
                Header::ReadRequest(ReadRequest { msn, sink, len: script.word() % 8192, source })
            }
            5 | 6 => {
                let place = match self.reads.first_mut() {
                    Some((place, left)) if flags & 0x10 == 0 => {
                        let at = *place;
                        place.offset += len as u64;
                        *left = left.saturating_sub(len as u32);
                        if last {
                            self.reads.remove(0);
                        }
                        at
                    }
                    _ => self.place(script),
                };
                Header::ReadResponse(Tagged { last, place })
            }
            7 => match flags & 3 {
                0 => Signal::Capabilities(Capabilities::from_bits_truncate(script.byte().into())).header(),
                _ => Signal::Acknowledged(script.byte().into()).header(),
            },
            8 => Header::Terminate(Terminate {
                cause: Cause::from_wire(script.byte() & 3, script.byte() & 3, script.byte()),
                offender: Offender::default(),
            }),
            9 => return self.program(script, qp, device),
            10 => {
                let n = usize::from(script.byte());
                sent.extend((0..n).map(|_| script.byte()));
                return;
            }
            _ => return,
        };
        let payload = vec![flags; if header.carries_payload() && what % 12 != 7 { len } else { 0 }];
        let start = sent.len();
        self.writer.write(&header, &payload, |bytes| sent.extend_from_slice(bytes)).unwrap();
        if flags & 0xf0 == 0xf0 {
            // One bit is wrong.
            let at = start + usize::from(script.byte()) % (sent.len() - start);
            sent[at] ^= 1 << (script.byte() % 8);
        }
    }

    /// What the program does meanwhile.
    fn program(&mut self, script: &mut Script<'_>, qp: &Qp, device: &Device) {
        let sge = |tag, addr, len| Sge { tag, addr, len };
        match script.byte() % 4 {
            0 | 1 => {
                let at = RECEIVES + u64::from(script.byte()) * 8;
                let buffers = sge(self.tags[2], at, u32::from(script.byte()) * 4).into();
                let _ = qp.post_receive(ReceiveRequest { id: 1, buffers });
            }
            2 => {
                let len = u32::from(script.byte()) * 8;
                let place = Place { tag: self.tags[3], offset: SINK };
                let data = Data::Memory(sge(place.tag, place.offset, len).into());
                let operation = match script.byte() % 3 {
                    0 => Operation::Write(Place::default()),
                    1 => Operation::Send { invalidate: None },
                    _ => {
                        self.reads.push((place, len));
                        Operation::Read(Place::default())
                    }
                };
                let request = WorkRequest::new(2, operation, data);
                let _ = qp.post_send(vec![request]);
            }
            _ => {
                let _ = device.table().deregister(self.tags[usize::from(script.byte()) % 6]);
            }
        }
    }
}
