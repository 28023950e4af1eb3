//! The passive end of a connection: accepting or rejecting the request of a peer.
#![expect(unsafe_code, reason = "entry points of the C ABI")]

use super::connect::{ConnectParams, side_channel, with_header};
use super::device::CmDevice;
use super::id::Id;
use super::state::{Link, Phase, Purpose, Shared};
use super::synchronous::complete;
use super::watch;
use crate::abi::*;
use crate::objects::qp::Qp;
use crate::support::cancel::without_cancellation;
use crate::support::errno::{Errno, minus_one};
use crate::support::object::find;
use crate::support::report;
use ironwarp_engine::gid::Gid;
use ironwarp_engine::{BringUpOptions, Incoming, Local, QueuePair, Remote};
use ironwarp_rnic::qp::State as QpState;
use ironwarp_wire::private::{CmHeader, CmKind};
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::time::Duration;

/// Status of a SIDR reply that rejects a lookup.
const SIDR_REJECT: u32 = 2;

/// How long to wait for an answer to be sent. It is sent at once, unless the host is stuck.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// # Safety
/// `param` is NULL or valid.
unsafe fn accept(id: &Id, param: *const rdma_conn_param) -> Result<(), Errno> {
    let otherwise = id.shared().lock().depths;
    // SAFETY: guaranteed by the caller.
    let wanted = unsafe { ConnectParams::read(id, param, otherwise)? };
    let qp = id.qp()?;
    let request = {
        let mut state = id.shared().lock();
        let request = state.request.take().ok_or(Errno::INVALID)?;
        state.depths = wanted.depths;
        request
    };
    id.note_connection(&wanted.header);
    if let Some(qp) = &qp {
        watch::follow(qp, id.shared());
    }
    match (request.header, qp) {
        _ if id.is_datagram() => answer_lookup(id, request.incoming, &wanted),
        (None, Some(qp)) => accept_managed(id, request.incoming, &qp, &wanted),
        (None, None) => {
            // The peer sent a standard Request, which has no room for a queue pair number.
            report::log_missing_qp(request.incoming.peer());
            Err(Errno::INVALID)
        }
        (Some(peer), qp) => accept_side_channel(id, request.incoming, peer, qp.as_deref(), &wanted),
    }
    .inspect_err(|_| id.shared().lock().phase = Phase::Failed)
}

/// Accepts the connection with the queue pair of the id.
fn accept_managed(id: &Id, incoming: Incoming, qp: &Qp, wanted: &ConnectParams) -> Result<(), Errno> {
    let engine = id.device()?.context.engine();
    let pair = qp.stream().ok_or(Errno::INVALID)?;
    // What the program posts from now on waits for the connection.
    pair.modify(QpState::ReadyToReceive)?;
    pair.modify(QpState::ReadyToSend)?;
    begin(id, pair, Purpose::Managed);
    let terms = engine.terms(wanted.depths.ird(), wanted.depths.ord());
    incoming.accept(pair, terms, &wanted.private_data).map_err(|error| Errno::from(&error))
}

fn begin(id: &Id, pair: &Arc<QueuePair>, purpose: Purpose) {
    let mut state = id.shared().lock();
    state.link = Some(Link { pair: Arc::clone(pair), purpose });
    state.phase = Phase::Accepting;
}

/// Answers a lookup with the number of a UD queue pair. That is a rejection with private data, not a
/// connection.
fn answer_lookup(id: &Id, incoming: Incoming, wanted: &ConnectParams) -> Result<(), Errno> {
    let header = CmHeader { kind: CmKind::Found, qkey: RDMA_UDP_QKEY, ..wanted.header };
    id.shared().lock().phase = Phase::Connected;
    answer(incoming, &with_header(&header, &wanted.private_data))
}

/// Sends a rejection with private data. It has been sent when this returns, because the program may exit
/// next.
fn answer(incoming: Incoming, private_data: &[u8]) -> Result<(), Errno> {
    incoming.reject_and_wait(private_data, ANSWER_TIMEOUT).map_err(|error| Errno::from(&error))
}

/// Accepts a side channel: one of the two programs connects its queue pair itself, so both ends exchange
/// numbers. A queue pair of the id is connected by number.
fn accept_side_channel(
    id: &Id,
    incoming: Incoming,
    peer: CmHeader,
    qp: Option<&Qp>,
    wanted: &ConnectParams,
) -> Result<(), Errno> {
    let engine = id.device()?.context.engine();
    let pair = side_channel(engine, id.shared())?;
    let mut header = wanted.header;
    // Before the queue pair is connected, and before the peer learns that it may use the secret.
    header.keeps_secret = peer
        .secret
        .is_some_and(|secret| report::find_pair(header.qpn).is_some_and(|own| own.keep_secret(secret)));
    let purpose = match qp {
        None => Purpose::SideChannel,
        Some(qp) => {
            bring_up(id.shared(), qp.stream().ok_or(Errno::INVALID)?, peer.qpn)?;
            Purpose::ManagedBySideChannel
        }
    };
    begin(id, &pair, purpose);
    let terms = engine.terms(wanted.depths.ird(), wanted.depths.ord());
    let reply = with_header(&header, &wanted.private_data);
    incoming.accept(&pair, terms, &reply).map_err(|error| Errno::from(&error))
}

/// Connects the queue pair of the id to one that the peer's program connects itself.
fn bring_up(id: &Shared, pair: &Arc<QueuePair>, peer: u32) -> Result<(), Errno> {
    let engine = CmDevice::get()?.context.engine();
    let (local, remote, depths) = {
        let state = id.lock();
        (state.local.ok_or(Errno::INVALID)?, state.remote.ok_or(Errno::INVALID)?, state.depths)
    };
    let options = BringUpOptions {
        local: Local::Gid(Gid::from(local.ip())),
        ird: depths.ird(),
        ord: depths.ord(),
        path_mtu: None,
        receive_psn: None,
    };
    let remote = Remote { gid: Gid::from(remote.ip()), qpn: peer };
    engine.bring_up(pair, remote, &options)?;
    pair.modify(QpState::ReadyToSend)?;
    Ok(())
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_accept(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    // SAFETY: NULL, or valid by the caller's contract.
    let accepted = unsafe { accept_and_wait(id, param) };
    minus_one!(accepted)
}

/// # Safety
/// `param` is NULL or valid.
unsafe fn accept_and_wait(c: *mut rdma_cm_id, param: *const rdma_conn_param) -> Result<(), Errno> {
    let datagram = without_cancellation(|| -> Result<bool, Errno> {
        let id = find::<Id>(c)?;
        // SAFETY: guaranteed by the caller.
        unsafe { accept(&id, param)? };
        Ok(id.is_datagram())
    })?;
    // No event follows the answer to a lookup.
    if datagram { Ok(()) } else { complete(c) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_reject(id: *mut rdma_cm_id, data: *const c_void, len: u8) -> c_int {
    // SAFETY: NULL, or valid by the caller's contract.
    minus_one!(unsafe { reject(id, data, len) })
}

/// Rejects a request for a reason that concerns enhanced connection establishment.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_reject_ece(id: *mut rdma_cm_id, data: *const c_void, len: u8) -> c_int {
    // SAFETY: NULL, or valid by the caller's contract.
    minus_one!(unsafe { reject(id, data, len) })
}

/// # Safety
/// `data` is NULL or has `len` bytes.
unsafe fn reject(id: *mut rdma_cm_id, data: *const c_void, len: u8) -> Result<(), Errno> {
    let id = find::<Id>(id)?;
    let data = match data.is_null() {
        true if len > 0 => return Err(Errno::INVALID),
        true => &[][..],
        // SAFETY: guaranteed by the caller.
        false => unsafe { std::slice::from_raw_parts(data.cast::<u8>(), len.into()) },
    };
    let (request, link) = {
        let mut state = id.shared().lock();
        let responded = state.phase == Phase::Responded;
        if state.request.is_none() && !responded {
            return Err(Errno::INVALID);
        }
        state.phase = Phase::Failed;
        (state.request.take(), if responded { state.link.take() } else { None })
    };
    if let Some(link) = link {
        link.pair.disconnect();
    }
    let Some(request) = request else { return Ok(()) };
    let lookup = request.header.is_some_and(|header| header.kind == CmKind::Lookup);
    let said = match lookup {
        true => with_header(&CmHeader { status: SIDR_REJECT, ..CmHeader::new(CmKind::Found, 0) }, data),
        false => data.to_vec(),
    };
    answer(request.incoming, &said)
}
