//! Throughput in one direction, with one system call per message or per batch. The receiver reads large pieces, which
//! is the best case for sockets, because the receiver does not distinguish messages.

use super::socket::{read_all, write_all};
use crate::control::{self, Server};
use crate::measure::{END, Measured, Stopwatch, compare, edges, pattern};
use crate::result::Result;
use crate::turn::Turn;
use std::io::{ErrorKind, Read};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Minimum size of the receive buffer in bytes.
const PIECE: usize = 1 << 20;

/// Runs the client.
pub(super) fn run(turn: &Turn, server: &mut Server, mut stream: TcpStream) -> Result<Measured> {
    stream.set_nonblocking(!turn.blocking)?;
    let message = pattern(turn.size);
    let calls = message.repeat(turn.batch);
    let mut phase = |time| match turn.acked {
        true => send_acknowledged(turn, &mut stream, &calls, time),
        false => send_unacknowledged(turn, &mut stream, &calls, time),
    };
    phase(turn.warm_up())?;
    let watch = Stopwatch::start(server)?;
    let messages = phase(turn.time())?;
    let measured = watch.stop(server, messages, turn.size)?;
    drop(stream);
    compare(&server.received_edges()?, &message)?;
    Ok(measured)
}

/// Sends for the given time, then waits until the peer has received everything. Returns the number of messages.
fn send_unacknowledged(turn: &Turn, stream: &mut TcpStream, calls: &[u8], time: Duration) -> Result<u64> {
    let start = Instant::now();
    let mut sent = 0_u64;
    while start.elapsed() < time {
        write_all(stream, calls)?;
        sent += calls.len() as u64;
    }
    write_all(stream, &[END])?;
    let mut answer = [0; 8];
    read_all(stream, &mut answer)?;
    match u64::from_le_bytes(answer) == sent + 1 {
        true => Ok(sent / turn.size as u64),
        false => Err(format!("{sent} bytes sent, but {} arrived", u64::from_le_bytes(answer)).into()),
    }
}

/// Sends for the given time with at most `queued` unanswered messages. Returns the number of messages.
fn send_acknowledged(turn: &Turn, stream: &mut TcpStream, calls: &[u8], time: Duration) -> Result<u64> {
    let start = Instant::now();
    let (mut sent, mut answered) = (0, 0);
    let mut answers = vec![0; turn.queued];
    while start.elapsed() < time || answered < sent {
        while start.elapsed() < time && sent + turn.batch - answered <= turn.queued {
            write_all(stream, calls)?;
            sent += turn.batch;
        }
        match stream.read(&mut answers) {
            Ok(0) if answered < sent => return Err("the server has closed the connection".into()),
            Ok(n) => answered += n,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(sent as u64)
}

/// Runs the server.
pub(super) fn serve(turn: &Turn, mut stream: TcpStream) -> Result {
    stream.set_nonblocking(!turn.blocking)?;
    let message = match turn.acked {
        true => answer_each(turn, &mut stream)?,
        false => receive_all(turn, &mut stream)?,
    };
    control::wait_for_query()?;
    control::print_received(&edges(&message));
    Ok(())
}

/// Receives everything. After the byte that ends a phase, answers with the number of bytes of that phase. Returns the
/// first message.
fn receive_all(turn: &Turn, stream: &mut TcpStream) -> Result<Vec<u8>> {
    let (mut piece, mut message) = (vec![0; PIECE.max(turn.size)], Vec::new());
    let mut got = 0_u64;
    loop {
        let n = match stream.read(&mut piece) {
            Ok(0) => return Ok(message),
            Ok(n) => n,
            Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
            Err(error) => return Err(error.into()),
        };
        got += n as u64;
        if message.len() < turn.size {
            message.extend_from_slice(&piece[..n.min(turn.size - message.len())]);
        }
        if piece[n - 1] == END {
            write_all(stream, &got.to_le_bytes())?;
            got = 0;
        }
    }
}

/// Answers each message with a byte. Returns the last message.
fn answer_each(turn: &Turn, stream: &mut TcpStream) -> Result<Vec<u8>> {
    let mut message = vec![0; turn.size];
    while read_all(stream, &mut message)? {
        write_all(stream, &[1])?;
    }
    Ok(message)
}
