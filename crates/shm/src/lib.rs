//! Rings in shared memory, by which two processes of one host that do not trust each other exchange records.
//!
//! A [`Segment`] is memory that both processes have mapped. It contains two rings of bytes, one for each direction.
//! [`open`] returns the three parts of one end: the [`Writer`] of one ring, the [`Reader`] of the other, and a [`Watch`],
//! which tells any thread whether there is something to do. Only the caller makes system calls: it maps the memory,
//! and rings the *bell* of the peer, for example an eventfd, when a function of this crate says so.
//!
//! # Waking up
//!
//! A reader polls its ring, or sleeps until its bell rings:
//!
//! - Before it sleeps it calls [`Watch::sleep`]. From then on, [`Writer::publish`] tells the peer to ring.
//! - A writer that finds no room calls [`Writer::await_room`]. From then on, [`Reader::release`] tells the peer to ring
//!   as soon as a quarter of the ring is free. It may miss the request, because it has no fence; so a reader that polls
//!   an empty ring must call [`Watch::peer_wants_room`] each time. [`Watch::sleep`] does it as well.
//!
//! No wakeup is lost if both ends do this; the loom tests of this crate check it.
//!
//! # Trust
//!
//! The peer can write anything to the segment at any time. Each end keeps its own positions in private memory, checks
//! those of the peer whenever it loads them, and reads a header once. What violates the protocol is reported as
//! [`Corrupt`], and the ring cannot be used any more. Payload is copied with raw pointers: a peer that changes it
//! meanwhile determines which bytes arrive, and nothing else. A peer that does not ring the bell harms only itself and
//! this connection.
//!
//! ```
//! use ironwarp_shm::{Heap, Side, open};
//! use std::sync::Arc;
//!
//! let segment = Arc::new(Heap::new());
//! let (mut writer, ..) = open(segment.clone(), Side::Creator);
//! let (_, mut reader, watch) = open(segment, Side::Joiner);
//!
//! let mut record = writer.begin(5)?.expect("the ring is empty");
//! record.put(b"hello");
//! record.finish(7, 1);
//! let peer_sleeps = writer.publish();
//! assert!(!peer_sleeps);
//!
//! assert!(watch.has_news());
//! let front = reader.front()?.expect("a record was published");
//! assert_eq!((front.channel, front.kind, front.left), (7, 1, 5));
//! let mut bytes = [0; 5];
//! assert_eq!(reader.take(&mut bytes), 5);
//! assert_eq!(&bytes, b"hello");
//! let peer_wants_room = reader.release();
//! assert!(!peer_wants_room);
//! # Ok::<(), ironwarp_shm::Corrupt>(())
//! ```

mod accesses;
mod end;
mod error;
mod heap;
pub mod layout;
#[cfg(all(test, loom))]
mod loom_tests;
mod progress;
mod reader;
mod ring;
mod segment;
mod sync;
#[cfg(test)]
mod tests;
mod watch;
mod words;
mod writer;

pub use end::{Side, open};
pub use error::Corrupt;
pub use heap::Heap;
pub use layout::{MAX_RECORD, MIN_GRANT, RING_LEN, SEGMENT_LEN};
pub use reader::{Front, Reader};
pub use segment::Segment;
pub use watch::{Sleep, Watch};
pub use writer::{Record, Writer};
