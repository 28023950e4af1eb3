//! Receive pools: arrays of elements of one size in registered memory (requirement P6).
//!
//! The *owner* of a pool advertises it and receives frames in its elements. The other end is its *sender*. Both ends of
//! a session own pools and send into those of the other. These types count elements only: memory and frames belong to
//! the driver.

mod bits;
mod error;
mod limits;
mod owner;
mod sender;
mod shape;

pub use error::PoolError;
pub use limits::{MAX_ELEMENT_SIZE, MAX_ELEMENTS, MAX_POOLS, MIN_ELEMENT_SIZE};
pub use owner::Owner;
pub use sender::{Sender, Slot};
pub use shape::Shape;
