//! Steering: starts the lanes of an adapter, and decides which lane serves which connection (requirement I7).

mod lanes;
mod leaving;
mod processors;
mod rebalance;
#[cfg(test)]
mod tests;

pub use lanes::{MoveError, NoSuchLane, Steering};
pub(crate) use leaving::Leaving;
pub use leaving::{LeaveError, LeaveFailure};
pub use processors::NoLaneWithin;
