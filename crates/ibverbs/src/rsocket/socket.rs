//! A socket over RDMA: its descriptor, its options, and its role.

use super::listen::Listener;
use super::options::Options;
use super::stream::Stream;
use super::waiters::{Timeout, Waiters};
use crate::support::errno::Errno;
use ironwarp_rnic::sync::lock;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::ffi::{c_int, c_short};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// A socket.
#[derive(Debug)]
pub(super) struct Socket {
    /// A TCP socket that is never connected. It reserves the number for the program, holds the port that the
    /// program bound, and stores options that have no effect. Only `rclose` closes it: the program may have closed the
    /// descriptor with close(2), and its number may be in use for something else. `None` after `rclose`, and after
    /// another rsocket got the same number.
    descriptor: Mutex<Option<OwnedFd>>,
    /// Number of the descriptor.
    fd: RawFd,
    /// Address family: AF_INET or AF_INET6.
    family: c_int,
    nonblocking: AtomicBool,
    options: Arc<Mutex<Options>>,
    role: Mutex<Role>,
    /// Threads that wait for this socket.
    waiters: Arc<Waiters>,
}

/// The role of a socket.
#[derive(Clone, Debug)]
pub(super) enum Role {
    /// Neither listening nor connected.
    None,
    Listens(Arc<Listener>),
    /// Connected, or being connected.
    Connects(Arc<Stream>),
}

impl Socket {
    /// Creates a socket.
    pub(super) fn new(family: c_int, nonblocking: bool, close_on_exec: bool) -> Result<Self, Errno> {
        let waiters = Arc::default();
        Self::with_role(family, nonblocking, close_on_exec, Role::None, Options::defaults(), waiters)
    }

    /// Creates a socket for a connection that was accepted. As with accept(2), it is blocking and not close-on-exec.
    pub(super) fn for_accepted(family: c_int, stream: Arc<Stream>, options: Options) -> Result<Self, Errno> {
        let waiters = Arc::clone(stream.waiters());
        let (nonblocking, close_on_exec) = (false, false);
        Self::with_role(family, nonblocking, close_on_exec, Role::Connects(stream), options, waiters)
    }

    /// Creates a socket with this role. Connections share `waiters` with their socket.
    fn with_role(
        family: c_int,
        nonblocking: bool,
        close_on_exec: bool,
        role: Role,
        options: Options,
        waiters: Arc<Waiters>,
    ) -> Result<Self, Errno> {
        let domain = if family == libc::AF_INET6 { AddressFamily::INET6 } else { AddressFamily::INET };
        let flags = if close_on_exec { SocketFlags::CLOEXEC } else { SocketFlags::empty() };
        let descriptor = rustix::net::socket_with(domain, SocketType::STREAM, flags, None)?;
        Ok(Self {
            fd: descriptor.as_raw_fd(),
            descriptor: Mutex::new(Some(descriptor)),
            family,
            nonblocking: AtomicBool::new(nonblocking),
            options: Arc::new(Mutex::new(options)),
            role: Mutex::new(role),
            waiters,
        })
    }

    pub(super) fn fd(&self) -> RawFd {
        self.fd
    }

    pub(super) fn family(&self) -> c_int {
        self.family
    }

    pub(super) fn options(&self) -> &Arc<Mutex<Options>> {
        &self.options
    }

    pub(super) fn waiters(&self) -> &Arc<Waiters> {
        &self.waiters
    }

    pub(super) fn is_nonblocking(&self) -> bool {
        self.nonblocking.load(Ordering::Relaxed)
    }

    pub(super) fn set_nonblocking(&self, nonblocking: bool) {
        self.nonblocking.store(nonblocking, Ordering::Relaxed);
    }

    /// How long a call with these flags (`MSG_DONTWAIT`) may wait.
    pub(super) fn timeout(&self, flags: c_int) -> Timeout {
        let dont_wait = self.is_nonblocking() || flags & libc::MSG_DONTWAIT != 0;
        if dont_wait { Timeout::DontWait } else { Timeout::Never }
    }

    pub(super) fn role(&self) -> Role {
        lock(&self.role).clone()
    }

    /// Calls `change` with the role, which is locked meanwhile.
    pub(super) fn change_role<T>(
        &self,
        change: impl FnOnce(&mut Role) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        change(&mut lock(&self.role))
    }

    /// The connection of the socket, which may not be established yet. ENOTCONN if there is none.
    pub(super) fn stream(&self) -> Result<Arc<Stream>, Errno> {
        match &*lock(&self.role) {
            Role::Connects(stream) => Ok(Arc::clone(stream)),
            _ => Err(Errno(libc::ENOTCONN)),
        }
    }

    /// Calls `call` with the descriptor, which `rclose` does not close meanwhile. EBADF after `rclose`.
    pub(super) fn with_descriptor<T>(
        &self,
        call: impl FnOnce(BorrowedFd<'_>) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        lock(&self.descriptor).as_ref().map_or(Err(Errno(libc::EBADF)), |fd| call(fd.as_fd()))
    }

    /// The address that the socket is bound to. `None` if it is not bound.
    pub(super) fn bound_address(&self) -> Option<SocketAddr> {
        let name = self.with_descriptor(|fd| Ok(rustix::net::getsockname(fd)?)).ok()?;
        SocketAddr::try_from(name).ok().filter(|name| name.port() != 0) // an unbound socket has port 0
    }

    /// Closes the descriptor, for `rclose`. Its number may then be reused.
    pub(super) fn close_descriptor(&self) {
        drop(lock(&self.descriptor).take());
    }

    /// Forgets the descriptor without closing it. Called when a new rsocket got the same number, because the program
    /// has closed this one with close(2): closing the number now would close the new rsocket.
    pub(super) fn forget_descriptor(&self) {
        if let Some(fd) = lock(&self.descriptor).take() {
            let _ = fd.into_raw_fd(); // unlike dropping `fd`, this does not close it
        }
    }

    /// Number of changes of the connection so far, for [`may_have_changed`](Self::may_have_changed).
    pub(super) fn version(&self) -> u64 {
        self.stream().map_or(0, |stream| stream.version())
    }

    /// Reads the TCP socket of the connection. Returns whether the socket may have changed since `version`.
    pub(super) fn may_have_changed(&self, version: u64) -> bool {
        match self.role() {
            Role::Connects(stream) => stream.may_have_changed(version),
            Role::Listens(listener) => listener.is_ready(),
            Role::None => true,
        }
    }

    /// Arms the connection, so that its next change wakes the waiters. Returns true if it may have changed already.
    pub(super) fn arm(&self) -> bool {
        match self.role() {
            Role::Connects(stream) => stream.arm(),
            // A new connection always wakes the waiters of a listening socket.
            Role::None | Role::Listens(_) => false,
        }
    }

    /// The events of poll(2) that hold, of those that are requested. POLLERR and POLLHUP count as requested.
    pub(super) fn readiness(&self, requested: c_short) -> c_short {
        let all = match self.role() {
            Role::None => libc::POLLOUT | libc::POLLWRNORM | libc::POLLHUP,
            Role::Listens(listener) if listener.is_ready() => libc::POLLIN | libc::POLLRDNORM,
            Role::Listens(_) => 0,
            Role::Connects(stream) => stream.readiness(requested),
        };
        all & (requested | libc::POLLERR | libc::POLLHUP)
    }
}
