//! Settings of a session.

use crate::auth::Key;
use crate::message::{HostName, Mac, Mode, Nonce};
use crate::pool::{MAX_POOLS, PoolError, Shape};
use std::time::Duration;

/// Maximum number of pools that a session registers at its start.
const MAX_INITIAL: usize = 16;

/// Settings of one end.
#[derive(Clone, Debug)]
pub struct Config {
    /// Pools to advertise at the start. In Send mode, only those with the largest elements are used.
    pub pools: Vec<Shape>,
    /// Maximum number of own pools, including those that the peer asks for.
    pub max_pools: usize,
    /// Number of requests that the send queue of the data channel holds: at least 2.
    pub send_queue: usize,
    /// Time limit for answers of the peer.
    pub reply_limit: Duration,
    /// Offloads that this end supports.
    pub offloads: u32,
    /// MTU of the LAN. Only the unit's counts.
    pub mtu: u32,
}

impl Default for Config {
    /// 256 elements of 2 KiB for ordinary frames, and 32 of 68 KiB for those of segmentation offload.
    fn default() -> Self {
        Self {
            pools: vec![Shape { count: 256, element_size: 2048 }, Shape { count: 32, element_size: 69_632 }],
            max_pools: 8,
            send_queue: 256,
            reply_limit: Duration::from_secs(5),
            offloads: 0,
            mtu: 1500,
        }
    }
}

/// Settings that a session cannot have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidConfig {
    /// A pool is outside of the limits.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// Too few or too many pools.
    #[error(
        "{pools} initial pools of at most {max_pools}: expected 1 to {MAX_INITIAL} of at most {MAX_POOLS}"
    )]
    Pools {
        /// Initial pools.
        pools: usize,
        /// Maximum of pools.
        max_pools: usize,
    },
    /// The send queue is too short for a Write and its indication.
    #[error("send queue of {0} requests is too short: at least 2 are needed")]
    SendQueue(usize),
    /// A host needs 1 to 16 valid MAC addresses.
    #[error("expected 1 to 16 MAC addresses, none of them zero or a group address")]
    Macs,
}

impl Config {
    pub(super) fn check(&self) -> Result<(), InvalidConfig> {
        let (pools, max_pools) = (self.pools.len(), self.max_pools);
        if !(1..=MAX_INITIAL).contains(&pools) || !(pools..=MAX_POOLS).contains(&max_pools) {
            return Err(InvalidConfig::Pools { pools, max_pools });
        }
        if self.send_queue < 2 {
            return Err(InvalidConfig::SendQueue(self.send_queue));
        }
        (0..).zip(&self.pools).try_for_each(|(index, shape)| shape.check(index))?;
        Ok(())
    }

    /// Returns the shapes that are used in a mode, smallest elements first.
    pub(super) fn shapes(&self, mode: Mode) -> Vec<Shape> {
        let mut shapes = self.pools.clone();
        shapes.sort_by_key(|shape| shape.element_size);
        if mode == Mode::Send {
            let largest = shapes.last().map(|shape| shape.element_size);
            shapes.retain(|shape| Some(shape.element_size) == largest);
        }
        shapes
    }
}

/// Who a host is.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Name of the host.
    pub name: HostName,
    /// Its MAC addresses: 1 to 16.
    pub macs: Vec<Mac>,
    /// The key that it shares with the unit.
    pub key: Key,
    /// How frames travel.
    pub mode: Mode,
    /// A random number that was never used before.
    pub nonce: Nonce,
}

impl Identity {
    pub(super) fn check(&self) -> Result<(), InvalidConfig> {
        let valid = (1..=16).contains(&self.macs.len()) && self.macs.iter().all(|mac| mac.is_valid());
        if valid { Ok(()) } else { Err(InvalidConfig::Macs) }
    }
}
