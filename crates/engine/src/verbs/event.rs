//! Events that report what happened to the connection of a queue pair.

use super::error::ConnectError;
use ironwarp_rnic::connect::Agreed;
use ironwarp_rnic::error::QpError;
use std::net::SocketAddr;

/// An event of a queue pair's connection.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ConnectionEvent {
    /// Number of the queue pair.
    pub qp: u32,
    /// What happened.
    pub kind: ConnectionEventKind,
}

/// What happened to a connection.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ConnectionEventKind {
    /// The connection is established.
    Connected(Established),
    /// The connection was not established.
    Failed(ConnectError),
    /// The connection ended.
    Ended(QpError),
}

/// An established connection.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Established {
    /// Private data of the remote program.
    pub private_data: Box<[u8]>,
    /// The parameters that both ends agreed on.
    pub agreed: Agreed,
    /// Remote address.
    pub peer: SocketAddr,
    /// Local address.
    pub local: SocketAddr,
}
