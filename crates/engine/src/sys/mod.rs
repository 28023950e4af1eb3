//! System calls: the only module that makes them.
//!
//! | file | for | `unsafe` |
//! |---|---|---|
//! | `denied` | system calls that a sandbox denies | |
//! | `fork` | descriptors that children do not keep | the C library's fork handlers |
//! | `sched` | low-latency threads, and other threads that yield to them | a system call that rustix does not have |
//! | `memory` | copies from and to the program's memory | addresses that may be invalid |
//! | `socket` | a TCP connection, as the link of a stream | addresses that may be invalid |
//! | `tcp` | connect, listen, accept | |
//! | `netlink`, `nlmsg` | interfaces, addresses and routes | |
//! | `claim` | RDMA ports in use on this host | |
//! | `sock_diag` | which user owns a socket | |
//! | `udp` | a UDP port at several addresses, for datagrams | |
//! | `shared_file` | a capture file that several processes append to | |
//! | `status_socket` | a text for processes of this machine that ask for it | |
//! | `poller` | waiting for many sockets, and waking threads that wait | |
//! | `random` | random bytes, for keys | |
//! | `reserve` | ports that are reserved before anything listens there | |
//! | `thread` | threads of the program: whether they exist, how they sleep | the C library's poll |
//! | `counters`, `traffic` | what this process has sent and received | |
//!
//! The calls of the data path are made by number. The C library's functions for them are cancellation points (pthread_cancel), at which
//! a thread must not end in the middle of a stream, and which cost 40 ns a call. A thread that sleeps can be cancelled.

pub(crate) mod claim;
mod counters;
pub mod denied;
pub mod fork;
pub mod memory;
pub(crate) mod netlink;
pub(crate) mod nlmsg;
pub mod poller;
pub(crate) mod random;
pub mod reserve;
pub(crate) mod sched;
pub mod shared_file;
pub(crate) mod sock_diag;
pub mod socket;
pub(crate) mod status_socket;
pub mod tcp;
#[cfg(test)]
pub(crate) mod testing;
pub(crate) mod thread;
pub mod traffic;
pub mod udp;

/// The result of a call by number that moves bytes: how many, or −1.
#[expect(clippy::cast_possible_truncation, reason = "both are as wide as a register")]
const fn size(result: libc::c_long) -> libc::ssize_t {
    result as libc::ssize_t
}
