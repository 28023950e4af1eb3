//! Sockets over RDMA (rsocket(7)): the socket calls with an `r` in front, over queue pairs of one adapter of their own. Both
//! ends of a connection are Ironwarp's: what they say to each other is in [`wire`].
//!
//! Each end of a connection has a ring of memory that the other writes into. A byte that is sent is copied into this end's
//! ring, from there an RDMA Write with Immediate puts it into the peer's, and a receive tells the peer how many came. The
//! sender never sends more than the peer has room for, in bytes and in receives: the peer says what it has read (credit).
//! So whatever a call took arrives, whether or not the peer's program does anything; nothing waits in the stream, and what
//! one direction has to say to the other always gets through.
//!
//! | file | for |
//! |---|---|
//! | here | the sockets, by their descriptors, and the adapter |
//! | `wire` | what the two ends say to each other |
//! | `options` | what a program may set, and the defaults |
//! | `address` | addresses of C |
//! | `buffer` | registered memory, and copying between it and the program's |
//! | `stream` | a connection: its rings, credit, and how it ends |
//! | `transfer` | how bytes get into the rings and out of them |
//! | `iomap` | memory that the peer writes to directly |
//! | `listen` | who wants to connect |
//! | `wait` | threads that wait until a socket is ready |
//! | `setup`, `data`, `poll`, `repoll`, `close`, `names` | the calls |
//! | `fuzzing` | a connection without a network |
//!
//! A blocking call looks a socket up anew each time it wakes, and holds nothing while it sleeps: the program may cancel the
//! thread, or close the socket meanwhile.

mod address;
mod buffer;
mod close;
mod data;
mod forked;
pub mod fuzzing;
#[cfg(test)]
mod hostile;
mod iomap;
mod listen;
mod names;
mod options;
mod poll;
mod repoll;
mod setup;
mod socket;
mod stream;
mod transfer;
mod wait;
mod wire;

pub(crate) use close::close_all;

use crate::errno::Errno;
use crate::exit;
use crate::persona::config;
use crate::sync::lock;
use ironwarp_engine::Engine;
use socket::Socket;
use std::collections::HashMap;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

/// The adapter of all sockets of the process, made for the first of them.
fn engine() -> Result<&'static Arc<Engine>, Errno> {
    static ENGINE: OnceLock<Arc<Engine>> = OnceLock::new();
    static MAKING: Mutex<()> = Mutex::new(());
    let _alone = lock(&MAKING);
    if ENGINE.get().is_none() {
        let engine = Engine::new(config().clone())?;
        exit::prepare(&engine);
        forked::watch();
        ENGINE.get_or_init(|| engine);
    }
    ENGINE.get().ok_or(Errno::NO_MEMORY)
}

type Table = HashMap<RawFd, Arc<Socket>>;

static SOCKETS: RwLock<Option<Table>> = RwLock::new(None);

/// The socket of a descriptor.
fn find(fd: RawFd) -> Result<Arc<Socket>, Errno> {
    if forked::is_child() {
        return Err(Errno::UNSUPPORTED);
    }
    let sockets = SOCKETS.read().unwrap_or_else(PoisonError::into_inner);
    sockets.as_ref().and_then(|sockets| sockets.get(&fd)).cloned().ok_or(Errno(libc::EBADF))
}

/// Adds a socket under its descriptor.
fn add(socket: Socket) -> RawFd {
    let fd = socket.fd();
    let mut sockets = SOCKETS.write().unwrap_or_else(PoisonError::into_inner);
    let before = sockets.get_or_insert_default().insert(fd, Arc::new(socket));
    drop(sockets);
    if let Some(before) = before {
        // The program closed the descriptor with close(2): the number is another socket's now.
        before.abandon();
    }
    fd
}

fn take(fd: RawFd) -> Option<Arc<Socket>> {
    SOCKETS.write().unwrap_or_else(PoisonError::into_inner).as_mut()?.remove(&fd)
}

fn all() -> Vec<Arc<Socket>> {
    let sockets = SOCKETS.read().unwrap_or_else(PoisonError::into_inner);
    sockets.iter().flatten().map(|(_, socket)| Arc::clone(socket)).collect()
}
