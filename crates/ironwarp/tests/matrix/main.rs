//! Every operation and size, between two processes over real sockets, with every byte verified. CRCs, markers, IP
//! versions, completion modes, kinds of peers and roles are combined pairwise. Then Wireshark's dissector checks the
//! traffic.
//!
//! ```text
//!  this process: active.rs ◀── iWARP ──▶ passive.rs: the same program, started once more
//!                    └─────── control.rs ────┘   what comes next, where, and whether all is well
//! ```
#![allow(clippy::unwrap_used, reason = "a test may stop")]

mod active;
mod capture;
mod control;
mod end;
mod op;
mod options;
mod passive;
mod pattern;
mod relay;

use active::Session;
use control::Other;
use op::{LARGE, OPS, RECEIVES, Receives, SIZES};
use options::{Options, pairwise};
use relay::{Relay, Tape};
use std::time::Instant;

#[test]
#[ignore = "the other process: the tests here start it"]
fn the_other_process() {
    passive::serve(control::parent());
}

fn other() -> Other {
    Other::start("the_other_process")
}

#[test]
fn every_operation_and_size_under_every_pair_of_options() {
    let mut other = other();
    for options in pairwise() {
        let (start, mut steps) = (Instant::now(), 0);
        for receives in RECEIVES {
            let rows = (0..OPS.len()).filter(|row| OPS[*row].goes_with(receives));
            let (refused, rows): (Vec<_>, Vec<_>) =
                rows.partition(|row| OPS[*row].needs_recognition() && !options.recognised());
            let mut session = Session::open(&mut other, &options, receives);
            for row in rows {
                for size in OPS[row].sizes(&SIZES) {
                    session.step(row, *size);
                    steps += 1;
                }
            }
            session.close();
            for row in refused {
                Session::open(&mut other, &options, receives).step_refused(row, 64);
                steps += 1;
            }
        }
        println!("{options:?}: {steps} steps, {:?}", start.elapsed());
    }
    other.end();
}

/// Each operation with different options.
#[test]
fn every_operation_with_64_mib() {
    let mut other = other();
    let sets = pairwise();
    for (row, op) in OPS.iter().enumerate().filter(|(_, op)| !op.is_atomic()) {
        let fitting: Vec<_> = sets.iter().filter(|it| it.recognised() || !op.needs_recognition()).collect();
        let start = Instant::now();
        let mut session = Session::open(&mut other, fitting[row % fitting.len()], Receives::Own);
        session.step(row, LARGE);
        session.close();
        println!("{}: {:?}", op.name, start.elapsed());
    }
    other.end();
}

#[test]
fn a_write_of_1_gib() {
    let mut other = other();
    let start = Instant::now();
    let options = Options::from([1, 0, 0, 1, 0, 0]);
    let mut session = Session::open(&mut other, &options, Receives::Own);
    session.step(op::row("Write"), 1 << 30);
    session.close();
    println!("1 GiB: {:?}", start.elapsed());
    other.end();
}

/// CRCs and markers, both off and on, and both IP versions. tshark follows markers if both directions have them.
#[test]
fn wireshark_follows_every_operation() {
    let mut other = other();
    for options in [[0, 0, 0, 0, 0, 0], [1, 0, 1, 1, 0, 0], [0, 1, 1, 0, 0, 0], [1, 1, 0, 1, 0, 0]] {
        let options = Options::from(options);
        let (mut tapes, mut messages) = (Vec::new(), Vec::new());
        for receives in RECEIVES {
            for row in (0..OPS.len()).filter(|row| OPS[*row].goes_with(receives)) {
                let (tape, posted) = recorded(&mut other, &options, receives, row);
                tapes.push(tape);
                messages.extend(posted);
            }
        }
        capture::check(&tapes, &options, &messages);
    }
    other.end();
}

/// Runs an operation with all sizes. Returns the recorded traffic, and the opcodes of the posted requests.
fn recorded(other: &mut Other, options: &Options, receives: Receives, row: usize) -> (Tape, Vec<u8>) {
    let mut relay = None;
    let through = |to| relay.insert(Relay::start(to)).address;
    let mut session = Session::open_through(other, options, receives, through);
    for size in OPS[row].sizes(&SIZES) {
        session.step(row, *size);
    }
    let messages = session.close();
    (relay.unwrap().tape(), messages)
}
