//! What goes wrong, said in words on standard error: one line for each, as much as IRONWARP_LOG asks for. The words are those
//! of the adapter's own errors, which native programs see, too; here is added which object of the program it is about.
//!
//! A fault is said once: with the request that has a status for it, or else when the connection ends. Requests that are
//! flushed follow from it, and are said only to who wants to know more.

mod pairs;
mod teller;

pub(crate) use pairs::{forget, know, told};
pub(crate) use teller::begin;

use ironwarp_engine::{BringUpError, ConnectError, Remote};
use ironwarp_rnic::config::ConfigError;
use ironwarp_rnic::error::{Culprit, Fault, PostError};
use ironwarp_rnic::fault::{Counts, FaultPlan};
use ironwarp_rnic::queue::{Completion, RequestError, Status};
use std::fmt;
use std::net::SocketAddr;
use tracing::field::display;

/// A request failed.
pub(crate) fn failed(completion: &Completion) {
    let qp = completion.qp;
    let (vendor_err, peer) = (format_args!("{:#010x}", vendor_err(completion)), pairs::peer(qp).map(display));
    let error = RequestError(completion.clone());
    if completion.status == Status::Flushed {
        tracing::info!(qp = %Hex(qp), peer, %vendor_err, "{error}");
    } else {
        tracing::warn!(qp = %Hex(qp), peer, %vendor_err, "{error}");
    }
}

/// A connection ended. Unless a request tells of it, or all is well, this does.
fn ended(qp: u32, fault: &Fault) {
    let Some(pair) = pairs::find(qp) else { return };
    let peer = pair.peer().map(display);
    let vendor_err = format_args!("{:#010x}", fault.vendor_err());
    if fault.culprit() == Culprit::Nobody || pair.qp().blames_a_request() {
        tracing::info!(qp = %Hex(qp), peer, %vendor_err, "the connection ended: {fault}");
    } else {
        tracing::warn!(qp = %Hex(qp), peer, %vendor_err, "the connection ended: {fault}");
    }
}

/// A queue pair that was told of its peer will not be connected to it.
pub(crate) fn not_connected(qp: u32, error: &ConnectError) {
    let peer = pairs::peer(qp).map(display);
    match error {
        // The program's own wish; or requests have waited too long, and tell.
        ConnectError::GivenUp | ConnectError::TimedOut => {
            tracing::info!(qp = %Hex(qp), peer, "not connected: {error}");
        }
        _ => tracing::warn!(qp = %Hex(qp), peer, "not connected: {error}"),
    }
}

/// An id will not be connected to the address that it was given.
pub(crate) fn not_reached(peer: SocketAddr, error: &ConnectError) {
    tracing::warn!(%peer, "rdma_connect failed: {error}");
}

/// The environment asks for what cannot be.
pub(crate) fn mistake(error: &ConfigError) {
    tracing::warn!("{error}");
}

/// A queue pair was told of a peer that it cannot have.
pub(crate) fn not_brought_up(qp: u32, remote: Remote, error: &BringUpError) {
    let peer = ironwarp_engine::Peer::ByHand(remote);
    tracing::warn!(qp = %Hex(qp), %peer, "ibv_modify_qp cannot connect it: {error}");
}

/// A queue pair cannot go from one state to another with these attributes.
pub(crate) fn wrong_step(qp: u32, (from, to): (u32, u32), mask: u32) {
    tracing::warn!(qp = %Hex(qp), "cannot go from state {from} to {to} with attributes {mask:#x}");
}

/// What the faults that were asked for did.
pub(crate) fn faults(plan: &FaultPlan, seed: u64, counts: &Counts) {
    tracing::warn!("faults {plan}, seed {seed}: {counts}");
}

/// A request could not be posted. One for which there is no room may be tried again: some programs count on that.
pub(crate) fn not_posted(qp: u32, wr_id: u64, error: &PostError) {
    let peer = pairs::peer(qp).map(display);
    match error {
        PostError::Full { .. } => {
            tracing::info!(qp = %Hex(qp), peer, wr_id, "a request was not taken: {error}")
        }
        _ => tracing::warn!(qp = %Hex(qp), peer, wr_id, "a request was not taken: {error}"),
    }
}

/// The cause of a failure as a number, for programs that print it; `ironwarp explain` tells what it means.
pub(crate) fn vendor_err(completion: &Completion) -> u32 {
    completion.cause.as_ref().map_or(0, |cause| cause.vendor_err())
}

/// Numbers of queue pairs as most programs print them.
struct Hex(u32);

impl fmt::Display for Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

/// A program accepts a peer whose queue pair it cannot know, because it is the id's.
pub(crate) fn only_managed(peer: SocketAddr) {
    tracing::error!(%peer, "the peer's queue pair is connected by its id (rdma_create_qp): accept it with one as well");
}
