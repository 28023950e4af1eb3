//! The command `ironwarp`: what the adapter does, seen from a shell. Each command is a module.

mod ping;
mod say;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// RDMA on any Linux machine: no RDMA card, no kernel module, no root.
#[derive(Debug, Parser)]
#[command(name = "ironwarp", version, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Ping(ping::Arguments),
}

fn main() -> ExitCode {
    let Arguments { command: Command::Ping(arguments) } = Arguments::parse();
    match ping::run(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            say::error(&*error);
            ExitCode::FAILURE
        }
    }
}
