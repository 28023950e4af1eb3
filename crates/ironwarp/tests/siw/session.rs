//! Ironwarp's part of the session that guest/README.md describes. Before this: a connection; after: `capture.rs` looks at
//! what was on the wire.

use ironwarp::{
    AcceptOptions, Access, Adapter, Buffer, Completes, Completion, CompletionQueue, ConnectOptions,
    Established, Listener, MemoryRegion, Opcode, Place, ProtectionDomain, QueuePair, Setup, Tag, WorkRequest,
};
use std::net::SocketAddr;
use std::time::Duration;

pub(crate) const HELLO: &[u8] = b"hello-from-ironwarp";
pub(crate) const HELLO_OF_SIW: &[u8] = b"hello-from-siw";
/// IRD and ORD of both ends.
const DEPTH: u16 = 4;
/// How many bytes each end writes, and reads.
pub(crate) const HALF: usize = 65536;

/// How many bytes each end's region has.
const REGION: u32 = 131_072;
const STEP: Duration = Duration::from_secs(60);
const RECEIVES: usize = 4;
const RECEIVE: usize = 256;
const WRITTEN: &[u8] = b"WRITTEN\0";
const DONE: &[u8] = b"DONE\0\0\0\0";

/// Ironwarp's end.
#[derive(Debug)]
pub(crate) struct End {
    qp: QueuePair,
    sent: CompletionQueue,
    received: CompletionQueue,
    /// The first half is for siw to write, the second for siw to read.
    region: MemoryRegion,
    source: MemoryRegion,
    sink: MemoryRegion,
    receives: MemoryRegion,
    /// How many messages were received.
    messages: usize,
}

impl End {
    pub(crate) fn new(adapter: &Adapter, completes: Completes) -> Self {
        let domain = adapter.protection_domain();
        let (sent, received) = (adapter.completion_queue(16).unwrap(), adapter.completion_queue(16).unwrap());
        let qp = domain.queue_pair(&sent).receive_cq(&received).completes(completes).create().unwrap();
        let remote = Access::REMOTE_WRITE | Access::REMOTE_READ;
        let held = [vec![0; HALF], holds()].concat();
        let end = Self {
            region: registered(&domain, &held, Access::LOCAL_WRITE | remote),
            source: registered(&domain, &writes(), Access::LOCAL_READ),
            sink: registered(&domain, &[0; HALF], Access::LOCAL_WRITE),
            receives: registered(&domain, &[0; RECEIVES * RECEIVE], Access::LOCAL_WRITE),
            qp,
            sent,
            received,
            messages: 0,
        };
        for i in 0..RECEIVES {
            end.qp.post_receive(i as u64, &[end.receives.slice(i * RECEIVE, RECEIVE).unwrap()]).unwrap();
        }
        end
    }

    /// The session with siw as the client.
    pub(crate) fn serve(mut self, listener: &Listener) {
        let incoming = listener.accept(STEP).expect("siw connects");
        assert_eq!(incoming.private_data(), HELLO_OF_SIW);
        let options = AcceptOptions::new().private_data(HELLO).ird(DEPTH).ord(DEPTH);
        agreed(&incoming.accept(&self.qp, &options).unwrap(), Setup::ClientServer);
        let to = self.receive_advert();
        self.send_advert();
        self.transfer(to);
        assert!(self.qp.wait_closed(STEP), "siw does not close the connection");
        let fault = self.qp.fault().expect("siw closed first");
        assert_eq!(fault.to_string(), "the peer closed the connection");
    }

    /// The session with siw as the server.
    pub(crate) fn connect(mut self, to: SocketAddr) {
        let options = ConnectOptions::new().private_data(HELLO).ird(DEPTH).ord(DEPTH);
        let established = self.qp.connect(to, &options).unwrap();
        assert_eq!(&established.private_data[..], HELLO_OF_SIW);
        agreed(&established, Setup::PeerToPeer);
        self.send_advert();
        let to = self.receive_advert();
        self.transfer(to);
        self.qp.disconnect();
        assert!(self.qp.wait_closed(STEP), "siw does not close its side of the connection");
    }

    /// Steps 3 to 5 of the session.
    fn transfer(&mut self, to: Place) {
        let source = self.source.slice(0, HALF).unwrap();
        self.completes(WorkRequest::write(1, &[source], to), Opcode::Write, HALF);
        self.completes(WorkRequest::send_inline(2, WRITTEN), Opcode::Send, WRITTEN.len());
        let sink = self.sink.slice(0, HALF).unwrap();
        let from = Place { offset: to.offset + HALF as u64, ..to };
        self.completes(WorkRequest::read(3, &[sink], from), Opcode::Read, HALF);
        assert!(self.sink.to_vec().unwrap() == held_by_siw(), "the bytes read are not those that siw holds");
        self.completes(WorkRequest::send_inline(4, DONE), Opcode::Send, DONE.len());

        assert_eq!(self.receive(), WRITTEN);
        self.check_region();
        assert_eq!(self.receive(), DONE);
        self.check_region();
    }

    /// siw wrote what it should, and no more.
    fn check_region(&self) {
        let region = self.region.to_vec().unwrap();
        let (first, second) = region.split_at(HALF);
        assert!(first == written_by_siw(), "the first half of the region is not what siw writes");
        assert!(second == holds(), "the second half of the region was changed");
    }

    fn send_advert(&self) {
        let place = self.region.place(0).unwrap();
        let fields =
            [&place.offset.to_be_bytes()[..], &place.tag.0.to_be_bytes(), &REGION.to_be_bytes()].concat();
        let advert = [&fields[..], &advert_tail()].concat();
        self.completes(WorkRequest::send_inline(5, &advert), Opcode::Send, advert.len());
    }

    /// Where siw's region begins.
    fn receive_advert(&mut self) -> Place {
        let advert = self.receive();
        let (fields, tail) = advert.split_at(16);
        assert_eq!(tail, advert_tail());
        assert_eq!(fields[12..], REGION.to_be_bytes());
        let tag = Tag(u32::from_be_bytes(fields[8..12].try_into().unwrap()));
        Place { tag, offset: u64::from_be_bytes(fields[..8].try_into().unwrap()) }
    }

    /// Posts a request, and waits for its completion.
    fn completes(&self, request: impl Into<WorkRequest>, opcode: Opcode, len: usize) {
        let request = request.into();
        let id = request.id();
        self.qp.post_send(request).unwrap();
        let completion = next(&self.sent, "a request to complete");
        assert_eq!((completion.wr_id, completion.opcode), (id, opcode));
        assert_eq!(completion.byte_len as usize, len);
    }

    /// The next message. The receives are used in the order in which they were posted.
    fn receive(&mut self) -> Vec<u8> {
        let completion = next(&self.received, "a message");
        let index = self.messages;
        self.messages += 1;
        assert_eq!((completion.wr_id, completion.opcode), (index as u64, Opcode::Receive));
        let mut message = vec![0; completion.byte_len as usize];
        self.receives.read(index * RECEIVE, &mut message).unwrap();
        message
    }
}

/// siw in its plain form asks neither for CRCs nor for the peer-to-peer setup, but agrees to both.
fn agreed(established: &Established, setup: Setup) {
    let agreed = established.agreed;
    assert_eq!((agreed.setup, agreed.ird, agreed.ord), (setup, DEPTH, DEPTH));
    for framing in [agreed.send, agreed.receive] {
        assert!(framing.crc && !framing.markers, "{framing:?}");
    }
}

fn next(cq: &CompletionQueue, what: &str) -> Completion {
    let completion = cq.wait(STEP).unwrap().unwrap_or_else(|| panic!("waited {STEP:?} for {what}"));
    completion.success().unwrap_or_else(|error| panic!("waited for {what}: {error}"))
}

fn registered(domain: &ProtectionDomain, bytes: &[u8], access: Access) -> MemoryRegion {
    domain.register(Buffer::copy_of(bytes).unwrap(), access).unwrap()
}

/// Byte i of a message with an advert, from 16 on, is i.
fn advert_tail() -> Vec<u8> {
    (16..64).collect()
}

/// Patterns of the session: A to D.
fn written_by_siw() -> Vec<u8> {
    pattern(7, 3)
}

fn holds() -> Vec<u8> {
    pattern(13, 5)
}

fn writes() -> Vec<u8> {
    pattern(11, 1)
}

fn held_by_siw() -> Vec<u8> {
    pattern(17, 9)
}

fn pattern(factor: usize, summand: usize) -> Vec<u8> {
    (0..HALF).map(|i| (factor * i + summand).to_le_bytes()[0]).collect()
}
