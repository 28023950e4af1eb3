//! The error of a manual connection that cannot begin.

use ironwarp_rnic::connect::InvalidArgument;
use ironwarp_rnic::gid::Gid;
use ironwarp_rnic::qp::IllegalTransition;
use std::io;
use std::sync::Arc;

/// Why a queue pair cannot be connected manually.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BringUpError {
    /// Its number has no port in it.
    #[error("the queue pair's number has no port in it: create it for manual connection")]
    NoPort,
    /// The device has no port with this number.
    #[error("no port {0}: ports are numbered from 1")]
    NoSuchPort(u8),
    /// The GID belongs to no port of the device.
    #[error("{0} is not an address of this device")]
    OtherDevice(Gid),
    /// The GID table has no entry with this index.
    #[error("no GID with index {0}: its address went away, or never existed")]
    NoGid(usize),
    /// The GIDs cannot reach each other.
    #[error("{local} cannot reach {remote}: both ends need addresses of the same IP version")]
    OtherVersion {
        /// The local GID.
        local: Gid,
        /// The remote GID.
        remote: Gid,
    },
    /// The remote queue pair number is wider than 24 bits. A number that is not in use is noticed only when something
    /// is sent.
    #[error("invalid queue pair number {0:#x}: QPNs are 24 bits wide")]
    InvalidQpn(u32),
    /// The queue pair must be initialised, and not have been connected since.
    #[error(transparent)]
    State(#[from] IllegalTransition),
    /// A depth is out of range.
    #[error(transparent)]
    InvalidArgument(#[from] InvalidArgument),
    /// A system call failed, for example because the local GID is not an address of this host.
    #[error("{0}")]
    System(Arc<io::Error>),
}

impl From<io::Error> for BringUpError {
    fn from(error: io::Error) -> Self {
        Self::System(Arc::new(error))
    }
}
