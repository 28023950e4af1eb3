//! The table of the sockets over RDMA of this process, by their descriptors.

use super::forked;
use super::socket::Socket;
use crate::support::errno::Errno;
use ironwarp_rnic::sync;
use std::collections::HashMap;
use std::os::fd::RawFd;
use std::sync::{Arc, RwLock};

type Table = HashMap<RawFd, Arc<Socket>>;

/// `None` until the first socket is created.
static SOCKETS: RwLock<Option<Table>> = RwLock::new(None);

/// Finds the socket of a descriptor. EBADF if there is none, EOPNOTSUPP in a forked child.
pub(super) fn find(fd: RawFd) -> Result<Arc<Socket>, Errno> {
    if forked::is_child() {
        return Err(Errno::UNSUPPORTED);
    }
    let sockets = sync::read(&SOCKETS);
    sockets.as_ref().and_then(|sockets| sockets.get(&fd)).cloned().ok_or(Errno(libc::EBADF))
}

/// Adds a socket under its descriptor. Returns the socket that had this descriptor before, if the program closed the
/// descriptor with close(2).
#[must_use]
pub(super) fn insert(socket: Socket) -> Option<Arc<Socket>> {
    let mut sockets = sync::write(&SOCKETS);
    sockets.get_or_insert_default().insert(socket.fd(), Arc::new(socket))
}

/// Removes the socket of a descriptor, and returns it.
pub(super) fn remove(fd: RawFd) -> Option<Arc<Socket>> {
    sync::write(&SOCKETS).as_mut()?.remove(&fd)
}

/// All sockets of this process.
pub(super) fn all() -> Vec<Arc<Socket>> {
    let sockets = sync::read(&SOCKETS);
    sockets.iter().flatten().map(|(_, socket)| Arc::clone(socket)).collect()
}
