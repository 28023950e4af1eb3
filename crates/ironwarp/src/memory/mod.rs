//! Memory that requests use, of this program and of its peers: buffers, regions, pools and windows.
//!
//! A program allocates a [`Buffer`] and registers it in a [`ProtectionDomain`](crate::ProtectionDomain), which returns
//! a [`MemoryRegion`]. Requests name parts of a region by scatter/gather elements ([`Sge`]); a peer names them by a
//! [`RemoteAddr`], the address that it writes to or reads from.
//!
//! ```
//! # fn main() -> ironwarp::Result<()> {
//! use ironwarp::prelude::*;
//!
//! let domain = Adapter::new()?.protection_domain();
//! let region = domain.register(Buffer::new(4096)?, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
//! region.write(0, b"hello")?;
//! let (local, remote) = (region.slice(..5)?, region.remote_addr(0)?);
//! assert_eq!((local.len, remote.offset), (5, 0));
//! # Ok(())
//! # }
//! ```
//!
//! # Who may use memory, and when
//! A buffer that a request owns cannot be touched. With a [`Chunk`] of a [`Pool`] the compiler enforces this: an
//! asynchronous request takes the chunk by value and returns it with the completion, so that nothing in the program can
//! read or write it in between. A chunk cannot be cloned, and while a pool has it, nobody else does.
//!
//! At the level of verbs, a request takes scatter/gather elements ([`Sge`]), which are plain
//! numbers as in hardware. The program can read and write the bytes while a request uses them. This is safe, but not
//! checked: the program may see, and the peer may receive, some old and some new bytes. A program that waits for the
//! completion of a request before it touches the bytes never does.
//!
//! Why not more:
//! - References (`&[u8]`, `&mut [u8]`) are impossible. Safe code can make an element from numbers, so a borrow of the
//!   region would not cover all requests; and peers may write at any time.
//! - An error for each access to bytes that a request uses would cost a lookup per access, and could not cover the
//!   accesses of peers.

mod buffer;
mod buffer_builder;
mod contents;
mod copy;
mod error;
mod fast_region;
pub(crate) mod memfd;
mod page_list;
mod pool;
mod range;
mod raw;
mod region;
mod registration;
mod reregister;
mod tag_tracker;
mod view;
mod window;

pub use buffer::Buffer;
pub use buffer_builder::BufferBuilder;
pub use contents::Contents;
pub(crate) use contents::Parts;
pub use error::{AccessError, AllocateError, ChangeError, OutOfMemory, PageListError};
pub use fast_region::FastRegion;
pub use ironwarp_rnic::host::Span;
pub use ironwarp_rnic::memory::{
    Check, Denied, DeregisterError, Domain, EntryInfo, Kind, PageSize, RegisterError, ReregisterError,
    Rights as Access, TranslationError, Usage as TagUsage,
};
pub use ironwarp_rnic::queue::Sge;
pub use ironwarp_wire::{RemoteAddr, Tag};
pub use page_list::PageList;
pub use pool::{Chunk, Pool};
pub use region::MemoryRegion;
pub use reregister::RegionChange;
pub(crate) use tag_tracker::{PendingTags, TagSequence, TagState};
pub use view::{ArrayView, View};
pub use window::Window;
