//! The Unix socket of a hand-over: messages with descriptors, and the life of the other process.

use super::error::{Failure, Refusal};
use super::message::{MAX_MESSAGE, Malformed, Message};
use super::wait::Wait;
use crate::sys::socket::peer_credentials;
use rustix::event::{PollFd, PollFlags};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketType, recvmsg, sendmsg, shutdown, sockopt,
};
use rustix::process::{PidfdFlags, WaitId, WaitIdOptions, geteuid, getpid, pidfd_open, waitid};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::time::Duration;

/// Maximum number of descriptors that the kernel passes with one message (SCM_MAX_FD).
const MAX_PASSED: usize = 253;
/// Interval between attempts to send while the user has too many descriptors in flight (ETOOMANYREFS): the kernel tells
/// nobody when their number decreases, because they may be in the sockets of any process.
const IN_FLIGHT: Duration = Duration::from_millis(2);

/// A socket whose other end belongs to the same user.
#[derive(Debug)]
pub(super) struct Channel {
    fd: OwnedFd,
}

/// What a call of [`Channel::try_receive`] found.
#[derive(Debug)]
pub(super) enum Received {
    Message(Message, Vec<OwnedFd>),
    /// Nothing so far.
    Nothing,
    /// The other end is closed, or the receiving direction of this one.
    End,
}

/// The process at the other end, by its pidfd.
#[derive(Debug)]
pub(super) struct Peer {
    pidfd: OwnedFd,
}

impl Channel {
    /// Checks the type of the socket and the user at its other end.
    pub(super) fn new(fd: OwnedFd) -> Result<Self, Failure> {
        let domain = sockopt::socket_domain(&fd).map_err(|_| Failure::SocketType)?;
        let kind = sockopt::socket_type(&fd).map_err(|_| Failure::SocketType)?;
        if domain != AddressFamily::UNIX || kind != SocketType::SEQPACKET {
            return Err(Failure::SocketType);
        }
        let theirs = peer_credentials(&fd).map_err(|_| Failure::SocketType)?.uid;
        let own = geteuid().as_raw();
        if theirs != own {
            return Err(Failure::OtherUser { theirs, own });
        }
        Ok(Self { fd })
    }

    /// Sends a message without waiting. If this fails, nothing was sent.
    pub(super) fn try_send(
        &self,
        message: &Message,
        descriptors: &[BorrowedFd<'_>],
    ) -> rustix::io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_PASSED))];
        let mut rights = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !rights.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(Errno::INVAL);
        }
        let (bytes, flags) = (message.encode(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        loop {
            match sendmsg(&self.fd, &[IoSlice::new(&bytes)], &mut rights, flags) {
                Err(Errno::INTR) => {}
                result => return result.map(drop), // a message of a SEQPACKET socket is sent as a whole
            }
        }
    }

    /// Sends a message, and waits for room for it. If this fails, nothing was sent.
    pub(super) fn send(
        &self,
        message: &Message,
        descriptors: &[BorrowedFd<'_>],
        wait: Wait,
    ) -> Result<(), Failure> {
        loop {
            let ready = match self.try_send(message, descriptors) {
                Ok(()) => return Ok(()),
                Err(Errno::AGAIN) => wait.poll(&mut [PollFd::new(&self.fd, PollFlags::OUT)])?,
                Err(Errno::TOOMANYREFS) => {
                    Wait::new("", IN_FLIGHT).poll(&mut [])?;
                    !wait.is_over()
                }
                Err(Errno::PIPE | Errno::CONNRESET) => {
                    return Err(Failure::Ended { awaited: wait.awaited() });
                }
                Err(error) => return Err(Failure::system("send a message")(error)),
            };
            if !ready {
                return Err(wait.failed());
            }
        }
    }

    /// Receives a message if there is one. Its descriptors are as many as it must have.
    pub(super) fn try_receive(&self) -> Result<Received, Failure> {
        let mut bytes = vec![0; MAX_MESSAGE + 1];
        let mut space =
            [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_PASSED), ScmCredentials(1))];
        let mut rights = RecvAncillaryBuffer::new(&mut space);
        let received = loop {
            let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC | RecvFlags::TRUNC;
            match recvmsg(&self.fd, &mut [IoSliceMut::new(&mut bytes)], &mut rights, flags) {
                // The other end was closed and had messages left. Those of this end come after this error.
                Err(Errno::CONNRESET | Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(Received::Nothing),
                Err(error) => return Err(Failure::system("receive a message")(error)),
                Ok(received) => break received,
            }
        };
        let mut descriptors = Vec::new();
        for message in rights.drain() {
            if let RecvAncillaryMessage::ScmRights(passed) = message {
                descriptors.extend(passed);
            }
        }
        if received.bytes == 0 {
            return Ok(Received::End);
        }
        if received.flags.contains(ReturnFlags::TRUNC) || received.bytes > MAX_MESSAGE {
            return Err(Malformed::Long { have: received.bytes }.into());
        }
        let message = Message::decode(&bytes[..received.bytes])?;
        let (have, need) = (descriptors.len(), message.descriptors());
        if have != need {
            return Err(Failure::Descriptors { have, need, message: message.name() });
        }
        Ok(Received::Message(message, descriptors))
    }

    /// Waits for a message other than REFUSED.
    pub(super) fn receive(&self, wait: Wait) -> Result<(Message, Vec<OwnedFd>), Failure> {
        loop {
            match self.try_receive()? {
                Received::Message(Message::Refused(reason), _) => {
                    return Err(Failure::Refused(Refusal(reason)));
                }
                Received::Message(message, descriptors) => return Ok((message, descriptors)),
                Received::End => return Err(Failure::Ended { awaited: wait.awaited() }),
                Received::Nothing if wait.poll(&mut [PollFd::new(&self.fd, PollFlags::IN)])? => {}
                Received::Nothing => return Err(wait.failed()),
            }
        }
    }

    /// Returns the reason that the other end gave before it closed the socket, if that is how this end failed and there is
    /// one.
    pub(super) fn explain(&self, failure: Failure) -> Failure {
        if !matches!(failure, Failure::Ended { .. }) {
            return failure;
        }
        loop {
            match self.try_receive() {
                Ok(Received::Message(Message::Refused(reason), _)) => {
                    return Failure::Refused(Refusal(reason));
                }
                Ok(Received::Message(..)) => {}
                Ok(Received::Nothing | Received::End) | Err(_) => return failure,
            }
        }
    }

    /// Closes the receiving direction: from now on, each send of the other end fails with EPIPE. What was sent before can
    /// still be received.
    pub(super) fn stop_receiving(&self) {
        // To go on without it could make two owners.
        shutdown(&self.fd, Shutdown::Read).expect("a connected Unix socket can be shut down");
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Returns a pidfd of this process, to be passed in a HELLO.
///
/// The credentials of the socket (SO_PEERCRED, SO_PEERPIDFD) name the process that has created it. Of a socket pair, that
/// is often a parent of both ends, or this end; so each end names itself.
pub(super) fn own_pidfd() -> Result<OwnedFd, Failure> {
    pidfd_open(getpid(), PidfdFlags::empty()).map_err(Failure::system("open a pidfd of this process"))
}

impl Peer {
    /// Takes the descriptor of a HELLO, and checks that it is a pidfd.
    pub(super) fn new(pidfd: OwnedFd) -> Result<Self, Failure> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        match waitid(WaitId::PidFd(pidfd.as_fd()), options) {
            Ok(_) | Err(Errno::CHILD) => Ok(Self { pidfd }), // a child, or another process
            Err(error) => Err(Failure::system("use the descriptor of a hello as a pidfd")(error)),
        }
    }

    /// Waits until the process has died. Returns false if it lives at the deadline.
    pub(super) fn is_dead(&self, wait: Wait) -> Result<bool, Failure> {
        wait.poll(&mut [PollFd::new(&self.pidfd, PollFlags::IN)])
    }
}

impl AsFd for Peer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}
