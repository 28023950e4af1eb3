//! Logical devices (requirement X3): their rate and delay.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

mod common;
mod shaping;
