//! librdmacm: ids, their events, and how they are connected. The transport is TCP: the MPA startup frames carry what
//! InfiniBand's connection manager sends in messages of its own.
//!
//! ```text
//!  active                                                     passive
//!  rdma_resolve_addr, _route   `resolve`                      rdma_bind_addr, rdma_listen   `resolve`
//!  rdma_connect                `connect`  ── MPA Request ───▶ CONNECT_REQUEST               `incoming`, `event`
//!  ESTABLISHED              `established` ◀──── MPA Reply ─── rdma_accept, rdma_reject      `accept`
//!                                                             ESTABLISHED                   `established`
//! ```
//!
//! | file | for |
//! |---|---|
//! | `address`, `addrinfo` | addresses of C; names and services |
//! | `queue`, `state` | the events and the state of an id, shared with the threads of lanes |
//! | `device` | the context that all ids of a process share |
//! | `channel`, `delivered` | event channels; events until they are acknowledged |
//! | `id`, `option` | ids and their options |
//! | `event`, `synchronous` | taking events; ids whose calls wait for them |
//! | `incoming`, `established`, `failed`, `ended` | what becomes of a connection |
//! | `watch` | dispatches connection events of the adapter to these |
//! | `resolve`, `resolve_addrinfo` | the route to a peer, or the port that peers connect to |
//! | `port_conflict` | TCP sockets of the program at the ports of ids |
//! | `connect`, `accept` | the two ends of a connection, and closing it |
//! | `qp`, `attr` | queue pairs and shared receive queues of ids; attributes for a program that connects its own |
//! | `endpoint` | calls that do several steps at once |
//! | `multicast` | functions that are not supported |

mod accept;
mod address;
mod addrinfo;
mod attr;
mod channel;
mod connect;
mod delivered;
mod device;
mod ended;
mod endpoint;
mod established;
mod event;
mod failed;
mod id;
mod incoming;
mod multicast;
mod option;
mod port_conflict;
mod qp;
mod queue;
mod resolve;
mod resolve_addrinfo;
mod state;
mod synchronous;
mod watch;
