//! The objects that C programs create by verbs. Each begins with its C structure (`support::object`).
//!
//! | file | for |
//! |---|---|
//! | `limits`, `gids` | limits of the adapter; the GID table of its port |
//! | `device`, `context` | the device, and its opens, each with an adapter |
//! | `async_event` | asynchronous events and their acknowledgement |
//! | `pd`, `td` | protection, parent and thread domains |
//! | `mr`, `mw`, `dm`, `buf` | memory |
//! | `channel`, `cq`, `completion` | completions, and waiting for them |
//! | `qp`, `srq`, `xrc`, `ah` | queue pairs, shared receive queues, XRC domains, address handles |

pub(crate) mod ah;
pub(crate) mod async_event;
pub(crate) mod buf;
pub(crate) mod channel;
pub(crate) mod completion;
pub(crate) mod context;
pub(crate) mod cq;
pub(crate) mod device;
pub(crate) mod dm;
pub(crate) mod gids;
pub(crate) mod limits;
pub(crate) mod link_speed;
pub(crate) mod mr;
pub(crate) mod mw;
pub(crate) mod pd;
pub(crate) mod qp;
pub(crate) mod srq;
pub(crate) mod td;
pub(crate) mod xrc;
