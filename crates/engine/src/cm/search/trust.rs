//! Which user may own the socket of a candidate.

use crate::config::Users;
use crate::sys::sock_diag::{listener_owner, socket_owner};
use crate::sys::socket::TcpLink;
use crate::sys::tcp::is_same_host;
use ironwarp_wire::private::RdmaPort;
use std::net::SocketAddr;

/// The socket of the peer whose owner is checked.
#[derive(Clone, Copy, Debug)]
pub(super) enum PeerSocket {
    /// The listening socket, before the peer has accepted.
    Listening,
    /// The socket of the connection, after the peer has accepted.
    Connected,
}

/// Returns whether this end may talk over `link` to a candidate for `port`. On the same host any user can listen at a
/// candidate before the real listener does. So the socket must belong to this user, to root, to one of `users`, or to
/// the owner of the listener at `first`, which is TCP port N of the peer.
pub(super) fn is_trusted(
    users: &Users,
    port: RdmaPort,
    first: SocketAddr,
    link: &TcpLink,
    socket: PeerSocket,
) -> bool {
    let (Ok(peer), Ok(local)) = (link.peer_addr(), link.local_addr()) else { return false };
    if *users == Users::Any || !is_same_host(peer).unwrap_or(true) {
        return true;
    }
    let owner = match socket {
        PeerSocket::Listening => listener_owner(peer),
        PeerSocket::Connected => socket_owner(peer, local),
    };
    let own = rustix::process::geteuid().as_raw();
    match owner {
        Ok(Some(0)) => true,
        Ok(Some(uid)) if users.accept(own, uid) => true,
        Ok(Some(uid)) if listener_owner(first).is_ok_and(|owner| owner == Some(uid)) => true,
        Ok(Some(uid)) => {
            tracing::warn!(
                "TCP port {} belongs to user {uid}, and this process to user {own}: not trusted as {}; if that is intended, set IRONWARP_USERS={uid}",
                peer.port(),
                port
            );
            false
        }
        Ok(None) => false, // the socket has been closed
        Err(error) => {
            tracing::warn!(%error, "failed to find the owner of TCP port {}: not trusted as {}; IRONWARP_USERS=any turns the check off", peer.port(), port);
            false
        }
    }
}
