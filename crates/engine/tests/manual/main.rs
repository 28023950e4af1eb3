//! Manually connected queue pairs: two ends that know each other's GID and QPN, and nothing else.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

mod common;
mod drain;
mod log;
mod misuse;
mod numbers;
mod orders;
mod processes;
mod proofs;
mod strangers;
