//! Sockets over RDMA (rsocket(7)): the socket calls with the prefix `r`, over queue pairs of an adapter of their own.
//! Both ends of a connection must be Ironwarp. The protocol between them is in [`wire`].
//!
//! Each end of a connection has a ring of memory that the other end writes to. Data to send is copied into the
//! sender's ring. From there an RDMA Write with Immediate places it in the peer's ring, and the completion of a receive
//! tells the peer how many bytes arrived. The sender never sends more than the peer has room for, in bytes and in
//! receives: the peer reports how much it has read (credit). So all data that a call accepted arrives, even if the
//! peer's program reads nothing. Data never blocks the TCP stream, so that control messages always get through.
//!
//! | file | for |
//! |---|---|
//! | `wire` | the protocol |
//! | `options` | the options of a socket, and their defaults |
//! | `address` | reads and writes addresses of C |
//! | `adapter`, `forked` | the adapter that all sockets share; children of fork |
//! | `buffer`, `ring`, `mappings` | registered memory, the rings in it, and memory that the peer writes to directly |
//! | `waiters` | waking threads that wait for a socket |
//! | `state`, `stream`, `transfer` | a connection, and sending and receiving data |
//! | `listen` | listening sockets |
//! | `socket`, `table` | sockets, and finding them by their descriptors |
//! | `wait` | waiting until a socket is ready |
//! | `setup`, `data`, `iomap`, `poll`, `repoll`, `close`, `names` | the calls |
//! | `fuzzing` | a connection without a network |
//!
//! A blocking call holds no reference and no lock while it sleeps, and looks its socket up again each time it wakes,
//! because the program may cancel the thread or close the socket meanwhile.

mod adapter;
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
mod mappings;
mod names;
mod options;
mod poll;
mod repoll;
mod ring;
mod setup;
mod socket;
mod state;
mod stream;
mod table;
mod transfer;
mod wait;
mod waiters;
mod wire;
