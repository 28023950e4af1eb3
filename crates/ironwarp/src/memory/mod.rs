//! Memory for requests of this program and of peers: buffers, regions and windows.

mod buffer;
mod contents;
mod copy;
mod fast_region;
mod raw;
mod region;
mod registration;
mod reregister;
mod tag_tracker;
mod window;

pub use buffer::Buffer;
pub use contents::Contents;
pub use fast_region::FastRegion;
pub use region::MemoryRegion;
pub use reregister::RegionChange;
pub(crate) use tag_tracker::{PendingTags, TagSequence, TagState};
pub use window::Window;
