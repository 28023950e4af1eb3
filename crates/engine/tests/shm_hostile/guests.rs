//! The Unix socket of the victim, to which every user of the host can connect.

use super::common::attack::{Attack, Link};
use super::common::doorway::{self, AdapterId, Hello, MAX_DESCRIPTORS, Token, knock, send_with};
use super::common::ring::{ACCEPT, ATTACH, RingEnd};
use super::common::victim::{Attacked, Victim};
use super::common::{TIMEOUT, wait_until};
use ironwarp_rnic::link::Route;
use ironwarp_wire::private::Signal;
use std::fs::File;
use std::io::Write;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// A connection on which the victim has offered memory.
fn offered(victim: &Victim) -> (Attacked, Token, AdapterId) {
    let mut attacked = victim.dial_peer();
    let (token, adapter, _) = attacked.receive_offer();
    (attacked, token, adapter)
}

#[test]
fn silent_processes_are_bounded() {
    const COUNT: usize = 400;
    let victim = Victim::new();
    let (attacked, _, adapter) = offered(&victim);
    let silent: Vec<_> = (0..COUNT).map(|_| knock(&adapter).unwrap()).collect();
    // The last ones are refused, so all have been accepted.
    doorway::assert_refused(silent.last().unwrap());
    victim.before.assert_bounded(0, COUNT + 64 + 16);
    victim.assert_survives((attacked, silent));
}

#[test]
fn a_silent_process_is_given_up() {
    let victim = Victim::new();
    let (attacked, _, adapter) = offered(&victim);
    let silent = knock(&adapter).unwrap();
    let half = knock(&adapter).unwrap();
    doorway::assert_refused(&silent);
    victim.assert_survives((attacked, silent, half));
}

#[test]
fn malformed_hellos_are_refused() {
    let victim = Victim::new();
    let (mut attacked, token, adapter) = offered(&victim);
    let hello = Hello::new(token).bytes();
    let mut wrong_version = hello.clone();
    wrong_version[7] ^= 1;
    for bytes in [&hello[..1], &hello[..8], &hello[..31], &wrong_version, &[0; 32], &[0xff; 4096]] {
        let mut stream = knock(&adapter).unwrap();
        stream.write_all(bytes).unwrap();
        doorway::assert_refused(&stream);
    }
    attacked.assert_works_over_tcp(1);
    victim.assert_survives(attacked);
}

#[test]
fn tokens_cannot_be_guessed() {
    let victim = Victim::new();
    let (mut attacked, token, adapter) = offered(&victim);
    for i in 0..1000_u128 {
        let guess = u128::from_ne_bytes(token) ^ (1 << (i % 128) | i << 8);
        doorway::assert_refused(&Hello::new(guess.to_ne_bytes()).say(&adapter));
    }
    victim.before.assert_bounded(0, 64);
    attacked.assert_works_over_tcp(1);
    victim.assert_survives(attacked);
}

#[test]
fn bytes_after_the_hello_are_doorbells() {
    let victim = Victim::new();
    let (attacked, token, adapter) = offered(&victim);
    let mut bell = knock(&adapter).unwrap();
    let hello = Hello::new(token).bytes();
    bell.write_all(&[&hello[..], &hello, &[7; 1000]].concat()).unwrap();
    let file = doorway::receive_file(&bell).expect("the first hello is valid");
    let mut link = Link { bell, ring: RingEnd::join(file) };
    link.attach(&token);
    victim.assert_survives((attacked, link));
}

#[test]
fn a_token_yields_memory_once() {
    let victim = Victim::new();
    let (attacked, token, adapter) = offered(&victim);
    let guests: Vec<_> = (0..200)
        .map(|_| Hello::new(token).say(&adapter))
        .map(|bell| (doorway::receive_file(&bell), bell))
        .collect();
    assert_eq!(guests.iter().filter(|(file, _)| file.is_some()).count(), 1);
    victim.before.assert_bounded(1, guests.len() + 16);
    victim.assert_survives((attacked, guests));
}

#[test]
fn memory_that_is_not_used_is_given_back() {
    let victim = Victim::new();
    let guests: Vec<_> = (0..5)
        .map(|_| {
            let (attacked, token, adapter) = offered(&victim);
            let link = Link::joined(token, &adapter);
            drop(attacked);
            link
        })
        .collect();
    wait_until("the victim to unmap rings that nobody uses", || {
        super::common::resources::rings() <= victim.before.rings
    });
    victim.assert_survives(guests);
}

/// A request that is in the ring when the time is over counts, even if no bell has rung for it.
#[test]
fn memory_in_which_a_channel_is_requested_is_kept() {
    let victim = Victim::new();
    let (mut attacked, token, adapter) = offered(&victim);
    let mut link = Link::joined(token, &adapter);
    link.ring.put(0, ATTACH, &[&token[..], &7_u32.to_ne_bytes()].concat());
    link.ring.set_head(link.ring.head);
    let accept = link.ring.next();
    assert_eq!((accept.channel, accept.kind), (7, ACCEPT), "{accept:?}");
    attacked.peer.receive_signal(|signal| (signal == Signal::Switch(Route::SharedMemory)).then_some(()));
    victim.assert_survives((attacked, link));
}

#[test]
fn an_offer_ends_with_its_connection() {
    let victim = Victim::new();
    let (Attacked { peer, end }, token, adapter) = offered(&victim);
    drop(peer);
    assert!(end.pair.wait_closed(TIMEOUT));
    doorway::assert_refused(&Hello::new(token).say(&adapter));
    victim.assert_survives(end);
}

#[test]
fn a_process_that_closes_after_the_hello_costs_nothing() {
    let victim = Victim::new();
    for _ in 0..20 {
        let (mut attacked, token, adapter) = offered(&victim);
        drop(Hello::new(token).say(&adapter));
        attacked.assert_works_over_tcp(1);
    }
    victim.assert_survives(());
}

#[test]
fn descriptors_with_the_hello_are_closed() {
    let victim = Victim::new();
    let null = File::open("/dev/null").unwrap();
    for count in [1, 2, 3, 16, MAX_DESCRIPTORS] {
        let (mut attacked, token, adapter) = offered(&victim);
        let stream = knock(&adapter).unwrap();
        let files: Vec<BorrowedFd<'_>> = vec![null.as_fd(); count];
        // The kernel may refuse to pass descriptors to a process that does not want any.
        let _ = send_with(&stream, &Hello::new(token).bytes(), &files);
        stream.shutdown(Shutdown::Write).unwrap();
        let _ = doorway::receive_file(&stream);
        attacked.assert_works_over_tcp(1);
    }
    victim.assert_survives(null);
}

#[test]
fn a_flood_of_descriptors_by_the_bell_is_closed() {
    let victim = Victim::new();
    let null = File::open("/dev/null").unwrap();
    for connect in Attack::both() {
        let mut attack = Attack::switched(connect, &victim);
        for _ in 0..200 {
            let _ = send_with(&attack.link.bell, &[0], &[null.as_fd(); MAX_DESCRIPTORS]);
        }
        if attack.pair.qp().error().is_none() {
            attack.assert_works(1);
        }
    }
    victim.assert_survives(null);
}

/// A TCP socket whose last `close` blocks for longer than an honest connection may stall: it lingers, and its peer, which
/// is returned as well, does not read.
fn lingering() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (peer, _) = listener.accept().unwrap();
    socket.set_nonblocking(true).unwrap();
    while (&socket).write(&[0; 64 << 10]).is_ok() {}
    socket.set_nonblocking(false).unwrap();
    rustix::net::sockopt::set_socket_linger(&socket, Some(Duration::from_secs(6))).unwrap();
    (socket, peer)
}

/// Passes a descriptor whose last `close` blocks. The peer closes its own at once; that may be the last one, so this
/// happens on a thread. Returns what ends the blocking when it is dropped.
pub(crate) fn pass_lingering(stream: &UnixStream, bytes: &[u8]) -> TcpStream {
    let (socket, peer) = lingering();
    let _ = send_with(stream, bytes, &[socket.as_fd()]); // the kernel may refuse it for the victim
    std::thread::spawn(move || drop(socket));
    peer
}

#[test]
fn a_descriptor_with_the_hello_whose_close_blocks_delays_nobody() {
    let victim = Victim::new();
    let (mut attacked, token, adapter) = offered(&victim);
    let guests: Vec<_> = (0..4)
        .map(|_| {
            let stream = knock(&adapter).unwrap();
            (pass_lingering(&stream, &Hello::new(token).bytes()), stream)
        })
        .collect();
    attacked.assert_works_over_tcp(1);
    victim.go_on();
    victim.assert_survives((attacked, guests));
}

#[test]
fn a_descriptor_by_the_bell_whose_close_blocks_delays_nobody() {
    for connect in Attack::both() {
        let victim = Victim::new();
        let mut attack = Attack::switched(connect, &victim);
        let peers: Vec<_> = (0..4).map(|_| pass_lingering(&attack.link.bell, &[0])).collect();
        victim.go_on();
        if attack.pair.qp().error().is_none() {
            attack.assert_works(1);
        }
        victim.assert_survives((attack, peers));
    }
}
