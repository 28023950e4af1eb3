//! The functions of libibverbs.
//!
//! | file | for |
//! |---|---|
//! | `device`, `query` | listing and opening the device; attributes of the device and its port |
//! | `pd`, `td`, `mr`, `mw`, `dm`, `buf` | domains and memory |
//! | `cq`, `cq_ex`, `channel`, `async_event` | completions and events |
//! | `qp`, `srq`, `xrc`, `ah` | queue pairs, shared receive queues, XRC domains, address handles |
//! | `work_request`, `post`, `qp_ex` | converting work requests, posting a chain, building and posting by extended calls |
//! | `checked` | posting and polling under `ironwarp run --check` |
//! | `import` | importing objects that another part of the program created |
//! | `vtable` | the tables of functions that inline code of the headers calls |
//! | [`text`] | names of statuses and events, link rates |
//! | [`fork`] | calls that prepare memory for fork |
//! | [`sysfs`], [`marshal`] | reading files of sysfs; converting structures of the kernel |
//! | `unsupported` | functions that fail with EOPNOTSUPP |

pub(crate) mod ah;
pub(crate) mod async_event;
pub(crate) mod buf;
pub(crate) mod channel;
mod checked;
pub(crate) mod cq;
pub(crate) mod cq_ex;
pub(crate) mod device;
pub(crate) mod dm;
pub mod fork;
pub(crate) mod import;
pub mod marshal;
pub(crate) mod mr;
pub(crate) mod mw;
pub(crate) mod pd;
pub(crate) mod post;
pub(crate) mod qp;
pub(crate) mod qp_ex;
pub(crate) mod query;
pub(crate) mod srq;
pub mod sysfs;
pub(crate) mod td;
pub mod text;
pub(crate) mod unsupported;
pub(crate) mod vtable;
pub(crate) mod work_request;
pub(crate) mod xrc;
