//! The command `ironwarp`, as a library, so that its manual pages and completions are generated from its definition by a
//! program that is not shipped (`examples/pages.rs`). Each subcommand is a module.

mod command;
mod detach;
mod devices;
mod explain;
mod ping;
mod port;
mod run;
mod say;
mod show;

pub use command::{definition, start};
