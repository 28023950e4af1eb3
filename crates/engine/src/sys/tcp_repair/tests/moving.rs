//! A connection moves again and again while both ends send.

use super::*;
use ironwarp_testkit::child::in_network;
use ironwarp_testkit::long_form;
use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Instant;

/// Number of bytes that each end receives between two moves, at least.
const BETWEEN_MOVES: u64 = 200_000;
/// Size of the send buffer, for which the kernel allows twice as much. The bytes of a connection that the kernel has let grow
/// further fit only where the destination allows as much, which not every host does.
const SEND_BUFFER: usize = 100_000;

/// The peer: a thread that sends, and one that receives and compares.
#[derive(Debug)]
struct Peer {
    progress: Arc<Progress>,
    sender: JoinHandle<u64>,
    receiver: JoinHandle<u64>,
}

#[derive(Debug, Default)]
struct Progress {
    received: AtomicU64,
    /// The longest time between two receives, in microseconds.
    pause: AtomicU64,
    stop: AtomicBool,
}

impl Peer {
    fn start(stream: TcpStream) -> Self {
        let progress = Arc::new(Progress::default());
        let (mut out, shared) = (stream.try_clone().unwrap(), Arc::clone(&progress));
        let sender = thread::spawn(move || {
            let mut position = 0;
            while !shared.stop.load(Relaxed) {
                let len = 1 + usize::try_from(position % 50_000).unwrap();
                out.write_all(&Pattern::IN.bytes(position, len)).unwrap();
                position += len as u64;
            }
            out.shutdown(std::net::Shutdown::Write).unwrap();
            position
        });
        let (mut stream, shared) = (stream, Arc::clone(&progress));
        let receiver = thread::spawn(move || {
            let (mut position, mut buffer, mut last) = (0, vec![0; 65536], Instant::now());
            loop {
                let len = stream.read(&mut buffer).unwrap();
                if len == 0 {
                    return position;
                }
                Pattern::OUT.check(position, &buffer[..len]);
                position += len as u64;
                let pause = u64::try_from(last.elapsed().as_micros()).unwrap();
                last = Instant::now();
                shared.pause.fetch_max(pause, Relaxed);
                shared.received.store(position, Relaxed);
            }
        });
        Self { progress, sender, receiver }
    }
}

/// The end that moves.
#[derive(Debug)]
struct Mover {
    link: TcpLink,
    sent: u64,
    received: u64,
    /// Bytes that were sent at an earlier host, and have no room in the send buffer yet.
    unsent: Vec<u8>,
}

impl Mover {
    /// Sends and receives what is possible now.
    fn exchange(&mut self) {
        let mut buffer = vec![0; 65536];
        match self.link.recv(&[], &mut buffer) {
            Ok(len) => self.take(&buffer[..len]),
            Err(error) => assert_eq!(error, LinkError::WouldBlock),
        }
        self.send();
    }

    fn take(&mut self, bytes: &[u8]) {
        Pattern::IN.check(self.received, bytes);
        self.received += bytes.len() as u64;
    }

    /// Sends a piece, if the send buffer has room.
    fn send(&mut self) {
        if self.unsent.is_empty() {
            self.unsent = Pattern::OUT.bytes(self.sent, 1 + usize::try_from(self.sent % 40_000).unwrap());
            self.sent += self.unsent.len() as u64;
        }
        match self.link.send(&[Piece::Own(&self.unsent)]) {
            Ok(len) => drop(self.unsent.drain(..len)),
            Err(error) => assert_eq!(error, LinkError::WouldBlock),
        }
    }

    /// Exchanges bytes with the peer until both have received enough.
    fn run(&mut self, peer: &Progress) {
        let (own, others) = (self.received + BETWEEN_MOVES, peer.received.load(Relaxed) + BETWEEN_MOVES);
        while self.received < own || peer.received.load(Relaxed) < others {
            wait(&self.link, PollFlags::IN | PollFlags::OUT);
            self.exchange();
        }
    }

    /// Moves between hosts, and keeps sending until the address is gone. Returns how many bytes were in the queues: sent, unsent
    /// and received.
    fn relocate(mut self, version: usize, from: &Host, to: &Host) -> (Self, [usize; 3]) {
        let destination = prepare(to, version);
        let (ip, _) = addresses(version);
        let raised = from.begin(move || Fence::raise(ip).unwrap());
        let fence = loop {
            match raised.try_recv() {
                Ok(fence) => break fence,
                Err(error) => assert_eq!(error, mpsc::TryRecvError::Empty),
            }
            self.send();
        };
        let Self { link, sent, received, unsent } = self;
        let bytes = leave(link, &fence);
        let image = TcpImage::decode(&bytes).unwrap();
        let queues = [image.sent.len(), image.unsent.len(), image.received.len()];
        let mut resumed = arrive(to, &destination, bytes);
        resumed.unsent.extend_from_slice(&unsent);
        let mut mover = Self { link: resumed.link, sent, received, unsent: resumed.unsent };
        mover.take(&resumed.received);
        (mover, queues)
    }

    /// Sends the rest and the end of the stream, and receives those of the peer.
    fn finish(mut self) -> (u64, u64) {
        while !self.unsent.is_empty() {
            wait(&self.link, PollFlags::IN | PollFlags::OUT);
            self.send();
        }
        self.link.finish();
        loop {
            wait(&self.link, PollFlags::IN);
            let mut buffer = vec![0; 65536];
            match self.link.recv(&[], &mut buffer) {
                Ok(len) => self.take(&buffer[..len]),
                Err(error) => {
                    assert_eq!(error, LinkError::Ended);
                    return (self.sent, self.received);
                }
            }
        }
    }
}

/// Moves a connection `moves` times, while both ends send and compare.
fn move_under_load(version: usize, moves: usize) {
    let hosts = two_hosts();
    let (link, stream) = connected(&hosts[0], version);
    sockopt::set_socket_send_buffer_size(&link, SEND_BUFFER).unwrap();
    let peer = Peer::start(stream);
    let mut mover = Mover { link, sent: 0, received: 0, unsent: Vec::new() };
    mover.run(&peer.progress);
    let (mut pauses, mut largest) = (Vec::new(), [0; 3]);
    for round in 0..moves {
        peer.progress.pause.store(0, Relaxed);
        let queues;
        (mover, queues) = mover.relocate(version, &hosts[round % 2], &hosts[(round + 1) % 2]);
        largest.iter_mut().zip(queues).for_each(|(largest, len)| *largest = len.max(*largest));
        mover.run(&peer.progress);
        pauses.push(Duration::from_micros(peer.progress.pause.load(Relaxed)));
    }
    peer.progress.stop.store(true, Relaxed);
    let (sent, received) = mover.finish();
    assert_eq!(peer.receiver.join().unwrap(), sent);
    assert_eq!(peer.sender.join().unwrap(), received);
    pauses.sort();
    let at = |percent: usize| pauses[(pauses.len() - 1) * percent / 100];
    println!(
        "\n{moves} moves, {sent} bytes out, {received} in; the peer received nothing for {:?} (median), {:?} (99 %); \
         largest queues [sent, unsent, received]: {largest:?}",
        at(50),
        at(99)
    );
    assert!(largest[2] > 0, "received bytes were moved: {largest:?}");
}

/// Number of moves: `IRON_TEST_FULL` selects the long form.
fn moves() -> usize {
    if long_form::is_requested() { 200 } else { 10 }
}

#[test]
fn a_connection_moves_under_load_and_loses_no_byte() {
    if in_network("sys::tcp_repair::tests::moving::a_connection_moves_under_load_and_loses_no_byte") {
        move_under_load(0, moves());
    }
}

#[test]
fn a_connection_over_ipv6_moves_under_load_and_loses_no_byte() {
    if in_network("sys::tcp_repair::tests::moving::a_connection_over_ipv6_moves_under_load_and_loses_no_byte")
    {
        move_under_load(1, moves());
    }
}
