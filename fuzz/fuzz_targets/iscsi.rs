//! A queue pair in iSCSI mode with an untrusted target. The input is a script of bytes and PDUs of the target, valid or not, and of
//! what the program and the link do meanwhile. There must be no panic, memory changes only in the receives and in the buffers of
//! reads that have not ended, nothing but the buffers of writes is sent, and each command ends once.
#![no_main]
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a fuzz target: every panic is a finding"
)]

use ironwarp_rnic::config::DeviceConfig;
use ironwarp_rnic::device::Device;
use ironwarp_rnic::host::{Host, Span, Unmapped};
use ironwarp_rnic::iscsi::{
    CommandId, CommandRequest, IscsiAttributes, IscsiDriver, IscsiQp, PduRequest, SessionParameters,
};
use ironwarp_rnic::link::{Link, LinkError, Piece};
use ironwarp_rnic::memory::{Direction, Memory, Rights, TagCipher};
use ironwarp_rnic::qp::{Ready, RegistrationFailure, State};
use ironwarp_rnic::queue::{Cq, Opcode, ReceiveRequest, Sge, Sges, Status};
use ironwarp_wire::Tag;
use ironwarp_wire::iscsi::{
    Command, DataIn, HEADER_LEN, InitiatorPdu, NO_TASK, NopIn, PduLayout, R2t, Residual, Response,
    SequenceNumbers, TargetPdu, padding,
};
use ironwarp_wire::mpa::Crc;
use libfuzzer_sys::fuzz_target;
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex};

/// The program's memory: receives, buffers of reads, buffers of writes, and memory that nothing uses. All of it is registered.
const BASE: u64 = 0x10_0000;
const RECEIVES: Range<usize> = 0..0x1000;
const READS: Range<usize> = 0x1000..0x1000 + SLOTS * SLOT;
const WRITES: Range<usize> = READS.end..READS.end + SLOTS * SLOT;
const LEN: usize = WRITES.end + 0x1000;
/// Each read and each write has a slot of its own. Large enough for Data-In that is read directly into it.
const SLOT: usize = 0x3000;
const SLOTS: usize = 4;
/// Created once, because that takes longer than a run.
static CIPHER: LazyLock<Arc<TagCipher>> = LazyLock::new(|| TagCipher::new([0; 16]));

#[derive(Debug)]
struct Arena(Mutex<Vec<u8>>);

impl Arena {
    fn range(span: &Span) -> Range<usize> {
        let start = (span.addr - BASE) as usize;
        start..start + span.len
    }
}

impl Host for Arena {
    fn gather(&self, from: &[Span], mut into: &mut [u8]) -> Result<(), Unmapped> {
        for span in from {
            let (front, rest) = into.split_at_mut(span.len);
            front.copy_from_slice(&self.0.lock().unwrap()[Self::range(span)]);
            into = rest;
        }
        Ok(())
    }

    fn scatter(&self, mut from: &[u8], to: &[Span]) -> Result<(), Unmapped> {
        for span in to {
            let (front, rest) = from.split_at(span.len);
            self.0.lock().unwrap()[Self::range(span)].copy_from_slice(front);
            from = rest;
        }
        Ok(())
    }

    fn is_mapped(&self, _: Span) -> bool {
        true
    }
}

/// The target's end of the connection.
#[derive(Debug)]
struct Script {
    arena: Arc<Arena>,
    arriving: Mutex<VecDeque<u8>>,
    sent: Mutex<Vec<u8>>,
    room: AtomicUsize,
    /// Maximum number of bytes of a call to `recv`.
    step: AtomicUsize,
    /// The error after the last byte, if not that there is none now.
    end: Mutex<Option<LinkError>>,
}

impl Link for Script {
    fn send(&self, pieces: &[Piece<'_>]) -> Result<usize, LinkError> {
        let mut taken = 0;
        for piece in pieces {
            let len = piece.len().min(self.room.load(Ordering::Relaxed));
            self.room.fetch_sub(len, Ordering::Relaxed);
            let mut bytes = vec![0; len];
            match piece {
                Piece::Own(own) => bytes.copy_from_slice(&own[..len]),
                Piece::Host(span) => {
                    let range = Arena::range(span);
                    assert!(WRITES.start <= range.start && range.end <= WRITES.end, "sent {range:?}");
                    self.arena.gather(&[Span { len, ..*span }], &mut bytes).unwrap();
                }
            }
            self.sent.lock().unwrap().extend(bytes);
            taken += len;
        }
        if taken > 0 { Ok(taken) } else { Err(LinkError::WouldBlock) }
    }

    fn recv(&self, host: &[Span], own: &mut [u8]) -> Result<usize, LinkError> {
        let mut arriving = self.arriving.lock().unwrap();
        if arriving.is_empty() {
            return Err(self.end.lock().unwrap().unwrap_or(LinkError::WouldBlock));
        }
        let step = self.step.load(Ordering::Relaxed);
        let mut received = 0;
        for span in host {
            let len = span.len.min(arriving.len()).min(step - received);
            let bytes: Vec<u8> = arriving.drain(..len).collect();
            self.arena.scatter(&bytes, &[Span { len, ..*span }]).unwrap();
            received += len;
        }
        let len = own.len().min(arriving.len()).min(step - received);
        own[..len].iter_mut().zip(arriving.drain(..len)).for_each(|(to, from)| *to = from);
        Ok(received + len)
    }

    fn arrived(&self) -> usize {
        self.arriving.lock().unwrap().len()
    }

    fn finish(&self) {}

    fn abort(&self) {
        self.arriving.lock().unwrap().clear();
        *self.end.lock().unwrap() = Some(LinkError::Lost(104));
    }

    fn segment_size(&self) -> usize {
        1460
    }
}

#[derive(Debug, Default)]
struct Driver(AtomicUsize);

impl IscsiDriver for Driver {
    fn schedule(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

struct Bench {
    qp: Arc<IscsiQp>,
    cq: Arc<Cq>,
    link: Arc<Script>,
    driver: Arc<Driver>,
    arena: Arc<Arena>,
    tag: Tag,
    /// The memory as it must be, except for receives and for reads that have not ended.
    expected: Vec<u8>,
    /// The commands that have not ended, with the buffers of reads.
    outstanding: HashMap<CommandId, Option<Range<usize>>>,
    /// The commands in the order of their posts, for aborts.
    posted: Vec<CommandId>,
    /// Task tags that the target has seen.
    tasks: Vec<u32>,
}

impl Bench {
    fn new(options: u8) -> Self {
        let memory: Vec<u8> = (0..LEN).map(|i| (i * 7 + i / 256) as u8).collect();
        let expected = memory.clone();
        let arena = Arc::new(Arena(Mutex::new(memory)));
        let config = DeviceConfig { tags: 5, tag_slots: 0..4096, ..DeviceConfig::default() };
        let device = Device::new(config, Arc::<Arena>::clone(&arena), Arc::clone(&CIPHER));
        let domain = device.allocate_domain();
        let rights = Rights::LOCAL_READ | Rights::LOCAL_WRITE;
        let tag = device.register(domain, Memory::direct(BASE, LEN as u64, rights).unwrap()).unwrap();
        let cq = Arc::new(Cq::new(1, 8192));
        let mut session = SessionParameters::default();
        (session.digests.header, session.digests.data) = (options & 1 != 0, options & 2 != 0);
        (session.immediate_data, session.initial_r2t) = (options & 4 != 0, options & 8 != 0);
        session.max_outstanding_r2t = 1 + u16::from(options >> 4 & 3);
        (session.max_recv_data, session.max_send_data) = (SLOT as u32, 1000);
        (session.first_burst, session.max_burst) = (3000, 5000);
        let attributes = IscsiAttributes {
            send_depth: 6,
            receive_depth: 64,
            registration_failure: if options & 64 == 0 {
                RegistrationFailure::Anticipatory
            } else {
                RegistrationFailure::Reactive
            },
            ..IscsiAttributes::new(domain, &cq, session)
        };
        let link = Arc::new(Script {
            arena: Arc::clone(&arena),
            arriving: Mutex::default(),
            sent: Mutex::default(),
            room: AtomicUsize::new(1 << 20),
            step: AtomicUsize::new(1 << 20),
            end: Mutex::default(),
        });
        let driver = Arc::<Driver>::default();
        let qp =
            IscsiQp::new(2, &device, attributes, Arc::<Script>::clone(&link), Arc::<Driver>::clone(&driver));
        let (outstanding, posted, tasks) = (HashMap::new(), Vec::new(), Vec::new());
        Self { qp, cq, link, driver, arena, tag, expected, outstanding, posted, tasks }
    }

    /// Performs one step of the script. Returns the rest of it.
    fn step<'a>(&mut self, script: &'a [u8]) -> &'a [u8] {
        let [what, a, b, c, rest @ ..] = script else { return &[] };
        let (a, b, c) = (usize::from(*a), usize::from(*b), usize::from(*c));
        let mut used = 0;
        match what % 8 {
            0 => {
                used = a.min(rest.len());
                self.arrives(&rest[..used]);
            }
            1 | 2 => {
                let bytes = self.pdu(a, b, c, usize::from(*what / 8));
                self.arrives(&bytes);
            }
            3 => self.post(if a.is_multiple_of(2) { Direction::In } else { Direction::Out }, b * 64, c * 16),
            4 => (0..=a % 4).for_each(|_| self.receive(b, c)),
            5 => self.abort(a),
            6 => {
                let room = if b.is_multiple_of(8) { 1 << 20 } else { a };
                self.link.room.fetch_add(room, Ordering::Relaxed);
                self.link.step.store(1 + c * c, Ordering::Relaxed);
                self.qp.drive(Ready { readable: true, writable: true, ended: false });
            }
            _ => self.interfere(a, b),
        }
        self.settle();
        self.poll();
        self.check();
        &rest[used..]
    }

    fn arrives(&self, bytes: &[u8]) {
        self.link.arriving.lock().unwrap().extend(bytes);
        self.qp.drive(Ready { readable: true, writable: false, ended: false });
    }

    /// Builds a PDU for a command that the target knows, with one bit of its header changed if `damage` is not zero.
    fn pdu(&self, a: usize, b: usize, c: usize, damage: usize) -> Vec<u8> {
        let task = self.tasks.get(b % 16).or(self.tasks.last()).copied().unwrap_or(NO_TASK);
        let task = if b / 16 == 1 { task ^ 1 << (a / 8) } else { task };
        let offset = match a / 8 {
            31 => u32::MAX - c as u32,
            scale => (scale * 400) as u32,
        };
        let len = c * 50;
        let numbers = SequenceNumbers { stat_sn: b as u32, exp_cmd_sn: 0, max_cmd_sn: 100 };
        let data_in = DataIn {
            last: false,
            acknowledge: false,
            status: None,
            lun: 0,
            task,
            target_task: NO_TASK,
            numbers,
            data_sn: 0,
            offset,
        };
        let (pdu, len) = match a % 8 {
            0..=2 => (TargetPdu::DataIn(data_in), len.min(SLOT)),
            3 => {
                let status = Some((0, Residual::None));
                (TargetPdu::DataIn(DataIn { last: true, status, ..data_in }), len.min(SLOT))
            }
            4 | 5 => {
                let len = len as u32;
                (TargetPdu::R2t(R2t { lun: 0, task, target_task: 9, numbers, r2t_sn: 0, offset, len }), 0)
            }
            6 => {
                let residual = Residual::None;
                let response = Response { residual, response: 0, status: 0, task, numbers, exp_data_sn: 0 };
                (TargetPdu::Response(response), c)
            }
            _ => (TargetPdu::NopIn(NopIn { lun: 0, task: NO_TASK, target_task: 1, numbers }), c),
        };
        let mut header = pdu.emit(len as u32);
        if damage != 0 {
            header[(damage * 7 + c) % HEADER_LEN] ^= 1 << (damage % 8);
        }
        let digests = self.qp.attributes().session.digests;
        let mut bytes = header.to_vec();
        if digests.header {
            bytes.extend(Crc::of(&header).to_bytes());
        }
        let data: Vec<u8> =
            (0..len).map(|i| (i * 31 + c) as u8).chain((0..padding(len)).map(|_| 0)).collect();
        bytes.extend(&data);
        if digests.data && len > 0 {
            bytes.extend(Crc::of(&data).to_bytes());
        }
        bytes
    }

    /// Posts a command in a slot that no other uses, in two parts if it is long enough.
    fn post(&mut self, direction: Direction, at: usize, len: usize) {
        let slots = if direction == Direction::In { READS } else { WRITES };
        let slot = (0..SLOTS).map(|slot| slots.start + slot * SLOT).find(|start| {
            !self.outstanding.values().flatten().any(|range| range.start / SLOT == *start / SLOT)
        });
        let Some(start) = slot else { return };
        let at = start + at % (SLOT / 2);
        let len = (len * 4).min(start + SLOT - at);
        let sge = |at: usize, len: usize| Sge { tag: self.tag, addr: BASE + at as u64, len: len as u32 };
        let (front, rest) = (len / 3, len - len / 3);
        let buffers = Sges::from(&[sge(at, front), sge(at + front, rest)][..]);
        let request = CommandRequest { header: Command::default(), data: Some((direction, buffers)) };
        let Ok(ids) = self.qp.post_commands(vec![request]) else { return };
        let buffer = (direction == Direction::In).then_some(at..at + len);
        assert!(self.outstanding.insert(ids[0], buffer).is_none(), "number used twice");
        self.posted.push(ids[0]);
    }

    fn receive(&self, at: usize, len: usize) {
        let at = RECEIVES.start + at * 8;
        let len = (len * 4).min(RECEIVES.end - at);
        let sge = Sge { tag: self.tag, addr: BASE + at as u64, len: len as u32 };
        let _ = self.qp.post_receive(ReceiveRequest { id: len as u64, buffers: sge.into() });
    }

    /// Aborts a command. From then on, its memory must not change.
    fn abort(&mut self, which: usize) {
        let Some(id) = self.posted.get(which % self.posted.len().max(1)).copied() else { return };
        if self.qp.abort(id).is_ok() {
            let buffer = self.outstanding.remove(&id).expect("a command that has not ended");
            self.expect(buffer);
        }
    }

    /// Does something that happens seldom.
    fn interfere(&self, a: usize, b: usize) {
        match a % 8 {
            0 => drop(self.qp.modify(State::ALL[b % State::ALL.len()])),
            1 => {
                *self.link.end.lock().unwrap() =
                    Some(if b.is_multiple_of(2) { LinkError::Ended } else { LinkError::Lost(104) });
                self.qp.drive(Ready { readable: true, writable: true, ended: true });
            }
            2 => self.link.room.store(b, Ordering::Relaxed),
            3 => {
                let data = vec![1; b].into_boxed_slice();
                let header = [0, 0x80, 0, 0, 0, 0, 0, b as u8];
                let mut request = PduRequest { id: 1, header: [0; HEADER_LEN], data };
                request.header[..8].copy_from_slice(&header);
                let _ = self.qp.post_pdu(request);
            }
            _ => drop(self.qp.modify(State::ReadyToSend)),
        }
    }

    /// Does what was scheduled, and learns the task tags that were sent.
    fn settle(&mut self) {
        while self.driver.0.swap(0, Ordering::Relaxed) > 0 {
            self.qp.resume();
        }
        let digests = self.qp.attributes().session.digests;
        let mut sent = self.link.sent.lock().unwrap();
        while let Some(header) = sent.first_chunk::<HEADER_LEN>() {
            let len = PduLayout::of(header, digests).len();
            if sent.len() < len {
                break;
            }
            if let InitiatorPdu::Command(command) = InitiatorPdu::parse(header).expect("a valid PDU") {
                assert_ne!(command.task, NO_TASK);
                self.tasks.push(command.task);
            }
            sent.drain(..len);
        }
    }

    /// Polls all completions: each command ends once.
    fn poll(&mut self) {
        let mut all = Vec::new();
        while self.cq.poll(256, |completion| all.push(completion)).unwrap() > 0 {}
        for completion in all {
            let ends = match completion.opcode {
                Opcode::Command => {
                    assert_ne!(completion.status, Status::Success);
                    true
                }
                opcode => opcode == Opcode::Response,
            };
            if ends {
                let id = CommandId::of(&completion).expect("the number of a command");
                let buffer = self.outstanding.remove(&id).expect("a command that has not ended");
                self.expect(buffer);
            }
        }
    }

    /// Expects the buffer of a read that has ended to stay as it is.
    fn expect(&mut self, buffer: Option<Range<usize>>) {
        let Some(buffer) = buffer else { return };
        self.expected[buffer.clone()].copy_from_slice(&self.arena.0.lock().unwrap()[buffer]);
    }

    /// Checks that nothing has changed that must not.
    fn check(&mut self) {
        let memory = self.arena.0.lock().unwrap();
        for buffer in self.outstanding.values().flatten() {
            self.expected[buffer.clone()].copy_from_slice(&memory[buffer.clone()]);
        }
        assert!(memory[RECEIVES.end..] == self.expected[RECEIVES.end..], "memory has changed");
    }
}

fuzz_target!(|script: &[u8]| {
    let [options, rest @ ..] = script else { return };
    let mut bench = Bench::new(*options);
    for _ in 0..8 {
        bench.receive(0, 100);
    }
    let mut left = rest;
    while !left.is_empty() {
        left = bench.step(left);
    }
    bench.qp.shut_down();
    bench.settle();
    bench.poll();
    bench.check();
    assert!(bench.outstanding.is_empty(), "commands that never ended: {:?}", bench.outstanding);
});
