//! Bare TCP: plain sockets without framing, as the baseline.
//!
//! `pingpong.rs`, `stream.rs` and `requests.rs` have the workloads, `socket.rs` the sockets that they use.

mod pingpong;
mod requests;
mod socket;
mod stream;

use crate::control::{self, Server};
use crate::measure::Measured;
use crate::result::Result;
use crate::turn::{Turn, Workload};
use socket::{accept, connect};
use std::net::TcpListener;

/// Runs the client of a turn, and returns the result.
pub(crate) fn run(turn: &Turn, server: &mut Server) -> Result<Measured> {
    let at = server.address()?;
    match turn.workload {
        Workload::PingPong => pingpong::run(turn, server, connect(turn, at)?),
        Workload::Watch => pingpong::run_watching(turn, server, connect(turn, at)?),
        Workload::Stream => stream::run(turn, server, connect(turn, at)?),
        Workload::Requests => requests::run(turn, server, at),
        Workload::Idle => Err("the memory of bare sockets is in the kernel".into()),
        Workload::Priority => Err("bare sockets have no class".into()),
    }
}

/// Runs the server of a turn.
pub(crate) fn serve(turn: &Turn) -> Result {
    let listener = TcpListener::bind((turn.at, 0))?;
    control::print_address(listener.local_addr()?);
    match turn.workload {
        Workload::PingPong => pingpong::serve(turn, accept(turn, &listener)?),
        Workload::Watch => pingpong::serve_watching(accept(turn, &listener)?),
        Workload::Stream => stream::serve(turn, accept(turn, &listener)?),
        Workload::Requests => requests::serve(turn, &listener),
        Workload::Idle | Workload::Priority => Ok(()),
    }
}
