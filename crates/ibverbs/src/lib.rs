//! Drop-in for libibverbs and librdmacm: their C interface over Ironwarp's adapter.
//!
//! Programs that were built against rdma-core's headers find the functions of both libraries here, and the structures that
//! inline functions of those headers reach into. `cargo xtask dropin` links this crate into the one shared file that
//! they load. C callers are untrusted: what the interface lets one detect is answered with the documented errno, and
//! nothing panics across it.
//!
//! The path of a message: `post` (a chain of C → requests of the adapter) → the adapter → `completion` (→ `ibv_wc`) → `cq`,
//! which the program polls, or `channel`, where it waits.
//!
//! | file | for |
//! |---|---|
//! | [`abi`] | structures, constants and function tables, as the headers lay them out |
//! | `object`, `errno` | what C holds pointers to, and how it learns that a call failed |
//! | `device`, `context`, `query` | the device, opened and asked |
//! | `persona` | what it shows itself as |
//! | `pd`, `mr`, `mw`, `dm`, `parent` | domains and memory |
//! | `cq`, `channel`, `completion`, `cq_ex` | completions, and waiting for them |
//! | `wake`, `async_event` | descriptors to wait on; what happens outside of any request |
//! | `qp`, `post`, `qp_ex`, `srq`, `xrc`, `ah` | queue pairs, their states, and what is posted to them |
//! | `cm` | librdmacm |
//! | `turn`, `sync` | calls that belong together; locks |
//! | `buf` | memory that the library allocates for programs |
//! | `import` | the same device, domain or memory once more |
//! | `rsocket` | sockets over RDMA |
//! | `exit` | the end of the process |
//! | `files` | the files of a kernel driver that some programs look for |
//! | `report` | what goes wrong, in words |
//! | [`text`] | names of statuses and events, link rates |
//! | [`fork`] | nothing to prepare for a fork |
//! | [`sysfs`], [`marshal`] | helpers that programs call beside verbs |
//! | `unsupported` | what is exported and says that it is not supported |
#![allow(unreachable_pub, reason = "entry points are exported by name")]
#![allow(
    clippy::missing_safety_doc,
    reason = "the functions are those of the manual pages, which say what a caller must do"
)]

pub mod abi;
mod ah;
mod async_event;
mod buf;
mod cancel;
mod channel;
mod cm;
mod completion;
mod context;
mod cq;
mod cq_ex;
mod device;
mod dm;
mod errno;
mod exit;
mod files;
pub mod fork;
#[doc(hidden)]
pub mod fuzzing {
    //! What fuzz targets reach of private modules.
    pub use crate::rsocket::fuzzing::Connection as Rsocket;
}
mod import;
pub mod marshal;
mod mr;
mod mw;
mod object;
mod parent;
mod pd;
mod persona;
mod post;
mod qp;
mod qp_ex;
mod query;
mod report;
mod rsocket;
mod srq;
mod sync;
pub mod sysfs;
pub mod text;
mod turn;
mod unsupported;
mod wake;
mod xrc;
