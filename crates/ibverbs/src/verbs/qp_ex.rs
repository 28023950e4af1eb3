//! Requests that are built by functions in the queue pair itself, between a start and a completion.
//!
//! Nothing is posted before the completion, and nothing at all if a call failed: the completion returns the
//! first error.
#![expect(unsafe_code, reason = "entry points of the C ABI")]

use super::work_request::{Unaligned, compare_swap, elements, fetch_add, inline_data, is_signaled, sges};
use crate::abi::*;
use crate::objects::ah::Ah;
use crate::objects::mw;
use crate::objects::qp::{Builder, Kind, Qp};
use crate::support::errno::Errno;
use crate::support::object::{find, find_unchecked};
use crate::support::report;
use ironwarp_rnic::datagram::{AddressHandle, DatagramRequest, Destination};
use ironwarp_rnic::queue::{Data, Operation, Sges, WorkRequest};
use ironwarp_wire::{Place, Tag};
use std::ffi::{c_int, c_void};

/// The operations that a type of queue pair supports.
fn served(kind: ibv_qp_type) -> u64 {
    let sends = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
    let unreliable = sends
        | IBV_QP_EX_WITH_RDMA_WRITE
        | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
        | IBV_QP_EX_WITH_SEND_WITH_INV
        | IBV_QP_EX_WITH_LOCAL_INV
        | IBV_QP_EX_WITH_BIND_MW;
    let reliable = unreliable
        | IBV_QP_EX_WITH_RDMA_READ
        | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
        | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
    match kind {
        IBV_QPT_UD => sends,
        IBV_QPT_UC => unreliable,
        IBV_QPT_RC | IBV_QPT_XRC_SEND => reliable,
        _ => 0,
    }
}

/// Whether a type of queue pair supports these operations.
pub(crate) fn serves(kind: ibv_qp_type, ops: u64) -> bool {
    ops & !served(kind) == 0
}

/// Sets the functions of a queue pair for the operations that it was created with, as the manual says.
pub(crate) fn fill(qp: &mut ibv_qp_ex, ops: u64) {
    macro_rules! put {
        ($($bit:ident: $field:ident;)*) => { $(if ops & $bit != 0 { qp.$field = Some($field); })* };
    }
    put! {
        IBV_QP_EX_WITH_SEND: wr_send;
        IBV_QP_EX_WITH_SEND_WITH_IMM: wr_send_imm;
        IBV_QP_EX_WITH_SEND_WITH_INV: wr_send_inv;
        IBV_QP_EX_WITH_RDMA_WRITE: wr_rdma_write;
        IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM: wr_rdma_write_imm;
        IBV_QP_EX_WITH_RDMA_READ: wr_rdma_read;
        IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP: wr_atomic_cmp_swp;
        IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD: wr_atomic_fetch_add;
        IBV_QP_EX_WITH_LOCAL_INV: wr_local_inv;
        IBV_QP_EX_WITH_BIND_MW: wr_bind_mw;
    }
    qp.wr_start = Some(wr_start);
    qp.wr_complete = Some(wr_complete);
    qp.wr_abort = Some(wr_abort);
    qp.wr_set_sge = Some(wr_set_sge);
    qp.wr_set_sge_list = Some(wr_set_sge_list);
    qp.wr_set_inline_data = Some(wr_set_inline_data);
    qp.wr_set_inline_data_list = Some(wr_set_inline_data_list);
    match qp.qp_base.qp_type {
        IBV_QPT_UD => qp.wr_set_ud_addr = Some(wr_set_ud_addr),
        IBV_QPT_XRC_SEND => qp.wr_set_xrc_srqn = Some(wr_set_xrc_srqn),
        _ => {}
    }
}

/// # Safety
/// `c` is a live queue pair, and it is the caller's turn.
unsafe fn builder<'q>(c: *mut ibv_qp_ex) -> (&'q Qp, &'q mut Builder) {
    // SAFETY: guaranteed by the caller. The extended structure begins with the plain one.
    let qp: &Qp = unsafe { find_unchecked(c.cast()) };
    // SAFETY: it is the caller's turn.
    (qp, unsafe { &mut *qp.builder.get() })
}

unsafe extern "C" fn wr_start(c: *mut ibv_qp_ex) {
    // SAFETY: inline code of the headers read this function from the queue pair, so it is alive.
    let qp: &Qp = unsafe { find_unchecked(c.cast()) };
    if !qp.context().is_inherited() {
        qp.turn.take();
    }
    // SAFETY: as above, and it is this thread's turn now.
    unsafe { builder(c) }.1.clear();
}

unsafe extern "C" fn wr_abort(c: *mut ibv_qp_ex) {
    // SAFETY: as in `wr_start`, and it is still this thread's turn.
    let (qp, builder) = unsafe { builder(c) };
    builder.clear();
    qp.turn.release();
}

unsafe extern "C" fn wr_complete(c: *mut ibv_qp_ex) -> c_int {
    // SAFETY: as in `wr_start`, and it is still this thread's turn.
    let (qp, builder) = unsafe { builder(c) };
    let posted = match builder.wrong.take() {
        _ if qp.context().is_inherited() => Err(Errno::INHERITED),
        Some(errno) => Err(errno),
        None => post(qp, builder),
    };
    builder.clear();
    qp.turn.release();
    posted.map_or_else(|errno| errno.0, |()| 0)
}

/// Posts all requests or none.
fn post(qp: &Qp, builder: &mut Builder) -> Result<(), Errno> {
    if builder.requests.is_empty() {
        return Ok(());
    }
    let first = builder.requests.first().map_or(0, |request| request.id);
    let requests = builder.requests.drain(..);
    let posted = match qp.kind() {
        Kind::Stream(pair) => pair.post_send(requests),
        Kind::Datagram(pair) => {
            let addressed = requests.zip(&builder.destinations).map(|(request, destination)| {
                Some(DatagramRequest { request, destination: (*destination)? })
            });
            pair.qp().post_send(addressed.collect::<Option<_>>().ok_or(Errno::INVALID)?)
        }
    };
    posted.map_err(|error| {
        report::log_not_posted(qp.number(), first, &error);
        error.into()
    })
}

/// Begins a request.
///
/// # Safety
/// As for [`builder`].
unsafe fn add(c: *mut ibv_qp_ex, operation: Result<Operation, Errno>, immediate: Option<u32>) {
    // SAFETY: guaranteed by the caller.
    let (qp, builder) = unsafe { builder(c) };
    // SAFETY: the program sets both fields before it begins a request.
    let (id, flags) = unsafe { ((*c).wr_id, (*c).wr_flags) };
    let Some(operation) = builder.note(operation) else { return };
    builder.destinations.push(None);
    builder.requests.push(WorkRequest {
        signaled: is_signaled(qp, flags),
        fence: flags & IBV_SEND_FENCE != 0,
        solicited: flags & IBV_SEND_SOLICITED != 0,
        immediate: immediate.map(u32::from_be),
        ..WorkRequest::new(id, operation, Data::Memory(Sges::default()))
    });
}

fn place(rkey: u32, remote_addr: u64) -> Place {
    Place { tag: Tag(rkey), offset: remote_addr }
}

unsafe extern "C" fn wr_send(c: *mut ibv_qp_ex) {
    // SAFETY: as in `wr_start`, and it is still this thread's turn. This holds for all calls below.
    unsafe { add(c, Ok(Operation::Send { invalidate: None }), None) };
}

unsafe extern "C" fn wr_send_imm(c: *mut ibv_qp_ex, immediate: u32) {
    // SAFETY: as above.
    unsafe { add(c, Ok(Operation::Send { invalidate: None }), Some(immediate)) };
}

unsafe extern "C" fn wr_send_inv(c: *mut ibv_qp_ex, rkey: u32) {
    // SAFETY: as above.
    unsafe { add(c, Ok(Operation::Send { invalidate: Some(Tag(rkey)) }), None) };
}

unsafe extern "C" fn wr_rdma_write(c: *mut ibv_qp_ex, rkey: u32, remote_addr: u64) {
    // SAFETY: as above.
    unsafe { add(c, Ok(Operation::Write(place(rkey, remote_addr))), None) };
}

unsafe extern "C" fn wr_rdma_write_imm(c: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, immediate: u32) {
    // SAFETY: as above.
    unsafe { add(c, Ok(Operation::Write(place(rkey, remote_addr))), Some(immediate)) };
}

unsafe extern "C" fn wr_rdma_read(c: *mut ibv_qp_ex, rkey: u32, remote_addr: u64) {
    // SAFETY: as above.
    unsafe { add(c, Ok(Operation::Read(place(rkey, remote_addr))), None) };
}

unsafe extern "C" fn wr_atomic_cmp_swp(
    c: *mut ibv_qp_ex,
    rkey: u32,
    remote_addr: u64,
    compare: u64,
    swap: u64,
) {
    // SAFETY: as above.
    unsafe { add(c, Ok(compare_swap(place(rkey, remote_addr), compare, swap)), None) };
}

unsafe extern "C" fn wr_atomic_fetch_add(c: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, value: u64) {
    // SAFETY: as above.
    unsafe { add(c, Ok(fetch_add(place(rkey, remote_addr), value)), None) };
}

unsafe extern "C" fn wr_local_inv(c: *mut ibv_qp_ex, rkey: u32) {
    // SAFETY: as above.
    unsafe { add(c, Ok(Operation::Invalidate(Tag(rkey))), None) };
}

unsafe extern "C" fn wr_bind_mw(
    c: *mut ibv_qp_ex,
    mw: *mut ibv_mw,
    rkey: u32,
    info: *const ibv_mw_bind_info,
) {
    // SAFETY: NULL, or valid by the caller's contract.
    let info = unsafe { info.as_ref() }.ok_or(Errno::INVALID);
    // SAFETY: as above.
    unsafe { add(c, info.and_then(|info| mw::bind_operation(mw, rkey, info)), None) };
}

unsafe extern "C" fn wr_set_ud_addr(c: *mut ibv_qp_ex, ah: *mut ibv_ah, qpn: u32, qkey: u32) {
    // SAFETY: as above.
    let (_, builder) = unsafe { builder(c) };
    let address: Result<AddressHandle, Errno> = find::<Ah>(ah).map(|ah| ah.address());
    if let (Some(address), Some(last)) = (builder.note(address), builder.destinations.last_mut()) {
        *last = Some(Destination { address, qpn, qkey });
    }
}

unsafe extern "C" fn wr_set_xrc_srqn(c: *mut ibv_qp_ex, number: u32) {
    // SAFETY: as above.
    unsafe { builder(c) }.1.last(|request| request.srq = number);
}

/// The data of a list, unless it has too many elements.
fn memory_data(qp: &Qp, list: &[Unaligned<ibv_sge>]) -> Result<Data, Errno> {
    if list.len() > qp.init().cap.max_send_sge as usize {
        return Err(Errno::INVALID);
    }
    Ok(Data::Memory(sges(list)))
}

unsafe extern "C" fn wr_set_sge(c: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    // SAFETY: as above.
    let (qp, builder) = unsafe { builder(c) };
    // An element of length zero counts as none.
    let one = [Unaligned(ibv_sge { addr, length, lkey })];
    builder.set_data(memory_data(qp, if length == 0 { &[] } else { &one }));
}

unsafe extern "C" fn wr_set_sge_list(c: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    // SAFETY: as above.
    let (qp, builder) = unsafe { builder(c) };
    let count = c_int::try_from(count).map_err(|_| Errno::INVALID);
    // SAFETY: the list has that many elements by the caller's contract.
    let list = count.and_then(|count| unsafe { elements(list, count) });
    builder.set_data(list.and_then(|list| memory_data(qp, list)));
}

unsafe extern "C" fn wr_set_inline_data(c: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    // SAFETY: a list of one buffer of the program.
    unsafe { wr_set_inline_data_list(c, 1, &ibv_data_buf { addr, length }) };
}

unsafe extern "C" fn wr_set_inline_data_list(c: *mut ibv_qp_ex, count: usize, list: *const ibv_data_buf) {
    // SAFETY: as above.
    let (qp, builder) = unsafe { builder(c) };
    if list.is_null() && count > 0 {
        builder.set_data(Err(Errno::INVALID));
        return;
    }
    let max = qp.init().cap.max_inline_data;
    let list = match count {
        0 => &[],
        // SAFETY: the list has that many elements by the caller's contract.
        _ => unsafe { std::slice::from_raw_parts(list, count) },
    };
    let pieces = list.iter().map(|piece| {
        let length = u32::try_from(piece.length).map_err(|_| Errno::INVALID)?;
        Ok(Unaligned(ibv_sge { addr: piece.addr as u64, length, lkey: 0 }))
    });
    // SAFETY: the program asks for its memory to be read now.
    let data = pieces.collect::<Result<Vec<_>, _>>().and_then(|list| unsafe { inline_data(&list, max) });
    builder.set_data(data);
}
