//! Connects queue pairs manually: by the GID and the QPN of the peer, without a connection manager.
//!
//! ```text
//!  smaller (GID, number)                            larger (GID, number)
//!  dials from its GID ── Request with a hello ────▶ listens at its GID, at the port in its number
//!  until it succeeds    ◀───────────────── Reply ── once its program has named the same two queue pairs
//! ```
//!
//! Both ends compare the two (GID, number) pairs in the same way, so exactly one of them dials. If the pairs are equal,
//! the queue pair is connected to itself. No function here blocks: lanes dial, accept and time out.
//!
//! | file | for |
//! |---|---|
//! | `port` | the port in queue pair numbers, and hellos that arrive before their queue pair expects a peer |
//! | `loopback` | a queue pair that is connected to itself |
//! | `attempt` | an attempt to connect one queue pair |
//! | `bring_up` | how an attempt begins |
//! | `judge` | checks that the other end is the peer |
//! | `request_timeout` | when an attempt is given up |

mod attempt;
mod bring_up;
mod error;
mod judge;
mod loopback;
pub(crate) mod port;
mod request_timeout;

pub(crate) use bring_up::bring_up;
pub use error::BringUpError;
