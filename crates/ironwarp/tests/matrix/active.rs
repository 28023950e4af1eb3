//! The active end: posts the operations, and checks its completions and every byte of its memory. It tells the passive
//! end what to expect, and when to check.

use crate::control::{Other, TIMEOUT};
use crate::end::End;
use crate::op::{OPS, Op, RECEIVES, Receives, Verb, WORD};
use crate::options::Options;
use crate::pattern::{Layout, bytes, seed, word};
use ironwarp::completion::{Opcode, Status};
use ironwarp::connection::{AcceptOptions, ConnectOptions, Established};
use ironwarp::memory::{Access, MemoryRegion, RemoteAddr, Sge, Tag};
use ironwarp::queue::{QpError, WorkRequest};
use ironwarp_testkit::native::Completions;
use std::net::SocketAddr;

/// Identifiers of requests.
const FIRST: u64 = 1;
const LAST: u64 = 2;
const BELL: u64 = 3;

/// A connection to the other process.
pub(crate) struct Session<'a> {
    other: &'a mut Other,
    end: End,
    options: Options,
    steps: usize,
    /// RDMAP opcodes of all messages so far, in both directions, except empty Reads.
    pub(crate) messages: Vec<u8>,
}

/// What the passive end has prepared.
struct Ready {
    addr: RemoteAddr,
    srq: u32,
    invalidate: Tag,
}

impl<'a> Session<'a> {
    pub(crate) fn open(other: &'a mut Other, options: &Options, receives: Receives) -> Self {
        Self::open_through(other, options, receives, |address| address)
    }

    /// Connects to the address that `through` returns, which leads to the passive end.
    pub(crate) fn open_through(
        other: &'a mut Other,
        options: &Options,
        receives: Receives,
        through: impl FnOnce(SocketAddr) -> SocketAddr,
    ) -> Self {
        let end = End::new(options, Receives::Own, false);
        let established = connect(other, &end, options, receives, through);
        options.check(&established.agreed, false);
        other.lines.expect("connected");
        Self { other, end, options: *options, steps: 0, messages: Vec::new() }
    }

    /// Runs an operation that succeeds.
    pub(crate) fn step(&mut self, row: usize, size: usize) {
        let op = &OPS[row];
        let (ready, seed) = self.prepare(row, size);
        match op.verb {
            Verb::Send | Verb::Write => self.outgoing(op, size, seed, &ready),
            Verb::Read => self.read(op, size, seed, &ready),
            Verb::FetchAdd | Verb::CompareSwap => self.atomic(op, seed, &ready),
            Verb::Sequence => self.sequence(size, seed, &ready),
        }
        self.messages.extend(op.on_the_wire(size));
        if !op.is_message() && !self.options.acknowledged {
            // A message follows, so the data is placed when the message arrives.
            self.end.qp.post_send(WorkRequest::send(BELL, &[])).unwrap();
            self.end.done(Opcode::Send, BELL);
            self.messages.push(3);
        }
        self.end.nothing_more();
        self.other.lines.say("check");
        self.other.lines.expect("ok");
        let recognised = self.end.qp.is_peer_ironwarp();
        assert!(if recognised { self.options.recognised() } else { !op.needs_recognition() });
    }

    /// Requirement X8: a Send with Immediate to a peer that is not known to be Ironwarp is a local error. Nothing of it
    /// is sent; the connection ends.
    pub(crate) fn step_refused(mut self, row: usize, size: usize) {
        let (ready, seed) = self.prepare(row, size);
        let (layout, region) = self.source(size, seed, false);
        let list = list(&region, &layout);
        self.end.qp.post_send(request(&OPS[row], &list, size, seed, &ready)).unwrap();
        let failed = self.end.failed(Opcode::Send, LAST, Status::LocalQpOperation);
        assert_eq!(failed.cause.as_deref(), Some(&QpError::NoImmediate));
        assert!(!self.end.qp.is_peer_ironwarp());
        self.other.lines.say("refused");
        self.other.lines.expect("ok");
        self.close();
    }

    /// Disconnects, and returns the opcodes on the wire.
    pub(crate) fn close(self) -> Vec<u8> {
        let Self { other, end, messages, .. } = self;
        end.qp.disconnect();
        other.lines.say("close");
        other.lines.expect("closed");
        assert!(end.qp.wait_closed(TIMEOUT), "the passive end closes");
        messages
    }

    fn prepare(&mut self, row: usize, size: usize) -> (Ready, u64) {
        self.steps += 1;
        let seed = seed(row, size, self.steps);
        self.other.lines.say(&format!("step {row} {size} {seed}"));
        let words = self.other.lines.expect("ready");
        let number = |at: usize| words[at].parse::<u64>().unwrap();
        let tag = |at: usize| Tag(u32::try_from(number(at)).unwrap());
        let addr = RemoteAddr { tag: tag(0), offset: number(1) };
        (Ready { addr, srq: tag(2).0, invalidate: tag(3) }, seed)
    }

    /// Returns a message in memory, with only the necessary rights.
    fn source(&self, size: usize, seed: u64, uneven: bool) -> (Layout, MemoryRegion) {
        let layout = if uneven { Layout::uneven(size, 0) } else { Layout::one(size) };
        let region = self.end.region(layout.region_len(), Access::LOCAL_READ);
        layout.guard(&region);
        layout.fill(&region, seed);
        (layout, region)
    }

    fn sink(&self, layout: Layout, access: Access) -> (Layout, MemoryRegion) {
        let region = self.end.region(layout.region_len(), access);
        layout.guard(&region);
        (layout, region)
    }

    fn outgoing(&self, op: &Op, size: usize, seed: u64, ready: &Ready) {
        let (layout, region) = self.source(size, seed, op.list);
        let list = list(&region, &layout);
        self.end.qp.post_send(request(op, &list, size, seed, ready)).unwrap();
        assert_eq!(self.end.done(op.opcode(), LAST).byte_len as usize, size, "{}", op.name);
        layout.check(&region, seed);
    }

    fn read(&self, op: &Op, size: usize, seed: u64, ready: &Ready) {
        let layout = if op.list { Layout::uneven(size, 0) } else { Layout::one(size) };
        let (layout, region) = self.sink(layout, Access::LOCAL_WRITE);
        self.end.qp.post_send(WorkRequest::read(LAST, &list(&region, &layout), ready.addr)).unwrap();
        assert_eq!(self.end.done(Opcode::Read, LAST).byte_len as usize, size, "{}", op.name);
        layout.check(&region, seed);
    }

    /// The previous value is word 0 of the pattern.
    fn atomic(&self, op: &Op, seed: u64, ready: &Ready) {
        let (before, other) = (word(seed, 0), word(seed, 1));
        let result = |expected: u64, request: &dyn Fn(Sge) -> WorkRequest| {
            let (layout, region) = self.sink(Layout::aligned(), Access::LOCAL_WRITE);
            let at = layout.pieces[0].0;
            self.end.qp.post_send(request(region.slice(at..at + WORD).unwrap())).unwrap();
            assert_eq!(self.end.done(op.opcode(), LAST).byte_len as usize, WORD, "{}", op.name);
            let mut found = [0; WORD];
            region.read(at, &mut found).unwrap();
            assert_eq!(u64::from_ne_bytes(found), expected, "{}", op.name);
            region.write(at, &[0; WORD]).unwrap();
            layout.check_untouched(&region);
        };
        let addr = ready.addr;
        if op.verb == Verb::FetchAdd {
            result(before, &|sge| WorkRequest::fetch_add(LAST, sge, addr, other));
        } else {
            result(before, &|sge| WorkRequest::compare_swap(LAST, sge, addr, before, other));
            result(other, &|sge| WorkRequest::compare_swap(LAST, sge, addr, before, 0));
        }
    }

    /// The Send carries the data of the Read, which requires a fence; one of three requests is signaled.
    fn sequence(&self, size: usize, seed: u64, ready: &Ready) {
        let (layout, region) = self.source(size, seed, true);
        let access = Access::LOCAL_READ | Access::LOCAL_WRITE;
        let (back_layout, back) = self.sink(Layout::uneven(size, 5), access);
        let returned = list(&back, &back_layout);
        self.end
            .qp
            .post_send_all(vec![
                WorkRequest::write(FIRST, &list(&region, &layout), ready.addr).unsignaled(),
                WorkRequest::read(FIRST, &returned, ready.addr).unsignaled(),
                WorkRequest::send(LAST, &returned).fenced().to_srq(ready.srq).into(),
            ])
            .unwrap();
        assert_eq!(self.end.done(Opcode::Send, LAST).byte_len as usize, size);
        layout.check(&region, seed);
        back_layout.check(&back, seed);
    }
}

fn connect(
    other: &mut Other,
    end: &End,
    options: &Options,
    receives: Receives,
    through: impl FnOnce(SocketAddr) -> SocketAddr,
) -> Established {
    let which = RECEIVES.iter().position(|it| *it == receives).unwrap();
    let choices = options.choices().map(|it| it.to_string()).join(" ");
    if options.passive_connects {
        let listener = end.adapter.listen(options.address().parse().unwrap()).unwrap();
        other.lines.say(&format!("open {choices} {which} {}", listener.local_addr().unwrap()));
        let incoming = listener.accept(TIMEOUT).expect("the passive end connects");
        incoming.accept(&end.qp, &AcceptOptions::new()).unwrap()
    } else {
        other.lines.say(&format!("open {choices} {which} -"));
        let address = other.lines.expect("at")[0].parse().unwrap();
        end.qp.connect(through(address), &ConnectOptions::new()).unwrap()
    }
}

fn list(region: &MemoryRegion, layout: &Layout) -> Vec<Sge> {
    layout.pieces.iter().map(|(at, len)| region.slice(*at..*at + *len).unwrap()).collect()
}

/// Returns a Send or Write of any kind.
fn request(op: &Op, list: &[Sge], size: usize, seed: u64, ready: &Ready) -> WorkRequest {
    #[expect(clippy::cast_possible_truncation, reason = "half of the seed")]
    let immediate = seed as u32;
    if op.verb == Verb::Write {
        if op.immediate {
            let request = WorkRequest::write_immediate(LAST, list, ready.addr, immediate).to_srq(ready.srq);
            return if op.solicited { request.solicited().into() } else { request.into() };
        }
        return if op.inline {
            WorkRequest::write_inline(LAST, &bytes(seed, 0, size), ready.addr)
        } else {
            WorkRequest::write(LAST, list, ready.addr)
        };
    }
    let mut request = if op.inline {
        WorkRequest::send_inline(LAST, &bytes(seed, 0, size))
    } else {
        WorkRequest::send(LAST, list)
    };
    if op.solicited {
        request = request.solicited();
    }
    if op.immediate {
        request = request.immediate(immediate);
    }
    if op.invalidate {
        request = request.invalidate(ready.invalidate);
    }
    request.to_srq(ready.srq).into()
}
