//! Assigns queue pair numbers (QPNs): 24 bits each, unique while in use. A number that was released is assigned again
//! as late as possible, because a peer may still send to the queue pair that had it.
//!
//! | number | for |
//! |---|---|
//! | below 0x040000 | queue pairs that are connected by address: these numbers contain no port |
//! | port · 256 + slot, slots 0 to 239 | manually connected queue pairs: a peer that knows number and GID can dial |
//! | port · 256 + 255 | connectionless queue pairs: the port is a UDP port ([`qpn_of_port`](ironwarp_rnic::datagram::qpn_of_port)) |
//!
//! Ports are 1024 and above, so the kinds do not overlap. Numbers 0 and 1 are never used: InfiniBand reserves them.

use crate::sys::random::random;
use ironwarp_rnic::sync::lock;
use ironwarp_wire::private::Secret;
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

#[cfg(test)]
mod tests;

/// Maximum number of queue pairs that share a port.
pub const SLOTS: u32 = 240;

/// The smallest QPN: InfiniBand reserves 0 and 1.
const MIN_QPN: u32 = 2;
/// The smallest QPN that contains a port.
const MIN_QPN_WITH_PORT: u32 = 0x04_0000;
/// The largest QPN, of 24 bits.
pub(crate) const MAX_QPN: u32 = 0xff_ffff;

/// Returns the TCP port that a number contains; `None` if no queue pair with this number can be dialled.
pub fn port_of(number: u32) -> Option<u16> {
    let can_be_dialled = (MIN_QPN_WITH_PORT..=MAX_QPN).contains(&number) && number & 0xff < SLOTS;
    can_be_dialled.then(|| u16::try_from(number >> 8).unwrap_or_default())
}

/// A TCP port that is part of queue pair numbers. It knows the queue pairs that have such a number.
pub(crate) trait QpPort: Send + Sync + fmt::Debug {
    /// Returns the port number.
    fn number(&self) -> u16;

    /// Records that a queue pair has this number.
    fn assign_number(&self, qpn: u32);

    /// Records that no queue pair has this number any more, and refuses the peers that wait for it.
    fn release_number(&self, qpn: u32);

    /// Records that the queue pair with this number does not expect a peer any more, and drops its secret. The queue
    /// pair may expect a peer again later.
    fn stop_expecting(&self, qpn: u32);

    /// Stores a secret of a queue pair until the queue pair is reset or disconnected.
    fn keep_secret(&self, qpn: u32, secret: Secret);
}

/// The queue pair numbers of an adapter.
#[derive(Debug)]
pub(crate) struct Numbers {
    free: Mutex<Free>,
}

/// Numbers that are not in use.
#[derive(Debug)]
struct Free {
    /// The smallest number without a port that was never assigned.
    next: u32,
    /// Numbers without a port that were released, the first released first.
    plain: VecDeque<u32>,
    /// Free numbers with a port, the first released first.
    slots: VecDeque<Slot>,
}

/// A number that contains a port.
#[derive(Debug)]
struct Slot {
    value: u32,
    port: Arc<dyn QpPort>,
}

/// A number in use. Dropping it releases the number.
#[derive(Debug)]
pub(crate) struct Number {
    value: u32,
    /// The port of the number; `None` if it contains none. Boxed, because most numbers contain none.
    slot: Option<Box<Slot>>,
    numbers: Arc<Numbers>,
    /// The number belongs to another queue pair now.
    has_moved: AtomicBool,
}

impl Numbers {
    /// Creates the numbers of an adapter, none of which is in use.
    pub(crate) fn new() -> Arc<Self> {
        let free = Free { next: MIN_QPN, plain: VecDeque::new(), slots: VecDeque::new() };
        Arc::new(Self { free: Mutex::new(free) })
    }

    /// Assigns a number without a port, for a queue pair that is connected by address.
    pub(crate) fn assign_plain(self: &Arc<Self>) -> io::Result<Number> {
        let mut free = lock(&self.free);
        let value = if free.next < MIN_QPN_WITH_PORT {
            free.next += 1;
            free.next - 1
        } else {
            free.plain.pop_front().ok_or_else(none_left)?
        };
        Ok(Number { value, slot: None, numbers: Arc::clone(self), has_moved: AtomicBool::new(false) })
    }

    /// Assigns this number without a port to a queue pair that moved here (requirement X2). Fails if it is in use, or
    /// contains a port.
    pub(crate) fn claim_plain(self: &Arc<Self>, value: u32) -> io::Result<Number> {
        let mut free = lock(&self.free);
        if let Some(at) = free.plain.iter().position(|known| *known == value) {
            free.plain.remove(at);
        } else if (free.next..MIN_QPN_WITH_PORT).contains(&value) {
            let skipped = free.next..value;
            free.plain.extend(skipped);
            free.next = value + 1;
        } else {
            let taken = format!("queue pair number {value:#08x} is in use here, or contains a port");
            return Err(io::Error::new(io::ErrorKind::AddrInUse, taken));
        }
        Ok(Number { value, slot: None, numbers: Arc::clone(self), has_moved: AtomicBool::new(false) })
    }

    /// Assigns a number with a port, for a queue pair that can be dialled. If no such number is free, `new_port`
    /// reserves another port.
    pub(crate) fn assign_with_port(
        self: &Arc<Self>,
        new_port: impl FnOnce() -> io::Result<Arc<dyn QpPort>>,
    ) -> io::Result<Number> {
        let mut free = lock(&self.free);
        if free.slots.is_empty() {
            let (port, order) = (new_port()?, shuffle_slots()?);
            let first = u32::from(port.number()) << 8;
            free.slots.extend(
                order
                    .into_iter()
                    .map(|slot| Slot { value: first | u32::from(slot), port: Arc::clone(&port) }),
            );
        }
        let slot = free.slots.pop_front().ok_or_else(none_left)?;
        drop(free);
        slot.port.assign_number(slot.value);
        Ok(Number {
            value: slot.value,
            slot: Some(Box::new(slot)),
            numbers: Arc::clone(self),
            has_moved: AtomicBool::new(false),
        })
    }
}

impl Number {
    /// Returns the number itself.
    pub(crate) fn value(&self) -> u32 {
        self.value
    }

    /// Returns this number for another queue pair, which releases it. Only for a number without a port.
    pub(crate) fn pass_on(&self) -> Self {
        self.has_moved.store(true, Ordering::Relaxed);
        Self {
            value: self.value,
            slot: None,
            numbers: Arc::clone(&self.numbers),
            has_moved: AtomicBool::new(false),
        }
    }

    /// Returns the port that the number contains, if any.
    pub(crate) fn port(&self) -> Option<&dyn QpPort> {
        self.slot.as_ref().map(|slot| &*slot.port)
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        match self.slot.take() {
            Some(slot) => {
                slot.port.release_number(self.value);
                lock(&self.numbers.free).slots.push_back(*slot);
            }
            None if *self.has_moved.get_mut() => {}
            None => lock(&self.numbers.free).plain.push_back(self.value),
        }
    }
}

/// Returns the slots of a port in random order, so that one number does not reveal the next.
fn shuffle_slots() -> io::Result<Vec<u8>> {
    let mut slots: Vec<u8> = (0..).take(SLOTS as usize).collect();
    let random: [u8; 8 * SLOTS as usize] = random()?;
    // Fisher-Yates shuffle. The remainder of a 64-bit number prefers no slot by more than one part in 2^56.
    for (last, bits) in (1..slots.len()).rev().zip(random.as_chunks::<8>().0) {
        let to = u64::from_ne_bytes(*bits) % (last as u64 + 1);
        slots.swap(last, usize::try_from(to).unwrap_or(last));
    }
    Ok(slots)
}

/// Returns the error if all numbers are in use.
fn none_left() -> io::Error {
    io::Error::other("all queue pair numbers are in use: destroy some queue pairs")
}
