//! Takes events from channels (`rdma_get_cm_event`) and converts them to C. When the program takes the request
//! of a peer, an id is created for it, on the thread of the program.
#![expect(unsafe_code, reason = "entry points of the C ABI")]

use super::channel::{CmChannel, is_abandoned_reader};
use super::delivered::{Delivered, acknowledge};
use super::id::{Id, Kind};
use super::state::{Connection, Datagram, Event, Param, Phase, Request, Shared};
use crate::abi::*;
use crate::support::cancel::without_cancellation;
use crate::support::errno::{Errno, minus_one};
use crate::support::object::{CObject, find, put};
use crate::support::wake::{wait, wait_for_signal};
use std::ffi::c_int;
use std::ptr;
use std::sync::Arc;

/// Waits for the next event of a channel, and takes it. The program may cancel the thread while it waits:
/// nothing with a destructor is alive then, here and in the callers, and the channel is looked up again
/// afterwards.
pub(super) fn next_event(c: *mut rdma_event_channel) -> Result<*mut rdma_cm_event, Errno> {
    loop {
        let fd = match without_cancellation(|| find::<CmChannel>(c).map(|channel| channel.fd())) {
            Ok(fd) => fd,
            Err(_) if is_abandoned_reader(c) => return Err(wait_for_signal()),
            Err(errno) => return Err(errno),
        };
        wait(fd)?;
        // Another thread may have taken the event first, or destroyed the channel: then start over.
        let take = || find::<CmChannel>(c).ok().and_then(|channel| take_event(&channel));
        if let Some(event) = without_cancellation(take) {
            return Ok(event);
        }
    }
}

/// Takes the oldest event of a channel. Returns `None` if there is none, or if it was the request of a peer for
/// which no id could be created.
fn take_event(channel: &CmChannel) -> Option<*mut rdma_cm_event> {
    let event = deliver(channel.take_next()?)?;
    channel.record_reader();
    Some(event)
}

/// Converts an event to a C structure that the program must acknowledge, and creates the id for the request of
/// a peer. Returns `None` if that id cannot be created.
fn deliver(event: Event) -> Option<*mut rdma_cm_event> {
    let Event { about, kind, status, param, private_data, request } = event;
    let mut id = about.c() as *mut rdma_cm_id;
    let mut listener = ptr::null_mut();
    if let Some(request) = request {
        listener = id;
        match create_requested_id(&about, request, &param) {
            Ok(new) => id = new,
            Err(errno) => {
                tracing::error!(errno = errno.0, "failed to create an id for a connection request");
                about.acknowledge(); // the program will not, because it does not get the event
                return None;
            }
        }
    }
    if matches!(kind, RDMA_CM_EVENT_ESTABLISHED | RDMA_CM_EVENT_CONNECT_RESPONSE)
        && let Ok(id) = Id::find_by_state(&about)
    {
        id.publish_local(); // the kernel has chosen the local port by now
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
            let conn = if let Param::Connection(conn) = param { conn } else { Connection::default() };
            c.param.conn = rdma_conn_param {
                private_data: data,
                private_data_len: len,
                responder_resources: conn.depths.responder,
                initiator_depth: conn.depths.initiator,
                flow_control: conn.flow_control.into(),
                retry_count: conn.retry_count,
                rnr_retry_count: conn.rnr_retry_count,
                srq: conn.srq.into(),
                qp_num: conn.qpn,
            };
        }
    }
    Some(Delivered::publish(c, about, private_data))
}

/// Creates the id for the request of a peer. The id inherits the channel, context, kind and traffic class of the
/// listening id, and keeps the request until the program accepts or rejects it.
fn create_requested_id(listener: &Shared, request: Request, param: &Param) -> Result<*mut rdma_cm_id, Errno> {
    let listener = Id::find_by_state(listener)?;
    let (local, remote) = (request.incoming.local(), request.incoming.peer());
    let (peer, traffic_class) = (request.header, listener.shared().lock().options.traffic_class);
    // SAFETY: `listener` keeps its structure alive. After creation only `rdma_migrate_id` writes these fields,
    // and the program must not call that while another thread takes events of the id.
    let (channel, context, port_space, qp_type) = unsafe {
        let c = listener.c();
        ((*c).channel, (*c).context, (*c).ps, (*c).qp_type)
    };
    // Each synchronous id has a channel of its own, which `Id::new` creates if it gets NULL.
    let channel = if listener.is_synchronous() { ptr::null_mut() } else { channel };
    let id = Id::new(channel, context, Kind { port_space, qp_type })?;
    {
        let mut state = id.shared().lock();
        state.phase = Phase::Requested;
        state.peer = peer;
        state.request = Some(request);
        state.options.traffic_class = traffic_class;
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

/// Queues an event of the program in the channel of an id, which wakes a thread that waits for events. EINVAL
/// unless the event is RDMA_CM_EVENT_USER.
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
                .because(format_args!("event {event} cannot be written, only RDMA_CM_EVENT_USER")));
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

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_get_cm_event(
    channel: *mut rdma_event_channel,
    event: *mut *mut rdma_cm_event,
) -> c_int {
    if event.is_null() {
        return minus_one!(Err(Errno::null("event")));
    }
    match next_event(channel) {
        Ok(next) => {
            // SAFETY: not NULL, and valid for a write by the caller's contract.
            unsafe { put(event, next) };
            0
        }
        Err(errno) => minus_one!(Err(errno)),
    }
}
