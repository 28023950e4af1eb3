//! A hostile process on the same host shares memory with an adapter in use: whatever it writes there, rings, passes or
//! leaves undone, it ends its own connections and nothing else. In every test, other adapters use the same adapter in
//! shared memory and over TCP, and must not be affected; and all descriptors and mappings are given back.
//!
//! | module | subject |
//! |---|---|
//! | `offers` | offers, and the tokens in them |
//! | `guests` | the Unix socket of the victim |
//! | `answers` | what a peer passes instead of memory |
//! | `positions` | heads, tails and headers of records |
//! | `controls` | records that are not data |
//! | `streams` | data, credit, the switch between routes, and TCP beside shared memory |
//! | `leaving` | peers that are asked to leave shared memory, or ask for it |
//! | `bells` | the socket that wakes the victim |
//! | `deaths` | a peer that dies or stops at any place |

#![allow(clippy::unwrap_used, reason = "tests may panic")]

mod answers;
mod bells;
mod common;
mod controls;
mod deaths;
mod guests;
mod leaving;
mod offers;
mod positions;
mod streams;
