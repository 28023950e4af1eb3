//! A hostile peer on a plain socket attacks an adapter in use: whatever it sends, or does not send, ends its
//! own stream and nothing else. In every test a neighbour uses the same adapter and must not be affected.
//!
//! | module | subject |
//! |---|---|
//! | `refusal` | registrations by work request that are refused while the stream continues (requirement M7) |
//! | `local_checks`, `remote_checks` | invalid accesses to memory (requirements M8 and M9): not a single byte moves |
//! | `terminates` | every Terminate that this adapter can send, provoked |
//! | `atomics`, `immediates`, `private`, `read_v2`, `shared` | atomic operations, immediate data, private messages, shared receive queues |
//! | `tags`, `framing`, `signals`, `startups`, `flow`, `parking` | ways to get past the checks, and around them |
//! | `datagrams`, `acknowledged_datagrams` | datagrams from unexpected senders |
//! | `unmapped` | registered memory that the program has unmapped |
//! | `revocation` | deregistered memory is no longer accessed, under load |
//! | `rate` | the rate of the neighbour under attack |
//! | `flood` | connections that are opened and never completed |

#![allow(clippy::unwrap_used, reason = "tests may panic")]

mod acknowledged_datagrams;
mod atomics;
mod common;
mod datagrams;
mod flood;
mod flow;
mod framing;
mod immediates;
mod local_checks;
mod one_touch;
mod panics;
mod parking;
mod private;
mod rate;
mod read_v2;
mod refusal;
mod remote_checks;
mod revocation;
mod shared;
mod signals;
mod startups;
mod tags;
mod terminates;
mod unmapped;
