//! Sessions of a host and a unit over a model of two channels (P4 to P9).
#![allow(clippy::unwrap_used, reason = "tests may panic")]

mod attach;
mod flow;
mod flush;
mod hostile;
mod input;
mod model;
mod random;
