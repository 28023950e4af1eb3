//! Why a connection was not established.

use ironwarp_rnic::bug::Bug;
use ironwarp_rnic::connect::{Depths, StartupError};
use ironwarp_wire::private::{Reason, Unreadable, VERSION};
use std::io;

/// Why a connection was not established.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The remote program rejected the connection.
    #[error("the peer rejected the connection{}", words(.private_data))]
    Rejected {
        /// Its private data.
        private_data: Box<[u8]>,
        /// Its read depths.
        depths: Depths,
    },
    /// The remote queue pair, which is connected manually, refused this one.
    #[error("the peer refused the connection: {0}")]
    Refused(Reason),
    /// The peer rejected the connection without a reason. All releases since version 2 of the private protocol give one.
    #[error(
        "the peer rejected the connection without a reason: it runs an older release of Ironwarp, whose private protocol is not version {VERSION}, or is not Ironwarp; run the same release on both ends"
    )]
    NoReason,
    /// The peer that accepted does not know the key.
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
    /// Another program has the TCP port.
    #[error("no listener at the RDMA port: its TCP port belongs to another program")]
    Elsewhere,
    /// The peer did not answer in time.
    #[error("the peer did not answer in time")]
    TimedOut,
    /// The program disconnected the queue pair first.
    #[error("the queue pair was disconnected before it was connected")]
    GivenUp,
    /// A system call failed.
    #[error("{}{}", .0, hint(.0))]
    System(#[from] io::Error),
    /// An argument is invalid.
    #[error("{0}")]
    InvalidArgument(#[from] ironwarp_rnic::connect::InvalidArgument),
    /// A bug in the adapter. Only this connection fails.
    #[error("{0}")]
    Bug(Bug),
    /// The queue pair is connected, or was.
    #[error("{0}")]
    Connected(#[from] ironwarp_rnic::qp::AlreadyConnected),
}

/// Explains errors whose cause is not obvious.
fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => ": no listener at that address",
        io::ErrorKind::AddrNotAvailable => ": the address to connect from is not an address of this host",
        _ => "",
    }
}

/// Private data of a rejection is usually text.
fn words(private_data: &[u8]) -> String {
    match std::str::from_utf8(private_data) {
        Ok("") => String::new(),
        Ok(text) => format!(": {text:?}"),
        Err(_) => format!(" with {} bytes of private data", private_data.len()),
    }
}
