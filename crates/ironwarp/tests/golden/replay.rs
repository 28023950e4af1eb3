//! Replays a connection of siw between two Ironwarp ends without private extensions, and captures it.

use ironwarp::Config;
use ironwarp::completion::Opcode;
use ironwarp::connection::{AcceptOptions, ConnectError, ConnectOptions, MpaMode};
use ironwarp::memory::{Access, MemoryRegion, RemoteAddr, Tag};
use ironwarp::queue::{Completes, WorkRequest};
use ironwarp_pcap::{Capture, Conversation, Frame, Kind, OwnedStartup};
use ironwarp_testkit::native::{ALL, Completions, End, SOON};
use ironwarp_testkit::path;
use ironwarp_testkit::relay::forward;
use ironwarp_wire::mpa::{Enhanced, Revision, Role};
use ironwarp_wire::{Header, ReadRequest, Send, SendWord};
use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::thread;

/// Length of the receives that siw's end had posted.
const RECEIVE: usize = 1024;

/// Whether each end requires CRCs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ends {
    pub(crate) client_crc: bool,
    pub(crate) server_crc: bool,
}

/// Violations of the client's program that the bytes do not show. Those of bounds and of receive lengths they do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mistake {
    None,
    /// Uses a tag that was never sent.
    Tag,
}

/// Two ends, and the memory that they exposed to each other.
struct Stage {
    client: End,
    server: End,
    mistake: Mistake,
    /// Length of each region.
    region: usize,
    /// The tag that replaces a tag of siw.
    regions: HashMap<Tag, MemoryRegion>,
    /// Last received data of the client and the server.
    receives: [MemoryRegion; 2],
    /// The next request identifier.
    id: u64,
}

/// Replays a connection, and returns the captured conversation.
pub(crate) fn replay(
    name: &str,
    siw: &Conversation,
    ends: Ends,
    mistake: Mistake,
    region: usize,
) -> Conversation {
    let file = file(name);
    let plain = |crc| Config::default().private(false).crc(crc);
    let client = End::new(plain(ends.client_crc).pcap(file.clone()), Completes::WhenSent);
    let server = End::new(plain(ends.server_crc), Completes::WhenSent);
    let receives = [&client, &server].map(|end| end.region(&[0; RECEIVE], ALL));
    let mut stage = Stage { client, server, mistake, region, regions: HashMap::new(), receives, id: 0 };
    if stage.connects(siw) {
        stage.goes_through(siw);
        stage.client.qp.disconnect();
        assert!(stage.client.qp.wait_closed(SOON) && stage.server.qp.wait_closed(SOON));
    }
    drop(stage);
    let mut ours = Capture::open(&file).unwrap();
    assert_eq!((ours.conversations.len(), ours.others), (1, 0));
    ours.conversations.remove(0)
}

/// Returns the path of a file that does not exist yet.
fn file(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_file(&path);
    path
}

impl Stage {
    fn end(&self, initiator: bool) -> &End {
        if initiator { &self.client } else { &self.server }
    }

    fn id(&mut self) -> u64 {
        self.id += 1;
        self.id
    }

    // --- Startup ---

    /// Connects with the options that siw's programs used. Returns false if the connection is rejected.
    fn connects(&self, siw: &Conversation) -> bool {
        let (request, reply) = (startup(siw, true), startup(siw, false));
        let listener = self.server.adapter.listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let setup = match request.revision {
            Revision::Two(Some(Enhanced { rtr: Some(_), .. })) => MpaMode::PeerToPeer,
            Revision::Two(_) => MpaMode::ClientServer,
            Revision::One => MpaMode::Unenhanced,
        };
        let mut asks = ConnectOptions::new().mpa_mode(setup).private_data(&request.private_data);
        let mut grants = AcceptOptions::new().private_data(&reply.private_data);
        if let Revision::Two(Some(Enhanced { ird, ord, .. })) = request.revision {
            asks = asks.ird(ird).ord(ord);
            // The programs requested 4 of each, or the maximum (rping): siw raised one and lowered the other.
            let depth = if ird == ord { ird } else { 4 };
            grants = grants.ird(depth).ord(depth);
        }
        self.client.qp.start_connect(relay(listener.local_addr().unwrap()), &asks).unwrap();
        let incoming = listener.accept(SOON).expect("the client connects");
        assert_eq!(incoming.private_data(), request.private_data);
        if reply.role == (Role::Reply { rejected: true }) {
            incoming.reject(&reply.private_data).unwrap();
            let error = self.client.qp.wait_connected(SOON).unwrap_err();
            assert!(matches!(error, ConnectError::Rejected { .. }), "{error}");
            return false;
        }
        incoming.accept(&self.server.qp, &grants).unwrap();
        self.client.qp.wait_connected(SOON).unwrap();
        true
    }

    // --- Messages ---

    /// Replays each message after the one before has arrived.
    fn goes_through(&mut self, siw: &Conversation) {
        let mut messages = messages(siw);
        while let Some(message) = messages.pop_front() {
            match message.header {
                // The device sends the RTR and the Read Responses, not the program.
                Header::Write(write) if write.addr.tag.0 <= 1 => {}
                Header::ReadResponse(_) => {}
                Header::Terminate(_) => return self.is_terminated(),
                Header::Send(send) => {
                    let refused = message.payload.len() > RECEIVE;
                    self.sends(message.initiator, send, &message.payload, refused);
                }
                Header::Write(write) => self.writes(message.initiator, write.addr, &message.payload),
                Header::ReadRequest(read) => {
                    let answer = messages.iter().find(|it| matches!(it.header, Header::ReadResponse(_)));
                    let answer = answer.map(|it| it.payload.clone());
                    self.reads(message.initiator, read, answer.as_deref());
                }
                other => panic!("siw cannot send {other:?}"),
            }
        }
    }

    fn sends(&mut self, initiator: bool, send: Send, payload: &[u8], refused: bool) {
        let (id, window) = (self.id(), self.window(!initiator, send));
        let (from, to) = (self.end(initiator), self.end(!initiator));
        let room = &self.receives[usize::from(initiator)];
        to.qp.post_receive(id, &[room.slice(..RECEIVE).unwrap()]).unwrap();
        let memory = from.region(&[payload, &[0]].concat(), ALL); // regions must not be empty
        let list = memory.slice(..payload.len()).unwrap();
        let mut request = WorkRequest::send(id, &[list]);
        if send.solicited {
            request = request.solicited();
        }
        if let Some(window) = &window {
            request = request.invalidate(window.tag());
        }
        from.qp.post_send(request).unwrap();
        from.done(Opcode::Send, id);
        if !refused {
            let received = to.done(Opcode::Receive, id);
            assert_eq!(received.byte_len as usize, payload.len());
            assert_eq!(room.to_vec().unwrap()[..payload.len()], *payload);
        }
    }

    /// Memory that a Send with Invalidate may invalidate. Due to a bug in its library, the program at siw's end had
    /// none.
    fn window(&mut self, initiator: bool, send: Send) -> Option<ironwarp::memory::Window> {
        let SendWord::Invalidate(_) = send.word else { return None };
        let (id, end) = (self.id(), self.end(initiator));
        let region = end.region(&[0; 64], Access::LOCAL_READ | Access::BIND);
        let window = end.domain.window().unwrap();
        let bind = WorkRequest::bind(id, &window, &region, ..64, Access::REMOTE_READ).unwrap();
        end.qp.post_send(bind).unwrap();
        end.done(Opcode::Bind, id);
        Some(window)
    }

    fn writes(&mut self, initiator: bool, to: RemoteAddr, payload: &[u8]) {
        let (id, addr) = (self.id(), self.addr(!initiator, to));
        let from = self.end(initiator);
        let memory = from.region(&[payload, &[0]].concat(), ALL);
        let list = memory.slice(..payload.len()).unwrap();
        from.qp.post_send(WorkRequest::write(id, &[list], addr)).unwrap();
        from.done(Opcode::Write, id);
    }

    /// `answer` is `None` if siw refused the Read.
    fn reads(&mut self, initiator: bool, read: ReadRequest, answer: Option<&[u8]>) {
        let (id, source) = (self.id(), self.addr(!initiator, read.source));
        self.addr(initiator, read.sink);
        if let Some(answer) = answer {
            self.regions[&read.source.tag].write(within(read.source), answer).unwrap();
        }
        let sink = &self.regions[&read.sink.tag];
        let at = within(read.sink);
        let list = sink.slice(at..at + read.len as usize).unwrap();
        let from = self.end(initiator);
        from.qp.post_send(WorkRequest::read(id, &[list], source)).unwrap();
        if let Some(answer) = answer {
            from.done(Opcode::Read, id);
            let mut got = vec![0; answer.len()];
            sink.read(within(read.sink), &mut got).unwrap();
            assert_eq!(got, answer);
        }
    }

    /// Maps a remote address of siw to ours; `initiator` selects the memory.
    fn addr(&mut self, initiator: bool, siw: RemoteAddr) -> RemoteAddr {
        if !self.regions.contains_key(&siw.tag) {
            let region = self.end(initiator).region(&vec![0; self.region], ALL);
            self.regions.insert(siw.tag, region);
        }
        let mut addr = self.regions[&siw.tag].remote_addr(0).unwrap();
        addr.offset += within(siw) as u64;
        if self.mistake == Mistake::Tag && !initiator {
            addr.tag.0 ^= 0x55;
        }
        addr
    }

    /// The server has terminated the stream, so both ends have ended.
    fn is_terminated(&self) {
        assert!(self.server.qp.wait_closed(SOON) && self.client.qp.wait_closed(SOON));
        assert!(
            self.client.qp.error().is_some_and(|it| it.to_string().contains("the peer ended the stream"))
        );
    }
}

/// Offset in the region: siw's buffers started at the beginning of a page, or somewhere on it.
fn within(addr: RemoteAddr) -> usize {
    usize::try_from(addr.offset % 4096).unwrap()
}

/// A reassembled message of siw.
#[derive(Debug)]
struct Message {
    initiator: bool,
    header: Header,
    payload: Vec<u8>,
}

fn messages(siw: &Conversation) -> VecDeque<Message> {
    let mut messages: VecDeque<Message> = VecDeque::new();
    let mut open: [Option<Message>; 2] = [None, None];
    for Frame { from_initiator: initiator, kind, .. } in &siw.frames {
        let Kind::Fpdu { fpdu, payload } = kind else { continue };
        let message = open[usize::from(*initiator)].get_or_insert_with(|| Message {
            initiator: *initiator,
            header: fpdu.header,
            payload: Vec::new(),
        });
        message.payload.extend(payload);
        let last = match fpdu.header {
            Header::Write(it) | Header::ReadResponse(it) => it.last,
            Header::Send(it) => it.last,
            _ => true,
        };
        if last {
            messages.extend(open[usize::from(*initiator)].take());
        }
    }
    assert!(open.iter().all(Option::is_none));
    messages
}

fn startup(siw: &Conversation, initiator: bool) -> &OwnedStartup {
    let mut frames = siw.frames.iter().filter(|it| it.from_initiator == initiator);
    match frames.next().map(|it| &it.kind) {
        Some(Kind::Startup(startup)) => startup,
        other => panic!("expected a startup frame, found {other:?}"),
    }
}

/// Relays connections with segments as small as those between siw's two ends.
fn relay(to: SocketAddr) -> SocketAddr {
    let size = segment_size();
    let listener = path::listener_with(size);
    let at = listener.local_addr().unwrap();
    thread::spawn(move || {
        forward(&listener.accept().unwrap().0, &path::dial_with(to, size)).unwrap();
    });
    at
}

/// Maximum segment size that leaves 1448 bytes of payload, as between siw's ends: timestamps take 12, if enabled.
fn segment_size() -> i32 {
    let timestamps = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_timestamps").unwrap();
    if timestamps.trim() == "0" { 1448 } else { 1460 }
}
