//! The passive end, in its own process. Before each operation it exposes memory and posts receives, and sends the
//! addresses; afterwards it checks its completions and every byte. The active end controls it.

use crate::control::{Lines, TIMEOUT};
use crate::end::End;
use crate::op::{OPS, Op, RECEIVES, Receives, Target, Verb};
use crate::options::Options;
use crate::pattern::{Layout, word};
use ironwarp::completion::{Opcode, Status};
use ironwarp::connection::{AcceptOptions, ConnectOptions};
use ironwarp::memory::{Access, Buffer, Contents, FastRegion, MemoryRegion, RemoteAddr, Sge, Tag, Window};
use ironwarp::queue::WorkRequest;
use ironwarp_testkit::native::Completions;
use std::ops::Deref;

/// Identifiers of requests.
const RECEIVE: u64 = 1;
const OPEN: u64 = 2;
const INVALIDATABLE: u64 = 3;

/// Executes the commands of the active end until it closes.
pub(crate) fn serve(mut lines: Lines) {
    let mut session: Option<Session> = None;
    let mut step: Option<Step> = None;
    loop {
        let words = lines.hear();
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        match (&words[..], session.take(), step.take()) {
            (["open", choices @ .., receives, address], None, None) => {
                session = Some(Session::open(choices, receives, address, &mut lines));
            }
            (["step", op, size, seed], Some(it), None) => {
                let prepared = it.prepare(&OPS[number(op)], number(size), seed.parse().unwrap());
                let RemoteAddr { tag, offset } = prepared.addr;
                let invalidate = prepared.invalidatable.as_ref().map_or(Tag(0), |(_, window)| window.tag());
                lines.say(&format!("ready {} {offset} {} {}", tag.0, it.srq(), invalidate.0));
                (session, step) = (Some(it), Some(prepared));
            }
            (["check"], Some(it), Some(done)) => {
                it.check(done);
                lines.say("ok");
                session = Some(it);
            }
            (["refused"], Some(it), Some(refused)) => {
                it.check_refused(&refused);
                lines.say("ok");
                session = Some(it);
            }
            (["close"], Some(it), None) => {
                assert!(it.end.qp.wait_closed(TIMEOUT), "the active end closes");
                drop(it);
                lines.say("closed");
            }
            (["end"], None, None) => return,
            (words, ..) => panic!("unexpected command {words:?}"),
        }
    }
}

fn number(word: &str) -> usize {
    word.parse().unwrap()
}

/// A connection.
struct Session {
    end: End,
    options: Options,
    receives: Receives,
}

/// An operation that is prepared, and not checked yet.
struct Step {
    op: Op,
    size: usize,
    seed: u64,
    /// Target or source of the operation.
    addr: RemoteAddr,
    memory: Opened,
    layout: Layout,
    /// Memory and layout of the receive, if the operation also has another target.
    received: Option<(Opened, Layout)>,
    /// A window for the peer to invalidate, and its region.
    invalidatable: Option<(MemoryRegion, Window)>,
}

/// Memory that is exposed to the peer.
enum Opened {
    Region(MemoryRegion),
    Window(MemoryRegion, Window),
    Fast(FastRegion),
}

impl Session {
    fn open(choices: &[&str], receives: &str, address: &str, lines: &mut Lines) -> Self {
        let choices: Vec<u8> = choices.iter().map(|it| it.parse().unwrap()).collect();
        let options = Options::from(<[u8; 6]>::try_from(choices).unwrap());
        let receives = RECEIVES[number(receives)];
        let end = End::new(&options, receives, true);
        let established = if options.passive_connects {
            end.qp.connect(address.parse().unwrap(), &ConnectOptions::new()).unwrap()
        } else {
            let listener = end.adapter.listen(options.address().parse().unwrap()).unwrap();
            lines.say(&format!("at {}", listener.local_addr().unwrap()));
            let incoming = listener.accept(TIMEOUT).expect("the active end connects");
            incoming.accept(&end.qp, &AcceptOptions::new()).unwrap()
        };
        options.check(&established.agreed, true);
        lines.say("connected");
        Self { end, options, receives }
    }

    /// Number of the queue that messages must address.
    fn srq(&self) -> u32 {
        if self.receives == Receives::Xrc { self.end.srq.as_ref().unwrap().id() } else { 0 }
    }

    fn prepare(&self, op: &Op, size: usize, seed: u64) -> Step {
        let layout = match op.verb {
            Verb::Send if op.list => Layout::uneven(size, 3),
            _ if op.is_atomic() => Layout::aligned(),
            _ => Layout::one(size),
        };
        let memory = self.opened(op, &layout);
        layout.guard(&memory);
        if op.verb == Verb::Read || op.is_atomic() {
            layout.fill(&memory, seed);
        }
        let mut step = Step {
            op: *op,
            size,
            seed,
            addr: memory.addr(layout.pieces[0].0),
            memory,
            layout,
            received: None,
            invalidatable: op.invalidate.then(|| self.invalidatable()),
        };
        match op.verb {
            Verb::Send => self.receive(&step.memory.list(&step.layout)),
            Verb::Sequence => {
                let layout = Layout::uneven(size, 1);
                let region = self.end.region(layout.region_len(), Access::LOCAL_WRITE);
                layout.guard(&region);
                let memory = Opened::Region(region);
                self.receive(&memory.list(&layout));
                step.received = Some((memory, layout));
            }
            _ if op.is_message() || !self.options.acknowledged => self.receive(&[]),
            _ => {}
        }
        step
    }

    fn receive(&self, list: &[Sge]) {
        match &self.end.srq {
            Some(srq) => srq.post_receive(RECEIVE, list).unwrap(),
            None => self.end.qp.post_receive(RECEIVE, list).unwrap(),
        }
    }

    /// Returns memory with only the rights that the operation needs.
    fn opened(&self, op: &Op, layout: &Layout) -> Opened {
        let both = Access::LOCAL_READ | Access::LOCAL_WRITE;
        let (local, remote) = match op.verb {
            Verb::Send => (Access::LOCAL_WRITE, Access::empty()),
            Verb::Write => (Access::LOCAL_WRITE, Access::REMOTE_WRITE),
            Verb::Read => (Access::LOCAL_READ, Access::REMOTE_READ),
            Verb::FetchAdd | Verb::CompareSwap => (both, Access::REMOTE_ATOMIC),
            Verb::Sequence => (both, Access::REMOTE_WRITE | Access::REMOTE_READ),
        };
        let (End { domain, qp, .. }, buffers) = (&self.end, buffers(layout.region_len(), op.list));
        match op.target {
            Target::Region => Opened::Region(domain.register_list(buffers, local | remote).unwrap()),
            Target::Window => {
                let region = domain.register_list(buffers, local | Access::BIND).unwrap();
                let window = domain.window().unwrap();
                let (at, len) = layout.pieces[0];
                qp.post_send(WorkRequest::bind(OPEN, &window, &region, at..at + len.max(1), remote).unwrap())
                    .unwrap();
                self.end.done(Opcode::Bind, OPEN);
                Opened::Window(region, window)
            }
            Target::FastRegion => {
                let region = domain.allocate_region(buffers).unwrap();
                qp.post_send(WorkRequest::register(OPEN, &region, local | remote)).unwrap();
                self.end.done(Opcode::Register, OPEN);
                Opened::Fast(region)
            }
        }
    }

    fn invalidatable(&self) -> (MemoryRegion, Window) {
        let region = self.end.region(64, Access::LOCAL_READ | Access::BIND);
        let window = self.end.domain.window().unwrap();
        let request = WorkRequest::bind(INVALIDATABLE, &window, &region, ..64, Access::REMOTE_READ);
        self.end.qp.post_send(request.unwrap()).unwrap();
        self.end.done(Opcode::Bind, INVALIDATABLE);
        (region, window)
    }

    /// Checks the completions and every byte after the operation.
    fn check(&self, step: Step) {
        let Step { op, size, seed, memory, layout, received, invalidatable, .. } = step;
        if op.is_message() || !self.options.acknowledged {
            self.check_receive(&op, size, seed, invalidatable.as_ref().map(|(_, window)| window.tag()));
        }
        self.end.nothing_more();
        match op.verb {
            Verb::Send | Verb::Write | Verb::Read => layout.check(&memory, seed),
            Verb::FetchAdd | Verb::CompareSwap => {
                let mut found = [0; 8];
                memory.read(layout.pieces[0].0, &mut found).unwrap();
                let add = if op.verb == Verb::FetchAdd { word(seed, 0) } else { 0 };
                assert_eq!(u64::from_ne_bytes(found), add.wrapping_add(word(seed, 1)), "{}", op.name);
                // Restore the word, so that the check covers the bytes around it.
                layout.fill(&memory, seed);
                layout.check(&memory, seed);
            }
            Verb::Sequence => {
                layout.check(&memory, seed);
                let (memory, layout) = received.unwrap();
                layout.check(&memory, seed);
            }
        }
        if let Some((region, window)) = invalidatable {
            // The region cannot be deregistered while the window is bound.
            region.deregister().unwrap();
            drop(window);
        }
    }

    fn check_receive(&self, op: &Op, size: usize, seed: u64, invalidated: Option<Tag>) {
        let notice = op.verb == Verb::Write && op.immediate;
        let opcode = if notice { Opcode::ReceiveWrite } else { Opcode::Receive };
        let completion = if self.options.acknowledged {
            // The active end has an acknowledgement, so the message was received.
            let completion = self.end.cq.poll_one().unwrap().expect("acknowledged means received");
            assert_eq!((completion.status, completion.opcode), (Status::Success, opcode), "{completion:?}");
            assert_eq!((completion.wr_id, completion.qp), (RECEIVE, self.end.qp.id()));
            completion
        } else {
            self.end.done(opcode, RECEIVE)
        };
        let len = if op.is_message() { size } else { 0 };
        assert_eq!(completion.byte_len as usize, len, "{}", op.name);
        assert_eq!(completion.solicited, op.solicited, "{}", op.name);
        #[expect(clippy::cast_possible_truncation, reason = "half of the seed")]
        let immediate = op.immediate.then_some(seed as u32);
        assert_eq!(completion.immediate, immediate, "{}", op.name);
        assert_eq!(completion.invalidated, invalidated, "{}", op.name);
    }

    /// The active end failed the operation locally, and closed.
    fn check_refused(&self, step: &Step) {
        if self.end.srq.is_none() {
            self.end.failed(Opcode::Receive, RECEIVE, Status::Flushed);
        }
        assert!(self.end.qp.wait_closed(TIMEOUT));
        self.end.nothing_more();
        step.layout.check_untouched(&step.memory);
    }
}

impl Opened {
    fn addr(&self, at: usize) -> RemoteAddr {
        match self {
            Self::Region(region) => region.remote_addr(at).unwrap(),
            Self::Window(_, window) => window.remote_addr(0),
            Self::Fast(region) => region.remote_addr(at).unwrap(),
        }
    }

    fn list(&self, layout: &Layout) -> Vec<Sge> {
        let Self::Region(region) = self else { panic!("receives use regions") };
        layout.pieces.iter().map(|(at, len)| region.slice(*at..*at + *len).unwrap()).collect()
    }
}

impl Deref for Opened {
    type Target = Contents;

    fn deref(&self) -> &Contents {
        match self {
            Self::Region(region) | Self::Window(region, _) => region,
            Self::Fast(region) => region,
        }
    }
}

/// Allocates memory for `len` bytes, in several buffers or in one.
fn buffers(len: usize, several: bool) -> Vec<Buffer> {
    let cuts = if several { vec![0, 5, len / 3, len - 7, len] } else { vec![0, len] };
    cuts.windows(2).map(|it| Buffer::new(it[1] - it[0]).unwrap()).collect()
}
