//! What goes wrong, said in words on standard error: one line for each, at the level that IRONWARP_LOG asks for.

use ironwarp_engine::{BringUpError, Remote};
use ironwarp_rnic::error::PostError;
use ironwarp_rnic::queue::{Completion, Status};
use std::fmt::Display;

/// A request failed.
pub(crate) fn failed(completion: &Completion) {
    let quiet = completion.status == Status::Flushed;
    let Some(cause) = &completion.cause else { return };
    let (qp, request, opcode, status) =
        (completion.qp, completion.wr_id, completion.opcode, completion.status);
    if quiet {
        tracing::debug!(qp, request, ?opcode, %status, %cause, "a request failed");
    } else {
        tracing::error!(qp, request, ?opcode, %status, %cause, "a request failed");
    }
}

/// The program, or whoever set its environment, asked for what cannot be.
pub(crate) fn mistake(error: &dyn Display) {
    tracing::error!(%error, "wrong settings");
}

/// The cause of a failure as a number, for programs that print it.
pub(crate) fn vendor_err(completion: &Completion) -> u32 {
    u32::from(completion.cause.is_some())
}

/// A queue pair was told of a peer that it cannot have.
pub(crate) fn not_brought_up(qp: u32, remote: Remote, error: &BringUpError) {
    let Remote { gid, qpn } = remote;
    tracing::error!(qp, peer = %gid, peer_qp = qpn, %error, "the queue pair cannot become ready to receive");
}

/// A request could not be posted.
pub(crate) fn not_posted(qp: u32, error: &PostError) {
    tracing::warn!(qp, %error, "a request was not taken");
}
