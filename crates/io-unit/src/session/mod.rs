//! The state machine of one session, at the host and at the unit (requirements P4, P5 and P9).
//!
//! It does no I/O and holds no frames. The driver has two connected queue pairs and calls
//!
//! | when | call |
//! |---|---|
//! | a Send has arrived | [`Session::receive`] |
//! | a Write with Immediate has arrived | [`Session::immediate`] |
//! | a request on either channel has completed | [`Session::completed`] |
//! | the application hands over a frame, or asks whether it may | [`Session::send`], [`Session::ready`] |
//! | the application has finished with a received frame | [`Session::release`] |
//! | a connection is lost | [`Session::disconnected`] |
//! | time passes, at least once a second | [`Session::tick`] |
//!
//! and after each call executes all actions that [`Session::next_action`] returns, in order. Frames that arrive are in
//! elements of registered memory, which actions name by pool and element; frames that leave are named by a number that
//! the driver chooses.
//!
//! # Rules for the driver
//! - Requests complete in RDMA mode when they are acknowledged, and in Send mode when they are sent.
//! - The control channel needs posted receives of [`MAX_MESSAGE`](crate::message::MAX_MESSAGE) bytes. So does the data
//!   channel for its first message, the Join or the reply to it. After that, it needs receives of
//!   [`SEND_DATA_HEADER`](crate::message::SEND_DATA_HEADER) + [`MAX_INLINE_FRAME`](crate::message::MAX_INLINE_FRAME)
//!   bytes in RDMA mode; in Send mode, [`Action::PostReceive`] names them.
//! - Pass everything that the data channel has completed before a message of the control channel: a FlushReply must
//!   not overtake the frames that it follows.
//! - In RDMA mode, post the data channel's receives again as soon as they were passed on. A message that finds none waits
//!   in the adapter, and its sender with it.
//! - A unit that forwards a frame from one session to another can send it from the element in which it arrived, and
//!   release that element when the request has completed.
//! - The memory of a session has a protection domain of its own, so that no other host can use its tags.
//!
//! # A data channel finds its session
//! The first message of a data channel is a Join. The unit's driver decodes it with [`join_request`] and passes it to
//! [`Session::join`] of the session that it names. If that fails, close the data channel alone: the session goes on.
//!
//! # The loop of a driver
//! ```
//! use ironwarp_io_unit::auth::Key;
//! use ironwarp_io_unit::message::{HostName, Mac, Message, Mode, Nonce, Request};
//! use ironwarp_io_unit::session::{Action, Channel, Config, Identity, Session};
//! use std::time::Duration;
//!
//! let identity = Identity {
//!     name: HostName::new("left")?,
//!     macs: vec![Mac([2, 0, 0, 0, 0, 1])],
//!     key: Key::new(b"a secret of 32 random bytes, or so")?,
//!     mode: Mode::Rdma,
//!     nonce: Nonce([0x42; 16]), // a random number
//! };
//! let mut host = Session::host(Config::default(), identity, Duration::ZERO)?;
//! let mut posted = Vec::new();
//! while let Some(action) = host.next_action() {
//!     match action {
//!         Action::Post { channel: Channel::Control, message } => posted.push(message),
//!         other => unreachable!("a host asks for a nonce first, not {other:?}"),
//!     }
//! }
//! assert_eq!(Message::decode(&posted[0])?, (1, Message::Request(Request::Challenge)));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod action;
mod attach;
mod buffers;
mod channel;
mod config;
mod data;
mod error;
mod grants;
mod receive;
mod requests;
mod state;

pub use action::{Action, Frame};
pub use attach::join_request;
pub use channel::Channel;
pub use config::{Config, Identity, InvalidConfig};
pub use error::{Blocked, Reason, Violation};
pub use state::Session;
