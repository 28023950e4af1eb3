//! Drop-in replacement for libibverbs and librdmacm: implements their C interface with Ironwarp's adapter.
//!
//! Programs that were built against rdma-core's headers find the functions of both libraries here, and the structures
//! that inline functions of those headers access. `cargo xtask dropin` links this crate into the one shared library
//! that such programs load. C callers are untrusted: a call with a detectable mistake returns the documented errno,
//! and no panic leaves this crate.
//!
//! The path of a message: `verbs::post` converts a chain of C requests → the adapter → `objects::completion` converts
//! completions to `ibv_wc` → `verbs::cq`, which the program polls, or `verbs::channel`, where the program waits.
//!
//! Each module uses only those above it in this table:
//!
//! | module | for |
//! |---|---|
//! | [`abi`] | structures, constants and function tables, as the headers lay them out |
//! | `check` | finds mistakes of the program, for `ironwarp run --check` |
//! | `support` | errno and the log, the table of live objects, settings, waiting, closing connections at exit |
//! | `objects` | the objects of verbs: device, context, domains, memory, queues, queue pairs |
//! | `verbs` | the functions of libibverbs |
//! | `files` | the files of a kernel driver that some programs look for |
//! | `cm` | librdmacm |
//! | `rsocket` | sockets over RDMA |
#![allow(unreachable_pub, reason = "entry points are exported by name")]
#![allow(
    clippy::missing_safety_doc,
    reason = "the functions are those of the manual pages, which say what a caller must do"
)]

pub mod abi;
mod check;
mod cm;
mod files;
mod objects;
mod rsocket;
mod support;
mod verbs;

#[doc(hidden)]
pub mod fuzzing {
    //! Parts of private modules, for fuzz targets.
    pub use crate::rsocket::fuzzing::Connection as Rsocket;
}

pub use verbs::{fork, marshal, sysfs, text};
