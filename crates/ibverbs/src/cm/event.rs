//! Taking events, which converts them to C. The request of a peer becomes an id here, on the program's
//! thread.
#![expect(unsafe_code, reason = "entry points of the C ABI")]

use super::channel::{CmChannel, was_left};
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

/// Waits for the next event of a channel. The program may cancel the thread here: nothing with a destructor
/// is alive, here and in the callers, and the channel is looked up again afterwards.
pub(super) fn next_event(c: *mut rdma_event_channel) -> Result<*mut rdma_cm_event, Errno> {
    loop {
        let fd = match without_cancellation(|| find::<CmChannel>(c).map(|channel| channel.fd())) {
            Ok(fd) => fd,
            Err(_) if was_left(c) => return Err(wait_for_signal()),
            Err(errno) => return Err(errno),
        };
        wait(fd)?;
        if let Some(event) =
            without_cancellation(|| find::<CmChannel>(c).ok().and_then(|channel| take(&channel)))
        {
            return Ok(event);
        }
    }
}

fn take(channel: &CmChannel) -> Option<*mut rdma_cm_event> {
    let event = deliver(channel.next()?)?;
    channel.note_reader();
    Some(event)
}

/// Converts an event to C. Returns `None` for the request of a peer that could not become an id.
pub(super) fn deliver(event: Event) -> Option<*mut rdma_cm_event> {
    let Event { about, kind, status, param, private_data, request } = event;
    let mut id = about.c() as *mut rdma_cm_id;
    let mut listener = ptr::null_mut();
    if let Some(request) = request {
        listener = id;
        match requested(&about, request, &param) {
            Ok(new) => id = new,
            Err(errno) => {
                tracing::error!(errno = errno.0, "failed to create an id for a connection request");
                about.acknowledge();
                return None;
            }
        }
    }
    if matches!(kind, RDMA_CM_EVENT_ESTABLISHED | RDMA_CM_EVENT_CONNECT_RESPONSE)
        && let Ok(id) = Id::at(&about)
    {
        id.publish_local(); // the port is known by now
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
    Some(Delivered::publish(c, about, private_data))
}

/// Creates the id for the request of a peer.
fn requested(about: &Shared, request: Request, param: &Param) -> Result<*mut rdma_cm_id, Errno> {
    let listener = Id::at(about)?;
    let (local, remote) = (request.incoming.local(), request.incoming.peer());
    let peer = request.header;
    // SAFETY: the structure of the listening id, which no other call changes meanwhile.
    let (channel, context, port_space, qp_type) = unsafe {
        let c = listener.c();
        ((*c).channel, (*c).context, (*c).ps, (*c).qp_type)
    };
    // Each synchronous id has a channel of its own.
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

/// Puts an event of the program into the channel of an id, which wakes the thread that waits there.
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
            // SAFETY: not NULL, and valid by the caller's contract.
            unsafe { put(event, next) };
            0
        }
        Err(errno) => minus_one!(Err(errno)),
    }
}
