//! What this process has sent and received over all of its adapters: the counters of a port.
//!
//! The stream path counts nothing. The kernel counts for each connection, and its last figures are kept when a connection is closed.

use super::counters;
use super::fork;
use super::socket::tcp_counters;

pub use super::counters::Traffic;

/// Returns the traffic of this process, and asks the kernel for that of each open connection. A connection that is closed during the
/// call may be counted twice in this result.
pub fn of_process() -> Traffic {
    let mut sum = counters::kept();
    fork::registered().for_each(|fd| sum += tcp_counters(fd).into());
    sum
}
