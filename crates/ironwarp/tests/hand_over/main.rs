//! Hands adapters over between real processes, under full load and with processes that are killed or stopped (requirement X2).
#![allow(clippy::unwrap_used, reason = "tests may panic")]
#![allow(clippy::cast_possible_truncation, reason = "the numbers of these tests are small")]

mod control;
mod kills;
mod load;
mod pause;
mod role;
mod scene;
mod simple;
mod station;
mod stream;
