//! Numbers of queue pairs, 24 bits each, that none has twice at a time. One that was given back is handed out again as late
//! as possible, so that a peer that has not noticed yet does not find somebody else.
//!
//! | number | for |
//! |---|---|
//! | below 0x040000 | queue pairs that are connected by address: no port is in them |
//! | port · 256 + slot, slots 0 to 239 | queue pairs that are brought up by hand: a peer that knows number and GID can dial |
//! | port · 256 + 255 | connectionless ones: the port is UDP's ([`number_of`](ironwarp_rnic::datagram::number_of)) |
//!
//! Ports are 1024 and above, so the kinds do not meet. Numbers 0 and 1 are never used: InfiniBand has a meaning for them.

use crate::port::Port;
use crate::set::lock;
use crate::sys::random::random;
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex};

#[cfg(test)]
mod tests;

/// How many queue pairs share a port.
pub const SLOTS: u32 = 240;

const FIRST: u32 = 2;
/// Numbers from here on have a port in them.
const FIRST_WITH_PORT: u32 = 0x04_0000;
/// They have 24 bits.
pub(crate) const LAST: u32 = 0xff_ffff;

/// The port in a number, if a queue pair with this number can be dialled.
pub fn port_of(number: u32) -> Option<u16> {
    let dialled = (FIRST_WITH_PORT..=LAST).contains(&number) && number & 0xff < SLOTS;
    dialled.then(|| u16::try_from(number >> 8).unwrap_or_default())
}

/// All numbers of an adapter.
#[derive(Debug)]
pub(crate) struct Numbers {
    free: Mutex<Free>,
}

#[derive(Debug)]
struct Free {
    /// The next number without a port that was never used.
    next: u32,
    /// Numbers without a port that were given back, the oldest first.
    plain: VecDeque<u32>,
    /// Slots that are free, of all ports, the oldest first.
    slots: VecDeque<(u32, Arc<Port>)>,
}

/// A number, until this is dropped.
#[derive(Debug)]
pub(crate) struct Number {
    value: u32,
    port: Option<Arc<Port>>,
    numbers: Arc<Numbers>,
}

impl Numbers {
    pub(crate) fn new() -> Arc<Self> {
        let free = Free { next: FIRST, plain: VecDeque::new(), slots: VecDeque::new() };
        Arc::new(Self { free: Mutex::new(free) })
    }

    /// For a queue pair that is connected by address.
    pub(crate) fn plain(self: &Arc<Self>) -> io::Result<Number> {
        let mut free = lock(&self.free);
        let value = if free.next < FIRST_WITH_PORT {
            free.next += 1;
            free.next - 1
        } else {
            free.plain.pop_front().ok_or_else(used_up)?
        };
        Ok(Number { value, port: None, numbers: Arc::clone(self) })
    }

    /// For a queue pair that is brought up by hand. If no slot is free, there is a new port.
    pub(crate) fn with_port(
        self: &Arc<Self>,
        new_port: impl FnOnce() -> io::Result<Arc<Port>>,
    ) -> io::Result<Number> {
        let mut free = lock(&self.free);
        if free.slots.is_empty() {
            let (port, order) = (new_port()?, shuffled()?);
            let first = u32::from(port.number()) << 8;
            free.slots.extend(order.into_iter().map(|slot| (first | u32::from(slot), Arc::clone(&port))));
        }
        let (value, port) = free.slots.pop_front().ok_or_else(used_up)?;
        drop(free);
        port.admit(value);
        Ok(Number { value, port: Some(port), numbers: Arc::clone(self) })
    }
}

impl Number {
    pub(crate) fn value(&self) -> u32 {
        self.value
    }

    /// The port in it.
    pub(crate) fn port(&self) -> Option<&Arc<Port>> {
        self.port.as_ref()
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        match self.port.take() {
            Some(port) => {
                port.dismiss(self.value);
                lock(&self.numbers.free).slots.push_back((self.value, port));
            }
            None => lock(&self.numbers.free).plain.push_back(self.value),
        }
    }
}

/// The slots of a port in random order: who knows one number does not know the next.
fn shuffled() -> io::Result<Vec<u8>> {
    let mut slots: Vec<u8> = (0..).take(SLOTS as usize).collect();
    let random: [u8; 8 * SLOTS as usize] = random()?;
    // Fisher and Yates. The remainder of 64 bits favours no slot by more than one part in 2^56.
    for (last, bits) in (1..slots.len()).rev().zip(random.as_chunks::<8>().0) {
        let to = u64::from_ne_bytes(*bits) % (last as u64 + 1);
        slots.swap(last, usize::try_from(to).unwrap_or(last));
    }
    Ok(slots)
}

fn used_up() -> io::Error {
    io::Error::other("all numbers of queue pairs are in use: destroy some")
}
