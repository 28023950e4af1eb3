//! Logs failures: one line on standard error for each, and after the first of a queue pair its last events, depending on the level that IRONWARP_LOG sets. The texts are
//! those of the adapter's own errors, which native programs see as well. The functions here add which object of the
//! program failed.
//!
//! The cause of a failure is logged once at level `warn`: with the request that failed because of it, or, if there is
//! none, when the connection ends. Requests that are flushed as a consequence are logged at level `info`.
//!
//! | file | for |
//! |---|---|
//! | `pairs` | finding queue pairs by number |
//! | `connections` | failures of requests and connections |
//! | `calls` | calls that failed |

mod calls;
mod connections;
mod pairs;

pub(crate) use calls::{log_no_management, log_no_netlink, log_refused_call, log_unsupported_call};
pub(crate) use connections::{
    ConnectionLog, Hex, log_adversary, log_connect_failure, log_failed_request, log_injected_faults,
    log_missing_qp, log_not_connected, log_not_posted, log_rejected_peer, vendor_err,
};
pub(crate) use pairs::{find as find_pair, forget as forget_pair, register as register_pair};
