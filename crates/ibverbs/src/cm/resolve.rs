//! Binds an id to a port, listens for peers, and resolves the address of a peer and the route to it
//! (`rdma_bind_addr`, `rdma_listen`, `rdma_resolve_addr`, `rdma_resolve_route`).
#![expect(unsafe_code, reason = "entry points of the C ABI")]

use super::address::source_for;
use super::device::CmDevice;
use super::id::Id;
use super::port_conflict;
use super::state::Phase;
use super::synchronous::wait_if_synchronous;
use super::watch::RequestHandler;
use crate::abi::*;
use crate::support::cancel::without_cancellation;
use crate::support::errno::{Errno, minus_one};
use crate::support::object::find;
use crate::support::persona::config;
use crate::support::sockaddr;
use ironwarp_engine::MAX_BACKLOG;
use ironwarp_engine::sys::tcp::{BindOptions, Bound};
use std::ffi::c_int;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

/// Minimum backlog. The kernel drops requests that exceed a small backlog, and the peer sends them again. This
/// adapter rejects them, so the backlog must not be small.
const MIN_BACKLOG: usize = 128;

/// Binds an id to an RDMA port, and to the device of the address unless that is unspecified. EINVAL if the id is bound
/// already.
fn bind(id: &Id, at: SocketAddr) -> Result<(), Errno> {
    let options = {
        let state = id.shared().lock();
        if state.phase != Phase::Idle {
            return Err(Errno::INVALID);
        }
        state.options
    };
    let both_versions = options.one_family != Some(true);
    let bind = BindOptions { share: options.share_port, both_versions };
    let bound = Bound::for_rdma(at, id.port_space(), bind, config().port_policy())?;
    let local = bound.requested_addr()?;
    id.set_local(local);
    if !local.ip().is_unspecified() {
        id.set_device()?;
    }
    let mut state = id.shared().lock();
    state.bound = Some(bound);
    state.phase = Phase::Bound;
    drop(state);
    port_conflict::register(id.shared());
    Ok(())
}

/// Starts to listen. An id that is not bound yet is bound to any port. If the adapter fails to listen, the id is
/// not bound any more.
fn listen(id: &Id, backlog: c_int) -> Result<(), Errno> {
    if id.shared().lock().phase == Phase::Idle {
        bind(id, (Ipv4Addr::UNSPECIFIED, 0).into())?;
    }
    let bound = {
        let mut state = id.shared().lock();
        if state.phase != Phase::Bound {
            return Err(Errno::INVALID);
        }
        state.phase = Phase::Listening;
        state.bound.take().ok_or(Errno::INVALID)?
    };
    let handler = Arc::new(RequestHandler(Arc::downgrade(id.shared())));
    let backlog = clamp_backlog(backlog);
    let device = match id.shared().local_ip()? {
        local if local.is_unspecified() => CmDevice::first(),
        local => CmDevice::at(local),
    };
    let listening =
        device.and_then(|device| Ok(device.context.engine().listen_bound(bound, handler, backlog)?));
    let mut state = id.shared().lock();
    match listening {
        Ok(listening) => state.listening = Some(Arc::new(listening)),
        Err(errno) => {
            state.phase = Phase::Idle;
            return Err(errno);
        }
    }
    Ok(())
}

/// Converts the backlog of `rdma_listen` to one between `MIN_BACKLOG` and `MAX_BACKLOG`. As in the kernel
/// (`ucma_listen`), zero, a negative or a too large number means the maximum.
fn clamp_backlog(backlog: c_int) -> usize {
    match usize::try_from(backlog) {
        Ok(backlog @ 1..=MAX_BACKLOG) => backlog.max(MIN_BACKLOG),
        _ => MAX_BACKLOG,
    }
}

/// Sets the source and destination addresses of an id, and queues RDMA_CM_EVENT_ADDR_RESOLVED. The source is
/// the address that the id is bound to, else `from`, else one of a device that reaches the peer.
fn resolve(id: &Id, from: Option<SocketAddr>, to: SocketAddr) -> Result<(), Errno> {
    let (phase, bound) = {
        let state = id.shared().lock();
        (state.phase, state.local)
    };
    if !matches!(phase, Phase::Idle | Phase::Bound) {
        return Err(Errno::INVALID);
    }
    // The unspecified address means this host.
    let to = match to {
        SocketAddr::V4(v4) if v4.ip().is_unspecified() => (Ipv4Addr::LOCALHOST, v4.port()).into(),
        SocketAddr::V6(v6) if v6.ip().is_unspecified() => (std::net::Ipv6Addr::LOCALHOST, v6.port()).into(),
        to => to,
    };
    if phase == Phase::Idle
        && let Some(from) = from.filter(|from| !from.ip().is_unspecified() || from.port() != 0)
    {
        if from.is_ipv4() != to.is_ipv4() {
            return Err(Errno::INVALID);
        }
        if from.port() != 0 {
            bind(id, from)?;
        } else {
            Bound::new(from, BindOptions::default())?; // fails unless `from` is an address of this host
            id.set_local(from);
        }
    }
    let local = id.shared().lock().local.or(bound); // `bind` or `set_local` above may have set it
    let route = source_for(to)?;
    match local {
        Some(local) if !local.ip().is_unspecified() => {}
        Some(local) => id.set_local(SocketAddr::new(route.ip(), local.port())),
        None => id.set_local(route),
    }
    id.set_remote(to);
    id.set_device()?;
    id.shared().lock().phase = Phase::AddressResolved;
    id.shared().push(RDMA_CM_EVENT_ADDR_RESOLVED, 0);
    Ok(())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_bind_addr(id: *mut rdma_cm_id, addr: *mut libc::sockaddr) -> c_int {
    minus_one!(find::<Id>(id).and_then(|id| {
        // SAFETY: NULL, or valid by the caller's contract.
        bind(&id, unsafe { sockaddr::from_c(addr)? })
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int {
    minus_one!(find::<Id>(id).and_then(|id| listen(&id, backlog)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_resolve_addr(
    id: *mut rdma_cm_id,
    from: *mut libc::sockaddr,
    to: *mut libc::sockaddr,
    _timeout: c_int,
) -> c_int {
    // SAFETY: NULL, or valid by the caller's contract.
    let resolved = unsafe { resolve_addresses(id, from, to) };
    minus_one!(resolved)
}

/// Resolves the address `to` of a peer, for `rdma_resolve_addr` and `rdma_create_ep`. `from` is the local address to
/// use, or NULL. If the id is synchronous, takes RDMA_CM_EVENT_ADDR_RESOLVED; the thread may be cancelled while it
/// waits. EINVAL if `to` is NULL.
///
/// # Safety
/// The addresses are NULL, or as long as their families require.
pub(super) unsafe fn resolve_addresses(
    c: *mut rdma_cm_id,
    from: *const libc::sockaddr,
    to: *const libc::sockaddr,
) -> Result<(), Errno> {
    // SAFETY: NULL or long enough, by the caller's contract.
    let to = unsafe { sockaddr::from_c(to)? };
    // SAFETY: long enough, by the caller's contract.
    let from = if from.is_null() { None } else { Some(unsafe { sockaddr::from_c(from)? }) };
    without_cancellation(|| find::<Id>(c).and_then(|id| resolve(&id, from, to)))?;
    wait_if_synchronous(c)
}

#[unsafe(no_mangle)]
pub extern "C-unwind" fn rdma_resolve_route(id: *mut rdma_cm_id, _timeout: c_int) -> c_int {
    let resolved = resolve_route(id);
    minus_one!(resolved)
}

/// Sets the path of the route, and queues RDMA_CM_EVENT_ROUTE_RESOLVED at once: there is one route, known since
/// the address was resolved. If the id is synchronous, takes the event.
pub(super) fn resolve_route(c: *mut rdma_cm_id) -> Result<(), Errno> {
    without_cancellation(|| {
        let id = find::<Id>(c)?;
        let mut state = id.shared().lock();
        if state.phase != Phase::AddressResolved {
            return Err(Errno::INVALID);
        }
        state.phase = Phase::RouteResolved;
        drop(state);
        id.set_path();
        id.shared().push(RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
        Ok(())
    })?;
    wait_if_synchronous(c)
}
