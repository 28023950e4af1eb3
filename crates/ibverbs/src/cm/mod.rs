//! librdmacm: ids, their events, and their connections. The transport is TCP: the MPA startup frames carry the
//! parameters that InfiniBand's connection manager sends in messages of its own.
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
//! | `address`, `addrinfo` | conversions of addresses; resolving names and services |
//! | `queue`, `state` | the events and the state of an id, shared with lanes |
//! | `device` | the context that all ids of a process share |
//! | `channel`, `delivered` | event channels; events until they are acknowledged |
//! | `id`, `option` | ids and their options |
//! | `event`, `synchronous` | taking events; calls that wait for their event |
//! | `incoming`, `established`, `failed`, `ended` | turn connection events of the adapter into events of ids |
//! | `watch` | dispatches connection events of the adapter to these |
//! | `resolve`, `resolve_addrinfo` | binding, listening, resolving addresses and routes; resolving names for an id |
//! | `port_conflict` | TCP sockets of the program at the ports of ids |
//! | `connect`, `accept` | the active and the passive side of a connection; disconnecting |
//! | `qp`, `attr` | queue pairs and shared receive queues of ids; attributes for programs that connect their own |
//! | `endpoint` | calls that combine several steps |
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
