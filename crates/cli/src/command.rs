//! The command line: its definition, and which module runs which subcommand.

use crate::say::{self, Failure};
use crate::{detach, devices, explain, ping, port, run, show};
use clap::{CommandFactory, Parser, Subcommand};

/// RDMA on any Linux machine: no RDMA hardware, no kernel module, no root.
#[derive(Debug, Parser)]
#[command(name = "ironwarp", version, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(Box<run::Arguments>),
    Devices(devices::Arguments),
    Explain(explain::Arguments),
    Ping(ping::Arguments),
    Port(port::Arguments),
    Detach(detach::Arguments),
    Show(show::Arguments),
}

/// Returns the definition of the command line, from which the manual pages and completions are generated.
pub fn definition() -> clap::Command {
    Arguments::command()
}

/// Runs the command and returns the exit code.
pub fn start() -> i32 {
    let command = parse_plain_run().unwrap_or_else(|| Arguments::parse().command);
    // `run` must pass signals on to the program as they were.
    if !matches!(command, Command::Run(_)) {
        run::ignore_sigpipe();
    }
    match command {
        Command::Run(arguments) => run::run(&arguments),
        Command::Devices(arguments) => exit_code(devices::run(&arguments)),
        Command::Explain(arguments) => exit_code(explain::run(&arguments)),
        Command::Ping(arguments) => exit_code(ping::run(&arguments)),
        Command::Port(arguments) => exit_code(port::run(&arguments)),
        Command::Detach(arguments) => exit_code(detach::run(&arguments)),
        Command::Show(arguments) => exit_code(show::run(&arguments)),
    }
}

/// Parses `ironwarp run -- PROGRAM …`, the most common form, without clap, which takes as long as everything else that
/// `run` does. Returns `None` for any other command line.
fn parse_plain_run() -> Option<Command> {
    let mut arguments = std::env::args_os().skip(1);
    let plain = arguments.next()? == "run" && arguments.next()? == "--";
    let program: Vec<_> = arguments.collect();
    (plain && !program.is_empty()).then(|| Command::Run(Box::new(run::Arguments::plain(program))))
}

/// Returns the exit code for the result of a command. `Ok(false)` means that the command has reported failures itself.
fn exit_code(outcome: Result<bool, Failure>) -> i32 {
    match outcome {
        Ok(true) => 0,
        Ok(false) => 1,
        Err(error) => {
            say::error(&*error);
            1
        }
    }
}
