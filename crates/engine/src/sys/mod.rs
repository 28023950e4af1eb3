//! Wrappers of system calls. All system calls of the engine are made here.
//!
//! | file | for | `unsafe` |
//! |---|---|---|
//! | `denied` | errors of system calls that a sandbox denies | |
//! | `fork` | descriptors that are closed in forked children | the C library's fork handlers |
//! | `sched` | low-latency threads, and other threads that yield to them | system calls that rustix does not have |
//! | `memory` | copies from and to the program's memory | addresses that may be invalid |
//! | `segment` | memory that two processes share | maps memory; addresses that may be invalid |
//! | `bell` | Unix sockets by which processes set up shared memory and wake each other | |
//! | `socket` | a TCP connection, as the link of a stream | addresses that may be invalid |
//! | `tcp` | connect, listen, accept | |
//! | `tcp_repair` | a TCP connection as bytes, which another host turns into the same connection | |
//! | `fence` | an address that moves to another host, and the proof that this one does not answer for it | |
//! | `raw` | options of TCP_REPAIR, and frames for a link | system calls that rustix does not have |
//! | `announce` | tells neighbours that an address has moved | |
//! | `netlink`, `nlmsg`, `address` | interfaces, addresses and routes | |
//! | `claim` | RDMA ports in use in this network namespace | |
//! | `sock_diag` | which user owns a socket | |
//! | `udp` | a UDP port at several addresses, for datagrams | |
//! | `shared_file` | a capture file that several processes append to | |
//! | `status_socket` | the status text that other processes of this host can request | |
//! | `poller` | epoll, eventfd and timerfd: wait for many sockets, wake a waiting thread | |
//! | `random` | random bytes, for keys | |
//! | `reserve` | ports that are reserved before anything listens there | |
//! | `thread` | whether threads exist, how they sleep, starting threads | the C library's poll and signal mask |
//! | `traffic_class` | which packets networks prefer | |
//! | `counters`, `traffic` | bytes and segments that this process has sent and received | |
//!
//! The data path makes system calls by number (syscall(2)) instead of calling the C library's functions, which are
//! cancellation points (pthread_cancel(3)): a thread cancelled there would end in the middle of a stream. A
//! cancellation point also costs 40 ns a call. A thread that sleeps in `thread::wait_readable` can be cancelled.

pub(crate) mod address;
pub(crate) mod announce;
pub(crate) mod bell;
pub(crate) mod claim;
pub(crate) mod counters;
pub mod denied;
pub mod fence;
pub mod fork;
pub mod memory;
pub(crate) mod netlink;
pub(crate) mod nlmsg;
pub mod poller;
pub(crate) mod random;
pub(crate) mod raw;
pub mod reserve;
pub(crate) mod sched;
pub(crate) mod segment;
pub mod shared_file;
pub(crate) mod sock_diag;
pub mod socket;
pub(crate) mod status_socket;
pub mod tcp;
pub mod tcp_repair;
#[cfg(test)]
pub(crate) mod testing;
pub(crate) mod thread;
pub mod traffic;
pub(crate) mod traffic_class;
pub mod udp;

/// Converts the result of `libc::syscall` for a call that moves bytes: the number of bytes, or −1.
#[expect(clippy::cast_possible_truncation, reason = "both are as wide as a register")]
const fn byte_count(result: libc::c_long) -> libc::ssize_t {
    result as libc::ssize_t
}
