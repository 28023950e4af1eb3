//! System calls: the only place that makes them. Above it lanes drive streams; below it is the kernel.
//!
//! | file | for | `unsafe` |
//! |---|---|---|
//! | `denied` | system calls that a sandbox denies | |
//! | `fork` | descriptors that children do not keep | the C library's fork handlers |
//! | `hurry` | threads that run before others, and others that let them | a system call that rustix does not have |
//! | `memory` | copies from and to the program's memory | addresses that may be bad |
//! | `socket` | one TCP connection, as a stream's link | addresses that may be bad |
//! | `setup` | connect, listen, accept | |
//! | `netlink` | interfaces, addresses and routes | |
//! | `claim` | RDMA ports that are taken on this host | |
//! | `sock_diag` | which user owns a socket | |
//! | `udp` | one UDP port at several addresses, for datagrams | |
//! | `shared_file` | a capture file, which several processes add to | |
//! | `bulletin` | a text for whoever asks on this machine | |
//! | `poller` | waiting for many sockets, and waking who waits | |
//! | `random` | random bytes, for keys | |
//! | `reserve` | ports that are ours before anybody listens there | |
//! | `thread` | threads of the program: whether they exist, how they sleep | the C library's poll |
//!
//! The calls of the data path are made by number. The C library's own functions for them are points at which a thread can
//! be cancelled (pthread_cancel), which must not happen in the middle of a stream, and which costs 40 ns a call. A thread
//! that sleeps can be cancelled.

pub(crate) mod bulletin;
pub(crate) mod claim;
pub mod denied;
pub mod fork;
pub(crate) mod hurry;
pub mod memory;
pub(crate) mod netlink;
pub mod poller;
pub(crate) mod random;
pub mod reserve;
pub mod setup;
pub mod shared_file;
pub(crate) mod sock_diag;
pub mod socket;
#[cfg(test)]
pub(crate) mod testing;
pub(crate) mod thread;
pub mod udp;

/// What a call by number that moves bytes returns: how many, or −1.
#[expect(clippy::cast_possible_truncation, reason = "both are as wide as a register")]
const fn size(result: libc::c_long) -> libc::ssize_t {
    result as libc::ssize_t
}
