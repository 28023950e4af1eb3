//! Hands a whole function over to another process of the same host and user (requirement X2, docs/functions.md).
//!
//! This is the protocol alone. What a function consists of is behind two traits: the process that gives it away implements
//! [`Source`] and calls [`hand_over`]; the process that takes it implements [`Target`] and calls [`take_over`]. Both have
//! one end of a Unix socket of type SEQPACKET.
//!
//! ```text
//!  source                                target
//!    │  HELLO ──────────▶ ◀────────── HELLO │     versions, limits, a pidfd of the sender
//!    │  COPY ───────────▶ ◀───────── COPIED │     descriptors, in batches
//!    │  PREPARE ────────▶ ◀── READY/REFUSED │     the target claims numbers and tags
//!  freeze                                   │
//!    │  COPY ───────────▶ ◀───────── COPIED │     descriptors of objects that are new
//!    │  OFFER ──────────▶                 load    the snapshot
//!    │                    ◀── TAKEN/REFUSED │     TAKEN was sent: the target owns the function
//!  release                               activate
//! ```
//!
//! There is never more than one owner, whatever process is stopped or killed, and whenever:
//!
//! - The successful send of TAKEN is the commit point. Before it the target does not act; the source is frozen until it knows.
//! - A source that does not want to wait any longer closes its receiving direction, and then looks into its queue. The kernel
//!   does this under one lock: either TAKEN is in the queue, or the target's send fails with EPIPE.
//! - A source that keeps its function sends REFUSED before it thaws. So a target whose TAKEN failed takes over if, and only
//!   if, the source is dead and has not sent REFUSED: then it died frozen, and the snapshot is exact.
//!
//! | module | for |
//! |---|---|
//! | `message` | the messages as bytes |
//! | `error` | what went wrong, and who owns the function |
//! | `name` | what a descriptor is for |
//! | `wait` | waits with deadlines |
//! | `channel` | the socket |
//! | `state` | the snapshot in an offer |
//! | `source`, `target` | the two ends |
//! | [`host`] | the same between two hosts |

mod channel;
mod error;
pub mod host;
mod message;
mod name;
mod source;
mod state;
mod target;
mod wait;

pub use error::{Failure, HandOverError, Owner, Refusal};
pub use message::{
    Hello, MAX_BATCH, MAX_INLINE, MAX_MESSAGE, MAX_NAME, MAX_REASON, Malformed, Message, Offer, Role, VERSION,
};
pub use name::Name;
pub use source::{HandedOver, Named, Source, SourceOptions, SourceStep, hand_over};
pub use target::{TakenOver, Target, TargetOptions, TargetStep, take_over};
