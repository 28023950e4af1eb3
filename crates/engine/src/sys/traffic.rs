//! The traffic of this process over all of its adapters, which programs see as the counters of the RDMA port.
//!
//! The data path of streams counts nothing: the kernel has counters for each TCP connection. When a connection is
//! closed, its counters are added to totals (`counters.rs`). Traffic in shared memory is counted where it is locked anyway.

use super::counters;
use super::fork;
use super::socket::tcp_counters;

pub use super::counters::Traffic;

/// Returns the traffic of this process: the totals, and the counters of each open connection. A connection
/// that is closed during the call may be missing from the result, or be counted twice.
pub fn of_process() -> Traffic {
    let mut sum = counters::totals();
    fork::registered().for_each(|fd| sum += tcp_counters(fd).into());
    sum
}
