//! Data structures that know nothing of sockets or queue pairs.

pub(crate) mod timers;
