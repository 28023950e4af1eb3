//! Streams of virtual machines, played by a client that speaks QEMU's framing: a length of 32 bits, then the frame.

use crate::agent::{FLOOD, FLOOD_PAYLOAD, is_agent, ping_from, stream};
use crate::network::{Container, Network, Setup};
use ironwarp_testkit::child::{Partner, in_network};
use ironwarp_testkit::wait::until;
use rustix::event::{PollFd, PollFlags, poll};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// Time limit for an answer, and how long to wait before asking again: a LAN loses frames.
const LIMIT: Duration = Duration::from_secs(20);
const AGAIN: Duration = Duration::from_millis(200);

/// Address of the client, which is flooded.
const CLIENT: [u8; 4] = [10, 5, 0, 77];
/// Longest frame that fits into an element of a pool, with the header of 12 bytes in front.
const LONGEST: u32 = 69_632 - 12;

/// A virtual machine, as far as its host can tell.
struct Client {
    stream: UnixStream,
    mac: [u8; 6],
    /// Last byte of the address that asks. Each question has its own, so that an old answer is not taken for a new one.
    asks_as: u8,
    input: Vec<u8>,
}

impl Client {
    fn connect(path: &Path, mac: [u8; 6]) -> Self {
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(AGAIN)).unwrap();
        Self { stream, mac, asks_as: 100, input: Vec::new() }
    }

    /// Reads what has arrived within [`AGAIN`]. Returns false if the other end has closed the connection.
    fn read(&mut self) -> bool {
        let mut bytes = [0; 64 << 10];
        match self.stream.read(&mut bytes) {
            Ok(0) => false,
            Ok(count) => {
                self.input.extend_from_slice(&bytes[..count]);
                true
            }
            Err(error) if error.kind() == ErrorKind::ConnectionReset => false,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
                true
            }
        }
    }

    /// Takes a frame that has arrived completely.
    fn take(&mut self) -> Option<Vec<u8>> {
        let (len, rest) = self.input.split_first_chunk::<4>()?;
        let len = u32::from_be_bytes(*len) as usize;
        assert!((14..=1514).contains(&len), "a frame of {len} bytes");
        let frame = rest.get(..len)?.to_vec();
        self.input.drain(..4 + len);
        Some(frame)
    }

    /// Asks for the MAC address of a container until it answers, and returns all other frames that have arrived.
    fn resolve(&mut self, number: u8, mut send: impl FnMut(&mut UnixStream, &[u8])) -> Vec<Vec<u8>> {
        self.asks_as += 1;
        let request = framed(&self.request(number));
        let deadline = Instant::now() + LIMIT;
        let mut others = Vec::new();
        while Instant::now() < deadline {
            send(&mut self.stream, &request);
            let again = Instant::now() + AGAIN;
            while Instant::now() < again {
                assert!(self.read(), "the connection was closed");
                while let Some(frame) = self.take() {
                    if self.is_answer(&frame, number) {
                        return others;
                    }
                    others.push(frame);
                }
            }
        }
        panic!("no answer within {LIMIT:?}");
    }

    /// An ARP request (RFC 826).
    fn request(&self, number: u8) -> Vec<u8> {
        let ask = [0, 1, 8, 0, 6, 4, 0, 1];
        [
            &[0xff; 6][..],
            &self.mac,
            &[8, 6],
            &ask,
            &self.mac,
            &[10, 5, 0, self.asks_as],
            &[0; 6],
            &[10, 5, 0, number],
        ]
        .concat()
    }

    fn is_answer(&self, frame: &[u8], number: u8) -> bool {
        frame.len() >= 42
            && frame[..6] == self.mac
            && frame[12..14] == [8, 6]
            && frame[20..22] == [0, 2]
            && frame[28..32] == [10, 5, 0, number]
            && frame[32..42] == [&self.mac[..], &[10, 5, 0, self.asks_as]].concat()
    }

    /// Waits until the other end closes the connection.
    fn ends(mut self) {
        let deadline = Instant::now() + LIMIT;
        while self.read() {
            assert!(Instant::now() < deadline, "the connection is still open");
        }
    }
}

fn framed(frame: &[u8]) -> Vec<u8> {
    [&u32::try_from(frame.len()).unwrap().to_be_bytes(), frame].concat()
}

fn at_once(stream: &mut UnixStream, bytes: &[u8]) {
    stream.write_all(bytes).unwrap();
}

/// Talks to the container `number` in all ways, right and wrong, at a stream.
fn misbehave(socket: &Path, mac: [u8; 6], number: u8) {
    let mut client = Client::connect(socket, mac);
    client.resolve(number, |stream, bytes| bytes.chunks(1).for_each(|byte| at_once(stream, byte)));
    client.resolve(number, |stream, bytes| at_once(stream, &bytes.repeat(3)));
    drop(client);
    for length in [0, 13, LONGEST + 1, 1 << 31, u32::MAX] {
        let mut client = Client::connect(socket, mac);
        client.resolve(number, at_once);
        // More bytes follow, and none of them may be taken for a frame.
        let broken = [&length.to_be_bytes()[..], &framed(&client.request(number))].concat();
        at_once(&mut client.stream, &broken);
        client.ends();
    }
    for cut in [2, 4, 30] {
        let mut client = Client::connect(socket, mac);
        let frame = framed(&client.request(number));
        at_once(&mut client.stream, &frame[..cut]);
    }
    // With an answer that was not read, the connection is reset, as by a machine that is killed.
    let mut client = Client::connect(socket, mac);
    let request = framed(&client.request(number));
    at_once(&mut client.stream, &request);
    let answers = poll(&mut [PollFd::new(&client.stream, PollFlags::IN)], Some(&LIMIT.try_into().unwrap()));
    assert_eq!(answers, Ok(1), "no answer within {LIMIT:?}");
    drop(client);
    Client::connect(socket, mac).resolve(number, at_once);
}

/// Checks the datagrams of a flood, which are all complete, and returns how many there are.
fn datagrams(frames: &[Vec<u8>]) -> usize {
    let mut last = None;
    let is_flood = |frame: &&Vec<u8>| frame[12..14] == [8, 0] && frame[23] == 17;
    for frame in frames.iter().filter(is_flood) {
        let payload = &frame[14 + 20 + 8..];
        assert_eq!(payload.len(), FLOOD_PAYLOAD);
        let number = u32::from_be_bytes(*payload.first_chunk().unwrap());
        assert!(payload.chunks(4).all(|word| word == number.to_be_bytes()), "datagram {number} is altered");
        assert!(last < Some(number), "datagram {number} after {last:?}");
        last = Some(number);
    }
    frames.iter().filter(is_flood).count()
}

/// Sends more to a client that does not read than fits into its socket.
fn flood(agent: &mut Partner, container: &Container, mac: [u8; 6]) {
    let mac = mac.map(|byte| format!("{byte:02x}")).join(":");
    let address = CLIENT.map(|byte| byte.to_string()).join(".");
    container.ip(&format!("neigh replace {address} lladdr {mac} dev iw0"));
    agent.tell(&format!("flood {address}"));
    agent.wait_for("flooded");
}

fn parse_mac(text: &str) -> [u8; 6] {
    let bytes: Vec<u8> = text.split(':').map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect();
    bytes.try_into().unwrap()
}

#[test]
fn a_broken_stream_of_a_virtual_machine_is_closed_and_the_next_one_works() {
    let test = "stream::a_broken_stream_of_a_virtual_machine_is_closed_and_the_next_one_works";
    if is_agent() || !in_network(test) {
        return;
    }
    let network = Network::start(2);
    let (_left, mac) = network.attach_stream("left");
    let _right = network.attach(2, &[]);
    misbehave(&network.directory.path("stream"), parse_mac(&mac), 2);
    assert_eq!(network.field("left", "session"), 1, "the same session as in the beginning");
    assert_eq!(network.field("left", "refused"), 0);
}

#[test]
fn a_virtual_machine_that_does_not_read_misses_frames_and_holds_up_nobody() {
    let test = "stream::a_virtual_machine_that_does_not_read_misses_frames_and_holds_up_nobody";
    if is_agent() || !in_network(test) {
        return;
    }
    let network = Network::start(3);
    let (_left, mac) = network.attach_stream("left");
    let mac = parse_mac(&mac);
    let _others = [2, 3].map(|number| network.attach(number, &[]));
    let [_, right, middle] = &network.containers[..] else { unreachable!("three containers") };
    let (mut at_right, mut at_middle) = (right.agent(test), middle.agent(test));
    let mut client = Client::connect(&network.directory.path("stream"), mac);
    client.resolve(2, at_once);
    flood(&mut at_right, right, mac);
    ping_from(&mut at_right, &middle.addresses()[0]);
    stream(&mut at_right, &mut at_middle, &middle.addresses()[0]);
    // The host goes on taking frames, and drops them.
    let taken = network.field("left", "frames_out");
    until(|| {
        at_right.tell("ping-once 10.5.0.77");
        at_right.wait_for("pinged");
        network.field("left", "frames_out") > taken
    });
    let arrived = datagrams(&client.resolve(2, at_once));
    assert!((1..FLOOD).contains(&arrived), "{arrived} of {FLOOD} datagrams");
    assert_eq!(network.field("left", "session"), 1, "the same session as in the beginning");
    at_right.finish();
    at_middle.finish();
}

#[test]
fn the_stream_of_a_unit_that_breaks_or_does_not_read_holds_up_no_host() {
    let test = "stream::the_stream_of_a_unit_that_breaks_or_does_not_read_holds_up_no_host";
    if is_agent() || !in_network(test) {
        return;
    }
    let mac = [2, 0, 0, 0, 0, 0x77];
    let network = Network::start_with(2, Setup { lan: "stream=lan", ..Setup::default() });
    let socket = network.directory.path("lan");
    let _hosts = [1, 2].map(|number| network.attach(number, &[]));
    misbehave(&socket, mac, 2);
    let [left, right] = &network.containers[..] else { unreachable!("two containers") };
    let (mut at_left, mut at_right) = (left.agent(test), right.agent(test));
    let mut client = Client::connect(&socket, mac);
    client.resolve(1, at_once);
    flood(&mut at_left, left, mac);
    ping_from(&mut at_left, &right.addresses()[0]);
    stream(&mut at_left, &mut at_right, &right.addresses()[0]);
    let arrived = datagrams(&client.resolve(1, at_once));
    assert!((1..FLOOD).contains(&arrived), "{arrived} of {FLOOD} datagrams");
    for (name, session) in [("left", 1), ("right", 2)] {
        assert_eq!(network.field(name, "session"), session, "the same session as in the beginning");
    }
    at_left.finish();
    at_right.finish();
}
