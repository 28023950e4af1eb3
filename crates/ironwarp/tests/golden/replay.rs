//! A connection of siw's once more, between two Ironwarp ends that send nothing private. Before this: the capture of siw; after:
//! one of ours.

use crate::common::{ALL, End, SOON};
use crate::path;
use ironwarp::{
    AcceptOptions, Access, Completes, Config, ConnectError, ConnectOptions, MemoryRegion, Opcode, Place,
    Setup, Tag, WorkRequest,
};
use ironwarp_pcap::{Capture, Conversation, Frame, Kind, OwnedStartup};
use ironwarp_wire::mpa::{Enhanced, Revision, Role};
use ironwarp_wire::{Header, ReadRequest, Send, SendWord};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::thread;

/// How long the receives were that siw's end had posted.
const RECEIVE: usize = 1024;

/// Whether each end requires CRCs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ends {
    pub(crate) client_crc: bool,
    pub(crate) server_crc: bool,
}

/// What the client's program does wrong that the bytes do not show. The bounds of memory and of receives they do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mistake {
    None,
    /// It names a tag that nobody gave out.
    Tag,
}

/// Two ends, and the memory that they named to each other.
struct Stage {
    client: End,
    server: End,
    mistake: Mistake,
    /// How long each region is.
    region: usize,
    /// What stands for a tag of siw's.
    regions: HashMap<Tag, MemoryRegion>,
    /// What the client and the server received last.
    receives: [MemoryRegion; 2],
    /// Numbers for requests.
    id: u64,
}

/// Goes through a connection, and returns what was on the wire.
pub(crate) fn replay(
    name: &str,
    siw: &Conversation,
    ends: Ends,
    mistake: Mistake,
    region: usize,
) -> Conversation {
    let file = file(name);
    let plain = |crc| Config { private: false, crc, ..Config::default() };
    let client = End::new(Config { pcap: file.clone(), ..plain(ends.client_crc) }, Completes::WhenSent);
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

/// A file that is not there yet.
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

    /// With the options that siw's programs gave. False: it is rejected.
    fn connects(&self, siw: &Conversation) -> bool {
        let (request, reply) = (startup(siw, true), startup(siw, false));
        let listener = self.server.adapter.listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let setup = match request.revision {
            Revision::Two(Some(Enhanced { rtr: Some(_), .. })) => Setup::PeerToPeer,
            Revision::Two(_) => Setup::ClientServer,
            Revision::One => Setup::Unenhanced,
        };
        let mut asks = ConnectOptions::new().setup(setup).private_data(&request.private_data);
        let mut grants = AcceptOptions::new().private_data(&reply.private_data);
        if let Revision::Two(Some(Enhanced { ird, ord, .. })) = request.revision {
            asks = asks.ird(ird).ord(ord);
            // The programs asked for 4 of each, or for as many as there are in rping: siw raised one and lowered the other.
            let depth = if ird == ord { ird } else { 4 };
            grants = grants.ird(depth).ord(depth);
        }
        self.client.qp.connect_start(relay(listener.local_addr().unwrap()), &asks).unwrap();
        let incoming = listener.accept(SOON).expect("the client connects");
        assert_eq!(incoming.private_data(), request.private_data);
        if reply.role == (Role::Reply { rejected: true }) {
            incoming.reject(&reply.private_data).unwrap();
            let error = self.client.qp.wait_connected(SOON).unwrap_err();
            assert!(matches!(*error, ConnectError::Rejected { .. }), "{error}");
            return false;
        }
        incoming.accept(&self.server.qp, &grants).unwrap();
        self.client.qp.wait_connected(SOON).unwrap();
        true
    }

    // --- Messages ---

    /// Each message in its turn, once the one before has arrived.
    fn goes_through(&mut self, siw: &Conversation) {
        let mut messages = messages(siw);
        while let Some(message) = messages.pop_front() {
            match message.header {
                // The device sends the RTR and the answers, not the program.
                Header::Write(write) if write.place.tag.0 <= 1 => {}
                Header::ReadResponse(_) => {}
                Header::Terminate(_) => return self.is_terminated(),
                Header::Send(send) => {
                    let refused = message.payload.len() > RECEIVE;
                    self.sends(message.initiator, send, &message.payload, refused);
                }
                Header::Write(write) => self.writes(message.initiator, write.place, &message.payload),
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
        to.qp.post_receive(id, &[room.slice(0, RECEIVE).unwrap()]).unwrap();
        let memory = from.region(&[payload, &[0]].concat(), ALL); // no region is empty
        let list = memory.slice(0, payload.len()).unwrap();
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

    /// What a Send with Invalidate may close. The program at siw's end named nothing, by a mistake of its library.
    fn window(&mut self, initiator: bool, send: Send) -> Option<ironwarp::Window> {
        let SendWord::Invalidate(_) = send.word else { return None };
        let (id, end) = (self.id(), self.end(initiator));
        let region = end.region(&[0; 64], Access::LOCAL_READ | Access::BIND);
        let window = end.domain.window().unwrap();
        let bind = WorkRequest::bind(id, &window, &region, 0, 64, Access::REMOTE_READ).unwrap();
        end.qp.post_send(bind).unwrap();
        end.done(Opcode::Bind, id);
        Some(window)
    }

    fn writes(&mut self, initiator: bool, to: Place, payload: &[u8]) {
        let (id, place) = (self.id(), self.place(!initiator, to));
        let from = self.end(initiator);
        let memory = from.region(&[payload, &[0]].concat(), ALL);
        let list = memory.slice(0, payload.len()).unwrap();
        from.qp.post_send(WorkRequest::write(id, &[list], place)).unwrap();
        from.done(Opcode::Write, id);
    }

    /// `answer`: none, if siw refused it.
    fn reads(&mut self, initiator: bool, read: ReadRequest, answer: Option<&[u8]>) {
        let (id, source) = (self.id(), self.place(!initiator, read.source));
        self.place(initiator, read.sink);
        if let Some(answer) = answer {
            self.regions[&read.source.tag].write(within(read.source), answer).unwrap();
        }
        let sink = &self.regions[&read.sink.tag];
        let list = sink.slice(within(read.sink), read.len as usize).unwrap();
        let from = self.end(initiator);
        from.qp.post_send(WorkRequest::read(id, &[list], source)).unwrap();
        if let Some(answer) = answer {
            from.done(Opcode::Read, id);
            let mut got = vec![0; answer.len()];
            sink.read(within(read.sink), &mut got).unwrap();
            assert_eq!(got, answer);
        }
    }

    /// Our place for one of siw's; `initiator`: in whose memory.
    fn place(&mut self, initiator: bool, siw: Place) -> Place {
        if !self.regions.contains_key(&siw.tag) {
            let region = self.end(initiator).region(&vec![0; self.region], ALL);
            self.regions.insert(siw.tag, region);
        }
        let mut place = self.regions[&siw.tag].place(0).unwrap();
        place.offset += within(siw) as u64;
        if self.mistake == Mistake::Tag && !initiator {
            place.tag.0 ^= 0x55;
        }
        place
    }

    /// The server has ended the stream: so have both.
    fn is_terminated(&self) {
        assert!(self.server.qp.wait_closed(SOON) && self.client.qp.wait_closed(SOON));
        assert!(
            self.client.qp.fault().is_some_and(|it| it.to_string().contains("the peer ended the stream"))
        );
    }
}

/// Where in its region: siw's programs had theirs at the beginning of a page, or somewhere on one.
fn within(place: Place) -> usize {
    usize::try_from(place.offset % 4096).unwrap()
}

/// A message of siw's, put together.
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
        other => panic!("a startup frame is due, not {other:?}"),
    }
}

/// Joins two connections with segments as small as those between siw's two ends.
fn relay(to: SocketAddr) -> SocketAddr {
    let size = segment_size();
    let listener = path::listener_with(size);
    let at = listener.local_addr().unwrap();
    thread::spawn(move || {
        let (one, other) = (listener.accept().unwrap().0, path::dial_with(to, size));
        let (one_too, other_too) = (one.try_clone().unwrap(), other.try_clone().unwrap());
        thread::spawn(move || pass(&one, &other));
        pass(&other_too, &one_too);
    });
    at
}

/// So that 1448 bytes are left for what is sent, as between siw's ends: timestamps take 12, where they are on.
fn segment_size() -> i32 {
    let timestamps = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_timestamps").unwrap();
    if timestamps.trim() == "0" { 1448 } else { 1460 }
}

fn pass(from: &TcpStream, to: &TcpStream) {
    to.set_nodelay(true).unwrap();
    let _ = io::copy(&mut &*from, &mut &*to); // it ends with the connection, in whatever way that ends
    let _ = to.shutdown(Shutdown::Write);
}
