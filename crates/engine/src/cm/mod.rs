//! Connection management: establishes connections by address, or by GID and QPN, as dialler and as listener.
//!
//! | file | for |
//! |---|---|
//! | `exchange` | the bytes of a handshake |
//! | `handshake` | traits of a handshake that this end begins, and of the queue pair that it connects |
//! | `incoming`, `listener`, `answer` | a handshake that a peer begins |
//! | `admission` | limits on handshakes that peers begin |
//! | `handshakes`, `accept` | the handshakes and listeners of one lane |
//! | `proof` | proofs that both ends of a manual connection know the same key |
//! | `context` | the state of connection management: settings, and the handshakes of all lanes |
//! | `listen` | listening sockets |
//! | `moving` | moving a listener to another process |
//! | `dial` | a handshake that this end begins |
//! | `probe`, `search` | finding the listener of an RDMA port, which need not be at the TCP port of that number |
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
mod moving;
mod probe;
pub(crate) mod proof;
pub(crate) mod search;
