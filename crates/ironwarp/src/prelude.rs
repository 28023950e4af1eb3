//! The names that a first program needs.
//!
//! ```
//! use ironwarp::prelude::*;
//! ```

pub use crate::adapter::Adapter;
pub use crate::completion::{Completion, CompletionQueue, Status};
pub use crate::config::Config;
pub use crate::connection::{AcceptOptions, ConnectOptions, Listener};
pub use crate::memory::{Access, Buffer, MemoryRegion, RemoteAddr};
pub use crate::protection_domain::ProtectionDomain;
pub use crate::queue::{Completes, QueuePair, WorkRequest};
