//! Helpers: adapters with manually connected queue pairs, and raw TCP clients that speak MPA.

use ironwarp_engine::config::Config;
use ironwarp_engine::gid::Gid;
use ironwarp_engine::{BringUpOptions, ConnectError, Engine, Local, QueuePair, QueuePairAttributes, Remote};
use ironwarp_rnic::qp::{Completes, State};
use ironwarp_rnic::queue::{Completion, Data, Status, WorkRequest};
use ironwarp_testkit::engine::{SEND, Side};
use ironwarp_wire::mpa::{Enhanced, FpduWriter, Framing, MAX_STARTUP, Revision, Role, RtrSet, Startup};
use ironwarp_wire::private::{Hello, HelloKind, Reason};
use ironwarp_wire::{Header, Parse, RemoteAddr, Tag, Tagged, Violation};
use rustix::net::{AddressFamily, SocketType};
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

/// Longer than any operation here takes on a busy machine.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);

/// A QPN that no queue pair here has: the kernel does not choose its port.
pub(crate) const UNUSED_QPN: u32 = 2000 << 8;

pub(crate) fn gid(text: &str) -> Gid {
    text.parse().unwrap()
}

/// An adapter with memory.
pub(crate) struct Host(Side);

impl Deref for Host {
    type Target = Side;

    fn deref(&self) -> &Side {
        &self.0
    }
}

impl Host {
    pub(crate) fn new(config: Config) -> Self {
        Self(Side::new(&Engine::new(config).unwrap(), 4096, 1 << 20))
    }

    pub(crate) fn attributes(&self) -> QueuePairAttributes {
        QueuePairAttributes {
            completes: Completes::WhenAcknowledged,
            manual: true,
            ..QueuePairAttributes::new(self.domain, &self.cq)
        }
    }

    /// Creates a queue pair in the state Init, in which receives can be posted.
    pub(crate) fn pair(&self) -> Arc<QueuePair> {
        let pair = self.engine.create_qp(self.attributes()).unwrap();
        pair.modify(State::Init).unwrap();
        pair
    }

    /// Connects a queue pair at `local` to its peer at `remote`, and lets it send.
    pub(crate) fn bring_up(&self, pair: &Arc<QueuePair>, local: &str, remote: (&str, u32)) {
        let options = BringUpOptions { local: Local::Gid(gid(local)), ..BringUpOptions::default() };
        self.bring_up_with(pair, remote, &options);
    }

    pub(crate) fn bring_up_with(&self, pair: &Arc<QueuePair>, remote: (&str, u32), options: &BringUpOptions) {
        let remote = Remote { gid: gid(remote.0), qpn: remote.1 };
        self.engine.bring_up(pair, remote, options).unwrap();
        pair.modify(State::ReadyToSend).unwrap();
    }

    pub(crate) fn receive(&self, pair: &QueuePair, at: usize, len: usize) {
        self.0.receive(pair, at as u64, at as u64, u32::try_from(len).unwrap());
    }

    /// Stores these bytes in memory and returns a reference to them.
    pub(crate) fn data(&mut self, at: usize, bytes: &[u8]) -> Data {
        self.0.memory[at..at + bytes.len()].copy_from_slice(bytes);
        Data::Memory(self.sge(at as u64, u32::try_from(bytes.len()).unwrap()).into())
    }

    pub(crate) fn send(&mut self, pair: &QueuePair, at: usize, bytes: &[u8]) {
        let data = self.data(at, bytes);
        let request = WorkRequest::new(at as u64, SEND, data);
        pair.qp().post_send(vec![request]).unwrap();
    }

    pub(crate) fn bytes(&self, at: usize, len: usize) -> &[u8] {
        &self.memory[at..at + len]
    }

    /// Waits for the next completion, which must be successful.
    pub(crate) fn one(&self) -> Completion {
        let completion = self.next();
        assert_eq!(completion.status, Status::Success, "{completion:?}");
        completion
    }
}

/// Checks that both are connected, and sends a message in each direction. Either end may send first.
pub(crate) fn talk(one: &mut Host, a: &QueuePair, other: &mut Host, b: &QueuePair) {
    a.wait_connected(TIMEOUT).unwrap();
    b.wait_connected(TIMEOUT).unwrap();
    other.receive(b, 0, 64);
    one.receive(a, 0, 64);
    other.send(b, 100, b"from the other");
    one.send(a, 100, b"from the one");
    for host in [&one, &other] {
        host.one();
        host.one();
    }
    assert_eq!(one.bytes(0, 14), b"from the other");
    assert_eq!(other.bytes(0, 12), b"from the one");
}

/// Waits until connecting a queue pair has failed, and returns the error.
pub(crate) fn refusal(pair: &QueuePair) -> ConnectError {
    pair.wait_connected(TIMEOUT).unwrap_err()
}

/// A TCP client or server that exchanges MPA startup frames, but is not the expected peer.
#[derive(Debug)]
pub(crate) struct Stranger {
    stream: TcpStream,
    /// The private data of the last frame received.
    private_data: Vec<u8>,
}

impl From<TcpStream> for Stranger {
    fn from(stream: TcpStream) -> Self {
        Self { stream, private_data: Vec::new() }
    }
}

/// The answer that a [`Stranger`] receives to its Request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Received {
    Accepted,
    Rejected,
    /// No answer; the connection was closed.
    Closed,
    /// No answer; the connection is still open.
    Silence,
}

type Parsed<'a> = Result<Parse<(Startup<'a>, usize)>, Violation>;

impl Stranger {
    /// Connects from an address to an address and port.
    pub(crate) fn connect(from: &str, to: &str, port: u16) -> std::io::Result<Self> {
        let (from, to): (IpAddr, IpAddr) = (from.parse().unwrap(), to.parse().unwrap());
        let family = if from.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let fd = rustix::net::socket(family, SocketType::STREAM, None)?;
        rustix::net::bind(&fd, &SocketAddr::new(from, 0))?;
        rustix::net::connect(&fd, &SocketAddr::new(to, port))?;
        Ok(TcpStream::from(fd).into())
    }

    /// Connects to the port of queue pair `to`, and claims to be queue pair `source`.
    pub(crate) fn hello(from: &str, to: (&str, u32), source: u32) -> Self {
        let mut stranger = Self::connect(from, to.0, port(to.1)).unwrap();
        stranger.request(&Hello::new(HelloKind::Dial, to.1, source).emit().unwrap());
        stranger
    }

    /// Sends a Request with this private data.
    pub(crate) fn request(&mut self, private_data: &[u8]) {
        self.frame(Role::Request, private_data);
    }

    /// Sends a startup frame.
    fn frame(&mut self, role: Role, private_data: &[u8]) {
        let enhanced = Enhanced { ird: 8, ord: 8, rtr: Some(RtrSet::WRITE) };
        let revision = Revision::Two(Some(enhanced));
        let frame = Startup { role, markers: false, crc: true, revision, private_data };
        let mut bytes = [0; MAX_STARTUP];
        let len = frame.emit(&mut bytes).unwrap();
        self.send_bytes(&bytes[..len]);
    }

    /// Connects to the port of the hello's destination, and sends the hello.
    pub(crate) fn send_hello(from: &str, to: &str, hello: &Hello) -> Self {
        let mut stranger = Self::connect(from, to, port(hello.destination)).unwrap();
        stranger.request(&hello.emit().unwrap());
        stranger
    }

    /// Opens the stream as an initiator does: with an empty Write.
    pub(crate) fn open(&mut self) {
        self.send_bytes(&Self::empty_writes(1));
    }

    /// Encodes this number of empty Writes.
    fn empty_writes(number: usize) -> Vec<u8> {
        let addr = RemoteAddr { tag: Tag(1), offset: 0 };
        let header = Header::Write(Tagged { last: true, addr });
        let mut bytes = Vec::new();
        let mut writer = FpduWriter::new(Framing { crc: true, markers: false });
        for _ in 0..number {
            writer.write(&header, &[], |part| bytes.extend_from_slice(part)).unwrap();
        }
        bytes
    }

    /// Sends empty Writes until the connection is gone.
    pub(crate) fn flood(mut self) {
        let bytes = Self::empty_writes(4096);
        while self.stream.write_all(&bytes).is_ok() {}
    }

    /// Returns the local and the remote address of the connection.
    pub(crate) fn addresses(&self) -> (SocketAddr, SocketAddr) {
        (self.stream.local_addr().unwrap(), self.stream.peer_addr().unwrap())
    }

    /// Returns the hello in the last Reply.
    pub(crate) fn reply_hello(&self) -> Hello {
        Hello::parse(&self.private_data).unwrap()
    }

    /// Closes the connection with a reset, which leaves no state of it in the kernel.
    pub(crate) fn reset(self) {
        rustix::net::sockopt::set_socket_linger(&self.stream, Some(Duration::ZERO)).unwrap();
    }

    /// Sends bytes.
    pub(crate) fn send_bytes(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// Receives the answer to a Request, within this time.
    pub(crate) fn receive_within(&mut self, time: Duration) -> Received {
        self.stream.set_read_timeout(Some(time)).unwrap();
        match self.read_frame(|bytes| Startup::parse_reply(bytes)) {
            Ok(Role::Reply { rejected: true }) => Received::Rejected,
            Ok(_) => Received::Accepted,
            Err(received) => received,
        }
    }

    /// Receives a startup frame, and keeps its private data. Returns its role.
    fn read_frame(&mut self, parse: fn(&[u8]) -> Parsed<'_>) -> Result<Role, Received> {
        let mut bytes = Vec::new();
        loop {
            if let Ok(Parse::Done((frame, _))) = parse(&bytes) {
                self.private_data = frame.private_data.to_vec();
                return Ok(frame.role);
            }
            let mut more = [0; 512];
            match self.stream.read(&mut more) {
                Ok(0) => return Err(Received::Closed),
                Ok(n) => bytes.extend_from_slice(&more[..n]),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    return Err(Received::Silence);
                }
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {
                    return Err(Received::Closed);
                }
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Receives the answer to a Request.
    pub(crate) fn receive_next(&mut self) -> Received {
        self.receive_within(TIMEOUT)
    }

    /// Receives a rejection, and returns its reason, if there is one.
    pub(crate) fn receive_refusal(&mut self) -> Option<Reason> {
        assert_eq!(self.receive_next(), Received::Rejected);
        match Hello::parse(&self.private_data).unwrap().kind {
            HelloKind::Refusal(reason) => Some(reason),
            _ => None,
        }
    }

    /// Waits for a Request, and rejects it with this private data.
    pub(crate) fn reject(&mut self, private_data: &[u8]) {
        self.reply(true, |_| private_data.to_vec());
    }

    /// Waits for a Request, and replies to it, with the private data that `answer` returns for that of the Request.
    pub(crate) fn reply(&mut self, rejected: bool, answer: impl FnOnce(&[u8]) -> Vec<u8>) {
        if self.read_frame(|bytes| Startup::parse_request(bytes)).is_ok() {
            let private_data = answer(&self.private_data);
            self.frame(Role::Reply { rejected }, &private_data);
        }
    }
}

/// Returns the port that a QPN contains.
pub(crate) fn port(number: u32) -> u16 {
    u16::try_from(number >> 8).unwrap()
}
