//! The lanes of an adapter, and which of them serves what (requirement I7).

mod lanes;
mod rebalance;
#[cfg(test)]
mod tests;

pub use lanes::{MoveError, NoSuchLane, Steering};
