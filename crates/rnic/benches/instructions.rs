//! Counts the instructions of each step of an 8-byte message. Sending: a request is posted, built into a segment and
//! passed to the link. Receiving: a segment is parsed and placed, completes a receive, and the completion is polled.
//! `cargo xtask instructions` runs this under callgrind and checks each step against its ceiling, which
//! docs/specification/performance.md states, too.
//!
//! Link and host are mocks that do almost nothing, so that only the device is counted.
#![allow(clippy::unwrap_used, reason = "a measurement that fails may panic")]

use ironwarp_rnic::config::DeviceConfig;
use ironwarp_rnic::connect::{Agreed, MpaMode, Role};
use ironwarp_rnic::device::Device;
use ironwarp_rnic::error::QpError;
use ironwarp_rnic::host::{Host, Span, Unmapped};
use ironwarp_rnic::link::{Link, LinkError, Piece};
use ironwarp_rnic::memory::{Memory, Rights, TagCipher};
use ironwarp_rnic::qp::{Attributes, Qp, Ready, Receives, StreamDriver};
use ironwarp_rnic::queue::{Completion, Cq, Data, Opcode, Operation, ReceiveRequest, Sge, WorkRequest};
use ironwarp_wire::mpa::{FpduWriter, Framing, RtrSet};
use ironwarp_wire::{Header, Send, SendWord};
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Number of repetitions of each case.
const REPEATS: usize = 1000;
const FRAMING: Framing = Framing { crc: true, markers: false };
const LEN: u32 = 8;

/// The cases, with their ceilings per repetition: of instructions, and of locked instructions.
const CASES: &[(&str, u64, u64)] = &[
    ("post", 820, 13),
    ("push", 855, 13),
    ("segment", 960, 0),
    ("place", 820, 6),
    ("complete", 125, 2),
    ("poll", 102, 2),
];

fn main() {
    let argument = std::env::args().skip(1).find(|argument| argument != "--bench");
    match argument.as_deref() {
        Some("--list") => CASES.iter().for_each(|(name, all, locked)| println!("{name} {all} {locked}")),
        Some("post") => measured_post(&End::new()),
        Some("push") => measured_push(&End::new()),
        Some("segment") => {
            let end = End::new();
            measured_post(&end);
            end.provide_messages(1);
            measured_segment(&end);
            assert_eq!(end.link.sent.load(Ordering::Relaxed), REPEATS * 32, "all messages were sent");
        }
        Some("place") => {
            let end = End::new();
            end.provide_messages(REPEATS);
            measured_place(&end);
            assert_eq!(end.cq.len(), REPEATS, "all messages were received");
        }
        Some("complete") => measured_complete(&End::new()),
        Some("poll") => {
            let end = End::new();
            measured_complete(&end);
            measured_poll(&end);
            assert!(end.cq.is_empty());
        }
        _ => println!("run by `cargo xtask instructions`"),
    }
}

/// Posts requests. They are not sent yet, because a responder must not send before it has received a message.
#[inline(never)]
fn measured_post(end: &End) {
    for id in 0..REPEATS as u64 {
        let data = Data::Memory(end.sge().into());
        let send = Operation::Send { invalidate: None };
        let request = WorkRequest { signaled: false, ..WorkRequest::new(id, send, data) };
        end.qp.post_send([black_box(request)]).unwrap();
    }
}

/// Creates and posts requests with inline data (requirement X5).
#[inline(never)]
fn measured_push(end: &End) {
    for id in 0..REPEATS as u64 {
        let data = Data::Inline(black_box(&id.to_ne_bytes()[..]).into());
        let send = Operation::Send { invalidate: None };
        let request = WorkRequest { signaled: false, ..WorkRequest::new(id, send, data) };
        end.qp.post_send([black_box(request)]).unwrap();
    }
}

// The next two functions differ in a constant, which keeps the compiler from merging them.

/// Sends all posted requests, many per call to the link.
#[inline(never)]
fn measured_segment(end: &End) {
    black_box("segment");
    end.qp.drive(Ready { readable: true, writable: false, ended: false });
}

/// Places all received messages, and completes their receives.
#[inline(never)]
fn measured_place(end: &End) {
    black_box("place");
    end.qp.drive(Ready { readable: true, writable: false, ended: false });
}

/// Appends completions to a completion queue.
#[inline(never)]
fn measured_complete(end: &End) {
    for id in 0..REPEATS as u64 {
        end.cq.push(black_box(Completion::succeeded(id, Opcode::Receive, 1, LEN))).unwrap();
    }
}

/// Polls completions one by one.
#[inline(never)]
fn measured_poll(end: &End) {
    for _ in 0..REPEATS {
        assert_eq!(end.cq.poll(1, |completion| drop(black_box(completion))), Ok(1));
    }
}

/// A queue pair that has accepted a connection and received no message yet. Receives for all messages are posted.
struct End {
    qp: Arc<Qp>,
    cq: Arc<Cq>,
    link: Arc<MockLink>,
    tag: ironwarp_wire::Tag,
}

impl End {
    fn new() -> Self {
        let device = Device::new(DeviceConfig::default(), Arc::new(MockHost), TagCipher::new([0; 16]));
        let domain = device.allocate_domain();
        let rights = Rights::LOCAL_READ | Rights::LOCAL_WRITE;
        let tag = device.register(domain, Memory::direct(0x1000, 0x1000, rights).unwrap()).unwrap();
        let cq = Arc::new(Cq::new(1, 2 * REPEATS));
        let attributes = Attributes {
            send_depth: REPEATS,
            max_sges: 1,
            receives: Receives::Own(REPEATS),
            rights: Rights::empty(),
            ..Attributes::new(domain, &cq)
        };
        let end = Self { qp: Qp::new(1, &device, attributes), cq, link: Arc::default(), tag };
        for id in 0..REPEATS as u64 {
            end.qp.post_receive(ReceiveRequest { id, buffers: end.sge().into() }).unwrap();
        }
        let role = Role::Responder { rtr: RtrSet::empty() };
        let agreed = Agreed::symmetric(role, MpaMode::ClientServer, FRAMING, 1, 1);
        let link: Arc<dyn Link> = Arc::<MockLink>::clone(&end.link);
        end.qp.connect(&link, &agreed, Vec::new(), Arc::new(SilentDriver)).unwrap();
        end
    }

    fn sge(&self) -> Sge {
        Sge { tag: self.tag, addr: 0x1000, len: LEN }
    }

    /// Gives the link `count` messages of the peer to deliver.
    fn provide_messages(&self, count: usize) {
        let writer = FpduWriter::new(FRAMING);
        let mut bytes = Vec::new();
        for msn in 1..=u32::try_from(count).unwrap() {
            let word = SendWord::Srq(0);
            let send = Send { msn, last: true, offset: 0, solicited: false, word };
            let mut fpdu = [0; 128];
            let n = writer.write_whole(&Header::Send(send), &[7; LEN as usize], &mut fpdu).unwrap();
            bytes.extend_from_slice(&fpdu[..n]);
        }
        *self.link.received.lock().unwrap() = bytes;
    }
}

/// A link that counts the bytes sent, and delivers all bytes of the peer at once.
#[derive(Debug, Default)]
struct MockLink {
    received: Mutex<Vec<u8>>,
    sent: AtomicUsize,
}

impl Link for MockLink {
    fn send(&self, pieces: &[Piece<'_>]) -> Result<usize, LinkError> {
        let n = pieces.iter().map(Piece::len).sum();
        self.sent.fetch_add(n, Ordering::Relaxed);
        Ok(n)
    }

    fn recv(&self, _: &[Span], own: &mut [u8]) -> Result<usize, LinkError> {
        let bytes = std::mem::take(&mut *self.received.lock().unwrap());
        own.get_mut(..bytes.len())
            .filter(|own| !own.is_empty())
            .ok_or(LinkError::WouldBlock)?
            .copy_from_slice(&bytes);
        Ok(bytes.len())
    }

    fn arrived(&self) -> usize {
        self.received.lock().unwrap().len()
    }

    fn finish(&self) {}

    fn abort(&self) {}

    fn segment_size(&self) -> usize {
        1448
    }
}

/// A host that copies nothing.
#[derive(Debug)]
struct MockHost;

impl Host for MockHost {
    fn gather(&self, from: &[Span], into: &mut [u8]) -> Result<(), Unmapped> {
        black_box((from, into));
        Ok(())
    }

    fn scatter(&self, from: &[u8], to: &[Span]) -> Result<(), Unmapped> {
        black_box((from, to));
        Ok(())
    }

    fn is_mapped(&self, _: Span) -> bool {
        true
    }
}

/// A driver that ignores all notifications.
#[derive(Debug)]
struct SilentDriver;

impl StreamDriver for SilentDriver {
    fn schedule(&self) {}

    fn on_first_message(&self) {}

    fn on_peer_not_ready(&self) {}

    fn on_stream_ended(&self, error: &Arc<QpError>) {
        panic!("{error}");
    }

    fn on_link_closed(&self) {}
}
