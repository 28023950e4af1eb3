//! The active end of a connection, and closing connections.
#![expect(unsafe_code, reason = "entry points of the C ABI")]

use super::id::Id;
use super::state::{Attempt, Depths, Phase, Purpose, Shared};
use super::synchronous::complete;
use super::watch::{self, Watch};
use crate::abi::*;
use crate::support::cancel::without_cancellation;
use crate::support::errno::{Errno, minus_one};
use crate::support::object::find;
use crate::support::report;
use ironwarp_engine::{ConnectOptions, Engine, QueuePair, QueuePairAttributes, QueuePairOptions};
use ironwarp_rnic::memory::Domain;
use ironwarp_rnic::qp::Receives;
use ironwarp_wire::private::{CmHeader, CmKind};
use std::ffi::c_int;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long to redial a peer that does not listen yet. Some programs tell their peer a port just before they
/// listen there, and do not survive a rejection.
const REDIAL_PERIOD: Duration = Duration::from_secs(1);
/// Pause before the first redial. It doubles each time.
const FIRST_PAUSE: Duration = Duration::from_millis(2);

/// Parameters of a connection.
#[derive(Clone, Debug)]
pub(super) struct ConnectParams {
    pub(super) private_data: Vec<u8>,
    pub(super) depths: Depths,
    pub(super) header: CmHeader,
}

impl ConnectParams {
    /// Reads the program's parameters, with `otherwise` as the default of the depths.
    ///
    /// # Safety
    /// `param` is NULL or valid.
    pub(super) unsafe fn read(
        id: &Id,
        param: *const rdma_conn_param,
        otherwise: Depths,
    ) -> Result<Self, Errno> {
        let max = id.device()?.depth();
        let qp = id.qp()?;
        let mut header = CmHeader::new(CmKind::Pair, qp.as_ref().map_or(0, |qp| qp.number()));
        header.srq = qp.as_ref().is_some_and(|qp| !qp.init().srq.is_null());
        // SAFETY: guaranteed by the caller.
        let Some(param) = (unsafe { param.as_ref() }) else {
            if qp.is_none() {
                return Err(Errno::INVALID);
            }
            return Ok(Self { private_data: Vec::new(), depths: otherwise.at_most(max), header });
        };
        let too_many = |wanted: u8| wanted > max && wanted != u8::MAX;
        if !id.is_datagram() && (too_many(param.responder_resources) || too_many(param.initiator_depth)) {
            return Err(Errno::INVALID);
        }
        let depths = Depths { initiator: param.initiator_depth, responder: param.responder_resources };
        let len = usize::from(param.private_data_len);
        let private_data = match param.private_data.is_null() {
            true if len > 0 => return Err(Errno::INVALID),
            true => Vec::new(),
            // SAFETY: it has that many bytes by the caller's contract.
            false => unsafe { std::slice::from_raw_parts(param.private_data.cast::<u8>(), len) }.to_vec(),
        };
        header.retry_count = param.retry_count & 7;
        header.rnr_retry_count = param.rnr_retry_count & 7;
        header.flow_control = param.flow_control != 0;
        if qp.is_none() {
            header.qpn = param.qp_num & 0xff_ffff;
            header.srq = param.srq != 0;
        }
        Ok(Self { private_data, depths: depths.at_most(max), header })
    }
}

/// The private data of a side channel: the header, then the data of the program.
pub(super) fn with_header(header: &CmHeader, data: &[u8]) -> Vec<u8> {
    [&header.emit()[..], data].concat()
}

/// Creates a queue pair for a side channel: a connection that carries no messages, but says which two queue
/// pairs belong together.
pub(super) fn side_channel(engine: &Arc<Engine>, id: &Arc<Shared>) -> Result<Arc<QueuePair>, Errno> {
    let cq = engine.create_cq(2)?;
    let attributes = QueuePairAttributes {
        send_depth: 1,
        receives: Receives::Own(1),
        ..QueuePairAttributes::new(Domain::default(), &cq)
    };
    let options = QueuePairOptions { events: Some(Watch::new(id)), ..QueuePairOptions::default() };
    Ok(engine.create_qp_with(attributes, options)?)
}

/// # Safety
/// `param` is NULL or valid.
unsafe fn connect(id: &Id, param: *const rdma_conn_param) -> Result<(), Errno> {
    let device = id.device()?;
    let engine = device.context.engine();
    let max = Depths { initiator: u8::MAX, responder: u8::MAX };
    // SAFETY: guaranteed by the caller.
    let mut wanted = unsafe { ConnectParams::read(id, param, max)? };
    let (pair, purpose) = match id.qp()? {
        _ if id.is_datagram() => (side_channel(engine, id.shared())?, Purpose::Lookup),
        None => (side_channel(engine, id.shared())?, Purpose::SideChannel),
        Some(qp) => {
            watch::follow(&qp, id.shared());
            (Arc::clone(qp.stream().ok_or(Errno::INVALID)?), Purpose::Managed)
        }
    };
    let private_data = match purpose {
        Purpose::Managed => wanted.private_data.clone(),
        Purpose::Lookup => {
            wanted.header.kind = CmKind::Lookup;
            with_header(&wanted.header, &wanted.private_data)
        }
        _ => {
            wanted.header.secret = report::find_pair(wanted.header.qpn).and_then(|own| own.new_secret());
            with_header(&wanted.header, &wanted.private_data)
        }
    };
    let port_space = id.port_space();
    let attempt = {
        let mut state = id.shared().lock();
        if state.phase != Phase::RouteResolved {
            return Err(Errno::INVALID);
        }
        // The connection comes from the TCP port of the id, which may differ from its RDMA port.
        let from = state.bound.take().and_then(|bound| bound.local_addr().ok()).map(|bound| bound.port());
        let from = state.local.map(|mut local| {
            local.set_port(from.unwrap_or(local.port()));
            local
        });
        let options = ConnectOptions {
            from,
            port_space: Some(port_space),
            private_data,
            ird: wanted.depths.ird(),
            ord: wanted.depths.ord(),
            ..ConnectOptions::default()
        };
        let attempt = Attempt {
            pair,
            to: state.remote.ok_or(Errno::INVALID)?,
            options,
            until: Instant::now() + REDIAL_PERIOD,
            pause: FIRST_PAUSE,
            purpose,
        };
        state.depths = wanted.depths;
        state.attempt = Some(attempt.clone());
        state.phase = Phase::Connecting;
        attempt
    };
    id.note_connection(&wanted.header);
    engine.connect(&attempt.pair, attempt.to, &attempt.options).map_err(|error| {
        let mut state = id.shared().lock();
        state.attempt = None;
        state.phase = Phase::RouteResolved;
        Errno::from(&error)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_connect(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    // SAFETY: NULL, or valid by the caller's contract.
    let connected = unsafe { connect_and_wait(id, param) };
    minus_one!(connected)
}

/// # Safety
/// `param` is NULL or valid.
unsafe fn connect_and_wait(c: *mut rdma_cm_id, param: *const rdma_conn_param) -> Result<(), Errno> {
    // SAFETY: guaranteed by the caller.
    without_cancellation(|| find::<Id>(c).and_then(|id| unsafe { connect(&id, param) }))?;
    complete(c)
}

/// The program has connected its own queue pair to that of the peer.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_establish(id: *mut rdma_cm_id) -> c_int {
    minus_one!(find::<Id>(id).and_then(|id| {
        let managed = id.qp()?.is_some();
        let mut state = id.shared().lock();
        if managed || state.phase != Phase::Responded {
            return Err(Errno::INVALID);
        }
        state.phase = Phase::Connected;
        Ok(())
    }))
}

/// The program received a message before the connection was reported. TCP does not let that happen.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_notify(id: *mut rdma_cm_id, event: ibv_event_type) -> c_int {
    let known = matches!(event, IBV_EVENT_COMM_EST | IBV_EVENT_PATH_MIG);
    minus_one!(find::<Id>(id).and(if known { Ok(()) } else { Err(Errno::INVALID) }))
}

#[unsafe(no_mangle)]
pub extern "C-unwind" fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int {
    let disconnected = disconnect_and_wait(id);
    minus_one!(disconnected)
}

fn disconnect_and_wait(c: *mut rdma_cm_id) -> Result<(), Errno> {
    without_cancellation(|| find::<Id>(c).and_then(|id| disconnect(&id)))?;
    complete(c)
}

fn disconnect(id: &Id) -> Result<(), Errno> {
    let link = {
        let state = id.shared().lock();
        let has_been = matches!(
            state.phase,
            Phase::Accepting | Phase::Responded | Phase::Connected | Phase::Disconnected
        );
        if !has_been || id.is_datagram() {
            return Err(Errno::INVALID);
        }
        state.link.clone().ok_or(Errno::INVALID)?
    };
    link.pair.hang_up();
    if link.purpose == Purpose::ManagedBySideChannel
        && let Ok(Some(qp)) = id.qp()
        && let Some(pair) = qp.stream()
    {
        pair.hang_up();
    }
    Ok(())
}
