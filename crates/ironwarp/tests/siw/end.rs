//! Ironwarp's end of a session: memory, connection and operations, as guest/README.md describes them.

use crate::pattern;
use crate::shape::Shape;
use ironwarp::completion::{Arm, Completion, CompletionQueue, Opcode, RequestError};
use ironwarp::connection::{AcceptOptions, ConnectError, ConnectOptions, Established, Listener};
use ironwarp::hand_over::TakenOver;
use ironwarp::memory::{Access, Buffer, MemoryRegion, RemoteAddr, Sge, Tag};
use ironwarp::queue::{Completes, QueuePair, SendRequest, SharedReceiveQueue, WorkRequest};
use ironwarp::{Adapter, ProtectionDomain};
use std::net::SocketAddr;
use std::time::Duration;

/// IRD and ORD of both ends.
pub(crate) const DEPTH: u16 = 4;
/// Timeout of a step.
pub(crate) const STEP: Duration = Duration::from_secs(60);
/// Length of each region other than [`What::Main`].
const PAGE: usize = 4096;
const ADVERT: usize = 128;
const ADVERT_ENTRY: usize = 16;

/// Memory that is advertised to the other end, in the order of the advert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Main,
    ReadOnly,
    WriteOnly,
    Domain,
    Gone,
    Spare,
}

const PLACES: usize = 6;

/// Addresses of siw's memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Theirs {
    pub(crate) addr: RemoteAddr,
    pub(crate) len: u32,
}

#[derive(Debug)]
pub(crate) struct End {
    pub(crate) qp: QueuePair,
    pub(crate) sent: CompletionQueue,
    pub(crate) received: CompletionQueue,
    pub(crate) shape: Shape,
    pub(crate) connects: bool,
    /// Set by the exchange of adverts.
    pub(crate) theirs: Vec<Theirs>,
    pub(crate) source: MemoryRegion,
    pub(crate) sink: MemoryRegion,
    srq: Option<SharedReceiveQueue>,
    main: MemoryRegion,
    /// [`What::ReadOnly`] and those after it, except [`What::Gone`].
    pages: Vec<MemoryRegion>,
    gone: RemoteAddr,
    receives: MemoryRegion,
    /// Number of messages in each direction, without adverts: each has different contents.
    messages: (u8, u8),
    /// Number of receives used. They are used in the order of posting.
    used: usize,
}

impl End {
    pub(crate) fn new(adapter: &Adapter, connects: bool, completes: Completes, shape: Shape) -> Self {
        let domain = adapter.protection_domain();
        let (sent, received) = (adapter.completion_queue(64).unwrap(), adapter.completion_queue(64).unwrap());
        let srq = shape.srq.then(|| domain.shared_receive_queue(shape.receives));
        let builder = domain.queue_pair(&sent).receive_cq(&received).completes(completes);
        let qp = match &srq {
            Some(srq) => builder.srq(srq),
            None => builder,
        };
        let remote = Access::REMOTE_WRITE | Access::REMOTE_READ;
        let all = Access::LOCAL_WRITE | remote;
        let held = [vec![0; shape.half], pattern::HELD.bytes(0, shape.half, 0)].concat();
        let page =
            |domain: &ProtectionDomain, access| registered(domain, &pattern::HELD.bytes(0, PAGE, 0), access);
        let gone = page(&domain, all);
        let gone_addr = gone.remote_addr(0).unwrap();
        gone.deregister().unwrap();
        let end = Self {
            main: registered(&domain, &held, all),
            pages: vec![
                page(&domain, Access::LOCAL_READ | Access::REMOTE_READ),
                page(&domain, Access::LOCAL_WRITE | Access::REMOTE_WRITE),
                page(&adapter.protection_domain(), all),
                page(&domain, all),
            ],
            gone: gone_addr,
            source: registered(&domain, &pattern::WRITTEN.bytes(0, shape.half, 0), Access::LOCAL_READ),
            sink: registered(&domain, &vec![0; shape.half], Access::LOCAL_READ | Access::LOCAL_WRITE),
            receives: registered(&domain, &vec![0; shape.receives * shape.receive], Access::LOCAL_WRITE),
            qp: qp.create().unwrap(),
            sent,
            received,
            shape,
            connects,
            theirs: Vec::new(),
            srq,
            messages: (0, 0),
            used: 0,
        };
        for i in 0..if shape.few { 1 } else { shape.receives } {
            end.post_receive(i);
        }
        end
    }

    pub(crate) fn post_receive(&self, i: usize) {
        let list = [self.receives.slice(i * self.shape.receive..(i + 1) * self.shape.receive).unwrap()];
        match &self.srq {
            Some(srq) => srq.post_receive(i as u64, &list).unwrap(),
            None => self.qp.post_receive(i as u64, &list).unwrap(),
        }
    }

    /// Returns the adapter that has taken this end over, and the end.
    pub(crate) fn moved(self, taken: TakenOver) -> (Adapter, Self) {
        let mut regions = taken.regions;
        let mut region = |before: &MemoryRegion| {
            let index =
                regions.iter().position(|region| region.tag() == before.tag()).expect("all regions move");
            regions.swap_remove(index)
        };
        let mut cqs = taken.completion_queues;
        let mut cq = |before: &CompletionQueue| {
            let index = cqs.iter().position(|cq| cq.id() == before.id()).expect("all completion queues move");
            cqs.swap_remove(index)
        };
        let moved = Self {
            main: region(&self.main),
            pages: self.pages.iter().map(&mut region).collect(),
            source: region(&self.source),
            sink: region(&self.sink),
            receives: region(&self.receives),
            sent: cq(&self.sent),
            received: cq(&self.received),
            qp: taken.queue_pairs.into_iter().next().expect("the queue pair moves"),
            srq: taken.shared_receive_queues.into_iter().next(),
            theirs: self.theirs,
            ..self
        };
        (taken.adapter, moved)
    }

    // --- The connection ---

    /// Waits for a request of siw, and accepts it.
    pub(crate) fn serve(&self, listener: &Listener) -> Established {
        let incoming = listener.accept(STEP).expect("siw connects");
        assert_eq!(incoming.private_data(), self.private_of_siw());
        let private = self.private();
        let options = AcceptOptions::new().private_data(&private).ird(DEPTH).ord(DEPTH);
        incoming.accept(&self.qp, &options).unwrap()
    }

    /// Connects to siw.
    pub(crate) fn connect(&self, to: SocketAddr) -> Result<Established, ConnectError> {
        let private = self.private();
        let options = ConnectOptions::new().private_data(&private).ird(DEPTH).ord(DEPTH);
        self.qp.connect(to, &options.mpa_mode(self.shape.setup))
    }

    pub(crate) fn private(&self) -> Vec<u8> {
        pattern::SAID.bytes(0, self.shape.private, 0)
    }

    pub(crate) fn private_of_siw(&self) -> Vec<u8> {
        pattern::SAID_BY_SIW.bytes(0, self.shape.private_of_siw, 0)
    }

    pub(crate) fn disconnect(&self) {
        self.qp.disconnect();
        assert!(self.qp.wait_closed(STEP), "siw does not close its side of the connection");
    }

    /// Waits for the end of the connection. Panics unless siw closed it.
    pub(crate) fn expect_closed(&self) {
        assert_eq!(self.wait_for_end(), "the peer closed the connection");
    }

    /// Waits for the end of the connection, and returns the error text.
    pub(crate) fn wait_for_end(&self) -> String {
        assert!(self.qp.wait_closed(STEP), "the connection does not end");
        self.qp.error().expect("the error is known").to_string()
    }

    // --- Adverts ---

    /// Exchanges the addresses of the memory; the client sends first (RFC 5044 §7.1.2).
    pub(crate) fn advert(&mut self) {
        if self.connects {
            self.send_advert();
        }
        self.receive_advert();
        if !self.connects {
            self.send_advert();
        }
    }

    fn send_advert(&self) {
        let page = |i: usize| self.pages[i].remote_addr(0).unwrap();
        let places = [self.main.remote_addr(0).unwrap(), page(0), page(1), page(2), self.gone, page(3)];
        let mut advert: Vec<u8> = (0..128).collect();
        for (entry, addr) in advert.chunks_exact_mut(ADVERT_ENTRY).zip(places) {
            let len = if addr == places[0] { 2 * self.shape.half } else { PAGE };
            entry[..8].copy_from_slice(&addr.offset.to_be_bytes());
            entry[8..12].copy_from_slice(&addr.tag.0.to_be_bytes());
            entry[12..].copy_from_slice(&u32::try_from(len).unwrap().to_be_bytes());
        }
        self.completes(WorkRequest::send_inline(5, &advert), Opcode::Send, advert.len());
    }

    fn receive_advert(&mut self) {
        let completion = self.received();
        let advert = self.message(&completion, ADVERT);
        assert!(advert[PLACES * ADVERT_ENTRY..].iter().copied().eq(96..128), "{advert:?}");
        let theirs = advert[..PLACES * ADVERT_ENTRY].chunks_exact(ADVERT_ENTRY).map(|entry| Theirs {
            addr: RemoteAddr {
                tag: Tag(u32::from_be_bytes(entry[8..12].try_into().unwrap())),
                offset: u64::from_be_bytes(entry[..8].try_into().unwrap()),
            },
            len: u32::from_be_bytes(entry[12..].try_into().unwrap()),
        });
        self.theirs = theirs.collect();
    }

    pub(crate) fn their(&self, what: What) -> Theirs {
        self.theirs[what as usize]
    }

    // --- Messages ---

    /// Fills the buffer of the next message.
    pub(crate) fn fill_message(&mut self, len: usize) -> Sge {
        // The sink can be used for messages, while no Read fills it.
        self.sink.write(0, &pattern::SAID.bytes(0, len, self.messages.0)).unwrap();
        self.messages.0 += 1;
        self.sink.slice(..len).unwrap()
    }

    pub(crate) fn send(&mut self, len: usize) {
        self.send_as(len, |request| request);
    }

    pub(crate) fn send_as(&mut self, len: usize, kind: impl Fn(SendRequest) -> SendRequest) {
        let message = self.fill_message(len);
        self.completes(kind(WorkRequest::send(2, &[message])), Opcode::Send, len);
    }

    pub(crate) fn send_inline(&mut self, len: usize) {
        self.fill_message(len);
        let bytes = pattern::SAID.bytes(0, len, self.messages.0 - 1);
        self.completes(WorkRequest::send_inline(2, &bytes), Opcode::Send, len);
    }

    pub(crate) fn send_pieces(&mut self, len: usize) {
        self.fill_message(len);
        let list = pieces(&self.sink, 0, len);
        self.completes(WorkRequest::send(2, &list), Opcode::Send, len);
    }

    /// Receives a message, which must be siw's next one and of this length.
    pub(crate) fn receive(&mut self, len: usize) {
        let completion = self.received();
        assert!(!completion.solicited, "siw's message is not solicited");
        self.verify_message(&completion, len);
    }

    pub(crate) fn verify_message(&mut self, completion: &Completion, len: usize) {
        let message = self.message(completion, len);
        let number = self.messages.1;
        self.messages.1 += 1;
        pattern::SAID_BY_SIW.verify("the message", &message, 0, number);
    }

    fn message(&mut self, completion: &Completion, len: usize) -> Vec<u8> {
        let index = self.used;
        self.used += 1;
        assert_eq!((completion.wr_id, completion.opcode), (index as u64, Opcode::Receive));
        assert_eq!(completion.byte_len as usize, len);
        let mut message = vec![0; len];
        self.receives.read(index * self.shape.receive, &mut message).unwrap();
        message
    }

    /// Armed for solicited messages: this one is not solicited, and raises no event.
    pub(crate) fn quiet(&mut self, len: usize) {
        assert!(!self.received.arm(Arm::Solicited), "a message arrived too early");
        let completion = loop {
            if let Some(completion) = self.received.poll_one().unwrap() {
                break completion.success().unwrap();
            }
        };
        assert!(!completion.solicited && !self.received.take_event(), "{completion:?}");
        self.verify_message(&completion, len);
    }

    /// This one is solicited: the event arrives.
    pub(crate) fn woken(&mut self, len: usize) {
        self.received.own_handler().wait(STEP).expect("siw's message raises an event");
        let completion =
            self.received.poll_one().unwrap().expect("a completion with the event").success().unwrap();
        assert!(completion.solicited);
        self.verify_message(&completion, len);
    }

    // --- Tagged messages: `len` bytes at this offset of a half ---

    pub(crate) fn write(&self, len: usize, at: usize) {
        let source = self.source.slice(at..at + len).unwrap();
        self.completes(WorkRequest::write(1, &[source], self.to(at)), Opcode::Write, len);
    }

    pub(crate) fn write_pieces(&self, len: usize, at: usize) {
        let list = pieces(&self.source, at, len);
        self.completes(WorkRequest::write(1, &list, self.to(at)), Opcode::Write, len);
    }

    pub(crate) fn write_inline(&self, len: usize, at: usize) {
        let bytes = pattern::WRITTEN.bytes(at, len, 0);
        self.completes(WorkRequest::write_inline(1, &bytes, self.to(at)), Opcode::Write, len);
    }

    pub(crate) fn read(&self, len: usize, at: usize) {
        let list = [self.sink.slice(at..at + len).unwrap()];
        self.read_into(&list, len, at);
    }

    pub(crate) fn read_pieces(&self, len: usize, at: usize) {
        self.read_into(&pieces(&self.sink, at, len), len, at);
    }

    fn read_into(&self, list: &[Sge], len: usize, at: usize) {
        self.sink.write(at, &vec![0; len]).unwrap();
        let from = self.to(self.shape.half + at);
        self.completes(WorkRequest::read(3, list, from), Opcode::Read, len);
        let mut bytes = vec![0; len];
        self.sink.read(at, &mut bytes).unwrap();
        pattern::HELD_BY_SIW.verify("the bytes read", &bytes, at, 0);
    }

    /// Returns an address in siw's main region.
    pub(crate) fn to(&self, at: usize) -> RemoteAddr {
        let RemoteAddr { tag, offset } = self.their(What::Main).addr;
        RemoteAddr { tag, offset: offset + at as u64 }
    }

    /// Checks that siw wrote to the first `len` bytes of the region, and to nothing else.
    pub(crate) fn written(&self, len: usize) {
        let region = self.main.to_vec().unwrap();
        let (first, second) = region.split_at(self.shape.half);
        pattern::WRITTEN_BY_SIW.verify("the region", &first[..len], 0, 0);
        assert!(first[len..].iter().all(|&byte| byte == 0), "more of the region was written");
        pattern::HELD.verify("the region's second half", second, 0, 0);
        for page in &self.pages {
            pattern::HELD.verify("a page", &page.to_vec().unwrap(), 0, 0);
        }
    }

    // --- Completions ---

    /// Posts a request, and waits for its completion.
    pub(crate) fn completes(&self, request: impl Into<WorkRequest>, opcode: Opcode, len: usize) {
        let completion = self.posted(request).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(completion.opcode, opcode);
        assert_eq!(completion.byte_len as usize, len);
    }

    /// Posts a request that may fail, and waits for its completion.
    pub(crate) fn posted(&self, request: impl Into<WorkRequest>) -> Result<Completion, RequestError> {
        let request = request.into();
        let id = request.id();
        self.qp.post_send(request).unwrap();
        let completion = next(&self.sent, "a request to complete");
        assert_eq!(completion.wr_id, id);
        completion.success()
    }

    pub(crate) fn received(&self) -> Completion {
        next(&self.received, "a message").success().unwrap_or_else(|error| panic!("{error}"))
    }
}

pub(crate) fn next(cq: &CompletionQueue, what: &str) -> Completion {
    cq.wait(STEP).unwrap_or_else(|error| panic!("waited {STEP:?} for {what}: {error}"))
}

fn registered(domain: &ProtectionDomain, bytes: &[u8], access: Access) -> MemoryRegion {
    let buffer = Buffer::builder().shareable().allocate(bytes.len()).unwrap(); // so that it can move
    let region = domain.register(buffer, access).unwrap();
    region.write(0, bytes).unwrap();
    region
}

/// Returns three elements, of which the first two are short and odd.
fn pieces(region: &MemoryRegion, at: usize, len: usize) -> [Sge; 3] {
    let first = len / 3;
    [(at, first), (at + first, 1), (at + first + 1, len - first - 1)]
        .map(|(at, len)| region.slice(at..at + len).unwrap())
}
