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

pub(crate) use calls::{no_management, no_netlink, refused, unsupported};
pub(crate) use connections::{
    ConnectionLog, Hex, connect_failed, injected_faults, needs_managed_qp, not_connected, not_posted,
    rejected_peer, request_failed, vendor_err,
};
pub(crate) use pairs::{find as find_pair, forget as forget_pair, register as register_pair};
