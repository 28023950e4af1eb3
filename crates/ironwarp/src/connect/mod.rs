//! Connections: listeners, and how queue pairs connect.

mod listener;
mod manual;
mod options;
mod queue_pair;

pub use listener::{Incoming, Listener};
pub use manual::BringUpOptions;
pub use options::{AcceptOptions, ConnectOptions};
