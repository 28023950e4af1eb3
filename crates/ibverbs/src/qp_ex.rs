//! Requests that are built by functions in the queue pair itself, between a start and a completion. Beside `post.rs`, which
//! takes them in one piece.
//!
//! Nothing is posted before the completion, and nothing at all if anything was wrong on the way: that is remembered, and
//! told by the completion.
#![expect(unsafe_code, reason = "entry points of the C ABI")]

use crate::abi::*;
use crate::ah::Ah;
use crate::errno::Errno;
use crate::mw;
use crate::object::{find, trusted};
use crate::post::{Loose, compare_swap, copied, elements, fetch_add, is_signaled, sges};
use crate::qp::{Kind, Qp};
use crate::report;
use crate::turn::Turn;
use ironwarp_rnic::datagram::{AddressHandle, DatagramRequest, Destination};
use ironwarp_rnic::queue::{Data, Operation, Sges, WorkRequest};
use ironwarp_wire::{Place, Tag};
use std::ffi::{c_int, c_void};

/// What has been built so far, and whose turn it is.
#[derive(Debug, Default)]
pub(crate) struct Builder {
    requests: Vec<WorkRequest>,
    /// Where each goes, if they are datagrams.
    destinations: Vec<Option<Destination>>,
    wrong: Option<Errno>,
}

/// Threads build one after the other, unless the program promised that there is one.
#[derive(Debug, Default)]
pub(crate) struct Building {
    pub(crate) turn: Turn,
    pub(crate) single_threaded: bool,
}

/// The functions that a queue pair of a type can have.
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

/// Whether a queue pair of this type can have these functions.
pub(crate) fn serves(kind: ibv_qp_type, ops: u64) -> bool {
    ops & !served(kind) == 0
}

/// Puts the functions into a queue pair: those that it was made for, as the manual has it.
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

impl Builder {
    fn clear(&mut self) {
        self.requests.clear();
        self.destinations.clear();
        self.wrong = None;
    }

    /// The first thing that was wrong is what is told.
    fn note<T>(&mut self, result: Result<T, Errno>) -> Option<T> {
        result.map_err(|errno| self.wrong = self.wrong.or(Some(errno))).ok()
    }

    /// Something about the request that is being built. There must be one.
    fn last(&mut self, change: impl FnOnce(&mut WorkRequest)) {
        match self.requests.last_mut() {
            Some(request) => change(request),
            None => self.wrong = self.wrong.or(Some(Errno::INVALID)),
        }
    }

    fn set_data(&mut self, data: Result<Data, Errno>) {
        if let Some(data) = self.note(data) {
            self.last(|request| request.data = data);
        }
    }
}

/// # Safety
/// `c` is a queue pair of ours, and it is the caller's turn.
unsafe fn builder<'q>(c: *mut ibv_qp_ex) -> (&'q Qp, &'q mut Builder) {
    // SAFETY: the caller's word. An extended queue pair begins with its plain form.
    let qp: &Qp = unsafe { trusted(c.cast()) };
    // SAFETY: the turn is the caller's.
    (qp, unsafe { &mut *qp.builder.get() })
}

unsafe extern "C" fn wr_start(c: *mut ibv_qp_ex) {
    // SAFETY: inline code of the headers has read this function from the queue pair.
    let qp: &Qp = unsafe { trusted(c.cast()) };
    if !qp.building.single_threaded && !qp.context().is_inherited() {
        qp.building.turn.take();
    }
    // SAFETY: as above, and it is this thread's turn now.
    unsafe { builder(c) }.1.clear();
}

unsafe extern "C" fn wr_abort(c: *mut ibv_qp_ex) {
    // SAFETY: as in `wr_start`, whose turn lasts.
    let (qp, builder) = unsafe { builder(c) };
    builder.clear();
    end(qp);
}

fn end(qp: &Qp) {
    if !qp.building.single_threaded {
        qp.building.turn.give_back();
    }
}

unsafe extern "C" fn wr_complete(c: *mut ibv_qp_ex) -> c_int {
    // SAFETY: as in `wr_start`, whose turn lasts.
    let (qp, builder) = unsafe { builder(c) };
    let posted = match builder.wrong.take() {
        _ if qp.context().is_inherited() => Err(Errno::INHERITED),
        Some(errno) => Err(errno),
        None => post(qp, builder),
    };
    builder.clear();
    end(qp);
    posted.map_or_else(|errno| errno.0, |()| 0)
}

/// Posts what was built: all of it or nothing.
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
        report::not_posted(qp.number(), first, &error);
        error.into()
    })
}

/// Begins a request.
///
/// # Safety
/// As for [`builder`].
unsafe fn add(c: *mut ibv_qp_ex, operation: Result<Operation, Errno>, immediate: Option<u32>) {
    // SAFETY: the caller's word.
    let (qp, builder) = unsafe { builder(c) };
    // SAFETY: the program sets both before it begins a request.
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
    // SAFETY: as in `wr_start`, whose turn lasts; so in all that follow.
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
    // SAFETY: NULL or the caller's.
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

/// Memory, if there are not too many pieces of it.
fn listed(qp: &Qp, list: &[Loose<ibv_sge>]) -> Result<Data, Errno> {
    if list.len() > qp.init().cap.max_send_sge as usize {
        return Err(Errno::INVALID);
    }
    Ok(Data::Memory(sges(list)))
}

unsafe extern "C" fn wr_set_sge(c: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    // SAFETY: as above.
    let (qp, builder) = unsafe { builder(c) };
    // One of no length is none.
    let one = [Loose(ibv_sge { addr, length, lkey })];
    builder.set_data(listed(qp, if length == 0 { &[] } else { &one }));
}

unsafe extern "C" fn wr_set_sge_list(c: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    // SAFETY: as above.
    let (qp, builder) = unsafe { builder(c) };
    let count = c_int::try_from(count).map_err(|_| Errno::INVALID);
    // SAFETY: the caller's list has so many elements.
    let list = count.and_then(|count| unsafe { elements(list, count) });
    builder.set_data(list.and_then(|list| listed(qp, list)));
}

unsafe extern "C" fn wr_set_inline_data(c: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    // SAFETY: the program's one buffer.
    unsafe { wr_set_inline_data_list(c, 1, &ibv_data_buf { addr, length }) };
}

unsafe extern "C" fn wr_set_inline_data_list(c: *mut ibv_qp_ex, count: usize, list: *const ibv_data_buf) {
    // SAFETY: as above.
    let (qp, builder) = unsafe { builder(c) };
    if list.is_null() && count > 0 {
        builder.set_data(Err(Errno::INVALID));
        return;
    }
    let most = qp.init().cap.max_inline_data;
    let list = match count {
        0 => &[],
        // SAFETY: the caller's list has so many elements.
        _ => unsafe { std::slice::from_raw_parts(list, count) },
    };
    let pieces = list.iter().map(|piece| {
        let length = u32::try_from(piece.length).map_err(|_| Errno::INVALID)?;
        Ok(Loose(ibv_sge { addr: piece.addr as u64, length, lkey: 0 }))
    });
    // SAFETY: the program asks that they be read now.
    let data = pieces.collect::<Result<Vec<_>, _>>().and_then(|list| unsafe { copied(&list, most) });
    builder.set_data(data);
}
