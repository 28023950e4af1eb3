//! The messaging layer of the push-push I/O unit, for hosts and units (requirements P1 and P4 to P9).
//!
//! `docs/io-unit.md` describes the protocol. This crate does no I/O: a driver with two queue pairs passes in what
//! arrives and executes the actions that come out.
//!
//! | to find | look in |
//! |---|---|
//! | every message, to bytes and back | [`message`] |
//! | keys of hosts, proofs, and which session of a name is current | [`auth`] |
//! | receive pools, as their owner and as their sender see them | [`pool`] |
//! | the state machine of one session, at either end | [`session`] |
//! | frames with their virtio headers: checks, and segmentation without offloads | [`frame`] |
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod auth;
pub mod frame;
pub mod message;
pub mod pool;
pub mod session;
