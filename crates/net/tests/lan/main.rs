//! The programs of a unit and of hosts as an ordinary user runs them, with containers that share a LAN (requirements P1, P4
//! to P9).
#![allow(clippy::unwrap_used, reason = "a helper that fails fails the test")]

mod agent;
mod capture;
mod client;
mod detach;
mod failures;
mod faults;
mod guest;
mod hostile;
mod iperf;
mod kills;
mod load;
mod modes;
mod network;
mod refused;
mod stalled;
mod status;
mod stream;
mod traffic;
mod uplink;
