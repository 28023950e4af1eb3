//! One turn of a measurement: two processes with a processor each, over bare TCP or over Ironwarp's native API.
//!
//! `cargo xtask bench` comes before this: it decides whose turn it is, starts this program once for each, and compares.
//! What comes out is one line of words for it to read.
//!
//! ```text
//!  turn.rs      what is done, by whom, how large, how many at once: the words of the command line
//!  control.rs   the server as a child process, processors, processor time
//!  measure.rs   clocks, the pattern that is moved, the line that is printed
//!  scattered.rs which of many connections is next
//!  bare/        the loops over plain sockets
//!  native/      the same over queue pairs
//!  registration.rs, neighbour.rs   registration by call and by control queue: a table of its own
//!  shared_send.rs   private send queues and a shared one: another
//!  shares.rs    two classes of bulk at one lane: another
//! ```
//!
//! Turns last a time, not a count: so a run of many turns takes as long as it was planned to, on any machine.

mod bare;
mod control;
mod measure;
mod native;
mod neighbour;
mod registration;
mod scattered;
mod shared_send;
mod shares;
mod turn;

use std::error::Error;
use std::process::ExitCode;
use turn::{Turn, Who};

/// An error is a sentence for the person who measures: no caller tells one kind from another.
type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let done = match words.split_first() {
        Some((first, words)) if first == control::SERVE => serve(words),
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

/// The client: it starts the server, measures, and prints.
fn run(words: &[String]) -> Result {
    let turn = begin(words)?;
    let mut server = control::Server::start(&turn)?;
    let measured = match turn.who {
        Who::Bare => bare::run(&turn, &mut server)?,
        Who::Ironwarp => native::run(&turn, &mut server)?,
    };
    println!("{measured}");
    Ok(())
}

fn serve(words: &[String]) -> Result {
    let turn = begin(words)?;
    control::prepare(1)?;
    control::end_with_client()?;
    match turn.who {
        Who::Bare => bare::serve(&turn),
        Who::Ironwarp => native::serve(&turn),
    }
}

fn begin(words: &[String]) -> Result<Turn> {
    let turn = Turn::parse(words)?;
    if turn.ordinary {
        control::give_up_priority()?;
    }
    Ok(turn)
}
