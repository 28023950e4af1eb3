//! A socket of the program: its descriptor, its options, and its role.

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
    /// A TCP socket that is never connected. It reserves the number for the program, holds the port that it
    /// is bound to, and stores options without effect. The program may have closed it with close(2), so only
    /// `rclose` closes it.
    descriptor: Mutex<Option<OwnedFd>>,
    fd: RawFd,
    family: c_int,
    nonblocking: AtomicBool,
    options: Arc<Mutex<Options>>,
    role: Mutex<Role>,
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
        Self::with(family, nonblocking, close_on_exec, Role::None, Options::defaults(), waiters)
    }

    /// Creates a socket for a connection that was accepted.
    pub(super) fn accepted(family: c_int, stream: Arc<Stream>, options: Options) -> Result<Self, Errno> {
        let waiters = Arc::clone(stream.waiters());
        Self::with(family, false, false, Role::Connects(stream), options, waiters)
    }

    fn with(
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

    /// How long a call with these flags may wait.
    pub(super) fn timeout(&self, flags: c_int) -> Timeout {
        let at_once = self.is_nonblocking() || flags & libc::MSG_DONTWAIT != 0;
        if at_once { Timeout::DontWait } else { Timeout::Never }
    }

    pub(super) fn role(&self) -> Role {
        lock(&self.role).clone()
    }

    /// Changes the role.
    pub(super) fn set_role<T>(&self, change: impl FnOnce(&mut Role) -> Result<T, Errno>) -> Result<T, Errno> {
        change(&mut lock(&self.role))
    }

    /// Its connection, which may not be established yet.
    pub(super) fn stream(&self) -> Result<Arc<Stream>, Errno> {
        match &*lock(&self.role) {
            Role::Connects(stream) => Ok(Arc::clone(stream)),
            _ => Err(Errno(libc::ENOTCONN)),
        }
    }

    /// Calls `with` with the descriptor.
    pub(super) fn with_descriptor<T>(
        &self,
        with: impl FnOnce(BorrowedFd<'_>) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        lock(&self.descriptor).as_ref().map_or(Err(Errno(libc::EBADF)), |fd| with(fd.as_fd()))
    }

    /// The address that it is bound to.
    pub(super) fn bound(&self) -> Option<SocketAddr> {
        let name = self.with_descriptor(|fd| Ok(rustix::net::getsockname(fd)?)).ok()?;
        SocketAddr::try_from(name).ok().filter(|name| name.port() != 0)
    }

    /// Closes the descriptor, whose number may then be reused.
    pub(super) fn close_descriptor(&self) {
        drop(lock(&self.descriptor).take());
    }

    /// Leaves the descriptor open: the program has closed it, and the number was reused.
    pub(super) fn forget_descriptor(&self) {
        if let Some(fd) = lock(&self.descriptor).take() {
            let _ = fd.into_raw_fd();
        }
    }

    /// A number that every change of the connection increments.
    pub(super) fn version(&self) -> u64 {
        self.stream().map_or(0, |stream| stream.version())
    }

    /// Makes progress. Returns whether something may have changed since that version.
    pub(super) fn may_have_changed(&self, version: u64) -> bool {
        match self.role() {
            Role::Connects(stream) => stream.may_have_changed(version),
            Role::Listens(listener) => listener.is_ready(),
            Role::None => true,
        }
    }

    /// Has the next change wake the waiters. Returns true if it may have happened already.
    pub(super) fn arm(&self) -> bool {
        match self.role() {
            Role::Connects(stream) => stream.arm(),
            Role::None | Role::Listens(_) => false,
        }
    }

    /// The events of poll that are ready, of those that are wanted.
    pub(super) fn readiness(&self, wanted: c_short) -> c_short {
        let all = match self.role() {
            Role::None => libc::POLLOUT | libc::POLLWRNORM | libc::POLLHUP,
            Role::Listens(listener) if listener.is_ready() => libc::POLLIN | libc::POLLRDNORM,
            Role::Listens(_) => 0,
            Role::Connects(stream) => stream.readiness(wanted),
        };
        all & (wanted | libc::POLLERR | libc::POLLHUP)
    }
}
