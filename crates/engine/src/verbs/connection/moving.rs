//! Moves a connection to another function (requirement X2): takes its socket out of the poll set, and continues a stream that
//! was restored.

use super::{Connection, ConnectionOwner};
use crate::sys::socket::TcpLink;
use crate::verbs::error::ConnectError;
use ironwarp_rnic::connect::Agreed;
use ironwarp_rnic::error::QpError;
use ironwarp_rnic::qp::Halves;
use ironwarp_rnic::sync::lock;
use std::net::SocketAddr;
use std::sync::Arc;

impl<P: ConnectionOwner> Connection<P> {
    /// Returns the TCP connection.
    pub(crate) fn tcp(&self) -> &Arc<TcpLink> {
        &self.tcp
    }

    /// Returns whether this end initiated the connection.
    pub(crate) fn is_initiator(&self) -> bool {
        self.is_initiator
    }

    /// Returns whether the connection can be frozen: the thread that starts it, and reports it to the program first, is done.
    pub(crate) fn is_started(&self) -> bool {
        lock(&self.state).lifecycle.is_started()
    }

    /// Takes the socket out of its poll set. From now on, nothing acts on it. Returns false, and does nothing, if the
    /// connection is not [started](Self::is_started).
    pub(crate) fn freeze(&self) -> bool {
        let mut state = lock(&self.state);
        let is_started = state.lifecycle.is_started();
        if is_started && state.lifecycle.freeze() {
            state.set.remove(self.token);
        }
        is_started
    }

    /// Puts the socket back into its poll set. The caller has put the state of the queue pair back.
    pub(crate) fn thaw(self: &Arc<Self>) {
        lock(&self.state).lifecycle.thaw();
        self.enter_set_and_drive();
    }

    /// Ends a frozen connection whose stream continues elsewhere: closes this copy of the socket, and sends nothing.
    pub(crate) fn surrender(&self) {
        lock(&self.state).lifecycle.close();
        // First: what ends a stream that still has its link sends a Terminate and reads bytes that belong to the owner.
        self.qp.release();
        self.qp.abort(QpError::HandedOver);
        self.pair.on_closed();
    }

    /// Creates the connection of a queue pair that was restored, without acting on the socket. `addresses` are the remote
    /// and the local one.
    pub(crate) fn restore(
        pair: &Arc<P>,
        link: &Arc<TcpLink>,
        halves: Halves,
        is_initiator: bool,
        addresses: (SocketAddr, SocketAddr),
    ) -> Result<Arc<Self>, ConnectError> {
        let (connection, stream_link) = Self::assemble(pair, link, is_initiator, addresses, None)?;
        lock(&connection.state).lifecycle.begin_frozen();
        connection.qp.resume(halves, &stream_link, connection.driver());
        pair.set_connection(&connection);
        Ok(connection)
    }

    /// Begins to serve a restored connection.
    pub(crate) fn activate(self: &Arc<Self>, agreed: &Agreed) {
        self.thaw();
        self.start_first_message_timer(agreed);
        self.on_peer_not_ready();
        self.watch_port();
    }

    /// Adds the socket to its poll set, and does what was left to do.
    fn enter_set_and_drive(self: &Arc<Self>) {
        match self.join_set() {
            Ok(true) => {}
            Ok(false) => return,
            Err(error) => return self.abort(QpError::Lost(error.raw_os_error().unwrap_or_default())),
        }
        if self.qp.error().is_some() || self.qp.is_closing() {
            self.begin_draining();
        }
        self.drive_all();
        if self.qp.is_closed() {
            return self.release(); // both directions were closed before
        }
        if self.pair.is_disconnect_requested() {
            self.disconnect();
        }
    }
}
