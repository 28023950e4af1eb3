//! Moves a whole function to another host (requirement X2, docs/functions.md). The two processes are joined by a pair of
//! pipes, usually the standard input and output of `ssh`.
//!
//! What travels is what [`hand_over`](super::hand_over) passes on one host: the same snapshot, but contents in the place of
//! descriptors. Buffers are copied while the function runs, and again where they have changed; TCP connections travel as
//! [images](crate::sys::tcp_repair::TcpImage), and the address as the [fence](crate::sys::fence).
//!
//! ```text
//!  source                                  target
//!    │  HELLO, PROOF ──────▶ ◀── HELLO, PROOF │   versions, limits, nonces: both hold the same cluster key
//!    │  ADDRESS ───────────▶                  │   the target prepares its interface
//!    │  BUFFER, PAGES ─────▶                  │   contents of memory, in rounds
//!    │  PREPARE ───────────▶ ◀─ READY/REFUSED │
//!  freeze, remove the addresses, dump         │
//!    │  BUFFER, PAGES ─────▶                  │   what has changed since
//!    │  LISTENER, STATE ───▶                  │   listeners, connections, snapshot, bytes of the program
//!    │  OFFER ─────────────▶                load
//!    │                     ◀─ LOADED/REFUSED  │
//!    │  COMMIT ────────────▶               add the addresses, activate
//!    │                     ◀────────── TAKEN  │
//!  release
//! ```
//!
//! There is never more than one owner. Pipes do not tell whether the other end has read a message, so the commit point
//! differs from that on one host: **the source commits, by writing COMMIT.** Before, the target does nothing that the peers could
//! notice, however long it waits; if the pipe ends, it drops everything. Afterwards, the source never acts again, even if no
//! TAKEN arrives. So if the path between the hosts fails while COMMIT is on its way, the function is lost; it never runs twice.
//!
//! | module | for |
//! |---|---|
//! | `message` | the messages as bytes |
//! | `proof` | how each end proves that it holds the cluster key |
//! | `pipe` | the two pipes |
//! | `greeting` | versions, limits and proofs |
//! | `pages` | the contents of buffers |
//! | `source`, `target` | the two ends |

mod greeting;
mod message;
mod pages;
mod pipe;
mod proof;
mod source;
mod target;

/// For fuzz tests: reads the message in a frame, and panics unless it survives encoding and decoding. Returns whether it is one.
pub(crate) fn check_frame(frame: &[u8]) -> bool {
    let Ok((head, payload)) = message::Head::decode(frame) else { return false };
    let again = head.encode(payload);
    let prefix = again.first_chunk().expect("a frame has a prefix");
    assert_eq!(message::Head::frame_len(*prefix), Ok(again.len()));
    assert_eq!(message::Head::decode(&again), Ok((head, payload)));
    true
}

pub use source::{HostSource, hand_over_to_host};
pub use target::{HostTarget, HostTargetOptions, take_over_from_host};
