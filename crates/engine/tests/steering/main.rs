//! Which lane serves a connection (requirements I7, I9, N5): by the hash of its addresses, by the table, by the program's word.
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "../common/mod.rs"]
mod common;
mod shown;
mod table;
