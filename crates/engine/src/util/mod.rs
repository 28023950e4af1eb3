//! Building blocks without knowledge of sockets or queue pairs.

pub(crate) mod timers;
