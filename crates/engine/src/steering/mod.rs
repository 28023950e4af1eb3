//! Steering: starts the lanes of an adapter, and decides which lane serves which connection (requirement I7).

mod lanes;
mod processors;
mod rebalance;
#[cfg(test)]
mod tests;

pub use lanes::{MoveError, NoSuchLane, Steering};
pub use processors::NoLaneWithin;
