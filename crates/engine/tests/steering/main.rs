//! Which lane serves a connection (requirements I7, I9, N5): chosen by the hash of its addresses, by the
//! table, or by the program.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

mod shown;
mod table;
