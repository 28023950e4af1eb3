//! Every check before memory is touched, and every Terminate that this adapter can send.
//!
//! A peer on a plain socket, or the program itself, names memory that may not be used so (requirements M8 and M9) or breaks
//! a rule. Each test sees to it that not one byte of the victim's memory moved, that exactly the Terminate of the RFCs went out,
//! that the queue pair tells the cause, that its receives came back, and that a neighbour did not notice.

#![allow(clippy::unwrap_used, reason = "a test may stop")]

#[path = "hostile/common/mod.rs"]
mod common;

#[path = "hostile/local_checks.rs"]
mod local_checks;
#[path = "hostile/remote_checks.rs"]
mod remote_checks;
#[path = "hostile/terminates.rs"]
mod terminates;
