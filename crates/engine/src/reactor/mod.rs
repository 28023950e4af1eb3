//! The event loop: lanes, the poll sets they serve, and threads of the program that sleep.
//!
//! | file | for |
//! |---|---|
//! | `class`, `shares` | classes of completion handlers, and turns in proportion to their shares |
//! | `source`, `member` | what a lane and a poll set know of the things they serve: traits |
//! | `command` | what other threads ask of a lane |
//! | `handle` | the side of a lane that all threads may use |
//! | `waiters` | threads that sleep until a completion queue has something |
//! | `poll_set` | the sockets that one completion queue has on one lane |
//! | `lane` | a lane and its poll sets |
//! | `thread` | the lane's thread |

pub(crate) mod class;
pub(crate) mod command;
pub(crate) mod handle;
pub(crate) mod lane;
pub(crate) mod member;
pub(crate) mod poll_set;
mod shares;
pub(crate) mod source;
#[cfg(test)]
mod tests;
pub(crate) mod thread;
pub(crate) mod waiters;
