//! The data path under `ironwarp run --check`: entry points that tell the checker what the program does, and then call
//! those of `post` and `cq`. Unlike those, they look objects up in the table of live objects.
//!
//! The functions that inline code of the headers calls are a few instructions of assembly, which pass on their return
//! address and stack pointer: these identify the call site.
#![expect(unsafe_code, reason = "entry points of the C ABI, in assembly")]

use super::work_request::{is_signaled, read_request, sge_list};
use super::{cq, post};
use crate::abi::*;
use crate::check::{self, Checker, Completed, Element, Posted, Stack, Use};
use crate::objects::cq::Cq;
use crate::objects::qp::{Kind, Qp};
use crate::objects::srq::Srq;
use crate::support::errno::Errno;
use crate::support::object::{CObject, find, put};
use ironwarp_rnic::qp::State;
use ironwarp_rnic::queue::{Completion, Data, Operation, WorkRequest};
use std::ffi::c_int;
use std::sync::Arc;

/// Defines an entry point with three arguments, which calls `$inner` with them, its return address and its stack pointer.
macro_rules! entry_point {
    ($(#[$doc:meta])* $name:ident($queue:ty, $wr:ty) => $inner:ident) => {
        $(#[$doc])*
        #[unsafe(naked)]
        pub(super) unsafe extern "C" fn $name(queue: *mut $queue, wr: *mut $wr, bad: *mut *mut $wr) -> c_int {
            #[cfg(target_arch = "x86_64")]
            std::arch::naked_asm!("mov rcx, [rsp]", "mov r8, rsp", "jmp {inner}", inner = sym $inner);
            #[cfg(target_arch = "aarch64")]
            std::arch::naked_asm!("mov x3, x30", "mov x4, sp", "b {inner}", inner = sym $inner);
        }
    };
}

entry_point! {
    /// `ibv_post_send`.
    post_send(ibv_qp, ibv_send_wr) => post_send_at
}
entry_point! {
    /// `ibv_post_recv`.
    post_recv(ibv_qp, ibv_recv_wr) => post_recv_at
}
entry_point! {
    /// `ibv_post_srq_recv`.
    post_srq_recv(ibv_srq, ibv_recv_wr) => post_srq_recv_at
}

/// Returns the checker and the object of a C pointer. Otherwise writes the request that was not posted to `bad`, and fails
/// with the errno.
unsafe fn begin<T: CObject, R>(
    c: *mut T::C,
    wr: *mut R,
    bad: *mut *mut R,
) -> Result<(&'static Checker, Arc<T>), c_int> {
    let found = check::active().ok_or(Errno::INVALID).and_then(|checker| Ok((checker, find::<T>(c)?)));
    found.map_err(|errno| {
        // SAFETY: NULL, or valid by the caller's contract.
        unsafe { put(bad, wr) };
        errno.0
    })
}

/// Posts a chain with `post`. Returns the number of requests that were accepted, and the errno.
///
/// # Safety
/// `first` is NULL or a chain of valid requests, `bad` is NULL or valid for writes.
unsafe fn post_counted<R: Copy>(
    first: *mut R,
    bad: *mut *mut R,
    next: fn(&R) -> *mut R,
    max: usize,
    post: impl FnOnce(*mut *mut R) -> c_int,
) -> (usize, c_int) {
    let mut refused = std::ptr::null_mut();
    let errno = post(&raw mut refused);
    let (mut at, mut count) = (first, 0);
    while count < max && !(errno != 0 && at == refused) {
        // SAFETY: a link of the chain, by the caller's contract.
        let Some(wr) = (unsafe { read_request(at) }) else { break };
        (at, count) = (next(&wr), count + 1);
    }
    if errno != 0 {
        // SAFETY: NULL, or valid by the caller's contract.
        unsafe { put(bad, refused) };
    }
    (count, errno)
}

unsafe extern "C" fn post_send_at(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
    return_address: usize,
    stack_pointer: usize,
) -> c_int {
    // SAFETY: `wr` and `bad` are those of the caller.
    let (checker, found) = match unsafe { begin::<Qp, _>(qp, wr, bad) } {
        Ok(found) => found,
        Err(errno) => return errno,
    };
    let stack = Stack::at((return_address, stack_pointer));
    let max = found.init().cap.max_send_wr as usize;
    let (mut requests, mut next) = (Vec::new(), wr);
    // SAFETY: a link of the chain, by the caller's contract.
    while let Some(wr) = unsafe { read_request(next) }
        && requests.len() < max
    {
        // SAFETY: a valid request, by the caller's contract.
        requests.push(unsafe { posted_send(&found, &wr) });
        next = wr.next;
    }
    let first = requests.first().map_or(0, |request| request.id);
    let context = found.context();
    let of = (context.adapter_key(), found.number());
    let errno = checker.post_sends(of, &stack, requests, || {
        // SAFETY: the arguments of the caller, and a local variable.
        unsafe { post_counted(wr, bad, |wr| wr.next, max, |bad| post::post_send(qp, wr, bad)) }
    });
    report_state(checker, &found, first, errno, &stack);
    errno
}

/// Reports that the request `id` was refused because of the state of its queue pair.
fn report_state(checker: &Checker, qp: &Qp, id: u64, errno: c_int, stack: &Stack) {
    if errno == libc::EINVAL
        && let state @ (State::Reset | State::Init | State::ReadyToReceive) = qp.state()
    {
        checker.refused_by_state(qp.number(), id, state, stack);
    }
}

/// Describes a request to the checker.
///
/// # Safety
/// The list of the request is valid.
unsafe fn posted_send(qp: &Qp, wr: &ibv_send_wr) -> Posted {
    let is_inline = wr.send_flags & IBV_SEND_INLINE != 0;
    let uses = match wr.opcode {
        IBV_WR_LOCAL_INV | IBV_WR_BIND_MW => Use::Nothing,
        IBV_WR_RDMA_READ | IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD => Use::Sink,
        _ if is_inline => Use::Nothing,
        // Programs learn from a reply that a datagram was sent.
        _ if !is_signaled(qp, wr.send_flags) && matches!(qp.kind(), Kind::Datagram(_)) => Use::Nothing,
        _ => Use::Source,
    };
    let is_atomic = matches!(wr.opcode, IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD);
    // SAFETY: the member is integers, so any bytes are valid.
    let target = unsafe { wr.wr.atomic.remote_addr };
    // Requests without data do not have a list, and their fields may be anything.
    let has_data = !matches!(wr.opcode, IBV_WR_LOCAL_INV | IBV_WR_BIND_MW);
    // SAFETY: valid by the caller's contract.
    let list = if has_data { unsafe { elements(wr.sg_list, wr.num_sge) } } else { Default::default() };
    Posted {
        id: wr.wr_id,
        signaled: is_signaled(qp, wr.send_flags),
        fence: wr.send_flags & IBV_SEND_FENCE != 0,
        uses,
        inline: is_inline.then(|| list.iter().map(|element| element.len as usize).sum()),
        elements: if uses == Use::Nothing { Default::default() } else { list },
        atomic: is_atomic.then_some(target),
        operation: operation(wr.opcode),
    }
}

/// Returns the operation of a request, unless its opcode is unknown: then posting it fails.
fn operation(opcode: ibv_wr_opcode) -> Option<check::Operation> {
    use check::Operation as Op;
    Some(match opcode {
        IBV_WR_SEND | IBV_WR_SEND_WITH_IMM => Op::Send,
        IBV_WR_SEND_WITH_INV => Op::SendInvalidate,
        IBV_WR_RDMA_WRITE => Op::Write,
        IBV_WR_RDMA_WRITE_WITH_IMM => Op::WriteImmediate,
        IBV_WR_RDMA_READ => Op::Read,
        IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD => Op::Atomic,
        IBV_WR_BIND_MW => Op::BindWindow,
        IBV_WR_LOCAL_INV => Op::LocalInvalidate,
        _ => return None,
    })
}

/// Returns the elements of a list. An invalid list has none: posting it fails.
///
/// # Safety
/// `list` is NULL or has `count` elements.
unsafe fn elements(list: *const ibv_sge, count: c_int) -> smallvec::SmallVec<[Element; 2]> {
    // SAFETY: valid by the caller's contract.
    let Ok(list) = (unsafe { sge_list(list, count) }) else { return Default::default() };
    let convert = |sge: ibv_sge| Element { addr: sge.addr, len: sge.length, lkey: sge.lkey };
    list.iter().map(|sge| convert(sge.get())).collect()
}

/// Describes a chain of receives to the checker.
///
/// # Safety
/// `next` is NULL or a chain of valid requests.
unsafe fn posted_receives(mut next: *mut ibv_recv_wr, max: usize) -> Vec<Posted> {
    let mut requests = Vec::new();
    // SAFETY: a link of the chain, by the caller's contract.
    while let Some(wr) = unsafe { read_request(next) }
        && requests.len() < max
    {
        // SAFETY: the list of a valid request is valid.
        let elements = unsafe { elements(wr.sg_list, wr.num_sge) };
        requests.push(Posted {
            id: wr.wr_id,
            signaled: true,
            fence: false,
            uses: Use::Sink,
            elements,
            atomic: None,
            operation: None,
            inline: None,
        });
        next = wr.next;
    }
    requests
}

unsafe extern "C" fn post_recv_at(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
    return_address: usize,
    stack_pointer: usize,
) -> c_int {
    // SAFETY: `wr` and `bad` are those of the caller.
    let (checker, found) = match unsafe { begin::<Qp, _>(qp, wr, bad) } {
        Ok(found) => found,
        Err(errno) => return errno,
    };
    let stack = Stack::at((return_address, stack_pointer));
    let max = found.init().cap.max_recv_wr as usize;
    // SAFETY: valid by the caller's contract.
    let requests = unsafe { posted_receives(wr, max) };
    let first = requests.first().map_or(0, |request| request.id);
    let context = found.context();
    let of = (context.adapter_key(), found.number());
    let errno = checker.post_receives(of, &stack, requests, || {
        // SAFETY: the arguments of the caller, and a local variable.
        unsafe { post_counted(wr, bad, |wr| wr.next, max, |bad| post::post_recv(qp, wr, bad)) }
    });
    if found.state() == State::Reset {
        report_state(checker, &found, first, errno, &stack);
    }
    errno
}

unsafe extern "C" fn post_srq_recv_at(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
    return_address: usize,
    stack_pointer: usize,
) -> c_int {
    // SAFETY: `wr` and `bad` are those of the caller.
    let (checker, found) = match unsafe { begin::<Srq, _>(srq, wr, bad) } {
        Ok(found) => found,
        Err(errno) => return errno,
    };
    let stack = Stack::at((return_address, stack_pointer));
    let max = found.inner().query().depth;
    // SAFETY: valid by the caller's contract.
    let requests = unsafe { posted_receives(wr, max) };
    let context = found.context();
    let of = (context.adapter_key(), srq as usize);
    checker.post_shared_receives(of, &stack, requests, || {
        // SAFETY: the arguments of the caller, and a local variable.
        unsafe { post_counted(wr, bad, |wr| wr.next, max, |bad| post::post_srq_recv(srq, wr, bad)) }
    })
}

/// `ibv_poll_cq`.
pub(super) unsafe extern "C" fn poll_cq(c: *mut ibv_cq, max: c_int, to: *mut ibv_wc) -> c_int {
    let (Some(checker), Ok(cq)) = (check::active(), find::<Cq>(c.cast())) else { return -1 };
    checker.poll(cq.c() as usize, || {
        let mut polled = Vec::new();
        // SAFETY: the queue is alive, and the caller has room for `max` completions.
        let found =
            unsafe { cq::poll_each(&cq, max, to, |completion, wc| polled.push((completion.clone(), *wc))) };
        // Not inside the poll, which has locked the queue: a thread that posts adds to it, and has locked the checker's.
        polled.iter().for_each(|(completion, wc)| completed(checker, &cq, completion, wc));
        found
    })
}

/// Tells the checker about a completion that the program gets.
pub(super) fn completed(checker: &Checker, cq: &Cq, completion: &Completion, wc: &ibv_wc) {
    let context = cq.context();
    let cause = completion.cause.as_deref();
    checker.completed(&Completed { adapter: context.adapter_key(), cq: cq.c() as usize, wc, cause });
}

/// Posts requests of the extended calls, or of `ibv_bind_mw`, with `post`, all or none.
pub(super) fn post_built(
    qp: &Qp,
    requests: &[WorkRequest],
    post: impl FnOnce() -> Result<(), Errno>,
    checker: &Checker,
) -> Result<(), Errno> {
    let (posted, count) = (requests.iter().map(|request| built(qp, request)), requests.len());
    let (context, mut result) = (qp.context(), Ok(()));
    let of = (context.adapter_key(), qp.number());
    let stack = Stack::capture();
    checker.post_sends(of, &stack, posted.collect(), || {
        result = post();
        result.map_or_else(|errno| (0, errno.0), |()| (count, 0))
    });
    if let (Err(errno), Some(first)) = (result, requests.first()) {
        report_state(checker, qp, first.id, errno.0, &stack);
    }
    result
}

/// Describes a request that was built from other arguments than `ibv_send_wr` to the checker.
fn built(qp: &Qp, request: &WorkRequest) -> Posted {
    let (uses, atomic) = match &request.operation {
        // Programs learn from a reply that a datagram was sent.
        _ if !request.signaled && matches!(qp.kind(), Kind::Datagram(_)) => (Use::Nothing, None),
        Operation::Send { .. } | Operation::Write(_) => (Use::Source, None),
        Operation::Read(_) => (Use::Sink, None),
        Operation::Atomic { target, .. } => (Use::Sink, Some(target.offset)),
        _ => (Use::Nothing, None),
    };
    let convert = |sge: &ironwarp_rnic::queue::Sge| Element { addr: sge.addr, len: sge.len, lkey: sge.tag.0 };
    let elements = match &request.data {
        Data::Memory(sges) => sges.as_slice().iter().map(convert).collect(),
        Data::Inline(_) => smallvec::SmallVec::new(),
    };
    let inline = match &request.data {
        Data::Inline(data) => Some(data.len()),
        Data::Memory(_) => None,
    };
    let operation = built_operation(request);
    let WorkRequest { id, signaled, fence, .. } = *request;
    Posted { id, signaled, fence, uses, elements, atomic, operation, inline }
}

/// Returns the operation of a request of the extended calls, unless they have none for it.
fn built_operation(request: &WorkRequest) -> Option<check::Operation> {
    use check::Operation as Op;
    Some(match request.operation {
        Operation::Send { invalidate: Some(_) } => Op::SendInvalidate,
        Operation::Send { .. } => Op::Send,
        Operation::Write(_) if request.immediate.is_some() => Op::WriteImmediate,
        Operation::Write(_) => Op::Write,
        Operation::Read(_) => Op::Read,
        Operation::Atomic { .. } => Op::Atomic,
        Operation::Bind { .. } | Operation::BindAs { .. } => Op::BindWindow,
        Operation::Invalidate(_) => Op::LocalInvalidate,
        Operation::Register { .. } | Operation::RegisterSend { .. } => return None,
    })
}
