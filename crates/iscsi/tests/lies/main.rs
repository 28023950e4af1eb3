//! Sessions with a target that lies, stalls, pings and disconnects: nothing wrong is reported as done, and no memory changes but
//! that of outstanding reads.
#![allow(clippy::unwrap_used, reason = "tests may panic")]
#![allow(clippy::cast_possible_truncation, reason = "lengths of tests are small")]

mod lab;
mod late;
mod numbers;
mod pings;
mod reads;
mod reconnect;
mod window;
mod writes;
