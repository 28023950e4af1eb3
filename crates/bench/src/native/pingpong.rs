//! Ping-pong with Sends, or with Writes for which each side polls its memory.

use super::end::{End, Host};
use super::sleeper::Sleeper;
use crate::control::{Server, TIMEOUT};
use crate::measure::{Measured, pattern, ping_pong};
use crate::result::Result;
use crate::turn::Turn;
use ironwarp::connection::Listener;
use ironwarp::memory::{Buffer, MemoryRegion};
use ironwarp::queue::{PostError, QueuePair, WorkRequest};
use std::net::SocketAddr;
use std::time::Instant;

/// Number of posted receives, each with a buffer of its own, so that a message never waits for a receive.
const RECEIVES: usize = 8;

/// Maximum length of inline messages. Longer messages are sent from registered memory.
const INLINE: usize = 256;

/// One end of a ping-pong, with its message and its last receive.
#[derive(Debug)]
struct Player<'h> {
    end: End<'h>,
    turn: Turn,
    /// Present if this end sleeps for every message, without polling first.
    sleeper: Option<Sleeper>,
    message: Vec<u8>,
    /// The index of the last message's receive, and the length of the message.
    last: (u64, usize),
}

impl<'h> Player<'h> {
    /// Allocates the buffers of the receives, and one for the message after them.
    fn allocate_region(turn: &Turn, host: &Host) -> Result<MemoryRegion> {
        host.region(Buffer::new((RECEIVES + 1) * turn.size)?)
    }

    /// Writes the message to registered memory.
    fn new(turn: &Turn, end: End<'h>) -> Result<Self> {
        let message = pattern(turn.size);
        end.region.write(RECEIVES * turn.size, &message)?;
        let sleeper = Sleeper::of(turn, end.host)?;
        Ok(Self { end, turn: turn.clone(), sleeper, message, last: (0, 0) })
    }

    /// Sends the message inline, or from registered memory at `at`.
    fn send(&self, at: usize) -> Result {
        let request = match self.turn.size <= INLINE {
            true => WorkRequest::send_inline(0, &self.message),
            false => WorkRequest::send(0, &[self.end.region.slice(at..at + self.turn.size)?]),
        };
        Ok(self.end.pair.post_send(request.unsignaled())?)
    }

    /// Returns the offset of the last message in the region.
    fn place(&self) -> Result<usize> {
        Ok(usize::try_from(self.last.0)? * self.turn.size)
    }

    /// Waits for the next message.
    fn receive(&mut self) -> Result {
        let completion = match &self.sleeper {
            Some(sleeper) => sleeper.next()?,
            None => self.end.host.completion(&self.turn)?,
        };
        self.last = (completion.wr_id, completion.byte_len as usize);
        Ok(())
    }

    /// Posts the receive of the last message again, after the answer was sent.
    fn post_again(&self) -> Result {
        post_receive(&self.end.pair, &self.end.region, self.last.0, self.turn.size)
    }
}

/// Posts the receive with this index.
fn post_receive(pair: &QueuePair, region: &MemoryRegion, slot: u64, size: usize) -> Result {
    let at = usize::try_from(slot)? * size;
    Ok(pair.post_receive(slot, &[region.slice(at..at + size)?])?)
}

/// Returns a function that posts all receives.
fn post_receives(size: usize) -> impl Fn(&QueuePair, &MemoryRegion) -> Result {
    move |pair, region| (0..RECEIVES as u64).try_for_each(|slot| post_receive(pair, region, slot, size))
}

/// Runs the client of a ping-pong with Sends.
pub(super) fn run(turn: &Turn, server: &Server, at: SocketAddr) -> Result<Measured> {
    let host = Host::open(turn)?;
    let region = Player::allocate_region(turn, &host)?;
    let end = End::connect(turn, &host, at, region, post_receives(turn.size))?;
    let mut player = Player::new(turn, end)?;
    let ping = |player: &mut Player<'_>, number: u64| {
        let at = RECEIVES * player.turn.size;
        player.message[0] = number.to_le_bytes()[0];
        if player.turn.size > INLINE {
            player.end.region.write(at, &player.message[..1])?;
        }
        player.send(at)?;
        player.receive()?;
        player.post_again()
    };
    let check = |player: &Player<'_>, _: u64| {
        let (mut first, mut last) = ([0], [0]);
        player.end.region.read(player.place()?, &mut first)?;
        player.end.region.read(player.place()? + player.turn.size - 1, &mut last)?;
        match player.message.starts_with(&first) && player.message.ends_with(&last) {
            true => Ok(()),
            false => Err("answer differs from the message sent".into()),
        }
    };
    let measured = ping_pong(server, turn, &mut player, ping, check)?;
    player.end.pair.post_send(WorkRequest::send(0, &[]).unsignaled())?; // an empty message ends the ping-pong
    Ok(measured)
}

/// Runs the server of a ping-pong with Sends.
pub(super) fn serve(turn: &Turn, host: &Host, listener: &Listener) -> Result {
    let region = Player::allocate_region(turn, host)?;
    let end = End::accept(turn, host, listener, region, post_receives(turn.size))?;
    let mut player = Player::new(turn, end)?;
    loop {
        player.receive()?;
        if player.last.1 == 0 {
            return Ok(());
        }
        let at = player.place()?;
        if turn.size <= INLINE {
            player.end.region.read(at, &mut player.message)?;
        }
        // The buffer it is sent from can receive again, because no message arrives before the client has the answer.
        player.send(at)?;
        player.post_again()?;
    }
}

/// The value that ends a ping-pong with Writes.
const CLOSED: u64 = u64::MAX;

/// Posts no receives, because Writes need none.
fn post_nothing(_: &QueuePair, _: &MemoryRegion) -> Result {
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

/// Polls the memory until the number differs from `before`, and returns the new number. Makes no calls of the adapter,
/// so that the adapter's threads must place the Write, unless this end has received it while it polled for a
/// completion.
fn wait_for_change(end: &End<'_>, before: u64) -> Result<u64> {
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

/// Runs the client of a ping-pong with Writes.
pub(super) fn run_watching(turn: &Turn, server: &Server, at: SocketAddr) -> Result<Measured> {
    let host = Host::open(turn)?;
    let end = End::connect(turn, &host, at, host.region(Buffer::new(8)?)?, post_nothing)?;
    let mut game = (end, turn.clone(), 0);
    let ping = |(end, turn, last): &mut (End<'_>, Turn, u64), _: u64| {
        write(turn, end, *last + 1)?;
        match wait_for_change(end, *last)? == *last + 1 {
            true => *last += 1,
            false => return Err("answer differs from the number written".into()),
        }
        Ok(())
    };
    let measured = ping_pong(server, turn, &mut game, ping, |_, _| Ok(()))?;
    write(turn, &game.0, CLOSED)?;
    Ok(measured)
}

/// Runs the server of a ping-pong with Writes.
pub(super) fn serve_watching(turn: &Turn, host: &Host, listener: &Listener) -> Result {
    let end = End::accept(turn, host, listener, host.region(Buffer::new(8)?)?, post_nothing)?;
    let mut last = 0;
    loop {
        last = wait_for_change(&end, last)?;
        if last == CLOSED {
            return Ok(());
        }
        write(turn, &end, last)?;
    }
}
