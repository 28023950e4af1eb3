//! Netlink sockets: the routing socket (rtnetlink) for interfaces, addresses, routes and notices of changes, whose
//! messages `gid/parse.rs` reads; and the socket monitor, which `sock_diag.rs` asks about single sockets.

use super::denied::Denied;
use super::fork::Fd;
use super::nlmsg::HEADER;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType};
use std::io;

/// Maximum length of the kernel's datagrams (its NLMSG_GOODSIZE, and 32 KiB for dumps).
const ROOM: usize = 64 << 10;
/// Maximum number of bytes read of an answer: a host may have a million routes. The default route comes first.
const MOST: usize = 4 << 20;
/// Maximum number of times a question is asked again because something changed while the kernel answered.
const TRIES: usize = 8;
/// Maximum number of notices taken at once.
const NOTICES: usize = 1024;

/// What can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DumpRequest {
    /// All interfaces.
    Links,
    /// All addresses.
    Addresses,
    /// All routes.
    Routes,
}

/// A netlink socket.
#[derive(Debug)]
pub(crate) struct Netlink {
    fd: Fd,
}

impl Netlink {
    /// A socket for questions.
    pub(crate) fn new() -> io::Result<Self> {
        Self::open(None, 0)
    }

    /// A socket for questions about sockets.
    pub(super) fn for_sockets() -> io::Result<Self> {
        Self::open(Some(netlink::SOCK_DIAG), 0)
    }

    /// A socket for notices of changes to interfaces and addresses.
    pub(crate) fn for_changes() -> io::Result<Self> {
        let bit = |group: libc::c_uint| 1_u32 << (group - 1);
        Self::open(
            None,
            bit(libc::RTNLGRP_LINK) | bit(libc::RTNLGRP_IPV4_IFADDR) | bit(libc::RTNLGRP_IPV6_IFADDR),
        )
    }

    /// Protocol `None` is protocol 0, NETLINK_ROUTE.
    fn open(protocol: Option<Protocol>, groups: u32) -> io::Result<Self> {
        // The kernel answers inside the calls, so that waiting for an answer does not block.
        let flags = SocketFlags::CLOEXEC;
        let fd =
            Fd::open(|| rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol));
        let fd = Denied::check("socket", fd)?;
        rustix::net::bind(&fd, &SocketAddrNetlink::new(0, groups))?;
        Ok(Self { fd })
    }

    /// Asks, and returns the length of the answer. The kernel answers before the call that asks returns, so this does
    /// not wait.
    pub(super) fn exchange(&self, question: &[u8], answer: &mut [u8]) -> io::Result<usize> {
        rustix::net::send(&self.fd, question, SendFlags::empty())?;
        loop {
            if let Some(n) = self.receive(answer, RecvFlags::DONTWAIT)? {
                return Ok(n);
            }
        }
    }

    /// Asks, and passes each datagram of the answer to `take`, which returns whether more follow. If it has to ask
    /// again, it calls `begin` again.
    pub(crate) fn dump<T>(
        question: DumpRequest,
        begin: impl Fn() -> T,
        mut take: impl FnMut(&mut T, &[u8]) -> io::Result<DumpProgress>,
    ) -> io::Result<T> {
        for _ in 0..TRIES {
            // A new socket, so that nothing is left of an answer that was not read to its end.
            let socket = Self::new()?;
            let mut found = begin();
            rustix::net::send(&socket.fd, &question.bytes(), SendFlags::empty())?;
            match socket.answer(|bytes| take(&mut found, bytes))? {
                DumpProgress::Interrupted => {}
                DumpProgress::Partial | DumpProgress::Complete => return Ok(found),
            }
        }
        Err(io::Error::new(io::ErrorKind::Interrupted, "interfaces and addresses change all the time"))
    }

    fn answer(&self, mut take: impl FnMut(&[u8]) -> io::Result<DumpProgress>) -> io::Result<DumpProgress> {
        let mut buffer = vec![0; ROOM];
        let mut read = 0;
        while read < MOST {
            let Some(n) = self.receive(&mut buffer, RecvFlags::empty())? else { continue };
            read += n;
            match take(&buffer[..n])? {
                DumpProgress::Partial => {}
                done => return Ok(done),
            }
        }
        tracing::warn!(bytes = read, "too many interfaces, addresses or routes: the rest is ignored");
        Ok(DumpProgress::Complete)
    }

    /// Takes the pending notices, and returns whether there were any. Their contents do not matter: a caller that wants
    /// to know what changed asks again.
    pub(crate) fn take_notices(&self) -> io::Result<bool> {
        let mut buffer = vec![0; ROOM];
        let mut any = false;
        for _ in 0..NOTICES {
            match self.receive(&mut buffer, RecvFlags::DONTWAIT) {
                // A notice that was lost for lack of room counts, too.
                Ok(_) | Err(Errno::NOBUFS) => any = true,
                Err(Errno::AGAIN) => return Ok(any),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(any)
    }

    /// Receives a datagram of the kernel; `None` if another process sent it.
    fn receive(&self, buffer: &mut [u8], flags: RecvFlags) -> rustix::io::Result<Option<usize>> {
        loop {
            match rustix::net::recvfrom(&self.fd, &mut *buffer, flags) {
                Ok((n, _, from)) => {
                    let from = from.and_then(|from| SocketAddrNetlink::try_from(from).ok());
                    return Ok(from.is_some_and(|from| from.pid() == 0).then_some(n));
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
    }
}

impl AsFd for Netlink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// What follows a datagram of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DumpProgress {
    /// The answer goes on.
    Partial,
    /// It is complete.
    Complete,
    /// Something changed meanwhile, so the answer may be inconsistent.
    Interrupted,
}

impl DumpRequest {
    /// `struct nlmsghdr`, followed by the structure of the question, all zero: any interface, any family.
    fn bytes(self) -> Vec<u8> {
        let (kind, body) = match self {
            Self::Links => (libc::RTM_GETLINK, 16_u8),
            Self::Addresses => (libc::RTM_GETADDR, 8),
            Self::Routes => (libc::RTM_GETROUTE, 12),
        };
        let len = u32::from(body) + 16;
        let flags = u16::try_from(libc::NLM_F_REQUEST | libc::NLM_F_DUMP).unwrap_or_default();
        let mut bytes = Vec::with_capacity(HEADER + usize::from(body));
        bytes.extend_from_slice(&len.to_ne_bytes());
        bytes.extend_from_slice(&kind.to_ne_bytes());
        bytes.extend_from_slice(&flags.to_ne_bytes());
        bytes.extend_from_slice(&[0; 8]); // sequence number and sender, which are not used
        bytes.resize(HEADER + usize::from(body), 0);
        bytes
    }
}
