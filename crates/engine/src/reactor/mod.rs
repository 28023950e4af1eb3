//! The event loop: lanes (threads of the adapter), the poll sets they serve, and threads of the program that wait for
//! completions.
//!
//! | file | for |
//! |---|---|
//! | `class`, `shares` | classes of completion handlers, and a backlog that is divided among them |
//! | `source`, `member`, `carrier` | traits of the things that lanes and poll sets serve |
//! | `fine_timers` | timers that are exact to some microseconds |
//! | `command` | commands that other threads send to a lane |
//! | `handle` | state of a lane that all threads may use |
//! | `waiters` | threads of the program that sleep until a completion queue has a completion |
//! | `poll_set` | the sockets that one completion queue has on one lane |
//! | `lane` | a lane and its poll sets |
//! | `thread` | the lane's thread |

pub(crate) mod carrier;
pub(crate) mod class;
#[cfg(test)]
mod class_tests;
pub(crate) mod command;
pub(crate) mod fine_timers;
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
