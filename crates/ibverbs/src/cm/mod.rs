//! librdmacm: ids, their events, and how they are connected. The carrier is TCP: a connection's startup frames carry what
//! InfiniBand's connection manager has messages of its own for.
//!
//! ```text
//!  active                                                    passive
//!  rdma_resolve_addr, _route   `resolve`                     rdma_bind_addr, rdma_listen   `resolve`
//!  rdma_connect                `connect` ── MPA Request ───▶ CONNECT_REQUEST               `watch`, `event`
//!  ESTABLISHED                 `watch`   ◀──── MPA Reply ─── rdma_accept, rdma_reject      `accept`
//!                                                            ESTABLISHED                   `watch`
//! ```
//!
//! | file | for |
//! |---|---|
//! | `channel`, `event` | event channels; events, in C's form, until they are acknowledged |
//! | `id` | ids: made, moved to another channel, destroyed |
//! | `state` | what is behind an id, shared with the lanes' threads |
//! | `option` | options of ids |
//! | `address`, `addrinfo` | addresses of C; names and services |
//! | `resolve` | the way to a peer, or the port where peers come |
//! | `room` | room for TCP sockets of the program at the ports of ids |
//! | `connect`, `accept` | the two ends of a connection, and its end |
//! | `watch` | what the adapter tells of connections, which becomes events |
//! | `header` | what both ends say of queue pairs that the program connects itself |
//! | `qp`, `attr` | queue pairs and shared receive queues of ids; what a program needs to connect its own |
//! | `endpoint` | calls that do several steps at once |
//! | `device` | the context that all ids of a process share |
//! | `multicast` | what is not supported |

mod accept;
mod address;
mod addrinfo;
mod attr;
mod channel;
mod connect;
mod device;
mod endpoint;
mod event;
mod id;
mod multicast;
mod option;
mod qp;
mod resolve;
mod room;
mod state;
mod watch;

pub(crate) use watch::Watch;
