//! Connections between two adapters of one host, which are carried in shared memory instead of TCP: over real sockets, and
//! in real processes.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

mod churn;
mod common;
mod containers;
mod data;
mod ends;
mod faults;
mod forks;
mod idle;
mod kills;
mod leaving;
mod off;
mod sharing;
mod sleeping;
mod stream;
mod switching;
