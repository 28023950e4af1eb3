//! Connects an id to a peer (`rdma_connect`) and disconnects it (`rdma_disconnect`).
#![expect(unsafe_code, reason = "entry points of the C ABI")]

use super::id::Id;
use super::state::{Attempt, Depths, Phase, Purpose, Shared};
use super::synchronous::wait_if_synchronous;
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
/// listen on that port, and abort if their connection is rejected.
const REDIAL_PERIOD: Duration = Duration::from_secs(1);
/// Pause before the first redial. Each further pause is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(2);

/// Parameters that the program gave for a connection (`rdma_conn_param`).
#[derive(Clone, Debug)]
pub(super) struct ConnectParams {
    /// Private data of the program.
    pub(super) private_data: Vec<u8>,
    pub(super) depths: Depths,
    /// The parameters for which MPA startup frames have no field. The peer gets them only through a side
    /// channel or a lookup.
    pub(super) header: CmHeader,
}

impl ConnectParams {
    /// Reads the parameters of the program. If `param` is NULL, the depths are `default_depths`, and everything
    /// else has the defaults of librdmacm. EINVAL if a depth exceeds the maximum of the device.
    ///
    /// # Safety
    /// `param` is NULL or valid.
    pub(super) unsafe fn read(
        id: &Id,
        param: *const rdma_conn_param,
        default_depths: Depths,
    ) -> Result<Self, Errno> {
        let max = id.device()?.max_depth();
        let qp = id.qp()?;
        let mut header = CmHeader::new(CmKind::Pair, qp.as_ref().map_or(0, |qp| qp.number()));
        header.srq = qp.as_ref().is_some_and(|qp| !qp.init().srq.is_null());
        // SAFETY: NULL or valid, by the caller's contract.
        let Some(param) = (unsafe { param.as_ref() }) else {
            // Without a queue pair of the id, the program must give the number of its own.
            if qp.is_none() {
                return Err(Errno::INVALID);
            }
            return Ok(Self { private_data: Vec::new(), depths: default_depths.at_most(max), header });
        };
        // 255 (RDMA_MAX_RESP_RES, RDMA_MAX_INIT_DEPTH) means the maximum of the device.
        let too_many = |depth: u8| depth > max && depth != u8::MAX;
        if !id.is_datagram() && (too_many(param.responder_resources) || too_many(param.initiator_depth)) {
            return Err(Errno::INVALID);
        }
        let depths = Depths { initiator: param.initiator_depth, responder: param.responder_resources };
        let len = usize::from(param.private_data_len);
        let private_data = match param.private_data.is_null() {
            true if len > 0 => return Err(Errno::INVALID),
            true => Vec::new(),
            // SAFETY: not NULL, and `private_data_len` bytes by the caller's contract.
            false => unsafe { std::slice::from_raw_parts(param.private_data.cast::<u8>(), len) }.to_vec(),
        };
        header.retry_count = param.retry_count & 7; // 3 bits on InfiniBand
        header.rnr_retry_count = param.rnr_retry_count & 7;
        header.flow_control = param.flow_control != 0;
        if qp.is_none() {
            header.qpn = param.qp_num & 0xff_ffff; // QPNs are 24 bits wide
            header.srq = param.srq != 0;
        }
        Ok(Self { private_data, depths: depths.at_most(max), header })
    }
}

/// Prepends the header to the private data of the program, as a side channel or a lookup sends it.
pub(super) fn with_header(header: &CmHeader, data: &[u8]) -> Vec<u8> {
    [&header.emit()[..], data].concat()
}

/// Creates a queue pair for a side channel or a lookup: a connection that carries no messages, only private
/// data in its startup frames.
pub(super) fn create_side_channel(engine: &Arc<Engine>, id: &Arc<Shared>) -> Result<Arc<QueuePair>, Errno> {
    let cq = engine.create_cq(2)?;
    let attributes = QueuePairAttributes {
        send_depth: 1,
        receives: Receives::Own(1),
        ..QueuePairAttributes::new(Domain::default(), &cq)
    };
    let options = QueuePairOptions { events: Some(Watch::new(id)), ..QueuePairOptions::default() };
    Ok(engine.create_qp_with(attributes, options)?)
}

/// Starts to connect an id. The result is an event.
///
/// # Safety
/// `param` is NULL or valid.
unsafe fn connect(id: &Id, param: *const rdma_conn_param) -> Result<(), Errno> {
    let device = id.device()?;
    let engine = device.context.engine();
    let max = Depths { initiator: u8::MAX, responder: u8::MAX };
    // SAFETY: NULL or valid, by the caller's contract.
    let mut params = unsafe { ConnectParams::read(id, param, max)? };
    let (pair, purpose) = match id.qp()? {
        _ if id.is_datagram() => (create_side_channel(engine, id.shared())?, Purpose::Lookup),
        None => (create_side_channel(engine, id.shared())?, Purpose::SideChannel),
        Some(qp) => {
            watch::redirect_events(&qp, id.shared());
            (Arc::clone(qp.stream().ok_or(Errno::INVALID)?), Purpose::Managed)
        }
    };
    let private_data = match purpose {
        Purpose::Managed => params.private_data.clone(),
        Purpose::Lookup => {
            params.header.kind = CmKind::Lookup;
            with_header(&params.header, &params.private_data)
        }
        _ => {
            params.header.secret = report::find_pair(params.header.qpn).and_then(|own| own.new_secret());
            with_header(&params.header, &params.private_data)
        }
    };
    let port_space = id.port_space();
    let attempt = {
        let mut state = id.shared().lock();
        if state.phase != Phase::RouteResolved {
            return Err(Errno::INVALID);
        }
        // Dial from the TCP port that the id has bound, which may differ from the RDMA port in `local`.
        let tcp_port = state.bound.take().and_then(|bound| bound.local_addr().ok()).map(|bound| bound.port());
        let from = state.local.map(|mut local| {
            local.set_port(tcp_port.unwrap_or(local.port()));
            local
        });
        let options = ConnectOptions {
            from,
            port_space: Some(port_space),
            private_data,
            ird: params.depths.ird(),
            ord: params.depths.ord(),
            traffic_class: state.options.traffic_class,
            ..ConnectOptions::default()
        };
        let attempt = Attempt {
            pair,
            to: state.remote.ok_or(Errno::INVALID)?,
            options,
            redial_until: Instant::now() + REDIAL_PERIOD,
            redial_pause: FIRST_PAUSE,
            purpose,
        };
        state.depths = params.depths;
        state.attempt = Some(attempt.clone());
        state.phase = Phase::Connecting;
        attempt
    };
    id.record_connection(&params.header);
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

/// Starts to connect an id. If the id is synchronous, waits for the result; the thread may be cancelled while it waits.
///
/// # Safety
/// `param` is NULL or valid.
unsafe fn connect_and_wait(c: *mut rdma_cm_id, param: *const rdma_conn_param) -> Result<(), Errno> {
    // SAFETY: NULL or valid, by the caller's contract.
    without_cancellation(|| find::<Id>(c).and_then(|id| unsafe { connect(&id, param) }))?;
    // By pointer, because a cancelled thread must not hold a reference to the id.
    wait_if_synchronous(c)
}

/// Completes a connection whose queue pair the program has connected itself, after
/// RDMA_CM_EVENT_CONNECT_RESPONSE.
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

/// Does nothing but check its arguments. Programs call this if a message arrived before the connection was
/// reported as established, which cannot happen over TCP.
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

/// Disconnects an id. If the id is synchronous, waits for the event; the thread may be cancelled while it waits.
fn disconnect_and_wait(c: *mut rdma_cm_id) -> Result<(), Errno> {
    without_cancellation(|| find::<Id>(c).and_then(|id| disconnect(&id)))?;
    wait_if_synchronous(c)
}

/// Closes the connection of an id, and its queue pair if that has a connection of its own. EINVAL if the id
/// has no connection, or is for datagrams.
fn disconnect(id: &Id) -> Result<(), Errno> {
    let link = {
        let state = id.shared().lock();
        let has_connection = matches!(
            state.phase,
            Phase::Accepting | Phase::Responded | Phase::Connected | Phase::Disconnected
        );
        if !has_connection || id.is_datagram() {
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
