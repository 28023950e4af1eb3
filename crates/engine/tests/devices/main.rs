//! Logical devices (requirement X3): their rate and delay, and ports that go down.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

mod common;
mod down;
mod forks;
mod shaping;
