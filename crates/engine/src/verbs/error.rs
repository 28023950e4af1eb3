//! The error of a connection that was not established.

use ironwarp_rnic::bug::Bug;
use ironwarp_rnic::connect::{Depths, StartupError};
use ironwarp_wire::private::{Reason, Unreadable, VERSION};
use std::io;
use std::sync::Arc;

/// Why a connection was not established.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The remote program rejected the connection.
    #[error("the peer rejected the connection{}", describe_private_data(.private_data))]
    Rejected {
        /// The private data of the rejection.
        private_data: Box<[u8]>,
        /// The IRD and ORD of the peer.
        depths: Depths,
    },
    /// The remote end refused a manual connection.
    #[error("the peer refused the connection: {0}")]
    Refused(Reason),
    /// The peer rejected the connection without a reason. All releases since version 2 of the private protocol give
    /// one.
    #[error(
        "the peer rejected the connection without a reason: it runs an older release of Ironwarp, whose private protocol is not version {VERSION}, or is not Ironwarp; run the same release on both ends"
    )]
    NoReason,
    /// The end that accepted did not prove that it knows the key.
    #[error(
        "the peer did not prove that it knows the key: set the same cluster key on both ends; or another process has its port"
    )]
    Unproven,
    /// The peer runs another release of Ironwarp.
    #[error("{0}")]
    OtherRelease(#[from] Unreadable),
    /// The startup frames do not match.
    #[error("startup with the peer failed: {0}")]
    Startup(#[from] StartupError),
    /// The peer closed the connection before it answered.
    #[error("the peer closed the connection before it answered: it may not speak MPA")]
    Closed,
    /// The TCP port belongs to a program that does not listen at the RDMA port.
    #[error("no listener at the RDMA port: its TCP port belongs to another program")]
    Elsewhere,
    /// The peer did not answer in time.
    #[error("the peer did not answer in time")]
    TimedOut,
    /// The program disconnected the queue pair before the connection was established.
    #[error("the queue pair was disconnected before it was connected")]
    GivenUp,
    /// A system call failed.
    #[error("{}{}", .0, hint(.0))]
    System(Arc<io::Error>),
    /// An argument is invalid.
    #[error("{0}")]
    InvalidArgument(#[from] ironwarp_rnic::connect::InvalidArgument),
    /// A bug in the adapter. Only this connection fails.
    #[error("{0}")]
    Bug(Bug),
    /// The queue pair is connected, or was connected since its last reset.
    #[error("{0}")]
    Connected(#[from] ironwarp_rnic::qp::AlreadyConnected),
}

impl From<io::Error> for ConnectError {
    fn from(error: io::Error) -> Self {
        Self::System(Arc::new(error))
    }
}

/// Returns an explanation to append to errors whose cause is not obvious.
fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => ": no listener at that address",
        io::ErrorKind::AddrNotAvailable => ": the address to connect from is not an address of this host",
        _ => "",
    }
}

/// Formats the private data of a rejection, which is usually text, to append it to the error message.
fn describe_private_data(private_data: &[u8]) -> String {
    match std::str::from_utf8(private_data) {
        Ok("") => String::new(),
        Ok(text) => format!(": {text:?}"),
        Err(_) => format!(" with {} bytes of private data", private_data.len()),
    }
}
