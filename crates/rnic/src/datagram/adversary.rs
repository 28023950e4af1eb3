//! A link that loses datagrams, as the adversary chooses.

use super::link::{Arrived, DatagramLink, SendTo, Sent};
use crate::adversary::{Adversary, Choice, Sequence};
use crate::fault::Rng;
use crate::gid::Gid;
use crate::sync::{Mutex, lock};
use std::sync::Arc;
use std::time::Duration;

/// A link that passes datagrams on, and loses some of those that arrive.
#[derive(Debug)]
struct LossyLink {
    inner: Arc<dyn DatagramLink>,
    adversary: Arc<Adversary>,
    rng: Mutex<Rng>,
}

/// Has the adversary lose some of the datagrams that `inner` receives.
pub fn lose_datagrams(adversary: &Arc<Adversary>, inner: Arc<dyn DatagramLink>) -> Arc<dyn DatagramLink> {
    let rng = adversary.sequence(Sequence::Datagrams, adversary.next_number(Sequence::Datagrams));
    Arc::new(LossyLink { inner, adversary: Arc::clone(adversary), rng: Mutex::new(rng) })
}

impl DatagramLink for LossyLink {
    fn has_path(&self, from: Gid, to: Gid) -> bool {
        self.inner.has_path(from, to)
    }

    fn send(&self, from: Gid, to: SendTo, bytes: &[u8]) -> Sent {
        self.inner.send(from, to, bytes)
    }

    fn recv(&self, into: &mut [u8]) -> Option<Arrived> {
        loop {
            let arrived = self.inner.recv(into)?;
            if !self.adversary.draws_loss(&mut lock(&self.rng)) {
                return Some(arrived);
            }
            self.adversary.record(Choice::LostDatagram);
        }
    }

    fn lane(&self, arrived: Option<&Arrived>) -> u16 {
        self.inner.lane(arrived)
    }

    fn schedule(&self) {
        self.inner.schedule();
    }

    fn now(&self) -> Duration {
        self.inner.now()
    }

    fn schedule_after(&self, after: Duration) {
        self.inner.schedule_after(after);
    }
}
