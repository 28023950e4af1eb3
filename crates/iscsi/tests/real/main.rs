//! The initiator at a real target, tgtd.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

mod blocks;
mod common;
mod copies;
mod kills;
mod logins;
