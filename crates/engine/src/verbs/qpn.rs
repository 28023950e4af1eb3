//! Numbers of queue pairs, 24 bits each, unique while in use. A number that was given back is handed out again as late as possible, so
//! that a peer that has not noticed yet does not reach another queue pair.
//!
//! | number | for |
//! |---|---|
//! | below 0x040000 | queue pairs that are connected by address: no port is in them |
//! | port · 256 + slot, slots 0 to 239 | manually connected queue pairs: a peer that knows number and GID can dial |
//! | port · 256 + 255 | connectionless queue pairs: the port is a UDP port ([`number_of`](ironwarp_rnic::datagram::number_of)) |
//!
//! Ports are 1024 and above, so the kinds do not overlap. Numbers 0 and 1 are never used: InfiniBand reserves them.

use crate::sys::random::random;
use ironwarp_rnic::sync::lock;
use ironwarp_wire::private::Secret;
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex};

#[cfg(test)]
mod tests;

/// Number of queue pairs that share a port.
pub const SLOTS: u32 = 240;

const FIRST: u32 = 2;
/// Numbers from here on have a port in them.
const FIRST_WITH_PORT: u32 = 0x04_0000;
/// The largest number: QPNs are 24 bits wide.
pub(crate) const LAST: u32 = 0xff_ffff;

/// Returns the port in a number, if a queue pair with this number can be dialled.
pub fn port_of(number: u32) -> Option<u16> {
    let dialled = (FIRST_WITH_PORT..=LAST).contains(&number) && number & 0xff < SLOTS;
    dialled.then(|| u16::try_from(number >> 8).unwrap_or_default())
}

/// The owner of a port that is part of the numbers of manually connected queue pairs.
pub(crate) trait QpPort: Send + Sync + fmt::Debug {
    fn number(&self) -> u16;

    /// A queue pair has this number from now on.
    fn admit(&self, qpn: u32);

    /// No queue pair has this number any more.
    fn dismiss(&self, qpn: u32);

    /// The queue pair with this number does not wait for a peer any more; it may do so again.
    fn forget(&self, qpn: u32);

    /// Keeps a secret for a queue pair until it is reset.
    fn keep_secret(&self, qpn: u32, secret: Secret);
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
    /// Numbers without a port that were given back, oldest first.
    plain: VecDeque<u32>,
    /// Free slots of all ports, oldest first.
    slots: VecDeque<Slot>,
}

/// A number with a port in it.
#[derive(Debug)]
struct Slot {
    value: u32,
    port: Arc<dyn QpPort>,
}

/// A number in use. Dropping it gives the number back.
#[derive(Debug)]
pub(crate) struct Number {
    value: u32,
    /// Boxed, because most queue pairs have none.
    slot: Option<Box<Slot>>,
    numbers: Arc<Numbers>,
}

impl Numbers {
    pub(crate) fn new() -> Arc<Self> {
        let free = Free { next: FIRST, plain: VecDeque::new(), slots: VecDeque::new() };
        Arc::new(Self { free: Mutex::new(free) })
    }

    /// A number for a queue pair that is connected by address.
    pub(crate) fn plain(self: &Arc<Self>) -> io::Result<Number> {
        let mut free = lock(&self.free);
        let value = if free.next < FIRST_WITH_PORT {
            free.next += 1;
            free.next - 1
        } else {
            free.plain.pop_front().ok_or_else(used_up)?
        };
        Ok(Number { value, slot: None, numbers: Arc::clone(self) })
    }

    /// A number for a manually connected queue pair. If no slot is free, `new_port` opens another port.
    pub(crate) fn with_port(
        self: &Arc<Self>,
        new_port: impl FnOnce() -> io::Result<Arc<dyn QpPort>>,
    ) -> io::Result<Number> {
        let mut free = lock(&self.free);
        if free.slots.is_empty() {
            let (port, order) = (new_port()?, shuffled()?);
            let first = u32::from(port.number()) << 8;
            free.slots.extend(
                order
                    .into_iter()
                    .map(|slot| Slot { value: first | u32::from(slot), port: Arc::clone(&port) }),
            );
        }
        let slot = free.slots.pop_front().ok_or_else(used_up)?;
        drop(free);
        slot.port.admit(slot.value);
        Ok(Number { value: slot.value, slot: Some(Box::new(slot)), numbers: Arc::clone(self) })
    }
}

impl Number {
    pub(crate) fn value(&self) -> u32 {
        self.value
    }

    /// The port in it.
    pub(crate) fn port(&self) -> Option<&dyn QpPort> {
        self.slot.as_ref().map(|slot| &*slot.port)
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        match self.slot.take() {
            Some(slot) => {
                slot.port.dismiss(self.value);
                lock(&self.numbers.free).slots.push_back(*slot);
            }
            None => lock(&self.numbers.free).plain.push_back(self.value),
        }
    }
}

/// The slots of a port in random order, so that one number does not reveal the next.
fn shuffled() -> io::Result<Vec<u8>> {
    let mut slots: Vec<u8> = (0..).take(SLOTS as usize).collect();
    let random: [u8; 8 * SLOTS as usize] = random()?;
    // Fisher-Yates shuffle. The remainder of 64 bits favours no slot by more than one part in 2^56.
    for (last, bits) in (1..slots.len()).rev().zip(random.as_chunks::<8>().0) {
        let to = u64::from_ne_bytes(*bits) % (last as u64 + 1);
        slots.swap(last, usize::try_from(to).unwrap_or(last));
    }
    Ok(slots)
}

fn used_up() -> io::Error {
    io::Error::other("all queue pair numbers are in use: destroy some queue pairs")
}
