//! An iSCSI initiator (RFC 7143) for queue pairs in iSCSI mode (requirement M13).
//!
//! A session begins with the login, on a plain socket: it authenticates the two ends with CHAP and negotiates the
//! parameters of the session. The socket becomes a queue pair afterwards.
//!
//! | to find | look in |
//! |---|---|
//! | the login: its exchanges, stages and limits | [`login()`] |
//! | what to ask for, and the result | [`Options`], [`Negotiated`] |
//! | authentication of the initiator and of the target | [`Credentials`] |
//! | what can go wrong | [`LoginError`] |
//!
//! ```no_run
//! use ironwarp_iscsi::{Credentials, DigestPolicy, Options, login};
//! use std::net::TcpStream;
//!
//! let options = Options::new("iqn.2026-01.example.host:backup", "iqn.2026-01.example.storage:disk1")
//!     .chap(Credentials::new("backup", b"a secret of 12 bytes or more")?)
//!     .data_digest(DigestPolicy::Require);
//! let mut stream = TcpStream::connect("192.0.2.1:3260")?;
//! let session = login(&mut stream, &options)?;
//! println!("bursts of up to {} bytes", session.max_burst);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod chap;
mod connection;
mod error;
mod login;
mod negotiation;
mod parameters;
mod random;
mod request;
mod scsi;
mod session;
mod task;
mod text;

pub use chap::{ChapError, Credentials, InvalidCredentials};
pub use error::{Error, LoginError, Status};
pub use login::{Stream, login};
pub use parameters::{DigestPolicy, Negotiated, Options};
pub use request::{Direction, Finished, Request, TaskId};
pub use scsi::{Capacity, Inquiry, ScsiError};
pub use session::Session;
pub use text::BadText;
