//! [`Netlink`], a netlink socket. A routing socket (rtnetlink(7)) lists interfaces, addresses and routes, and notifies
//! of changes; `gid/parse.rs` parses its messages. A sock_diag(7) socket is used by `sock_diag.rs` to find the owner of
//! a socket.

use super::denied::Denied;
use super::fork::Fd;
use super::nlmsg::{HEADER, bits};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType};
use std::io;

/// Size of the receive buffer in bytes. The kernel's datagrams are shorter (NLMSG_GOODSIZE, and 32 KiB for dumps).
const BUFFER: usize = 64 << 10;
/// Maximum number of bytes read of a dump: a host may have a million routes. The default route comes first.
const MAX_DUMP: usize = 4 << 20;
/// Maximum number of attempts at a dump. A dump is repeated if something changed while the kernel sent it.
const MAX_TRIES: usize = 8;
/// Maximum number of notices that [`Netlink::take_notices`] takes.
const MAX_NOTICES: usize = 1024;

/// A list that the kernel can send (a dump, in terms of netlink).
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
    /// Opens a routing socket for dumps, and for [`exchange`](Self::exchange).
    pub(super) fn for_routing() -> io::Result<Self> {
        Self::open(None, 0)
    }

    /// Opens a sock_diag socket, for [`exchange`](Self::exchange).
    pub(super) fn for_sockets() -> io::Result<Self> {
        Self::open(Some(netlink::SOCK_DIAG), 0)
    }

    /// Opens a routing socket that receives notices of changes to interfaces and addresses.
    pub(crate) fn for_changes() -> io::Result<Self> {
        let bit = |group: libc::c_uint| 1_u32 << (group - 1); // groups are numbered from 1
        Self::open(
            None,
            bit(libc::RTNLGRP_LINK) | bit(libc::RTNLGRP_IPV4_IFADDR) | bit(libc::RTNLGRP_IPV6_IFADDR),
        )
    }

    /// Opens a socket that receives the notices of `groups`, a set of bits: zero for a socket that only receives
    /// answers. Protocol `None` is protocol 0, NETLINK_ROUTE.
    fn open(protocol: Option<Protocol>, groups: u32) -> io::Result<Self> {
        // A blocking socket, though no call waits: answers and notices are received with MSG_DONTWAIT, and the next
        // datagram of a dump is always there, until its end.
        let flags = SocketFlags::CLOEXEC;
        let fd =
            Fd::open(|| rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol));
        let fd = Denied::check("socket", fd)?;
        rustix::net::bind(&fd, &SocketAddrNetlink::new(0, groups))?;
        Ok(Self { fd })
    }

    /// Sends a request, and receives the answer, which is one datagram. Returns its length. Does not wait: the kernel
    /// answers before `send` returns.
    pub(super) fn exchange(&self, request: &[u8], answer: &mut [u8]) -> io::Result<usize> {
        rustix::net::send(&self.fd, request, SendFlags::empty())?;
        loop {
            // `None`: not from the kernel, so the answer is still to come.
            if let Some(n) = self.receive(answer, RecvFlags::DONTWAIT)? {
                return Ok(n);
            }
        }
    }

    /// Requests a dump, and passes each of its datagrams to `take`, which adds it to a value that `begin` created and
    /// returns whether more datagrams follow. Returns the value. If the dump is inconsistent, starts again with a new
    /// request and a new value.
    pub(crate) fn dump<T>(
        request: DumpRequest,
        begin: impl Fn() -> T,
        mut take: impl FnMut(&mut T, &[u8]) -> io::Result<DumpProgress>,
    ) -> io::Result<T> {
        for _ in 0..MAX_TRIES {
            // A new socket each time, because the previous one may still have datagrams of the inconsistent dump.
            let socket = Self::for_routing()?;
            let mut found = begin();
            rustix::net::send(&socket.fd, &request.bytes(), SendFlags::empty())?;
            match socket.receive_dump(|bytes| take(&mut found, bytes))? {
                DumpProgress::Interrupted => {}
                DumpProgress::Partial | DumpProgress::Complete => return Ok(found),
            }
        }
        Err(io::Error::new(io::ErrorKind::Interrupted, "interfaces and addresses change all the time"))
    }

    /// Passes the datagrams of a dump to `take`, until `take` reports its end. Returns the last result of `take`, or
    /// `Complete` if the dump is longer than [`MAX_DUMP`].
    fn receive_dump(
        &self,
        mut take: impl FnMut(&[u8]) -> io::Result<DumpProgress>,
    ) -> io::Result<DumpProgress> {
        let mut buffer = vec![0; BUFFER];
        let mut read = 0;
        while read < MAX_DUMP {
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

    /// Takes the pending notices, and returns whether there were any. Their contents are ignored: a caller that needs
    /// to know what changed requests a dump.
    pub(crate) fn take_notices(&self) -> io::Result<bool> {
        let mut buffer = vec![0; BUFFER];
        let mut any = false;
        for _ in 0..MAX_NOTICES {
            match self.receive(&mut buffer, RecvFlags::DONTWAIT) {
                // ENOBUFS: the kernel has dropped a notice because the socket's buffer was full, so there was one.
                Ok(_) | Err(Errno::NOBUFS) => any = true,
                Err(Errno::AGAIN) => return Ok(any),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(any)
    }

    /// Receives a datagram, and returns its length; `None` if a process sent it, not the kernel.
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

/// The state of a dump after one of its datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DumpProgress {
    /// More datagrams follow.
    Partial,
    /// This was the last datagram.
    Complete,
    /// The listed objects changed during the dump, which may be inconsistent (NLM_F_DUMP_INTR).
    Interrupted,
}

impl DumpRequest {
    /// Encodes the request: a `struct nlmsghdr`, and the structure of the request with all fields zero: any interface,
    /// any family.
    fn bytes(self) -> Vec<u8> {
        // The sizes are those of `struct ifinfomsg`, `struct ifaddrmsg` and `struct rtmsg`.
        let (kind, body) = match self {
            Self::Links => (libc::RTM_GETLINK, 16_u8),
            Self::Addresses => (libc::RTM_GETADDR, 8),
            Self::Routes => (libc::RTM_GETROUTE, 12),
        };
        let len = u32::from(body) + 16; // with the header, whose size is `HEADER`
        let flags = bits(libc::NLM_F_REQUEST | libc::NLM_F_DUMP);
        let mut bytes = Vec::with_capacity(HEADER + usize::from(body));
        bytes.extend_from_slice(&len.to_ne_bytes());
        bytes.extend_from_slice(&kind.to_ne_bytes());
        bytes.extend_from_slice(&flags.to_ne_bytes());
        bytes.extend_from_slice(&[0; 8]); // sequence number and port ID of the sender, which are not used
        bytes.resize(HEADER + usize::from(body), 0);
        bytes
    }
}
