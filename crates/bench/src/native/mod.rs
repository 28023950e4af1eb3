//! Ironwarp through its native API, with no settings other than those of the turn.
//!
//! `pingpong.rs`, `stream.rs` and `requests.rs` have the workloads, which mirror those of `bare`; `idle.rs` and
//! `priority.rs` have no counterpart there. `end.rs` has the ends that they use.

mod end;
mod idle;
mod pingpong;
mod priority;
mod requests;
mod sleeper;
mod stream;

use crate::control::{self, Server};
use crate::measure::Measured;
use crate::result::Result;
use crate::turn::{Turn, Workload};
use end::Host;
use std::net::SocketAddr;

/// Runs the client of a turn, and returns the result.
pub(crate) fn run(turn: &Turn, server: &mut Server) -> Result<Measured> {
    let at = server.address()?;
    match turn.workload {
        Workload::PingPong => pingpong::run(turn, server, at),
        Workload::Watch => pingpong::run_watching(turn, server, at),
        Workload::Stream => stream::run(turn, server, at),
        Workload::Requests => requests::run(turn, server, at),
        Workload::Priority => priority::run(turn, server, at),
        Workload::Idle => idle::run(turn, at),
    }
}

/// Runs the server of a turn.
pub(crate) fn serve(turn: &Turn) -> Result {
    let host = Host::open(turn)?;
    let listener = host.adapter.listen(SocketAddr::new(turn.at, 0))?;
    control::print_address(listener.local_addr()?);
    match turn.workload {
        Workload::PingPong => pingpong::serve(turn, &host, &listener),
        Workload::Watch => pingpong::serve_watching(turn, &host, &listener),
        Workload::Stream => stream::serve(turn, &host, &listener),
        Workload::Requests => requests::serve(turn, &host, &listener),
        Workload::Priority => priority::serve(turn, &host, &listener),
        Workload::Idle => idle::serve(turn, &host, &listener),
    }
}
