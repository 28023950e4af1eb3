//! The command `ironwarp`: what the adapter does, seen from a shell. Each command is a module.

mod devices;
mod explain;
mod ping;
mod run;
mod say;
mod show;

use clap::{Parser, Subcommand};
use say::Failure;
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
    Run(run::Arguments),
    Devices(devices::Arguments),
    Explain(explain::Arguments),
    Ping(ping::Arguments),
    Show(show::Arguments),
}

fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Run(arguments) => run::run(&arguments),
        Command::Devices(arguments) => exit_code(devices::run(&arguments)),
        Command::Explain(arguments) => exit_code(explain::run(&arguments)),
        Command::Ping(arguments) => exit_code(ping::run(&arguments)),
        Command::Show(arguments) => exit_code(show::run(&arguments)),
    }
}

/// False: the command was run, and told of failures.
fn exit_code(outcome: Result<bool, Failure>) -> ExitCode {
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            say::error(&*error);
            ExitCode::FAILURE
        }
    }
}
