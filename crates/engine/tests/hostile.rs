//! A hostile peer on a plain socket against an adapter at work: whatever it sends, or does not send, ends its own stream and
//! nothing else. Which check gives which Terminate is in `checks.rs`; here are the ways to get past them, and around them.
//!
//! In every test a neighbour uses the same adapter, and must not notice.

#![allow(clippy::unwrap_used, reason = "a test may stop")]

#[path = "hostile/common/mod.rs"]
mod common;

#[path = "hostile/flow.rs"]
mod flow;
#[path = "hostile/framing.rs"]
mod framing;
#[path = "hostile/parking.rs"]
mod parking;
#[path = "hostile/rate.rs"]
mod rate;
#[path = "hostile/revocation.rs"]
mod revocation;
#[path = "hostile/signals.rs"]
mod signals;
#[path = "hostile/startups.rs"]
mod startups;
#[path = "hostile/tags.rs"]
mod tags;
#[path = "hostile/unmapped.rs"]
mod unmapped;
