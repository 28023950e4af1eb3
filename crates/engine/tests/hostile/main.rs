//! A hostile peer on a plain socket against an adapter at work: whatever it sends, or does not send, ends its own stream and
//! nothing else. In every test a neighbour uses the same adapter, and must not notice.
//!
//! | | |
//! |---|---|
//! | `refusal` | registrations by work request that are refused, where the stream goes on (requirement M7) |
//! | `local_checks`, `remote_checks` | memory that may not be used so (requirements M8 and M9): not one byte moves |
//! | `terminates` | every Terminate that this adapter can send, provoked |
//! | `atomics`, `immediates`, `private`, `read_v2`, `shared` | atomic operations, immediate data, private messages, shared and named receives |
//! | `tags`, `framing`, `signals`, `startups`, `flow`, `parking` | ways to get past the checks, and around them |
//! | `datagrams` | strangers who write to a UDP port |
//! | `unmapped` | memory that the program took away |
//! | `revocation` | memory that was given back stays untouched, under a storm |
//! | `rate` | the neighbour keeps its rate |
//! | `flood` | connections that are begun and never finished |

#![allow(clippy::unwrap_used, reason = "a test may stop")]

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
