//! Connecting: listeners, connection requests, and the methods of queue pairs that connect and disconnect.

mod listener;
mod options;
mod queue_pair;

pub use listener::{Incoming, Listener};
pub use options::{AcceptOptions, BringUpOptions, ConnectOptions};
