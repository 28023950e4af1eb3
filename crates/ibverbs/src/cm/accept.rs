//! Accepts or rejects the request of a peer (`rdma_accept`, `rdma_reject`): the passive side of a connection.
#![expect(unsafe_code, reason = "entry points of the C ABI")]

use super::connect::{ConnectParams, create_side_channel, with_header};
use super::device::CmDevice;
use super::id::Id;
use super::state::{Link, Phase, Purpose, Shared};
use super::synchronous::wait_if_synchronous;
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

/// Status of a reply to a lookup (SIDR on InfiniBand) that rejects it.
const SIDR_REJECT: u32 = 2;

/// How long to wait until a rejection is sent. That takes no time, unless the host is stuck.
const REJECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Accepts the request of a peer with the parameters of the program. The default depths are those that the peer
/// requested.
///
/// # Safety
/// `param` is NULL or valid.
unsafe fn accept(id: &Id, param: *const rdma_conn_param) -> Result<(), Errno> {
    let requested = id.shared().lock().depths;
    // SAFETY: NULL or valid, by the caller's contract.
    let params = unsafe { ConnectParams::read(id, param, requested)? };
    let qp = id.qp()?;
    let request = {
        let mut state = id.shared().lock();
        let request = state.request.take().ok_or(Errno::INVALID)?;
        state.depths = params.depths;
        request
    };
    id.record_connection(&params.header);
    if let Some(qp) = &qp {
        watch::redirect_events(qp, id.shared());
    }
    match (request.header, qp) {
        _ if id.is_datagram() => answer_lookup(id, request.incoming, &params),
        (None, Some(qp)) => accept_managed(id, request.incoming, &qp, &params),
        (None, None) => {
            // The peer sent a standard Request, which has no room for a queue pair number.
            report::log_missing_qp(request.incoming.peer());
            Err(Errno::INVALID)
        }
        (Some(peer), qp) => accept_side_channel(id, request.incoming, peer, qp.as_deref(), &params),
    }
    .inspect_err(|_| id.shared().lock().phase = Phase::Failed)
}

/// Accepts the connection for the queue pair of the id, whose messages it will carry.
fn accept_managed(id: &Id, incoming: Incoming, qp: &Qp, params: &ConnectParams) -> Result<(), Errno> {
    let engine = id.device()?.context.engine();
    let pair = qp.stream().ok_or(Errno::INVALID)?;
    // From now on the program may post sends, which are sent once the connection is established.
    pair.modify(QpState::ReadyToReceive)?;
    pair.modify(QpState::ReadyToSend)?;
    set_accepting(id, pair, Purpose::Managed);
    let terms = engine.terms(params.depths.ird(), params.depths.ord());
    let class = id.shared().lock().options.traffic_class;
    let accepted = incoming.traffic_class(class).accept(pair, terms, &params.private_data);
    accepted.map_err(|error| Errno::from(&error))
}

/// Stores the connection that is being accepted in the state of the id. Must happen before the connection is
/// accepted, because its events refer to that state.
fn set_accepting(id: &Id, pair: &Arc<QueuePair>, purpose: Purpose) {
    let mut state = id.shared().lock();
    state.link = Some(Link { pair: Arc::clone(pair), purpose });
    state.phase = Phase::Accepting;
}

/// Answers a lookup with the number of a UD queue pair, in the private data of a rejection: no connection is
/// needed.
fn answer_lookup(id: &Id, incoming: Incoming, params: &ConnectParams) -> Result<(), Errno> {
    let header = CmHeader { kind: CmKind::Found, qkey: RDMA_UDP_QKEY, ..params.header };
    id.shared().lock().phase = Phase::Connected;
    send_rejection(incoming, &with_header(&header, &params.private_data))
}

/// Rejects a request, with private data. Returns after the rejection was sent, because the program may exit
/// next.
fn send_rejection(incoming: Incoming, private_data: &[u8]) -> Result<(), Errno> {
    incoming.reject_and_wait(private_data, REJECT_TIMEOUT).map_err(|error| Errno::from(&error))
}

/// Accepts a side channel, through which the two ends exchange the numbers of their queue pairs, because the
/// peer's program connects its queue pair itself. If this id has a queue pair, connects that by number.
fn accept_side_channel(
    id: &Id,
    incoming: Incoming,
    peer: CmHeader,
    qp: Option<&Qp>,
    params: &ConnectParams,
) -> Result<(), Errno> {
    let engine = id.device()?.context.engine();
    let pair = create_side_channel(engine, id.shared())?;
    let mut header = params.header;
    // This end must have the secret before its queue pair is connected, and before the peer learns that it
    // may use the secret.
    header.keeps_secret = peer
        .secret
        .is_some_and(|secret| report::find_pair(header.qpn).is_some_and(|own| own.keep_secret(secret)));
    let purpose = match qp {
        None => Purpose::SideChannel,
        Some(qp) => {
            connect_by_number(id.shared(), qp.stream().ok_or(Errno::INVALID)?, peer.qpn)?;
            Purpose::ManagedBySideChannel
        }
    };
    set_accepting(id, &pair, purpose);
    let terms = engine.terms(params.depths.ird(), params.depths.ord());
    let reply = with_header(&header, &params.private_data);
    incoming.accept(&pair, terms, &reply).map_err(|error| Errno::from(&error))
}

/// Connects the queue pair of the id by GID and QPN to the queue pair `peer`, which the peer's program connects
/// itself.
fn connect_by_number(id: &Shared, pair: &Arc<QueuePair>, peer: u32) -> Result<(), Errno> {
    let (local, remote, depths, traffic_class) = {
        let state = id.lock();
        let (local, remote) = (state.local.ok_or(Errno::INVALID)?, state.remote.ok_or(Errno::INVALID)?);
        (local, remote, state.depths, state.options.traffic_class)
    };
    let engine = CmDevice::at(local.ip())?.context.engine();
    let options = BringUpOptions {
        local: Local::Gid(Gid::from(local.ip())),
        ird: depths.ird(),
        ord: depths.ord(),
        path_mtu: None,
        receive_psn: None,
        traffic_class,
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

/// Accepts the request of a peer. If the id is synchronous, waits until the connection is established; the
/// thread may be cancelled while it waits.
///
/// # Safety
/// `param` is NULL or valid.
unsafe fn accept_and_wait(c: *mut rdma_cm_id, param: *const rdma_conn_param) -> Result<(), Errno> {
    let is_datagram = without_cancellation(|| -> Result<bool, Errno> {
        let id = find::<Id>(c)?;
        // SAFETY: NULL or valid, by the caller's contract.
        unsafe { accept(&id, param)? };
        Ok(id.is_datagram())
    })?;
    // The answer to a lookup leads to no event.
    if is_datagram { Ok(()) } else { wait_if_synchronous(c) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_reject(id: *mut rdma_cm_id, data: *const c_void, len: u8) -> c_int {
    // SAFETY: NULL, or valid by the caller's contract.
    minus_one!(unsafe { reject(id, data, len) })
}

/// Rejects a request because of its options of enhanced connection establishment (ECE). The peer does not learn
/// the reason: to the peer, this is the same as `rdma_reject`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_reject_ece(id: *mut rdma_cm_id, data: *const c_void, len: u8) -> c_int {
    // SAFETY: NULL, or valid by the caller's contract.
    minus_one!(unsafe { reject(id, data, len) })
}

/// Rejects the request of a peer, or the response of a peer to a request of this end, with private data.
///
/// # Safety
/// `data` is NULL or has `len` bytes.
unsafe fn reject(id: *mut rdma_cm_id, data: *const c_void, len: u8) -> Result<(), Errno> {
    let id = find::<Id>(id)?;
    let data = match data.is_null() {
        true if len > 0 => return Err(Errno::INVALID),
        true => &[][..],
        // SAFETY: not NULL, and `len` bytes by the caller's contract.
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
    let is_lookup = request.header.is_some_and(|header| header.kind == CmKind::Lookup);
    let private_data = match is_lookup {
        true => with_header(&CmHeader { status: SIDR_REJECT, ..CmHeader::new(CmKind::Found, 0) }, data),
        false => data.to_vec(),
    };
    send_rejection(request.incoming, &private_data)
}
