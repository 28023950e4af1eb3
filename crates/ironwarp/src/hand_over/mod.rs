//! Hands an adapter over to another process, with all of its connections, while peers notice nothing
//! (requirement X2, `docs/functions.md`).
//!
//! The process that has the adapter calls [`Adapter::hand_over`](crate::Adapter::hand_over), the process that gets it
//! [`Adapter::take_over`](crate::Adapter::take_over). They share a Unix socket of type SEQPACKET. Everything that belongs to the
//! adapter moves: queue pairs in the middle of messages, receives, completions that were not polled, regions with
//! their tags, and listeners with the peers that wait at them. There is one owner at each moment, even if a process is killed.
//!
//! [`Adapter::hand_over_to_host`](crate::Adapter::hand_over_to_host) and
//! [`take_over_from_host`](crate::Adapter::take_over_from_host) do the same between two hosts.
//!
//! Memory moves as files, so each region must consist of buffers that are
//! [shareable](crate::memory::BufferBuilder::shareable). Before it calls `hand_over`, a program stops posting requests and polling;
//! a request that is posted nevertheless is refused, and never lost or doubled.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use ironwarp::hand_over::{HandOverOptions, TakeOverOptions};
//! use ironwarp::prelude::*;
//! use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
//! use std::time::Duration;
//!
//! # let timeout = Duration::from_secs(5);
//! # let peer = Adapter::new()?;
//! # let peer_qp = peer.protection_domain().queue_pair(&peer.completion_queue(16)?).create()?;
//! # let listener = peer.listen("127.0.0.1:0".parse()?)?;
//! // A program with a connection.
//! let adapter = Adapter::new()?;
//! let (cq, domain) = (adapter.completion_queue(64)?, adapter.protection_domain());
//! let buffer = Buffer::builder().shareable().allocate(4096)?;
//! let region = domain.register(buffer, Access::LOCAL_READ | Access::LOCAL_WRITE)?;
//! let qp = domain.queue_pair(&cq).create()?;
//! # qp.start_connect(listener.local_addr()?, &ConnectOptions::new())?;
//! # listener.accept(timeout)?.accept(&peer_qp, &AcceptOptions::new())?;
//! # qp.wait_connected(timeout)?;
//! qp.post_receive(7, &[region.slice(..)?])?;
//!
//! // Its next version, usually another process.
//! let (here, there) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
//! let next = std::thread::spawn(move || {
//!     let taken = Adapter::take_over(there, TakeOverOptions::new())?;
//!     let received = taken.completion_queues[0].wait(Duration::from_secs(5)).expect("a message");
//!     assert_eq!((received.wr_id, &taken.data[..]), (7, &b"version 1"[..]));
//!     Ok::<_, ironwarp::hand_over::HandOverError>(taken.regions[0].to_vec())
//! });
//! adapter.hand_over(here, &HandOverOptions::new().data(b"version 1"))?;
//! # peer_qp.post_send(WorkRequest::send_inline(1, b"hello"))?;
//! assert_eq!(&next.join().unwrap()??[..5], b"hello");
//! # Ok(())
//! # }
//! ```

mod memory;
mod options;
mod source;
mod target;

use crate::config::{ClusterKey, Config};

pub use ironwarp_engine::hand_over::{Failure, HandOverError, Malformed, Owner, Refusal, Role};
pub use options::{HandOverOptions, TakeOverOptions};
pub use target::TakenOver;

/// The error of a source that keeps its adapter.
fn kept(failure: Failure) -> HandOverError {
    HandOverError { failure, owner: Owner::Source }
}

/// Returns the cluster key of the settings, without which nothing moves to another host.
fn required_key(config: &Config) -> Result<ClusterKey, HandOverError> {
    let key = config.cluster_key();
    let key = key.map_err(|error| kept(Failure::System { doing: "read the cluster key", error }))?;
    key.ok_or_else(|| kept(Failure::NoKey))
}
