//! A process in a container that pings, receives and sends, as its parent tells it.

use ironwarp_testkit::child::{Partner, role, tell};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, ipproto, recv, sendto, socket};
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

/// The role of an agent.
pub(crate) const ROLE: &str = "agent";
/// Bytes of most streams.
pub(crate) const STREAM: usize = 64 << 20;
/// Datagrams of a flood, and bytes of each.
pub(crate) const FLOOD: usize = 4096;
pub(crate) const FLOOD_PAYLOAD: usize = 1400;
/// Time limit of a ping, which is repeated: a LAN loses frames. Also that of the next bytes of a stream.
const LIMIT: Duration = Duration::from_secs(20);

/// Runs the agent if this process is one.
pub(crate) fn is_agent() -> bool {
    let is_agent = role().as_deref() == Some(ROLE);
    if is_agent {
        for line in io::stdin().lines() {
            let line = line.unwrap();
            let (command, argument) = line.split_once(' ').unwrap();
            match command {
                "ping" => {
                    ping(argument.parse().unwrap(), LIMIT).unwrap();
                    tell("pong");
                }
                "ping-once" => {
                    let _ = ping(argument.parse().unwrap(), Duration::from_millis(1));
                    tell("pinged");
                }
                "receive" => {
                    let (at, bytes) = argument.split_once(' ').unwrap();
                    receive(at.parse().unwrap(), bytes.parse().unwrap());
                }
                "send" => {
                    let (to, bytes) = argument.split_once(' ').unwrap();
                    send(to.parse().unwrap(), bytes.parse().unwrap());
                }
                "flood" => flood(argument.parse().unwrap()),
                "echo" => echo(argument.parse().unwrap()),
                "datagram" => {
                    let (to, bytes) = argument.split_once(' ').unwrap();
                    datagram(to.parse().unwrap(), bytes.parse().unwrap());
                }
                other => panic!("unknown command {other}"),
            }
        }
    }
    is_agent
}

/// Lets one agent ping an address until there is an answer.
pub(crate) fn ping_from(agent: &mut Partner, to: &str) {
    agent.tell(&format!("ping {to}"));
    agent.wait_for("pong");
}

/// Sends a stream from one agent to another, which checks every byte.
pub(crate) fn stream(from: &mut Partner, to: &mut Partner, address: &str) {
    stream_of(STREAM, from, to, address);
}

/// Like [`stream`], with a number of bytes: a multiple of 256 KiB.
pub(crate) fn stream_of(bytes: usize, from: &mut Partner, to: &mut Partner, address: &str) {
    to.tell(&format!("receive {address} {bytes}"));
    let target = to.wait_for("listening at ");
    from.tell(&format!("send {target} {bytes}"));
    assert_eq!(to.wait_for("received "), bytes.to_string());
    from.wait_for("sent");
}

/// Sends a datagram of `bytes` bytes from one agent to another, which sends it back. The first checks every byte.
pub(crate) fn datagram_of(bytes: usize, from: &mut Partner, to: &mut Partner, address: &str) {
    to.tell(&format!("echo {address}"));
    let target = to.wait_for("echoing at ");
    from.tell(&format!("datagram {target} {bytes}"));
    assert_eq!(from.wait_for("echoed "), bytes.to_string());
}

/// Sends ICMP echo requests until one is answered.
pub(crate) fn ping(to: IpAddr, limit: Duration) -> io::Result<()> {
    let (family, protocol, request, reply) = match to {
        IpAddr::V4(_) => (AddressFamily::INET, ipproto::ICMP, 8, 0),
        IpAddr::V6(_) => (AddressFamily::INET6, ipproto::ICMPV6, 128, 129),
    };
    let socket = socket(family, SocketType::RAW, Some(protocol))?;
    set_socket_timeout(&socket, Timeout::Recv, Some(limit.min(Duration::from_millis(500))))?;
    let deadline = Instant::now() + limit;
    for sequence in 1.. {
        let mut packet = vec![request, 0, 0, 0, 0x49, 0x57, 0, sequence];
        packet.extend(*b"is anybody there");
        if to.is_ipv4() {
            let checksum = checksum(&packet).to_be_bytes();
            packet[2..4].copy_from_slice(&checksum);
        }
        // Fails while the interface has no carrier.
        let sent = sendto(&socket, &packet, SendFlags::empty(), &SocketAddr::new(to, 0));
        let mut answer = [0; 256];
        while let Ok((len, _)) = recv(&socket, &mut answer, RecvFlags::empty()) {
            let start = if to.is_ipv4() { usize::from(answer[0] & 15) * 4 } else { 0 };
            if answer[start] == reply && answer[start + 4..len] == packet[4..] {
                return Ok(());
            }
        }
        if Instant::now() >= deadline {
            sent?;
            return Err(io::ErrorKind::TimedOut.into());
        }
    }
    unreachable!("the deadline passes")
}

/// The checksum of RFC 1071.
fn checksum(bytes: &[u8]) -> u16 {
    let sum: u32 = bytes.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    !u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap()
}

/// Bytes that repeat only after longer than any stream.
pub(crate) struct Pattern(pub(crate) u64);

impl Pattern {
    pub(crate) fn next(&mut self, into: &mut [u8]) {
        for word in into.chunks_mut(8) {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            word.copy_from_slice(&self.0.to_le_bytes()[..word.len()]);
        }
    }
}

const CHUNK: usize = 256 << 10;

fn receive(at: IpAddr, bytes: usize) {
    let listener = TcpListener::bind((at, 0)).unwrap();
    tell(&format!("listening at {}", listener.local_addr().unwrap()));
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let mut pattern = Pattern(0x1234_5678_9abc_def1);
    let (mut found, mut expected) = (vec![0; CHUNK], vec![0; CHUNK]);
    for chunk in 0..bytes / CHUNK {
        stream.read_exact(&mut found).unwrap();
        pattern.next(&mut expected);
        assert!(found == expected, "chunk {chunk} arrived altered");
    }
    assert_eq!(stream.read(&mut found).unwrap(), 0, "no byte follows");
    tell(&format!("received {bytes}"));
}

fn send(to: SocketAddr, bytes: usize) {
    let mut stream = TcpStream::connect_timeout(&to, LIMIT).unwrap();
    stream.set_write_timeout(Some(LIMIT)).unwrap();
    let mut pattern = Pattern(0x1234_5678_9abc_def1);
    let mut chunk = vec![0; CHUNK];
    for _ in 0..bytes / CHUNK {
        pattern.next(&mut chunk);
        stream.write_all(&chunk).unwrap();
    }
    tell("sent");
}

/// Sends datagrams that nobody answers, more than the pools of a session have elements. Each repeats its number.
fn flood(to: IpAddr) {
    let unspecified: IpAddr = if to.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
    let socket = UdpSocket::bind((unspecified, 0)).unwrap();
    for number in 0..u32::try_from(FLOOD).unwrap() {
        // Port 9 discards (RFC 863). Fails when an ICMP message has arrived for an earlier one.
        let _ = socket.send_to(&number.to_be_bytes().repeat(FLOOD_PAYLOAD / 4), (to, 9));
    }
    tell("flooded");
}

/// Sends every datagram back, until the process ends.
fn echo(at: IpAddr) {
    let socket = UdpSocket::bind((at, 0)).unwrap();
    tell(&format!("echoing at {}", socket.local_addr().unwrap()));
    thread::spawn(move || {
        let mut datagram = vec![0; 1 << 16];
        loop {
            let (len, from) = socket.recv_from(&mut datagram).unwrap();
            socket.send_to(&datagram[..len], from).unwrap();
        }
    });
}

/// Sends a datagram until it comes back: a LAN loses frames.
fn datagram(to: SocketAddr, bytes: usize) {
    let unspecified: IpAddr = if to.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
    let socket = UdpSocket::bind((unspecified, 0)).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    socket.connect(to).unwrap();
    let (mut sent, mut found) = (vec![0; bytes], vec![0; 1 << 16]);
    Pattern(0x1234_5678_9abc_def1).next(&mut sent);
    let deadline = Instant::now() + LIMIT;
    loop {
        socket.send(&sent).unwrap();
        match socket.recv(&mut found) {
            Ok(len) => break assert!(found[..len] == sent, "{len} bytes came back altered"),
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
    }
    tell(&format!("echoed {bytes}"));
}
