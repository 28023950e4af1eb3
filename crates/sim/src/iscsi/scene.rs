//! The program, and the model that checks what it sees.

use super::tally::{Situation, Tally};
use super::target::Target;
use crate::arena::{Arena, pattern};
use crate::clock::Clock;
use crate::link::{Path, SimLink};
use crate::tags::tag_cipher;
use crate::trace::{Trace, TracedLink};
use ironwarp_rnic::config::DeviceConfig;
use ironwarp_rnic::device::Device;
use ironwarp_rnic::fault::{Chance, Rng};
use ironwarp_rnic::host::Span;
use ironwarp_rnic::iscsi::{
    CommandId, CommandRequest, IscsiAttributes, IscsiDriver, IscsiQp, SessionParameters,
};
use ironwarp_rnic::link::Link;
use ironwarp_rnic::memory::{Direction, Memory, Rights};
use ironwarp_rnic::qp::{Ready, RegistrationFailure, State};
use ironwarp_rnic::queue::{Completion, Cq, Opcode, ReceiveRequest, Sge, Sges, Status};
use ironwarp_wire::Tag;
use ironwarp_wire::iscsi::{Command, HEADER_LEN, Residual, TargetPdu};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Number of buffers, and the maximum length of each: enough for data that is read directly into it.
const BUFFERS: usize = 6;
const MAX_LEN: u64 = 40_000;
/// Number of receives, and the room for each.
const RECEIVES: usize = 24;
const ROOM: usize = HEADER_LEN + 40;
/// Upper bound on the number of turns after the last post.
const MAX_TURNS: usize = 1_000_000;

/// A buffer for commands, in a region of its own.
#[derive(Debug)]
struct Buffer {
    span: Span,
    tag: Tag,
    /// The pattern that it was filled with.
    seed: u64,
    is_used: bool,
}

/// A command that has not ended.
#[derive(Debug)]
struct Posted {
    serial: u64,
    buffer: usize,
    len: usize,
    is_read: bool,
}

/// Records that the queue pair was scheduled.
#[derive(Debug, Default)]
struct Driver(AtomicBool);

impl IscsiDriver for Driver {
    fn schedule(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// One run.
#[derive(Debug)]
pub(super) struct Scene {
    rng: Rng,
    clock: Clock,
    trace: Trace,
    arena: Arc<Arena>,
    qp: Arc<IscsiQp>,
    link: Arc<SimLink>,
    driver: Arc<Driver>,
    cq: Arc<Cq>,
    target: Target,
    buffers: Vec<Buffer>,
    /// The memory of the receives, and those that are not posted.
    receives: (Span, Tag, Vec<usize>),
    outstanding: BTreeMap<CommandId, Posted>,
    serial: u64,
    /// Number of PDUs that have used a receive.
    delivered: u64,
    /// Whether the connection has ended, or is about to.
    is_ending: bool,
    tally: Tally,
}

impl Scene {
    /// Creates the program and the target of a seed.
    pub(super) fn new(seed: u64, traced: bool) -> Self {
        let mut rng = Rng::new(seed);
        let clock = Clock::new();
        let trace = Trace::new(&clock, traced);
        let arena = Arena::new(0);
        let session = random_session(&mut rng);
        let is_reactive = rng.below(3) == 0;
        let tags = if is_reactive { BUFFERS + 1 + 3 } else { 1000 };
        let config = DeviceConfig { tags, tag_slots: 0..8192, ..DeviceConfig::default() };
        let device = Device::new(config, Arc::<Arena>::clone(&arena), tag_cipher(0));
        let domain = device.allocate_domain();
        let register = |span: Span| {
            let rights = Rights::LOCAL_READ | Rights::LOCAL_WRITE;
            let memory = Memory::direct(span.addr, span.len as u64, rights).expect("valid");
            device.register(domain, memory).expect("room")
        };
        let span = arena.alloc(RECEIVES * ROOM);
        let receives = (span, register(span), (0..RECEIVES).collect());
        let buffers = (0..BUFFERS).map(|number| {
            let most = if number == 0 { MAX_LEN } else { 3000 };
            let span = arena.alloc(1 + size(rng.below(most)));
            arena.fill_pattern(span, number as u64);
            Buffer { span, tag: register(span), seed: number as u64, is_used: false }
        });
        let buffers: Vec<_> = buffers.collect();
        let capacity = [100, 5000, 100_000][size(rng.below(3))];
        let path = Path {
            capacity: 20 + size(rng.below(capacity)),
            split: [Chance::NEVER, Chance::in_a_million(500_000)][size(rng.below(2))],
            ..Path::default()
        };
        let [link, remote] = SimLink::pair(path, seed, &clock, [&arena, &arena]);
        let cq = Arc::new(Cq::new(1, 4096));
        let attributes = IscsiAttributes {
            send_depth: BUFFERS,
            registration_failure: if is_reactive {
                RegistrationFailure::Reactive
            } else {
                RegistrationFailure::Anticipatory
            },
            ..IscsiAttributes::new(domain, &cq, session)
        };
        let driver = Arc::<Driver>::default();
        let inner: Arc<dyn Link> = Arc::<SimLink>::clone(&link);
        let traced = Arc::new(TracedLink { inner, trace: trace.clone(), end: 0 });
        let qp = IscsiQp::new(1, &device, attributes, traced, Arc::<Driver>::clone(&driver));
        let target = Target::new(remote, Rng::stream(seed, 9), session);
        let (outstanding, tally) = (BTreeMap::new(), Tally::default());
        Self {
            rng,
            clock,
            trace,
            arena,
            qp,
            link,
            driver,
            cq,
            target,
            buffers,
            receives,
            outstanding,
            serial: 1000,
            delivered: 0,
            is_ending: false,
            tally,
        }
    }

    /// Returns the trace of the run.
    pub(super) fn trace(&self) -> Trace {
        self.trace.clone()
    }

    /// Runs the program to the end.
    pub(super) fn run(mut self) -> Tally {
        let steps = 50 + self.rng.below(400);
        let end = if self.rng.below(3) == 0 { self.rng.below(steps) } else { steps };
        for step in 0..steps {
            match self.rng.below(20) {
                0..4 => self.post(),
                4..8 => self.post_receives(),
                8 => self.abort(),
                9 => self.check_memory(),
                10 if self.qp.state() == State::Drained => {
                    self.qp.modify(State::ReadyToSend).expect("a drained queue pair");
                }
                _ => self.turn(),
            }
            if step == end {
                self.end_connection();
            }
            if self.rng.below(3) > 0 {
                self.poll();
            }
        }
        self.finish()
    }

    /// Lets the target finish what was begun, and checks that everything has ended.
    fn finish(mut self) -> Tally {
        self.target.is_honest = true;
        for turn in 0.. {
            assert!(turn < MAX_TURNS, "stuck with {:?} and {:?}", self.outstanding, self.target);
            self.post_receives();
            self.turn();
            self.poll();
            let is_over = self.is_ending || self.target.is_idle() && self.delivered == self.target.pdus;
            if self.outstanding.is_empty() && is_over {
                break;
            }
        }
        self.check_memory();
        self.qp.shut_down();
        self.poll();
        self.tally
    }

    /// Ends the connection in one of several ways.
    fn end_connection(&mut self) {
        self.is_ending = true;
        self.tally.record(Situation::Lost);
        let way = self.rng.below(3);
        self.trace.note(0, format_args!("the connection ends, way {way}"));
        match way {
            0 => self.target.link.abort(),
            1 => self.target.link.finish(),
            _ => self.qp.modify(State::Error).expect("always allowed"),
        }
    }

    /// Lets time pass until something happens at one of the ends, and handles it.
    fn turn(&mut self) {
        self.target.work();
        let ready = self.link.take_ready();
        if ready.readable || ready.writable {
            let ended = self.is_ending && ready.readable;
            self.qp.drive(Ready { readable: ready.readable, writable: ready.writable, ended });
        }
        while self.driver.0.swap(false, Ordering::Relaxed) {
            self.qp.resume();
        }
        let _ = self.target.link.take_ready(); // it tries every time
        let next = [self.link.next_ready(), self.target.link.next_ready()];
        if let Some(next) = next.into_iter().flatten().min().filter(|next| *next > self.clock.now()) {
            self.clock.advance_to(next);
        }
    }

    /// Posts a command for a buffer that no other uses, in one or two parts.
    fn post(&mut self) {
        let buffer = size(self.rng.below(BUFFERS as u64));
        let Buffer { span, tag, is_used, .. } = self.buffers[buffer];
        if is_used {
            return;
        }
        self.serial += 1;
        let (serial, is_read) = (self.serial, self.rng.below(2) == 0);
        let len = 1 + size(self.rng.below(span.len as u64));
        let front = size(self.rng.below(len as u64 + 1));
        let sge = |at: usize, len: usize| Sge {
            tag,
            addr: span.addr + at as u64,
            len: u32::try_from(len).expect("small"),
        };
        let sges = Sges::from(&[sge(0, front), sge(front, len - front)][..]);
        if !is_read {
            self.refill(buffer, serial);
        }
        let mut header = Command { lun: 0, ..Command::default() };
        header.cdb[..8].copy_from_slice(&serial.to_be_bytes());
        let direction = if is_read { Direction::In } else { Direction::Out };
        let request = CommandRequest { header, data: Some((direction, sges)) };
        let Ok(ids) = self.qp.post_commands(vec![request]) else { return };
        self.trace.note(0, format_args!("post {serial}: {direction:?} {len} bytes, {}", ids[0]));
        self.buffers[buffer].is_used = true;
        let posted = Posted { serial, buffer, len, is_read };
        assert!(self.outstanding.insert(ids[0], posted).is_none(), "number used twice");
    }

    fn post_receives(&mut self) {
        for _ in 0..=self.rng.below(8) {
            let (span, tag, free) = &mut self.receives;
            let Some(slot) = free.pop() else { return };
            let addr = span.addr + (slot * ROOM) as u64;
            let buffers = Sge { tag: *tag, addr, len: u32::try_from(ROOM).expect("small") }.into();
            let _ = self.qp.post_receive(ReceiveRequest { id: slot as u64, buffers });
        }
    }

    /// Aborts a command, and uses its memory at once for something else.
    fn abort(&mut self) {
        let which = size(self.rng.below(BUFFERS as u64));
        let Some(id) = self.outstanding.keys().nth(which).copied() else { return };
        if self.qp.abort(id).is_err() {
            return self.tally.record(Situation::AbortedLate);
        }
        self.tally.record(Situation::Aborted);
        let posted = self.outstanding.remove(&id).expect("it was just there");
        self.trace.note(0, format_args!("abort {}", posted.serial));
        self.target.abort(posted.serial);
        self.release(&posted);
    }

    /// Polls and checks all completions.
    fn poll(&mut self) {
        let mut all = Vec::new();
        while self.cq.poll(64, |completion| all.push(completion)).expect("no overrun") > 0 {}
        for completion in all {
            match completion.opcode {
                Opcode::Command => self.command_failed(&completion),
                _ => self.received(&completion),
            }
        }
    }

    /// Checks a command that has failed.
    fn command_failed(&mut self, completion: &Completion) {
        let id = CommandId::of(completion).expect("a command");
        let posted = self.outstanding.remove(&id).expect("a command that has not ended");
        self.trace.note(0, format_args!("{} failed: {:?}", posted.serial, completion.status));
        match completion.status {
            Status::Flushed => self.tally.record(Situation::Flushed),
            Status::WindowBind => self.tally.record(Situation::NotRegistered),
            other => panic!("{other:?}"),
        }
        self.release(&posted);
    }

    /// Checks a receive that was used or flushed.
    fn received(&mut self, completion: &Completion) {
        let slot = usize::try_from(completion.wr_id).expect("a slot");
        self.receives.2.push(slot);
        if completion.status != Status::Success {
            assert_eq!((completion.status, self.qp.state()), (Status::Flushed, State::Error));
            return;
        }
        self.delivered += 1;
        if completion.opcode == Opcode::RefusedPdu {
            assert!(completion.cause.is_some());
            self.tally.record(Situation::Refused);
        }
        if completion.opcode != Opcode::Response {
            return;
        }
        let header = self.arena.read(Span::new(self.receives.0.addr + (slot * ROOM) as u64, HEADER_LEN));
        let residual = match TargetPdu::parse(header.first_chunk().expect("a header")) {
            Ok(TargetPdu::Response(response)) => response.residual,
            Ok(TargetPdu::DataIn(data)) => data.status.expect("a status").1,
            other => panic!("{other:?}"),
        };
        let id = CommandId::of(completion).expect("a command");
        let posted = self.outstanding.remove(&id).expect("a command that has not ended");
        self.completed(&posted, residual);
    }

    /// Checks the memory of a command that the target has completed.
    fn completed(&mut self, posted: &Posted, residual: Residual) {
        let &Posted { serial, buffer, len, is_read } = posted;
        self.trace.note(0, format_args!("{serial} completed: {residual:?}"));
        let missing = match residual {
            Residual::Underflow(missing) => missing as usize,
            _ => 0,
        };
        self.tally.record(if is_read { Situation::Read } else { Situation::Write });
        if missing > 0 {
            self.tally.record(Situation::Early);
        }
        if is_read {
            // The data of the target, and then what was there before.
            let Buffer { span, seed, .. } = self.buffers[buffer];
            let (found, before, sent) =
                (self.arena.read(span), pattern(seed, span.len), pattern(serial, len));
            let placed = len - missing;
            assert!(found[..placed] == sent[..placed], "wrong data of {serial}");
            assert!(found[placed..] == before[placed..], "too much data of {serial}");
        }
        self.release(posted);
    }

    /// Frees the buffer of a command that has ended, and fills it with another pattern at once. A write must not have
    /// changed it.
    fn release(&mut self, &Posted { buffer, is_read, .. }: &Posted) {
        if !is_read {
            let Buffer { span, seed, .. } = self.buffers[buffer];
            self.arena.check_pattern(span, seed);
        }
        self.serial += 1;
        self.refill(buffer, self.serial);
        self.buffers[buffer].is_used = false;
    }

    fn refill(&mut self, buffer: usize, seed: u64) {
        self.arena.fill_pattern(self.buffers[buffer].span, seed);
        self.buffers[buffer].seed = seed;
    }

    /// Checks the buffers that no read uses.
    fn check_memory(&self) {
        let reads: Vec<usize> =
            self.outstanding.values().filter(|posted| posted.is_read).map(|posted| posted.buffer).collect();
        for (number, buffer) in self.buffers.iter().enumerate() {
            if !reads.contains(&number) {
                self.arena.check_pattern(buffer.span, buffer.seed);
            }
        }
    }
}

/// Returns what initiator and target agreed on.
fn random_session(rng: &mut Rng) -> SessionParameters {
    let mut session = SessionParameters::default();
    (session.digests.header, session.digests.data) = (rng.below(3) == 0, rng.below(3) == 0);
    (session.immediate_data, session.initial_r2t) = (rng.below(2) == 0, rng.below(2) == 0);
    let mut up_to = |most| 1 + u32::try_from(rng.below(most)).expect("small");
    (session.max_recv_data, session.max_send_data) = (500 + up_to(40_000), 50 + up_to(10_000));
    (session.first_burst, session.max_burst) = (up_to(5000), 100 + up_to(20_000));
    session.max_outstanding_r2t = u16::try_from(up_to(3)).expect("small");
    session.exp_stat_sn = u32::MAX - up_to(20);
    session
}

/// Converts a small number.
fn size(number: u64) -> usize {
    usize::try_from(number).expect("small")
}
