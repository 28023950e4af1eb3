//! Bringing a queue pair up by hand: with the GID and the number of the other one, and no connection manager. Before this:
//! the number has a port in it (`qpn.rs`), and the program has told its peer that number and a GID; after: a connection
//! like any other.
//!
//! ```text
//!  smaller (GID, number)                            larger (GID, number)
//!  dials from its GID ── Request with a hello ────▶ listens at its GID, at the port in its number
//!  until it works       ◀───────────────── Reply ── once it has been told the same two numbers and addresses
//! ```
//!
//! Both ends order the two alike, so exactly one dials. If they are equal, the queue pair is connected to itself. Nothing
//! here waits: lanes dial, accept, and give up. `attempt.rs` has one queue pair on its way up, `itself.rs` one that is its
//! own peer; `judge.rs` decides whether the other end is the peer, with the keys and proofs of `proof.rs`.

mod attempt;
mod itself;
mod judge;
mod proof;

pub(crate) use attempt::{BringUp, Reminder};
pub(crate) use itself::ToItself;
pub(crate) use proof::{Key, cluster_key};

use crate::engine::Engine;
use crate::gid::Gid;
use crate::lane::{Due, Job};
use crate::pair::QueuePair;
use crate::sys::random::random;
use ironwarp_rnic::connect::Misuse;
use ironwarp_rnic::qp::{IllegalTransition, Retries, State};
use ironwarp_wire::private::Secret;
use std::io;
use std::sync::Arc;
use std::time::Instant;

/// The other queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Remote {
    /// Where it is.
    pub gid: Gid,
    /// Its number.
    pub qpn: u32,
}

/// Which of its addresses this end uses. The peer must have been told the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Local {
    /// The GID with this index in the [table](crate::gid::GidTable).
    Index(usize),
    /// This one: an address of the host that need not be in the table, such as 127.0.0.2.
    Gid(Gid),
}

/// What a queue pair that is brought up by hand is told besides its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BringUpOptions {
    /// The address of this end.
    pub local: Local,
    /// How many of the peer's Reads and atomics to hold (max_dest_rd_atomic); the adapter's setting if not given.
    pub ird: Option<u16>,
    /// How many Reads and atomics to have outstanding (max_rd_atomic); the adapter's setting if not given.
    pub ord: Option<u16>,
    /// What the program thinks of the path. TCP knows better: it is reported, and nothing else.
    pub path_mtu: Option<u32>,
    /// The packet sequence number that the program expects of the peer (rq_psn). It is compared with what the peer's program
    /// begins with, and has no other use.
    pub receive_psn: Option<u32>,
}

impl Default for BringUpOptions {
    /// From GID 0, with the adapter's depths.
    fn default() -> Self {
        Self { local: Local::Index(0), ird: None, ord: None, path_mtu: None, receive_psn: None }
    }
}

/// Why a queue pair cannot be brought up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BringUpError {
    /// Its number does not say where it is.
    #[error("the queue pair's number has no port in it: create it as one that is brought up by hand")]
    NoPort,
    /// The table has nothing there.
    #[error("there is no GID with index {0}: its address went away, or was never there")]
    NoGid(usize),
    /// The GIDs cannot reach each other.
    #[error("{local} cannot reach {remote}: both ends need addresses of the same IP version")]
    OtherVersion {
        /// This end's.
        local: Gid,
        /// The peer's.
        remote: Gid,
    },
    /// The number cannot be a queue pair's. One that nobody has is found out when something is sent.
    #[error("invalid queue pair number {0:#x}: QPNs are 24 bits wide")]
    NotDialled(u32),
    /// It is not the time for it: it must be initialised, and not have been brought up since.
    #[error(transparent)]
    State(#[from] IllegalTransition),
    /// A depth is out of range.
    #[error(transparent)]
    Misuse(#[from] Misuse),
    /// The operating system says no, for example because the local GID is not an address of this host.
    #[error("{0}")]
    System(#[from] io::Error),
}

impl Engine {
    /// Moves an initialised queue pair to [`State::ReadyToReceive`], and begins to connect it to one that is told the same
    /// about this one. The queue pair tells when that is done; it may be ready to send before. How long requests then wait for
    /// the peer, and what it is told of receives that are not posted, is in the queue pair's retries.
    pub fn bring_up(
        self: &Arc<Self>,
        pair: &Arc<QueuePair>,
        remote: Remote,
        options: &BringUpOptions,
    ) -> Result<(), BringUpError> {
        let port = pair.number().port().ok_or(BringUpError::NoPort)?;
        let (from, to) = (pair.qp().state(), State::ReadyToReceive);
        if !from.may_become(to) {
            return Err(IllegalTransition { from, to }.into());
        }
        let up = Arc::new(BringUp::new(self, pair, remote, options)?);
        let first = up.prepare(self, pair, port)?;
        // Whatever can be wrong has been found. What comes from the peer shall find it ready.
        pair.qp().modify(to)?;
        pair.set_bring_up(&up);
        port.expect(&up);
        up.start(self, first);
        Ok(())
    }

    pub(crate) fn remind(&self, at: Instant, reminder: Reminder) {
        if let Err(error) = self.submit(Job::Remind(at, Due::ByHand(reminder))) {
            tracing::error!(%error, "no lane");
        }
    }
}

impl QueuePair {
    /// How often and how long it tries, from now on.
    pub fn set_retries(&self, retries: Retries) {
        self.qp().set_retries(retries);
        if let Some(up) = self.bring_up() {
            up.patience_changed();
        }
    }

    /// The packet sequence number that the program begins with (sq_psn): see [`BringUpOptions::receive_psn`].
    pub fn set_send_psn(&self, psn: u32) {
        if let Some(up) = self.bring_up() {
            up.set_send_psn(psn);
        }
    }

    /// A new secret to be exchanged with its peer. `None`: it cannot be connected by GID and number.
    pub fn new_secret(&self) -> Option<Secret> {
        self.number().port()?;
        random().ok().map(Secret)
    }

    /// Keeps a secret that its peer has, too, until it is reset: both then prove that they know it. False: it cannot be connected by
    /// GID and number, so the secret is of no use.
    pub fn keep_secret(&self, secret: Secret) -> bool {
        let port = self.number().port();
        if let Some(port) = port {
            port.keep_secret(self.number().value(), secret);
        }
        port.is_some()
    }

    /// The queue pair that it was told to connect to.
    pub fn remote(&self) -> Option<Remote> {
        self.bring_up().map(|up| up.remote())
    }

    /// What it was told besides.
    pub fn bring_up_options(&self) -> Option<BringUpOptions> {
        self.bring_up().map(|up| *up.options())
    }

    /// It is not to be brought up any more; true: it was still on its way. After this it can be told something else.
    pub(crate) fn end_bring_up(&self) -> bool {
        if let Some(port) = self.number().port() {
            port.forget(self.number().value());
        }
        self.take_bring_up().is_some_and(|up| up.cancel())
    }
}
