//! Helpers that the tests of several crates, and `xtask`, share.
//!
//! Without features, this crate uses no other crate of the workspace, so that unit tests of every crate can use it.
//! The features `engine` and `native` add helpers for integration tests, on top of these two crates; `iscsi` adds an
//! iSCSI target.
#![allow(clippy::unwrap_used, reason = "a helper that fails fails the test")]

pub mod child;
pub mod control;
#[cfg(feature = "engine")]
pub mod engine;
pub mod fork;
pub mod hosts;
#[cfg(feature = "iscsi")]
pub mod iscsi;
pub mod limits;
pub mod long_form;
pub mod mapping;
#[cfg(feature = "native")]
pub mod native;
pub mod net;
pub mod packets;
pub mod path;
pub mod pattern;
pub mod process;
pub mod relay;
pub mod super_packet;
pub mod tgtd;
pub mod tshark;
pub mod wait;
