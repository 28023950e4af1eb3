//! The function that is handed over, an [`Echo`], and the [`Peer`] of its TCP connection, which does not know of it.

use super::TIMEOUT;
use super::log::{Log, What, Who};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Number of bytes that the peer sends ahead of the echo.
const AHEAD: u64 = 64 << 10;
/// Maximum number of bytes that an echo sends at a time: so it nearly always owes some.
const PIECE: usize = 1_500;
/// How long an echo waits for bytes, before it looks whether it shall stop.
const IDLE: Timespec = Timespec { tv_sec: 0, tv_nsec: 2_000_000 };

/// The directions of the stream.
const TO_ECHO: u64 = 1;
const TO_PEER: u64 = 2;

/// The byte at this position of the stream.
fn byte(position: u64, direction: u64) -> u8 {
    let word = (position / 8).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(direction << 32 | direction);
    word.to_le_bytes()[usize::try_from(position % 8).unwrap()]
}

fn bytes(from: u64, len: usize, direction: u64) -> Vec<u8> {
    (from..from + len as u64).map(|position| byte(position, direction)).collect()
}

/// Creates a TCP connection.
pub(crate) fn connection() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let other = listener.accept().unwrap().0;
    one.set_nodelay(true).unwrap();
    other.set_nodelay(true).unwrap();
    (one, other)
}

/// Waits a moment for bytes.
pub(crate) fn wait(socket: impl AsFd) {
    poll(&mut [PollFd::new(&socket, PollFlags::IN)], Some(&IDLE)).unwrap();
}

/// The state of the function: what its owner has received and sent.
#[derive(Debug)]
pub(crate) struct Echo {
    pub(crate) socket: Arc<OwnedFd>,
    received: u64,
    echoed: u64,
}

impl Echo {
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self { socket: Arc::new(socket), received: 0, echoed: 0 }
    }

    pub(crate) fn snapshot(&self) -> Vec<u8> {
        [self.received.to_be_bytes(), self.echoed.to_be_bytes()].concat()
    }

    pub(crate) fn load(&mut self, snapshot: &[u8]) {
        let word = |at: usize| u64::from_be_bytes(snapshot[at..at + 8].try_into().unwrap());
        (self.received, self.echoed) = (word(0), word(8));
    }

    /// Receives and echoes what is possible now. Returns false at the end of the connection.
    pub(crate) fn act(&mut self, who: Who, log: &Log) -> bool {
        let mut wanted = PollFlags::IN;
        wanted.set(PollFlags::OUT, self.echoed < self.received);
        let mut ready = [PollFd::new(&self.socket, wanted)];
        poll(&mut ready, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap();
        let ready = ready[0].revents();
        if ready.is_empty() {
            return true;
        }
        log.add(who, What::Begin);
        let goes_on = (!ready.contains(PollFlags::IN) || self.receive(who, log))
            && (!ready.contains(PollFlags::OUT) || self.send());
        log.add(who, What::End);
        goes_on
    }

    fn receive(&mut self, who: Who, log: &Log) -> bool {
        let mut got = [0; 4096];
        match recv(&self.socket, &mut got[..], RecvFlags::DONTWAIT) {
            Ok((_, 0)) => false,
            Ok((_, len)) => {
                if got[..len] != bytes(self.received, len, TO_ECHO) {
                    log.add(who, What::Wrong);
                }
                self.received += len as u64;
                true
            }
            Err(error) => error == Errno::AGAIN,
        }
    }

    fn send(&mut self) -> bool {
        let owed = usize::try_from(self.received - self.echoed).unwrap().min(PIECE);
        match send(
            &self.socket,
            &bytes(self.echoed, owed, TO_PEER),
            SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
        ) {
            Ok(sent) => {
                self.echoed += sent as u64;
                true
            }
            Err(error) => error == Errno::AGAIN,
        }
    }
}

#[derive(Debug, Default)]
struct Progress {
    received: u64,
    has_ended: bool,
}

/// The other end of the connection: sends, and checks what comes back.
#[derive(Debug)]
pub(crate) struct Peer {
    socket: Arc<TcpStream>,
    progress: Arc<(Mutex<Progress>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Peer {
    pub(crate) fn start(socket: TcpStream) -> Self {
        let socket = Arc::new(socket);
        let progress = Arc::<(Mutex<Progress>, Condvar)>::default();
        let (its_socket, its_progress) = (Arc::clone(&socket), Arc::clone(&progress));
        let thread = std::thread::spawn(move || {
            run(&its_socket, &its_progress);
            its_progress.0.lock().unwrap().has_ended = true;
            its_progress.1.notify_all();
        });
        Self { socket, progress, thread: Some(thread) }
    }

    /// Waits until more has come back, or the connection has ended. Returns whether it goes on.
    pub(crate) fn goes_on(&self, context: &str) -> bool {
        let (progress, changed) = &*self.progress;
        let mut now = progress.lock().unwrap();
        // More than can be on its way, so somebody acts now.
        let (enough, deadline) = (now.received + 3 * AHEAD, Instant::now() + TIMEOUT);
        while !now.has_ended && now.received < enough {
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(left > Duration::ZERO, "{context}: nobody acts, and the connection has not ended");
            now = changed.wait_timeout(now, left).unwrap().0;
        }
        !now.has_ended
    }

    /// Closes the connection. Panics if a wrong byte has come back.
    pub(crate) fn finish(mut self, context: &str) {
        let _ = shutdown(&*self.socket, Shutdown::Both); // it may have ended
        self.thread.take().unwrap().join().unwrap_or_else(|_| panic!("{context}: a wrong byte"));
    }
}

fn run(socket: &TcpStream, (progress, changed): &(Mutex<Progress>, Condvar)) {
    let (mut sent, mut received) = (0, 0);
    loop {
        let room = (received + AHEAD - sent).min(4096);
        let mut wanted = PollFlags::IN;
        wanted.set(PollFlags::OUT, room > 0);
        let mut ready = [PollFd::new(socket, wanted)];
        poll(&mut ready, None).unwrap();
        let ready = ready[0].revents();
        if ready.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
            let mut got = [0; 8192];
            match recv(socket, &mut got[..], RecvFlags::DONTWAIT) {
                Err(Errno::AGAIN) => {}
                Ok((_, 0)) | Err(_) => return,
                Ok((_, len)) => {
                    assert_eq!(got[..len], bytes(received, len, TO_PEER), "at {received}");
                    received += len as u64;
                    progress.lock().unwrap().received = received;
                    changed.notify_all();
                }
            }
        }
        if ready.contains(PollFlags::OUT) {
            let piece = bytes(sent, usize::try_from(room).unwrap(), TO_ECHO);
            match send(socket.as_fd(), &piece, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(len) => sent += len as u64,
                Err(Errno::AGAIN) => {}
                Err(_) => return,
            }
        }
    }
}
