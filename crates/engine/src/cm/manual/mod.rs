//! Connecting queue pairs manually: by the GID and the QPN of the peer, without a connection manager.
//!
//! ```text
//!  smaller (GID, number)                            larger (GID, number)
//!  dials from its GID ── Request with a hello ────▶ listens at its GID, at the port in its number
//!  until it works       ◀───────────────── Reply ── once it has been told the same two numbers and addresses
//! ```
//!
//! Both ends order the two alike, so exactly one dials. If they are equal, the queue pair is connected to itself. Nothing here
//! blocks: lanes dial, accept, and give up.
//!
//! | file | for |
//! |---|---|
//! | `port` | the port in the numbers of queue pairs, and hellos that come before their queue pair waits |
//! | `loopback` | a queue pair that is connected to itself |
//! | `attempt` | an attempt to connect one queue pair |
//! | `bring_up` | how an attempt begins |
//! | `judge` | whether the other end is the peer |
//! | `patience` | when an attempt is given up |

mod attempt;
mod bring_up;
mod error;
mod judge;
mod loopback;
mod patience;
pub(crate) mod port;

pub(crate) use bring_up::bring_up;
pub use error::BringUpError;
