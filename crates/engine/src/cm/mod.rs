//! Connection management: from an address, or a GID and a QPN, to a stream.
//!
//! | file | for |
//! |---|---|
//! | `exchange` | the bytes of a handshake |
//! | `handshake` | what the registry knows of a handshake, and of what it is for: traits |
//! | `incoming`, `listener`, `answer` | a handshake that a peer begins |
//! | `admission` | limits on handshakes that peers begin |
//! | `handshakes`, `accept` | the handshakes and listeners of one lane |
//! | `proof` | keys of manually connected queue pairs |
//! | `context` | what connection management needs of the adapter |
//! | `listen` | listening sockets |
//! | `dial` | a handshake that this end begins |
//! | `probe`, `search` | the listener of an RDMA port, which need not be at the TCP port of that number |
//! | [`manual`] | connecting queue pairs by GID and QPN |

mod accept;
mod admission;
mod answer;
pub(crate) mod context;
pub(crate) mod dial;
mod exchange;
mod handshake;
mod handshakes;
pub(crate) mod incoming;
pub(crate) mod listen;
mod listener;
pub(crate) mod manual;
mod probe;
pub(crate) mod proof;
pub(crate) mod search;
