//! Ping-pong. Either the waiting thread itself receives the message, or a helper thread receives it into memory that
//! the waiting thread polls, like the target of an RDMA Write.

use super::socket::{read_all, write_all};
use crate::control::{Server, TIMEOUT};
use crate::measure::{Measured, ping_pong};
use crate::result::Result;
use crate::turn::Turn;
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

/// One end of a ping-pong, with its message.
#[derive(Debug)]
struct Player {
    stream: TcpStream,
    buffer: Vec<u8>,
}

/// Runs the client, which receives in the waiting thread.
pub(super) fn run(turn: &Turn, server: &Server, stream: TcpStream) -> Result<Measured> {
    stream.set_nonblocking(!turn.blocking)?;
    let mut player = Player { stream, buffer: vec![0; turn.size] };
    let ping = |player: &mut Player, number: u64| {
        player.buffer[0] = number.to_le_bytes()[0];
        write_all(&mut player.stream, &player.buffer)?;
        match read_all(&mut player.stream, &mut player.buffer)? {
            true => Ok(()),
            false => Err("the server has closed the connection".into()),
        }
    };
    let check = |player: &Player, number: u64| match player.buffer[0] == number.to_le_bytes()[0] {
        true => Ok(()),
        false => Err("answer differs from the message sent".into()),
    };
    ping_pong(server, turn, &mut player, ping, check)
}

/// Runs the server, which receives in the waiting thread.
pub(super) fn serve(turn: &Turn, mut stream: TcpStream) -> Result {
    stream.set_nonblocking(!turn.blocking)?;
    let mut buffer = vec![0; turn.size];
    while read_all(&mut stream, &mut buffer)? {
        write_all(&mut stream, &buffer)?;
    }
    Ok(())
}

/// Memory into which a helper thread receives, eight bytes at a time. All ones mean that the peer has closed.
#[derive(Debug)]
struct Watched {
    stream: TcpStream,
    memory: Arc<AtomicU64>,
}

/// The value of the memory after the peer has closed.
const CLOSED: u64 = u64::MAX;

impl Watched {
    /// Starts the helper thread.
    fn new(stream: TcpStream) -> Result<Self> {
        let memory = Arc::new(AtomicU64::new(0));
        let (mut from, to) = (stream.try_clone()?, Arc::clone(&memory));
        thread::spawn(move || {
            let mut word = [0; 8];
            while read_all(&mut from, &mut word).unwrap_or(false) {
                to.store(u64::from_le_bytes(word), Ordering::Release);
            }
            to.store(CLOSED, Ordering::Release);
        });
        Ok(Self { stream, memory })
    }

    /// Polls the memory until its value differs from `before`. Returns the new value, or `CLOSED` if that takes too
    /// long.
    fn wait_for_change(&self, before: u64) -> u64 {
        let start = Instant::now();
        for spins in 0_u64.. {
            let now = self.memory.load(Ordering::Acquire);
            if now != before {
                return now;
            }
            if spins.is_multiple_of(1 << 20) && start.elapsed() > TIMEOUT {
                break;
            }
            std::hint::spin_loop();
        }
        CLOSED
    }
}

/// Runs the client, which polls memory.
pub(super) fn run_watching(turn: &Turn, server: &Server, stream: TcpStream) -> Result<Measured> {
    let mut watched = Watched::new(stream)?;
    let ping = |watched: &mut Watched, _: u64| {
        let before = watched.memory.load(Ordering::Acquire);
        write_all(&mut watched.stream, &(before + 1).to_le_bytes())?;
        match watched.wait_for_change(before) == before + 1 {
            true => Ok(()),
            false => Err("answer differs from the message sent".into()),
        }
    };
    let measured = ping_pong(server, turn, &mut watched, ping, |_, _| Ok(()))?;
    watched.stream.shutdown(Shutdown::Both)?;
    Ok(measured)
}

/// Runs the server, which polls memory.
pub(super) fn serve_watching(stream: TcpStream) -> Result {
    let mut watched = Watched::new(stream)?;
    let mut last = 0;
    loop {
        last = watched.wait_for_change(last);
        if last == CLOSED {
            return Ok(());
        }
        write_all(&mut watched.stream, &last.to_le_bytes())?;
    }
}
