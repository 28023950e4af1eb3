//! Events in C's form, from the moment the program takes them until it acknowledges them. A request of a peer becomes an id
//! here, on the program's thread.
#![expect(unsafe_code, reason = "entry points of the C ABI")]

use super::id::{Id, Kind};
use super::state::{Depths, Phase, Request, Shared};
use crate::abi::*;
use crate::errno::{Errno, minus_one};
use crate::object::{CObject, Uses, find, publish, take_back};
use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::ptr;
use std::sync::Arc;

/// An event that waits.
#[derive(Debug)]
pub(super) struct Event {
    /// The id whose event it is; that of a request is the one that listens.
    pub(super) about: Arc<Shared>,
    pub(super) kind: rdma_cm_event_type,
    pub(super) status: c_int,
    pub(super) param: Param,
    pub(super) private_data: Box<[u8]>,
    pub(super) request: Option<Request>,
}

/// What an event says of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) enum Param {
    None,
    Connection(Connection),
    Datagram(Datagram),
    /// What the program that wrote the event gave it.
    Argument(u64),
}

/// Of a connection.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Connection {
    pub(super) depths: Depths,
    pub(super) flow_control: bool,
    pub(super) retry_count: u8,
    pub(super) rnr_retry_count: u8,
    pub(super) srq: bool,
    pub(super) qpn: u32,
}

/// Of a connectionless queue pair.
#[derive(Clone, Copy, Debug)]
pub(super) struct Datagram {
    pub(super) address: ibv_ah_attr,
    pub(super) qpn: u32,
    pub(super) qkey: u32,
}

/// An event that the program has.
#[repr(C)]
#[derive(Debug)]
struct Delivered {
    c: UnsafeCell<rdma_cm_event>,
    about: Arc<Shared>,
    /// What the C structure points to.
    _private_data: Box<[u8]>,
}

// SAFETY: the C structure comes first; it is not written after it was published.
unsafe impl CObject for Delivered {
    type C = rdma_cm_event;
}
// SAFETY: as above.
unsafe impl Sync for Delivered {}
// SAFETY: as above.
unsafe impl Send for Delivered {}

/// Puts an event into C's form. `None`: it was about a peer that could not be shown to the program.
pub(super) fn deliver(event: Event) -> Option<*mut rdma_cm_event> {
    let Event { about, kind, status, param, private_data, request } = event;
    let mut id = about.c() as *mut rdma_cm_id;
    let mut listener = ptr::null_mut();
    if let Some(request) = request {
        listener = id;
        match requested(&about, request, &param) {
            Ok(new) => id = new,
            Err(errno) => {
                tracing::error!(errno = errno.0, "a peer that wants to connect was turned away");
                about.acknowledge();
                return None;
            }
        }
    }
    if matches!(kind, RDMA_CM_EVENT_ESTABLISHED | RDMA_CM_EVENT_CONNECT_RESPONSE)
        && let Ok(id) = Id::at(&about)
    {
        id.show_local(); // the port is known by now
    }
    let len = u8::try_from(private_data.len()).unwrap_or(u8::MAX);
    let data = if len == 0 { ptr::null() } else { private_data.as_ptr().cast() };
    let mut c = rdma_cm_event::zeroed();
    c.id = id;
    c.listen_id = listener;
    c.event = kind;
    c.status = status;
    match param {
        Param::Datagram(Datagram { address, qpn, qkey }) => {
            c.param.ud = rdma_ud_param {
                private_data: data,
                private_data_len: len,
                ah_attr: address,
                qp_num: qpn,
                qkey,
            };
        }
        Param::Argument(argument) => c.param.arg = argument,
        Param::Connection(_) | Param::None => {
            let of = if let Param::Connection(of) = param { of } else { Connection::default() };
            c.param.conn = rdma_conn_param {
                private_data: data,
                private_data_len: len,
                responder_resources: of.depths.responder,
                initiator_depth: of.depths.initiator,
                flow_control: of.flow_control.into(),
                retry_count: of.retry_count,
                rnr_retry_count: of.rnr_retry_count,
                srq: of.srq.into(),
                qp_num: of.qpn,
            };
        }
    }
    let delivered = Delivered { c: UnsafeCell::new(c), about, _private_data: private_data };
    Some(publish(delivered, Uses::default()).c())
}

/// The id of a peer that wants to connect.
fn requested(about: &Shared, request: Request, param: &Param) -> Result<*mut rdma_cm_id, Errno> {
    let listener = Id::at(about)?;
    let (local, remote) = (request.incoming.local(), request.incoming.peer());
    let peer = request.header;
    // SAFETY: the listener's; its program does not change it meanwhile.
    let (channel, context, port_space, qp_type) = unsafe {
        let c = listener.c();
        ((*c).channel, (*c).context, (*c).ps, (*c).qp_type)
    };
    // Each id that works without a channel of the program's has its own.
    let channel = if listener.is_synchronous() { ptr::null_mut() } else { channel };
    let id = Id::new(channel, context, Kind { port_space, qp_type })?;
    {
        let mut state = id.shared().lock();
        state.phase = Phase::Requested;
        state.peer = peer;
        state.request = Some(request);
        if let Param::Connection(Connection { depths, .. }) = param {
            state.depths = *depths;
        }
    }
    if let Err(errno) = id.set_addresses(local, remote) {
        let _ = super::id::destroy(id.c());
        return Err(errno);
    }
    Ok(id.c())
}

/// Puts an event of the program's own into the channel of an id: it wakes the thread that waits there.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_write_cm_event(
    id: *mut rdma_cm_id,
    event: rdma_cm_event_type,
    status: c_int,
    argument: u64,
) -> c_int {
    minus_one!(find::<Id>(id).and_then(|id| {
        if event != RDMA_CM_EVENT_USER {
            return Err(Errno::INVALID
                .because(format_args!("event {event} cannot be written: RDMA_CM_EVENT_USER can")));
        }
        let about = Arc::clone(id.shared());
        let (kind, param) = (event, Param::Argument(argument));
        let event = Event { about, kind, status, param, private_data: Box::default(), request: None };
        id.shared().push_event(event);
        Ok(())
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    minus_one!(acknowledge(event))
}

pub(super) fn acknowledge(event: *mut rdma_cm_event) -> Result<(), Errno> {
    let event = take_back::<Delivered>(event)?;
    event.about.acknowledge();
    Ok(())
}
