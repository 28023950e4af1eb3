//! The passive end of a connection: the program decides. Before this: a CONNECT_REQUEST; after: `watch.rs`, when the
//! connection is there.
#![expect(unsafe_code, reason = "entry points of the C ABI")]

use super::connect::{Wanted, aside, with_header};
use super::device::CmDevice;
use super::id::{Id, complete};
use super::state::{Link, Phase, Purpose, Shared};
use crate::abi::*;
use crate::cancel::uncancelled;
use crate::errno::{Errno, minus_one};
use crate::object::find;
use crate::qp::Qp;
use crate::report;
use ironwarp_engine::gid::Gid;
use ironwarp_engine::{BringUpOptions, Incoming, Local, QueuePair, Remote};
use ironwarp_rnic::qp::State as QpState;
use ironwarp_wire::private::{Aside, AsideKind};
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::time::Duration;

/// What InfiniBand's service resolution says for a program that does not want it.
const SIDR_REJECT: u32 = 2;

/// How long an answer may take to get out. It takes no time, unless the host is stuck.
const PATIENCE: Duration = Duration::from_secs(5);

/// # Safety
/// `param` is NULL, or whole.
unsafe fn accept(id: &Id, param: *const rdma_conn_param) -> Result<(), Errno> {
    let otherwise = id.shared().lock().depths;
    // SAFETY: the caller's word.
    let wanted = unsafe { Wanted::read(id, param, otherwise)? };
    let qp = id.qp()?;
    let request = {
        let mut state = id.shared().lock();
        let request = state.request.take().ok_or(Errno::INVALID)?;
        state.depths = wanted.depths;
        request
    };
    id.note_connection(&wanted.header);
    if let Some(qp) = &qp {
        id.watches(qp);
    }
    match (request.header, qp) {
        _ if id.is_datagram() => tell_number(id, request.incoming, &wanted),
        (None, Some(qp)) => take(id, request.incoming, &qp, &wanted),
        (None, None) => {
            // Its Request is a standard one, in which there is no room for the number of its queue pair.
            report::only_managed(request.incoming.peer());
            Err(Errno::INVALID)
        }
        (Some(peer), qp) => stand_beside(id, request.incoming, (peer, qp.as_deref()), &wanted),
    }
    .inspect_err(|_| id.shared().lock().phase = Phase::Failed)
}

/// The id's queue pair talks over the connection.
fn take(id: &Id, incoming: Incoming, qp: &Qp, wanted: &Wanted) -> Result<(), Errno> {
    let engine = id.device()?.context.engine();
    let pair = qp.stream().ok_or(Errno::INVALID)?;
    // What the program posts from now on waits until the connection is there.
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

/// A connectionless queue pair is told in an answer that is no connection.
fn tell_number(id: &Id, incoming: Incoming, wanted: &Wanted) -> Result<(), Errno> {
    let header = Aside { kind: AsideKind::Found, qkey: RDMA_UDP_QKEY, ..wanted.header };
    id.shared().lock().phase = Phase::Connected;
    answer(incoming, &with_header(&header, &wanted.private_data))
}

/// An answer that is no connection. When this returns it is out, because the program may end now.
fn answer(incoming: Incoming, private_data: &[u8]) -> Result<(), Errno> {
    incoming.reject_and_wait(private_data, PATIENCE).map_err(|error| Errno::from(&error))
}

/// The program, or the peer's, has its own queue pair. Each end tells its number; an id's queue pair is connected by it.
fn stand_beside(
    id: &Id,
    incoming: Incoming,
    (peer, qp): (Aside, Option<&Qp>),
    wanted: &Wanted,
) -> Result<(), Errno> {
    let engine = id.device()?.context.engine();
    let pair = aside(engine, id.shared())?;
    let mut header = wanted.header;
    // Before the queue pair is connected, and before the peer learns that it may use the secret.
    header.keeps_secret = peer
        .secret
        .is_some_and(|secret| report::find_pair(header.qpn).is_some_and(|own| own.keep_secret(secret)));
    let purpose = match qp {
        None => Purpose::Aside,
        Some(qp) => {
            bring_up(id.shared(), qp.stream().ok_or(Errno::INVALID)?, peer.qpn)?;
            Purpose::Beside
        }
    };
    begin(id, &pair, purpose);
    let terms = engine.terms(wanted.depths.ird(), wanted.depths.ord());
    let reply = with_header(&header, &wanted.private_data);
    incoming.accept(&pair, terms, &reply).map_err(|error| Errno::from(&error))
}

/// Connects the id's own queue pair to one that the peer's program connects itself.
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
    // SAFETY: NULL or the caller's.
    let accepted = unsafe { accept_and_wait(id, param) };
    minus_one!(accepted)
}

/// # Safety
/// `param` is NULL, or whole.
unsafe fn accept_and_wait(c: *mut rdma_cm_id, param: *const rdma_conn_param) -> Result<(), Errno> {
    let datagram = uncancelled(|| -> Result<bool, Errno> {
        let id = find::<Id>(c)?;
        // SAFETY: the caller's word.
        unsafe { accept(&id, param)? };
        Ok(id.is_datagram())
    })?;
    // Nobody tells that a number has arrived.
    if datagram { Ok(()) } else { complete(c) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_reject(id: *mut rdma_cm_id, data: *const c_void, len: u8) -> c_int {
    // SAFETY: NULL or the caller's.
    minus_one!(unsafe { reject(id, data, len) })
}

/// The same, for a reason that has to do with enhanced connection establishment.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_reject_ece(id: *mut rdma_cm_id, data: *const c_void, len: u8) -> c_int {
    // SAFETY: NULL or the caller's.
    minus_one!(unsafe { reject(id, data, len) })
}

/// # Safety
/// `data` is NULL, or has `len` bytes.
unsafe fn reject(id: *mut rdma_cm_id, data: *const c_void, len: u8) -> Result<(), Errno> {
    let id = find::<Id>(id)?;
    let data = match data.is_null() {
        true if len > 0 => return Err(Errno::INVALID),
        true => &[][..],
        // SAFETY: the caller's word.
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
    let lookup = request.header.is_some_and(|header| header.kind == AsideKind::Lookup);
    let said = match lookup {
        true => with_header(&Aside { status: SIDR_REJECT, ..Aside::new(AsideKind::Found, 0) }, data),
        false => data.to_vec(),
    };
    answer(request.incoming, &said)
}
