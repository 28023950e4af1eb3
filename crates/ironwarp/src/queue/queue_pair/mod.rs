//! Queue pairs.

mod builder;
mod info;
mod pair;
mod post;

pub use builder::QueuePairBuilder;
pub use info::QueuePairInfo;
pub use pair::QueuePair;
