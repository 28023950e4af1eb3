//! Queue pairs that are brought up by hand: two ends that know each other's GID and number, and nothing else.
#![allow(clippy::unwrap_used, reason = "a test may stop")]

mod common;
mod drain;
mod log;
mod misuse;
mod numbers;
mod orders;
mod processes;
mod proofs;
mod strangers;
