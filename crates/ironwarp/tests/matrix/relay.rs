//! A relay between the two processes that records what it passes on, because capturing packets requires root.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

/// Recorded traffic, in a causal order: replies come after their requests.
#[derive(Debug)]
pub(crate) struct Tape {
    pub(crate) initiator: SocketAddr,
    pub(crate) responder: SocketAddr,
    pub(crate) pieces: Vec<Piece>,
}

#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) from_initiator: bool,
    pub(crate) bytes: Vec<u8>,
}

/// The relay of one connection.
#[derive(Debug)]
pub(crate) struct Relay {
    pub(crate) address: SocketAddr,
    thread: JoinHandle<Tape>,
}

impl Relay {
    /// Relays a connection to the returned address to `to`.
    pub(crate) fn start(to: SocketAddr) -> Self {
        let listener = TcpListener::bind((to.ip(), 0)).unwrap();
        let address = listener.local_addr().unwrap();
        Self { address, thread: thread::spawn(move || record(&listener, to)) }
    }

    /// Returns the recording, once both ends have closed.
    pub(crate) fn tape(self) -> Tape {
        self.thread.join().unwrap()
    }
}

fn record(listener: &TcpListener, to: SocketAddr) -> Tape {
    let (initiator, from) = listener.accept().unwrap();
    let responder = TcpStream::connect(to).unwrap();
    let pieces = Arc::new(Mutex::new(Vec::new()));
    let ways = [(true, &initiator, &responder), (false, &responder, &initiator)];
    let threads = ways.map(|(from_initiator, from, to)| {
        to.set_nodelay(true).unwrap();
        let (from, to, pieces) = (from.try_clone().unwrap(), to.try_clone().unwrap(), Arc::clone(&pieces));
        thread::spawn(move || pass(from_initiator, from, to, &pieces))
    });
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let pieces = Arc::into_inner(pieces).unwrap().into_inner().unwrap();
    Tape { initiator: from, responder: to, pieces }
}

/// Records data before it passes it on, and passes on the end of the stream.
fn pass(from_initiator: bool, mut from: TcpStream, mut to: TcpStream, pieces: &Mutex<Vec<Piece>>) {
    let mut buffer = vec![0; 256 << 10];
    loop {
        match from.read(&mut buffer).unwrap() {
            0 => break,
            len => {
                let bytes = buffer[..len].to_vec();
                pieces.lock().unwrap().push(Piece { from_initiator, bytes });
                to.write_all(&buffer[..len]).unwrap();
            }
        }
    }
    to.shutdown(Shutdown::Write).unwrap();
}
