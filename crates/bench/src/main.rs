//! Runs one turn of a benchmark: two processes on a processor each, over bare TCP or over Ironwarp's native API.
//!
//! `cargo xtask bench` starts this program once per turn, parses its output, one line of `key=value` words, and
//! compares turns.
//!
//! ```text
//!  turn.rs      the parameters of a turn: the words of the command line
//!  control.rs   the server as a child process, processors, processor time, a process that keeps one busy
//!  measure.rs   clocks, the payload pattern, the output
//!  scattered.rs the order in which many connections are used
//!  bare/        workloads over plain sockets
//!  native/      the same workloads over queue pairs
//!  registration.rs, neighbour.rs   compare registration by call and by control queue
//!  shared_send.rs   compares private send queues and a shared one
//!  shares.rs    measures the shares of two bulk classes on one lane
//!  iscsi.rs     reads from an iSCSI target, for `cargo xtask bench-iscsi`
//! ```
//!
//! A turn runs for a fixed time instead of a fixed count, so a benchmark takes equally long on any machine.

mod bare;
mod control;
mod iscsi;
mod measure;
mod native;
mod neighbour;
mod registration;
mod result;
mod scattered;
mod shared_send;
mod shares;
mod turn;

use result::Result;
use std::process::ExitCode;
use turn::{Transport, Turn};

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let done = match words.split_first() {
        Some((first, words)) if first == control::SERVE => serve(words),
        Some((first, _)) if first == control::COMPUTE => control::compute(),
        Some((first, words)) if first == "iscsi" => iscsi::run(words),
        Some((first, words)) if first == "registration" => registration::run(words),
        Some((first, words)) if first == "shared_send" => shared_send::run(words),
        Some((first, words)) if first == "shares" => shares::run(words),
        _ => run(&words),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ironwarp-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the client, which starts the server, measures, and prints the result.
fn run(words: &[String]) -> Result {
    let turn = parse_turn(words)?;
    let mut server = control::Server::start(&turn)?;
    let measured = match turn.transport {
        Transport::Bare => bare::run(&turn, &mut server)?,
        Transport::Ironwarp => native::run(&turn, &mut server)?,
    };
    println!("{measured}");
    Ok(())
}

/// Runs the server, in the child process.
fn serve(words: &[String]) -> Result {
    let turn = parse_turn(words)?;
    control::prepare(1)?;
    control::die_with_parent()?;
    match turn.transport {
        Transport::Bare => bare::serve(&turn),
        Transport::Ironwarp => native::serve(&turn),
    }
}

/// Parses the parameters of a turn, and drops the permission to raise the priority if the turn demands it.
fn parse_turn(words: &[String]) -> Result<Turn> {
    let turn = Turn::parse(words)?;
    if turn.ordinary {
        control::drop_priority_permission()?;
    }
    Ok(turn)
}
