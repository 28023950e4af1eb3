//! Messages between a test and its processes, over a socket that is the standard input of each process, and random
//! numbers for both.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::time::Duration;

/// Creates two connected sockets of type SEQPACKET.
pub fn pair() -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .expect("a system call that does not fail")
}

/// Waits until the descriptor is readable. Returns false after the timeout.
pub fn is_readable(fd: impl AsFd, timeout: Duration) -> bool {
    let timeout = Timespec::try_from(timeout).expect("a system call that does not fail");
    poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout)).expect("a system call that does not fail")
        > 0
}

/// Sends bytes with descriptors. Returns false if the other end is closed.
pub fn put(socket: impl AsFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> bool {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
    let mut rights = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        assert!(rights.push(SendAncillaryMessage::ScmRights(descriptors)));
    }
    sendmsg(socket, &[IoSlice::new(bytes)], &mut rights, SendFlags::NOSIGNAL).is_ok()
}

/// Waits for a message, at most for this time. Returns its bytes, none at the end, and its descriptors.
///
/// # Panics
/// If there is no message in time.
pub fn get_within(timeout: Duration, socket: impl AsFd) -> (Vec<u8>, Vec<OwnedFd>) {
    assert!(is_readable(&socket, timeout), "no message in time");
    let mut bytes = vec![0; 1 << 16];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
    let mut rights = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let received = match recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut rights, flags) {
        Ok(received) => received.bytes,
        Err(rustix::io::Errno::CONNRESET) => 0, // the other end had messages left
        Err(error) => panic!("{error}"),
    };
    bytes.truncate(received);
    let rights = rights.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(passed) => Some(passed),
        _ => None,
    });
    (bytes, rights.flatten().collect())
}

/// Random numbers, which a failed test shows the seed of.
#[derive(Debug)]
pub struct Random(pub u64);

impl Random {
    /// Returns a number below the limit.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}
