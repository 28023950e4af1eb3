//! Ping-pong with Sends, or with Writes for which each side polls its memory.

use super::end::{End, Host};
use crate::control::{Server, TIMEOUT};
use crate::measure::{Measured, pattern, ping_pong};
use crate::result::Result;
use crate::turn::Turn;
use ironwarp::{Buffer, Listener, MemoryRegion, PostError, QueuePair, WorkRequest};
use std::net::SocketAddr;
use std::time::Instant;

/// Number of posted receives, each with a buffer of its own, so that a message never waits for one.
const RECEIVES: usize = 8;

/// Maximum length of inline messages. Longer ones are sent from registered memory.
const INLINE: usize = 256;

/// An end with its message and its last receive.
#[derive(Debug)]
struct Ball<'h> {
    end: End<'h>,
    turn: Turn,
    message: Vec<u8>,
    /// The receive of the last message, and its length.
    last: (u64, usize),
}

impl<'h> Ball<'h> {
    /// Allocates the buffers of the receives, and one for the message after them.
    fn memory(turn: &Turn, host: &Host) -> Result<MemoryRegion> {
        host.region(Buffer::new((RECEIVES + 1) * turn.size)?)
    }

    fn new(turn: &Turn, end: End<'h>) -> Result<Self> {
        let message = pattern(turn.size);
        end.region.write(RECEIVES * turn.size, &message)?;
        Ok(Self { end, turn: turn.clone(), message, last: (0, 0) })
    }

    /// Sends the message inline, or from registered memory at `at`.
    fn send(&self, at: usize) -> Result {
        let request = match self.turn.size <= INLINE {
            true => WorkRequest::send_inline(0, &self.message),
            false => WorkRequest::send(0, &[self.end.region.slice(at, self.turn.size)?]),
        };
        Ok(self.end.pair.post_send(request.unsignaled())?)
    }

    /// Returns the position of the last message.
    fn place(&self) -> Result<usize> {
        Ok(usize::try_from(self.last.0)? * self.turn.size)
    }

    fn receive(&mut self) -> Result {
        let completion = self.end.host.completion(&self.turn)?;
        self.last = (completion.wr_id, completion.byte_len as usize);
        Ok(())
    }

    /// Posts the used receive again, after the answer was sent.
    fn post_again(&self) -> Result {
        post_receive(&self.end.pair, &self.end.region, self.last.0, self.turn.size)
    }
}

fn post_receive(pair: &QueuePair, region: &MemoryRegion, slot: u64, size: usize) -> Result {
    Ok(pair.post_receive(slot, &[region.slice(usize::try_from(slot)? * size, size)?])?)
}

fn post_receives(size: usize) -> impl Fn(&QueuePair, &MemoryRegion) -> Result {
    move |pair, region| (0..RECEIVES as u64).try_for_each(|slot| post_receive(pair, region, slot, size))
}

pub(super) fn run(turn: &Turn, server: &Server, at: SocketAddr) -> Result<Measured> {
    let host = Host::open(turn)?;
    let region = Ball::memory(turn, &host)?;
    let end = End::connect(turn, &host, at, region, post_receives(turn.size))?;
    let mut ball = Ball::new(turn, end)?;
    let ping = |ball: &mut Ball<'_>, number: u64| {
        let at = RECEIVES * ball.turn.size;
        ball.message[0] = number.to_le_bytes()[0];
        if ball.turn.size > INLINE {
            ball.end.region.write(at, &ball.message[..1])?;
        }
        ball.send(at)?;
        ball.receive()?;
        ball.post_again()
    };
    let check = |ball: &Ball<'_>, _: u64| {
        let (mut first, mut last) = ([0], [0]);
        ball.end.region.read(ball.place()?, &mut first)?;
        ball.end.region.read(ball.place()? + ball.turn.size - 1, &mut last)?;
        match ball.message.starts_with(&first) && ball.message.ends_with(&last) {
            true => Ok(()),
            false => Err("answer differs from the message sent".into()),
        }
    };
    let measured = ping_pong(server, turn, &mut ball, ping, check)?;
    ball.end.pair.post_send(WorkRequest::send(0, &[]).unsignaled())?; // an empty message ends the ping-pong
    Ok(measured)
}

pub(super) fn serve(turn: &Turn, host: &Host, listener: &Listener) -> Result {
    let region = Ball::memory(turn, host)?;
    let end = End::accept(turn, host, listener, region, post_receives(turn.size))?;
    let mut ball = Ball::new(turn, end)?;
    loop {
        ball.receive()?;
        if ball.last.1 == 0 {
            return Ok(());
        }
        let at = ball.place()?;
        if turn.size <= INLINE {
            ball.end.region.read(at, &mut ball.message)?;
        }
        // The buffer it is sent from can receive again, because nothing arrives before the client has the answer.
        ball.send(at)?;
        ball.post_again()?;
    }
}

/// Written instead of a number, it ends the ping-pong.
const CLOSED: u64 = u64::MAX;

fn nothing(_: &QueuePair, _: &MemoryRegion) -> Result {
    Ok(())
}

/// Writes a number to the memory that the peer polls.
fn write(turn: &Turn, end: &End<'_>, number: u64) -> Result {
    let request = || WorkRequest::write_inline(0, &number.to_le_bytes(), end.peer);
    if turn.polls {
        end.pair.post_send(request())?;
        return end.host.completion(turn).map(drop);
    }
    let start = Instant::now();
    loop {
        match end.pair.post_send(request().unsignaled()) {
            Ok(()) => return Ok(()),
            // The queue has room again when acknowledgements have arrived.
            Err(PostError::Full { .. }) if start.elapsed() < TIMEOUT => _ = end.host.cq.poll_one()?,
            Err(error) => return Err(error.into()),
        }
    }
}

/// Spins until the number in memory changes. It makes no calls, so the adapter must place the Write by itself, unless it already has
/// while this end polled.
fn changes_from(end: &End<'_>, before: u64) -> Result<u64> {
    let start = Instant::now();
    let mut word = [0; 8];
    for spins in 0_u64.. {
        end.region.read(0, &mut word)?;
        let now = u64::from_le_bytes(word);
        if now != before {
            return Ok(now);
        }
        if spins.is_multiple_of(1 << 20) && start.elapsed() > TIMEOUT {
            break;
        }
        std::hint::spin_loop();
    }
    Err("no Write arrived in time".into())
}

pub(super) fn run_watching(turn: &Turn, server: &Server, at: SocketAddr) -> Result<Measured> {
    let host = Host::open(turn)?;
    let end = End::connect(turn, &host, at, host.region(Buffer::new(8)?)?, nothing)?;
    let mut game = (end, turn.clone(), 0);
    let ping = |(end, turn, last): &mut (End<'_>, Turn, u64), _: u64| {
        write(turn, end, *last + 1)?;
        match changes_from(end, *last)? == *last + 1 {
            true => *last += 1,
            false => return Err("answer differs from the number written".into()),
        }
        Ok(())
    };
    let measured = ping_pong(server, turn, &mut game, ping, |_, _| Ok(()))?;
    write(turn, &game.0, CLOSED)?;
    Ok(measured)
}

pub(super) fn serve_watching(turn: &Turn, host: &Host, listener: &Listener) -> Result {
    let end = End::accept(turn, host, listener, host.region(Buffer::new(8)?)?, nothing)?;
    let mut last = 0;
    loop {
        last = changes_from(&end, last)?;
        if last == CLOSED {
            return Ok(());
        }
        write(turn, &end, last)?;
    }
}
