//! The active end of a connection, and the end of one. Before this: `resolve.rs`; after: the adapter connects, and tells
//! `watch.rs` how it went.
#![expect(unsafe_code, reason = "entry points of the C ABI")]

use super::device::CmDevice;
use super::id::{Id, complete};
use super::state::{Attempt, Depths, Phase, Purpose, Shared};
use super::watch::Watch;
use crate::abi::*;
use crate::cancel::uncancelled;
use crate::errno::{Errno, minus_one};
use crate::object::find;
use crate::report;
use ironwarp_engine::{ConnectOptions, Engine, QueuePair, QueuePairAttributes};
use ironwarp_rnic::memory::Domain;
use ironwarp_rnic::qp::Receives;
use ironwarp_wire::private::{Aside, AsideKind};
use std::ffi::c_int;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a peer that does not listen is dialled again. Programs tell their peer a port a moment before they listen
/// there, and some do not survive a rejection.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long to wait before it is dialled again, at first; then twice as long each time, up to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(2);
pub(super) const LAST_PAUSE: Duration = Duration::from_millis(64);

/// What the program says of a connection.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub(super) private_data: Vec<u8>,
    pub(super) depths: Depths,
    pub(super) header: Aside,
}

impl Wanted {
    /// What the program said, or `otherwise` where it said nothing.
    ///
    /// # Safety
    /// `param` is NULL, or whole.
    pub(super) unsafe fn read(
        id: &Id,
        param: *const rdma_conn_param,
        otherwise: Depths,
    ) -> Result<Self, Errno> {
        let most = id.device()?.depth();
        let qp = id.qp()?;
        let mut header = Aside::new(AsideKind::Pair, qp.as_ref().map_or(0, |qp| qp.number()));
        header.srq = qp.as_ref().is_some_and(|qp| !qp.init().srq.is_null());
        // SAFETY: the caller's word.
        let Some(param) = (unsafe { param.as_ref() }) else {
            if qp.is_none() {
                return Err(Errno::INVALID);
            }
            return Ok(Self { private_data: Vec::new(), depths: otherwise.at_most(most), header });
        };
        let too_many = |wanted: u8| wanted > most && wanted != u8::MAX;
        if !id.is_datagram() && (too_many(param.responder_resources) || too_many(param.initiator_depth)) {
            return Err(Errno::INVALID);
        }
        let depths = Depths { initiator: param.initiator_depth, responder: param.responder_resources };
        let len = usize::from(param.private_data_len);
        let private_data = match param.private_data.is_null() {
            true if len > 0 => return Err(Errno::INVALID),
            true => Vec::new(),
            // SAFETY: the caller's, and as long as it says.
            false => unsafe { std::slice::from_raw_parts(param.private_data.cast::<u8>(), len) }.to_vec(),
        };
        header.retry_count = param.retry_count & 7;
        header.rnr_retry_count = param.rnr_retry_count & 7;
        header.flow_control = param.flow_control != 0;
        if qp.is_none() {
            header.qpn = param.qp_num & 0xff_ffff;
            header.srq = param.srq != 0;
        }
        Ok(Self { private_data, depths: depths.at_most(most), header })
    }
}

impl Depths {
    pub(super) fn at_most(self, most: u8) -> Self {
        Self { initiator: self.initiator.min(most), responder: self.responder.min(most) }
    }

    /// How many of the peer's Reads to hold: at least one, by which a peer that is no Ironwarp is asked for
    /// acknowledgements.
    pub(super) fn ird(self) -> Option<u16> {
        Some(u16::from(self.responder.max(1)))
    }

    pub(super) fn ord(self) -> Option<u16> {
        Some(u16::from(self.initiator.max(1)))
    }
}

/// The private data of a connection aside: the header, then what the program says.
pub(super) fn with_header(header: &Aside, data: &[u8]) -> Vec<u8> {
    [&header.emit()[..], data].concat()
}

/// A queue pair that carries no messages: its connection says that two others belong together.
pub(super) fn aside(engine: &Arc<Engine>, id: &Arc<Shared>) -> Result<Arc<QueuePair>, Errno> {
    let cq = engine.create_cq(2)?;
    Ok(engine.create_qp(QueuePairAttributes {
        send_depth: 1,
        receives: Receives::Own(1),
        events: Some(Watch::new(id)),
        ..QueuePairAttributes::new(Domain::default(), &cq)
    })?)
}

/// # Safety
/// `param` is NULL, or whole.
unsafe fn connect(id: &Id, param: *const rdma_conn_param) -> Result<(), Errno> {
    let device = id.device()?;
    let engine = device.context.engine();
    let most = Depths { initiator: u8::MAX, responder: u8::MAX };
    // SAFETY: the caller's word.
    let mut wanted = unsafe { Wanted::read(id, param, most)? };
    let (pair, purpose) = match id.qp()? {
        _ if id.is_datagram() => (aside(engine, id.shared())?, Purpose::Lookup),
        None => (aside(engine, id.shared())?, Purpose::Aside),
        Some(qp) => {
            id.watches(&qp);
            (Arc::clone(qp.stream().ok_or(Errno::INVALID)?), Purpose::Managed)
        }
    };
    let private_data = match purpose {
        Purpose::Managed => wanted.private_data.clone(),
        Purpose::Lookup => {
            wanted.header.kind = AsideKind::Lookup;
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
        // The connection comes from the TCP port that the id has, which need not have the number of its RDMA port.
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
            until: Instant::now() + PATIENCE,
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

/// Dials again, after a pause, if the program still wants it.
pub(super) fn redial_after(id: &Arc<Shared>, pause: Duration) {
    let again = Arc::downgrade(id);
    let call = move || {
        if let Some(id) = again.upgrade() {
            redial(&id);
        }
    };
    let later = CmDevice::get().and_then(|device| {
        device.context.engine().call_at(Instant::now() + pause, call)?;
        Ok(())
    });
    if let Err(errno) = later {
        tracing::error!(errno = errno.0, "a peer is not dialled again");
    }
}

fn redial(id: &Arc<Shared>) {
    let attempt = {
        let state = id.lock();
        match (&state.attempt, state.phase) {
            (Some(attempt), Phase::Connecting) => attempt.clone(),
            _ => return,
        }
    };
    let Ok(device) = CmDevice::get() else { return };
    if let Err(error) = device.context.engine().connect(&attempt.pair, attempt.to, &attempt.options) {
        super::watch::failed(id, attempt.pair.id(), &error);
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_connect(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    // SAFETY: NULL or the caller's.
    let connected = unsafe { connect_and_wait(id, param) };
    minus_one!(connected)
}

/// # Safety
/// `param` is NULL, or whole.
unsafe fn connect_and_wait(c: *mut rdma_cm_id, param: *const rdma_conn_param) -> Result<(), Errno> {
    // SAFETY: the caller's word.
    uncancelled(|| find::<Id>(c).and_then(|id| unsafe { connect(&id, param) }))?;
    complete(c)
}

/// The program has connected its own queue pair to the one that the peer told.
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

/// A message came before the connection was known to be there. TCP does not let that happen.
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
    uncancelled(|| find::<Id>(c).and_then(|id| disconnect(&id)))?;
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
    if link.purpose == Purpose::Beside
        && let Ok(Some(qp)) = id.qp()
        && let Some(pair) = qp.stream()
    {
        pair.hang_up();
    }
    Ok(())
}
