//! The log of what goes wrong: one line on standard error for each failure, as much as IRONWARP_LOG asks for. The texts are those
//! of the adapter's own errors, which native programs see as well. What is added here is which object of the program failed.
//!
//! A failure is logged once: with the request that completes because of it, or else when the connection ends. Requests that
//! are flushed as a consequence are logged at level `info`.
//!
//! | file | for |
//! |---|---|
//! | `pairs` | queue pairs by number |
//! | `connections` | requests and connections |
//! | `calls` | calls that were refused |

mod calls;
mod connections;
mod pairs;

pub(crate) use calls::{log_no_management, log_no_netlink, log_refused_call, log_unsupported_call};
pub(crate) use connections::{
    ConnectionLog, Hex, log_connect_failure, log_failed_request, log_injected_faults, log_missing_qp,
    log_not_connected, log_not_posted, log_rejected_peer, vendor_err,
};
pub(crate) use pairs::{find as find_pair, forget as forget_pair, register as register_pair};
