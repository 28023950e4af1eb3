//! Connections between real network stacks, one end of which moves from host to host. Every byte is compared.

use super::*;
use crate::sys::fence::Destination;
use crate::sys::tcp::connect;
use crate::sys::testing::hosts::{Host, MOVING, PEER, prefix_of, two_hosts};
use crate::sys::testing::{KEEPALIVE, wait};
use ironwarp_rnic::link::{LinkError, Piece};
use rustix::event::PollFlags;
use std::net::{IpAddr, TcpListener, TcpStream};
use std::time::Duration;

mod attacks;
mod codec;
mod moving;
mod order;
mod queues;
mod states;

/// The traffic class of connections that move.
const CLASS: u8 = 0x28;

/// Returns the moving address of an IP version, and that of the peer.
fn addresses(version: usize) -> (IpAddr, IpAddr) {
    (MOVING[version].parse().unwrap(), PEER[version].parse().unwrap())
}

/// Connects a moving address of a host to this one. Returns both ends.
fn connected(host: &Host, version: usize) -> (TcpLink, TcpStream) {
    let (from, to) = addresses(version);
    let listener = TcpListener::bind((to, 0)).unwrap();
    let to = listener.local_addr().unwrap();
    let link = host.run(move || connect(to, Some(SocketAddr::new(from, 0)), CLASS, &KEEPALIVE).unwrap());
    let (peer, _) = listener.accept().unwrap();
    peer.set_read_timeout(Some(Duration::from_secs(20))).unwrap(); // lost bytes fail the test
    wait(&link, PollFlags::OUT);
    assert!(link.is_connected().unwrap());
    (link, peer)
}

/// Removes the address of a connection from its host.
fn fence(host: &Host, link: &TcpLink) -> Fence {
    let ip = link.local_addr().unwrap().ip();
    host.run(move || Fence::raise(ip).unwrap())
}

/// Dumps a connection, as bytes, and closes it.
fn leave(link: TcpLink, fence: &Fence) -> Vec<u8> {
    dump(&link, fence).unwrap().encode()
}

/// Prepares a host for the moving address of an IP version.
fn prepare(host: &Host, version: usize) -> Destination {
    let (ip, _) = addresses(version);
    host.run(move || Destination::prepare(ip, prefix_of(ip), "eth0").unwrap())
}

/// Restores a connection at a host.
fn arrive(host: &Host, destination: &Destination, bytes: Vec<u8>) -> Resumed {
    let restored = host.run(move || restore(TcpImage::decode(&bytes).unwrap()).unwrap());
    destination.take_address().unwrap();
    restored.resume().unwrap()
}

/// Moves a connection that is at rest from one host to another.
fn relocate(link: TcpLink, from: &Host, to: &Host) -> Resumed {
    let destination = prepare(to, usize::from(link.local_addr().unwrap().is_ipv6()));
    let fence = fence(from, &link);
    arrive(to, &destination, leave(link, &fence))
}

/// The bytes of a direction, each of which differs from those that would be in its place if any were lost or repeated.
#[derive(Clone, Copy, Debug)]
struct Pattern(u64);

impl Pattern {
    /// From the peer to the connection that moves.
    const IN: Self = Self(1);
    /// From the connection that moves to the peer.
    const OUT: Self = Self(2);

    /// Returns bytes from a position on.
    fn bytes(self, position: u64, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len + 8);
        let mut word = position / 8;
        while bytes.len() < len + 8 {
            bytes.extend_from_slice(&(word ^ self.0 << 56).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
            word += 1;
        }
        let skip = usize::try_from(position % 8).unwrap();
        bytes[skip..skip + len].to_vec()
    }

    #[track_caller]
    fn check(self, position: u64, bytes: &[u8]) {
        assert!(bytes == self.bytes(position, bytes.len()), "wrong bytes of {self:?} from {position} on");
    }
}

/// Sends bytes, which must fit into the send buffer.
fn send(link: &TcpLink, bytes: &[u8]) {
    assert_eq!(link.send(&[Piece::Own(bytes)]), Ok(bytes.len()));
}

/// Receives exactly these bytes.
#[track_caller]
fn expect(link: &TcpLink, bytes: &[u8]) {
    let mut found = vec![0; bytes.len()];
    let mut len = 0;
    while len < bytes.len() {
        wait(link, PollFlags::IN);
        len += link.recv(&[], &mut found[len..]).unwrap();
    }
    assert_eq!(found, bytes);
}

/// Receives the end of the stream.
#[track_caller]
fn expect_end(link: &TcpLink) {
    wait(link, PollFlags::IN);
    assert_eq!(link.recv(&[], &mut [0]), Err(LinkError::Ended));
}
