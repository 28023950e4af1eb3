//! Connected queue pairs: their creation, state and posting.

mod builder;
mod info;
mod pair;
mod post;

pub use builder::QueuePairBuilder;
pub use info::QueuePairInfo;
pub use pair::QueuePair;
